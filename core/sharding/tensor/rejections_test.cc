#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_init.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/tensor_properties.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

// Each documented rejection, by code and key phrase, on two ranks that are
// threads. Every rank does the same, and gets the same.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

// The exceptions that the reference raises.
constexpr absl::StatusCode kValueError = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRuntimeError =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kIndexError = absl::StatusCode::kOutOfRange;
constexpr absl::StatusCode kNotImplemented = absl::StatusCode::kUnimplemented;

struct Rejection {
  const char* what;
  std::function<absl::Status()> call;
  absl::StatusCode code;
  const char* phrase;
};

// Runs all on two ranks, which afterwards are usable.
void ExpectRejected(const std::vector<Rejection>& rejections) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    for (const Rejection& rejection : rejections) {
      EXPECT_THAT(rejection.call(), StatusIs(rejection.code, rejection.phrase))
          << rejection.what;
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

ShardingSpecPtr Chunks(int dim, std::vector<Placement> placements = {
                                    "rank:0", "rank:1"}) {
  return ChunkShardingSpec::Create(dim, std::move(placements)).value();
}

ShardingSpecPtr Boxes(std::vector<ShardMetadata> shards) {
  return EnumerableShardingSpec::Create(std::move(shards)).value();
}

Tensor Zeros(absl::Span<const int64_t> size, DType dtype = kFloat32) {
  return Tensor::Zeros(size, {.dtype = dtype}).value();
}

ShardedTensor Rows() { return ShardedTensor::Zeros(Chunks(0), {6, 4}).value(); }

int Rank() { return DefaultGroup().value()->rank(); }

absl::Status Make(const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
                  const ShardedTensorOptions& options = {}) {
  return ShardedTensor::Empty(spec, size, options).status();
}

TEST(RejectionsTest, OfSpecs) {
  const auto boxes = [](std::vector<ShardMetadata> shards) {
    return [shards] { return EnumerableShardingSpec::Create(shards).status(); };
  };
  const auto chunks = [](std::vector<Placement> placements) {
    return [placements] {
      return ChunkShardingSpec::Create(0, placements).status();
    };
  };
  ExpectRejected({
      {"no placements", chunks({}), kValueError, "at least one placement"},
      {"an owner of two colons", chunks({"rank:0:1"}), kValueError,
       "Could not parse remote_device"},
      {"no owner", chunks({"/cpu"}), kValueError,
       "Could not parse remote_device"},
      {"no text", chunks({""}), kValueError, "Could not parse remote_device"},
      {"three parts", chunks({"rank:0/cpu/0"}), kValueError,
       "Could not parse remote_device"},
      {"a rank that is not a number", chunks({"rank:foo/cpu"}), kValueError,
       "Could not parse remote_device"},
      {"another key", chunks({"random:0/cpu"}), kValueError,
       "Could not parse remote_device"},
      {"a malformed device", chunks({"rank:0/cuda:foo"}), kRuntimeError,
       "Invalid device string"},
      {"a suffix", chunks({"rank:0/cpu2"}), kRuntimeError,
       "Invalid device string"},
      {"an unknown device", chunks({"rank:0/random:0"}), kRuntimeError,
       "Expected one of"},
      {"a rank beyond 32 bits", chunks({"rank:4294967296/cpu"}), kValueError,
       "Could not parse remote_device"},
      {"no boxes", boxes({}), kValueError, "Empty shard list provided"},
      {"boxes of different ranks",
       boxes({{{0, 0}, {1, 1}, "rank:0"}, {{1}, {1}, "rank:1"}}), kValueError,
       "Found inconsistent ranks for shards"},
      {"more offsets than sizes", boxes({{{0, 0}, {1}, "rank:0"}}), kValueError,
       "same number of elements"},
      {"a negative offset", boxes({{{-1}, {1}, "rank:0"}}), kValueError,
       "shard_offsets should be >=0"},
      {"a negative size", boxes({{{0}, {-1}, "rank:0"}}), kValueError,
       "shard_sizes should be >= 0"},
      {"an end that overflows",
       boxes({{{std::numeric_limits<int64_t>::max()}, {1}, "rank:0"}}),
       kValueError, "does not fit in 64 bits"},
      {"boxes that overlap",
       boxes({{{0, 0}, {2, 2}, "rank:0"}, {{1, 1}, {2, 2}, "rank:1"}}),
       kValueError, "overlap"},
      {"a box twice, on another rank",
       boxes({{{0, 0}, {2, 2}, "rank:0"}, {{0, 0}, {2, 2}, "rank:1"}}),
       kValueError, "overlap"},
      {"a mesh with too few placements",
       [] {
         return MeshShardingSpec::Grid({2, 2}, {"rank:0", "rank:1"}).status();
       },
       kValueError, ""},
      {"a mesh without a place",
       [] {
         return MeshShardingSpec::Grid({0, 2}, {}).status();
       },
       kValueError, ""},
      {"a mesh dimension that is not there",
       [] {
         return MeshShardingSpec::Create(
                    {.shape = {2}, .placements = {"rank:0", "rank:1"}}, {{1}})
             .status();
       },
       kValueError, "Invalid mesh dim"},
  });
}

TEST(RejectionsTest, OfSizesAndLayouts) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectRejected({
      {"no spec", [] { return Make(nullptr, {4}); }, kValueError,
       "Expecting ShardingSpec but got"},
      {"a dimension past the end",
       [] {
         return Make(Chunks(2), {4, 4});
       },
       kValueError, "Invalid sharding dim"},
      {"a dimension before the first",
       [] {
         return Make(Chunks(-3), {4, 4});
       },
       kValueError, "Invalid sharding dim"},
      {"chunks of a scalar", [] { return Make(Chunks(0), {}); }, kValueError,
       "Invalid sharding dim"},
      {"a negative size",
       [] {
         return Make(Chunks(0), {4, -1});
       },
       kValueError, "-1"},
      {"more elements than 64 bits count",
       [] {
         return Make(Chunks(0), {kHuge, kHuge});
       },
       kValueError, ""},
      {"more bytes than 64 bits count",
       [] { return Make(Chunks(0), {kHuge / 2}, {.dtype = kFloat64}); },
       kValueError, ""},
      {"another number of dimensions",
       [] {
         return Make(Boxes({{{0, 0}, {4, 4}, "rank:0"}}), {});
       },
       kValueError, "Rank of tensor is 0, but shards rank is 2"},
      {"boxes that reach out",
       [] {
         return Make(Boxes({{{0}, {5}, "rank:0"}}), {4});
       },
       kValueError, "exceeds tensor dim"},
      {"boxes that leave a gap",
       [] {
         return Make(Boxes({{{0}, {3}, "rank:0"}}), {4});
       },
       kValueError, "does not match tensor volume"},
      {"a layout that is not strided",
       [] { return Make(Chunks(0), {4}, {.layout = Layout::kSparseCoo}); },
       kValueError, "Only torch.strided layout is currently supported"},
      {"another memory format",
       [] {
         return Make(Chunks(0), {4},
                     {.memory_format = MemoryFormat::kChannelsLast});
       },
       kValueError,
       "Only torch.contiguous_format memory_format is currently supported"},
      {"no memory format",
       [] {
         return Make(Chunks(0), {4},
                     {.memory_format = MemoryFormat::kPreserve});
       },
       kValueError,
       "Only torch.contiguous_format memory_format is currently supported"},
      // Layout before memory format, both before placements.
      {"all of it wrong",
       [] {
         return Make(Chunks(0, {"rank:9"}), {4},
                     {.layout = Layout::kSparseCsr,
                      .memory_format = MemoryFormat::kChannelsLast});
       },
       kValueError, "Only torch.strided layout is currently supported"},
  });
}

