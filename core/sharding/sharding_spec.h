#ifndef SHERD_CORE_SHARDING_SHARDING_SPEC_H_
#define SHERD_CORE_SHARDING_SHARDING_SPEC_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/tensor_properties.h"

namespace sherd {

class ShardingSpec;

// Specs are immutable and passed around by this pointer. It is never null
// where a spec is expected; null is reported as "Expecting ShardingSpec".
using ShardingSpecPtr = std::shared_ptr<const ShardingSpec>;

// A rule that turns the size of a tensor into boxes with places. Users may add
// their own.
//
// Threads. Safe.
class ShardingSpec {
 public:
  virtual ~ShardingSpec() = default;

  // The shards of a tensor of `size`: boxes that do not overlap and together
  // hold every element. Equal specs give equal results.
  //   kInvalidArgument  The rule does not fit the size, or the size is
  //                     negative or overflows.
  virtual absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const = 0;

  virtual std::string ToString() const = 0;

  friend bool operator==(const ShardingSpec& a, const ShardingSpec& b) {
    return a.Equals(b);
  }

 protected:
  // Whether `other` is the same rule: same class, same parameters.
  virtual bool Equals(const ShardingSpec& other) const = 0;
};

std::ostream& operator<<(std::ostream& out, const ShardingSpec& spec);

// Cuts one dimension into as many chunks as there are placements.
//
// Layout. With D elements in the dimension, C placements and s = ceil(D / C),
// chunk i holds [s * i, min(s * i + s, D)), and is empty once s * i >= D.
// Metadata has one entry per placement, in their order; the offset of an empty
// chunk is s * i all the same. A rank may have several chunks, or none.
class ChunkShardingSpec final : public ShardingSpec {
 public:
  // `dim` may be negative, counting from the end; its range is checked when
  // sizes are known. Placements may be written as text:
  //
  //     ChunkShardingSpec::Create(0, {"rank:0/cpu", "rank:1/cpu"})
  //
  //   kInvalidArgument  No placements, or one is malformed.
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      int dim, std::vector<Placement> placements);

  // The same for a list of strings. A template so that it never competes for a
  // braced list.
  template <std::same_as<std::string> S>
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      int dim, const std::vector<S>& placements) {
    return Create(dim,
                  std::vector<Placement>(placements.begin(), placements.end()));
  }

  // A dimension is a whole number.
  template <std::floating_point F>
  static absl::StatusOr<std::shared_ptr<const ChunkShardingSpec>> Create(
      F dim, std::vector<Placement> placements) = delete;

  int dim() const { return dim_; }
  const std::vector<Placement>& placements() const { return placements_; }

  //   kInvalidArgument  "Invalid sharding dim": not in [-D, D) for a tensor of
  //                     D dimensions, so never valid for a scalar.
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override;
  std::string ToString() const override;

 private:
  ChunkShardingSpec(int dim, std::vector<Placement> placements)
      : dim_(dim), placements_(std::move(placements)) {}

  bool Equals(const ShardingSpec& other) const override;

  const int dim_;
  const std::vector<Placement> placements_;
};

// Lists the boxes one by one; fits tensors of exactly one size.
class EnumerableShardingSpec final : public ShardingSpec {
 public:
  //     EnumerableShardingSpec::Create({
  //         {.offsets = {0, 0}, .sizes = {5, 10}, .placement = "rank:0/cpu"},
  //         {.offsets = {5, 0}, .sizes = {5, 10}, .placement = "rank:1/cpu"}})
  //
  //   kInvalidArgument  "Empty shard list provided", or ValidateNonOverlapping.
  static absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>> Create(
      std::vector<ShardMetadata> shards);

  const std::vector<ShardMetadata>& shards() const { return shards_; }

  // Errors. See ValidateCover.
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override;
  std::string ToString() const override;

 private:
  explicit EnumerableShardingSpec(std::vector<ShardMetadata> shards)
      : shards_(std::move(shards)) {}

  bool Equals(const ShardingSpec& other) const override;

  const std::vector<ShardMetadata> shards_;
};

// Cuts every dimension d of a tensor of `size` into grid[d] parts, each by the
// rule of ChunkShardingSpec.
//
// Layout. The cell (c[0], c[1], …) has placement number ((c[0] * grid[1] +
// c[1]) * grid[2] + …). A scalar has an empty grid and one placement.
//   kInvalidArgument  `grid` does not have the dimensions of `size` or an entry
//                     is not positive, or there are not as many placements as
//                     cells.
absl::StatusOr<std::shared_ptr<const EnumerableShardingSpec>> GridShardingSpec(
    absl::Span<const int64_t> size, absl::Span<const int64_t> grid,
    const std::vector<Placement>& placements);

// A spec whose BuildMetadata gives these shards: ChunkShardingSpec if they are
// chunks of one dimension in any order, and otherwise, or if all begin at 0,
// EnumerableShardingSpec.
//   kInvalidArgument  As EnumerableShardingSpec::Create.
absl::StatusOr<ShardingSpecPtr> InferShardingSpec(
    absl::Span<const ShardMetadata> shards);

// ceil(size / chunks) without overflow: the length of a chunk. `chunks` > 0.
int64_t ChunkLength(int64_t size, int64_t chunks);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDING_SPEC_H_
