#ifndef SHERD_CORE_COMM_CHANNEL_PEER_MEMORY_H_
#define SHERD_CORE_COMM_CHANNEL_PEER_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sherd {

// Names a piece of one rank's memory to the other ranks of its group. Plain
// bytes: it travels as it lies in memory.
struct MemoryHandle {
  std::array<uint64_t, 6> words = {};

  friend bool operator==(const MemoryHandle&, const MemoryHandle&) = default;
};

// Memory that the ranks of a group reach in each other's processes, where the
// backend offers it: what lets a shard be copied once, from where it is to
// where it goes, without messages. Of one rank of one group; ranks are those
// of the group.
//
// Order. The reader of peers' memory has to know that it was written, and the
// owner that the readers are done: by a collective before and after, as
// messages would be. A handle is good until its owner frees the memory; what is
// read after that is unspecified, but between processes never a crash.
//
// Lifetime. Imported addresses stay valid while this object does, also after
// the group was destroyed and when the peer's process has ended: hold it.
//
// Threads. Safe.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // A handle of [data, data + bytes), or nothing if the peers cannot reach
  // that: it does not come from ProcessGroup::shard_allocator(), or bytes is 0.
  //
  // Cost. The same however large: below a microsecond once the block that
  // holds it was exported before.
  virtual std::optional<MemoryHandle> Export(const void* data,
                                             size_t bytes) = 0;

  // Where the memory that rank `peer` exported lies in this process: all of
  // what it exported. Reads and writes go to the peer's. `peer` may be this
  // rank.
  //   kInvalidArgument    The handle was not made by that peer, or the memory
  //                       was freed since; between threads the latter goes
  //                       unnoticed.
  //   kUnavailable        The peer's process is gone and its memory was not
  //                       imported before.
  //   kResourceExhausted  No address space or descriptors.
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
