#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RandomSize;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::WithoutComms;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ShardedTensorProcessTest : public sherd::testing::DistributedTest {
 protected:
  ShardingSpecPtr Chunks(int dim) {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(world_size()))
        .value();
  }
};

SHERD_DIST_TEST_F(ShardedTensorProcessTest, MayBeTheLastThatHoldsItsGroup) {
  const std::shared_ptr<ProcessGroup> world = DefaultGroup().value();
  std::vector<int> ranks(world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  SHERD_ASSERT_OK_AND_ASSIGN(std::shared_ptr<ProcessGroup> group,
                             world->NewGroup(ranks));
  const std::weak_ptr<ProcessGroup> alive = group;
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor made,
      ShardedTensor::Ones(Chunks(0), {12, 5}, {.group = group}));
  auto tensor = std::make_shared<const ShardedTensor>(std::move(made));
  std::vector<float> values = {1, 2, 3};
  const MutableBytes bytes(reinterpret_cast<std::byte*>(values.data()),
                           values.size() * sizeof(float));
  // Rank 0 has let go of all else when the others call.
  if (rank() != 0) {
    ASSERT_THAT(world->Barrier(), IsOk());
  }
  Work work = group->AllReduceAsync(bytes, bytes, kFloat32, ReduceOp::kSum)
                  .Then([tensor = std::exchange(tensor, nullptr)](
                            absl::Status status) { return status; });
  group = nullptr;
  if (rank() == 0) {
    ASSERT_THAT(world->Barrier(), IsOk());
  }
  EXPECT_THAT(work.Wait(), IsOk());
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(values[2], 3.0f * static_cast<float>(world_size()));
}

SHERD_DIST_TEST_F(ShardedTensorProcessTest, AnyLayoutBecomesAnyOther) {
  // The same cases on all ranks and in every run: the property test with
  // threads draws others each time.
  std::mt19937_64 random(20240613);
  for (int i = 0; i < 25; ++i) {
    const Dims size = RandomSize(4, 900, random);
    const DType dtype = static_cast<DType>(random() % kNumDTypes);
    const ShardingSpecPtr first = RandomSpec(size, world_size(), random);
    const ShardingSpecPtr second = RandomSpec(size, world_size(), random);
    const int root =
        static_cast<int>(random() % static_cast<uint64_t>(world_size()));
    ReshardOptions options;
    if (random() % 2 == 0) {
      options.max_staging_bytes = static_cast<int64_t>(1000 + random() % 1000);
    }
    SCOPED_TRACE(absl::StrCat(Name(dtype), FormatDims(size), " ",
                              first->ToString(), " ", second->ToString()));
    Tensor whole;
    if (rank() == root) whole = PatternTensor(size, dtype);
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardTensor(whole, first, root, nullptr, options));
    EXPECT_TRUE(HasPattern(tensor));
    ReshardStats stats;
    options.stats = &stats;
    ASSERT_THAT(tensor.Reshard(second, options), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(root));
    if (rank() == root) {
      EXPECT_THAT(gathered, TensorBitwiseEq(whole));
    }
  }
}

SHERD_DIST_TEST_F(ShardedTensorProcessTest, RowsToColumnsInManyRounds) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor rows,
      ShardedTensor::Empty(Chunks(0), {1024, 3001}, {.dtype = kInt32}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor columns,
      ShardedTensor::Empty(Chunks(1), {1024, 3001}, {.dtype = kInt32}));
  for (uint64_t salt = 0; salt < 3; ++salt) {
    FillPattern(rows, salt);
    ReshardStats stats;
    ASSERT_THAT(rows.ReshardInto(
                    columns, {.max_staging_bytes = 1 << 20, .stats = &stats}),
                IsOk());
    EXPECT_GT(stats.rounds, 5);
    EXPECT_LE(stats.staging_bytes, 1 << 20);
    EXPECT_TRUE(HasPattern(columns, salt));
  }
}

