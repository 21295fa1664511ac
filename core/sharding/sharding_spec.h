#ifndef SHERD_CORE_SHARDING_SHARDING_SPEC_H_
#define SHERD_CORE_SHARDING_SHARDING_SPEC_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

class ShardingSpec;

// Specs are immutable and passed around by this pointer. It is never null
// where a spec is expected; null is reported as "Expecting ShardingSpec".
using ShardingSpecPtr = std::shared_ptr<const ShardingSpec>;

// A rule that turns the size of a tensor into boxes with places.
//
// Users add their own by deriving from this class, or from one of those below:
// a derived class inherits the registered operations of its base unless it
// registers its own. The metadata that a user's spec builds is checked on every
// use (BuildValidatedMetadata). A spec that is also a TensorScatterer decides
// how ShardTensor distributes the elements.
//
// Threads. Safe.
class ShardingSpec {
 public:
  virtual ~ShardingSpec() = default;

  // The shards of a tensor of `size`: boxes that together hold every element.
  // Equal boxes with different placements are replicas; otherwise boxes do not
  // overlap. Equal specs give equal results.
  //   kInvalidArgument  The rule does not fit the size, or the size is
  //                     negative or overflows.
  virtual absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const = 0;

  // Everything that makes the rule what it is: ranks compare specs by it.
  virtual std::string ToString() const = 0;

  // The same rule with `replace(p)` in place of every placement p, for a tensor
  // that moves to other devices or ranks. Null if the spec cannot express it:
  // the tensor then gets a spec inferred from its metadata.
  virtual ShardingSpecPtr WithPlacements(
      absl::FunctionRef<Placement(const Placement&)> /*replace*/) const {
    return nullptr;
  }

  // Whether both are of one class and have the same parameters.
  friend bool operator==(const ShardingSpec& a, const ShardingSpec& b) {
    return typeid(a) == typeid(b) && a.Equals(b);
  }

 protected:
  ShardingSpec() = default;
  ShardingSpec(const ShardingSpec&) = default;
  ShardingSpec& operator=(const ShardingSpec&) = delete;

  // Whether `other`, which is of the same class, has the same parameters.
  virtual bool Equals(const ShardingSpec& other) const = 0;
};

std::ostream& operator<<(std::ostream& out, const ShardingSpec& spec);

// Cuts one dimension into as many chunks as there are placements.
//
// Layout. With D elements in the dimension, C placements and s = ceil(D / C),
// chunk i holds [s * i, min(s * i + s, D)), and is empty once s * i >= D.
// Metadata has one entry per placement, in their order; the offset of an empty
// chunk is s * i all the same. A rank may have several chunks, or none.
//
// Derived classes are constructed from a spec that Create has checked, keep its
// rule, and override Equals, ToString and WithPlacements for their own state:
//
//     class MyChunks : public ChunkShardingSpec {
//      public:
//       explicit MyChunks(const ChunkShardingSpec& chunks)
//           : ChunkShardingSpec(chunks) {}
//     };
class ChunkShardingSpec : public ShardingSpec {
 public:
  // `dim` may be negative, counting from the end; its range is checked when
  // sizes are known. Placements may be written as text:
  //
  //     ChunkShardingSpec::Create(0, {"rank:0/cpu", "rank:1/cpu"})
  //
  //   kInvalidArgument     There are no placements, or "Could not parse
  //                        remote_device".
  //   kFailedPrecondition  A placement's device is malformed or unknown, as in
  //                        "rank:0/foo": see Placement::Parse.
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      int dim, std::vector<Placement> placements);

  // As Create, for a list of strings. A template so that it never competes for
  // a braced list.
  template <std::same_as<std::string> S>
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      int dim, const std::vector<S>& placements) {
    return Create(dim,
                  std::vector<Placement>(placements.begin(), placements.end()));
  }

  // Deleted: a dimension is an integer.
  template <std::floating_point F>
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      F dim, std::vector<Placement> placements) = delete;

  int dim() const { return dim_; }
  const std::vector<Placement>& placements() const { return placements_; }

  //   kInvalidArgument  "Invalid sharding dim": not in [-D, D) for a tensor of
  //                     D dimensions, so never valid for a scalar.
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const final;
  std::string ToString() const override;
  ShardingSpecPtr WithPlacements(
      absl::FunctionRef<Placement(const Placement&)> replace) const override;

 protected:
  ChunkShardingSpec(const ChunkShardingSpec&) = default;
  // Compares `dim` as given: -1 does not equal the last dimension's number.
  bool Equals(const ShardingSpec& other) const override;

 private:
  ChunkShardingSpec(int dim, std::vector<Placement> placements)
      : dim_(dim), placements_(std::move(placements)) {}

  const int dim_;
  const std::vector<Placement> placements_;
};

