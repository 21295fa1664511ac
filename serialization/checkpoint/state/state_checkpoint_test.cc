// What a checkpoint of a StateDict saves and loads, and what it costs; for what
// is refused see state_errors_test.cc, for random states
// state_property_test.cc.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/state_fixture.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StateCheckpointTest : public StateFixture {};

TEST_F(StateCheckpointTest, EveryKindOfValueComesBack) {
  const auto make = [](ProcessGroup& group, bool saved) {
    const auto all = DefaultGroup();
    const int rank = group.rank();
    return StateOf({
        {"model.weight", Rows(*all, 7, saved ? 1 : 0)},
        {"model.bias",
         FloatsOf(saved ? std::vector<float>{1, 2} : std::vector<float>{0, 0})},
        {"step", saved ? 50 : 0},
        {"groups[0].lr", saved ? 0.25 : 1.0},
        {"groups[0].name", saved ? "adam" : ""},
        {"groups[0].nesterov", saved},
        {"losses", saved ? StateList{3, 2, 1} : StateList{}},
        {"extra", saved ? StateValue(StateOf({{"a", 1}, {"b", StateDict()}}))
                        : StateValue(StateDict())},
        {"none", saved ? StateValue() : StateValue(1)},
        {"rng.text", saved ? absl::StrCat("rank ", rank) : ""},
        {"rng.state", FloatsOf({static_cast<float>(saved ? rank : -1)})},
        {"bytes", StateBytes{saved ? std::string("\0\1", 2) : ""}},
    });
  };
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const StateDict saved = make(group, true);
    ASSERT_THAT(SaveCheckpoint(path_, saved, nullptr, {.per_rank = {"rng"}}),
                IsOk());
    StateDict loaded = make(group, false);
    ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
    EXPECT_EQ(loaded.Difference(saved), "");
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(StateCheckpointTest, PerRankNamesMayBeBelowOneAnother) {
  const auto make = [](int seed) {
    return StateOf({{"rng.cpu.seed", seed},
                    {"rng.cpu.state", FloatsOf({static_cast<float>(seed)})},
                    {"rng.gpu", seed + 10}});
  };
  for (const std::vector<std::string>& per_rank :
       {std::vector<std::string>{"rng.cpu", "rng", "rng.cpu.state"},
        std::vector<std::string>{"rng", "rng.cpu", "rng"}}) {
    RunLocalRanks(2, [&](ProcessGroup& group) {
      const StateDict saved = make(group.rank() + 1);
      ASSERT_THAT(SaveCheckpoint(path_, saved, nullptr, {.per_rank = per_rank}),
                  IsOk());
      StateDict loaded = make(0);
      ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
      EXPECT_EQ(loaded.Difference(saved), "");
    });
  }
}

TEST_F(StateCheckpointTest, RanksMayHaveDifferentNames) {
  RunLocalRanks(4, [&](ProcessGroup& group) {
    const StateDict saved = StageOf(group, 3);
    ASSERT_THAT(SaveCheckpoint(path_, saved, nullptr, {.check_replicas = true}),
                IsOk());
    StateDict loaded = StageOf(group, 0);
    ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
    EXPECT_EQ(loaded.Difference(saved), "");
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  // Onto other ranks, in other layouts.
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const auto all = DefaultGroup();
    StateDict loaded;
    const ShardedTensor first = Rows(*all, 5, 0);
    ASSERT_THAT(loaded.Set("stage0.weight", first), IsOk());
    if (group.rank() == 2) {
      ASSERT_THAT(loaded.Set("stage1.weight", FloatsOf({0, 0, 0, 0, 0})),
                  IsOk());
      ASSERT_THAT(loaded.Set("step", 0), IsOk());
    }
    ASSERT_THAT(loaded.Set("between", FloatsOf({0, 0})), IsOk());
    ASSERT_THAT(loaded.Set("last", FloatsOf({0})), IsOk());
    LoadReport report;
    ASSERT_THAT(LoadCheckpointInto(path_, loaded, nullptr, {.report = &report}),
                IsOk());
    EXPECT_THAT(Whole(first), ElementsAre(0, 3, 6, 9, 12));
    EXPECT_THAT(Floats(loaded, "between"), ElementsAre(3, 6));
    EXPECT_THAT(Floats(loaded, "last"), ElementsAre(3));
    if (group.rank() == 2) {
      EXPECT_THAT(Floats(loaded, "stage1.weight"), ElementsAre(0, 3, 6, 9, 12));
      EXPECT_EQ(*loaded.Get<int64_t>("step"), 3);
    }
    EXPECT_THAT(report.unexpected, ElementsAre("stage0.index", "stage1.index"));
  });
  // All values, without tensors.
  RunLocalRanks(1, [&](ProcessGroup&) {
    StateDict loaded;
    ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
    EXPECT_EQ(loaded.ToString(), "stage0.index: 0\nstep: 3\nstage1.index: 1\n");
  });
}

int64_t PlansMade(ProcessGroup& group) {
  EXPECT_THAT(group.Barrier(), IsOk());
  const int64_t plans = KeptPlans::Get().plans_made();
  EXPECT_THAT(group.Barrier(), IsOk());
  return plans;
}

TEST_F(StateCheckpointTest, ASteadySaveCostsOneSmallCollectiveMore) {
  RunLocalRanks(4, [&](ProcessGroup& group) {
    StateDict alike = StateOf({{"weight", FloatsOf({1, 2})}, {"step", 1}});
    StateDict stage = StageOf(group, 1);
    // Ranks that are alike need not describe their states.
    ASSERT_THAT(CountedSave(path_, alike, group, 4), IsOk());
    ASSERT_THAT(CountedSave(path_, stage, group, 4 + 3), IsOk());
    const int64_t plans = PlansMade(group);
    for (int64_t step = 2; step < 2000; step *= 3) {
      ASSERT_THAT(alike.Set("step", step), IsOk());
      ASSERT_THAT(stage.Set("step", step), IsOk());
      ASSERT_THAT(CountedSave(path_, alike, group, 4), IsOk());
      ASSERT_THAT(CountedSave(path_, stage, group, 4), IsOk());
    }
    EXPECT_EQ(PlansMade(group), plans);
    StateDict loaded = StageOf(group, 0);
    ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
    EXPECT_EQ(loaded.Difference(stage), "");
  });
}

TEST_F(StateCheckpointTest, ThousandsOfScalarsAreOnePlan) {
  constexpr int kScalars = 5000;
  RunLocalRanks(3, [&](ProcessGroup& group) {
    StateDict state;
    for (int i = 0; i < kScalars; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(Tensor scalar, Tensor::Scalar<float>(i));
      ASSERT_THAT(state.Set(absl::StrCat("exp.", i, ".step"), scalar), IsOk());
    }
    ASSERT_THAT(CountedSave(path_, state, group, 4), IsOk());
    const int64_t plans = PlansMade(group);
    ASSERT_THAT(CountedSave(path_, state, group, 4), IsOk());
    EXPECT_EQ(PlansMade(group), plans);
    StateDict loaded;
    for (int i = 0; i < kScalars; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(Tensor scalar, Tensor::Scalar<float>(-1));
      ASSERT_THAT(loaded.Set(absl::StrCat("exp.", i, ".step"), scalar), IsOk());
    }
    ASSERT_THAT(LoadCheckpointInto(path_, loaded), IsOk());
    EXPECT_TRUE(loaded.BitwiseEqual(state));
  });
}

TEST_F(StateCheckpointTest, AMapOfTensorsAndAStateReadOneAnother) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    const auto all = *DefaultGroup();
    ASSERT_THAT(SaveCheckpoint(path_, StateOf({{"w", Rows(all, 4, 2)},
                                               {"bias", FloatsOf({5})},
                                               {"step", 1}})),
                IsOk());
    ShardedTensor w = Rows(all, 4, 0);
    LoadReport report;
    ASSERT_THAT(LoadCheckpointInto(
                    path_, std::map<std::string, ShardedTensor*>{{"w", &w}},
                    nullptr, {.report = &report}),
                IsOk());
    EXPECT_THAT(Whole(w), ElementsAre(0, 2, 4, 6));
    EXPECT_THAT(report.unexpected, ElementsAre("bias"));

    ASSERT_THAT(SaveCheckpoint(path_,
                               std::map<std::string, ShardedTensor>{
                                   {"w", Rows(all, 4, 3)}}),
                IsOk());
    StateDict state = StateOf({{"w", FloatsOf({0, 0, 0, 0})}});
    ASSERT_THAT(LoadCheckpointInto(path_, state), IsOk());
    EXPECT_THAT(Floats(state, "w"), ElementsAre(0, 3, 6, 9));
    ASSERT_THAT(state.Set("step", 9), IsOk());
    EXPECT_THAT(LoadCheckpointInto(path_, state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no value \"step\": it was saved from a map "
                                   "of tensors")));
    ASSERT_THAT(LoadCheckpointInto(path_, state, nullptr,
                                   {.strict = false, .report = &report}),
                IsOk());
    EXPECT_THAT(report.missing, ElementsAre("step"));
    EXPECT_EQ(*state.Get<int64_t>("step"), 9);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto reader,
                               CheckpointReader::Open(path_));
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict none, reader.ReadState());
    EXPECT_TRUE(none.empty());
  });
}

