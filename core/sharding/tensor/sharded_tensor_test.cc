#include "sherd/core/sharding/sharded_tensor.h"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_workers.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::FakeWorkers;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// Code that the reference rejects at run time does not compile: a size that is
// not a list of integers, an assignment to a property.
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
// Properties are read.
template <typename Property>
concept IsReadOnly = !std::assignable_from<Property, std::decay_t<Property>> ||
                     !std::is_reference_v<Property>;
static_assert(
    IsReadOnly<decltype(std::declval<ShardedTensor&>().requires_grad())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().dtype())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().layout())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().device())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().is_pinned())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().metadata())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().spec())>);
static_assert(IsReadOnly<decltype(std::declval<ShardedTensor&>().group())>);
static_assert(!std::assignable_from<
              decltype(std::declval<ShardedTensor&>().size()[0]), int64_t>);

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

TEST(ShardedTensorTest, FillsAsNamed) {
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
    const RandomOptions random = {.stream = RandomStream::kPerRank};
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
      ManualSeed(1234);
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor uniform,
          ShardedTensor::Rand(Chunks(0, 2), {10, 3}, {.dtype = dtype}, random));
      SHERD_ASSERT_OK_AND_ASSIGN(
          const ShardedTensor normal,
          ShardedTensor::Randn(Chunks(0, 2), {10, 3}, {.dtype = dtype},
                               random));
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

// The tensor that `ranks` ranks draw together, and the states of their
// generators afterwards.
struct Drawn {
  Tensor whole;
  std::vector<Generator::State> after;
};

Drawn DrawTogether(int ranks, const ShardingSpecPtr& spec, bool normal) {
  Drawn drawn;
  drawn.after.resize(ranks);
  RunLocalRanks(ranks, [&](ProcessGroup& group) {
    ManualSeed(77);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        normal ? ShardedTensor::Randn(spec, {7, 9}, {.dtype = kFloat64})
               : ShardedTensor::Rand(spec, {7, 9}, {.dtype = kFloat64}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(0));
    if (group.rank() == 0) drawn.whole = whole;
    drawn.after[group.rank()] = DefaultGenerator().GetState();
  });
  return drawn;
}

TEST(ShardedTensorTest, DrawsTheSameInEveryLayoutAndWorld) {
  for (const bool normal : {false, true}) {
    Generator generator(77);
    const TensorOptions options = {.dtype = kFloat64};
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor expected,
                               normal ? Randn({7, 9}, options, generator)
                                      : Rand({7, 9}, options, generator));
    const std::pair<int, ShardingSpecPtr> layouts[] = {
        {1, Chunks(0, 1)},
        {2, Chunks(1, 2)},
        {4, Chunks(0, 4)},
        // Ranks without, and with several shards.
        {3,
         ChunkShardingSpec::Create(1, {"rank:2", "rank:0", "rank:2"}).value()},
    };
    for (const auto& [ranks, spec] : layouts) {
      SCOPED_TRACE(spec->ToString());
      const Drawn drawn = DrawTogether(ranks, spec, normal);
      EXPECT_THAT(drawn.whole, TensorBitwiseEq(expected));
      EXPECT_THAT(drawn.after, Each(generator.GetState()));
    }
  }
}

TEST(ShardedTensorTest, DetachesWithoutACopy) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor weight,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 4}, {.requires_grad = true}));
    ShardedTensor detached = weight.Detach();
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_FALSE(detached.requires_grad());
    EXPECT_EQ(*detached.spec(), *weight.spec());
    ASSERT_THAT(detached.Fill(5), IsOk());
    EXPECT_THAT(weight.local_tensor(),
                IsOkAndHolds(TensorEq(Tensor::Full({3, 4}, 5.0f))));
    EXPECT_FALSE(ShardedTensor().Detach().defined());
  });
}

TEST(ShardedTensorTest, DrawsFromTheGeneratorThatItIsGiven) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Generator own(group.rank());
    const Generator::State before = DefaultGenerator().GetState();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Rand(
            Chunks(0, 2), {10, 3}, {},
            {.stream = RandomStream::kPerRank, .generator = &own}));
    EXPECT_EQ(DefaultGenerator().GetState(), before);
    Generator same(group.rank());
    EXPECT_THAT(tensor.local_tensor(),
                IsOkAndHolds(TensorBitwiseEq(Rand({5, 3}, {}, same))));
  });
}

