#include "sherd/core/sharding/sharded_tensor.h"

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor_pattern.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// What the reference rejects when it runs does not compile: a size that is no
// list of whole numbers, an assignment to a property.
template <typename Size>
concept IsSize = requires(ShardingSpecPtr spec, Size size) {
  ShardedTensor::Zeros(spec, size);
};
static_assert(IsSize<std::vector<int64_t>>);
static_assert(!IsSize<const char*>);
static_assert(!IsSize<std::vector<std::string>>);
static_assert(!IsSize<std::vector<double>>);
static_assert(!std::assignable_from<
              decltype(std::declval<const ShardedTensor&>().metadata()),
              ShardedTensorMetadata>);
static_assert(
    !std::assignable_from<
        decltype((std::declval<ShardedTensor&>().local_shards()[0].metadata)),
        ShardMetadata>);

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

std::shared_ptr<ProcessGroup> Group() { return DefaultGroup().value(); }

// Creation

TEST(ShardedTensorTest, AllocatesTheShardsOfItsRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(
            0, {"rank:2", "rank:0", "rank:2", "rank:0", "rank:2"}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(spec, {7, 3}, 5, {.dtype = kInt16}));
    EXPECT_EQ(tensor.rank(), group.rank());
    EXPECT_EQ(tensor.group().get(), &group);
    EXPECT_EQ(*tensor.spec(), *spec);
    EXPECT_THAT(tensor.size(), ElementsAre(7, 3));
    EXPECT_EQ(tensor.dim(), 2);
    EXPECT_EQ(tensor.numel(), 21);
    EXPECT_EQ(tensor.dtype(), kInt16);
    EXPECT_FALSE(tensor.requires_grad());
    EXPECT_THAT(tensor.metadata().shards, SizeIs(5));
    const std::vector<int> expected[] = {{1, 3}, {}, {0, 2, 4}};
    EXPECT_THAT(tensor.local_shard_indices(),
                ::testing::ElementsAreArray(expected[group.rank()]));
    for (size_t i = 0; i < tensor.local_shards().size(); ++i) {
      const Shard& shard = tensor.local_shards()[i];
      EXPECT_THAT(shard.Validate(), IsOk());
      EXPECT_EQ(shard.metadata,
                tensor.metadata().shards[tensor.local_shard_indices()[i]]);
      EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full(shard.metadata.sizes, 5,
                                                      {.dtype = kInt16})));
    }
  });
}

TEST(ShardedTensorTest, FillsAsTheNameSays) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const ShardingSpecPtr spec = Chunks(0, 2);
    const auto local = [](const absl::StatusOr<ShardedTensor>& tensor) {
      return tensor.value().local_tensor().value();
    };
    EXPECT_THAT(local(ShardedTensor::Zeros(spec, {4, 2})),
                TensorEq(Tensor::Zeros({2, 2})));
    EXPECT_THAT(local(ShardedTensor::Ones(spec, {4, 2}, {.dtype = kBool})),
                TensorEq(Tensor::Ones({2, 2}, {.dtype = kBool})));
    EXPECT_THAT(local(ShardedTensor::Full(spec, {4, 2}, 2.5)),
                TensorEq(Tensor::Full({2, 2}, 2.5)));
    EXPECT_THAT(ShardedTensor::Full(spec, {4, 2}, 300, {.dtype = kUInt8}),
                StatusIs(kInvalid));
    EXPECT_EQ(local(ShardedTensor::Empty(spec, {4, 2})).dtype(), kFloat32);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(ShardedTensorTest, RandomShardsAreThoseOfPlainTensorsWithTheSameSeed) {
  RunLocalRanks(2, [](ProcessGroup&) {
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
      ManualSeed(1234);
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor uniform,
          ShardedTensor::Rand(Chunks(0, 2), {10, 3}, {.dtype = dtype}));
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor normal,
          ShardedTensor::Randn(Chunks(0, 2), {10, 3}, {.dtype = dtype}));
      ManualSeed(1234);
      EXPECT_THAT(
          uniform.local_tensor(),
          IsOkAndHolds(TensorBitwiseEq(Rand({5, 3}, {.dtype = dtype}))));
      EXPECT_THAT(
          normal.local_tensor(),
          IsOkAndHolds(TensorBitwiseEq(Randn({5, 3}, {.dtype = dtype}))));
    }
    EXPECT_THAT(ShardedTensor::Rand(Chunks(0, 2), {4}, {.dtype = kInt32}),
                StatusIs(absl::StatusCode::kUnimplemented));
  });
}