TEST_F(StateCheckpointTest, APartialLoadReportsValues) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    ASSERT_THAT(SaveCheckpoint(path_,
                               StateOf({{"old.w", FloatsOf({1})},
                                        {"old.lr", 0.5},
                                        {"old.beta", 0.9},
                                        {"kind", 1},
                                        {"rng", group.rank()}}),
                               nullptr, {.per_rank = {"rng"}}),
                IsOk());
  });
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const auto make = [] {
      return StateOf({{"new.w", FloatsOf({0})},
                      {"new.lr", 0.0},
                      {"new.gamma", 7},
                      {"kind", FloatsOf({3})},
                      {"rng", -1}});
    };
    StateDict state = make();
    LoadReport report;
    ASSERT_THAT(
        LoadCheckpointInto(
            path_, state, nullptr,
            {.strict = false, .rename = {{"new.", "old."}}, .report = &report}),
        IsOk());
    EXPECT_THAT(Floats(state, "new.w"), ElementsAre(1));
    EXPECT_EQ(*state.Get<double>("new.lr"), 0.5);
    EXPECT_EQ(*state.Get<int64_t>("new.gamma"), 7);
    EXPECT_EQ(*state.Get<int64_t>("rng"), group.rank() < 2 ? group.rank() : -1);
    // Of rank 2, too.
    EXPECT_THAT(report.missing, ElementsAre("new.gamma", "rng"));
    EXPECT_THAT(report.unexpected, ElementsAre("old.beta"));
    ASSERT_EQ(report.mismatched.size(), 1);
    EXPECT_EQ(report.mismatched[0].name, "kind");
    EXPECT_THAT(report.mismatched[0].reason, HasSubstr("as integer 1"));
    // Strict: the first error of a rank, on all, and nothing has changed.
    state = StateOf({{"kind", 0}, {"rng", -1}});
    EXPECT_THAT(
        LoadCheckpointInto(path_, state),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("rank 2"), HasSubstr("no value \"rng\": 2 "
                                                      "ranks saved it"))));
    EXPECT_EQ(*state.Get<int64_t>("kind"), 0);
    state = StateOf({{"old.w", 1}});
    EXPECT_THAT(LoadCheckpointInto(path_, state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the checkpoint has \"old.w\" as a tensor, "
                                   "but the destination \"old.w\" is integer "
                                   "1")));
    StateDict none;
    std::filesystem::path nowhere = path_ + "_nowhere";
    EXPECT_THAT(LoadCheckpointInto(nowhere, none),
                StatusIs(absl::StatusCode::kNotFound,
                         HasSubstr(absl::StrCat("load \"", nowhere.string()))));
  });
}

