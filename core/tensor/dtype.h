#ifndef SHERD_CORE_TENSOR_DTYPE_H_
#define SHERD_CORE_TENSOR_DTYPE_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/cxx_standard.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/float_types.h"

namespace sherd {

// Element types. The numbers are part of the plugin ABI and of file formats:
// they never change, new ones are appended.
enum class DType : int32_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kUInt16 = 3,
  kInt16 = 4,
  kUInt32 = 5,
  kInt32 = 6,
  kUInt64 = 7,
  kInt64 = 8,
  kFloat8E4M3 = 9,
  kFloat8E5M2 = 10,
  kFloat16 = 11,
  kBFloat16 = 12,
  kFloat32 = 13,
  kFloat64 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
  // Carried: see IsCarried.
  kFloat8E4M3FNUZ = 17,
  kFloat8E5M2FNUZ = 18,
  kFloat8E8M0 = 19,
  kComplex32 = 20,
};

inline constexpr int kNumDTypes = 21;
// Those that Sherd computes with have the first numbers.
inline constexpr int kNumComputedDTypes = 17;

inline constexpr DType kBool = DType::kBool;
inline constexpr DType kUInt8 = DType::kUInt8;
inline constexpr DType kInt8 = DType::kInt8;
inline constexpr DType kUInt16 = DType::kUInt16;
inline constexpr DType kInt16 = DType::kInt16;
inline constexpr DType kUInt32 = DType::kUInt32;
inline constexpr DType kInt32 = DType::kInt32;
inline constexpr DType kUInt64 = DType::kUInt64;
inline constexpr DType kInt64 = DType::kInt64;
inline constexpr DType kFloat8E4M3 = DType::kFloat8E4M3;
inline constexpr DType kFloat8E5M2 = DType::kFloat8E5M2;
inline constexpr DType kFloat16 = DType::kFloat16;
inline constexpr DType kBFloat16 = DType::kBFloat16;
inline constexpr DType kFloat32 = DType::kFloat32;
inline constexpr DType kFloat64 = DType::kFloat64;
inline constexpr DType kComplex64 = DType::kComplex64;
inline constexpr DType kComplex128 = DType::kComplex128;
inline constexpr DType kFloat8E4M3FNUZ = DType::kFloat8E4M3FNUZ;
inline constexpr DType kFloat8E5M2FNUZ = DType::kFloat8E5M2FNUZ;
inline constexpr DType kFloat8E8M0 = DType::kFloat8E8M0;
inline constexpr DType kComplex32 = DType::kComplex32;

// Whether `value` is the number of a DType. Check numbers from files and peers
// with it before casting; every function below expects a valid DType.
constexpr bool IsValid(int32_t value) {
  return value >= 0 && value < kNumDTypes;
}

// Whether elements are carried and not computed with: the 8-bit floats of other
// accelerators, scales of block formats, and complex numbers of float16. Their
// tensors are created, viewed, copied, moved between layouts, ranks and
// devices, compared bit by bit, saved and loaded like others. But they have no
// C++ type, and no number becomes such an element or is made of one, except 0,
// whose bits are 0 (of float8_e8m0fnu, which has no 0, that is 2^-127). A
// carried dtype is of none of the kinds below.
constexpr bool IsCarried(DType dtype) {
  return static_cast<int32_t>(dtype) >= kNumComputedDTypes;
}

// What a function that computes with elements returns for those that are
// carried.
//   kUnimplemented  "float8_e8m0fnu is carried, not computed with; its bits are
//                   those of an integer: see ViewAs".
absl::Status CheckComputed(DType dtype);

// Bytes per element: 1, 2, 4, 8 or 16.
size_t SizeOf(DType dtype);

// The alignment that typed access needs, in bytes: that of the real type for
// complex numbers.
size_t AlignmentOf(DType dtype);

// "bool", "uint8", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float32",
// "complex64", …: the names that NumPy, ml_dtypes and PyTorch use.
absl::string_view Name(DType dtype);

// The inverse of Name; exact spelling.
//   kInvalidArgument  There is no such name; the message lists all names.
absl::StatusOr<DType> ParseDType(absl::string_view name);