TEST(RejectionsTest, OfPlacements) {
  ExpectRejected({
      {"a rank outside of the group",
       [] {
         return Make(Chunks(0, {"rank:0", "rank:2"}), {4});
       },
       kValueError, "Global rank 2 does not exist in input process group"},
      {"a worker without RPC",
       [] { return Make(Chunks(0, {"trainer0/cpu"}), {4}); }, kRuntimeError,
       "RPC framework needs to be initialized for using worker names"},
      {"a device without an owner",
       [] { return Make(Chunks(0, {"cpu"}), {4}); }, kValueError, "owner"},
      {"no placement",
       [] {
         return Make(Boxes({{{0}, {4}, std::nullopt}}), {4});
       },
       kValueError, "remote device is None"},
      {"memory on a device that has no plugin",
       [] {
         return Make(Chunks(0, {"rank:0/cuda:0", "rank:1/cuda:1"}), {4});
       },
       kNotImplemented, ""},
      {"a mesh on ranks outside of the group",
       [] {
         return Make(MeshShardingSpec::Grid({2}, {"rank:0", "rank:7"}).value(),
                     {4});
       },
       kValueError, "Global rank 7 does not exist in input process group"},
  });
}

TEST(RejectionsTest, OfAccess) {
  ExpectRejected({
      {"a size past the end", [] { return Rows().size(2).status(); },
       kIndexError, "Dimension out of range"},
      {"a size before the first", [] { return Rows().size(-3).status(); },
       kIndexError, "Dimension out of range"},
      {"the tensor of two shards",
       [] {
         return ShardedTensor::Zeros(
                    Chunks(0, {"rank:0", "rank:1", "rank:1", "rank:0"}), {8})
             ->local_tensor()
             .status();
       },
       kNotImplemented, "Only single local shard is supported."},
      {"the tensor of no shard",
       [] {
         const Placement other = Placement::OnRank(1 - Rank());
         return ShardedTensor::Zeros(Chunks(0, {other}), {8})
             ->local_tensor()
             .status();
       },
       kNotImplemented, "Only single local shard is supported."},
      {"a box that begins before the tensor",
       [] {
         return Rows().Narrow({-1, 0}, {1, 1}).status();
       },
       kIndexError, ""},
      {"a box that reaches out",
       [] {
         return Rows().Narrow({0, 2}, {6, 3}).status();
       },
       kIndexError, ""},
      {"a box whose end overflows",
       [] {
         return Rows()
             .Narrow(0, 5, std::numeric_limits<int64_t>::max())
             .status();
       },
       kIndexError, ""},
      {"a box of a dimension that is not there",
       [] { return Rows().Narrow(2, 0, 1).status(); }, kIndexError, ""},
  });
}