// Lists the boxes one by one; fits tensors of exactly one size. Derived classes
// are made as those of ChunkShardingSpec.
class EnumerableShardingSpec : public ShardingSpec {
 public:
  //     EnumerableShardingSpec::Create({
  //         {.offsets = {0, 0}, .sizes = {5, 10}, .placement = "rank:0/cpu"},
  //         {.offsets = {5, 0}, .sizes = {5, 10}, .placement = "rank:1/cpu"}})
  //
  //   kInvalidArgument     "Empty shard list provided", or
  //                        ValidateNonOverlapping.
  //   kFailedPrecondition  A placement's device is malformed or unknown.
  static absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>> Create(
      std::vector<ShardMetadata> shards);

  // As Create, but equal boxes with different placements are replicas. Without
  // replicas it returns the spec that Create returns.
  static absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>>
  CreateWithReplicas(std::vector<ShardMetadata> shards);

  const std::vector<ShardMetadata>& shards() const { return shards_; }
  // Whether there are equal boxes among them that are not empty.
  bool has_replicas() const { return replicas_ == Replicas::kAllowed; }

  // Errors. See ValidateCover.
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const final;
  std::string ToString() const override;
  // Null if two replicas would get one placement.
  ShardingSpecPtr WithPlacements(
      absl::FunctionRef<Placement(const Placement&)> replace) const override;

 protected:
  EnumerableShardingSpec(const EnumerableShardingSpec&) = default;
  bool Equals(const ShardingSpec& other) const override;

 private:
  EnumerableShardingSpec(std::vector<ShardMetadata> shards, Replicas replicas)
      : shards_(std::move(shards)), replicas_(replicas) {}

  static absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>> Make(
      std::vector<ShardMetadata> shards, Replicas replicas);

  const std::vector<ShardMetadata> shards_;
  const Replicas replicas_;
};

// A spec whose BuildMetadata gives these shards: ChunkShardingSpec if they are
// chunks of one dimension, which may be in any order and are then sorted by
// their offsets; otherwise, or if all begin at 0, EnumerableShardingSpec with
// the shards as given. Never MeshShardingSpec: several meshes have the same
// shards, and all of them move the same bytes.
//   kInvalidArgument, kFailedPrecondition
//                     As EnumerableShardingSpec::Create, or, if replicas are
//                     allowed, CreateWithReplicas.
absl::StatusOr<ShardingSpecPtr> InferShardingSpec(
    absl::Span<const ShardMetadata> shards,
    Replicas replicas = Replicas::kRefused);

// ceil(size / chunks) without overflow: the length of a chunk. `chunks` > 0.
int64_t ChunkLength(int64_t size, int64_t chunks);

// Part `index` of `count` parts of a dimension of `size`, by the rule of
// ChunkShardingSpec.
struct Chunk {
  int64_t offset = 0;
  int64_t size = 0;
};
//   kInvalidArgument  The offset of an empty chunk does not fit in 64 bits.
absl::StatusOr<Chunk> ChunkAt(int64_t size, int64_t count, int64_t index);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDING_SPEC_H_
