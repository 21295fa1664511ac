// Memory that ranks access in each other's processes, if a backend has it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/conformance/conformance_case.h"

namespace sherd::testing::internal {
namespace {

using Block = std::shared_ptr<Storage>;

// Below a page, a page, and more than a block of any small size.
constexpr size_t kSizes[] = {8, 72, 4096, 100'000, 3 << 20};

std::byte Pattern(int rank, size_t index, int turn) {
  return static_cast<std::byte>(index * 7 + index / 251 +
                                static_cast<size_t>(31 * rank + 101 * turn));
}

void Fill(absl::Span<std::byte> bytes, int rank, int turn) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = Pattern(rank, i, turn);
}

absl::Status Expect(absl::Span<const std::byte> bytes, int rank, int turn,
                    absl::string_view what) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == Pattern(rank, i, turn)) continue;
    return Fault(what, ": byte ", i, " of ", bytes.size(), " of rank ", rank,
                 " is ", static_cast<int>(bytes[i]), ", expected ",
                 static_cast<int>(Pattern(rank, i, turn)));
  }
  return absl::OkStatus();
}

absl::Span<std::byte> Bytes(const Storage& block) {
  return {static_cast<std::byte*>(block.data()), block.size()};
}

absl::StatusOr<Block> Allocate(ProcessGroup& group, size_t bytes) {
  absl::StatusOr<Block> block =
      Storage::Allocate(bytes, group.shard_allocator());
  if (!block.ok()) {
    return Fault(bytes,
                 " bytes of memory for peers: ", block.status().ToString());
  }
  return block;
}

// All ranks' handles, by rank.
absl::StatusOr<std::vector<MemoryHandle>> Exchange(ProcessGroup& group,
                                                   PeerMemory& memory,
                                                   const Storage& block) {
  const std::optional<MemoryHandle> own =
      memory.Export(block.data(), block.size());
  if (!own) return Fault("memory of its own allocator cannot be exported");
  std::vector<MemoryHandle> handles(group.size());
  SHERD_RETURN_IF_ERROR(group.AllGather(
      ConstBytes(reinterpret_cast<const std::byte*>(&*own), sizeof(*own)),
      MutableBytes(reinterpret_cast<std::byte*>(handles.data()),
                   handles.size() * sizeof(MemoryHandle))));
  return handles;
}

absl::StatusOr<absl::Span<std::byte>> Import(PeerMemory& memory, int peer,
                                             const MemoryHandle& handle,
                                             size_t bytes) {
  absl::StatusOr<absl::Span<std::byte>> range = memory.Import(peer, handle);
  if (!range.ok()) {
    return Fault("importing from rank ", peer, ": ", range.status().ToString());
  }
  if (range->size() != bytes) {
    return Fault("importing from rank ", peer, " gives ", range->size(),
                 " bytes, expected ", bytes);
  }
  return range;
}

// Each rank reads what all have written, then writes to its neighbour's.
absl::Status PeersReadAndWrite(ConformanceRank& rank) {
  const std::shared_ptr<PeerMemory> memory = rank.group.peer_memory();
  if (memory == nullptr) return absl::OkStatus();
  const int next = (rank.rank() + 1) % rank.size();
  const int previous = (rank.rank() + rank.size() - 1) % rank.size();
  for (const size_t bytes : kSizes) {
    SHERD_ASSIGN_OR_RETURN(const Block block, Allocate(rank.group, bytes));
    if (reinterpret_cast<uintptr_t>(block->data()) % Storage::kAlignment != 0) {
      return Fault("memory for peers is not aligned to ", Storage::kAlignment);
    }
    Fill(Bytes(*block), rank.rank(), 0);
    SHERD_ASSIGN_OR_RETURN(const auto handles,
                           Exchange(rank.group, *memory, *block));
    for (int r = 0; r < rank.size(); ++r) {
      SHERD_ASSIGN_OR_RETURN(const auto range,
                             Import(*memory, r, handles[r], bytes));
      SHERD_RETURN_IF_ERROR(Expect(range, r, 0, "read from a peer"));
    }
    SHERD_RETURN_IF_ERROR(rank.group.Barrier());
    SHERD_ASSIGN_OR_RETURN(const auto range,
                           Import(*memory, next, handles[next], bytes));
    Fill(range, rank.rank(), 1);
    SHERD_RETURN_IF_ERROR(rank.group.Barrier());
    SHERD_RETURN_IF_ERROR(
        Expect(Bytes(*block), previous, 1, "written by a peer"));
  }
  return absl::OkStatus();
}

// A part of a block is reached as that part and no more.
absl::Status PartsOfBlocks(ConformanceRank& rank) {
  const std::shared_ptr<PeerMemory> memory = rank.group.peer_memory();
  if (memory == nullptr) return absl::OkStatus();
  constexpr size_t kBytes = 70'000;
  SHERD_ASSIGN_OR_RETURN(const Block whole, Allocate(rank.group, kBytes));
  Fill(Bytes(*whole), rank.rank(), 2);
  const size_t first = 100 + 8 * static_cast<size_t>(rank.rank());
  SHERD_ASSIGN_OR_RETURN(
      const Block part,
      Storage::Borrow(Bytes(*whole).data() + first, kBytes / 2));
  SHERD_ASSIGN_OR_RETURN(const auto handles,
                         Exchange(rank.group, *memory, *part));
  for (int r = 0; r < rank.size(); ++r) {
    SHERD_ASSIGN_OR_RETURN(const auto range,
                           Import(*memory, r, handles[r], kBytes / 2));
    for (size_t i = 0; i < range.size(); i += 11) {
      const size_t index = 100 + 8 * static_cast<size_t>(r) + i;
      if (range[i] == Pattern(r, index, 2)) continue;
      return Fault("a part of rank ", r, "'s block is not where it should be");
    }
  }
  if (memory->Export(whole->data(), 0)) {
    return Fault("a handle of 0 bytes");
  }
  return rank.group.Barrier();
}