TEST(ShardedTensorTest, RandomIntegersAreRefusedOnRanksWithoutShardsToo) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto on_zero = ChunkShardingSpec::Create(0, {"rank:0"}).value();
    for (const RandomStream stream :
         {RandomStream::kPerRank, RandomStream::kGlobal}) {
      EXPECT_THAT(ShardedTensor::Randn(on_zero, {4}, {.dtype = kInt64},
                                       {.stream = stream}),
                  StatusIs(absl::StatusCode::kUnimplemented,
                           "floating-point or complex numbers, not int64"));
    }
  });
}

// Gives two overlapping boxes for every tensor.
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
        {spec, {int64_t{1} << 40, int64_t{1} << 40}, {}, kInvalid, ""},
        {ChunkShardingSpec::Create(0, {"rank:0/cuda:0", "rank:1/cuda:1"})
             .value(),
         {4},
         {},
         absl::StatusCode::kUnimplemented,
         "no device plugin offers any"},
        {ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"}).value(),
         {4},
         {.pin_memory = true},
         kRuntime,
         "Only dense CPU tensors can be pinned"},
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

// Fails the allocation number `fails_at`, counting from 0, and all after it.
class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(int fails_at = 1000) : fails_at_(fails_at) {}

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    if (allocated_++ >= fails_at_) {
      return absl::ResourceExhaustedError("the test's allocator is empty");
    }
    return HeapAllocator().Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes) override {
    HeapAllocator().Deallocate(data, bytes);
  }
  absl::string_view name() const override { return "counting"; }

  int allocated() const { return allocated_; }

 private:
  const int fails_at_;
  int allocated_ = 0;
};

TEST(ShardedTensorTest, AllocatesFromTheGivenAllocator) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    CountingAllocator allocator(2);
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:0", "rank:1", "rank:0"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(spec, {6}, {.allocator = &allocator}));
    EXPECT_EQ(allocator.allocated(), group.rank() == 0 ? 2 : 1);
    const absl::StatusOr<ShardedTensor> another =
        ShardedTensor::Zeros(spec, {6}, {.allocator = &allocator});
    if (group.rank() == 0) {
      EXPECT_THAT(another, StatusIs(absl::StatusCode::kResourceExhausted,
                                    "the test's allocator is empty"));
    } else {
      EXPECT_THAT(another, IsOk());
    }
  });
}

TEST(ShardedTensorTest, AllocatesNothingForShardsWithoutElements) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    CountingAllocator none(0);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Ones(Chunks(1, 4), {0, 5}, {.allocator = &none}));
    EXPECT_EQ(tensor.numel(), 0);
    EXPECT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_EQ(tensor.local_shards()[0].tensor.sizes()[1],
              group.rank() < 2 ? 2 : (group.rank() == 2 ? 1 : 0));
  });
}

TEST(ShardedTensorTest, PrefetchTakesAnyTensors) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const ShardedTensor undefined;
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor empty,
                               ShardedTensor::Ones(Chunks(0, 2), {0, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor on_one,
                               ShardedTensor::Ones(Chunks(0, 2), {1, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor on_all,
                               ShardedTensor::Ones(Chunks(0, 2), {4, 3}));
    internal::ShardedTensorAccess::Prefetch(
        {nullptr, &undefined, &empty, &on_one, &on_all});
    EXPECT_THAT(on_all.local_shards(), SizeIs(1));
  });
}

// Groups

TEST(ShardedTensorTest, PlacementsAreByGlobalRankInEveryGroup) {
  RunLocalRanks(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 3}));
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:3", "rank:1"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(spec, {5, 2}, {.group = group}));
    EXPECT_EQ(tensor.rank(), group->rank());
    if (!group->is_member()) {
      EXPECT_THAT(tensor.metadata().shards, SizeIs(2));
      EXPECT_THAT(tensor.local_shards(), IsEmpty());
      EXPECT_THAT(tensor.Gather(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "gather: this process is not a member of group"));
      return;
    }
    ASSERT_THAT(tensor.local_shard_indices(), SizeIs(1));
    EXPECT_EQ(tensor.local_shard_indices()[0], all.rank() == 3 ? 0 : 1);
    EXPECT_EQ(tensor.placed_boxes()[0].rank, 1);
    EXPECT_EQ(tensor.placed_boxes()[1].rank, 0);
    EXPECT_THAT(
        ShardedTensor::Zeros(Chunks(0, 2), {4}, {.group = group}),
        StatusIs(kInvalid,
                 "Global rank 0 does not exist in input process group"));
  });
}

