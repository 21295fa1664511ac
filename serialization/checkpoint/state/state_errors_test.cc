// States that ranks cannot save together, and the errors that say why.

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/state/state_exchange.h"
#include "sherd/serialization/kits/state_fixture.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::FailAllocationAt;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StateErrorsTest : public StateFixture {
 protected:
  // What four ranks get that save these states.
  static void ExpectSaveError(const std::string& path,
                              const std::string& phrase, absl::StatusCode code,
                              absl::FunctionRef<StateDict(ProcessGroup&)> state,
                              const SaveOptions& options = {}) {
    SCOPED_TRACE(phrase);
    RunLocalRanks(4, [&](ProcessGroup& group) {
      const StateDict own = state(group);
      EXPECT_THAT(
          SaveCheckpoint(path, own, nullptr, options),
          StatusIs(code, AllOf(HasSubstr(absl::StrCat("save \"", path, "\"")),
                               HasSubstr(phrase))));
      // The group is as before.
      EXPECT_THAT(SaveCheckpoint(path, StateOf({{"step", 1}})), IsOk());
    });
  }
};

TEST_F(StateErrorsTest, ARankThatStaysAwayFromTheExchangeIsNamed) {
  absl::Notification gave_up;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return gave_up.WaitForNotification();
    // Not the group's timeout.
    const absl::Status status =
        GatherFromAll(group, {"save_checkpoint", "save"}, "own",
                      absl::Milliseconds(100))
            .status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(FailedRank(status), 1) << status;
    gave_up.Notify();
  });
}

TEST_F(StateErrorsTest, ValuesThatDifferAreNamed) {
  const auto expect = [&](const std::string& phrase, StateValue odd,
                          StateValue others) {
    ExpectSaveError(path_, phrase, absl::StatusCode::kInvalidArgument,
                    [&](ProcessGroup& group) {
                      return StateOf({{"a", group.rank() == 2 ? odd : others}});
                    });
  };
  expect("\"a\" is integer 3 on rank 0, but integer 4 on rank 2", 4, 3);
  expect("\"a\" is integer 1 on rank 0, but float 1", 1.0, 1);
  expect("\"a[1]\" is integer 2 on rank 0, but integer 5 on rank 2",
         StateList{1, 5}, StateList{1, 2});
  expect("\"a\" is list of 2 on rank 0, but list of 1 on rank 2", StateList{1},
         StateList{1, 2});
  expect("\"a.b\" is string \"x\" on rank 0, but string \"y\" on rank 2",
         StateOf({{"b", "y"}}), StateOf({{"b", "x"}}));
  expect("\"a\" is integer 1 on rank 0, but map of 1 on rank 2",
         StateOf({{"b", 1}}), 1);
  expect("on rank 2", FloatsOf({1}), 1);
  // Ranks with different names: found with their first descriptions, and again
  // in a steady state.
  ExpectSaveError(path_,
                  "\"step\" is integer 7 on rank 0, but integer 8 on rank 3",
                  absl::StatusCode::kInvalidArgument, [](ProcessGroup& group) {
                    return StateOf({{absl::StrCat("own", group.rank()), 1},
                                    {"step", group.rank() == 3 ? 8 : 7}});
                  });
  RunLocalRanks(4, [&](ProcessGroup& group) {
    StateDict state = StageOf(group, 1);
    ASSERT_THAT(CountedSave(path_, state, group, 7), IsOk());
    ASSERT_THAT(CountedSave(path_, state, group, 4), IsOk());
    ASSERT_THAT(state.Set("step", group.rank() < 2 ? 5 : 6), IsOk());
    EXPECT_THAT(SaveCheckpoint(path_, state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("\"step\" is integer 5 on rank 0, but "
                                   "integer 6 on rank 2")));
  });
}

