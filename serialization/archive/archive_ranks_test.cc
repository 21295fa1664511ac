#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/store_remote_access.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/group_state.h"
#include "sherd/serialization/kits/sample_archive.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Archives of sharded tensors: every rank has its own.

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::FillPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

// Chunks of rows, one for each rank.
ShardingSpecPtr Rows(int ranks) {
  return ChunkShardingSpec::Create(0, PlacementsOnRanks(ranks)).value();
}

std::shared_ptr<ProcessGroup> World() { return DefaultGroup().value(); }

// What the seeds' MyShardedModel1 has in its state.
absl::StatusOr<StateDict> SeedState(const ShardingSpecPtr& spec,
                                    const ShardedTensorOptions& options = {}) {
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor first,
                         ShardedTensor::Empty(spec, {10, 20}, options));
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor second,
                         ShardedTensor::Empty(spec, {10, 20}, options));
  FillPattern(first, 1);
  FillPattern(second, 2);
  StateDict state;
  SHERD_RETURN_IF_ERROR(state.Set("sharded_tensor1", first));
  SHERD_RETURN_IF_ERROR(state.Set("submodule.sharded_tensor2", second));
  return state;
}

// A load of `bytes` with the tensors over `group`.
absl::StatusOr<StateDict> LoadOver(const std::shared_ptr<ProcessGroup>& group,
                                   const std::string& bytes) {
  SHERD_ASSIGN_OR_RETURN(const ScopedLoadGroup scope,
                         ScopedLoadGroup::Create(group));
  return LoadFromString(bytes);
}

// Seed 001, test_state_dict.
TEST(ArchiveRanksTest, EachRankLoadsWhatItSaved) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    if (group.rank() == 0) FakeDevice::Install(4);
    ASSERT_THAT(group.Barrier(), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr spec,
        ChunkShardingSpec::Create(0, {"rank:0/cuda:0", "rank:1/cuda:1",
                                      "rank:2/cuda:2", "rank:3/cuda:3"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SeedState(spec));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    for (const char* name : {"sharded_tensor1", "submodule.sharded_tensor2"}) {
      const ShardedTensor before = *state.Get<ShardedTensor>(name);
      const ShardedTensor after = *loaded.Get<ShardedTensor>(name);
      EXPECT_EQ(*after.spec(), *spec);
      EXPECT_EQ(after.group(), World());
      EXPECT_EQ(after.device(), (Device{DeviceType::kCuda, group.rank()}));
    }
  });
}

