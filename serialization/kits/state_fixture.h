#ifndef SHERD_SERIALIZATION_KITS_STATE_FIXTURE_H_
#define SHERD_SERIALIZATION_KITS_STATE_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// For tests of checkpoints of states, in a directory of the test's own.
class StateFixture : public ::testing::Test {
 protected:
  StateFixture() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ =
        JoinPath(::testing::TempDir(), absl::StrCat("state_", info->name()));
    std::filesystem::remove_all(path_);
  }

  static float* Data(const Tensor& tensor) {
    return static_cast<float*>(const_cast<void*>(tensor.data()));
  }

  static Tensor FloatsOf(std::vector<float> values) {
    auto tensor = Tensor::Empty({static_cast<int64_t>(values.size())});
    EXPECT_THAT(tensor, testing::IsOk());
    std::copy(values.begin(), values.end(), Data(*tensor));
    return *std::move(tensor);
  }

  static std::vector<float> Floats(const StateDict& state,
                                   const std::string& name) {
    const auto tensor = state.Get<Tensor>(name);
    EXPECT_THAT(tensor, testing::IsOk());
    if (!tensor.ok()) return {};
    const float* const data = Data(*tensor);
    return {data, data + tensor->numel()};
  }

  static StateDict StateOf(std::vector<StateEntry> entries) {
    auto state = StateDict::Unflatten(std::move(entries));
    EXPECT_THAT(state, testing::IsOk());
    return state.value_or(StateDict());
  }

  // [0, size) over all ranks of `group`, in rows.
  static ShardedTensor Rows(std::shared_ptr<ProcessGroup> group, int64_t size,
                            float scale) {
    const auto& ranks = group->world_ranks();
    const auto spec = ChunkShardingSpec::Create(0, PlacementsOn(ranks));
    EXPECT_THAT(spec, testing::IsOk());
    auto tensor = ShardedTensor::Zeros(*spec, {size}, {.group = group});
    EXPECT_THAT(tensor, testing::IsOk());
    for (const Shard& shard : tensor->local_shards()) {
      Tensor local = shard.tensor;
      for (int64_t i = 0; i < local.numel(); ++i) {
        Data(local)[i] =
            scale * static_cast<float>(shard.metadata.offsets[0] + i);
      }
    }
    return *std::move(tensor);
  }

  static std::vector<float> Whole(const ShardedTensor& tensor) {
    const auto whole = tensor.AllGather();
    EXPECT_THAT(whole, testing::IsOk());
    if (!whole.ok()) return {};
    return {Data(*whole), Data(*whole) + whole->numel()};
  }

  // A state of two pipeline stages, of two ranks each, with a tensor that ranks
  // 1 and 2 have, and one of rank 3 alone.
  static StateDict StageOf(ProcessGroup& all, float scale) {
    const int stage = all.rank() / 2;
    // Collective: all ranks make both.
    std::shared_ptr<ProcessGroup> groups[2];
    for (int i = 0; i < 2; ++i) {
      auto group = all.NewGroup({2 * i, 2 * i + 1});
      EXPECT_THAT(group, testing::IsOk());
      groups[i] = *std::move(group);
    }
    std::vector<StateEntry> entries = {
        {absl::StrCat("stage", stage, ".weight"),
         Rows(groups[stage], 5, scale)},
        {absl::StrCat("stage", stage, ".index"), stage},
        {"step", static_cast<int64_t>(scale)}};
    if (all.rank() == 1 || all.rank() == 2) {
      entries.push_back({"between", FloatsOf({scale, 2 * scale})});
    }
    if (all.rank() == 3) entries.push_back({"last", FloatsOf({scale})});
    return StateOf(std::move(entries));
  }

  // A save, and how many collectives it took on this rank; unless it took long,
  // when ranks vote once a second.
  static absl::Status CountedSave(const std::string& path,
                                  const StateDict& state, ProcessGroup& group,
                                  uint64_t expected,
                                  const SaveOptions& options = {}) {
    const absl::Time begin = absl::Now();
    const uint64_t before = group.counters().Total().calls;
    absl::Status status = SaveCheckpoint(path, state, nullptr, options);
    if (absl::Now() - begin < absl::Seconds(1)) {
      EXPECT_EQ(group.counters().Total().calls - before, expected);
    }
    return status;
  }

  const testing::LeaveOutSyncs no_syncs_;
  std::string path_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_STATE_FIXTURE_H_
