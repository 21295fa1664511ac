#include "sherd/core/nn/lookup/lookup_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::testing {
namespace {

using Random = std::mt19937_64;

int64_t Pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// A table, what ranks look up in it, and its layout.
struct RandomTable {
  Tensor whole;
  // Null: each rank has all of it.
  ShardingSpecPtr spec;
  BagOptions options;
  std::vector<Bags> bags;
  bool weighted = false;
};

Tensor RandomNumbers(const Dims& size, DType dtype, Random& random) {
  Tensor tensor = Tensor::Empty(size, {.dtype = kFloat64}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<double>()[i] =
        std::normal_distribution<double>()(random);
  }
  return tensor.To(dtype).value();
}

Tensor Integers(const std::vector<int64_t>& values, const Dims& size,
                Random& random) {
  const Tensor tensor =
      Tensor::FromSpan(absl::MakeConstSpan(values), size).value();
  return tensor.To(random() % 2 == 0 ? kInt32 : kInt64).value();
}

Bags RandomBags(const RandomTable& table, Random& random) {
  const int64_t rows = table.whole.sizes()[0];
  const auto ids = [&](int64_t count) {
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (int64_t& id : values) id = Pick(random, 0, rows - 1);
    return values;
  };
  Bags bags;
  const int64_t count = rows == 0 ? 0 : Pick(random, 0, 9);
  if (table.options.mode == BagMode::kNone) {
    const Dims size = random() % 2 == 0 ? Dims{count} : Dims{2, count, 1};
    bags.ids = Integers(ids(Volume(size)), size, random);
  } else if (!table.options.include_last_offset && random() % 2 == 0) {
    const int64_t length = rows == 0 ? 0 : Pick(random, 0, 5);
    bags.ids = Integers(ids(count * length), {count, length}, random);
  } else {
    std::vector<int64_t> offsets = {0};
    for (int64_t b = 0; b < count; ++b) {
      offsets.push_back(offsets.back() + Pick(random, 0, 4));
    }
    const int64_t total = rows == 0 ? 0 : offsets.back();
    if (!table.options.include_last_offset) {
      if (count > 0) offsets.pop_back();
    }
    const auto n = static_cast<int64_t>(offsets.size());
    bags.offsets = Integers(offsets, {n}, random);
    bags.ids = Integers(ids(total), {total}, random);
  }
  if (table.weighted) {
    const DType dtype = table.whole.dtype();
    Dims size(bags.ids.sizes().begin(), bags.ids.sizes().end());
    bags.per_sample_weights = RandomNumbers(
        size, SizeOf(dtype) == 2 && random() % 2 == 0 ? kFloat32 : dtype,
        random);
  }
  return bags;
}

RandomTable MakeTable(int ranks, Random& random) {
  RandomTable table;
  const DType dtypes[] = {kFloat64, kFloat32, kFloat16, kBFloat16};
  const Dims size = {random() % 20 == 0 ? 0 : Pick(random, 1, 40),
                     random() % 20 == 0   ? 0
                     : random() % 10 == 0 ? Pick(random, 60, 300)
                                          : Pick(random, 1, 24)};
  table.whole = RandomNumbers(size, dtypes[random() % 4], random);
  const uint64_t kind = random() % 8;
  if (kind == 0) {
    table.spec = nullptr;
  } else if (kind <= 2) {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    table.spec = RandomMesh(size, members, random);
  } else if (kind <= 4) {
    std::vector<Placement> placements = PlacementsOnRanks(ranks);
    if (random() % 3 == 0) placements.push_back(Placement::OnRank(0));
    std::shuffle(placements.begin(), placements.end(), random);
    table.spec =
        ChunkShardingSpec::Create(static_cast<int>(random() % 2), placements)
            .value();
  } else {
    table.spec = RandomSpec(size, ranks, random);
  }
  table.options.mode = static_cast<BagMode>(random() % 4);
  const bool pooled = table.options.mode != BagMode::kNone;
  table.weighted = table.options.mode == BagMode::kSum && random() % 2 == 0;
  table.options.include_last_offset = pooled && random() % 4 == 0;
  if (size[0] > 0 && random() % 2 == 0) {
    table.options.padding_idx = Pick(random, -size[0], size[0] - 1);
  }
  if (random() % 4 == 0) {
    table.options.max_norm = 0.5 + static_cast<double>(random() % 8);
    const double types[] = {2, 1, 3, std::numeric_limits<double>::infinity()};
    table.options.norm_type = types[random() % 4];
  }
  for (int r = 0; r < ranks; ++r) {
    table.bags.push_back(RandomBags(table, random));
  }
  return table;
}

// Every element differs by at most its bound.
void ExpectWithin(const Tensor& result, const Tensor& expected,
                  const Tensor& bound) {
  ASSERT_EQ(result.sizes(), expected.sizes());
  ASSERT_EQ(result.dtype(), expected.dtype());
  const Tensor a = result.To(kFloat64).value();
  const Tensor b = expected.To(kFloat64).value();
  for (int64_t i = 0; i < a.numel(); ++i) {
    EXPECT_LE(std::abs(a.data_as<double>()[i] - b.data_as<double>()[i]),
              bound.data_as<double>()[i])
        << "element " << i << ": " << a.data_as<double>()[i] << ", expected "
        << b.data_as<double>()[i];
  }
}

void CheckTable(const RandomTable& table, const EmbeddingTable& used,
                const Tensor& result, ProcessGroup& group, bool direct,
                absl::string_view name) {
  SCOPED_TRACE(name);
  const auto rank = static_cast<size_t>(group.rank());
  const bool shared = table.spec != nullptr;
  Tensor whole = table.whole.Clone().value();
  ModelRenormalize(whole,
                   shared ? absl::MakeConstSpan(table.bags)
                          : absl::MakeConstSpan(&table.bags[rank], 1),
                   table.options);
  Tensor bound;
  const Tensor expected =
      ModelLookUp(whole, table.bags[rank], table.options, &bound);
  // By messages, norms of rows cut by columns may differ in the last bits.
  const bool exact = direct || !shared;
  const double slack = table.options.max_norm ? 0x1p-6 : 0;
  if (exact) {
    EXPECT_THAT(result, TensorBitwiseEq(expected));
  } else if (slack == 0) {
    ExpectWithin(result, expected, bound);
  } else {
    EXPECT_TRUE(result.AllClose(expected, slack, slack));
  }
  if (const auto* const tensor = std::get_if<Tensor>(&used)) {
    EXPECT_THAT(*tensor, TensorBitwiseEq(whole));
    return;
  }
  for (const Shard& shard : std::get<ShardedTensor>(used).local_shards()) {
    const Tensor part =
        whole.Narrow(shard.metadata.offsets, shard.metadata.sizes).value();
    if (exact || !table.options.max_norm) {
      EXPECT_THAT(shard.tensor, TensorBitwiseEq(part));
    } else {
      EXPECT_TRUE(shard.tensor.AllClose(part, slack, slack));
    }
  }
}

}  // namespace

