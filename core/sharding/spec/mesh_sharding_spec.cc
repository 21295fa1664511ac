#include "sherd/core/sharding/mesh_sharding_spec.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

using Cut = MeshShardingSpec::Cut;

// The next position in row-major order; past the last one, the first.
void Advance(absl::Span<const int64_t> shape, Dims& position) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (++position[d] < shape[d]) return;
    position[d] = 0;
  }
}

std::vector<bool> CuttingDims(const DeviceMesh& mesh,
                              absl::Span<const Cut> cuts) {
  std::vector<bool> cutting(mesh.shape.size());
  for (const Cut& cut : cuts) cutting[static_cast<size_t>(cut.mesh_dim)] = true;
  return cutting;
}

absl::Status CheckCuts(const DeviceMesh& mesh, absl::Span<const Cut> cuts) {
  const int mesh_dims = static_cast<int>(mesh.shape.size());
  std::vector<bool> seen(mesh.shape.size());
  for (const Cut& cut : cuts) {
    if (cut.mesh_dim < 0 || cut.mesh_dim >= mesh_dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Invalid mesh dim: ", cut.mesh_dim, " for a mesh of shape ",
          FormatDims(mesh.shape), ", expected one in [0, ", mesh_dims, ")"));
    }
    if (seen[static_cast<size_t>(cut.mesh_dim)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh dim ", cut.mesh_dim,
                       " cuts twice, expected each to cut one dimension of "
                       "the tensor at most"));
    }
    seen[static_cast<size_t>(cut.mesh_dim)] = true;
  }
  return absl::OkStatus();
}

// Places with the same box, which differ only in dimensions that cut nothing,
// need different placements: two copies in one place are not replicas.
absl::Status CheckReplicas(const DeviceMesh& mesh, absl::Span<const Cut> cuts) {
  const std::vector<bool> cutting = CuttingDims(mesh, cuts);
  if (std::find(cutting.begin(), cutting.end(), false) == cutting.end()) {
    return absl::OkStatus();
  }
  absl::flat_hash_map<std::pair<int64_t, Placement>, size_t> seen;
  Dims position(mesh.shape.size(), 0);
  for (size_t i = 0; i < mesh.placements.size(); ++i) {
    int64_t box = 0;
    for (size_t m = 0; m < cutting.size(); ++m) {
      if (cutting[m]) box = box * mesh.shape[m] + position[m];
    }
    const auto [it, added] =
        seen.emplace(std::make_pair(box, mesh.placements[i]), i);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(
          "places ", it->second, " and ", i, " of the mesh ", mesh.ToString(),
          " would hold replicas on the same ", mesh.placements[i].ToString()));
    }
    Advance(mesh.shape, position);
  }
  return absl::OkStatus();
}

// The cuts with the dimensions of a tensor of `dims` dimensions, none negative.
absl::StatusOr<std::vector<Cut>> CutsOf(absl::Span<const Cut> cuts,
                                        absl::Span<const int64_t> size) {
  const int dims = static_cast<int>(size.size());
  std::vector<Cut> result(cuts.begin(), cuts.end());
  for (Cut& cut : result) {
    if (cut.dim >= dims || cut.dim < -dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Invalid sharding dim: ", cut.dim, " for a tensor of size ",
          FormatDims(size), ", expected one in [", -dims, ", ", dims, ")"));
    }
    if (cut.dim < 0) cut.dim += dims;
  }
  return result;
}

absl::Status CutBox(const DeviceMesh& mesh, absl::Span<const Cut> cuts,
                    const Dims& position, ShardMetadata& shard) {
  for (const Cut& cut : cuts) {
    const size_t m = static_cast<size_t>(cut.mesh_dim);
    const size_t d = static_cast<size_t>(cut.dim);
    SHERD_ASSIGN_OR_RETURN(const Chunk chunk,
                           ChunkAt(shard.sizes[d], mesh.shape[m], position[m]));
    const std::optional<int64_t> offset =
        CheckedAdd(shard.offsets[d], chunk.offset);
    if (!offset || !CheckedAdd(*offset, chunk.size)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a shard begins where 64 bits do not reach in dimension ", d));
    }
    shard.offsets[d] = *offset;
    shard.sizes[d] = chunk.size;
  }
  return absl::OkStatus();
}

std::string FormatCuts(absl::Span<const Cut> cuts) {
  std::string text;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (i > 0 && cuts[i].dim == cuts[i - 1].dim) {
      absl::StrAppend(&text, ", ", cuts[i].mesh_dim);
    } else {
      absl::StrAppend(&text, i > 0 ? "; " : "", cuts[i].dim, ": ",
                      cuts[i].mesh_dim);
    }
  }
  return text;
}

}  // namespace

absl::Status DeviceMesh::Validate() const {
  int64_t places = 1;
  bool valid = true;
  for (const int64_t parts : shape) {
    const std::optional<int64_t> product = CheckedMul(places, parts);
    valid = valid && parts > 0 && product.has_value();
    places = product.value_or(0);
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Invalid mesh shape: ", FormatDims(shape),
        ", expected positive numbers whose product fits in 64 bits"));
  }
  if (static_cast<uint64_t>(places) != placements.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a mesh of shape ", FormatDims(shape), " has ", places,
        " places, but there are ", placements.size(), " placements"));
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    absl::Status status = placements[i].status();
    if (!status.ok()) {
      return Annotate(std::move(status), absl::StrCat("placement ", i));
    }
  }
  return absl::OkStatus();
}

