#include "sherd/core/nn/update/update_cases.h"

#include <cstddef>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_cases.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/update/update_model.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::testing {
namespace {

// One of the lookups of a case.
struct RandomUse {
  RandomTable table;
  // The first lookup of the same table.
  size_t same = 0;
  std::vector<Tensor> gradients;
};

std::vector<RandomUse> MakeUses(int ranks, std::mt19937_64& random) {
  std::vector<RandomUse> uses(1 + random() % 4);
  for (size_t t = 0; t < uses.size(); ++t) {
    RandomUse& use = uses[t];
    use.same = t;
    use.table = MakeRandomTable(ranks, random);
    use.table.options.max_norm.reset();
    while (use.table.options.mode == BagMode::kMax) {
      use.table = MakeRandomTable(ranks, random);
      use.table.options.max_norm.reset();
    }
    if (t > 0 && random() % 4 == 0) {
      // The same table with the same ids once more, in another mode.
      use = uses[t - 1];
      if (!use.table.weighted && use.table.options.mode != BagMode::kNone) {
        use.table.options.mode =
            random() % 2 == 0 ? BagMode::kSum : BagMode::kMean;
      }
    }
  }
  return uses;
}

void DrawGradients(std::vector<RandomUse>& uses, std::mt19937_64& random) {
  for (RandomUse& use : uses) {
    use.gradients.clear();
    for (const Bags& bags : use.table.bags) {
      const Tensor result =
          ModelLookUp(use.table.whole, bags, use.table.options);
      const Dims size(result.sizes().begin(), result.sizes().end());
      use.gradients.push_back(
          RandomNumbers(size, use.table.whole.dtype(), random));
    }
  }
}

void ExpectPartsOf(const Value& actual, const Tensor& whole) {
  if (const auto* const tensor = actual.get_if<Tensor>()) {
    EXPECT_THAT(*tensor, TensorBitwiseEq(whole));
    return;
  }
  const auto* const sharded = actual.get_if<ShardedTensor>();
  ASSERT_NE(sharded, nullptr);
  for (const Shard& shard : sharded->local_shards()) {
    EXPECT_THAT(shard.tensor,
                TensorBitwiseEq(
                    whole.Narrow(shard.metadata.offsets, shard.metadata.sizes)
                        .value()));
  }
}

Value AsValue(const EmbeddingTable& table) {
  return std::visit([](const auto& tensor) { return Value(tensor); }, table);
}

// Updates the models of the tables, and compares.
void CheckTables(const std::vector<RandomUse>& uses,
                 const std::vector<TableLookUp>& lookups,
                 std::vector<Tensor>& tables, std::vector<Tensor>& sums,
                 size_t rank, const UpdateOptions& options) {
  for (size_t t = 0; t < uses.size(); ++t) {
    if (uses[t].same != t) continue;
    SCOPED_TRACE(absl::StrCat("table ", t));
    std::vector<ModelLookUps> all;
    for (const RandomUse& use : uses) {
      if (use.same != t) continue;
      ModelLookUps& one = all.emplace_back();
      one = {use.table.bags, use.gradients, use.table.options};
      if (use.table.spec != nullptr) continue;
      one.bags = one.bags.subspan(rank, 1);
      one.gradients = one.gradients.subspan(rank, 1);
    }
    ModelUpdate(tables[t], sums[t], all, options);
    ExpectPartsOf(AsValue(lookups[t].table), tables[t]);
    if (options.rule == SparseRule::kSgd || tables[t].numel() == 0) continue;
    ExpectPartsOf(GetAccumulator(lookups[t].table), sums[t]);
  }
}

}  // namespace

void CheckRandomUpdate(ProcessGroup& group, uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("case ", seed));
  std::mt19937_64 random(seed);
  std::vector<RandomUse> uses = MakeUses(group.size(), random);
  const UpdateOptions options = {
      .rule = static_cast<SparseRule>(random() % 3),
      .learning_rate = 0.01 * static_cast<double>(1 + random() % 50),
      .eps = random() % 2 == 0 ? 1e-10 : 1e-3,
      .direct = random() % 2 == 0};
  const auto rank = static_cast<size_t>(group.rank());
  std::vector<TableLookUp> lookups;
  std::vector<Tensor> tables;
  std::vector<Tensor> sums;
  for (const RandomUse& use : uses) {
    TableLookUp& lookup = lookups.emplace_back();
    if (use.same + 1 != lookups.size()) {
      lookup.table = lookups[use.same].table;
    } else if (use.table.spec == nullptr) {
      lookup.table = use.table.whole.Clone().value();
    } else {
      lookup.table = ShardsOf(use.table.whole, use.table.spec);
    }
    lookup.bags = use.table.bags[rank];
    lookup.options = use.table.options;
    tables.push_back(use.table.whole.Clone().value());
    sums.push_back(ModelAccumulator(use.table.whole, options.rule));
  }
  for (int step = 0; step < 3; ++step) {
    DrawGradients(uses, random);
    std::vector<Tensor> gradients;
    for (const RandomUse& use : uses) gradients.push_back(use.gradients[rank]);
    ASSERT_THAT(Update(lookups, gradients, options), IsOk());
    CheckTables(uses, lookups, tables, sums, rank, options);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace sherd::testing