// Gives two overlapping boxes, whatever is asked for.
class BrokenSpec final : public ShardingSpec {
 public:
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    return ShardedTensorMetadata{.shards = {{{0}, {3}, Placement("rank:0")},
                                            {{2}, {2}, Placement("rank:1")}},
                                 .size = Dims(size.begin(), size.end()),
                                 .properties = properties};
  }
  std::string ToString() const override { return "BrokenSpec"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return false; }
};

TEST(ShardedTensorTest, RefusesWhatItCannotHold) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const ShardingSpecPtr spec = Chunks(0, 2);
    struct Case {
      ShardingSpecPtr spec;
      Dims size;
      ShardedTensorOptions options;
      absl::StatusCode code;
      const char* phrase;
    };
    constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
    const Case cases[] = {
        {nullptr, {4}, {}, kInvalid, "Expecting ShardingSpec but got"},
        {Chunks(1, 2), {4}, {}, kInvalid, "Invalid sharding dim"},
        {spec, {}, {}, kInvalid, "Invalid sharding dim"},
        {spec, {-4}, {}, kInvalid, "-4"},
        {spec, {int64_t{1} << 62}, {}, kInvalid, ""},
        {Chunks(0, 3),
         {4},
         {},
         kInvalid,
         "Global rank 2 does not exist in input process group"},
        {ChunkShardingSpec::Create(0, {"trainer/cpu"}).value(),
         {4},
         {},
         kRuntime,
         "RPC framework needs to be initialized"},
        {ChunkShardingSpec::Create(0, {"cpu"}).value(),
         {4},
         {},
         kInvalid,
         "has no owner"},
        {spec,
         {4},
         {.layout = Layout::kSparseCoo},
         kInvalid,
         "Only torch.strided layout is currently supported"},
        {spec,
         {4},
         {.memory_format = MemoryFormat::kChannelsLast},
         kInvalid,
         "Only torch.contiguous_format memory_format is currently supported"},
        {std::make_shared<BrokenSpec>(), {4}, {}, kInvalid, "overlap"},
        {EnumerableShardingSpec::Create({{{0}, {2}, {}}}).value(),
         {2},
         {},
         kInvalid,
         "remote device is None"},
    };
    for (const Case& c : cases) {
      EXPECT_THAT(ShardedTensor::Empty(c.spec, c.size, c.options),
                  StatusIs(c.code, c.phrase));
    }
  });
}

TEST(ShardedTensorTest, NeedsAGroup) {
  EXPECT_THAT(ShardedTensor::Empty(Chunks(0, 1), {4}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "Default process group has not been initialized"));
  EXPECT_THAT(ShardTensor(Tensor(), Chunks(0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(ShardedTensorTest, ADefaultConstructedOneIsNoTensor) {
  ShardedTensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "ShardedTensor(undefined)");
  EXPECT_THAT(tensor.local_shards(), IsEmpty());
  constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(tensor.Gather(), StatusIs(kRuntime, "was not created"));
  EXPECT_THAT(tensor.Reshard(Chunks(0, 1)), StatusIs(kRuntime));
  EXPECT_THAT(tensor.ReshardInto(tensor), StatusIs(kRuntime));
  EXPECT_DEATH(static_cast<void>(tensor.metadata()), "was not created");
}

// Properties

TEST(ShardedTensorTest, LocalTensorNeedsExactlyOneShard) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor one,
                               ShardedTensor::Ones(Chunks(0, 2), {4}));
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor local, one.local_tensor());
    // Not a copy.
    EXPECT_THAT(local.Fill(group.rank()), IsOk());
    EXPECT_TRUE(one.local_shards()[0].tensor.Equal(local));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec, ChunkShardingSpec::Create(0, {"rank:0", "rank:0"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor other,
                               ShardedTensor::Ones(spec, {4}));
    EXPECT_THAT(other.local_tensor(),
                StatusIs(absl::StatusCode::kUnimplemented,
                         "Only single local shard is supported."));
  });
}

