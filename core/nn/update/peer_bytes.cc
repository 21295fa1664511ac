#include "sherd/core/nn/update/peer_bytes.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr size_t kHandleWords =
    std::tuple_size_v<decltype(MemoryHandle::words)>;
// Behind the handle.
constexpr size_t kGeneration = kHandleWords;
constexpr size_t kSize = kHandleWords + 1;
constexpr size_t kMapped = kHandleWords + 2;

uint64_t IdentityOf(absl::Span<const uint64_t> notes, size_t stride) {
  Fingerprint fingerprint;
  for (size_t at = 0; at < notes.size(); at += stride) {
    for (size_t i = 0; i <= kGeneration; ++i) {
      fingerprint.Add(static_cast<int64_t>(notes[at + i]));
    }
  }
  return fingerprint.value();
}

}  // namespace

absl::Status PeerBytes::Resize(const ProcessGroup* group, size_t bytes) {
  if (memory_.defined() && capacity() >= bytes) {
    size_ = bytes;
    return absl::OkStatus();
  }
  // Some more, since calls differ in their numbers of ids.
  constexpr size_t kLeast = 4096;
  const auto capacity =
      static_cast<int64_t>(std::max(kLeast, bytes + bytes / 4));
  SHERD_ASSIGN_OR_RETURN(
      memory_, Tensor::Empty({capacity},
                             {.dtype = kUInt8,
                              .allocator = group == nullptr
                                               ? nullptr
                                               : &group->shard_allocator()}));
  size_ = bytes;
  handle_ = {};
  const uint64_t next = generation_ + 1;
  generation_ = 0;
  peers_ = group == nullptr ? nullptr : group->peer_memory();
  if (peers_ == nullptr) return absl::OkStatus();
  const std::optional<MemoryHandle> handle =
      peers_->Export(memory_.data(), static_cast<size_t>(capacity));
  if (!handle) return absl::OkStatus();
  handle_ = *handle;
  generation_ = next;
  return absl::OkStatus();
}

void PeerBytes::WriteNote(absl::Span<uint64_t> note) const {
  std::copy(handle_.words.begin(), handle_.words.end(), note.begin());
  note[kGeneration] = generation_;
  note[kSize] = size_;
  note[kMapped] = mapped_;
}

uint64_t PeerBytes::Bytes(absl::Span<const uint64_t> notes, size_t stride,
                          size_t rank) {
  return notes[rank * stride + kSize];
}

bool PeerBytes::Reachable(absl::Span<const uint64_t> notes, size_t stride) {
  for (size_t at = 0; at < notes.size(); at += stride) {
    if (notes[at + kGeneration] == 0) return false;
  }
  return true;
}

bool PeerBytes::Mapped(absl::Span<const uint64_t> notes, size_t stride) {
  const uint64_t identity = IdentityOf(notes, stride);
  for (size_t at = 0; at < notes.size(); at += stride) {
    if (notes[at + kMapped] != identity) return false;
  }
  return true;
}

absl::Status PeerBytes::Map(ProcessGroup& group,
                            absl::Span<const uint64_t> notes, size_t stride) {
  mapped_ = 0;
  memories_.assign(static_cast<size_t>(group.size()), {});
  for (int r = 0; r < group.size(); ++r) {
    const uint64_t* const note = &notes[static_cast<size_t>(r) * stride];
    if (r == group.rank()) continue;
    SHERD_RETURN_IF_ERROR(
        MaybeInjectFault({.point = FaultPoint::kShardImport,
                          .rank = group.world_ranks()[group.rank()],
                          .subject = "update"}));
    MemoryHandle handle;
    std::copy_n(note, kHandleWords, handle.words.begin());
    SHERD_ASSIGN_OR_RETURN(memories_[static_cast<size_t>(r)],
                           peers_->Import(r, handle));
  }
  mapped_ = IdentityOf(notes, stride);
  return absl::OkStatus();
}

absl::Status PeerBytes::Read(int rank, absl::Span<const uint64_t> notes,
                             size_t stride,
                             std::vector<absl::Span<const std::byte>>& bytes) {
  bytes.resize(notes.size() / stride);
  for (size_t r = 0; r < bytes.size(); ++r) {
    if (static_cast<int>(r) == rank) {
      bytes[r] = {data(), size_};
      continue;
    }
    const uint64_t size = Bytes(notes, stride, r);
    if (size > memories_[r].size()) {
      return WithRank(absl::DataLossError(absl::StrCat(
                          "rank ", r, " sent the length ", size,
                          " of bytes in a memory of ", memories_[r].size())),
                      static_cast<int>(r));
    }
    bytes[r] = memories_[r].first(size);
  }
  return absl::OkStatus();
}

void PeerBytes::KeepForever() { internal::KeepForever(memory_.storage()); }

}  // namespace sherd::internal