// Seed 001, test_state_dict_new_group: also on the ranks that are not members.
TEST(ArchiveRanksTest, ATensorOfASubgroupIsLoadedOverIt) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr spec,
        ChunkShardingSpec::Create(
            0, {"rank:2/cpu", "rank:3/cpu", "rank:2/cpu", "rank:3/cpu"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({2, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(spec, {.group = pair}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadOver(pair, bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    const ShardedTensor tensor = *loaded.Get<ShardedTensor>("sharded_tensor1");
    EXPECT_EQ(tensor.group(), pair);
    EXPECT_EQ(tensor.local_shards().size(), pair->is_member() ? 2 : 0);
    // Over the default group, each rank is elsewhere.
    EXPECT_THAT(
        LoadFromString(bytes),
        StatusIs(kFailed,
                 absl::StrCat("Local rank at save time was ", pair->rank(),
                              ", but at load time was ", group.rank())));
  });
}

// Seed 001, test_state_dict_no_sharded_tensors: neither needs a group.
TEST(ArchiveRanksTest, AStateWithoutShardedTensorsNeedsNoGroup) {
  ASSERT_THAT(DefaultGroup(), StatusIs(kFailed));
  StateDict state;
  ASSERT_THAT(state.Set("weight", *CountingTensor({10, 10})), IsOk());
  ASSERT_THAT(state.Set("bias", *CountingTensor({10})), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
  EXPECT_EQ(loaded.Difference(state), "");
}

// Seed 001, test_load_state_dict_errors.
TEST(ArchiveRanksTest, ATensorIsLoadedWhereItWasSavedOnly) {
  std::vector<std::string> saved(4);
  RunLocalRanks(4, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SeedState(Rows(4)));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto three, group.NewGroup({0, 2, 3}));
    const char* const expected =
        group.rank() == 0
            ? "\"sharded_tensor1\": Local world size at save time was 4, but "
              "at load time was 3"
            : "\"sharded_tensor1\": Local rank at save time was";
    EXPECT_THAT(LoadOver(three, bytes), StatusIs(kFailed, expected));
    saved[static_cast<size_t>(group.rank())] = bytes;
  });
  // The default group of each thread is gone with it.
  for (const std::string& bytes : saved) {
    EXPECT_THAT(LoadFromString(bytes),
                StatusIs(kFailed, "Need to initialize default process group"));
  }
}

TEST(ArchiveRanksTest, WithoutADefaultGroupNothingElseIsLookedAt) {
  std::shared_ptr<ProcessGroup> other;
  std::string bytes;
  RunLocalRanks(1, [&](ProcessGroup&) {
    other = World();
    bytes = SaveToString(*SeedState(Rows(1))).value();
  });
  EXPECT_THAT(LoadOver(other, bytes),
              StatusIs(kFailed, "Need to initialize default process group"));
}

TEST(ArchiveRanksTest, ATensorWithAGroupIsSavedInAJobOnly) {
  StateDict state;
  RunLocalRanks(1, [&](ProcessGroup&) { state = *SeedState(Rows(1)); });
  EXPECT_THAT(SaveToString(state),
              StatusIs(kFailed,
                       "\"sharded_tensor1\": Need to initialize "
                       "default process group"));
}

struct PlaceCase {
  internal::GroupState now;
  const char* message;
};

// The reference's order, and its words.
TEST(ArchiveRanksTest, TheFirstDifferenceOfPlacesIsReported) {
  const internal::GroupState saved = {1, 2, 3, 4};
  EXPECT_THAT(internal::CheckSamePlace(saved, saved), IsOk());
  const PlaceCase cases[] = {
      {{0, 0, 0, 0}, "Local rank at save time was 1, but at load time was 0"},
      {{-1, 2, 3, 4}, "Local rank at save time was 1, but at load time was -1"},
      {{1, 0, 0, 0}, "Global rank at save time was 2, but at load time was 0"},
      {{1, 2, 0, 0},
       "Local world size at save time was 3, but at load time was 0"},
      {{1, 2, 3, 0},
       "Global world size at save time was 4, but at load time was 0"}};
  for (const PlaceCase& c : cases) {
    EXPECT_THAT(internal::CheckSamePlace(saved, c.now),
                StatusIs(kFailed, c.message));
  }
}

TEST(ArchiveRanksTest, ScopesDoNotNest) {
  RunLocalRanks(1, [](ProcessGroup&) {
    {
      SHERD_ASSERT_OK_AND_ASSIGN(ScopedLoadGroup scope,
                                 ScopedLoadGroup::Create(World()));
      EXPECT_THAT(ScopedLoadGroup::Create(World()),
                  StatusIs(kFailed, "ProcessGroup already set by previous"));
      // The scope lasts as long as what it was moved to.
      const ScopedLoadGroup moved = std::move(scope);
      EXPECT_THAT(ScopedLoadGroup::Create(World()), StatusIs(kFailed));
    }
    EXPECT_THAT(ScopedLoadGroup::Create(World()), IsOk());
    EXPECT_THAT(ScopedLoadGroup::Create(nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument));
  });
}

TEST(ArchiveRanksTest, AScopeIsOfItsThread) {
  RunLocalRanks(1, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ScopedLoadGroup scope,
                               ScopedLoadGroup::Create(World()));
    absl::Status status;
    std::thread([&, group = World()] {
      status = ScopedLoadGroup::Create(group).status();
    }).join();
    EXPECT_THAT(status, IsOk());
  });
}