TEST(ShardedTensorTest, SizeOfADimensionCountsFromBothEnds) {
  RunLocalRanks(1, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Ones(Chunks(0, 1), {4, 6}));
    EXPECT_THAT(tensor.size(1), IsOkAndHolds(6));
    EXPECT_THAT(tensor.size(-2), IsOkAndHolds(4));
    for (const int64_t dim : {2, -3, 100}) {
      EXPECT_THAT(tensor.size(dim), StatusIs(absl::StatusCode::kOutOfRange,
                                             "Dimension out of range"));
    }
    EXPECT_EQ(tensor.ToString(),
              "ShardedTensor(" + tensor.metadata().ToString() + ")");
  });
}

TEST(ShardTest, ChecksTensorAgainstMetadata) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Zeros({2, 3}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard,
                             Shard::FromTensorAndOffsets(tensor, {4, 0}, 1));
  EXPECT_EQ(shard.metadata,
            (ShardMetadata{{4, 0}, {2, 3}, Placement("rank:1/cpu")}));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {4}, 1),
              StatusIs(kInvalid, "same number of elements"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {-4, 0}, 1),
              StatusIs(kInvalid, "shard_offsets should be >=0"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {4, 0}, -1),
              StatusIs(kInvalid, "rank is -1"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(Tensor(), {}, 0),
              StatusIs(kInvalid, "undefined"));
  Shard wrong = shard;
  wrong.metadata.sizes = {3, 2};
  EXPECT_THAT(
      wrong.Validate(),
      StatusIs(kInvalid,
               "Shard tensor size does not match with metadata.shard_lengths"));
  wrong = shard;
  wrong.metadata.placement = "rank:1/cuda:0";
  EXPECT_THAT(wrong.Validate(),
              StatusIs(kInvalid,
                       "Local shard tensor device does not match with local "
                       "Shard's placement"));
  wrong.metadata.placement.reset();
  EXPECT_THAT(wrong.Validate(), IsOk());
}

// From local shards

