#ifndef SHERD_CORE_NN_LOOKUP_PEER_COUNTS_H_
#define SHERD_CORE_NN_LOOKUP_PEER_COUNTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// Checks of the numbers that other ranks send in a lookup, before memory is
// allocated for them and before they address rows. Pure. All return kDataLoss
// with the rank.
namespace sherd::internal {

// The error of `what` that `rank` sent: "rank 1 sent a malformed request".
absl::Status Malformed(int rank, absl::string_view what);

// A message of a rank to another is a multiple of 8 bytes long, and at most so
// many.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 40;

// `lengths`: of the messages of `sender` to each rank, in bytes.
absl::Status CheckMessageLengths(int sender,
                                 absl::Span<const uint64_t> lengths);

// `counts[r]`: of the ids of rank r, which are different rows of a table with
// `rows` rows.
absl::Status CheckIdCounts(absl::Span<const int64_t> counts, int64_t rows);

// `ids`: those of `sender`, which ascend.
absl::Status CheckIds(int sender, absl::Span<const int64_t> ids, int64_t rows);

// Rows of a shard of `owner`, of which each is `row_bytes` long and begins
// `stride` bytes after the one before, lie in `bytes` bytes.
absl::Status CheckRows(int owner, int64_t rows, int64_t row_bytes,
                       int64_t stride, size_t bytes);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_PEER_COUNTS_H_
