// Plugins of older and newer lines in today's host, and today's plugins in an
// old host.

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/loader.h"
#include "sherd/backends/plugin.h"
#include "sherd/backends/testdata/old_host.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunInOldHost;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr char kEntry[] = "sherd_get_plugin_v0";

// testdata/tiny_plugin.cc, built against the header of each line.
class TinyPluginTest : public ::testing::TestWithParam<int> {
 protected:
  std::string name() const { return absl::StrCat("tiny_0_", GetParam()); }
};

TEST_P(TinyPluginTest, RunsInTodaysHostWhichEmulatesWhatItLacks) {
  RunLocalRanks(
      3,
      [this](ProcessGroup& group) {
        EXPECT_EQ(group.backend().name, name());
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
      {.backend = name()});
}

// Line 0.5 brought operations that move nothing, of which older plugins get a
// barrier.
TEST_P(TinyPluginTest, MeetsInCallsOfNoBytes) {
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
      {.backend = name()});
}

// Line 0.3 brought memory that peers reach.
TEST_P(TinyPluginTest, HasMemoryOfPeersIfItsLineHas) {
  RunLocalRanks(
      3,
      [](ProcessGroup& group) {
        Allocator& allocator = group.shard_allocator();
        if (GetParam() < 3) {
          EXPECT_EQ(group.peer_memory(), nullptr);
          EXPECT_EQ(&allocator, &HeapAllocator());
          // This plugin connects without waiting: who leaves at once would take
          // along what the others still look for.
          ASSERT_THAT(group.Barrier(), IsOk());
          return;
        }
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
      {.backend = name()});
}

TEST_P(TinyPluginTest, RunsInAnOldHost) {
  void* const plugin =
      dlopen(absl::StrCat("backends/", PluginFileName(name())).c_str(),
             RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << dlerror();
  EXPECT_EQ(RunInOldHost(dlsym(plugin, kEntry), 3), "");
}

INSTANTIATE_TEST_SUITE_P(Lines, TinyPluginTest,
                         ::testing::Values(1, 2, 3, 4, 5, 6));

struct Plugin {
  const char* name;
  const char* path;
};

class PluginInOldHostTest : public ::testing::TestWithParam<Plugin> {};

// A plugin may refuse an old host; one that accepts it must ask nothing of it
// that it does not have.
TEST_P(PluginInOldHostTest, WorksOrSaysNo) {
  void* const plugin = dlopen(GetParam().path, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << dlerror();
  EXPECT_THAT(RunInOldHost(dlsym(plugin, kEntry), 3),
              ::testing::AnyOf("", "no"));
}

INSTANTIATE_TEST_SUITE_P(
    All, PluginInOldHostTest,
    ::testing::Values(Plugin{"gloo", "backends/gloo/libsherd_backend_gloo.so"},
                      Plugin{"nccl", "backends/nccl/libsherd_backend_nccl.so"},
                      Plugin{"shm", "backends/shm/libsherd_backend_shm.so"}),
    [](const auto& info) { return info.param.name; });

TEST(StaticPluginInOldHostTest, LocalWorksOrSaysNo) {
  int found = 0;
  for (const auto* plugin = internal::StaticPlugin<sherd_plugin_v0>::Head();
       plugin != nullptr; plugin = plugin->next) {
    ++found;
    EXPECT_THAT(RunInOldHost(reinterpret_cast<void*>(plugin->entry), 3),
                ::testing::AnyOf("", "no"));
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace sherd