TEST(FromLocalShardsTest, PutsShardsOfAllRanksTogether) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    // Rank 1 has two shards, in reverse, rank 2 none.
    std::vector<Shard> shards;
    const std::vector<std::vector<int64_t>> rows = {{0}, {6, 3}, {}};
    for (const int64_t row : rows[group.rank()]) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensor tensor,
          Tensor::Zeros({row == 6 ? 2 : 3, 4}, {.dtype = kInt64}));
      SHERD_ASSERT_OK_AND_ASSIGN(
          shards.emplace_back(),
          Shard::FromTensorAndOffsets(tensor, {row, 0}, group.rank()));
      FillPattern(tensor, {row, 0}, {8, 4});
    }
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::FromLocalShards(
                                   shards, {8, 4}, {.requires_grad = true}));
    EXPECT_EQ(tensor.dtype(), kInt64);
    EXPECT_TRUE(tensor.requires_grad());
    EXPECT_EQ(
        *tensor.spec(),
        *ChunkShardingSpec::Create(0, {"rank:0", "rank:1", "rank:1"}).value());
    EXPECT_THAT(tensor.local_shards(), SizeIs(shards.size()));
    EXPECT_TRUE(HasPattern(tensor));
    if (group.rank() == 1) {
      // In the order of the metadata, and shared with the caller's.
      EXPECT_EQ(tensor.local_shards()[0].tensor.data(),
                shards[1].tensor.data());
    }
    ASSERT_THAT(tensor.Reshard(Chunks(1, 3)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

// The arguments of a rank: its half of a tensor.
struct LocalShardsCall {
  std::vector<Shard> shards;
  Dims size = {4, 4};
  ShardedTensorOptions options;
};

Tensor Zeros(absl::Span<const int64_t> size, DType dtype = kFloat32) {
  return Tensor::Zeros(size, {.dtype = dtype}).value();
}

// Rank 1 of 2 does something else than it should.
void ExpectLocalShardsError(const std::function<void(LocalShardsCall&)>& harm,
                            const std::string& phrase,
                            std::optional<int> blamed) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(2);
  RunLocalRanks(2, [&](ProcessGroup& group) {
    LocalShardsCall call;
    call.shards = {Shard::FromTensorAndOffsets(
                       Zeros({2, 4}), {2 * group.rank(), 0}, group.rank())
                       .value()};
    if (group.rank() == 1) harm(call);
    statuses[group.rank()] =
        ShardedTensor::FromLocalShards(call.shards, call.size, call.options)
            .status();
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_THAT(statuses[0], StatusIs(kInvalid, phrase));
  EXPECT_EQ(BlamedRank(statuses[0]), blamed);
}

TEST(FromLocalShardsTest, AWrongPlaceOnOneRankIsTheSameErrorOnAll) {
  const auto place = [](std::optional<Placement> placement) {
    return [placement](LocalShardsCall& call) {
      call.shards[0].metadata.placement = placement;
    };
  };
  ExpectLocalShardsError(place({}), "remote device is None", 1);
  ExpectLocalShardsError(place("rank:7"),
                         "Global rank 7 does not exist in input process group",
                         1);
  ExpectLocalShardsError(
      place("rank:0"), "rank does not match with the rank in its process group",
      1);
  ExpectLocalShardsError(place("rank:1/cuda:1"),
                         "Local shard tensor device does not match", 1);
}

TEST(FromLocalShardsTest, AWrongTensorOnOneRankIsTheSameErrorOnAll) {
  const auto tensor = [](const Tensor& tensor) {
    return [tensor](LocalShardsCall& call) { call.shards[0].tensor = tensor; };
  };
  ExpectLocalShardsError(
      tensor(Zeros({4, 2}).Transpose(0, 1).value()),
      "Only torch.contiguous_format memory_format is currently supported", 1);
  ExpectLocalShardsError(tensor(Zeros({2, 5})),
                         "Shard tensor size does not match", 1);
  ExpectLocalShardsError(tensor(Tensor()), "is undefined", 1);
  ExpectLocalShardsError(
      tensor(Zeros({2, 4}, kFloat64)),
      "ShardedTensor dtype property does not match from different ranks! Found "
      "float32 on rank:0, and float64 on rank:1",
      1);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) {
        call.shards.push_back(call.shards[0]);
        call.shards[1].tensor = Zeros({2, 4}, kFloat64);
      },
      "Local shards' tensor dtype property need to be the same on rank:1", 1);
}

TEST(FromLocalShardsTest, PropertiesMustBeTheSameOnAllRanks) {
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.layout = Layout::kSparseCsr; },
      "Only torch.strided layout is currently supported", 1);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.requires_grad = true; },
      "ShardedTensor requires_grad property does not match", 1);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.pin_memory = true; },
      "ShardedTensor pin_memory property does not match", 1);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) {
        call.size = Dims{4, 5};
      },
      "ShardedTensor global_size property does not match", 1);
}

TEST(FromLocalShardsTest, ShardsOfAllRanksMustFitTogether) {
  const auto at_row = [](int64_t row) {
    return [row](LocalShardsCall& call) {
      call.shards[0].metadata.offsets = Dims{row, 0};
    };
  };
  ExpectLocalShardsError(at_row(1), "overlap", std::nullopt);
  ExpectLocalShardsError(at_row(3), "exceeds tensor dim", std::nullopt);
  ExpectLocalShardsError([](LocalShardsCall& call) { call.shards.clear(); },
                         "does not match tensor volume", std::nullopt);
}

