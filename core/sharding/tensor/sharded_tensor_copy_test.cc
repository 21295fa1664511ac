#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::Chunks;
using ::sherd::testing::ExpectSameError;
using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FaultOptions;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::RandomSeed;
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

// Rows on one rank each, several of them: a copy row by row would write over
// rows that are still to be read.
TEST(CopyFromTest, AnOverlappingViewIsCopiedAsIfBefore) {
  for (const int ranks : {1, 2, 3}) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      std::vector<Placement> owners;
      for (int i = 0; i < 4; ++i) {
        for (const Placement& owner : PlacementsOnRanks(ranks)) {
          owners.push_back(owner);
        }
      }
      const int64_t rows = 4 * ranks;
      SHERD_ASSERT_OK_AND_ASSIGN(const auto spec,
                                 ChunkShardingSpec::Create(0, owners));
      for (const bool forward : {true, false}) {
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                   ShardedTensor::Empty(spec, {rows, 5}));
        FillPattern(tensor);
        const int64_t to = forward ? ranks : 0;
        const int64_t from = ranks - to;
        SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view,
                                   tensor.Narrow(0, to, rows - ranks));
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor source,
                                   tensor.Narrow(0, from, rows - ranks));
        ASSERT_THAT(view.CopyFrom(source), IsOk());
        EXPECT_TRUE(HasPattern(view, {from, 0}, {rows, 5}));
        // Columns of each shard onto ones that they overlap.
        FillPattern(tensor);
        SHERD_ASSERT_OK_AND_ASSIGN(view, tensor.Narrow(1, 1 - to / ranks, 4));
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor columns,
                                   tensor.Narrow(1, to / ranks, 4));
        ASSERT_THAT(view.CopyFrom(columns), IsOk());
        EXPECT_TRUE(HasPattern(view, {0, to / ranks}, {rows, 5}));
      }
    });
  }
}

TEST(CopyFromTest, NoMemoryForACopyOfTheSourceIsTheSameErrorOnAllRanks) {
  ExpectSameError(
      3,
      [](ShardedTensor& t, int rank) {
        ShardedTensor view = t.Narrow(1, 0, 3).value();
        const ShardedTensor source = t.Narrow(1, 1, 3).value();
        std::optional<FailAllocationAt> fault;
        if (rank == 1) fault.emplace(FaultOptions{.this_thread = true});
        return view.CopyFrom(source);
      },
      kNoMemory, "rank 1: ", 1);
}

// Two rows of each rank in the memory of one.
ShardedTensor SharingRows(const ShardedTensor& like, int rank) {
  const Tensor row =
      Tensor::Full({1, like.size()[1]}, 7, {.dtype = like.dtype()}).value();
  std::vector<Shard> shards;
  for (const int64_t at : {2 * rank, 2 * rank + 1}) {
    shards.push_back(Shard::FromTensorAndOffsets(row, {at, 0}, rank).value());
  }
  return ShardedTensor::FromLocalShards(shards, like.size()).value();
}

TEST(CopyFromTest, ShardsThatShareMemoryAreReadAndNotWritten) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor to,
                               ShardedTensor::Zeros(Chunks(0, 3), {6, 4}));
    ShardedTensor sharing = SharingRows(to, group.rank());
    EXPECT_THAT(sharing.AllGather(),
                IsOkAndHolds(TensorEq(Tensor::Full({6, 4}, 7.0f))));
    EXPECT_THAT(sharing.ReshardInto(to), IsOk());
    EXPECT_THAT(to.AllGather(),
                IsOkAndHolds(TensorEq(Tensor::Full({6, 4}, 7.0f))));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor copy, sharing.Clone());
    EXPECT_THAT(copy.CopyFrom(sharing), IsOk());
    EXPECT_THAT(sharing.CopyFrom(copy),
                StatusIs(kInvalid, "copy: rank 0: destinations"));
    EXPECT_THAT(to.ReshardInto(sharing),
                StatusIs(kInvalid, "share memory, expected each in memory of"));
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

// Shards by shards, random views of one piece of memory.

struct View {
  int64_t offset = 0;
  Dims strides;
};

constexpr int64_t kElements = 96;
constexpr int64_t kColumns = 3;

View RandomView(int64_t rows, std::mt19937_64& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  View view;
  switch (below(4)) {
    case 0:
      view.strides = {kColumns, 1};
      break;
    case 1:
      view.strides = {1, rows};
      break;
    case 2:
      view.strides = {2 * kColumns, 2};
      break;
    default:
      view.strides = {8, 1};
  }
  const int64_t last =
      (rows - 1) * view.strides[0] + (kColumns - 1) * view.strides[1];
  view.offset = below(kElements - last);
  return view;
}

