#ifndef SHERD_CORE_NN_UPDATE_PEER_BYTES_H_
#define SHERD_CORE_NN_UPDATE_PEER_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// Bytes of each rank that the others read where they are. A rank writes its own
// between two collectives: one after which no peer reads, and one that
// distributes its note, before which none does. Keeps its memory, and what it
// has mapped.
class PeerBytes {
 public:
  // The words of a note. Of several notes, that of rank r begins at notes[r *
  // stride].
  static constexpr size_t kWords =
      std::tuple_size_v<decltype(MemoryHandle::words)> + 3;

  // Room for `bytes` bytes, whose contents are unspecified. `group`: null if
  // there are no peers.
  //   kResourceExhausted  There is no memory.
  absl::Status Resize(const ProcessGroup* group, size_t bytes);
  // Up to here Resize needs no memory.
  size_t capacity() const {
    return memory_.defined() ? static_cast<size_t>(memory_.numel()) : 0;
  }
  std::byte* data() { return static_cast<std::byte*>(memory_.data()); }

  void WriteNote(absl::Span<uint64_t> note) const;

  // The number of a rank's bytes.
  static uint64_t Bytes(absl::Span<const uint64_t> notes, size_t stride,
                        size_t rank);
  // Whether the ranks of all notes can be read by their peers.
  static bool Reachable(absl::Span<const uint64_t> notes, size_t stride);
  // Whether all ranks have mapped what the notes are of. The same on all.
  static bool Mapped(absl::Span<const uint64_t> notes, size_t stride);
  // Maps it here: to be called if Mapped is false.
  //   Errors. Those of PeerMemory::Import.
  absl::Status Map(ProcessGroup& group, absl::Span<const uint64_t> notes,
                   size_t stride);
  // The bytes of all ranks, which this rank has mapped, as of the notes.
  //   kDataLoss  A rank's number of bytes is larger than its memory.
  absl::Status Read(int rank, absl::Span<const uint64_t> notes, size_t stride,
                    std::vector<absl::Span<const std::byte>>& bytes);

  // After an error that broke the group: peers may still be reading.
  void KeepForever();

 private:
  Tensor memory_;
  size_t size_ = 0;
  MemoryHandle handle_;
  // 0: peers cannot read the memory. Otherwise another one for each memory.
  uint64_t generation_ = 0;
  // Identifies what was mapped: the notes' handles and generations.
  uint64_t mapped_ = 0;
  std::shared_ptr<PeerMemory> peers_;
  // The memory of each peer.
  std::vector<absl::Span<const std::byte>> memories_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_PEER_BYTES_H_
