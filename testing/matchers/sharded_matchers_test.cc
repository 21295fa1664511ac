#include "sherd/testing/sharded_matchers.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/rank_matchers.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Matcher;
using ::testing::Not;
using ::testing::StartsWith;

// The text that a failed expectation prints after the value; "" if it holds.
std::string Explain(const Matcher<const ShardedTensor&>& matcher,
                    const ShardedTensor& actual) {
  ::testing::StringMatchResultListener listener;
  const bool matches = matcher.MatchAndExplain(actual, &listener);
  EXPECT_EQ(matches, listener.str().empty());
  return listener.str();
}

// Publishes, and can then report the rank of another worker.
class Impostor final : public RemoteAccess {
 public:
  Impostor(int rank, int size) : rank_(rank), names_(size, "worker") {}

  void set_rank(int rank) { rank_ = rank; }
  int rank() const override { return rank_; }
  const std::vector<std::string>& workers() const override { return names_; }
  bool is_running() const override { return true; }
  absl::Status Publish(Publication) override { return absl::OkStatus(); }
  absl::Status Withdraw(const PublicationId&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Fetch(int, const FetchRequest&) override {
    return absl::UnimplementedError("no shards");
  }
  absl::Status Shutdown(const ShutdownOptions&) override {
    return absl::OkStatus();
  }

 private:
  int rank_;
  const std::vector<std::string> names_;
};

class ShardedMatchersTest : public DistributedTest {
 protected:
  ShardingSpecPtr Chunks(int dim) const {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(world_size()))
        .value();
  }

  // Two rows of 4 columns on each rank.
  ShardedTensor Rows(double value, const ShardedTensorOptions& options = {}) {
    return ShardedTensor::Full(Chunks(0), {2 * world_size(), 4}, value, options)
        .value();
  }

  // "which on rank 1 has "
  std::string Here() const {
    return absl::StrCat("which on rank ", rank(), " has ");
  }

  // Sets an element of the first local shard.
  static void Set(const ShardedTensor& tensor, int64_t row, int64_t column,
                  double value) {
    ASSERT_THAT(tensor.local_shards()[0]
                    .tensor.Narrow({row, column}, {1, 1})
                    .value()
                    .Fill(value),
                IsOk());
  }
};

SHERD_DIST_TEST_F(ShardedMatchersTest, EqualTensorsMatch) {
  EXPECT_THAT(Rows(1.5), ShardedTensorEq(Rows(1.5)));
  EXPECT_THAT(Rows(1.5), ShardedTensorNear(Rows(1.500001)));
  EXPECT_THAT(Rows(1.5), OnAllRanks(group(), ShardedTensorEq(Rows(1.5))));
  EXPECT_THAT((std::vector{Rows(1), Rows(2)}),
              ElementsAre(ShardedTensorEq(Rows(1)), ShardedTensorEq(Rows(2))));
  EXPECT_THAT(ShardedTensor::Ones(Chunks(0), {2 * world_size(), 4}),
              IsOkAndHolds(ShardedTensorEq(Rows(1))));
  EXPECT_THAT(ShardedTensor(), ShardedTensorEq(ShardedTensor()));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, TheDifferentElementIsNamed) {
  const ShardedTensor actual = Rows(1);
  Set(actual, 1, 3, 2.5);
  EXPECT_EQ(
      Explain(ShardedTensorEq(Rows(1)), actual),
      absl::StrCat(Here(), "the local shard 0, ",
                   actual.local_shards()[0].metadata.ToString(),
                   ", which differs in 1 of 8 elements, at [1, 3], of the "
                   "whole [",
                   2 * rank() + 1,
                   ", 3]: 2.5, expected 1; largest difference 1.5"));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, ARankLooksAtItsOwnShards) {
  const ShardedTensor actual = Rows(1);
  if (rank() == 1) Set(actual, 0, 0, 9);
  if (rank() == 1) {
    EXPECT_THAT(actual, Not(ShardedTensorEq(Rows(1))));
  } else {
    EXPECT_THAT(actual, ShardedTensorEq(Rows(1)));
  }
}

