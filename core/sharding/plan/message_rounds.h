#ifndef SHERD_CORE_SHARDING_PLAN_MESSAGE_ROUNDS_H_
#define SHERD_CORE_SHARDING_PLAN_MESSAGE_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/tensor/box.h"

namespace sherd::internal {

// Rounds of messages that are under way at once, each with messages out and in.
inline constexpr int kRoundsInFlight = 2;

// The largest size of a message in bytes, if every rank has at most `max_peers`
// peers in either direction: all messages under way together fit in
// `max_staging_bytes` of staging memory. The same at both ends of a message,
// since the arguments are.
//   kInvalidArgument  "max_staging_bytes is …, expected … at least".
absl::StatusOr<int64_t> MaxMessageBytes(int64_t max_staging_bytes,
                                        int max_peers, size_t element_size);

// As MaxMessageBytes, for messages on a device, where larger rounds are better.
absl::StatusOr<int64_t> MaxDeviceMessageBytes(int64_t max_staging_bytes,
                                              int max_peers,
                                              size_t element_size);

// As MaxMessageBytes, for a reduction in a group of `ranks`, in which one round
// is under way at a time: a message to each other rank, one from each, and the
// result.
//   kInvalidArgument  "max_staging_bytes is …, expected at least …".
absl::StatusOr<int64_t> MaxReductionMessageBytes(int64_t max_staging_bytes,
                                                 int ranks,
                                                 size_t element_size);

// A part of one copy that is sent in one piece.
struct BoxPiece : Box {
  int src_shard = 0;
  int dst_shard = 0;
  int64_t bytes = 0;

  friend bool operator==(const BoxPiece&, const BoxPiece&) = default;
};

// The pieces of one message.
struct MessageRound {
  std::vector<BoxPiece> pieces;
  int64_t bytes = 0;
};

// Cuts the copies between two ranks into messages of at most `max_bytes`, which
// is at least `element_size`.
//
// Layout. Pieces come in the order of the copies, and those of one copy in
// row-major order; no piece is empty. A row that fits in a message is never cut
// in two, so all messages but the last are full up to a row. The result depends
// on the arguments only: both ends get the same.
std::vector<MessageRound> CutIntoRounds(absl::Span<const BoxCopy> copies,
                                        size_t element_size, int64_t max_bytes);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_PLAN_MESSAGE_ROUNDS_H_
