// A plugin that has little, in a group.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

// testdata/tiny_plugin.cc.
constexpr char kName[] = "tiny";

TEST(TinyPluginTest, RunsAndTheHostEmulatesMissingOperations) {
  RunLocalRanks(
      3,
      [](ProcessGroup& group) {
        EXPECT_EQ(group.backend().name, kName);
        EXPECT_EQ(group.PathOf(CollectiveOp::kBarrier), OperationPath::kNative);
        EXPECT_EQ(group.PathOf(CollectiveOp::kAllReduce),
                  OperationPath::kEmulated);
        EXPECT_EQ(group.PathOf(CollectiveOp::kSend),
                  OperationPath::kUnsupported);
        ASSERT_THAT(group.Barrier(), IsOk());
        std::vector<int64_t> values = {group.rank() + 1, 10 * group.rank()};
        ASSERT_THAT(
            group.AllReduce<int64_t>(absl::MakeSpan(values), ReduceOp::kSum),
            IsOk());
        EXPECT_THAT(values, ::testing::ElementsAre(6, 30));
        std::byte token{};
        EXPECT_THAT(group.Send({&token, 1}, (group.rank() + 1) % 3),
                    StatusIs(absl::StatusCode::kUnimplemented));
        ASSERT_THAT(group.Barrier(), IsOk());
      },
      {.backend = kName});
}

// It does not compare calls, and gets a barrier.
TEST(TinyPluginTest, MeetsInCallsOfNoBytes) {
  RunLocalRanks(
      3,
      [](ProcessGroup& group) {
        std::vector<int64_t> none;
        EXPECT_THAT(
            group.AllReduce<int64_t>(absl::MakeSpan(none), ReduceOp::kSum),
            IsOk());
        std::vector<int64_t> values(group.rank() == 1 ? 0 : 2);
        const absl::Status status =
            group.AllReduce<int64_t>(absl::MakeSpan(values), ReduceOp::kSum);
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
        EXPECT_EQ(FailedRank(status), 1) << status;
      },
      {.backend = kName});
}

TEST(TinyPluginTest, HasMemoryOfPeers) {
  RunLocalRanks(
      3,
      [](ProcessGroup& group) {
        Allocator& allocator = group.shard_allocator();
        const std::shared_ptr<PeerMemory> memory = group.peer_memory();
        ASSERT_NE(memory, nullptr);
        EXPECT_NE(&allocator, &HeapAllocator());
        const auto data = allocator.Allocate(8, 64);
        ASSERT_THAT(data, IsOk());
        *static_cast<int64_t*>(*data) = 100 + group.rank();
        const auto handle = memory->Export(*data, 8);
        ASSERT_TRUE(handle.has_value());
        std::vector<MemoryHandle> handles(3);
        ASSERT_THAT(
            group.AllGather(
                ConstBytes(reinterpret_cast<const std::byte*>(&*handle),
                           sizeof(*handle)),
                MutableBytes(reinterpret_cast<std::byte*>(handles.data()),
                             3 * sizeof(*handle))),
            IsOk());
        for (int r = 0; r < 3; ++r) {
          const auto range = memory->Import(r, handles[r]);
          ASSERT_THAT(range, IsOk());
          ASSERT_EQ(range->size(), 8);
          EXPECT_EQ(*reinterpret_cast<const int64_t*>(range->data()), 100 + r);
        }
        ASSERT_THAT(group.Barrier(), IsOk());
        allocator.Deallocate(*data, 8);
      },
      {.backend = kName});
}

TEST(TinyPluginTest, HasNoMemoryOfProcesses) {
  const auto backend = BackendRegistry::Global().Find(kName);
  ASSERT_THAT(backend, IsOk());
  EXPECT_THAT((*backend)->OpenPeerMemory({}),
              StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace sherd
