#include "sherd/core/nn/lookup/peer_counts.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {

absl::Status Malformed(int rank, absl::string_view what) {
  return WithRank(
      absl::DataLossError(absl::StrCat("rank ", rank, " sent ", what)), rank);
}

absl::Status CheckMessageLengths(int sender,
                                 absl::Span<const uint64_t> lengths) {
  for (const uint64_t length : lengths) {
    if (length <= kMaxMessageBytes && length % 8 == 0) continue;
    return Malformed(
        sender, absl::StrCat("the length ", length,
                             " of a message, expected a multiple of 8 up to ",
                             kMaxMessageBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckIdCounts(absl::Span<const int64_t> counts, int64_t rows) {
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] >= 0 && counts[r] <= rows) continue;
    return Malformed(
        static_cast<int>(r),
        absl::StrCat("the number ", counts[r],
                     " of different ids of a table with ", rows, " rows"));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(int sender, absl::Span<const int64_t> ids, int64_t rows) {
  int64_t least = 0;
  for (const int64_t id : ids) {
    if (id < least || id >= rows) {
      return Malformed(
          sender, absl::StrCat("the id ", id, " where one of ", least, " to ",
                               rows - 1, " can follow"));
    }
    least = id + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckRows(int owner, int64_t rows, int64_t row_bytes,
                       int64_t stride, size_t bytes) {
  const std::optional<int64_t> last = CheckedMul(rows - 1, stride);
  const std::optional<int64_t> end =
      last ? CheckedAdd(*last, row_bytes) : std::nullopt;
  if (end && *last >= 0 && static_cast<uint64_t>(*end) <= bytes) {
    return absl::OkStatus();
  }
  return Malformed(
      owner, absl::StrCat("the distance ", stride, " of ", rows, " rows of ",
                          row_bytes, " bytes in ", bytes, " bytes"));
}

}  // namespace sherd::internal