// Shards of the heights `rows`, at the places that the views in `memory` give.
ShardedTensor ShardsAt(absl::Span<const int64_t> rows,
                       absl::Span<const View> views, const Tensor& memory) {
  std::vector<Shard> shards;
  ShardedTensorMetadata metadata;
  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ShardMetadata shard = {
        {at, 0}, {rows[i], kColumns}, Placement::OnRank(0)};
    shards.push_back({Tensor::FromStorageStrided(
                          memory.storage(), views[i].offset * 4, shard.sizes,
                          views[i].strides, memory.dtype())
                          .value(),
                      shard});
    metadata.shards.push_back(shard);
    at += rows[i];
  }
  metadata.size = {at, kColumns};
  metadata.properties.dtype = memory.dtype();
  return ShardedTensor::WithoutGroup(shards, metadata).value();
}

// Whether two shards, or two elements of one, are the same memory.
bool ElementsCoincide(absl::Span<const int64_t> rows,
                      absl::Span<const View> views) {
  std::set<int64_t> seen;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t r = 0; r < rows[i]; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) {
        const int64_t place =
            views[i].offset + r * views[i].strides[0] + c * views[i].strides[1];
        if (!seen.insert(place).second) return true;
      }
    }
  }
  return false;
}

// The expected memory if each shard of `to` becomes `make(to, from)` of the
// former elements.
using Write = std::function<absl::Status(ShardedTensor&, const ShardedTensor&)>;
using Make = std::function<int32_t(int32_t, int32_t)>;

TEST(CopyFromTest, RandomViewsOfOneMemoryAreWrittenAsIfCopiedBefore) {
  const uint64_t seed = RandomSeed();
  const std::pair<Write, Make> kinds[] = {
      {[](ShardedTensor& to, const ShardedTensor& from) {
         return to.CopyFrom(from);
       },
       [](int32_t, int32_t from) { return from; }},
      {[](ShardedTensor& to, const ShardedTensor& from) {
         return ApplyInPlace(BinaryOp::kAdd, to, from);
       },
       [](int32_t to, int32_t from) {
         return static_cast<int32_t>(static_cast<uint32_t>(to) +
                                     static_cast<uint32_t>(from));
       }}};
  int refused = 0;
  int written = 0;
  for (int64_t i = 0; i < CaseCount(2000); ++i) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed, ", case ", i));
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    std::vector<int64_t> rows;
    std::vector<View> to, from;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      rows.push_back(static_cast<int64_t>(1 + random() % 3));
      to.push_back(RandomView(rows.back(), random));
      from.push_back(random() % 5 == 0 ? to.back()
                                       : RandomView(rows.back(), random));
    }
    const Tensor memory = PatternTensor({kElements}, kInt32, seed + i);
    const Tensor before = memory.Clone().value();
    ShardedTensor destination = ShardsAt(rows, to, memory);
    const auto& [write, make] = kinds[i % 2];
    const absl::Status status =
        write(destination, ShardsAt(rows, from, memory));
    if (ElementsCoincide(rows, to)) {
      ++refused;
      EXPECT_THAT(status, StatusIs(kInvalid));
      ASSERT_THAT(memory, TensorEq(before));
      continue;
    }
    ++written;
    ASSERT_THAT(status, IsOk());
    Tensor expected = before.Clone().value();
    const ShardedTensor old_to = ShardsAt(rows, to, before);
    const ShardedTensor old_from = ShardsAt(rows, from, before);
    const ShardedTensor result = ShardsAt(rows, to, expected);
    for (size_t s = 0; s < rows.size(); ++s) {
      Tensor tensor = result.local_shards()[s].tensor;
      for (int64_t r = 0; r < rows[s]; ++r) {
        for (int64_t c = 0; c < kColumns; ++c) {
          const auto at = [&](const ShardedTensor& t) {
            return *t.local_shards()[s].tensor.At<int32_t>({r, c});
          };
          Tensor element = tensor.Narrow({r, c}, {1, 1}).value();
          ASSERT_THAT(element.Fill(make(at(old_to), at(old_from))), IsOk());
        }
      }
    }
    ASSERT_THAT(memory, TensorEq(expected));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(written, 0);
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

TEST(ToTest, AConversionThatChangesNothingShares) {
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
