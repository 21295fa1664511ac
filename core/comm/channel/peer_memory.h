#ifndef SHERD_CORE_COMM_CHANNEL_PEER_MEMORY_H_
#define SHERD_CORE_COMM_CHANNEL_PEER_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sherd {

// Identifies a piece of one rank's memory to the other ranks of its group.
// Trivially copyable; sent as it is in memory.
struct MemoryHandle {
  std::array<uint64_t, 6> words = {};

  friend bool operator==(const MemoryHandle&, const MemoryHandle&) = default;
};

// Memory that the ranks of a group reach in each other's processes, where the
// backend offers it: a shard is copied once, from source to destination,
// without messages. Belongs to one rank of one group; ranks are those of the
// group.
//
// Order. The reader of a peer's memory must know that it was written, and the
// owner that the readers are done: use a collective before and after. A handle
// is valid until its owner frees the memory; a later read returns unspecified
// data, but between processes never crashes.
//
// Lifetime. Imported addresses stay valid while this object does, also after
// the group was destroyed and when the peer's process has ended: keep it alive.
//
// Threads. Safe.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // A handle of [data, data + bytes), or nullopt if the peers cannot reach that
  // memory: it does not come from ProcessGroup::shard_allocator(), or bytes is
  // 0.
  //
  // Cost. Independent of the size: below a microsecond once the block that
  // contains it was exported before.
  virtual std::optional<MemoryHandle> Export(const void* data,
                                             size_t bytes) = 0;

  // Maps the memory that rank `peer` exported and returns its address range in
  // this process. Reads and writes go to the peer's memory. `peer` may be this
  // rank.
  //   kInvalidArgument    The handle was not made by that peer, or the memory
  //                       was freed since; between threads the latter goes
  //                       unnoticed.
  //   kUnavailable        The peer's process has ended and its memory was not
  //                       imported before.
  //   kResourceExhausted  There is not enough address space, or no descriptor
  //                       is left.
  // After an error other handles can still be imported.
  //
  // Cost. The first import from a peer opens and maps its memory, and a range
  // that was not imported before has its pages mapped, about 0.05 ms per MiB;
  // after that below a microsecond.
  virtual absl::StatusOr<absl::Span<std::byte>> Import(
      int peer, const MemoryHandle& handle) = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_CHANNEL_PEER_MEMORY_H_
