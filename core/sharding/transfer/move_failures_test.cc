#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_transfer.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

// One rank of three passes a wrong argument, has no memory, does not call or
// dies while a sharded tensor moves: one clear error on every rank, and the
// source is unchanged.

namespace sherd {
namespace {

using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FailAt;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::KillRankAt;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::SlowRankAt;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kFailedRank = 1;

class MoveFailuresTest : public sherd::testing::DistributedTest {
 protected:
  int world_size() const override { return 3; }
  bool errs() const { return rank() == kFailedRank; }

  // A vendor's library that ends all ranks with the first leaves nothing to
  // look at.
  static bool RanksDieTogether() {
    return GetKnobOr(Knob::kTestBackend, "") == "mpi";
  }

  ShardingSpecPtr Chunks(int dim) const {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(3)).value();
  }

  ShardedTensor Source(std::shared_ptr<ProcessGroup> in = nullptr) const {
    const ShardedTensor tensor =
        ShardedTensor::Empty(Chunks(0), {64, 60}, {.group = std::move(in)})
            .value();
    FillPattern(tensor);
    return tensor;
  }

  // The source is as before the call, and so is what else it could have become.
  static void ExpectUnchanged(const ShardedTensor& now,
                              const ShardedTensor& before) {
    EXPECT_EQ(now.metadata(), before.metadata());
    EXPECT_EQ(now.spec(), before.spec());
    ASSERT_EQ(now.local_shards().size(), before.local_shards().size());
    EXPECT_EQ(now.local_shards()[0].tensor.data(),
              before.local_shards()[0].tensor.data());
    EXPECT_TRUE(HasPattern(now));
  }

  // Every move of `tensor` that allocates memory.
  using Move =
      std::function<absl::Status(ShardedTensor&, const ReshardOptions&)>;
  struct NamedMove {
    std::string name;
    Move run;
  };
  std::vector<NamedMove> Moves() {
    return {
        {"reshard",
         [this](ShardedTensor& tensor, const ReshardOptions& options) {
           return tensor.Reshard(Chunks(1), options);
         }},
        {"gather",
         [](ShardedTensor& tensor, const ReshardOptions& options) {
           return tensor.Gather(kFailedRank, Tensor(), options).status();
         }},
        {"all_gather",
         [](ShardedTensor& tensor, const ReshardOptions& options) {
           return tensor.AllGather(Tensor(), options).status();
         }},
        {"shard",
         [this](ShardedTensor& tensor, const ReshardOptions& options) {
           return ShardTensor(PatternTensor({9, 9}, kInt32), Chunks(1), 0,
                              tensor.group(), options)
               .status();
         }},
        {"clone",
         [](ShardedTensor& tensor, const ReshardOptions&) {
           return tensor.Clone().status();
         }},
        {"transfer",
         [this](ShardedTensor& tensor, const ReshardOptions& options) {
           return TransferBetweenGroups(*tensor.group(), tensor, tensor.group(),
                                        Chunks(1), options)
               .status();
         }},
    };
  }
};

// A rank without memory

SHERD_DIST_TEST_F(MoveFailuresTest, ARankOutOfMemoryIsTheSameErrorOnAll) {
  for (const NamedMove& move : Moves()) {
    for (const bool direct : {true, false}) {
      SCOPED_TRACE(absl::StrCat(move.name, direct ? "" : " by messages"));
      ShardedTensor tensor = Source();
      const ShardedTensor before = tensor;
      absl::Status status;
      {
        // The first is that of the tensor to cut.
        FailAllocationAt fault({.nth = move.name == "shard" ? 2 : 1,
                                .rank = kFailedRank,
                                .subject = "*"});
        status = move.run(tensor, {.direct = direct});
      }
      EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kResourceExhausted,
                                         absl::StrCat("rank ", kFailedRank)),
                                HasErrorRank(kFailedRank)));
      ExpectUnchanged(tensor, before);
      // The group is usable.
      EXPECT_THAT(move.run(tensor, {.direct = direct}), IsOk());
      EXPECT_TRUE(HasPattern(tensor));
    }
  }
}

// Other arguments on one rank