TEST(RejectionsTest, OfMoves) {
  ExpectRejected({
      {"a destination outside of the group",
       [] { return Rows().Gather(2).status(); }, kValueError, "dst_rank is 2"},
      {"results where none is wanted",
       [] {
         return Rows().Gather(0, Zeros({6, 4})).status();
       },
       kValueError, "must NOT be specified on non-destination ranks"},
      {"a result of another size",
       [] {
         return Rows()
             .Gather(0, Rank() == 0 ? Zeros({4, 6}) : Tensor())
             .status();
       },
       kValueError, "but should be"},
      {"results of another size",
       [] {
         return Rows().AllGather(Zeros({4, 6})).status();
       },
       kValueError, "but should be"},
      {"results of another dtype",
       [] {
         return Rows().AllGather(Zeros({6, 4}, kInt32)).status();
       },
       kValueError, "but should be"},
      {"a spec that does not fit", [] { return Rows().Reshard(Chunks(2)); },
       kValueError, "Invalid sharding dim"},
      {"boxes that do not fit",
       [] {
         return Rows().Reshard(Boxes({{{0, 0}, {5, 4}, "rank:0"}}));
       },
       kValueError, "does not match tensor volume"},
      {"a layout without data",
       [] {
         return Rows().Reshard(Chunks(1, {"rank:0/meta", "rank:1/meta"}));
       },
       kRuntimeError, "expected one in host memory"},
      {"a copy between layouts",
       [] {
         ShardedTensor columns =
             ShardedTensor::Zeros(Chunks(1), {6, 4}).value();
         return columns.CopyFrom(Rows());
       },
       kRuntimeError,
       "inplace copy can only happen between two ShardedTensor with same "
       "metadata"},
      {"data from where there is none",
       [] {
         return ShardedTensor::Zeros(Chunks(0, {"rank:0/meta", "rank:1/meta"}),
                                     {4})
             ->Cpu()
             .status();
       },
       kNotImplemented, "Cannot copy out of meta tensor"},
      {"text that is not a device",
       [] { return Rows().To("cuda:foo").status(); }, kRuntimeError,
       "Invalid device string: 'cuda:foo'"},
      {"the name of a device that there is not",
       [] { return Rows().To("gpu:0").status(); }, kRuntimeError,
       "Expected one of"},
      {"a tensor on no device",
       [] { return Tensor::Zeros({2}, {.device = "gpu"}).status(); },
       kRuntimeError, "Expected one of"},
      {"a source outside of the group",
       [] { return ShardTensor(Zeros({4}), Chunks(0), 2).status(); },
       kValueError, "src_rank is 2"},
      {"a tensor that is not contiguous",
       [] {
         return ShardTensor(Zeros({4, 3}).Transpose(0, 1).value(), Chunks(0))
             .status();
       },
       kValueError, "not a contiguous Tensor"},
  });
}