TEST(FromLocalShardsTest, SomebodyMustHaveAShard) {
  RunLocalRanks(2, [](ProcessGroup&) {
    EXPECT_THAT(
        ShardedTensor::FromLocalShards({}, {4}),
        StatusIs(kInvalid, "ShardedTensor have no local shards on all ranks"));
  });
}

// Scatter

TEST(ShardTensorTest, OtherRanksLearnSizeAndDtype) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Tensor whole;
    if (group.rank() == 2) whole = PatternTensor({5, 4}, kComplex64);
    ReshardStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(whole, Chunks(0, 3), 2, Group(), {.stats = &stats}));
    EXPECT_THAT(tensor.size(), ElementsAre(5, 4));
    EXPECT_EQ(tensor.dtype(), kComplex64);
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_EQ(stats.bytes_sent, group.rank() == 2 ? 4 * 4 * 8 : 0);
    EXPECT_EQ(stats.bytes_staged, 0);
    // Copies, not views.
    EXPECT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 2) {
      EXPECT_THAT(whole.Fill(0), IsOk());
    }
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(ShardTensorTest, ScattersAScalarAndEmptyTensors) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto on_one,
        EnumerableShardingSpec::Create({{.placement = "rank:1/cpu"}}));
    Tensor whole;
    if (group.rank() == 0) whole = PatternTensor({}, kFloat64);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor scalar,
                               ShardTensor(whole, on_one));
    EXPECT_EQ(scalar.dim(), 0);
    EXPECT_EQ(scalar.numel(), 1);
    EXPECT_THAT(scalar.local_shards(), SizeIs(group.rank()));
    EXPECT_TRUE(HasPattern(scalar));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor back, scalar.Gather(0));
    if (group.rank() == 0) {
      EXPECT_THAT(back, TensorBitwiseEq(whole));
    }

    if (group.rank() == 0) whole = PatternTensor({0, 3}, kFloat64);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor empty,
                               ShardTensor(whole, Chunks(1, 2)));
    EXPECT_THAT(empty.size(), ElementsAre(0, 3));
    EXPECT_THAT(empty.Reshard(Chunks(0, 2)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor nothing, empty.Gather(1));
    if (group.rank() == 1) {
      EXPECT_THAT(nothing.sizes(), ElementsAre(0, 3));
    }
  });
}

// The arguments of a rank.
struct ScatterCall {
  Tensor tensor;
  ShardingSpecPtr spec = Chunks(0, 3);
  int src_rank = 0;
};

// All three ranks pass what fits, but for what `harm` does.
void ExpectScatterError(const std::function<void(ScatterCall&, int rank)>& harm,
                        absl::StatusCode code, const std::string& phrase,
                        int blamed) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(3);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const int rank = group.rank();
    Tensor whole;
    if (rank == 0) whole = PatternTensor({4, 4}, kFloat32);
    ScatterCall call = {.tensor = whole};
    harm(call, rank);
    statuses[rank] =
        ShardTensor(call.tensor, call.spec, call.src_rank).status();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor usable,
                               ShardTensor(whole, Chunks(0, 3)));
    EXPECT_TRUE(HasPattern(usable));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(code, phrase));
    EXPECT_EQ(BlamedRank(status), blamed) << status;
  }
}

TEST(ShardTensorTest, AWrongSourceIsTheSameErrorOnAllRanks) {
  const auto tensor = [](const Tensor& tensor) {
    return [tensor](ScatterCall& call, int) { call.tensor = tensor; };
  };
  ExpectScatterError(tensor(Tensor()), kInvalid,
                     "rank 0: the tensor is undefined", 0);
  ExpectScatterError(tensor(Zeros({4, 3}).Transpose(0, 1).value()), kInvalid,
                     "is not a contiguous Tensor", 0);
  ExpectScatterError(
      tensor(Tensor::Empty({4}, {.device = {DeviceType::kMeta}}).value()),
      absl::StatusCode::kFailedPrecondition, "expected one in host memory", 0);
  const auto source = [](int on_rank, int src_rank) {
    return [on_rank, src_rank](ScatterCall& call, int rank) {
      if (rank == on_rank) call.src_rank = src_rank;
    };
  };
  ExpectScatterError(source(2, 1), kInvalid,
                     "rank 2 does not match with src_rank of rank 0", 2);
  ExpectScatterError(source(1, 3), kInvalid,
                     "rank 1: src_rank is 3, expected 0 to 2", 1);
  ExpectScatterError(source(0, -1), kInvalid,
                     "rank 0: src_rank is -1, expected 0 to 2", 0);
}