TEST_F(StateErrorsTest, TensorsThatDoNotFitAreNamed) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  ExpectSaveError(
      path_,
      "tensor \"w\" is a float32 tensor of [1] on rank 0, but a float32 "
      "tensor of [2] on rank 1",
      kBad, [](ProcessGroup& group) {
        return StateOf(
            {{"w", group.rank() == 1 ? FloatsOf({1, 2}) : FloatsOf({1})}});
      });
  ExpectSaveError(
      path_,
      "but a sharded float32 tensor of [4] over all ranks "
      "on rank 1",
      kBad, [](ProcessGroup& group) {
        return StateOf({{"w", group.rank() == 0
                                  ? StateValue(FloatsOf({1, 2, 3, 4}))
                                  : StateValue(Rows(*DefaultGroup(), 4, 1))}});
      });
  ExpectSaveError(path_, "rank 3, which is in that group, does not have it",
                  kBad, [](ProcessGroup& group) {
                    return group.rank() == 3
                               ? StateDict()
                               : StateOf({{"w", Rows(*DefaultGroup(), 4, 1)}});
                  });
  ExpectSaveError(
      path_, "rank 2, which is not in that group, has it, too", kBad,
      [](ProcessGroup& group) {
        const auto pair = group.NewGroup({0, 1});
        const bool has_it = group.rank() < 3;
        return has_it ? StateOf({{"w", Rows(*pair, 4, 1)}}) : StateDict();
      });
  // Of a pair whose tensors lie on all ranks.
  RunLocalRanks(4, [&](ProcessGroup& group) {
    const ShardedTensor all = Rows(*DefaultGroup(), 4, 1);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, group.NewGroup({0, 1}));
    if (!pair->is_member()) return;
    EXPECT_THAT(SaveCheckpoint(path_, StateOf({{"w", all}}), pair),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("tensor \"w\""),
                               HasSubstr("2 is not in the group"))));
  });
}

TEST_F(StateErrorsTest, BadNamesAreRefused) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  const auto expect = [&](const std::string& phrase, const std::string& key,
                          std::vector<std::string> per_rank = {}) {
    ExpectSaveError(path_, phrase, kBad,
                    [&](ProcessGroup&) {
                      StateDict state;
                      EXPECT_THAT(state.Set(key, FloatsOf({1})), IsOk());
                      return state;
                    },
                    {.per_rank = std::move(per_rank)});
  };
  expect("names that begin with \"sherd.\" are those", "sherd.state");
  expect("names that begin with \"sherd.\" are those", "sherd.crc32c");
  expect("names that begin with \"sherd.\" are those", "sherd.rank:0.x");
  expect("not valid UTF-8", "\xff");
  expect("expected 1 to 32768", std::string(32769, 'x'));
  // With the rank's part of the name.
  expect("expected 1 to 32768", std::string(32768, 'x'),
         {std::string(32768, 'x')});
  expect("per_rank: \"a[0]\" is in a list", "a[0]", {"a[0]"});
  expect("per_rank: \"a.b\": expected a map at \"a\"", "a", {"a.b"});
  expect("\"a..b\"", "a", {"a..b"});
  ExpectSaveError(path_, "is sharded, but one of per_rank", kBad,
                  [](ProcessGroup&) {
                    return StateOf({{"w", Rows(*DefaultGroup(), 4, 1)}});
                  },
                  {.per_rank = {"w"}});
  ExpectSaveError(path_, "tensor \"w\" is not defined",
                  absl::StatusCode::kFailedPrecondition, [](ProcessGroup&) {
                    return StateOf({{"w", Tensor()}});
                  });
  ExpectSaveError(path_, "tensor \"w\" is not defined",
                  absl::StatusCode::kFailedPrecondition, [](ProcessGroup&) {
                    return StateOf({{"w", ShardedTensor()}});
                  });
}

// One that takes a value for its own, where another shares it, would load what
// the other has saved.
TEST_F(StateErrorsTest, RanksAgreeOnWhatIsPerRank) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const StateDict state = StateOf({{"rng", 1}, {"step", 2}});
    const auto save = [&](std::vector<std::string> per_rank) {
      return SaveCheckpoint(path_, state, nullptr,
                            {.per_rank = std::move(per_rank)});
    };
    EXPECT_THAT(
        save(group.rank() == 1 ? std::vector<std::string>{"rng"}
                               : std::vector<std::string>{}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("rank 1"), HasSubstr("per_rank \"rng\""))));
    EXPECT_THAT(
        save(group.rank() == 1 ? std::vector<std::string>{"step", "rng", "rng"}
                               : std::vector<std::string>{"rng", "step"}),
        IsOk());
  });
}

TEST_F(StateErrorsTest, ARankWithoutMemoryForItsValuesIsNamed) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const StateDict state =
        StateOf({{"text", std::string(5000, 'x')}, {"w", FloatsOf({1})}});
    ASSERT_THAT(SaveCheckpoint(path_, state), IsOk());
    const FailAllocationAt fault(
        {.rank = 0, .min_bytes = 5000, .optional = group.rank() != 0});
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(SaveCheckpoint(path_, state),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("rank 0"),
                               HasSubstr("for the values of the state"))));
    EXPECT_THAT(SaveCheckpoint(path_, state), IsOk());
  });
}

}  // namespace
}  // namespace sherd
