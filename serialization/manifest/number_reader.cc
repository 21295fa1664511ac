#include "sherd/serialization/manifest/number_reader.h"

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

absl::StatusOr<uint64_t> NumberReader::Next() {
  if (next_ < numbers_.size()) return numbers_[next_++];
  return absl::DataLossError(absl::StrCat("the column ", column_,
                                          " ends after ", next_,
                                          " numbers, expected more"));
}

absl::Status NumberReader::Wrong(uint64_t number, int64_t max) const {
  return absl::DataLossError(absl::StrCat("the column ", column_, " has ",
                                          number, " as number ", next_ - 1,
                                          ", expected one that leads to at "
                                          "most ",
                                          max));
}

absl::StatusOr<int64_t> NumberReader::Take(int64_t max) {
  SHERD_ASSIGN_OR_RETURN(const uint64_t number, Next());
  if (max >= 0 && number <= static_cast<uint64_t>(max)) {
    return static_cast<int64_t>(number);
  }
  return Wrong(number, max);
}

absl::StatusOr<int64_t> NumberReader::TakeDelta(int64_t base, int64_t max) {
  SHERD_ASSIGN_OR_RETURN(const uint64_t number, Next());
  const int64_t delta =
      static_cast<int64_t>(number >> 1) ^ -static_cast<int64_t>(number & 1);
  const auto value = CheckedAdd(base, delta);
  if (value.has_value() && *value >= 0 && *value <= max) return *value;
  return Wrong(number, max);
}

absl::Status NumberReader::ExpectEmpty() const {
  if (left() == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the column ", column_, " has ",
                                          left(), " numbers too many"));
}

}  // namespace sherd
