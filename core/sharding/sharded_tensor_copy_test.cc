#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/same_error.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor_pattern.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::ExpectSameError;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kNoMemory = absl::StatusCode::kResourceExhausted;

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

Allocator* Empty() {
  static EmptyAllocator empty;
  return &empty;
}

TEST(CloneTest, IsContiguousMemoryOfItsOwn) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(0, 2), {6, 4},
                             {.dtype = kInt16, .requires_grad = true}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
    EXPECT_EQ(&copy.metadata(), &tensor.metadata());
    EXPECT_NE(copy.local_shards()[0].tensor.data(),
              tensor.local_shards()[0].tensor.data());
    EXPECT_TRUE(HasPattern(copy));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               tensor.Narrow(1, 1, 2));
    EXPECT_FALSE(view.is_contiguous());
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor part, view.Clone());
    EXPECT_TRUE(part.is_contiguous());
    EXPECT_TRUE(HasPattern(part, {0, 1}, {6, 4}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, part.AllGather());
    EXPECT_TRUE(HasPattern(whole, {0, 1}, {6, 4}));
  });
}

TEST(CloneTest, MemoryThatOneRankLacksIsTheSameErrorOnAllRanks) {
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.Clone(rank == 1 ? Empty() : nullptr).status();
      },
      kNoMemory, "clone: rank 1: there is nothing", 1);
}

TEST(CopyFromTest, CopiesBetweenEqualLayouts) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:1", "rank:2", "rank:1"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor from,
                               ShardedTensor::Empty(spec, {5, 2}));
    FillPattern(from);
    // Gradients make no difference.
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor to,
        ShardedTensor::Zeros(spec, {5, 2}, {.requires_grad = true}));
    ASSERT_THAT(to.CopyFrom(from), IsOk());
    EXPECT_TRUE(HasPattern(to));
    EXPECT_TRUE(to.requires_grad());
    EXPECT_THAT(to.CopyFrom(to), IsOk());
    EXPECT_TRUE(HasPattern(to));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(CopyFromTest, ErrorsAreTheSameOnAllRanks) {
  const auto copy_of = [](const ShardedTensorOptions& options, int dim,
                          absl::Span<const int64_t> size) {
    return [options, dim, size = Dims(size.begin(), size.end())](
               ShardedTensor& t, int) {
      return t.CopyFrom(
          ShardedTensor::Zeros(Chunks(dim, 3), size, options).value());
    };
  };
  constexpr char kPhrase[] =
      "inplace copy can only happen between two ShardedTensor with same "
      "metadata";
  ExpectSameError(3, copy_of({}, 1, {6, 4}), kRuntime, kPhrase, 0);
  ExpectSameError(3, copy_of({}, 0, {6, 5}), kRuntime, kPhrase, 0);
  ExpectSameError(3, copy_of({.dtype = kFloat64}, 0, {6, 4}), kInvalid,
                  "the source is of dtype float64, but should be of float32",
                  0);
  // Wrong on one rank only.
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.CopyFrom(
            rank == 2 ? ShardedTensor()
                      : ShardedTensor::Zeros(t.spec(), t.size()).value());
      },
      kRuntime, "copy: rank 2: the source: the ShardedTensor was not created",
      2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.CopyFrom(
            ShardedTensor::Zeros(Chunks(rank == 1 ? 1 : 0, 3), t.size())
                .value());
      },
      kRuntime, "copy: rank 1: inplace copy", 1);
}

TEST(ToTest, ConvertsTheElements) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(Chunks(0, 2), {6, 4}, 2.75,
                            {.dtype = kFloat64, .requires_grad = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor whole, tensor.To(kInt8));
    EXPECT_EQ(whole.dtype(), kInt8);
    EXPECT_TRUE(whole.requires_grad());
    EXPECT_EQ(*whole.spec(), *tensor.spec());
    EXPECT_THAT(
        whole.local_tensor(),
        IsOkAndHolds(TensorEq(Tensor::Full({3, 4}, 2, {.dtype = kInt8}))));
    EXPECT_THAT(tensor.local_tensor(),
                IsOkAndHolds(
                    TensorEq(Tensor::Full({3, 4}, 2.75, {.dtype = kFloat64}))));
    // A view, whose elements do not lie side by side.
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               tensor.Narrow(1, 1, 2));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor part, view.To(kComplex128));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor local, view.local_tensor());
    EXPECT_THAT(part.local_tensor(),
                IsOkAndHolds(TensorEq(local.To(kComplex128))));
  });
}