// Rules by themselves, with replicas, with uneven, empty and several shards.
TEST(ArchiveRanksTest, EveryLayoutAndDTypeIsLoadedAsItWas) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    StateDict state;
    for (const SampleTensor& sample : SampleTensors()) {
      for (int kind = 0; kind < kSampleSpecs; ++kind) {
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr spec,
                                   SampleSpec(kind, sample.size, group.size()));
        SHERD_ASSERT_OK_AND_ASSIGN(
            ShardedTensor tensor,
            ShardedTensor::Empty(spec, sample.size, {.dtype = sample.dtype}));
        FillSample(tensor, kind);
        tensor.SetRequiresGrad(kind % 2 == 0);
        ASSERT_THAT(state.Set(absl::StrCat(StateDict::EscapeKey(sample.name),
                                           "[", kind, "]"),
                              tensor),
                    IsOk());
      }
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    for (const StateEntry& entry : state.Flatten()) {
      const ShardedTensor before = *entry.value.get_if<ShardedTensor>();
      const ShardedTensor after = *loaded.Get<ShardedTensor>(entry.name);
      EXPECT_EQ(*after.spec(), *before.spec()) << entry.name;
      EXPECT_EQ(after.fingerprint(), before.fingerprint()) << entry.name;
    }
  });
}

TEST(ArchiveRanksTest, AViewIsLoadedAsATensorOfItsOwn) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor whole,
                               ShardedTensor::Rand(Rows(2), {6, 8}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               whole.Narrow({1, 2}, {4, 3}));
    StateDict state;
    ASSERT_THAT(state.Set("view", view), IsOk());
    for (const bool with_whole : {false, true}) {
      if (with_whole) {
        ASSERT_THAT(state.Set("whole", whole), IsOk());
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
      SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
      EXPECT_EQ(loaded.Difference(state), "");
      EXPECT_TRUE(loaded.Get<ShardedTensor>("view")->is_contiguous());
    }
  });
}

// Tied weights: one tensor under two names.
TEST(ArchiveRanksTest, ShardsThatAreSharedStayShared) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Rand(Rows(2), {6, 8}));
    StateDict state;
    ASSERT_THAT(state.Set("embedding", tensor), IsOk());
    ASSERT_THAT(state.Set("head", tensor), IsOk());
    ASSERT_THAT(state.Set("local", tensor.local_shards()[0].tensor), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    const void* const data = loaded.Get<Tensor>("local")->data();
    for (const char* name : {"embedding", "head"}) {
      const ShardedTensor after = *loaded.Get<ShardedTensor>(name);
      EXPECT_EQ(after.local_shards()[0].tensor.data(), data);
    }
  });
}

TEST(ArchiveRanksTest, AMappedShardIsAViewOfTheFile) {
  const std::string folder = ::testing::TempDir();
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const std::string path =
        JoinPath(folder, absl::StrCat("mapped_shards.", group.rank()));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SeedState(Rows(2)));
    ASSERT_THAT(Save(state, path), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                               Load(path, {.map = true}));
    EXPECT_EQ(loaded.Difference(state), "");
    const ShardedTensor tensor = *loaded.Get<ShardedTensor>("sharded_tensor1");
    EXPECT_FALSE(tensor.local_shards()[0].tensor.writable());
  });
}