void CheckRandomLookUp(ProcessGroup& group, uint64_t seed, bool reachable) {
  SCOPED_TRACE(absl::StrCat("case ", seed));
  Random random(seed);
  std::vector<RandomTable> tables;
  const int64_t count = Pick(random, 1, 4);
  for (int64_t t = 0; t < count; ++t) {
    tables.push_back(MakeTable(group.size(), random));
  }
  const bool direct = random() % 2 == 0;
  std::vector<TableLookUp> lookups;
  for (const RandomTable& table : tables) {
    TableLookUp& lookup = lookups.emplace_back();
    if (table.spec == nullptr) {
      lookup.table = table.whole.Clone().value();
    } else {
      lookup.table = ShardsOf(table.whole, table.spec);
    }
    lookup.bags = table.bags[static_cast<size_t>(group.rank())];
    lookup.options = table.options;
  }
  LookUpStats stats;
  const auto results = LookUp(lookups, {.direct = direct, .stats = &stats});
  ASSERT_THAT(results, IsOk());
  const bool expect_direct =
      (direct && reachable) || group.size() == 1 ||
      std::none_of(tables.begin(), tables.end(), [](const RandomTable& table) {
        return table.spec != nullptr;
      });
  EXPECT_EQ(stats.direct, expect_direct);
  for (size_t t = 0; t < tables.size(); ++t) {
    CheckTable(tables[t], lookups[t].table, (*results)[t], group, expect_direct,
               absl::StrCat("table ", t));
  }
  // Once more with what was kept, without renormalization.
  for (TableLookUp& lookup : lookups) lookup.options.max_norm.reset();
  const auto again = LookUp(lookups, {.direct = direct});
  ASSERT_THAT(again, IsOk());
  for (size_t t = 0; t < tables.size(); ++t) {
    EXPECT_THAT((*again)[t], TensorBitwiseEq((*results)[t]));
  }
}

}  // namespace sherd::testing
