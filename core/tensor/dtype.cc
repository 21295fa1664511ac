#include "sherd/core/tensor/dtype.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

enum class Kind { kBool, kUnsigned, kSigned, kFloat, kComplex };

struct DTypeInfo {
  const char* name;
  uint8_t size;
  uint8_t alignment;
  Kind kind;
};

// In the order of the numbers.
constexpr DTypeInfo kInfo[kNumDTypes] = {
    {"bool", 1, 1, Kind::kBool},
    {"uint8", 1, 1, Kind::kUnsigned},
    {"int8", 1, 1, Kind::kSigned},
    {"uint16", 2, 2, Kind::kUnsigned},
    {"int16", 2, 2, Kind::kSigned},
    {"uint32", 4, 4, Kind::kUnsigned},
    {"int32", 4, 4, Kind::kSigned},
    {"uint64", 8, 8, Kind::kUnsigned},
    {"int64", 8, 8, Kind::kSigned},
    {"float8_e4m3fn", 1, 1, Kind::kFloat},
    {"float8_e5m2", 1, 1, Kind::kFloat},
    {"float16", 2, 2, Kind::kFloat},
    {"bfloat16", 2, 2, Kind::kFloat},
    {"float32", 4, 4, Kind::kFloat},
    {"float64", 8, 8, Kind::kFloat},
    {"complex64", 8, 4, Kind::kComplex},
    {"complex128", 16, 8, Kind::kComplex},
};

const DTypeInfo& Info(DType dtype) {
  const int32_t number = static_cast<int32_t>(dtype);
  SHERD_CHECK(IsValid(number)) << "DType number " << number;
  return kInfo[number];
}

}  // namespace

size_t SizeOf(DType dtype) { return Info(dtype).size; }

size_t AlignmentOf(DType dtype) { return Info(dtype).alignment; }

absl::string_view Name(DType dtype) { return Info(dtype).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string known;
  for (int32_t i = 0; i < kNumDTypes; ++i) {
    if (name == kInfo[i].name) return static_cast<DType>(i);
    absl::StrAppend(&known, i == 0 ? "" : ", ", kInfo[i].name);
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
  return kind != Kind::kBool && kind != Kind::kUnsigned;
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  const int32_t number = static_cast<int32_t>(dtype);
  if (!IsValid(number)) return out << "DType(" << number << ")";
  return out << kInfo[number].name;
}

}  // namespace sherd