TEST_F(StateCheckpointTest, AStateIsOfOneSave) {
  const std::string other = path_ + "_other";
  // The checkpoint of `other` takes the place of the one at `path_`, at each
  // opening of a file of a load.
  for (int skip = 0; skip < 8; ++skip) {
    SCOPED_TRACE(skip);
    for (const std::string& path : {path_, other}) {
      std::filesystem::remove_all(path);
      const float number = path == other ? 2 : 1;
      RunLocalRanks(2, [&](ProcessGroup&) {
        ASSERT_THAT(
            SaveCheckpoint(path,
                           StateOf({{"w", FloatsOf({number})},
                                    {"step", static_cast<int64_t>(number)}})),
            IsOk());
      });
    }
    const CallAt replace("file/open_for_read",
                         [&] {
                           const std::string aside = path_ + "_aside";
                           std::filesystem::remove_all(aside);
                           std::filesystem::rename(path_, aside);
                           std::filesystem::rename(other, path_);
                         },
                         {.nth = 1 + skip, .optional = true});
    RunLocalRanks(2, [&](ProcessGroup&) {
      StateDict state = StateOf({{"w", FloatsOf({0})}, {"step", 0}});
      ASSERT_THAT(LoadCheckpointInto(path_, state), IsOk());
      const int64_t step = *state.Get<int64_t>("step");
      EXPECT_THAT(step, ::testing::AnyOf(1, 2));
      EXPECT_THAT(Floats(state, "w"), ElementsAre(static_cast<float>(step)));
    });
  }
}