bool IsFloatingPoint(DType dtype);  // The 8-, 16-, 32- and 64-bit floats.
bool IsComplex(DType dtype);
bool IsInteger(DType dtype);  // Of 8 to 64 bits; bool is none.
bool IsSigned(DType dtype);   // Signed integers, floats and complex numbers.

std::ostream& operator<<(std::ostream& out, DType dtype);

namespace internal {

template <typename T>
struct DTypeOfImpl;
template <>
struct DTypeOfImpl<bool> : std::integral_constant<DType, kBool> {};
template <>
struct DTypeOfImpl<uint8_t> : std::integral_constant<DType, kUInt8> {};
template <>
struct DTypeOfImpl<int8_t> : std::integral_constant<DType, kInt8> {};
template <>
struct DTypeOfImpl<uint16_t> : std::integral_constant<DType, kUInt16> {};
template <>
struct DTypeOfImpl<int16_t> : std::integral_constant<DType, kInt16> {};
template <>
struct DTypeOfImpl<uint32_t> : std::integral_constant<DType, kUInt32> {};
template <>
struct DTypeOfImpl<int32_t> : std::integral_constant<DType, kInt32> {};
template <>
struct DTypeOfImpl<uint64_t> : std::integral_constant<DType, kUInt64> {};
template <>
struct DTypeOfImpl<int64_t> : std::integral_constant<DType, kInt64> {};
template <>
struct DTypeOfImpl<Float8E4M3> : std::integral_constant<DType, kFloat8E4M3> {};
template <>
struct DTypeOfImpl<Float8E5M2> : std::integral_constant<DType, kFloat8E5M2> {};
template <>
struct DTypeOfImpl<Float16> : std::integral_constant<DType, kFloat16> {};
template <>
struct DTypeOfImpl<BFloat16> : std::integral_constant<DType, kBFloat16> {};
template <>
struct DTypeOfImpl<float> : std::integral_constant<DType, kFloat32> {};
template <>
struct DTypeOfImpl<double> : std::integral_constant<DType, kFloat64> {};
template <>
struct DTypeOfImpl<std::complex<float>>
    : std::integral_constant<DType, kComplex64> {};
template <>
struct DTypeOfImpl<std::complex<double>>
    : std::integral_constant<DType, kComplex128> {};

}  // namespace internal

// The DType of a C++ type; does not compile for a type that has none.
template <typename T>
constexpr DType DTypeOf() {
  return internal::DTypeOfImpl<std::remove_cv_t<T>>::value;
}

// Calls `visitor(std::type_identity<T>())`, where T is the C++ type of `dtype`,
// which is not carried, and returns its result, which must have one type for
// all T:
//
//     DispatchDType(tensor.dtype(), [&](auto tag) {
//       using T = typename decltype(tag)::type;
//       …
//     });
template <typename Visitor>
decltype(auto) DispatchDType(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case kBool:
      return visitor(std::type_identity<bool>());
    case kUInt8:
      return visitor(std::type_identity<uint8_t>());
    case kInt8:
      return visitor(std::type_identity<int8_t>());
    case kUInt16:
      return visitor(std::type_identity<uint16_t>());
    case kInt16:
      return visitor(std::type_identity<int16_t>());
    case kUInt32:
      return visitor(std::type_identity<uint32_t>());
    case kInt32:
      return visitor(std::type_identity<int32_t>());
    case kUInt64:
      return visitor(std::type_identity<uint64_t>());
    case kInt64:
      return visitor(std::type_identity<int64_t>());
    case kFloat8E4M3:
      return visitor(std::type_identity<Float8E4M3>());
    case kFloat8E5M2:
      return visitor(std::type_identity<Float8E5M2>());
    case kFloat16:
      return visitor(std::type_identity<Float16>());
    case kBFloat16:
      return visitor(std::type_identity<BFloat16>());
    case kFloat32:
      return visitor(std::type_identity<float>());
    case kFloat64:
      return visitor(std::type_identity<double>());
    case kComplex64:
      return visitor(std::type_identity<std::complex<float>>());
    case kComplex128:
      return visitor(std::type_identity<std::complex<double>>());
    case kFloat8E4M3FNUZ:
    case kFloat8E5M2FNUZ:
    case kFloat8E8M0:
    case kComplex32:
      break;
  }
  SHERD_CHECK(false) << "DType number " << static_cast<int32_t>(dtype);
  __builtin_unreachable();
}

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_DTYPE_H_
