#ifndef SHERD_SERIALIZATION_KITS_GOLDEN_CHECKPOINT_H_
#define SHERD_SERIALIZATION_KITS_GOLDEN_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/kits/golden_tensors.h"
#include "sherd/serialization/kits/sample_tensors.h"

namespace sherd {

// The checkpoint under testdata/v2: tensor i has the elements of
// FillSample(kGoldenSeed + i). Never changed, like the files.

inline constexpr int kGoldenRanks = 2;
inline constexpr uint64_t kGoldenSaveNumber = 0x4000'0000'0000'0000;
inline constexpr char kGoldenSaveId[] = "4000000000000000";

struct GoldenTensor : SampleTensor {
  absl::StatusOr<ShardingSpecPtr> spec;
  bool requires_grad = false;
  // Shards lie in memory with gaps between their rows.
  bool strided = false;
};

// Five boxes that are not a grid, the middle one on rank 1.
inline absl::StatusOr<ShardingSpecPtr> Pinwheel() {
  return ShardingSpecPtr(*EnumerableShardingSpec::Create(
      {{.offsets = {0, 0}, .sizes = {1, 2}, .placement = "rank:0/cpu"},
       {.offsets = {0, 2}, .sizes = {2, 1}, .placement = "rank:0/cpu"},
       {.offsets = {1, 1}, .sizes = {1, 1}, .placement = "rank:1/cpu"},
       {.offsets = {1, 0}, .sizes = {2, 1}, .placement = "rank:0/cpu"},
       {.offsets = {2, 1}, .sizes = {1, 2}, .placement = "rank:0/cpu"}}));
}

// Chunks, grids, boxes, replicas and ranks without elements; sizes that ranks
// do not divide; tensors of rank 0 and without elements.
inline std::vector<GoldenTensor> GoldenCheckpointTensors() {
  const auto on = [](int layout, std::string name, Dims size, DType dtype) {
    return GoldenTensor{{std::move(name), size, dtype},
                        SampleSpec(layout, size, kGoldenRanks)};
  };
  std::vector<GoldenTensor> tensors = {
      on(0, "block.0/weight", {7, 5}, kFloat32),
      on(1, "block.0/columns", {4, 9}, kBFloat16),
      on(2, "grid", {6, 5}, kInt16),
      on(3, "uneven", {5, 3}, kFloat16),
      on(4, "in turn", {11}, kUInt32),
      on(5, "block.0/mesh", {6, 4}, kFloat64),
      on(6, "reversed", {9, 2}, kComplex64),
      on(7, "block.0/replicated", {3, 5}, kFloat32),
      on(7, "step", {}, kInt64),
      on(0, "seed", {}, kUInt64),
      on(0, "few", {1, 3}, kUInt8),
      on(0, "empty", {0, 4}, kInt32),
      on(0, "head", {3, 2, 2}, kComplex128),
      on(0, "mask", {13}, kBool),
      on(0, "scale", {6}, kFloat8E4M3),
      on(1, "norm@1,2", {2, 3, 4, 2}, kInt8),
      {{"pinwheel", {3, 3}, kUInt16}, Pinwheel()},
      on(0, "strided", {6, 5}, kFloat64)};
  tensors.front().requires_grad = true;
  tensors.back().strided = true;
  return tensors;
}

inline absl::StatusOr<ShardedTensor> MakeGoldenTensor(
    const GoldenTensor& golden, int seed) {
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec, golden.spec);
  Dims size = golden.size;
  if (golden.strided) size.back() += 3;
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensor tensor,
      ShardedTensor::Zeros(
          spec, size,
          {.dtype = golden.dtype, .requires_grad = golden.requires_grad}));
  if (golden.strided) {
    SHERD_ASSIGN_OR_RETURN(tensor,
                           tensor.Narrow(-1, /*start=*/1, golden.size.back()));
  }
  FillSample(tensor, seed);
  return tensor;
}

// Saves it as `path`, which does not exist. Each of the kGoldenRanks ranks of
// the default group calls this.
inline absl::Status SaveGoldenCheckpoint(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group, DefaultGroup());
  std::map<std::string, ShardedTensor> tensors;
  int seed = kGoldenSeed;
  for (const GoldenTensor& golden : GoldenCheckpointTensors()) {
    SHERD_ASSIGN_OR_RETURN(ShardedTensor tensor,
                           MakeGoldenTensor(golden, seed++));
    tensors.emplace(golden.name, std::move(tensor));
  }
  SaveJob job = SaveJobOf(path, tensors, std::move(group), {});
  job.target.clock = [] { return kGoldenSaveNumber; };
  return RunSave(std::move(job));
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_GOLDEN_CHECKPOINT_H_
