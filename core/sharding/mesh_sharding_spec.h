#ifndef SHERD_CORE_SHARDING_MESH_SHARDING_SPEC_H_
#define SHERD_CORE_SHARDING_MESH_SHARDING_SPEC_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

// Places in rows, columns and so on: any of the world's ranks in any order, on
// any devices.
//
//     DeviceMesh{.shape = {2, 2}, .placements = PlacementsOn({3, 1, 0, 2})}
//
// Layout. The place at (m[0], m[1], …) is placements[(m[0] * shape[1] + m[1]) *
// shape[2] + …]. A mesh without dimensions has one place.
struct DeviceMesh {
  Dims shape;
  std::vector<Placement> placements;

  //   kInvalidArgument     An entry of the shape is not positive, there are not
  //                        as many placements as places, or "Could not parse
  //                        remote_device".
  //   kFailedPrecondition  A placement's device is malformed or unknown.
  absl::Status Validate() const;

  // "DeviceMesh([2, 2], [rank:3/cpu, …])".
  std::string ToString() const;

  friend bool operator==(const DeviceMesh&, const DeviceMesh&) = default;
};

// The effect of one dimension of a mesh on a tensor, in the terms of DTensor.
class MeshPlacement {
 public:
  // Cuts dimension `dim` of the tensor; negative ones count from the end.
  static MeshPlacement Shard(int dim) { return MeshPlacement(true, dim); }
  // Every place along the dimension has the same elements.
  static MeshPlacement Replicate() { return MeshPlacement(false, 0); }

  bool is_shard() const { return is_shard_; }
  // Of Shard.
  int dim() const { return dim_; }

  friend bool operator==(const MeshPlacement&, const MeshPlacement&) = default;

 private:
  MeshPlacement(bool is_shard, int dim) : is_shard_(is_shard), dim_(dim) {}

  bool is_shard_;
  int dim_;
};

// Cuts dimensions of a tensor by dimensions of a mesh. Dimensions of the mesh
// that cut nothing make replicas: places that differ only there have the same
// box.
//
// Layout. A dimension of a tensor that is cut by mesh dimensions (a, b, …) is
// cut into shape[a] chunks by the rule of ChunkShardingSpec, each of these into
// shape[b] chunks by the same rule, and so on; the place at m has chunk m[b] of
// chunk m[a]. The offset of an empty chunk is where it would begin. Metadata
// has one entry per place, in the mesh's order. 5 elements over a 2 x 2 mesh:
//
//     cuts {{0, 1}}   [0, 2) [2, 3)      cuts {{1, 0}}   [0, 2) [3, 4)
//                     [3, 4) [4, 5)                      [2, 3) [4, 5)
//
// Derived classes are written as those of ChunkShardingSpec.
class MeshShardingSpec : public ShardingSpec {
 public:
  // cuts[d] lists the mesh dimensions that cut dimension d of the tensor, in
  // order; empty for a dimension that stays whole, as do dimensions past the
  // end of the list.
  //
  //     // Rows over the mesh's rows, replicas along its columns.
  //     MeshShardingSpec::Create(mesh, {{0}})
  //
  //   kInvalidArgument     DeviceMesh::Validate; "Invalid mesh dim"; a mesh
  //                        dimension cuts twice; two replicas would have one
  //                        placement.
  //   kFailedPrecondition  DeviceMesh::Validate.
  static absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> Create(
      DeviceMesh mesh, std::vector<std::vector<int>> cuts);

  // One placement per dimension of the mesh, as in DTensor: dimensions of the
  // mesh that cut the same dimension of the tensor do so from left to right.
  // Equal to the result of Create for the same cuts, if no `dim` is negative.
  static absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> FromPlacements(
      DeviceMesh mesh, absl::Span<const MeshPlacement> placements);

  // Cuts dimension d of a tensor into grid[d] chunks.
  static absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> Grid(
      Dims grid, std::vector<Placement> placements);

  // Dimension `dim` of a tensor is cut by dimension `mesh_dim` of the mesh.
  struct Cut {
    int mesh_dim = 0;
    int dim = 0;

    friend bool operator==(const Cut&, const Cut&) = default;
  };

  const DeviceMesh& mesh() const { return mesh_; }
  // Ordered by `dim`, or if one is negative by `mesh_dim`; those of one
  // dimension from the coarsest to the finest.
  absl::Span<const Cut> cuts() const { return cuts_; }
  // Whether any dimension of the mesh, of more than one place, cuts nothing.
  bool has_replicas() const;

  //   kInvalidArgument  "Invalid sharding dim": a cut names a dimension that
  //                     the tensor does not have; an offset does not fit in 64
  //                     bits.
  //
  // Cost. O(places * (dims of the tensor + dims of the mesh)).
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const final;
  // "MeshShardingSpec(DeviceMesh(…), cuts=[0: 0, 1])", dimension by dimension.
  std::string ToString() const override;
  // Null if two replicas would get one placement.
  ShardingSpecPtr WithPlacements(
      absl::FunctionRef<Placement(const Placement&)> replace) const override;

 protected:
  MeshShardingSpec(const MeshShardingSpec&) = default;
  bool Equals(const ShardingSpec& other) const override;

 private:
  MeshShardingSpec(DeviceMesh mesh, std::vector<Cut> cuts)
      : mesh_(std::move(mesh)), cuts_(std::move(cuts)) {}

  static absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> Make(
      DeviceMesh mesh, std::vector<Cut> cuts);

  const DeviceMesh mesh_;
  const std::vector<Cut> cuts_;
};

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_MESH_SHARDING_SPEC_H_