// Saved where nothing can be pinned, loaded where it can.
TEST(ArchiveRanksTest, PinnedShardsArePinnedWhereTheyAreLoaded) {
  RunLocalRanks(1, [](ProcessGroup&) {
    FakeDevice::InstallError(absl::UnimplementedError("no driver"));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(Rows(1), {.pin_memory = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    FakeDevice& devices = FakeDevice::Install(1);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    const ShardedTensor tensor = *loaded.Get<ShardedTensor>("sharded_tensor1");
    EXPECT_TRUE(tensor.is_pinned());
    EXPECT_EQ(devices.Locate(tensor.local_shards()[0].tensor.data()).value(),
              Device());
  });
}

// One row for each rank, by a rule that an archive does not know.
class RowPerRank final : public ShardingSpec {
 public:
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    return Rows(static_cast<int>(size[0]))->BuildMetadata(size, properties);
  }
  std::string ToString() const override { return "RowPerRank()"; }

 private:
  bool Equals(const ShardingSpec&) const override { return true; }
};

TEST(ArchiveRanksTest, ASpecOfTheUsersClassIsInferred) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const StateDict state,
        [](const ShardingSpecPtr& spec) -> absl::StatusOr<StateDict> {
          SHERD_ASSIGN_OR_RETURN(const ShardedTensor tensor,
                                 ShardedTensor::Rand(spec, {2, 3}));
          StateDict result;
          SHERD_RETURN_IF_ERROR(result.Set("x", tensor));
          return result;
        }(std::make_shared<RowPerRank>()));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    EXPECT_EQ(*loaded.Get<ShardedTensor>("x")->spec(), *Rows(2));
  });
}

class ArchivePublicationTest : public ::testing::Test {
 protected:
  ArchivePublicationTest() { RegisterRemoteAccess(StartStoreRemoteAccess); }
  ~ArchivePublicationTest() override { RegisterRemoteAccess(nullptr); }

  std::shared_ptr<RemoteAccess> Start(const ProcessGroup& group) {
    return StartRemoteAccess({.rank = group.rank(),
                              .world_size = group.size(),
                              .store = store_,
                              .timeout = absl::Seconds(60),
                              .workers_are_threads = true})
        .value();
  }

  // On four ranks that are workers by the same number.
  void RunWorkers(const std::function<void(ProcessGroup&)>& body) {
    RunLocalRanks(4, [&](ProcessGroup& group) {
      const std::shared_ptr<RemoteAccess> access = Start(group);
      body(group);
      EXPECT_THAT(access->Shutdown(), IsOk());
    });
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

// The shards of all other workers, by name, have the elements of `whole`.
void ExpectRemoteShards(const ShardedTensor& tensor, const Tensor& whole) {
  SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote, tensor.remote_shards());
  EXPECT_EQ(remote.size(), 3);
  for (const auto& [rank, shards] : remote) {
    for (const RemoteShard& shard : shards) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shard.ToHere());
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensor part,
          whole.Narrow(here.metadata.offsets, here.metadata.sizes));
      EXPECT_TRUE(here.tensor.BitwiseEqual(part));
    }
  }
}

