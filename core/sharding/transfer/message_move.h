#ifndef SHERD_CORE_SHARDING_TRANSFER_MESSAGE_MOVE_H_
#define SHERD_CORE_SHARDING_TRANSFER_MESSAGE_MOVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/sharding/plan/message_rounds.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/transfer/box_copier.h"
#include "sherd/core/sharding/transfer/shard_memory.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// How the elements that several ranks have for one destination are combined.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
};

// A move by rounds of messages, over any group and between any memory: packed
// where the pieces of a message are not one run of a shard, and pipelined.
//
// Messages lie either in host memory or in that of one device. In host memory,
// shards may be on any devices: a device packs and unpacks the pieces of its
// shards, through pinned memory, and the host waits for it before it sends and
// before it returns. On a device, all shards are there, and the work is queued
// on the current stream, in one launch for each side of a round.
class MessageMove {
 public:
  // Adds part `part` of `parts` of the copies that need no message.
  using LocalCopies =
      absl::FunctionRef<void(int64_t part, int64_t parts, BoxCopier& copier)>;

  explicit MessageMove(size_t element_size)
      : element_size_(element_size), copier_(element_size) {}

  // Cuts the plan into messages and allocates the memory to pack them in.
  // `sources` and `destinations` contain all shards that the plan needs, and
  // outlive this object; messages have at most `message_bytes`. `place`: the
  // memory of messages, the CPU or a device. `across`: copies between shards of
  // this rank that are in different memory; they go through staging memory, in
  // pieces of at most `across_bytes`, which is an element at least.
  //   kResourceExhausted  No staging memory.
  //   others              Of DeviceRuntime.
  absl::Status Prepare(const ReshardPlan& plan,
                       const ShardTable<const void*>& sources,
                       const ShardTable<void*>& destinations,
                       int64_t message_bytes, const Device& place = {},
                       const std::vector<BoxCopy>& across = {},
                       int64_t across_bytes = 0);

  // As Prepare, for a plan of ReshardPlan::CreateReduction, with all shards in
  // host memory: received data is not unpacked but reduced, in the order of
  // ranks and together with this rank's own summand, into the destination. One
  // round at a time is under way.
  //   kResourceExhausted  No staging memory.
  absl::Status PrepareReduction(const ReshardPlan& plan,
                                const ShardTable<const void*>& sources,
                                const ShardTable<void*>& destinations,
                                int64_t message_bytes,
                                const Reduction& reduction);

  // Rounds that this rank needs.
  int64_t rounds() const;
  const Device& place() const { return place_; }

  // Collective. All ranks pass the largest rounds() of any rank, and prepared
  // with places of one type. `local` is called for parts that together cover
  // all local copies, while messages are in transit if there are several
  // rounds.
  //
  // Completion. With messages in host memory, or none, the copies are complete;
  // copies within devices of this rank, and all copies with messages on a
  // device, are queued.
  //
  // Errors. Those of ProcessGroup::AllToAllV, and of DeviceRuntime: after one
  // of those the group is poisoned.
  absl::Status Run(ProcessGroup& group, int64_t rounds,
                   const CollectiveOptions& options, LocalCopies local);

  // Bytes copied to and from staging memory, and the size of that memory.
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
    Device place;
  };

  // A message at one of its ends.
  struct Message {
    int64_t bytes = 0;
    // The message's address in a shard; null if it has to be packed.
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

  // Rounds that are under way at once.
  size_t flights() const { return own_ ? 1 : kRoundsInFlight; }
  std::byte* FindRun(const std::vector<PlacedPiece>& pieces) const;
  template <typename Pointer>
  Channel BuildChannel(int peer, const std::vector<BoxCopy>& copies,
                       const ShardTable<Pointer>& shards,
                       int BoxPiece::*shard_of, int64_t message_bytes);
  template <typename Pointer>
  std::vector<Channel> BuildChannels(const std::vector<PeerCopies>& peers,
                                     const ShardTable<Pointer>& shards,
                                     int BoxPiece::*shard_of,
                                     int64_t message_bytes);
  absl::StatusOr<Allocator*> StagingMemory() const;
  absl::Status AllocateStaging();

  absl::Status CopyAcross(Deadline deadline);
  absl::Status RunInTurn(ProcessGroup& group, int64_t rounds,
                         const CollectiveOptions& options, LocalCopies local);
  absl::Status RunPipelined(ProcessGroup& group, int64_t rounds,
                            const CollectiveOptions& options,
                            LocalCopies local);
  absl::Status EndRound(Flight& flight, int64_t round,
                        const absl::Status& sofar, Deadline deadline);
  void ListBuffers(size_t index, Flight& flight) const;
  void PackRound(int64_t round);
  void Unpack(int64_t round);
  void ReduceRound(size_t index);
  void PackMessage(const Message& message, std::byte* to);
  void UnpackMessage(const Message& message, const std::byte* from);
  // Makes the packed data ready to be sent.
  absl::Status Launch(Deadline deadline);
  // Row-major bytes of a piece, of which the message has them at `bytes`.
  void CopyOut(const PlacedPiece& piece, std::byte* bytes);
  void CopyIn(const PlacedPiece& piece, const std::byte* bytes);

  const size_t element_size_;
  BoxCopier copier_;
  Device place_;
  // Of this rank's shards in messages, and across.
  bool uses_devices_ = false;
  std::vector<Channel> sends_;
  std::vector<Channel> receives_;
  // The two ends of copies between memories of this rank, if there are any.
  std::optional<Channel> across_out_;
  std::optional<Channel> across_in_;
  // Of a reduction: this rank's summand, and the results.
  struct OwnShare {
    Reduction reduction;
    Channel summand;
    Channel result;
  };
  std::optional<OwnShare> own_;
  std::shared_ptr<Storage> staging_;
  int64_t bytes_staged_ = 0;
  int64_t staging_bytes_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TRANSFER_MESSAGE_MOVE_H_
