#include "sherd/core/tensor/types/scalar.h"

#include <complex>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace sherd {

std::string Scalar::ToString() const { return ElementToString(dtype_, data()); }

std::string ElementToString(DType dtype, const void* element) {
  if (IsCarried(dtype)) {
    uint32_t bits = 0;
    std::memcpy(&bits, element, SizeOf(dtype));
    return absl::StrCat("0x",
                        absl::Hex(bits, SizeOf(dtype) == 1 ? absl::kZeroPad2
                                                           : absl::kZeroPad8));
  }
  return DispatchDType(dtype, [&](auto tag) -> std::string {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, bool>) {
      // Bytes that are neither 0 nor 1 are not a bool.
      return *static_cast<const std::byte*>(element) != std::byte{0} ? "true"
                                                                     : "false";
    }
    T value;
    std::memcpy(&value, element, sizeof(T));
    if constexpr (std::is_arithmetic_v<T>) {
      return absl::StrCat(value);
    } else if constexpr (requires { value.real(); }) {
      return absl::StrCat("(", value.real(), ",", value.imag(), ")");
    } else {
      return absl::StrCat(static_cast<float>(value));
    }
  });
}

}  // namespace sherd
