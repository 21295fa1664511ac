#include "sherd/core/tensor/types/scalar.h"

#include <complex>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace sherd {

std::string Scalar::ToString() const {
  return DispatchDType(dtype_, [&](auto tag) -> std::string {
    using T = typename decltype(tag)::type;
    T value;
    std::memcpy(&value, data(), sizeof(T));
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_arithmetic_v<T>) {
      return absl::StrCat(value);
    } else if constexpr (requires { value.real(); }) {
      return absl::StrCat("(", value.real(), ",", value.imag(), ")");
    } else {
      return absl::StrCat(static_cast<float>(value));
    }
  });
}

}  // namespace sherd
