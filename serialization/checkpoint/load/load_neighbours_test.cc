#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_workers.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::FakeWorkers;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::ElementsAre;

using Tensors = std::map<std::string, ShardedTensor>;

std::map<std::string, ShardedTensor*> Pointers(Tensors& tensors) {
  std::map<std::string, ShardedTensor*> pointers;
  for (auto& [name, tensor] : tensors) pointers.emplace(name, &tensor);
  return pointers;
}

ShardingSpecPtr Rows(const std::vector<int>& ranks) {
  return *ChunkShardingSpec::Create(0, PlacementsOn(ranks));
}

// A destination that may be beside any other one.
struct Wanted {
  ShardingSpecPtr spec;
  std::shared_ptr<RemoteAccess> workers;
};

std::vector<Wanted> AllWanted() {
  const auto named = *ChunkShardingSpec::Create(0, {"a/cpu", "b/cpu"});
  return {{Rows({0, 1}), nullptr},
          {Rows({1, 0}), nullptr},
          {Rows({0, 1, 0, 1}), nullptr},
          {Rows({0, 0, 1, 1}), nullptr},
          {*ChunkShardingSpec::Create(1, PlacementsOn({0, 1})), nullptr},
          {*MeshShardingSpec::Create({{2}, PlacementsOn({0, 1})}, {}), nullptr},
          // The same metadata with other shards on each rank.
          {named, FakeWorkers::Make({"a", "b"})},
          {named, FakeWorkers::Make({"b", "a"})}};
}

class LoadNeighboursTest : public ::testing::Test {
 protected:
  LoadNeighboursTest() {
    path_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(
            "load_neighbours_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

TEST_F(LoadNeighboursTest, EachTensorIsReadIntoALayoutOfItsOwn) {
  const uint64_t seed = sherd::testing::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  // All are saved in rows, so that only types and destinations differ.
  const Dims size = {8, 6};
  constexpr int kTensors = 100;
  constexpr DType kTypes[] = {kFloat32, kFloat32, kUInt8, kComplex128};
  const auto name = [](int i) { return absl::StrFormat("t%03d", i); };
  const auto type = [&](int i) { return kTypes[i / 3 % 4]; };
  RunLocalRanks(2, [&](ProcessGroup&) {
    Tensors tensors;
    for (int i = 0; i < kTensors; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(Rows({0, 1}), size, {.dtype = type(i)}));
      FillSample(tensor, i);
      tensors.emplace(name(i), std::move(tensor));
    }
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
  });
  RunLocalRanks(2, [&](ProcessGroup&) {
    std::mt19937_64 random(seed);
    const std::vector<Wanted> all = AllWanted();
    Tensors tensors;
    size_t wanted = 0;
    for (int i = 0; i < kTensors; ++i) {
      // Often the one before.
      if (random() % 3 > 0) wanted = random() % all.size();
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(
              all[wanted].spec, size,
              {.dtype = type(i), .workers = all[wanted].workers}));
      tensors.emplace(name(i), std::move(tensor));
    }
    for (const int threads : {1, 3}) {
      for (auto& [key, tensor] : tensors) FillSample(tensor, 1000);
      ASSERT_THAT(LoadCheckpointInto(path_, Pointers(tensors), nullptr,
                                     {.min_read_bytes = 1, .threads = threads}),
                  IsOk());
      for (int i = 0; i < kTensors; ++i) {
        EXPECT_EQ(CountWrong(tensors.at(name(i)), i), 0) << name(i);
      }
    }
  });
}

TEST_F(LoadNeighboursTest, AReportOfManyTensorsIsThatOfAll) {
  constexpr int kTensors = 600;
  constexpr int kOtherSize = 450;
  constexpr int kUnexpected = 301;
  const auto name = [](int i) { return absl::StrFormat("t%03d", i); };
  const auto make = [](int64_t rows) {
    return ShardedTensor::Zeros(Rows({0, 1}), {rows, 3}, {.dtype = kUInt8});
  };
  RunLocalRanks(2, [&](ProcessGroup&) {
    Tensors tensors;
    for (int i = 0; i < kTensors; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor, make(4));
      FillSample(tensor, i);
      tensors.emplace("m." + name(i), std::move(tensor));
    }
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
  });
  RunLocalRanks(2, [&](ProcessGroup&) {
    Tensors tensors;
    for (int i = 0; i < kTensors; ++i) {
      if (i == kUnexpected) continue;
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                                 make(i == kOtherSize ? 5 : 4));
      FillSample(tensor, 1000);
      tensors.emplace(name(i), std::move(tensor));
    }
    for (const char* missing : {"t005x", "t300x", "z"}) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor, make(4));
      FillSample(tensor, 1000);
      tensors.emplace(missing, std::move(tensor));
    }
    LoadReport report;
    LoadOptions options = {.rename = {{"", "m."}}};
    EXPECT_THAT(LoadCheckpointInto(path_, Pointers(tensors), nullptr, options),
                StatusIs(absl::StatusCode::kInvalidArgument, "m.t005x"));
    for (const auto& [key, tensor] : tensors) {
      EXPECT_EQ(CountWrong(tensor, 1000), 0) << key << " was changed";
    }
    options.strict = false;
    options.report = &report;
    ASSERT_THAT(LoadCheckpointInto(path_, Pointers(tensors), nullptr, options),
                IsOk());
    EXPECT_THAT(report.missing, ElementsAre("t005x", "t300x", "z"));
    EXPECT_THAT(report.unexpected, ElementsAre("m." + name(kUnexpected)));
    ASSERT_EQ(report.mismatched.size(), 1u);
    EXPECT_EQ(report.mismatched[0].name, name(kOtherSize));
    for (int i = 0; i < kTensors; ++i) {
      if (i == kUnexpected) continue;
      EXPECT_EQ(CountWrong(tensors.at(name(i)), i == kOtherSize ? 1000 : i), 0)
          << name(i);
    }
  });
}

}  // namespace
}  // namespace sherd