SHERD_DIST_TEST_F(ShardedMatchersTest, ADifferenceOnOneRankIsReportedOnAll) {
  const ShardedTensor actual = Rows(1);
  if (rank() == 1) Set(actual, 0, 2, 9);
  const std::string text =
      Explain(OnAllRanks(group(), ShardedTensorEq(Rows(1))), actual);
  EXPECT_THAT(text, StartsWith(absl::StrCat("where 1 of ", world_size(),
                                            " ranks do not match\nrank 1: ")));
  EXPECT_THAT(text, HasSubstr("which on rank 1 has the local shard 0, "));
  EXPECT_THAT(text, EndsWith("at [0, 2], of the whole [2, 2]: 9, expected 1; "
                             "largest difference 8"));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, NearnessHasTheToleranceOfTheDtype) {
  EXPECT_THAT(Rows(1.00001), ShardedTensorNear(Rows(1)));
  EXPECT_THAT(Rows(1.00002), Not(ShardedTensorNear(Rows(1))));
  EXPECT_THAT(Rows(1.00002), ShardedTensorNear(Rows(1), {.rtol = 0.1}));
  EXPECT_THAT(Rows(1.00001, {.dtype = kFloat64}),
              Not(ShardedTensorNear(Rows(1, {.dtype = kFloat64}))));
  EXPECT_THAT(Explain(ShardedTensorNear(Rows(1), {.atol = 0.5}), Rows(3)),
              HasSubstr("differs in 8 of 8 elements, first at [0, 0], of"));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, PropertiesOfTheWholeAreNamed) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor larger,
      ShardedTensor::Ones(Chunks(0), {2 * world_size(), 5}));
  EXPECT_EQ(Explain(ShardedTensorEq(Rows(1)), larger),
            absl::StrCat(Here(), "the size [", 2 * world_size(),
                         ", 5], expected [", 2 * world_size(), ", 4]"));
  EXPECT_THAT(Explain(ShardedTensorEq(Rows(1)), Rows(1, {.dtype = kInt8})),
              AllOf(StartsWith(Here() + "TensorProperties(dtype=int8,"),
                    HasSubstr(", expected TensorProperties(dtype=float32,")));
  EXPECT_THAT(
      Explain(ShardedTensorEq(Rows(1)), Rows(1, {.requires_grad = true})),
      HasSubstr("requires_grad="));
  EXPECT_EQ(Explain(ShardedTensorEq(Rows(1)), ShardedTensor()),
            "which is not defined");
  EXPECT_EQ(Explain(ShardedTensorEq(ShardedTensor()), Rows(1)),
            "which is defined, expected one that is not");
}

SHERD_DIST_TEST_F(ShardedMatchersTest, TheSpecIsPartOfTheTensor) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor columns,
      ShardedTensor::Ones(Chunks(1), {2 * world_size(), 4}));
  EXPECT_EQ(Explain(ShardedTensorEq(Rows(1)), columns),
            absl::StrCat(Here(), "the sharding spec ", Chunks(1)->ToString(),
                         ", expected ", Chunks(0)->ToString()));
  // The same shards by another rule.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto listed, EnumerableShardingSpec::Create(
                                                    Rows(1).metadata().shards));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor same,
      ShardedTensor::Ones(listed, {2 * world_size(), 4}));
  EXPECT_THAT(Explain(ShardedTensorEq(Rows(1)), same),
              StartsWith(Here() + "the sharding spec EnumerableShardingSpec("));
}

// Equal to every other spec of its kind, but puts all elements on `rank`, in
// `parts` shards.
class LooseSpec final : public ShardingSpec {
 public:
  LooseSpec(int rank, int parts) : rank_(rank), parts_(parts) {}

  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    return ChunkShardingSpec::Create(
               0, std::vector<Placement>(
                      parts_, Placement(absl::StrCat("rank:", rank_))))
        .value()
        ->BuildMetadata(size, properties);
  }
  std::string ToString() const override { return "LooseSpec"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return true; }

 private:
  const int rank_;
  const int parts_;
};