// Invalid handles, and those of other ranks, are errors; valid ones still work
// then.
absl::Status ForgedHandles(ConformanceRank& rank) {
  const std::shared_ptr<PeerMemory> memory = rank.group.peer_memory();
  if (memory == nullptr) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Block block, Allocate(rank.group, 5'000));
  Fill(Bytes(*block), rank.rank(), 3);
  SHERD_ASSIGN_OR_RETURN(const auto handles,
                         Exchange(rank.group, *memory, *block));
  const int next = (rank.rank() + 1) % rank.size();
  const auto expect_refused = [&](int peer, const MemoryHandle& handle,
                                  absl::string_view what) {
    const absl::Status status = memory->Import(peer, handle).status();
    if (absl::IsInvalidArgument(status)) return absl::OkStatus();
    return Fault("importing ", what, ": expected INVALID_ARGUMENT, got ",
                 status.ToString());
  };
  SHERD_RETURN_IF_ERROR(expect_refused(next, {}, "a handle of zeros"));
  MemoryHandle noise;
  noise.words.fill(0x5a5a'5a5a'5a5a'5a5a);
  SHERD_RETURN_IF_ERROR(expect_refused(next, noise, "a handle of noise"));
  SHERD_RETURN_IF_ERROR(
      expect_refused(next, handles[rank.rank()], "the handle of another rank"));
  SHERD_RETURN_IF_ERROR(
      expect_refused(rank.size(), handles[0], "from a rank that is not there"));
  SHERD_ASSIGN_OR_RETURN(const auto range,
                         Import(*memory, next, handles[next], 5'000));
  SHERD_RETURN_IF_ERROR(Expect(range, next, 3, "read after bad handles"));
  return rank.group.Barrier();
}

// Imported memory outlives the group; the memory is valid in another one.
absl::Status MemoryOutlivesGroups(ConformanceRank& rank) {
  if (rank.group.peer_memory() == nullptr) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const auto first, NewGroupOfAll(rank));
  std::shared_ptr<PeerMemory> memory = first->peer_memory();
  if (memory == nullptr) return Fault("a group has no such memory");
  SHERD_ASSIGN_OR_RETURN(const Block block, Allocate(*first, 300'000));
  Fill(Bytes(*block), rank.rank(), 4);
  SHERD_ASSIGN_OR_RETURN(const auto handles, Exchange(*first, *memory, *block));
  const int next = (rank.rank() + 1) % rank.size();
  SHERD_ASSIGN_OR_RETURN(const auto early,
                         Import(*memory, next, handles[next], block->size()));
  SHERD_RETURN_IF_ERROR(first->Barrier());
  SHERD_RETURN_IF_ERROR(first->Destroy());
  if (first->peer_memory() != nullptr) {
    return Fault("a group that was destroyed has memory of peers");
  }
  SHERD_RETURN_IF_ERROR(Expect(early, next, 4, "read after Destroy"));

  SHERD_ASSIGN_OR_RETURN(const auto second, NewGroupOfAll(rank));
  const std::shared_ptr<PeerMemory> again = second->peer_memory();
  if (again == nullptr) return Fault("the second group has no such memory");
  SHERD_ASSIGN_OR_RETURN(const auto later, Exchange(*second, *again, *block));
  memory = nullptr;
  SHERD_ASSIGN_OR_RETURN(const auto range,
                         Import(*again, next, later[next], block->size()));
  SHERD_RETURN_IF_ERROR(Expect(range, next, 4, "read in another group"));
  SHERD_RETURN_IF_ERROR(second->Barrier());
  return second->Destroy();
}

// Hundreds of blocks are allocated and freed, and accessed meanwhile.
absl::Status ManyBlocks(ConformanceRank& rank) {
  const std::shared_ptr<PeerMemory> memory = rank.group.peer_memory();
  if (memory == nullptr) return absl::OkStatus();
  std::vector<Block> kept;
  for (int turn = 0; turn < 120; ++turn) {
    const size_t bytes =
        8 + static_cast<size_t>(turn * turn * 37 + rank.rank() * 8) % 90'000;
    SHERD_ASSIGN_OR_RETURN(Block block, Allocate(rank.group, bytes));
    Fill(Bytes(*block), rank.rank(), turn);
    kept.push_back(std::move(block));
    if (turn % 3 == 2) kept.erase(kept.begin() + turn % 7 % 2);
    if (turn % 20 != 19) continue;
    const Block& last = kept.back();
    SHERD_ASSIGN_OR_RETURN(const auto handles,
                           Exchange(rank.group, *memory, *last));
    const int next = (rank.rank() + 1) % rank.size();
    const absl::StatusOr<absl::Span<std::byte>> range =
        memory->Import(next, handles[next]);
    if (!range.ok()) return Fault("import: ", range.status().ToString());
    SHERD_RETURN_IF_ERROR(Expect(*range, next, turn, "read one of many"));
    SHERD_RETURN_IF_ERROR(rank.group.Barrier());
  }
  return absl::OkStatus();
}

constexpr ConformanceCase kCases[] = {
    {"PeersReadAndWrite", PeersReadAndWrite, 2},
    {"PartsOfBlocks", PartsOfBlocks, 2},
    {"ForgedHandles", ForgedHandles, 2},
    {"MemoryOutlivesGroups", MemoryOutlivesGroups, 2},
    {"ManyBlocks", ManyBlocks, 2},
};

}  // namespace

absl::Span<const ConformanceCase> MemoryCases() { return kCases; }

}  // namespace sherd::testing::internal