TEST(ShardTensorTest, AWrongSpecIsTheSameErrorOnAllRanks) {
  const auto spec_of_one = [](const ShardingSpecPtr& spec) {
    return [spec](ScatterCall& call, int rank) {
      if (rank == 1) call.spec = spec;
    };
  };
  ExpectScatterError(spec_of_one(Chunks(1, 3)), kInvalid,
                     "rank 1 does not match with sharding_spec of rank 0", 1);
  ExpectScatterError(spec_of_one(nullptr), kInvalid,
                     "rank 1: Expecting ShardingSpec but got null", 1);
  ExpectScatterError([](ScatterCall& call, int) { call.spec = Chunks(2, 3); },
                     kInvalid, "Invalid sharding dim", 0);
}

// Gather and reshard

TEST(GatherTest, FillsTheCallersTensor) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(1, 2), {3, 5}, {.dtype = kFloat16}));
    FillPattern(tensor);
    // Part of a larger tensor, whose other elements stay.
    Tensor larger, out;
    if (group.rank() == 1) {
      larger = Tensor::Ones({5, 9}, {.dtype = kFloat16}).value();
      out = larger.Narrow({1, 2}, {3, 5}).value();
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor result, tensor.Gather(1, out));
    EXPECT_EQ(result.defined(), group.rank() == 1);
    if (group.rank() != 1) return;
    EXPECT_EQ(result.data(), out.data());
    EXPECT_TRUE(HasPattern(out, {0, 0}, {3, 5}));
    const Tensor row = larger.Select(0, 0).value();
    EXPECT_TRUE(row.Equal(Tensor::Ones({9}, {.dtype = kFloat16}).value()));
    EXPECT_TRUE(larger.Select(1, 7).value().Equal(larger.Select(1, 8).value()));
  });
}

// Calls `body` on `ranks` ranks and expects the same error from all, and that
// the tensor and the group are as before.
void ExpectSameError(
    int ranks, const std::function<absl::Status(ShardedTensor&, int)>& body,
    absl::StatusCode code, const std::string& phrase,
    std::optional<int> blamed) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(ranks);
  RunLocalRanks(ranks, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, ranks), {6, 4}));
    FillPattern(tensor);
    const ShardedTensor before = tensor;
    statuses[group.rank()] = body(tensor, group.rank());
    EXPECT_EQ(tensor.metadata(), before.metadata());
    ASSERT_EQ(tensor.local_shards().size(), before.local_shards().size());
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(),
              before.local_shards()[0].tensor.data());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_THAT(tensor.Reshard(Chunks(1, ranks)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(code, phrase));
    EXPECT_EQ(BlamedRank(status), blamed) << status;
  }
}

TEST(GatherTest, ErrorsAreTheSameOnAllRanks) {
  ExpectSameError(
      3, [](ShardedTensor& t, int) { return t.Gather(3).status(); }, kInvalid,
      "gather: rank 0: dst_rank is 3, expected 0 to 2", 0);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(rank == 2 ? -1 : 0).status();
      },
      kInvalid, "gather: rank 2: dst_rank is -1", 2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(rank == 2 ? 1 : 0).status();
      },
      kInvalid, "gather: rank 2 was called with other arguments than rank 0",
      2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int) {
        return t.Gather(1, Tensor::Zeros({6, 4}).value()).status();
      },
      kInvalid, "must NOT be specified on non-destination ranks", 0);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Gather(0, Tensor(), {.max_staging_bytes = rank == 1 ? 1 : 999})
            .status();
      },
      kInvalid, "gather: rank 1: max_staging_bytes is 1", 1);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t
            .Gather(0, Tensor(), {.max_staging_bytes = rank == 1 ? 998 : 999})
            .status();
      },
      kInvalid, "rank 1 was called with other arguments", 1);
}