TEST_F(StateCheckpointTest, ARankThatDoesNotFindTheCheckpointDoesNotStartAnew) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    ASSERT_THAT(SaveCheckpoint(path_, StateOf({{"step", 1}})), IsOk());
    StateDict state;
    const std::string path = group.rank() == 0 ? path_ : path_ + "_none";
    EXPECT_THAT(LoadCheckpointInto(path, state),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("another rank finds it")));
  });
}

// Every destination fits this rule, those of ranks too.
TEST_F(StateCheckpointTest, ARuleForAllNamesIsForValuesAndRanksToo) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<float>(group.rank());
    ASSERT_THAT(
        SaveCheckpoint(path_,
                       StateOf({{"module.w", FloatsOf({7})},
                                {"module.step", 3},
                                {"module.rng", FloatsOf({rank})},
                                {"module.seed", group.rank()}}),
                       nullptr, {.per_rank = {"module.rng", "module.seed"}}),
        IsOk());
    StateDict state = StateOf({{"w", FloatsOf({0})},
                               {"step", 0},
                               {"rng", FloatsOf({-1})},
                               {"seed", -1}});
    ASSERT_THAT(LoadCheckpointInto(path_, state, nullptr,
                                   {.rename = {{"", "module."}}}),
                IsOk());
    EXPECT_THAT(Floats(state, "w"), ElementsAre(7));
    EXPECT_THAT(Floats(state, "rng"), ElementsAre(rank));
    EXPECT_EQ(*state.Get<int64_t>("step"), 3);
    EXPECT_EQ(*state.Get<int64_t>("seed"), group.rank());
  });
}

TEST_F(StateCheckpointTest, AReaderHasTheTreesWithoutElements) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    ASSERT_THAT(
        SaveCheckpoint(path_,
                       StateOf({{"model.w", Rows(*DefaultGroup(), 4, 1)},
                                {"step", 50},
                                {"rng.seed", group.rank() + 10},
                                {"rng.state", FloatsOf({1, 2})}}),
                       nullptr, {.per_rank = {"rng"}}),
        IsOk());
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path_));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict shared, reader.ReadState());
  EXPECT_EQ(shared.ToString(),
            "model.w: Tensor(float32, [4], meta)\nstep: 50\n");
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict own, reader.ReadStateOf(1));
  EXPECT_EQ(own.ToString(),
            "rng.seed: 11\nrng.state: Tensor(float32, [2], meta)\n");
  EXPECT_THAT(reader.ReadStateOf(2),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("rank 2")));
}

TEST_F(StateCheckpointTest, ADamagedBlobIsNamed) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    ASSERT_THAT(SaveCheckpoint(path_, StateOf({{"text", "a long sentinel"}})),
                IsOk());
  });
  for (const auto& file : std::filesystem::directory_iterator(path_)) {
    const std::string name = file.path();
    auto bytes = ReadFile(FileSystem::Posix(), name, 1 << 20);
    ASSERT_THAT(bytes, IsOk());
    const size_t at = bytes->find("sentinel");
    if (at == std::string::npos) continue;
    (*bytes)[at] ^= 1;
    ASSERT_THAT(WriteFileAtomically(
                    FileSystem::Posix(), name,
                    absl::MakeConstSpan(
                        reinterpret_cast<const std::byte*>(bytes->data()),
                        bytes->size())),
                IsOk());
  }
  RunLocalRanks(2, [&](ProcessGroup&) {
    StateDict state = StateOf({{"text", ""}});
    EXPECT_THAT(
        LoadCheckpointInto(path_, state),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"sherd.state\"")));
    EXPECT_EQ(*state.Get<std::string>("text"), "");
  });
}

}  // namespace
}  // namespace sherd
