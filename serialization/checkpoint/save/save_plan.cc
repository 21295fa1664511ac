#include "sherd/serialization/checkpoint/save/save_plan.h"

#include <algorithm>

#include "absl/types/span.h"
#include "sherd/serialization/checkpoint/save/equal_shards.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

constexpr int64_t kMaxAlignment = 4096;

// The shards of a rank in the order of the tensors, without places.
std::vector<FileShard> ShardsOf(const SaveLayout& layout, int rank) {
  std::vector<FileShard> shards;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorLayout& tensor = layout.tensors[t];
    int64_t first = 0;
    const auto add = [&](const OwnerRun& run, int64_t k) {
      const int64_t bytes = tensor.layout.VolumeAt(first + k) *
                            static_cast<int64_t>(SizeOf(tensor.dtype));
      if (bytes == 0) return;
      shards.push_back({.tensor = static_cast<int32_t>(t),
                        .shard = first + k,
                        .bytes = bytes,
                        .placement = run.placement + static_cast<int32_t>(k) *
                                                         run.placement_step});
    };
    for (const OwnerRun& run : *tensor.owners) {
      if (run.rank_step == 1) {
        const int64_t k = rank - run.rank;
        if (k >= 0 && k < run.shards) add(run, k);
      } else if (run.rank == rank) {
        for (int64_t k = 0; k < run.shards; ++k) add(run, k);
      }
      first += run.shards;
    }
  }
  return shards;
}

}  // namespace

std::tuple<int64_t, int64_t, int32_t> OrderInFile(int64_t bytes,
                                                  int32_t tensor) {
  const int64_t alignment = std::min(kMaxAlignment, bytes & -bytes);
  return {-alignment, -bytes, tensor};
}

void AppendOwner(int32_t rank, int32_t placement, std::vector<OwnerRun>& runs) {
  if (!runs.empty()) {
    OwnerRun longer = runs.back();
    if (longer.shards == 1) {
      longer.rank_step = rank - longer.rank;
      longer.placement_step = placement - longer.placement;
    }
    const auto is_step = [](int32_t step) { return step == 0 || step == 1; };
    if (is_step(longer.rank_step) && is_step(longer.placement_step) &&
        rank == longer.rank + longer.shards * longer.rank_step &&
        placement == longer.placement + longer.shards * longer.placement_step) {
      ++longer.shards;
      runs.back() = longer;
      return;
    }
  }
  runs.push_back({.rank = rank, .placement = placement});
}

RankFile PlanRankFile(const SaveLayout& layout, int rank) {
  RankFile plan;
  plan.shards = ShardsOf(layout, rank);
  std::sort(plan.shards.begin(), plan.shards.end(),
            [](const FileShard& a, const FileShard& b) {
              const auto order_a = OrderInFile(a.bytes, a.tensor);
              const auto order_b = OrderInFile(b.bytes, b.tensor);
              return order_a != order_b ? order_a < order_b : a.shard < b.shard;
            });
  for (FileShard& shard : plan.shards) {
    shard.data_offset = plan.data_bytes;
    shard.first_chunk = 1 + plan.chunks;
    plan.data_bytes += shard.bytes;
    plan.chunks += NumChunks(shard.bytes, kChunkBytes);
  }
  return plan;
}

int CountFiles(const SaveLayout& layout) {
  // Entry r: by how much rank r has more shards with elements than rank r - 1.
  std::vector<int64_t> more(static_cast<size_t>(layout.world_size) + 1);
  for (const TensorLayout& tensor : layout.tensors) {
    ForEachEqualShards(tensor, [&](const EqualShards& shards) {
      if (shards.bytes == 0) return;
      ++more[static_cast<size_t>(shards.rank)];
      --more[static_cast<size_t>(shards.end_rank())];
    });
  }
  int files = 0;
  int64_t shards = 0;
  for (int rank = 0; rank < layout.world_size; ++rank) {
    shards += more[static_cast<size_t>(rank)];
    if (shards > 0) ++files;
  }
  return files;
}

}  // namespace sherd
