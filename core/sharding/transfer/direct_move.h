#ifndef SHERD_CORE_SHARDING_TRANSFER_DIRECT_MOVE_H_
#define SHERD_CORE_SHARDING_TRANSFER_DIRECT_MOVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/transfer/shard_memory.h"
#include "sherd/core/sharding/transfer/transfer_strategy.h"

namespace sherd::internal {

// The offer of a rank on one host, with handles by which others reach the
// memory of its shards. All ranks run the same build, so the struct is sent as
// it is in memory.
struct DirectOffer : TransferOffer {
  // Handles of a few shards of two or three dimensions.
  static constexpr size_t kRoom = 53;

  // Of this rank's handles, of which the first kRoom are here.
  uint64_t words = 0;
  std::array<uint64_t, kRoom> room = {};
};

// A move without messages, between ranks that reach each other's memory: each
// element is copied once, straight from the source shard to the destination
// shard, by one of their two ranks.
//
// The offer of a rank contains all that others must know about its shards; if
// they are many, the rest follows the offer. The plan and the memory outlive
// this object.
class DirectMove {
 public:
  // `sources` and `destinations` contain all shards that the plan needs.
  DirectMove(const ReshardPlan& plan, size_t element_size,
             const ShardTable<const void*>& sources,
             const ShardTable<void*>& destinations)
      : plan_(plan),
        element_size_(element_size),
        sources_(sources),
        destinations_(destinations) {}

  // Adds to `offer` which shards peers can reach, and handles of them; not of
  // destinations if they are many and peers can reach the sources. Without
  // `memory` a rank can take part if it has nothing to do.
  void Describe(PeerMemory* memory, DirectOffer& offer);

  // Collective if the offer of any rank had no room for all its handles;
  // otherwise makes no call. Keeps the offers.
  //
  // Errors. Those of ProcessGroup::AllGatherV, and kInternal if an offer is
  // malformed, on all ranks.
  absl::Status Complete(ProcessGroup& group, std::vector<DirectOffer> offers,
                        const CollectiveOptions& options);

  // Makes this rank's copies between ranks, beginning with the next rank, so
  // that all ranks begin with a different one. `local_bytes`: the bytes that
  // this rank copies beside them. Not collective: no rank may change the
  // sources, or read the destinations, before all have finished.
  //   kInvalidArgument, kUnavailable, kResourceExhausted
  //                     From PeerMemory::Import. Part of the copies is made.
  absl::Status Copy(ProcessGroup& group, PeerMemory* memory,
                    TransferStrategy strategy, int64_t local_bytes);

 private:
  // A shard of a peer, as the peer describes it.
  struct RemoteShard {
    // The imported memory of the shard.
    absl::Span<std::byte> bytes;
    // Where element 0 of the global tensor would be, in bytes from there.
    int64_t origin = 0;
    Dims strides;

    // The first element of a box, if all of the box lies in `bytes`; otherwise
    // null.
    std::byte* Find(const BoxCopy& copy, size_t element_size) const;
  };

  using RemoteShards = absl::flat_hash_map<int, RemoteShard>;

  // The shards of `peer` that its copies read, or write to.
  absl::StatusOr<RemoteShards> Locate(ProcessGroup& group, PeerMemory& memory,
                                      TransferStrategy strategy,
                                      const PeerCopies& peer) const;
  absl::Status CopyWith(const PeerCopies& peer, const RemoteShards& remote,
                        TransferStrategy strategy, size_t whole_bytes) const;
  absl::Span<const uint64_t> WordsOf(int peer) const;

  const ReshardPlan& plan_;
  const size_t element_size_;
  const ShardTable<const void*>& sources_;
  const ShardTable<void*>& destinations_;
  // This rank's handles.
  std::vector<uint64_t> words_;
  std::vector<DirectOffer> offers_;
  // Of ranks whose offer has no room for all, their words; otherwise empty.
  std::vector<std::vector<uint64_t>> long_words_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TRANSFER_DIRECT_MOVE_H_