SHERD_DIST_TEST_F(MoveFailuresTest,
                  OtherArgumentsOnOneRankAreTheSameErrorOnAll) {
  const Tensor whole = PatternTensor({64, 60}, kFloat32);
  const std::vector<NamedMove> moves = {
      {"another spec",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Reshard(Chunks(errs() ? 0 : 1));
       }},
      {"a spec that does not fit",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Reshard(Chunks(errs() ? 2 : 1));
       }},
      {"no spec",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Reshard(errs() ? nullptr : Chunks(1));
       }},
      {"other staging",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Reshard(Chunks(1),
                               {.max_staging_bytes = errs() ? 4096 : 8192});
       }},
      {"another way",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Reshard(Chunks(1), {.direct = !errs()});
       }},
      {"another destination",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Gather(errs() ? 0 : 2).status();
       }},
      {"a destination that is not there",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor.Gather(errs() ? 3 : 2).status();
       }},
      {"a result of another size",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return tensor
             .AllGather(errs() ? Tensor::Zeros({64, 61}).value() : Tensor())
             .status();
       }},
      {"another source",
       [this, whole](ShardedTensor&, const ReshardOptions&) {
         return ShardTensor(whole, Chunks(0), errs() ? 0 : 2).status();
       }},
      {"another spec to cut by",
       [this, whole](ShardedTensor&, const ReshardOptions&) {
         return ShardTensor(whole, Chunks(errs() ? 1 : 0)).status();
       }},
      {"a destination of another dtype",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         ShardedTensor into =
             ShardedTensor::Zeros(Chunks(1), {64, 60},
                                  {.dtype = errs() ? kInt32 : kFloat32})
                 .value();
         return tensor.ReshardInto(into);
       }},
      {"another tensor to compare with",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         const ShardedTensor other =
             ShardedTensor::Zeros(Chunks(0), {64, errs() ? 61 : 60}).value();
         return Equal(errs() ? other : tensor, other).status();
       }},
      {"another tensor to move",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         ShardedTensor other =
             ShardedTensor::Zeros(Chunks(0), {64, 61}).value();
         return errs() ? other.Reshard(Chunks(1)) : tensor.Reshard(Chunks(1));
       }},
      {"no tensor",
       [this](ShardedTensor& tensor, const ReshardOptions&) {
         return TransferBetweenGroups(group(),
                                      errs() ? ShardedTensor() : tensor,
                                      shared_group(), Chunks(1))
             .status();
       }},
  };
  for (const NamedMove& move : moves) {
    SCOPED_TRACE(move.name);
    ShardedTensor tensor = Source();
    const ShardedTensor before = tensor;
    const absl::Status status = move.run(tensor, {});
    EXPECT_THAT(status,
                AllOf(StatusIs(kInvalid, absl::StrCat("rank ", kFailedRank)),
                      HasErrorRank(kFailedRank)));
    ExpectUnchanged(tensor, before);
    EXPECT_THAT(tensor.Reshard(Chunks(1)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  }
}

// A rank that does not call

SHERD_DIST_TEST_F(MoveFailuresTest, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  for (const NamedMove& move : Moves()) {
    if (move.name == "clone" || move.name == "all_gather") continue;
    SCOPED_TRACE(move.name);
    // The world stays usable.
    SHERD_ASSERT_OK_AND_ASSIGN(const auto mine, group().NewGroup({0, 1, 2}));
    ShardedTensor tensor = Source(mine);
    const ShardedTensor before = tensor;
    ASSERT_THAT(mine->Barrier(), IsOk());
    if (!errs()) {
      const absl::Status status =
          move.run(tensor, {.timeout = absl::Seconds(1)});
      EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kDeadlineExceeded,
                                         absl::StrCat("rank ", kFailedRank)),
                                HasErrorRank(kFailedRank)));
      EXPECT_THAT(mine->Barrier(),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
    }
    // It waits here, in the world group, and gets the error in its next call.
    ASSERT_THAT(group().Barrier(), IsOk());
    if (errs()) {
      EXPECT_FALSE(move.run(tensor, {}).ok());
    }
    ExpectUnchanged(tensor, before);
  }
}

// A rank that dies

struct Death {
  std::string name;
  absl::string_view point;
  int64_t nth;
  bool direct;
};

class DyingMemberTest : public MoveFailuresTest,
                        public ::testing::WithParamInterface<Death> {
 protected:
  // Whether ranks reach each other's memory.
  bool MovesDirectly() { return group().peer_memory() != nullptr; }
};