// Seed 001, test_state_dict: its tensors are created with init_rrefs.
TEST_F(ArchivePublicationTest, ShardsThatWerePublishedAreSoAgain) {
  RunWorkers([](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(Rows(4), {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(state), "");
    for (const char* name : {"sharded_tensor1", "submodule.sharded_tensor2"}) {
      const ShardedTensor tensor = *loaded.Get<ShardedTensor>(name);
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
      ExpectRemoteShards(tensor, whole);
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(ArchivePublicationTest, AWorkerOutsideTheGroupReadsThemToo) {
  RunWorkers([](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr spec,
        ChunkShardingSpec::Create(0, {"rank:2", "rank:3"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({2, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const StateDict state,
        SeedState(spec, {.group = pair, .init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadOver(pair, bytes));
    const ShardedTensor tensor = *loaded.Get<ShardedTensor>("sharded_tensor1");
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    EXPECT_EQ(remote.size(), pair->is_member() ? 1 : 2);
    for (const auto& [rank, shards] : remote) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shards[0].ToHere());
      EXPECT_EQ(here.metadata.placement, Placement::OnRank(rank));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// The members learn of an error at the first tensor, of which workers that are
// none know nothing: all count all tensors, or those would read the next one.
TEST_F(ArchivePublicationTest, AfterAFailedLoadAWorkerReadsTheRightTensor) {
  RunWorkers([](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr spec,
        ChunkShardingSpec::Create(0, {"rank:2", "rank:3"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({2, 3}));
    StateDict state;
    for (const int value : {1, 2}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor tensor,
          ShardedTensor::Full(spec, {4}, value,
                              {.group = pair, .init_rrefs = true}));
      ASSERT_THAT(state.Set(absl::StrCat("x", value), tensor), IsOk());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    std::string damaged = bytes;
    damaged.back() ^= 1;
    EXPECT_EQ(LoadOver(pair, group.rank() == 2 ? damaged : bytes).ok(),
              !pair->is_member());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadOver(pair, bytes));
    for (const int value : {1, 2}) {
      const ShardedTensor tensor =
          *loaded.Get<ShardedTensor>(absl::StrCat("x", value));
      SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                                 tensor.remote_shards());
      for (const auto& [rank, shards] : remote) {
        SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shards[0].ToHere());
        EXPECT_EQ(here.tensor.At<float>({0}).value(), value);
      }
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// What comes after the tree.
TEST_F(ArchivePublicationTest, AnArchiveThatEndsEarlyIsTheErrorOfAll) {
  RunWorkers([](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(Rows(4), {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    const std::string cut = bytes.substr(0, bytes.size() - 1);
    const absl::Status status =
        LoadFromString(group.rank() == 2 ? cut : bytes).status();
    EXPECT_THAT(status, StatusIs(kDataLoss, "it was cut short"));
    if (group.rank() != 2) {
      EXPECT_EQ(ErrorRank(status), 2);
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(ArchivePublicationTest, WithoutRpcTheyCannotBe) {
  RunLocalRanks(4, [this](ProcessGroup& group) {
    const std::shared_ptr<RemoteAccess> access = Start(group);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(Rows(4), {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    EXPECT_THAT(access->Shutdown(), IsOk());
    EXPECT_THAT(LoadFromString(bytes),
                StatusIs(kFailed, "RPC Framework needs to be initialized"));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

// Wherever in its archive one rank fails, the others do not wait for it, and
// the next load is right.
TEST_F(ArchivePublicationTest, AnErrorOfOneRankIsThatOfAll) {
  RunWorkers([](ProcessGroup& group) {
    StateDict state;
    ASSERT_THAT(state.Set("before", *CountingTensor({100})), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict seed,
                               SeedState(Rows(4), {.init_rrefs = true}));
    ASSERT_THAT(state.Set("model", seed), IsOk());
    ASSERT_THAT(state.Set("after", *CountingTensor({100})), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    for (const char* name : {"before", "after"}) {
      // The last 4 bytes are the CRC of the table; before are the CRCs of the
      // blocks, and those.
      std::string damaged = bytes;
      const size_t end = damaged.rfind(std::string("\x60\x61\x62\x63", 4));
      const size_t other = damaged.find(std::string("\x60\x61\x62\x63", 4));
      ASSERT_NE(end, std::string::npos);
      damaged[name == std::string("after") ? end : other] ^= 1;
      const absl::Status status =
          LoadFromString(group.rank() == 2 ? damaged : bytes).status();
      EXPECT_THAT(status, StatusIs(kDataLoss, name));
      if (group.rank() != 2) {
        EXPECT_EQ(ErrorRank(status), 2);
      }
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    const ShardedTensor tensor =
        *loaded.Get<ShardedTensor>("model.sharded_tensor1");
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    ExpectRemoteShards(tensor, whole);
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// Each rank has its own error, where it is not in its place.
TEST_F(ArchivePublicationTest, RanksInOtherPlacesDoNotWaitForEachOther) {
  RunWorkers([](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state,
                               SeedState(Rows(4), {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto three, group.NewGroup({0, 2, 3}));
    EXPECT_THAT(LoadOver(three, bytes),
                StatusIs(kFailed, group.rank() == 0
                                      ? "Local world size at save time was"
                                      : "Local rank at save time was"));
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
