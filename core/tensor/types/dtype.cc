#include "sherd/core/tensor/dtype.h"

#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/tensor/types/dtype_names.h"

namespace sherd {
namespace {

enum class Kind { kBool, kUnsigned, kSigned, kFloat, kComplex, kCarried };

struct DTypeInfo {
  uint8_t size;
  uint8_t alignment;
  Kind kind;
};
static_assert(std::size(internal::kDTypeNames) == kNumDTypes);

// In the order of the numbers.
constexpr DTypeInfo kInfo[kNumDTypes] = {
    {1, 1, Kind::kBool},     {1, 1, Kind::kUnsigned}, {1, 1, Kind::kSigned},
    {2, 2, Kind::kUnsigned}, {2, 2, Kind::kSigned},   {4, 4, Kind::kUnsigned},
    {4, 4, Kind::kSigned},   {8, 8, Kind::kUnsigned}, {8, 8, Kind::kSigned},
    {1, 1, Kind::kFloat},    {1, 1, Kind::kFloat},    {2, 2, Kind::kFloat},
    {2, 2, Kind::kFloat},    {4, 4, Kind::kFloat},    {8, 8, Kind::kFloat},
    {8, 4, Kind::kComplex},  {16, 8, Kind::kComplex}, {1, 1, Kind::kCarried},
    {1, 1, Kind::kCarried},  {1, 1, Kind::kCarried},  {4, 4, Kind::kCarried},
};

const DTypeInfo& Info(DType dtype) {
  const int32_t number = static_cast<int32_t>(dtype);
  SHERD_CHECK(IsValid(number)) << "DType number " << number;
  return kInfo[number];
}

}  // namespace

size_t SizeOf(DType dtype) { return Info(dtype).size; }

size_t AlignmentOf(DType dtype) { return Info(dtype).alignment; }

absl::string_view Name(DType dtype) {
  Info(dtype);  // Checks the number.
  return internal::kDTypeNames[static_cast<int32_t>(dtype)];
}

absl::Status CheckComputed(DType dtype) {
  if (!IsCarried(dtype)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(Name(dtype),
                   " is carried, not computed with; its bits are "
                   "those of an integer: see ViewAs"));
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string known;
  for (int32_t i = 0; i < kNumDTypes; ++i) {
    if (name == internal::kDTypeNames[i]) return static_cast<DType>(i);
    absl::StrAppend(&known, i == 0 ? "" : ", ", internal::kDTypeNames[i]);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype '", name, "'; expected one of ", known));
}

bool IsFloatingPoint(DType dtype) { return Info(dtype).kind == Kind::kFloat; }

bool IsComplex(DType dtype) { return Info(dtype).kind == Kind::kComplex; }

bool IsInteger(DType dtype) {
  const Kind kind = Info(dtype).kind;
  return kind == Kind::kUnsigned || kind == Kind::kSigned;
}

bool IsSigned(DType dtype) {
  const Kind kind = Info(dtype).kind;
  return kind == Kind::kSigned || kind == Kind::kFloat ||
         kind == Kind::kComplex;
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  const int32_t number = static_cast<int32_t>(dtype);
  if (!IsValid(number)) return out << "DType(" << number << ")";
  return out << internal::kDTypeNames[number];
}

}  // namespace sherd
