#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_op_registry.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

// Lookups in which users' operations serve some of the tables, or all.

namespace sherd {
namespace {

using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::ModelLookUp;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::AllOf;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kRanks = 3;
constexpr int kFailedRank = 1;

// Rows on ranks; the operation for it is collective.
class MeetingSpec : public ShardingSpec {
 public:
  explicit MeetingSpec(ShardingSpecPtr rows) : rows_(std::move(rows)) {}
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    return rows_->BuildMetadata(size, properties);
  }
  std::string ToString() const override { return "MeetingSpec()"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return true; }

 private:
  const ShardingSpecPtr rows_;
};

// Returns the number of ids as a [1] of int64 once all ranks have come. A
// scalar, no tensor, an error: for one, two or three ids of the failed rank.
absl::StatusOr<Tensor> Meet(const MeetingSpec&, const ShardedTensor& table,
                            const Bags& bags, const BagOptions&) {
  const absl::Status status = table.group()->Barrier();
  if (!status.ok()) return status;
  const int64_t n = bags.ids.numel();
  if (table.group()->rank() == kFailedRank) {
    if (n == 1) return Tensor::Scalar(n);
    if (n == 2) return Tensor();
    if (n == 3) return absl::DataLossError("the operation failed");
  }
  return Tensor::Full({1}, n, {.dtype = kInt64});
}

class OwnOpsTest : public ::testing::Test {
 protected:
  OwnOpsTest() { RegisterShardedOp<LookUpOp, MeetingSpec>(Meet); }
  ~OwnOpsTest() override {
    EXPECT_TRUE((UnregisterShardedOp<LookUpOp, MeetingSpec>()));
  }
};

ShardingSpecPtr Rows() {
  return ChunkShardingSpec::Create(0, PlacementsOnRanks(kRanks)).value();
}

Tensor Whole() { return Tensor::Full({6, 4}, 2.0F).value(); }

ShardedTensor Own(const std::shared_ptr<ProcessGroup>& group = nullptr) {
  return ShardsOf(Whole(), std::make_shared<const MeetingSpec>(Rows()), group);
}

Bags IdsOf(int64_t count) {
  return {Tensor::Zeros({1, count}, {.dtype = kInt64}).value()};
}

// Two tables with an operation of their own, with `count` ids on the failed
// rank for the first, and the others given.
std::vector<TableLookUp> WithOwn(int rank, int64_t count,
                                 std::vector<TableLookUp> others) {
  others.insert(others.begin(),
                {Own(), IdsOf(rank == kFailedRank ? count : 5)});
  others.push_back({Own(), IdsOf(7)});
  return others;
}

std::vector<std::vector<TableLookUp>> Others() {
  return {{},
          {{Whole(), IdsOf(3)}},
          {{ShardsOf(Whole(), Rows()), IdsOf(3)}},
          {{Whole(), IdsOf(3)}, {ShardsOf(Whole(), Rows()), IdsOf(3)}}};
}

TEST_F(OwnOpsTest, ResultsComeInTheOrderOfTheTables) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    for (const std::vector<TableLookUp>& others : Others()) {
      const auto lookups = WithOwn(group.rank(), 4, others);
      LookUpStats stats;
      SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                                 LookUp(lookups, {.stats = &stats}));
      ASSERT_EQ(y.size(), lookups.size());
      // Of the lookup of the others.
      EXPECT_EQ(stats.direct, !others.empty());
      EXPECT_EQ(y[0].data_as<int64_t>()[0],
                group.rank() == kFailedRank ? 4 : 5);
      EXPECT_EQ(y.back().data_as<int64_t>()[0], 7);
      for (size_t t = 0; t < others.size(); ++t) {
        EXPECT_THAT(y[t + 1],
                    TensorBitwiseEq(ModelLookUp(Whole(), others[t].bags, {})));
      }
      // Into tensors that are given.
      std::vector<Tensor> outputs;
      for (const Tensor& result : y) {
        outputs.push_back(
            Tensor::Zeros(result.sizes(), {.dtype = result.dtype()}).value());
      }
      const std::vector<Tensor> given = outputs;
      ASSERT_THAT(LookUpInto(lookups, absl::MakeSpan(outputs)), IsOk());
      for (size_t t = 0; t < y.size(); ++t) {
        EXPECT_THAT(given[t], TensorBitwiseEq(y[t]));
      }
    }
  });
}

// Outputs of which the first and the second are given.
struct GivenOutputs {
  explicit GivenOutputs(size_t tables) : outputs(tables) {
    outputs[0] = Tensor::Full({1}, -1, {.dtype = kInt64}).value();
    if (tables > 2) outputs[1] = Tensor::Full({1, 4}, -1.0F).value();
    first = outputs[0];
    second = outputs[1];
  }
  void ExpectAsBefore() const {
    EXPECT_EQ(first.data_as<int64_t>()[0], -1);
    if (second.defined()) {
      EXPECT_EQ(second.data_as<float>()[0], -1.0F);
    }
    EXPECT_FALSE(outputs.back().defined());
  }

  std::vector<Tensor> outputs;
  Tensor first;
  Tensor second;
};