TEST(RejectionsTest, OfOperations) {
  ExpectRejected({
      {"a plain tensor",
       [] {
         return Apply(BinaryOp::kAdd, Rows(), Zeros({6, 4})).status();
       },
       kRuntimeError, "not supported for ShardedTensor!"},
      {"layouts that differ",
       [] {
         return Apply(BinaryOp::kAdd, Rows(),
                      ShardedTensor::Zeros(Chunks(1), {6, 4}).value())
             .status();
       },
       kValueError, ""},
      {"groups that differ",
       [] {
         const auto other = DefaultGroup().value()->NewGroup({0, 1}).value();
         return Equal(Rows(),
                      ShardedTensor::Zeros(Chunks(0), {6, 4}, {.group = other})
                          .value())
             .status();
       },
       kRuntimeError,
       "All distributed tensors should use the same ProcessGroup"},
      {"fans of a line",
       [] {
         ShardedTensor line = ShardedTensor::Zeros(Chunks(0), {4}).value();
         return InitKaimingUniform(line);
       },
       kValueError, "fewer than 2 dimensions"},
      {"random integers",
       [] {
         return ShardedTensor::Rand(Chunks(0), {4}, {.dtype = kInt32}).status();
       },
       kNotImplemented, ""},
      {"a value that the dtype cannot hold",
       [] {
         return ShardedTensor::Full(Chunks(0), {4}, 256, {.dtype = kUInt8})
             .status();
       },
       kValueError, ""},
      {"a summand of a reduction that there is not",
       [] {
         return PartialTensor::Create(Zeros({4}, kComplex64), ReduceOp::kMax)
             .status();
       },
       kValueError, ""},
  });
}

// Shards that exist

Shard Local(absl::Span<const int64_t> size, absl::Span<const int64_t> offsets,
            DType dtype = kFloat32) {
  return Shard::FromTensorAndOffsets(Zeros(size, dtype), offsets, Rank())
      .value();
}

absl::Status PutTogether(std::vector<Shard> shards,
                         absl::Span<const int64_t> size,
                         const ShardedTensorOptions& options = {}) {
  return ShardedTensor::FromLocalShards(std::move(shards), size, options)
      .status();
}

TEST(RejectionsTest, OfLocalShards) {
  const auto rows = [] { return Local({2, 4}, {2 * Rank(), 0}); };
  const auto with = [rows](std::function<void(Shard&)> harm) {
    return [rows, harm] {
      Shard shard = rows();
      harm(shard);
      return PutTogether({shard}, {4, 4});
    };
  };
  ExpectRejected({
      {"nobody has any",
       [] {
         return PutTogether({}, {4, 4});
       },
       kValueError, "have no local shards on all ranks"},
      {"no placement",
       with([](Shard& shard) { shard.metadata.placement.reset(); }),
       kValueError, "remote device is None"},
      {"another rank's", with([](Shard& shard) {
         shard.metadata.placement = Placement::OnRank(1 - Rank());
       }),
       kValueError, "rank does not match with the rank in its process group"},
      {"a rank that is not there",
       with([](Shard& shard) { shard.metadata.placement = "rank:5"; }),
       kValueError, "Global rank 5 does not exist in input process group"},
      {"on another device", with([](Shard& shard) {
         shard.metadata.placement =
             Placement::OnRank(Rank(), {DeviceType::kCuda, 0});
       }),
       kValueError,
       "Local shard tensor device does not match with local Shard's "
       "placement"},
      {"not contiguous", with([](Shard& shard) {
         shard.tensor = Zeros({4, 2}).Transpose(0, 1).value();
       }),
       kValueError,
       "Only torch.contiguous_format memory_format is currently supported"},
      {"two dtypes on a rank",
       [] {
         return PutTogether({Local({1, 4}, {2 * Rank(), 0}),
                             Local({1, 4}, {2 * Rank() + 1, 0}, kInt32)},
                            {4, 4});
       },
       kValueError, "property need to be the same on rank:"},
      {"two dtypes on two ranks",
       [] {
         return PutTogether({Local({2, 4}, {2 * Rank(), 0},
                                   Rank() == 0 ? kFloat32 : kFloat64)},
                            {4, 4});
       },
       kValueError,
       "ShardedTensor dtype property does not match from different ranks!"},
      {"two sizes",
       [rows] {
         return PutTogether({rows()}, {4 + Rank(), 4});
       },
       kValueError,
       "ShardedTensor global_size property does not match from different "
       "ranks!"},
      {"requires_grad on one rank",
       [rows] {
         return PutTogether({rows()}, {4, 4}, {.requires_grad = Rank() == 0});
       },
       kValueError,
       "ShardedTensor requires_grad property does not match from different "
       "ranks!"},
      {"shards that overlap",
       [] {
         return PutTogether({Local({3, 4}, {Rank(), 0})}, {4, 4});
       },
       kValueError, "overlap"},
      {"shards with a gap",
       [] {
         return PutTogether({Local({1, 4}, {2 * Rank(), 0})}, {4, 4});
       },
       kValueError, "does not match tensor volume"},
      {"shards that reach out",
       [] {
         return PutTogether({Local({2, 4}, {3 * Rank(), 0})}, {4, 4});
       },
       kValueError, "exceeds tensor dim"},
      {"another number of dimensions",
       [rows] { return PutTogether({rows()}, {}); }, kValueError,
       "Rank of tensor is 0, but shards rank is 2"},
  });
}

