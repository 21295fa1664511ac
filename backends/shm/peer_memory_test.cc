#include "sherd/core/comm/channel/peer_memory.h"

#include <dirent.h>
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/kits/sanitized.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

int CountDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// Failures between processes; the conformance suite tests success, and
// peer_slabs_test tests handles.
class ShmPeerMemoryTest : public sherd::testing::DistributedTest {
 protected:
  static constexpr size_t kBytes = size_t{1} << 20;

  std::shared_ptr<Storage> Allocate(ProcessGroup& in, size_t bytes = kBytes) {
    auto block = Storage::Allocate(bytes, in.shard_allocator());
    EXPECT_THAT(block, IsOk());
    std::memset((*block)->data(), 10 + rank(), bytes);
    return *std::move(block);
  }

  static std::vector<MemoryHandle> Exchange(ProcessGroup& in,
                                            PeerMemory& memory,
                                            const Storage& block) {
    const std::optional<MemoryHandle> own =
        memory.Export(block.data(), block.size());
    EXPECT_TRUE(own.has_value());
    std::vector<MemoryHandle> handles(in.size());
    EXPECT_THAT(
        in.AllGather(
            ConstBytes(reinterpret_cast<const std::byte*>(&*own), sizeof(*own)),
            MutableBytes(reinterpret_cast<std::byte*>(handles.data()),
                         handles.size() * sizeof(MemoryHandle))),
        IsOk());
    return handles;
  }
};

SHERD_DIST_TEST_F(ShmPeerMemoryTest, AThousandGroupsLeakNothing) {
  const std::shared_ptr<Storage> block = Allocate(group());
  int descriptors = 0, mappings = 0;
  for (int cycle = 0; cycle <= 1000; ++cycle) {
    std::vector<int> all;
    for (int r = 0; r < world_size(); ++r) all.push_back(r);
    const auto next = group().NewGroup(all);
    ASSERT_THAT(next, IsOk());
    {
      const auto memory = (*next)->peer_memory();
      ASSERT_NE(memory, nullptr);
      const auto handles = Exchange(**next, *memory, *block);
      const int peer = (rank() + 1) % world_size();
      const auto range = memory->Import(peer, handles[peer]);
      ASSERT_THAT(range, IsOk());
      ASSERT_EQ(range->back(), static_cast<std::byte>(10 + peer));
      ASSERT_THAT((*next)->Barrier(), IsOk());
    }
    ASSERT_THAT((*next)->Destroy(), IsOk());
    if (cycle != 20) continue;
    descriptors = CountDescriptors();
    mappings = CountMappings();
  }
  EXPECT_EQ(CountDescriptors(), descriptors);
  if (!sherd::testing::kIsSanitized) {
    EXPECT_LE(CountMappings(), mappings + 4);
  }
}

SHERD_DIST_TEST_F(ShmPeerMemoryTest, ARankThatIsKilledTakesItsMemoryAlong) {
  const int failed_rank = world_size() - 1;
  ExpectRankDies(failed_rank, SIGKILL);
  const auto memory = group().peer_memory();
  ASSERT_NE(memory, nullptr);
  const std::shared_ptr<Storage> block = Allocate(group());
  const auto handles = Exchange(group(), *memory, *block);
  // Only rank 0 has imported it when its owner dies.
  absl::Span<std::byte> imported;
  if (rank() == 0) {
    const auto range = memory->Import(failed_rank, handles[failed_rank]);
    ASSERT_THAT(range, IsOk());
    imported = *range;
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank) raise(SIGKILL);
  EXPECT_THAT(group().Barrier(), StatusIs(absl::StatusCode::kUnavailable));
  if (rank() == 0) {
    EXPECT_EQ(imported.back(), static_cast<std::byte>(10 + failed_rank));
    EXPECT_THAT(memory->Import(failed_rank, handles[failed_rank]), IsOk());
  } else {
    const auto range = memory->Import(failed_rank, handles[failed_rank]);
    EXPECT_THAT(range, StatusIs(absl::StatusCode::kUnavailable,
                                HasSubstr("its process ended")));
    EXPECT_EQ(ErrorRank(range.status()), failed_rank);
  }
  // The others' is still there.
  const auto own = memory->Import(rank(), handles[rank()]);
  ASSERT_THAT(own, IsOk());
  EXPECT_EQ(own->data(), block->data());
}

SHERD_DIST_TEST_F(ShmPeerMemoryTest, OnlyGroupsThatHavePeersHaveTheirMemory) {
  EXPECT_EQ(group().shard_allocator().name(), "shm");
  const auto alone = group().NewGroup({0});
  ASSERT_THAT(alone, IsOk());
  EXPECT_EQ((*alone)->is_member(), rank() == 0);
  EXPECT_EQ((*alone)->peer_memory(), nullptr);
  EXPECT_EQ(&(*alone)->shard_allocator(), &HeapAllocator());
  // Memory that it allocated before is still valid.
  const std::shared_ptr<Storage> block = Allocate(group());
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(group().Destroy(), IsOk());
  EXPECT_EQ(group().peer_memory(), nullptr);
  EXPECT_EQ(&group().shard_allocator(), &HeapAllocator());
  EXPECT_EQ(static_cast<const std::byte*>(block->data())[kBytes - 1],
            static_cast<std::byte>(10 + rank()));
}

SHERD_DIST_TEST_F(ShmPeerMemoryTest, ProcessesReachEachOtherWithoutAGroup) {
  const ProcessIdentity own = ProcessIdentity::Own();
  std::vector<ProcessIdentity> processes(world_size());
  ASSERT_THAT(
      group().AllGather(
          ConstBytes(reinterpret_cast<const std::byte*>(&own), sizeof(own)),
          MutableBytes(reinterpret_cast<std::byte*>(processes.data()),
                       processes.size() * sizeof(own))),
      IsOk());
  const auto memory = OpenPeerMemory(processes);
  ASSERT_THAT(memory, IsOk());
  const std::shared_ptr<Storage> block = Allocate(group());
  const auto handles = Exchange(group(), **memory, *block);
  for (int r = 0; r < world_size(); ++r) {
    const auto range = (*memory)->Import(r, handles[r]);
    ASSERT_THAT(range, IsOk());
    EXPECT_EQ(range->back(), static_cast<std::byte>(10 + r));
  }
  EXPECT_THAT((*memory)->Import((rank() + 1) % world_size(), handles[rank()]),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_THAT(group().Barrier(), IsOk());
  // A process that there is not.
  const ProcessIdentity nobody = {.pid = int64_t{1} << 30};
  EXPECT_THAT(OpenPeerMemory({nobody}),
              StatusIs(absl::StatusCode::kUnimplemented));
}

SHERD_DIST_TEST_F(ShmPeerMemoryTest, MemoryOfTheHeapCannotBeExported) {
  const auto memory = group().peer_memory();
  ASSERT_NE(memory, nullptr);
  const std::vector<std::byte> heap(kBytes);
  EXPECT_FALSE(memory->Export(heap.data(), heap.size()).has_value());
  EXPECT_FALSE(memory->Export(nullptr, 1).has_value());
}

SHERD_DIST_TEST_F(ShmPeerMemoryTest, LackOfMemoryIsAnErrorAndNotASignal) {
  Allocator& allocator = group().shard_allocator();
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 45}) {
    EXPECT_THAT(allocator.Allocate(bytes, 64),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("shm memory: out of memory")));
  }
  EXPECT_NE(Allocate(group()), nullptr);
}

}  // namespace
}  // namespace sherd