TEST_F(OwnOpsTest, AnErrorOfOneRankIsThatOfAllAndOutputsAreAsBefore) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const struct {
      int64_t ids;
      absl::StatusCode code;
      std::string phrase;
    } kCases[] = {{1, kInvalid, "rank 1: table 0: the output needs to be"},
                  {2, kInvalid, "table 0: the operation returned no Tensor"},
                  {3, absl::StatusCode::kDataLoss,
                   "rank 1: table 0: the operation failed"}};
    for (const auto& c : kCases) {
      for (const std::vector<TableLookUp>& others : Others()) {
        const auto lookups = WithOwn(group.rank(), c.ids, others);
        GivenOutputs given(lookups.size());
        EXPECT_THAT(
            LookUpInto(lookups, absl::MakeSpan(given.outputs)),
            AllOf(StatusIs(c.code, c.phrase), HasErrorRank(kFailedRank)));
        given.ExpectAsBefore();
      }
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(OwnOpsTest, AWrongArgumentOfOneRankIsTheErrorOfAll) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const bool fails = group.rank() == kFailedRank;
    for (const std::vector<TableLookUp>& others : Others()) {
      const auto lookups = WithOwn(group.rank(), 4, others);
      // As a module finds it.
      GivenOutputs given(lookups.size());
      EXPECT_THAT(internal::LookUpAfter(fails ? absl::NotFoundError("no input")
                                              : absl::OkStatus(),
                                        lookups, absl::MakeSpan(given.outputs)),
                  AllOf(StatusIs(absl::StatusCode::kNotFound, "no input"),
                        HasErrorRank(kFailedRank)));
      given.ExpectAsBefore();
      // An output that does not fit.
      GivenOutputs wrong(lookups.size());
      if (fails) wrong.outputs[0] = Tensor::Zeros({1}).value();
      EXPECT_THAT(LookUpInto(lookups, absl::MakeSpan(wrong.outputs)),
                  AllOf(StatusIs(kInvalid, "rank 1: table 0: the output needs"),
                        HasErrorRank(kFailedRank)));
      wrong.ExpectAsBefore();
      if (others.empty()) continue;
      auto with_bad_id = lookups;
      if (fails)
        with_bad_id[1].bags.ids =
            Tensor::Full({1, 3}, 6, {.dtype = kInt64}).value();
      EXPECT_THAT(LookUp(with_bad_id).status(),
                  AllOf(StatusIs(kInvalid,
                                 "look_up: rank 1: table 1: Index out of range "
                                 "in Input"),
                        HasErrorRank(kFailedRank)));
    }
    // A table less.
    auto lookups = WithOwn(group.rank(), 4, {});
    if (fails) lookups.pop_back();
    EXPECT_THAT(LookUp(lookups).status(), StatusIs(kInvalid, "1 tables"));
  });
}

TEST_F(OwnOpsTest, ACallWithoutTheirTablesIsAsWithoutThem) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const std::vector<TableLookUp> lookups = {
        {ShardsOf(Whole(), Rows()), IdsOf(3)}};
    std::vector<Tensor> outputs = {Tensor::Zeros({1, 4}).value()};
    const Tensor given = outputs[0];
    ASSERT_THAT(LookUpInto(lookups, absl::MakeSpan(outputs)), IsOk());
    EXPECT_THAT(given,
                TensorBitwiseEq(ModelLookUp(Whole(), lookups[0].bags, {})));
    if (group.rank() == kFailedRank) outputs[0] = Tensor::Zeros({4}).value();
    EXPECT_THAT(LookUpInto(lookups, absl::MakeSpan(outputs)),
                AllOf(StatusIs(kInvalid, "the output needs"),
                      HasErrorRank(kFailedRank)));
  });
}

TEST_F(OwnOpsTest, OutputsOfOtherTablesThatDoNotFit) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    for (const std::vector<TableLookUp>& others : Others()) {
      if (others.empty()) continue;
      const auto lookups = WithOwn(group.rank(), 4, others);
      GivenOutputs given(lookups.size());
      if (group.rank() == kFailedRank) {
        given.outputs[1] = Tensor::Zeros({5}).value();
      }
      EXPECT_THAT(LookUpInto(lookups, absl::MakeSpan(given.outputs)),
                  AllOf(StatusIs(kInvalid, "rank 1: table 1: the output needs"),
                        HasErrorRank(kFailedRank)));
      given.ExpectAsBefore();
    }
  });
}

TEST_F(OwnOpsTest, AnOutputOnAnotherDeviceDoesNotFit) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const Bags none = {Tensor::Zeros({0, 1}, {.dtype = kInt64}).value()};
    const auto lookups = WithOwn(group.rank(), 4, {{Whole(), none}});
    std::vector<Tensor> outputs(lookups.size());
    const Device device =
        group.rank() == kFailedRank ? Device(DeviceType::kMeta) : Device();
    outputs[1] = Tensor::Empty({0, 4}, {.device = device}).value();
    EXPECT_THAT(LookUpInto(lookups, absl::MakeSpan(outputs)),
                AllOf(StatusIs(kInvalid, "rank 1: table 1: the output needs"),
                      HasErrorRank(kFailedRank)));
    EXPECT_FALSE(outputs[0].defined());
  });
}

TEST_F(OwnOpsTest, TablesOfTwoGroups) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const auto other = group.NewGroup({0, 1, 2}).value();
    EXPECT_THAT(LookUp({{Own(), IdsOf(4)}, {Own(other), IdsOf(4)}}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "table 1: All distributed tensors should use the "
                         "same ProcessGroup"));
  });
}

}  // namespace
}  // namespace sherd