SHERD_DIST_TEST_F(ShardedTensorProcessTest, AnErrorOnOneRankIsTheSameOnAll) {
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(0), {9, 4}));
  FillPattern(tensor);
  const int failing_rank = world_size() - 1;
  const absl::Status status =
      tensor.Reshard(rank() == failing_rank ? Chunks(5) : Chunks(1));
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("reshard: rank ", failing_rank,
                                              ": Invalid sharding dim"))));
  EXPECT_EQ(ErrorRank(status), failing_rank);
  EXPECT_FALSE(IsRankFailure(status)) << "it was an argument of its own";
  ASSERT_THAT(tensor.Reshard(Chunks(1)), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

// Ranks that die

// Ends this process when a collective of kind `op` is posted for the
// `countdown`-th time.
class LethalCommunicator final : public Communicator {
 public:
  LethalCommunicator(std::unique_ptr<Communicator> real, CollectiveOp op,
                     int countdown)
      : real_(std::move(real)), op_(op), countdown_(countdown) {}

  absl::StatusOr<bool> Post(const Collective& desc,
                            CollectiveRequest& request) override {
    if (desc.op == op_ && --countdown_ == 0) raise(SIGKILL);
    return real_->Post(desc, request);
  }
  absl::StatusOr<bool> Test(CollectiveRequest& request) override {
    return real_->Test(request);
  }
  void Abort() override { real_->Abort(); }

 private:
  const std::unique_ptr<Communicator> real_;
  const CollectiveOp op_;
  int countdown_;
};

// The target's backend, with one rank that dies.
class LethalBackend final : public Backend {
 public:
  LethalBackend(const Backend& real, int victim, CollectiveOp op, int countdown)
      : real_(real),
        info_(real.info()),
        victim_(victim),
        op_(op),
        countdown_(countdown) {
    info_.name = "lethal";
  }

  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return real_.Probe(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    auto real = real_.CreateCommunicator(options);
    if (!real.ok() || options.rank != victim_) return real;
    return std::make_unique<LethalCommunicator>(*std::move(real), op_,
                                                countdown_);
  }

 private:
  const Backend& real_;
  BackendInfo info_;
  const int victim_;
  const CollectiveOp op_;
  const int countdown_;
};

class DyingRankTest : public ShardedTensorProcessTest {
 protected:
  int victim() const { return world_size() - 1; }

  // A group in which the victim dies at a certain call.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> LethalGroup(CollectiveOp op,
                                                            int countdown) {
    ExpectRankDies(victim(), SIGKILL);
    BackendRegistry& registry = BackendRegistry::Global();
    const absl::StatusOr<const Backend*> real = registry.Find("gloo");
    if (!real.ok()) return real.status();
    const absl::Status added = registry.Register(
        std::make_unique<LethalBackend>(**real, victim(), op, countdown));
    if (!added.ok()) return added;
    absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
        Init({.backend = "lethal", .timeout = absl::Seconds(30)});
    if (!group.ok()) return group;
    // No rank dies while others are still connecting.
    const absl::Status all_here = WaitForRanks("ready");
    if (!all_here.ok()) return all_here;
    return group;
  }

  // `operation`: the program's call, whichever inner call found the failure.
  void ExpectLost(absl::string_view operation, const absl::Status& status,
                  ProcessGroup& group) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr(absl::StrCat("rank ", victim()))));
    EXPECT_THAT(std::string(status.message()),
                StartsWith(absl::StrCat(operation, ": ")));
    const ErrorInfo info = GetErrorInfo(status);
    EXPECT_EQ(info.operation, operation);
    EXPECT_EQ(info.group, group.name());
    EXPECT_EQ(info.failed_rank, victim()) << status;
    const absl::Status later = group.Barrier();
    EXPECT_THAT(later, StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(FailedRank(later), victim()) << later;
  }

  // Rows to columns in several rounds; all ranks send to all.
  void LoseARankInReshard(CollectiveOp op, int countdown) {
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                               LethalGroup(op, countdown));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0), {64, 64}));
    FillPattern(tensor);
    ExpectLost("reshard",
               tensor.Reshard(Chunks(1), {.max_staging_bytes = 4096}), *group);
    EXPECT_EQ(*tensor.spec(), *Chunks(0));
    EXPECT_TRUE(HasPattern(tensor));
  }
};

SHERD_DIST_TEST_F(DyingRankTest, InTheAgreementOfAReshard, WithoutComms{}) {
  LoseARankInReshard(CollectiveOp::kAllGather, 1);
}

SHERD_DIST_TEST_F(DyingRankTest, InTheFirstRoundOfAReshard, WithoutComms{}) {
  LoseARankInReshard(CollectiveOp::kAllToAllV, 1);
}

SHERD_DIST_TEST_F(DyingRankTest, InALaterRoundOfAReshard, WithoutComms{}) {
  LoseARankInReshard(CollectiveOp::kAllToAllV, 3);
}

SHERD_DIST_TEST_F(DyingRankTest, WhileATensorIsScattered, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                             LethalGroup(CollectiveOp::kAllToAllV, 2));
  // The victim is the source, so all wait for it.
  Tensor whole;
  if (rank() == victim()) whole = PatternTensor({64, 64}, kFloat32);
  ExpectLost("shard_tensor",
             ShardTensor(whole, Chunks(1), victim(), group,
                         {.max_staging_bytes = 4096})
                 .status(),
             *group);
}

SHERD_DIST_TEST_F(DyingRankTest, WhileTheSourceAndSizeAreAgreedOn,
                  WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                             LethalGroup(CollectiveOp::kAllGather, 1));
  const Tensor whole = PatternTensor({8, 8}, kFloat32);
  ExpectLost("shard_tensor", ShardTensor(whole, Chunks(1), 0, group).status(),
             *group);
}

SHERD_DIST_TEST_F(DyingRankTest, WhileATensorIsGathered, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                             LethalGroup(CollectiveOp::kAllToAllV, 2));
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(1), {64, 64}));
  FillPattern(tensor);
  const absl::Status status =
      tensor.Gather(0, Tensor(), {.max_staging_bytes = 4096}).status();
  // Only the destination waits for the victim; others find out later.
  if (rank() == 0) {
    ExpectLost("gather", status, *group);
  } else if (!status.ok()) {
    EXPECT_EQ(FailedRank(status), victim()) << status;
  }
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(DyingRankTest, WhileShardsArePutTogether, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                             LethalGroup(CollectiveOp::kAllToAllV, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Shard shard,
      Shard::FromTensorAndOffsets(PatternTensor({2}, kFloat32), {2 * rank()},
                                  rank()));
  ExpectLost(
      "from_local_shards",
      ShardedTensor::FromLocalShards({shard}, {2 * world_size()}).status(),
      *group);
}

}  // namespace
}  // namespace sherd
