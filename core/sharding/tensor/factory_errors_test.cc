// Each error that the factories of specs, shards and sharded tensors document,
// and no other.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/tensor_properties.h"
#include "sherd/testing/kits/contract_cards.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/local_ranks.h"

namespace sherd {
namespace {

using ::sherd::testing::CardOfErrors;
using ::sherd::testing::DocumentedError;
using ::sherd::testing::ExpectCardsHold;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::RunLocalRanks;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kMissing = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;
constexpr absl::StatusCode kMemory = absl::StatusCode::kResourceExhausted;

std::string In(const char* header, const char* phrase) {
  return std::string("core/sharding/") + header + ": " + phrase;
}

// The status of a call, made when the error is looked at.
template <typename Call>
DocumentedError Error(const char* what, absl::StatusCode code, Call call) {
  return {what, code, [call]() -> absl::Status {
            const auto result = call();
            if constexpr (std::is_same_v<decltype(call()), absl::Status>) {
              return result;
            } else {
              return result.status();
            }
          }};
}

// Ranks that are threads have their default group on them alone.
template <typename Call>
absl::Status WithoutDefaultGroup(Call call) {
  absl::Status status;
  std::thread([&] { status = call().status(); }).join();
  return status;
}

// With one device.
template <typename Call>
absl::Status WithDevice(Call call) {
  FakeDevice::Install(1);
  absl::Status status = call().status();
  DeviceRuntime::SetLoader(nullptr);
  return status;
}

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

Allocator* NoMemory() {
  static EmptyAllocator empty;
  return &empty;
}

Tensor Zeros(absl::Span<const int64_t> size) {
  return Tensor::Zeros(size).value();
}

ShardingSpecPtr On(Placement placement) {
  return ChunkShardingSpec::Create(0, {std::move(placement)}).value();
}

TEST(FactoryErrorsTest, OfPlacementsAndSpecs) {
  const auto box = [](Placement placement) {
    return ShardMetadata{{0}, {4}, std::move(placement)};
  };
  const auto chunks = [](const char* placement) {
    return [=] { return ChunkShardingSpec::Create(0, {placement}); };
  };
  const auto list = [=](const char* placement) {
    return [=] { return EnumerableShardingSpec::Create({box(placement)}); };
  };
  const auto replicas = [=](std::vector<ShardMetadata> boxes) {
    return [=] { return EnumerableShardingSpec::CreateWithReplicas(boxes); };
  };
  const auto mesh = [](Dims shape, const char* placement,
                       std::vector<std::vector<int>> cuts = {{0}}) {
    return [=] {
      return MeshShardingSpec::Create(
          {.shape = shape, .placements = {placement}}, cuts);
    };
  };
  const std::string mesh_card =
      In("mesh_sharding_spec.h", "cuts[d] lists the mesh dimensions");
  ExpectCardsHold({
      {"Placement::Parse",
       {In("placement.h", "\"Could not parse remote_device\": no owner")},
       {Error("two colons", kInvalid,
              [] { return Placement::Parse("rank:0:1"); }),
        Error("a device that there is not", kPrecondition,
              [] { return Placement::Parse("rank:0/foo"); })}},
      {"RankResolver::Resolve",
       {In("placement.h", "\"remote device is None\"")},
       {Error("nothing", kInvalid,
              [] { return ResolveRank(std::nullopt, AllRanks(1)); }),
        Error("another rank", kInvalid,
              [] { return ResolveRank("rank:3", AllRanks(1)); }),
        Error("no owner", kInvalid,
              [] { return ResolveRank("cuda:0", AllRanks(1)); }),
        Error("malformed", kInvalid,
              [] { return ResolveRank("rank:x", AllRanks(1)); }),
        Error("a malformed device", kPrecondition,
              [] { return ResolveRank("rank:0/foo", AllRanks(1)); }),
        Error("a worker without RPC", kPrecondition,
              [] { return ResolveRank("trainer0", AllRanks(1)); })}},
      {"ShardMetadata::Validate",
       {In("shard_metadata.h", "do not have the \"same number of")},
       {Error("numbers", kInvalid,
              [] {
                return ShardMetadata{{0, 0}, {4}, {}}.Validate();
              })}},
      {"ChunkShardingSpec::Create",
       {In("sharding_spec.h", "`dim` may be negative, counting from")},
       {Error("none", kInvalid,
              [] { return ChunkShardingSpec::Create(0, {}); }),
        Error("malformed", kInvalid, chunks("rank:x")),
        Error("a device that there is not", kPrecondition,
              chunks("rank:0/foo")),
        Error("a malformed device", kPrecondition, chunks("rank:0/cuda:x"))}},
      {"ChunkShardingSpec::BuildMetadata",
       {In("sharding_spec.h", "\"Invalid sharding dim\": not in [-D, D)")},
       {Error("a scalar", kInvalid,
              [] { return On("rank:0")->BuildMetadata({}, {}); })}},
      {"EnumerableShardingSpec::Create",
       {In("sharding_spec.h", "EnumerableShardingSpec::Create({")},
       {Error("none", kInvalid,
              [] { return EnumerableShardingSpec::Create({}); }),
        Error("malformed", kInvalid, list("rank:x")),
        Error("a device that there is not", kPrecondition,
              list("rank:0/foo"))}},
      {"EnumerableShardingSpec::CreateWithReplicas",
       {In("sharding_spec.h", "EnumerableShardingSpec::Create({")},
       {Error("two alike", kInvalid, replicas({box("rank:0"), box("rank:0")})),
        Error("a device that there is not", kPrecondition,
              replicas({box("rank:0/foo"), box("rank:1")}))}},
      {"InferShardingSpec",
       {In("sharding_spec.h", "A spec whose BuildMetadata gives these")},
       {Error("none", kInvalid, [] { return InferShardingSpec({}); }),
        Error("a device that there is not", kPrecondition,
              [=] { return InferShardingSpec({{box("rank:0/foo")}}); })}},
      {"DeviceMesh::Validate",
       {In("mesh_sharding_spec.h", "An entry of the shape is not positive")},
       {Error("no place", kInvalid,
              [] {
                return DeviceMesh{{0}, {}}.Validate();
              }),
        Error("malformed", kInvalid,
              [] {
                return DeviceMesh{{1}, {"rank:x"}}.Validate();
              }),
        Error("a device that there is not", kPrecondition,
              [] {
                return DeviceMesh{{1}, {"rank:0/foo"}}.Validate();
              })}},
      {"MeshShardingSpec::Create",
       {mesh_card},
       {Error("too few placements", kInvalid, mesh({2}, "rank:0")),
        Error("a dimension that is not there", kInvalid,
              mesh({1}, "rank:0", {{1}})),
        Error("a dimension twice", kInvalid, mesh({1}, "rank:0", {{0}, {0}})),
        Error("a device that there is not", kPrecondition,
              mesh({1}, "rank:0/foo"))}},
      {"MeshShardingSpec::FromPlacements",
       {mesh_card},
       {Error("too few", kInvalid,
              [] {
                return MeshShardingSpec::FromPlacements({{1}, {"rank:0"}}, {});
              }),
        Error("a device that there is not", kPrecondition,
              [] {
                return MeshShardingSpec::FromPlacements(
                    {{1}, {"rank:0/foo"}}, {MeshPlacement::Replicate()});
              })}},
      {"MeshShardingSpec::Grid",
       {mesh_card},
       {Error("too few", kInvalid,
              [] { return MeshShardingSpec::Grid({2}, {"rank:0"}); }),
        Error("a device that there is not", kPrecondition,
              [] { return MeshShardingSpec::Grid({1}, {"rank:0/foo"}); })}},
  });
}

TEST(FactoryErrorsTest, OfShards) {
  const auto shard = [](Placement placement) {
    return Shard{Zeros({4}), {{0}, {4}, std::move(placement)}}.Validate();
  };
  const auto make =
      [](const TensorProperties& properties, const Device& device = {},
         Allocator* allocator = nullptr, absl::Span<const int64_t> size = {4}) {
        return MakeLocalTensor(size, properties, device, allocator);
      };
  ExpectCardsHold({
      {"Shard::FromTensorAndOffsets",
       {In("shard.h", "The shard of `rank` that holds")},
       {Error("a negative rank", kInvalid,
              [] { return Shard::FromTensorAndOffsets(Zeros({4}), {0}, -1); }),
        Error("undefined", kInvalid,
              [] { return Shard::FromTensorAndOffsets({}, {}, 0); }),
        Error("too many offsets", kInvalid,
              [] {
                return Shard::FromTensorAndOffsets(Zeros({4}), {0, 0}, 0);
              })}},
      {"Shard::Validate",
       {In("shard.h", "\"Shard tensor size does not match with")},
       {Error("another device", kInvalid, [=] { return shard("cuda:0"); }),
        Error("malformed", kInvalid, [=] { return shard("rank:x"); }),
        Error("a device that there is not", kPrecondition,
              [=] { return shard("rank:0/foo"); })}},
      {"CheckShardedProperties",
       {In("shard.h", "that shards of any sharded tensor must have")},
       {Error("layout", kInvalid,
              [] {
                return CheckShardedProperties({.layout = Layout::kSparseCoo});
              })}},
      {"CheckPinnable",
       {In("shard.h", "\"Only dense CPU tensors can be pinned\": pin_memory")},
       {Error("a device", kPrecondition,
              [] { return CheckPinnable({.pin_memory = true}, "cuda"); })}},
      {"MakeLocalTensor",
       {In("shard.h", "A contiguous tensor of these sizes and properties")},
       {Error("layout", kInvalid,
              [=] { return make({.layout = Layout::kSparseCoo}); }),
        Error("a negative size", kInvalid,
              [=] { return make({}, {}, nullptr, {-1}); }),
        Error("pinned", kPrecondition,
              [=] { return make({.pin_memory = true}, "meta"); }),
        Error("text that is not a device", kPrecondition,
              [=] { return make({}, "foo"); }),
        Error("no plugin", kMissing, [=] { return make({}, "cuda"); }),
        Error("a device that there is not", kRange,
              [=] { return WithDevice([=] { return make({}, "cuda:9"); }); }),
        Error("no memory", kMemory, [=] { return make({}, {}, NoMemory()); })}},
  });
}

// The documented errors of all creators, tested on one.
using Creator = std::function<absl::StatusOr<ShardedTensor>(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options)>;

std::vector<DocumentedError> ErrorsOf(const Creator& create) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto make = [create](Placement placement,
                             const ShardedTensorOptions& options = {},
                             int64_t size = 4) {
    return create(On(std::move(placement)), {size}, options);
  };
  return {
      Error("no spec", kInvalid, [=] { return create(nullptr, {4}, {}); }),
      Error("a negative size", kInvalid,
            [=] { return make("rank:0", {}, -1); }),
      Error("too many bytes", kInvalid,
            [=] { return make("rank:0", {}, kHuge); }),
      Error("layout", kInvalid,
            [=] { return make("rank:0", {.layout = Layout::kSparseCoo}); }),
      Error("another rank", kInvalid, [=] { return make("rank:5"); }),
      Error(
          "no group", kPrecondition,
          [=] { return WithoutDefaultGroup([=] { return make("rank:0"); }); }),
      Error("pinned", kPrecondition,
            [=] { return make("rank:0/meta", {.pin_memory = true}); }),
      Error("a worker", kPrecondition, [=] { return make("trainer0"); }),
      Error("no plugin", kMissing, [=] { return make("rank:0/cuda"); }),
      Error("a device that there is not", kRange,
            [=] { return WithDevice([=] { return make("rank:0/cuda:9"); }); }),
      Error("no memory", kMemory,
            [=] { return make("rank:0", {.allocator = NoMemory()}); }),
  };
}

TEST(FactoryErrorsTest, OfShardedTensors) {
  const std::vector<std::string> creation = {
      In("sharded_tensor.h", "Creation. Not collective: no rank waits")};
  const std::pair<const char*, Creator> creators[] = {
      {"Empty", [](auto&&... a) { return ShardedTensor::Empty(a...); }},
      {"Zeros", [](auto&&... a) { return ShardedTensor::Zeros(a...); }},
      {"Ones", [](auto&&... a) { return ShardedTensor::Ones(a...); }},
      {"Full",
       [](const auto& spec, auto size, const auto& options) {
         return ShardedTensor::Full(spec, size, 7, options);
       }},
      {"Rand", [](auto&&... a) { return ShardedTensor::Rand(a...); }},
      {"Randn", [](auto&&... a) { return ShardedTensor::Randn(a...); }},
  };
  std::vector<CardOfErrors> cards;
  for (const auto& [name, create] : creators) {
    cards.push_back({name, creation, ErrorsOf(create)});
  }
  cards.push_back({"EmptyLike",
                   {In("sharded_tensor_like.h", "The source was not created")},
                   {Error("no source", kPrecondition,
                          [] { return EmptyLike(ShardedTensor()); }),
                    Error("no source of random numbers", kPrecondition,
                          [] { return RandLike(ShardedTensor()); })}});
  RunLocalRanks(1, [&](ProcessGroup&) { ExpectCardsHold(cards); });
}

// Of FromLocalShards, of a rank's only shard.
absl::Status FromShard(Placement placement,
                       const ShardedTensorOptions& options = {},
                       const Tensor& tensor = Zeros({4})) {
  return ShardedTensor::FromLocalShards(
             {{tensor, {{0}, {4}, std::move(placement)}}}, {4}, options)
      .status();
}

absl::StatusOr<ShardedTensor> FromMetadata(
    Placement placement, std::optional<Tensor> tensor = Zeros({4}),
    const TensorProperties& properties = {}) {
  const ShardMetadata box = {{0}, {4}, std::move(placement)};
  std::vector<Shard> shards;
  if (tensor) shards.push_back({*tensor, box});
  return ShardedTensor::FromLocalShardsAndMetadata(
      shards, {.shards = {box}, .size = {4}, .properties = properties});
}

absl::StatusOr<ShardedTensor> WithoutGroup(Placement placement,
                                           const Tensor& tensor = Zeros({4})) {
  const ShardMetadata box = {{0}, {4}, std::move(placement)};
  return ShardedTensor::WithoutGroup({{tensor, box}},
                                     {.shards = {box}, .size = {4}});
}

TEST(FactoryErrorsTest, OfShardsThatExist) {
  const auto of_tensor = [](const Tensor& tensor) {
    return ShardedTensor::FromLocalTensor(tensor, On("rank:0"), {4});
  };
  const std::vector<CardOfErrors> cards = {
      {"FromLocalShards",
       {In("sharded_tensor.h", "Assembles a tensor from the ranks' shards")},
       {Error("another rank", kInvalid, [] { return FromShard("rank:5"); }),
        Error("another device", kInvalid,
              [] { return FromShard("rank:0/cuda:0"); }),
        Error("another size", kInvalid,
              [] { return FromShard("rank:0", {}, Zeros({3})); }),
        Error("no shards", kInvalid,
              [] { return ShardedTensor::FromLocalShards({}, {4}); }),
        Error("a worker", kPrecondition, [] { return FromShard("trainer0"); }),
        Error("a malformed device", kPrecondition,
              [] { return FromShard("rank:0/foo"); }),
        Error("pinned", kPrecondition,
              [] {
                return FromShard(
                    "rank:0/meta", {.pin_memory = true},
                    Tensor::Empty({4}, {.device = "meta"}).value());
              }),
        Error("no group", kPrecondition,
              [] {
                return WithoutDefaultGroup(
                    [] { return ShardedTensor::FromLocalShards({}, {4}); });
              })}},
      {"FromLocalTensor",
       {In("sharded_tensor.h",
           "Each rank passes the tensor of its only shard")},
       {Error("not contiguous", kInvalid,
              [=] {
                return of_tensor(Zeros({4, 2}).Select(1, 0).value());
              }),
        Error("another size", kInvalid, [=] { return of_tensor(Zeros({3})); }),
        Error("no tensor", kInvalid, [=] { return of_tensor({}); }),
        Error("no group", kPrecondition,
              [=] {
                return WithoutDefaultGroup([=] { return of_tensor({}); });
              })}},
      {"FromLocalShardsAndMetadata",
       {In("sharded_tensor.h", "Each rank passes its shards and the metadata")},
       {Error("another rank", kInvalid, [] { return FromMetadata("rank:5"); }),
        Error("a worker", kPrecondition,
              [] { return FromMetadata("trainer0"); }),
        Error("no shards", kPrecondition,
              [] { return FromMetadata("rank:0", std::nullopt); }),
        Error("no metadata", kInvalid,
              [] { return ShardedTensor::FromLocalShardsAndMetadata({}, {}); }),
        Error("another size", kInvalid,
              [] { return FromMetadata("rank:0", Zeros({3})); }),
        Error("another dtype", kInvalid,
              [] {
                return FromMetadata("rank:0", Zeros({4}), {.dtype = kInt8});
              })}},
      {"WithoutGroup",
       {In("sharded_tensor.h", "\"All shards here\": no group is needed")},
       {Error("no metadata", kInvalid,
              [] { return ShardedTensor::WithoutGroup({}, {}); }),
        Error("another size", kInvalid,
              [] { return WithoutGroup("rank:0", Zeros({3})); }),
        Error("a malformed device", kPrecondition,
              [] { return WithoutGroup("rank:0/foo"); })}},
      {"PartialTensor::Create",
       {In("partial_tensor.h", "`local` is shared, not copied")},
       {Error("undefined", kInvalid, [] { return PartialTensor::Create({}); }),
        Error("no such reduction", kInvalid,
              [] {
                return PartialTensor::Create(
                    Tensor::Zeros({4}, {.dtype = kComplex64}).value(),
                    ReduceOp::kMax);
              }),
        Error("no data", kPrecondition,
              [] {
                return PartialTensor::Create(
                    Tensor::Empty({4}, {.device = "meta"}).value());
              }),
        Error("carried", kMissing,
              [] {
                return PartialTensor::Create(
                    Tensor::Zeros({4}, {.dtype = kComplex32}).value());
              })}},
      {"ShardTensor",
       {In("sharded_tensor.h", "Cuts a tensor that one rank has and gives")},
       {Error("undefined", kInvalid,
              [] { return ShardTensor({}, On("rank:0")); }),
        Error("no spec", kInvalid,
              [] { return ShardTensor(Zeros({4}), nullptr); }),
        Error("no data", kPrecondition,
              [] {
                return ShardTensor(
                    Tensor::Empty({4}, {.device = "meta"}).value(),
                    On("rank:0"));
              }),
        Error("no memory", kMemory,
              [] {
                return ShardTensor(Zeros({4}), On("rank:0"), 0, nullptr,
                                   {.allocator = NoMemory()});
              })}},
  };
  RunLocalRanks(1, [&](ProcessGroup&) { ExpectCardsHold(cards); });
}

}  // namespace
}  // namespace sherd