SHERD_DIST_TEST_P(DyingMemberTest, IsNamedAndTheSourceStays) {
  const Death& death = GetParam();
  if (RanksDieTogether()) {
    GTEST_SKIP() << "mpirun ends all ranks with the first";
  }
  if (death.point == "sharding/before_copy" && !MovesDirectly()) {
    GTEST_SKIP() << "ranks do not reach each other's memory";
  }
  ShardedTensor tensor = Source();
  const ShardedTensor before = tensor;
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  ExpectRankDies(kFailedRank, SIGKILL);
  KillRankAt fault(death.point, kFailedRank, {.nth = death.nth});
  const absl::Status status = tensor.Reshard(
      Chunks(1), {.max_staging_bytes = 4096, .direct = death.direct});
  EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kUnavailable,
                                     absl::StrCat("rank ", kFailedRank)),
                            HasErrorRank(kFailedRank)));
  ExpectUnchanged(tensor, before);
  EXPECT_THAT(group().Barrier(),
              AllOf(StatusIs(absl::StatusCode::kFailedPrecondition),
                    HasErrorRank(kFailedRank)));
  // The survivors continue with their shards.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rest, group().NewGroup({0, 2}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor next,
      ShardedTensor::Empty(
          ChunkShardingSpec::Create(0, {"rank:0", "rank:2"}).value(), {5, 4},
          {.group = rest}));
  FillPattern(next);
  ASSERT_THAT(
      next.Reshard(ChunkShardingSpec::Create(1, {"rank:2", "rank:0"}).value()),
      IsOk());
  EXPECT_TRUE(HasPattern(next));
}

INSTANTIATE_TEST_SUITE_P(
    Points, DyingMemberTest,
    ::testing::Values(
        Death{"BeforeTheAgreement", "comm/before_post", 1, true},
        Death{"InTheAgreement", "comm/after_post", 1, true},
        Death{"BeforeTheFirstRound", "comm/before_post", 2, false},
        Death{"InALaterRound", "comm/after_post", 3, false},
        Death{"BeforeItCopies", "sharding/before_copy", 1, true},
        Death{"BeforeTheEndOfADirectMove", "comm/before_post", 2, true}),
    [](const ::testing::TestParamInfo<Death>& info) {
      return info.param.name;
    });

// Direct moves that fail midway on one rank

SHERD_DIST_TEST_F(MoveFailuresTest, AFailedCopyOnOneRankIsTheSameErrorOnAll) {
  if (group().peer_memory() == nullptr) {
    GTEST_SKIP() << "ranks do not reach each other's memory";
  }
  ShardedTensor tensor = Source();
  const ShardedTensor before = tensor;
  absl::Status status;
  {
    FailAt fault("sharding/before_copy", absl::InternalError("planted"),
                 {.rank = kFailedRank});
    status = tensor.Reshard(Chunks(1));
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("planted"));
  EXPECT_THAT(status, HasErrorRank(kFailedRank));
  ExpectUnchanged(tensor, before);
}

// A rank may change its source, and read its result, as soon as the call has
// returned there: however slow another one is.
SHERD_DIST_TEST_F(MoveFailuresTest, ASlowRankReadsTheElementsOfBefore) {
  const bool is_direct = group().peer_memory() != nullptr;
  const ShardingSpecPtr on_two =
      ChunkShardingSpec::Create(0, {"rank:2", "rank:2", "rank:1"}).value();
  // Pulled by many, pushed by many, and all ranks with all.
  const std::pair<ShardingSpecPtr, ShardingSpecPtr> moves[] = {
      {Chunks(0), Chunks(1)}, {Chunks(0), on_two}, {on_two, Chunks(1)}};
  for (const auto& [from, to] : moves) {
    for (int slow = 0; slow < 3; ++slow) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor source,
                                 ShardedTensor::Empty(from, {64, 60}));
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor into,
                                 ShardedTensor::Zeros(to, {64, 60}));
      FillPattern(source);
      ASSERT_THAT(group().Barrier(), IsOk());
      {
        SlowRankAt fault(
            is_direct ? "sharding/before_copy" : "comm/after_completion", slow,
            absl::Milliseconds(30));
        ASSERT_THAT(source.ReshardInto(into), IsOk());
        EXPECT_TRUE(HasPattern(into)) << "slow rank " << slow;
        ASSERT_THAT(source.Fill(-1), IsOk());
      }
      ASSERT_THAT(group().Barrier(), IsOk());
      EXPECT_TRUE(HasPattern(into)) << "slow rank " << slow;
    }
  }
}

}  // namespace
}  // namespace sherd