TEST(RejectionsTest, OfLocalTensors) {
  const auto put = [](const Tensor& local, const ShardingSpecPtr& spec) {
    return ShardedTensor::FromLocalTensor(local, spec, {4, 4}).status();
  };
  ExpectRejected({
      {"not contiguous",
       [put] {
         return put(Zeros({4, 2}).Transpose(0, 1).value(), Chunks(0));
       },
       kValueError, "local_tensor is not a contiguous Tensor."},
      {"another size",
       [put] {
         return put(Zeros({3, 4}), Chunks(0));
       },
       kValueError, "does not match"},
      {"a spec that does not cover",
       [put] {
         return put(Zeros({2, 4}), Boxes({{{0, 0}, {2, 4}, "rank:0"},
                                          {{2, 0}, {1, 4}, "rank:1"}}));
       },
       kValueError, "do not cover the entire tensor"},
      {"no spec",
       [put] {
         return put(Zeros({2, 4}), nullptr);
       },
       kValueError, "Expecting ShardingSpec"},
  });
}

// A rank's metadata of all shards, and a defect applied to it.
struct LocalView {
  std::vector<Shard> shards = {Local({2, 4}, {2 * Rank(), 0})};
  ShardedTensorMetadata metadata = {
      .shards = {{{0, 0}, {2, 4}, "rank:0"}, {{2, 0}, {2, 4}, "rank:1"}},
      .size = {4, 4}};
  ShardingSpecPtr spec;
};

TEST(RejectionsTest, OfLocalShardsAndMetadata) {
  const auto with = [](std::function<void(LocalView&)> harm) {
    return [harm] {
      LocalView view;
      harm(view);
      return ShardedTensor::FromLocalShardsAndMetadata(
                 view.shards, view.metadata, {}, view.spec)
          .status();
    };
  };
  ExpectRejected({
      {"a placement that is not there", with([](LocalView& view) {
         view.metadata.shards[1].placement = "rank:4";
       }),
       kValueError, "Global rank 4 does not exist in input process group"},
      {"too few shards", with([](LocalView& view) { view.shards.clear(); }),
       kRuntimeError, "does not match number of local shards metadata"},
      {"too many shards",
       with([](LocalView& view) { view.shards.push_back(view.shards[0]); }),
       kRuntimeError, "does not match number of local shards metadata"},
      {"no metadata", with([](LocalView& view) {
         view.shards.clear();
         view.metadata.shards.clear();
       }),
       kValueError, "shards_metadata must not be empty!"},
      {"a layout that is not strided", with([](LocalView& view) {
         view.metadata.properties.layout = Layout::kSparseCoo;
       }),
       kValueError, "Only torch.strided layout is currently supported"},
      {"a spec that does not fit",
       with([](LocalView& view) { view.spec = Chunks(2); }), kValueError,
       "Invalid sharding dim"},
      {"not contiguous", with([](LocalView& view) {
         view.shards[0].tensor = Zeros({4, 2}).Transpose(0, 1).value();
       }),
       kValueError,
       "Only torch.contiguous_format memory_format is currently supported"},
      {"another size", with([](LocalView& view) {
         view.shards[0].tensor = Zeros({2, 3});
       }),
       kValueError, "property is incompatible with"},
      {"another dtype", with([](LocalView& view) {
         view.shards[0].tensor = Zeros({2, 4}, kInt8);
       }),
       kValueError, "Local shards' tensor dtype property is incompatible with"},
      {"shards that overlap", with([](LocalView& view) {
         view.metadata.shards[0].sizes[0] = 3;
         if (Rank() == 0) view.shards[0].tensor = Zeros({3, 4});
       }),
       kValueError, "overlap"},
      {"shards with a gap", with([](LocalView& view) {
         view.metadata.size = {5, 4};
       }),
       kValueError, "does not match tensor volume"},
  });
}

