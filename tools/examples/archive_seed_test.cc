// What PyTorch's tests of ShardedTensor say of torch.save and torch.load, with
// four ranks that are processes and workers, on every backend. The comment of a
// test has the name of theirs. Here, since neither serialization nor rpc sees
// the other.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/archive.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::ShardedTensorEq;
using ::sherd::testing::StatusIs;
using ::testing::SizeIs;

constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;
constexpr const char* kNames[] = {"sharded_tensor1",
                                  "submodule.sharded_tensor2"};

class ArchiveSeedTest : public sherd::testing::PlacedFixture<
                            sherd::testing::PersistentDistributedTest> {
 protected:
  // The state of MyShardedModel1.
  absl::StatusOr<StateDict> ModelState(
      const ShardingSpecPtr& spec, std::shared_ptr<ProcessGroup> over = {}) {
    StateDict state;
    for (const char* name : kNames) {
      SHERD_ASSIGN_OR_RETURN(
          const ShardedTensor tensor,
          ShardedTensor::Empty(spec, {10, 20},
                               {.group = over, .init_rrefs = true}));
      FillPattern(tensor, state.size());
      SHERD_RETURN_IF_ERROR(state.Set(name, tensor));
    }
    return state;
  }

  // This rank's archive.
  std::string path() {
    return JoinPath(temp_dir(), "state." + std::to_string(rank()));
  }

  // The loaded tensors are the saved ones, and other workers read them.
  void ExpectLoaded(const StateDict& loaded, const StateDict& saved,
                    size_t owners) {
    EXPECT_EQ(loaded.Difference(saved), "");
    uint64_t salt = 0;
    for (const char* name : kNames) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                 loaded.Get<ShardedTensor>(name));
      SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                                 tensor.remote_shards());
      EXPECT_THAT(remote, SizeIs(owners));
      for (const auto& [owner, shards] : remote) {
        for (const RemoteShard& shard : shards) {
          SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shard.ToHere());
          EXPECT_TRUE(HasPattern(here.tensor, here.metadata.offsets,
                                 tensor.metadata().size, salt))
              << name << " of " << owner;
        }
      }
      ++salt;
    }
    ASSERT_THAT(group().Barrier(), IsOk());
  }
};

// test_state_dict.
SHERD_DIST_TEST_F(ArchiveSeedTest, AStateIsSavedAndLoaded,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved, ModelState(Chunks(0)));
  ASSERT_THAT(Save(saved, path()), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, Load(path()));
  ExpectLoaded(loaded, saved, 3);
  for (const char* name : kNames) {
    EXPECT_THAT(*loaded.Get<ShardedTensor>(name),
                ShardedTensorEq(*saved.Get<ShardedTensor>(name)));
  }
}

// test_state_dict_new_group.
SHERD_DIST_TEST_F(ArchiveSeedTest, AStateOfASubgroupIsSavedAndLoaded,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group().NewGroup({2, 3}));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved,
                             ModelState(Chunks(0, {2, 3, 2, 3}), pair));
  ASSERT_THAT(Save(saved, path()), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const ScopedLoadGroup scope,
                             ScopedLoadGroup::Create(pair));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, Load(path()));
  ExpectLoaded(loaded, saved, pair->is_member() ? 1 : 2);
}

// test_load_state_dict_errors.
SHERD_DIST_TEST_F(ArchiveSeedTest, AStateIsLoadedWhereItWasSaved,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved, ModelState(Chunks(0)));
  ASSERT_THAT(Save(saved, path()), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto three, group().NewGroup({0, 2, 3}));
  {
    SHERD_ASSERT_OK_AND_ASSIGN(const ScopedLoadGroup scope,
                               ScopedLoadGroup::Create(three));
    EXPECT_THAT(
        Load(path()),
        StatusIs(kFailed, rank() == 0 ? "Local world size at save time was"
                                      : "Local rank at save time was"));
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  // Without RPC, shards cannot be published again.
  ASSERT_THAT(remote_access().Shutdown(), IsOk());
  EXPECT_THAT(Load(path()),
              StatusIs(kFailed, "RPC Framework needs to be initialized"));
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(group().Destroy(), IsOk());
  EXPECT_THAT(Load(path()),
              StatusIs(kFailed, "Need to initialize default process group"));
}

}  // namespace
}  // namespace sherd
