#ifndef SHERD_CORE_SHARDING_MESSAGE_MOVE_H_
#define SHERD_CORE_SHARDING_MESSAGE_MOVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/sharding/message_rounds.h"
#include "sherd/core/sharding/reshard_plan.h"
#include "sherd/core/sharding/shard_memory.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// A move by rounds of messages, over any group and between any memory: packed
// where the pieces of a message are not one run of a shard, and pipelined.
class MessageMove {
 public:
  explicit MessageMove(size_t element_size) : element_size_(element_size) {}

  // Cuts the plan into messages and allocates the memory to pack them in.
  // `sources` and `destinations` have all that the plan needs, and outlive this
  // object; messages have at most `message_bytes`.
  //   kResourceExhausted  No staging memory.
  absl::Status Prepare(const ReshardPlan& plan,
                       const ShardTable<const void*>& sources,
                       const ShardTable<void*>& destinations,
                       int64_t message_bytes);

  // Rounds that this rank needs.
  int64_t rounds() const;

  // Collective. All ranks pass the largest rounds() of any rank. `meanwhile` is
  // called once for each round, with its number, while messages are on their
  // way.
  //
  // Errors. Those of ProcessGroup::AllToAllV.
  absl::Status Run(ProcessGroup& group, int64_t rounds,
                   const CollectiveOptions& options,
                   absl::FunctionRef<void(int64_t round)> meanwhile);

  // Copied to and from staging memory, and how much of that there is.
  int64_t bytes_staged() const { return bytes_staged_; }
  int64_t staging_bytes() const { return staging_bytes_; }

 private:
  // A piece at one of its ends.
  struct PlacedPiece {
    std::byte* data = nullptr;
    Dims sizes;
    // Of the whole shard; outlives the piece.
    const Dims* strides = nullptr;
    int64_t bytes = 0;
  };

  // A message at one of its ends.
  struct Message {
    int64_t bytes = 0;
    // Where the message lies in a shard as it is; null if it has to be packed.
    std::byte* direct = nullptr;
    std::vector<PlacedPiece> pieces;
  };

  // All messages to or from one peer, and where the packed ones are staged.
  struct Channel {
    int peer = 0;
    std::vector<Message> messages;
    int64_t staged_bytes_per_round = 0;
    std::array<std::byte*, kRoundsInFlight> staging = {};
  };

  // The buffers of one round, for as long as it is under way.
  struct Flight {
    std::vector<ConstBytes> sends;
    std::vector<MutableBytes> recvs;
    std::optional<Work> work;
  };

  static std::byte* FindRun(const std::vector<PlacedPiece>& pieces);
  template <typename Pointer>
  std::vector<Channel> BuildChannels(const std::vector<PeerCopies>& peers,
                                     const ShardTable<Pointer>& shards,
                                     int BoxPiece::*shard_of,
                                     int64_t message_bytes) const;
  absl::Status AllocateStaging();

  absl::Status RunOnce(ProcessGroup& group, const CollectiveOptions& options);
  absl::Status RunPipelined(ProcessGroup& group, int64_t rounds,
                            const CollectiveOptions& options,
                            absl::FunctionRef<void(int64_t round)> meanwhile);
  void Pack(int64_t round, Flight& flight);
  void Unpack(int64_t round);
  // Row-major bytes of a piece, of which the message has them at `bytes`.
  void CopyOut(const PlacedPiece& piece, std::byte* bytes) const;
  void CopyIn(const PlacedPiece& piece, const std::byte* bytes) const;

  const size_t element_size_;
  std::vector<Channel> sends_;
  std::vector<Channel> receives_;
  std::shared_ptr<Storage> staging_;
  int64_t bytes_staged_ = 0;
  int64_t staging_bytes_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_MESSAGE_MOVE_H_
