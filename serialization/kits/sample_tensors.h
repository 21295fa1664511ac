#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_TENSORS_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_TENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// For tests: tensors whose every byte is a function of the tensor's number and
// the element's position, so that any rank can check its part.

// Byte `byte` of element `index` (row-major in the global tensor).
inline std::byte SampleByte(int seed, int64_t index, int64_t byte,
                            DType dtype) {
  uint64_t x = static_cast<uint64_t>(index) * 16 + static_cast<uint64_t>(byte);
  x = (x + static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15) *
      0xbf58476d1ce4e5b9;
  x ^= x >> 29;
  return static_cast<std::byte>(dtype == kBool ? x & 1 : x);
}

// Calls fn(address, number of the element in the global tensor) for each
// element of the box at `offsets` that `part` holds.
template <typename Fn>
void ForEachElement(const Tensor& part, absl::Span<const int64_t> offsets,
                    absl::Span<const int64_t> global_size, Fn fn) {
  if (part.numel() == 0) return;
  const Dims global = ContiguousStrides(global_size);
  const int64_t step = static_cast<int64_t>(part.element_size());
  auto* data =
      const_cast<std::byte*>(static_cast<const std::byte*>(part.data()));
  const int64_t last = part.dim() - 1;
  const int64_t row = last < 0 ? 1 : part.sizes()[last];
  for (int64_t i = 0; i < part.numel(); i += row) {
    int64_t rest = i / row, index = 0, place = 0;
    for (int64_t d = last; d-- > 0;) {
      const int64_t x = rest % part.sizes()[d];
      rest /= part.sizes()[d];
      index += (x + offsets[d]) * global[d];
      place += x * part.strides()[d];
    }
    if (last >= 0) index += offsets[last];
    for (int64_t j = 0; j < row; ++j) {
      fn(data + (place + (last < 0 ? 0 : j * part.strides()[last])) * step,
         index + j);
    }
  }
}

inline void FillSample(ShardedTensor& tensor, int seed) {
  for (const Shard& shard : tensor.local_shards()) {
    ForEachElement(shard.tensor, shard.metadata.offsets, tensor.size(),
                   [&](std::byte* element, int64_t index) {
                     for (size_t b = 0; b < SizeOf(tensor.dtype()); ++b) {
                       element[b] = SampleByte(seed, index, b, tensor.dtype());
                     }
                   });
  }
}

// Number of elements of the box at `offsets` that differ from FillSample's.
inline int64_t CountWrong(const Tensor& part, absl::Span<const int64_t> offsets,
                          absl::Span<const int64_t> global_size, int seed) {
  int64_t wrong = 0;
  ForEachElement(
      part, offsets, global_size, [&](const std::byte* element, int64_t index) {
        bool same = true;
        for (size_t b = 0; b < part.element_size(); ++b) {
          same &= element[b] == SampleByte(seed, index, b, part.dtype());
        }
        wrong += same ? 0 : 1;
      });
  return wrong;
}

inline int64_t CountWrong(const ShardedTensor& tensor, int seed) {
  int64_t wrong = 0;
  for (const Shard& shard : tensor.local_shards()) {
    wrong +=
        CountWrong(shard.tensor, shard.metadata.offsets, tensor.size(), seed);
  }
  return wrong;
}

struct SampleTensor {
  std::string name;
  Dims size;
  DType dtype = kFloat32;
};

// All dtypes, ranks 0 to 4, empty and tiny tensors, dims smaller than the
// number of ranks, and sizes that are not multiples of anything.
inline std::vector<SampleTensor> SampleTensors() {
  std::vector<SampleTensor> samples = {
      {"empty", {0, 3}, kFloat32},     {"scalar", {}, kFloat64},
      {"bias", {7}, kBFloat16},        {"weight", {65, 34}, kFloat32},
      {"conv", {5, 3, 4, 6}, kInt16},  {"pages", {64, 64}, kFloat32},
      {"large", {300, 513}, kFloat64}, {"one", {1, 1}, kInt8}};
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    samples.push_back({"dtype/" + std::string(Name(dtype)), {6, 5}, dtype});
  }
  return samples;
}

// Number of layouts that SampleSpec knows. They were used for the files under
// testdata and never change.
inline constexpr int kSampleSpecs = 8;

// One of several different layouts of a tensor over `ranks` ranks, by number.
inline absl::StatusOr<ShardingSpecPtr> SampleSpec(
    int kind, absl::Span<const int64_t> size, int ranks) {
  const std::vector<Placement> placements = PlacementsOnRanks(ranks);
  const int64_t dims = static_cast<int64_t>(size.size());
  kind %= kSampleSpecs;
  // Ranks in another order, in two rows if that is possible.
  DeviceMesh mesh = {.placements = {placements.rbegin(), placements.rend()}};
  mesh.shape = ranks % 2 == 0 ? Dims{2, ranks / 2} : Dims{1, ranks};
  if (kind == 7 || (dims == 0 && kind >= 5)) {
    // The same on all ranks.
    return MeshShardingSpec::Create(mesh, {});
  }
  if (dims == 0) {
    return ShardingSpecPtr(*EnumerableShardingSpec::Create(
        {{.placement = Placement::OnRank(kind % ranks)}}));
  }
  switch (kind) {
    case 0:
      return ChunkShardingSpec::Create(0, placements);
    case 1:
      return ChunkShardingSpec::Create(-1, placements);
    case 2: {
      // A grid with rows by columns, where that is possible.
      Dims grid(dims, 1);
      grid[0] = ranks % 2 == 0 && dims > 1 ? ranks / 2 : ranks;
      if (grid[0] != ranks) grid[dims - 1] = 2;
      return MeshShardingSpec::Grid(grid, placements);
    }
    case 3: {
      // Uneven: the last rank has the first element alone, rank 0 the rest.
      if (size[0] < 2) return ChunkShardingSpec::Create(0, placements);
      ShardMetadata first, rest;
      first.offsets.assign(dims, 0);
      first.sizes.assign(size.begin(), size.end());
      rest = first;
      first.sizes[0] = 1;
      first.placement = Placement::OnRank(ranks - 1);
      rest.offsets[0] = 1;
      rest.sizes[0] = size[0] - 1;
      rest.placement = Placement::OnRank(0);
      return EnumerableShardingSpec::Create({first, rest});
    }
    case 4: {
      // Two chunks for each rank, in turn.
      std::vector<Placement> twice = placements;
      twice.insert(twice.end(), placements.begin(), placements.end());
      return ChunkShardingSpec::Create(0, twice);
    }
    case 5:
      // Rows or columns over the mesh's rows, replicas along them.
      return MeshShardingSpec::FromPlacements(
          mesh, {MeshPlacement::Shard(-1), MeshPlacement::Replicate()});
    default:
      // One dimension cut by both of the mesh, the second one first.
      return MeshShardingSpec::Create(mesh, {{1, 0}});
  }
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_TENSORS_H_