SHERD_DIST_TEST_F(ShardedMatchersTest, MetadataIsComparedShardByShard) {
  const auto make = [](int rank, int parts) {
    return ShardedTensor::Ones(std::make_shared<LooseSpec>(rank, parts), {6})
        .value();
  };
  EXPECT_THAT(make(0, 3), ShardedTensorEq(make(0, 3)));
  EXPECT_EQ(Explain(ShardedTensorEq(make(0, 3)), make(0, 2)),
            Here() + "2 shards, expected 3");
  EXPECT_EQ(
      Explain(ShardedTensorEq(make(0, 2)), make(1, 2)),
      absl::StrCat(Here(), "the shard 0 of 2, ",
                   make(1, 2).metadata().shards[0].ToString(), ", expected ",
                   make(0, 2).metadata().shards[0].ToString()));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, GroupsAndTheirOrderMakeNoDifference) {
  // Placements are by global rank: every process has the same shards.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto reversed, group().Split(0, -rank()));
  EXPECT_THAT(Rows(1, {.group = reversed}), ShardedTensorEq(Rows(1)));
  EXPECT_THAT(reversed->Barrier(), IsOk());
}

SHERD_DIST_TEST_F(ShardedMatchersTest, LocalShardsAreTheSameOnes) {
  const ShardedTensorMetadata metadata = {
      .shards = {{{0}, {2}, "rank:0"}, {{2}, {2}, "rank:1"}}, .size = {4}};
  const auto with = [&](const std::vector<int>& shards) {
    std::vector<Shard> local;
    for (const int i : shards) {
      local.push_back({Tensor::Ones({2}).value(), metadata.shards[i]});
    }
    return ShardedTensor::WithoutGroup(std::move(local), metadata).value();
  };
  EXPECT_THAT(with({1}), ShardedTensorEq(with({1})));
  EXPECT_EQ(Explain(ShardedTensorEq(with({0, 1})), with({0})),
            "which on rank 0 has 1 local shards, expected 2");
  EXPECT_EQ(Explain(ShardedTensorEq(with({0})), with({1})),
            absl::StrCat("which on rank 0 has the local shard 0, ",
                         metadata.shards[1].ToString(), ", expected ",
                         metadata.shards[0].ToString()));
}

SHERD_DIST_TEST_F(ShardedMatchersTest, DescribesWhatItExpects) {
  const auto describe = [](const Matcher<const ShardedTensor&>& matcher) {
    std::ostringstream text;
    matcher.DescribeTo(&text);
    return text.str();
  };
  const ShardedTensor tensor = Rows(1);
  EXPECT_EQ(describe(ShardedTensorEq(tensor)),
            "is equal to " + tensor.ToString());
  EXPECT_EQ(describe(Not(ShardedTensorNear(tensor, {.rtol = 0.5}))),
            "is not within rtol 0.5 and atol 0 of " + tensor.ToString());
  EXPECT_EQ(describe(ShardedTensorEq(ShardedTensor())),
            "is equal to ShardedTensor(undefined)");
}

SHERD_DIST_TEST_F(ShardedMatchersTest, AnErrorInPlaceOfATensorFailsTheTest) {
  static const absl::StatusOr<ShardedTensor>& error =
      *new absl::StatusOr<ShardedTensor>(absl::InternalError("no tensor"));
  EXPECT_NONFATAL_FAILURE(
      EXPECT_THAT(ShardedTensor(), Not(ShardedTensorEq(error))),
      "ShardedTensorEq expects a sharded tensor, got INTERNAL: no tensor");
  EXPECT_NONFATAL_FAILURE(ShardedTensorNear(ShardedTensor(), {.rtol = -1}),
                          "ShardedTensorNear expects tolerances that are not");
}

SHERD_DIST_TEST_F(ShardedMatchersTest,
                  RemoteShardsAreCountedWhereBothHaveSome) {
  const auto worker = std::make_shared<Impostor>(rank(), world_size());
  const auto other = std::make_shared<Impostor>(rank(), world_size());
  const ShardedTensor actual = Rows(1, {.workers = worker, .init_rrefs = true});
  const ShardedTensor expected =
      Rows(1, {.workers = other, .init_rrefs = true});
  EXPECT_THAT(actual, ShardedTensorEq(expected));
  EXPECT_THAT(actual, ShardedTensorEq(Rows(1)));
  EXPECT_THAT(Rows(1), ShardedTensorEq(actual));
  // To a worker that has none, all are remote.
  worker->set_rank(world_size());
  EXPECT_EQ(Explain(ShardedTensorEq(expected), actual),
            absl::StrCat(Here(), world_size(), " remote shards, expected ",
                         world_size() - 1));
  EXPECT_THAT(actual, ShardedTensorEq(Rows(1)));
}

}  // namespace
}  // namespace sherd::testing