TEST(GatherTest, AWrongResultTensorIsTheSameErrorOnAllRanks) {
  const auto gather_into = [](Tensor out) {
    return [out](ShardedTensor& tensor, int rank) {
      return tensor.Gather(1, rank == 1 ? out : Tensor()).status();
    };
  };
  ExpectSameError(3, gather_into(Tensor::Zeros({6, 5}).value()), kInvalid,
                  "has size [6, 5], but should be [6, 4]", 1);
  ExpectSameError(
      3, gather_into(Tensor::Zeros({6, 4}, {.dtype = kFloat64}).value()),
      kInvalid, "has dtype float64, but should be float32", 1);
  ExpectSameError(
      3,
      gather_into(
          Tensor::Empty({6, 4}, {.device = {DeviceType::kMeta}}).value()),
      absl::StatusCode::kFailedPrecondition, "expected one in host memory", 1);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        Tensor out;
        if (rank == 1) {
          const Tensor row = Tensor::Zeros({1, 4}).value();
          out = Tensor::FromStorageStrided(row.storage(), 0, {6, 4}, {0, 1},
                                           kFloat32)
                    .value();
        }
        return t.Gather(1, out).status();
      },
      kInvalid, "lie on top of one another", 1);
  // One rank: its shard is the whole, and so is a view of it.
  ExpectSameError(
      1,
      [](ShardedTensor& t, int) {
        return t.Gather(0, t.local_tensor().value()).status();
      },
      kInvalid, "overlaps that of the shards", 0);
}

TEST(ReshardTest, ErrorsAreTheSameOnAllRanks) {
  const auto bad = [](const ShardingSpecPtr& spec) {
    return [spec](ShardedTensor& t, int rank) {
      return t.Reshard(rank == 1 ? spec : Chunks(1, 3));
    };
  };
  ExpectSameError(3, bad(nullptr), kInvalid,
                  "reshard: rank 1: Expecting ShardingSpec", 1);
  ExpectSameError(3, bad(Chunks(2, 3)), kInvalid,
                  "reshard: rank 1: Invalid sharding dim", 1);
  ExpectSameError(3, bad(Chunks(0, 4)), kInvalid,
                  "reshard: rank 1: Global rank 3 does not exist", 1);
  ExpectSameError(3, bad(Chunks(0, 3)), kInvalid,
                  "reshard: rank 1 was called with other arguments", 1);
  ExpectSameError(3,
                  bad(EnumerableShardingSpec::Create(
                          {{{0, 0}, {5, 4}, Placement("rank:0")}})
                          .value()),
                  kInvalid, "does not match tensor volume", 1);
  ExpectSameError(
      3, bad(ChunkShardingSpec::Create(0, {"rank:0/cuda:0", "rank:1"}).value()),
      kInvalid, "rank 1 was called with other arguments", 1);
  // Ranks whose tensors are not the same one.
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {6 + group.rank(), 4}));
    EXPECT_THAT(tensor.Reshard(Chunks(1, 2)),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
  });
}

TEST(ReshardTest, TheSameLayoutKeepsTheShards) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(1, 2), {3, 4}));
    const void* const data = tensor.local_shards()[0].tensor.data();
    ReshardStats stats;
    // Another spec for the same boxes.
    ASSERT_THAT(tensor.Reshard(Chunks(-1, 2), {.stats = &stats}), IsOk());
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(), data);
    EXPECT_EQ(*tensor.spec(), *Chunks(-1, 2));
    EXPECT_EQ(stats.bytes_received + stats.bytes_sent + stats.bytes_local, 0);
  });
}