TEST(ShardedTensorTest, FindsWorkersByName) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto workers = FakeWorkers::Make({"trainer", "server"});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(0, {"server/cpu", "trainer/cpu"}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Empty(spec, {4, 3}, {.workers = workers}));
    ASSERT_THAT(tensor.local_shard_indices(), SizeIs(1));
    EXPECT_EQ(tensor.local_shard_indices()[0], 1 - group.rank());
    FillPattern(tensor);
    // The names stay known.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto columns,
        ChunkShardingSpec::Create(1, {"server/cpu", "rank:0/cpu"}));
    ASSERT_THAT(tensor.Reshard(columns), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto stranger,
                               ChunkShardingSpec::Create(0, {"stranger/cpu"}));
    EXPECT_THAT(tensor.Reshard(stranger),
                StatusIs(kInvalid, "Invalid worker name"));
  });
}

TEST(ShardedTensorTest, NeedsAGroup) {
  EXPECT_THAT(ShardedTensor::Empty(Chunks(0, 1), {4}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "Default process group has not been initialized"));
  EXPECT_THAT(ShardTensor(Tensor(), Chunks(0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(ShardedTensorTest, ADefaultConstructedTensorIsUndefined) {
  ShardedTensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "ShardedTensor(undefined)");
  EXPECT_THAT(tensor.local_shards(), IsEmpty());
  constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(tensor.Gather(), StatusIs(kRuntime, "was not created"));
  EXPECT_THAT(tensor.Reshard(Chunks(0, 1)), StatusIs(kRuntime));
  EXPECT_THAT(tensor.ReshardInto(tensor), StatusIs(kRuntime));
  EXPECT_THAT(tensor.AllGather(), StatusIs(kRuntime, "was not created"));
  EXPECT_THAT(tensor.Resharded(Chunks(0, 1)), StatusIs(kRuntime));
  EXPECT_THAT(tensor.Narrow(0, 0, 1), StatusIs(kRuntime));
  EXPECT_THAT(tensor.Narrow({0}, {1}), StatusIs(kRuntime));
  EXPECT_THAT(tensor.Clone(), StatusIs(kRuntime));
  EXPECT_THAT(tensor.CopyFrom(tensor), StatusIs(kRuntime));
  EXPECT_THAT(tensor.To(kInt8), StatusIs(kRuntime));
  EXPECT_DEATH(static_cast<void>(tensor.metadata()), "was not created");
}

// Properties

TEST(ShardedTensorTest, ReportsItsProperties) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor plain,
                               ShardedTensor::Empty(Chunks(0, 2), {10, 20}));
    EXPECT_EQ(plain.dtype(), kFloat32);
    EXPECT_EQ(plain.layout(), Layout::kStrided);
    EXPECT_TRUE(plain.device().is_cpu());
    EXPECT_TRUE(plain.is_contiguous());
    EXPECT_TRUE(plain.is_floating_point());
    EXPECT_FALSE(plain.is_complex());
    EXPECT_FALSE(plain.is_pinned());
    EXPECT_FALSE(plain.is_meta());
    EXPECT_FALSE(plain.requires_grad());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor special,
        ShardedTensor::Empty(
            Chunks(0, 2), {10, 20},
            {.dtype = kComplex128, .requires_grad = true, .pin_memory = true}));
    EXPECT_FALSE(special.is_floating_point());
    EXPECT_TRUE(special.is_complex());
    EXPECT_TRUE(special.is_pinned());
    EXPECT_TRUE(special.requires_grad());
    EXPECT_NE(special.fingerprint(), plain.fingerprint());
    // The second rank has no shard, and returns the same error.
    SHERD_ASSERT_OK_AND_ASSIGN(const auto on_meta,
                               ChunkShardingSpec::Create(0, {"rank:0/meta"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor meta,
                               ShardedTensor::Empty(on_meta, {10}));
    EXPECT_TRUE(meta.is_meta());
    EXPECT_TRUE(meta.device().is_meta());
    EXPECT_TRUE(meta.is_contiguous());
  });
}

TEST(ShardedTensorTest, CopiesShareTheMetadataUntilOneChanges) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {10, 20}));
    ShardedTensor copy = tensor;
    EXPECT_EQ(&copy.metadata(), &tensor.metadata());
    EXPECT_EQ(copy.local_shards().data(), tensor.local_shards().data());
    copy.SetRequiresGrad(false);
    EXPECT_EQ(&copy.metadata(), &tensor.metadata());
    copy.SetRequiresGrad(true);
    EXPECT_TRUE(copy.requires_grad());
    EXPECT_FALSE(tensor.requires_grad());
    EXPECT_EQ(copy.metadata().shards, tensor.metadata().shards);
    EXPECT_EQ(copy.local_shards().data(), tensor.local_shards().data());
    EXPECT_NE(copy.fingerprint(), tensor.fingerprint());
    copy.SetRequiresGrad(false);
    EXPECT_EQ(copy.fingerprint(), tensor.fingerprint());
  });
}

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