std::string DeviceMesh::ToString() const {
  const auto format = [](std::string* out, const Placement& placement) {
    absl::StrAppend(out, placement.ToString());
  };
  return absl::StrCat("DeviceMesh(", FormatDims(shape), ", [",
                      absl::StrJoin(placements, ", ", format), "])");
}

absl::StatusOr<std::shared_ptr<const MeshShardingSpec>>
MeshShardingSpec::Create(DeviceMesh mesh, std::vector<std::vector<int>> cuts) {
  std::vector<Cut> list;
  for (size_t d = 0; d < cuts.size(); ++d) {
    for (const int mesh_dim : cuts[d]) {
      list.push_back({.mesh_dim = mesh_dim, .dim = static_cast<int>(d)});
    }
  }
  return Make(std::move(mesh), std::move(list));
}

absl::StatusOr<std::shared_ptr<const MeshShardingSpec>>
MeshShardingSpec::FromPlacements(DeviceMesh mesh,
                                 absl::Span<const MeshPlacement> placements) {
  if (placements.size() != mesh.shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a mesh of shape ", FormatDims(mesh.shape), " needs ",
        mesh.shape.size(), " mesh placements, one per dimension, found ",
        placements.size()));
  }
  std::vector<Cut> list;
  bool any_negative = false;
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_shard()) continue;
    any_negative |= placements[m].dim() < 0;
    list.push_back(
        {.mesh_dim = static_cast<int>(m), .dim = placements[m].dim()});
  }
  // Which dimension a negative number means depends on the tensor; the order of
  // cuts of one dimension must not.
  if (!any_negative) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Cut& a, const Cut& b) { return a.dim < b.dim; });
  }
  return Make(std::move(mesh), std::move(list));
}

absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> MeshShardingSpec::Grid(
    Dims grid, std::vector<Placement> placements) {
  std::vector<Cut> list;
  for (size_t d = 0; d < grid.size(); ++d) {
    list.push_back(
        {.mesh_dim = static_cast<int>(d), .dim = static_cast<int>(d)});
  }
  return Make({std::move(grid), std::move(placements)}, std::move(list));
}

absl::StatusOr<std::shared_ptr<const MeshShardingSpec>> MeshShardingSpec::Make(
    DeviceMesh mesh, std::vector<Cut> cuts) {
  SHERD_RETURN_IF_ERROR(mesh.Validate());
  SHERD_RETURN_IF_ERROR(CheckCuts(mesh, cuts));
  SHERD_RETURN_IF_ERROR(CheckReplicas(mesh, cuts));
  return std::shared_ptr<const MeshShardingSpec>(
      new MeshShardingSpec(std::move(mesh), std::move(cuts)));
}

bool MeshShardingSpec::has_replicas() const {
  const std::vector<bool> cutting = CuttingDims(mesh_, cuts_);
  for (size_t m = 0; m < cutting.size(); ++m) {
    if (!cutting[m] && mesh_.shape[m] > 1) return true;
  }
  return false;
}

absl::StatusOr<ShardedTensorMetadata> MeshShardingSpec::BuildMetadata(
    absl::Span<const int64_t> size, const TensorProperties& properties) const {
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  SHERD_ASSIGN_OR_RETURN(const std::vector<Cut> cuts, CutsOf(cuts_, size));
  ShardedTensorMetadata metadata;
  metadata.size.assign(size.begin(), size.end());
  metadata.properties = properties;
  metadata.shards.reserve(mesh_.placements.size());
  Dims position(mesh_.shape.size(), 0);
  for (const Placement& placement : mesh_.placements) {
    ShardMetadata& shard = metadata.shards.emplace_back();
    shard.offsets.assign(size.size(), 0);
    shard.sizes.assign(size.begin(), size.end());
    shard.placement = placement;
    SHERD_RETURN_IF_ERROR(CutBox(mesh_, cuts, position, shard));
    Advance(mesh_.shape, position);
  }
  return metadata;
}

std::string MeshShardingSpec::ToString() const {
  return absl::StrCat("MeshShardingSpec(", mesh_.ToString(), ", cuts=[",
                      FormatCuts(cuts_), "])");
}

ShardingSpecPtr MeshShardingSpec::WithPlacements(
    absl::FunctionRef<Placement(const Placement&)> replace) const {
  DeviceMesh mesh = mesh_;
  for (Placement& placement : mesh.placements) placement = replace(placement);
  return Make(std::move(mesh), cuts_).value_or(nullptr);
}

bool MeshShardingSpec::Equals(const ShardingSpec& other) const {
  const auto& mesh = static_cast<const MeshShardingSpec&>(other);
  return mesh_ == mesh.mesh_ && cuts_ == mesh.cuts_;
}

}  // namespace sherd