TEST(ToTest, WhatChangesNothingIsShared) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {6, 4}));
    const void* const data = tensor.local_shards()[0].tensor.data();
    const auto data_of = [](const absl::StatusOr<ShardedTensor>& tensor) {
      return tensor.value().local_shards()[0].tensor.data();
    };
    EXPECT_EQ(data_of(tensor.Cpu()), data);
    EXPECT_EQ(data_of(tensor.To(kFloat32)), data);
    EXPECT_EQ(data_of(tensor.To(tensor.group())), data);
    EXPECT_EQ(data_of(tensor.To(ToOptions{})), data);
    EXPECT_NE(data_of(tensor.To({.dtype = kFloat32, .copy = true})), data);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(ToTest, GoesToMetaAndNotBack) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 4}, {.pin_memory = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor meta,
                               tensor.To(Device{DeviceType::kMeta}));
    EXPECT_TRUE(meta.is_meta());
    EXPECT_FALSE(meta.is_pinned());
    EXPECT_TRUE(meta.local_shards()[0].tensor.device().is_meta());
    EXPECT_EQ(
        *meta.spec(),
        *ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"}).value());
    EXPECT_FALSE(tensor.is_meta());
    EXPECT_THAT(meta.Cpu(), StatusIs(absl::StatusCode::kUnimplemented,
                                     "Cannot copy out of meta tensor; no "
                                     "data!"));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor vast,
        ShardedTensor::Empty(meta.spec(), {int64_t{1} << 62},
                             {.dtype = kUInt8}));
    EXPECT_THAT(vast.To(kFloat64), StatusIs(kInvalid, "to: rank 0: "));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor half, meta.To(kFloat16));
    EXPECT_EQ(half.dtype(), kFloat16);
    EXPECT_EQ(half.local_shards()[0].tensor.dtype(), kFloat16);
  });
}

// Its shards are chunks, for which another spec would be inferred.
TEST(ToTest, KeepsTheClassOfTheSpec) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto halves = [](const char* first, const char* second) {
      return EnumerableShardingSpec::Create(
                 {{.offsets = {0}, .sizes = {2}, .placement = first},
                  {.offsets = {2}, .sizes = {2}, .placement = second}})
          .value();
    };
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(halves("rank:0", "rank:1"), {4}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor meta,
                               tensor.To(Device{DeviceType::kMeta}));
    EXPECT_EQ(*meta.spec(), *halves("rank:0/meta", "rank:1/meta"));
  });
}

TEST(ToTest, CudaNeedsADevicePlugin) {
  ExpectSameError(
      2, [](ShardedTensor& t, int) { return t.Cuda().status(); },
      absl::StatusCode::kUnimplemented,
      "to: rank 0: a shard on cuda needs memory there, and no device plugin "
      "offers any",
      0);
}

TEST(ToTest, ErrorsAreTheSameOnAllRanks) {
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t
            .To({.dtype = kFloat64, .allocator = rank == 2 ? Empty() : nullptr})
            .status();
      },
      kNoMemory, "to: rank 2: there is nothing", 2);
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        return t.To(rank == 1 ? kFloat64 : kFloat16).status();
      },
      kInvalid, "to: rank 1 was called with other arguments", 1);
}

TEST(ToTest, AnotherGroupHoldsTheOwners) {
  RunLocalRanks(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto pair, all.NewGroup({1, 2}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto first, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec, ChunkShardingSpec::Create(0, {"rank:2", "rank:1"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(spec, {5, 3}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor inside, tensor.To(pair));
    EXPECT_EQ(inside.group(), pair);
    if (pair->is_member()) {
      EXPECT_EQ(inside.local_shards()[0].tensor.data(),
                tensor.local_shards()[0].tensor.data());
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, inside.AllGather());
      EXPECT_TRUE(HasPattern(whole, {0, 0}, {5, 3}));
    }
    EXPECT_THAT(
        tensor.To(first),
        StatusIs(kInvalid,
                 "Global rank 2 does not exist in input process group"));
  });
}

}  // namespace
}  // namespace sherd
