#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/tools/bench/embedding/embedding_work.h"

namespace sherd {
namespace {

class SherdEmbedding final : public EmbeddingWork {
 public:
  using EmbeddingWork::EmbeddingWork;

  // `group`: null for tables of its own.
  absl::Status Create(const std::shared_ptr<ProcessGroup>& group) {
    for (int64_t t = 0; t < shape().tables(); ++t) {
      TableLookUp& lookup = lookups_.emplace_back();
      lookup.bags.ids = ids()[static_cast<size_t>(t)];
      lookup.options.mode = BagMode::kSum;
      const Dims size = {shape().rows[static_cast<size_t>(t)],
                         EmbeddingShape::kWidth};
      if (group == nullptr) {
        SHERD_ASSIGN_OR_RETURN(Tensor whole, Tensor::Empty(size));
        FillEmbeddingTable(whole, t, 0, 0);
        lookup.table = std::move(whole);
        continue;
      }
      SHERD_ASSIGN_OR_RETURN(const auto spec, SpecOf(t, group->size()));
      SHERD_ASSIGN_OR_RETURN(
          const ShardedTensor table,
          ShardedTensor::Empty(spec, size, {.group = group}));
      for (const Shard& shard : table.local_shards()) {
        FillEmbeddingTable(shard.tensor, t, shard.metadata.offsets[0],
                           shard.metadata.offsets[1]);
      }
      lookup.table = table;
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<ShardingSpecPtr> SpecOf(int64_t table, int world) const {
    std::vector<Placement> placements = PlacementsOnRanks(world);
    if (shape().cut == TableCut::kTables) {
      placements = {Placement::OnRank(static_cast<int>(table % world))};
    }
    return ChunkShardingSpec::Create(shape().cut == TableCut::kColumns ? 1 : 0,
                                     placements);
  }

  absl::Status LookUp() override {
    return LookUpInto(lookups_, absl::MakeSpan(outputs()));
  }

  absl::Status Update() override {
    return sherd::Update(lookups_, gradients(),
                         {.rule = SparseRule::kRowWiseAdagrad,
                          .learning_rate = EmbeddingShape::kLearningRate,
                          .eps = EmbeddingShape::kEps});
  }

  std::vector<TableLookUp> lookups_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdEmbedding(
    RankContext& context, const std::string& backend) {
  std::shared_ptr<ProcessGroup> group;
  if (!backend.empty()) {
    SHERD_ASSIGN_OR_RETURN(group, context.Group(backend));
  }
  auto work = std::make_unique<SherdEmbedding>(context);
  SHERD_RETURN_IF_ERROR(work->Create(group));
  return work;
}

}  // namespace sherd