TEST(ReshardTest, GivesRanksNothingOrSeveralShards) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 3), {5, 4}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto target,
        ChunkShardingSpec::Create(1, {"rank:1", "rank:2", "rank:1"}));
    ASSERT_THAT(tensor.Reshard(target), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    const size_t expected[] = {0, 2, 1};
    EXPECT_THAT(tensor.local_shards(), SizeIs(expected[group.rank()]));
    // Chunks of 2, 2 and nothing.
    EXPECT_EQ(tensor.metadata().shards[2].sizes[1], 0);
    EXPECT_EQ(tensor.metadata().shards[2].offsets[1], 4);
  });
}

TEST(ReshardTest, ACopyKeepsItsShards) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {4, 4}));
    FillPattern(tensor);
    const ShardedTensor copy = tensor;
    EXPECT_EQ(copy.local_shards()[0].tensor.data(),
              tensor.local_shards()[0].tensor.data());
    ASSERT_THAT(tensor.Reshard(Chunks(1, 2)), IsOk());
    EXPECT_EQ(*copy.spec(), *Chunks(0, 2));
    EXPECT_TRUE(HasPattern(copy));
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(ReshardIntoTest, WritesIntoTheShardsThatAreThere) {
  RunLocalRanks(3, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor from,
                               ShardedTensor::Empty(Chunks(0, 3), {6, 7}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor into,
                               ShardedTensor::Zeros(Chunks(1, 3), {6, 7}));
    const void* const data = into.local_shards()[0].tensor.data();
    for (uint64_t salt = 0; salt < 5; ++salt) {
      FillPattern(from, salt);
      ASSERT_THAT(from.ReshardInto(into), IsOk());
      EXPECT_TRUE(HasPattern(into, salt));
    }
    EXPECT_EQ(into.local_shards()[0].tensor.data(), data);
  });
}

TEST(ReshardIntoTest, ErrorsAreTheSameOnAllRanks) {
  const auto into = [](absl::Span<const int64_t> size, DType dtype) {
    return [size = Dims(size.begin(), size.end()), dtype](ShardedTensor& t,
                                                          int) {
      ShardedTensor dst =
          ShardedTensor::Zeros(Chunks(0, 3), size, {.dtype = dtype}).value();
      return t.ReshardInto(dst);
    };
  };
  ExpectSameError(3, into({6, 5}, kFloat32), kInvalid,
                  "the destination has size [6, 5] and dtype float32", 0);
  ExpectSameError(3, into({6, 4}, kInt32), kInvalid,
                  "the destination has size [6, 4] and dtype int32", 0);
  ExpectSameError(
      3, [](ShardedTensor& t, int) { return t.ReshardInto(t); }, kInvalid,
      "the memory of source and destination shards overlaps", 0);
  // Only rank 2 passes its own shards under another layout.
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        ShardedTensor dst =
            rank == 2 ? t : ShardedTensor::Zeros(t.spec(), t.size()).value();
        return t.ReshardInto(dst);
      },
      kInvalid, "reshard_into: rank 2: the memory of source and destination",
      2);
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor from,
                               ShardedTensor::Zeros(Chunks(0, 2), {4}));
    const float constants[2] = {};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto storage,
        Storage::BorrowReadOnly(constants, sizeof(constants)));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               Tensor::FromStorage(storage, 0, {2}, kFloat32));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard shard,
        Shard::FromTensorAndOffsets(tensor, {2 * group.rank()}, group.rank()));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor read_only,
                               ShardedTensor::FromLocalShards({shard}, {4}));
    EXPECT_THAT(from.ReshardInto(read_only),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "may not be written to"));
  });
}

TEST(MetaTensorTest, HasALayoutButNothingToMove) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(spec, {int64_t{1} << 40, 4}));
    EXPECT_THAT(tensor.local_shards(), SizeIs(1));
    constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
    EXPECT_THAT(tensor.Gather(), StatusIs(kRuntime, "is on meta"));
    EXPECT_THAT(tensor.Reshard(Chunks(0, 2)), StatusIs(kRuntime, "is on meta"));
  });
}

}  // namespace
}  // namespace sherd