TEST(RejectionsTest, WithoutAGroup) {
  const auto make = [](std::vector<ShardMetadata> shards, Dims size) {
    std::vector<Shard> local;
    for (const ShardMetadata& shard : shards) {
      local.push_back({Zeros(shard.sizes), shard});
    }
    return ShardedTensor::WithoutGroup(
        local, {.shards = std::move(shards), .size = std::move(size)});
  };
  EXPECT_THAT(make({}, {4}),
              StatusIs(kValueError, "shards_metadata must not be empty!"));
  EXPECT_THAT(make({{{0}, {2}, "rank:0"}, {{1}, {3}, "rank:1"}}, {4}),
              StatusIs(kValueError, "overlap"));
  EXPECT_THAT(make({{{0}, {2}, "rank:0"}, {{3}, {1}, "rank:1"}}, {4}),
              StatusIs(kValueError, "does not match tensor volume"));
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      make({{{0}, {2}, "rank:0"}, {{2}, {2}, "rank:9"}}, {4}));
  // Nothing can be asked of other ranks.
  EXPECT_THAT(tensor.Gather(), StatusIs(kRuntimeError));
  EXPECT_THAT(tensor.Reshard(Chunks(0)), StatusIs(kRuntimeError));
}

// Code that the reference rejects at run time does not compile here.

template <typename Dim>
concept IsDim = requires(Dim dim) {
  ChunkShardingSpec::Create(dim, {"rank:0"});
};
static_assert(IsDim<int>);
static_assert(!IsDim<const char*>, "a dimension has no name");
static_assert(!IsDim<std::string>);
static_assert(!IsDim<double>);
static_assert(!IsDim<std::optional<int>>);

template <typename Size>
concept IsSize = requires(ShardingSpecPtr spec, Size size) {
  ShardedTensor::Empty(spec, size);
};
static_assert(IsSize<std::vector<int64_t>>);
static_assert(IsSize<Dims>);
static_assert(!IsSize<const char*>);
static_assert(!IsSize<std::string>);
static_assert(!IsSize<std::vector<double>>);
static_assert(!IsSize<std::vector<std::optional<int64_t>>>);
static_assert(!IsSize<double>);

template <typename Spec>
concept IsSpec = requires(Spec spec) {
  ShardedTensor::Empty(spec, {4});
};
static_assert(IsSpec<ShardingSpecPtr>);
static_assert(IsSpec<std::shared_ptr<const ChunkShardingSpec>>);
static_assert(!IsSpec<int>);
static_assert(!IsSpec<std::string>);
static_assert(!IsSpec<std::vector<Placement>>);

// A tensor may be writable, its properties may not.
template <typename Property>
constexpr bool kReadOnly = !std::is_reference_v<Property> ||
                           std::is_const_v<std::remove_reference_t<Property>>;
using Mutable = ShardedTensor&;
static_assert(kReadOnly<decltype(std::declval<Mutable>().metadata())>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().spec())>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().group())>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().dtype())>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().requires_grad())>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().size()[0])>);
static_assert(kReadOnly<decltype(std::declval<Mutable>().local_shards()[0])>);

template <typename Other>
concept ComparesWith = requires(ShardedTensor tensor, Other other) {
  Equal(tensor, other);
};
static_assert(ComparesWith<ShardedTensor>);
static_assert(!ComparesWith<Tensor>);
static_assert(!ComparesWith<int>);

template <typename Target>
concept ConvertsTo = requires(ShardedTensor tensor, Target target) {
  tensor.To(target);
};
static_assert(ConvertsTo<DType>);
static_assert(ConvertsTo<Device>);
static_assert(!ConvertsTo<int>);
static_assert(ConvertsTo<const char*>, "text converts to a device");
static_assert(!ConvertsTo<Tensor>);

}  // namespace
}  // namespace sherd
