#include "sherd/core/nn/lookup/lookup_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
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
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::testing {

using Random = std::mt19937_64;

Tensor RandomNumbers(const Dims& size, DType dtype, std::mt19937_64& random) {
  Tensor tensor = Tensor::Empty(size, {.dtype = kFloat64}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<double>()[i] =
        std::normal_distribution<double>()(random);
  }
  return tensor.To(dtype).value();
}

namespace {

int64_t Pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
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

}  // namespace

RandomTable MakeRandomTable(int ranks, std::mt19937_64& random) {
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

namespace {

// The bags, copied to the device.
Bags On(const Device& device, const Bags& bags) {
  Bags result = bags;
  for (Tensor* tensor :
       {&result.ids, &result.offsets, &result.per_sample_weights}) {
    if (tensor->defined()) *tensor = tensor->To(device).value();
  }
  return result;
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
    EXPECT_THAT(*tensor->To(Device()), TensorBitwiseEq(whole));
    return;
  }
  for (const Shard& shard : std::get<ShardedTensor>(used).local_shards()) {
    const Tensor part =
        whole.Narrow(shard.metadata.offsets, shard.metadata.sizes).value();
    const Tensor found = shard.tensor.To(Device()).value();
    if (exact || !table.options.max_norm) {
      EXPECT_THAT(found, TensorBitwiseEq(part));
    } else {
      EXPECT_TRUE(found.AllClose(part, slack, slack));
    }
  }
}

constexpr double kNoNorm = 0;

// A case of PyTorch's test_embedding.py or test_embedding_bag.py.
struct ReferenceCase {
  std::vector<int64_t> input;
  int64_t rows;
  int64_t columns;
  BagMode mode = BagMode::kNone;
  // 0: no offsets.
  int64_t offsets = 0;
  double max_norm = kNoNorm;
  double norm_type = 2;
  std::optional<int64_t> padding = std::nullopt;
  bool last = false;
};

constexpr BagMode kSum = BagMode::kSum;
constexpr BagMode kMean = BagMode::kMean;
constexpr BagMode kMax = BagMode::kMax;
constexpr BagMode kNone = BagMode::kNone;

std::vector<ReferenceCase> ReferenceCases() {
  return {
      // By columns.
      {{5, 4}, 17, 12},
      {{6, 7, 6}, 21, 11},
      {{8, 6, 5, 4}, 23, 13},
      {{8, 6, 5, 4, 7}, 23, 16},
      {{4}, 15, 14},
      {{34}, 15, 14, kNone, 0, kNoNorm, 2, 10},
      {{8, 6, 5, 4}, 23, 13, kNone, 0, kNoNorm, 2, 12},
      {{4, 5, 6}, 23, 13, kNone, 0, 2.5},
      {{12, 7, 16}, 23, 13, kNone, 0, 2.5},
      {{8, 16, 20}, 12, 12, kNone, 0, 1.25, 1},
      {{30}, 15, 14, kNone, 0, 2},
      // By rows.
      {{5, 12}, 16, 22},
      {{5, 4}, 32, 12},
      {{6, 7, 6}, 64, 11},
      {{5, 12}, 16, 22, kNone, 0, 2.5},
      {{6, 7, 6}, 64, 11, kNone, 0, kNoNorm, 2, 30},
      {{6, 5, 3}, 26, 11, kNone, 0, 2},
      {{8, 6, 5, 4}, 19, 11},
      {{4}, 21, 11},
      {{8, 6, 5, 4}, 21, 11, kNone, 0, kNoNorm, 2, 10},
      {{6, 5, 8}, 28, 5, kNone, 0, 2},
      {{4}, 14, 11, kNone, 0, 2.5},
      // Bags.
      {{5, 5}, 17, 14, kSum},
      {{5, 4}, 17, 12, kMean},
      {{6, 7}, 21, 11, kMax},
      {{5, 5}, 17, 14, kSum, 0, 2.5},
      {{5, 4}, 17, 12, kMean, 0, 2, 1},
      {{6, 7}, 21, 11, kMax, 0, 1.5, 1},
      {{5, 5}, 17, 14, kSum, 0, kNoNorm, 2, 6},
      {{8, 6}, 24, 13, kSum},
      {{4, 3}, 16, 14, kMax},
      {{8}, 23, 13, kSum, 3},
      {{5}, 17, 12, kMean, 2},
      {{12}, 16, 12, kMax, 4},
      {{8}, 23, 13, kSum, 3, kNoNorm, 2, std::nullopt, true},
      {{12}, 16, 12, kMax, 4, kNoNorm, 2, std::nullopt, true},
      {{12}, 17, 12, kSum, 3, 1.25},
      {{5}, 17, 12, kMean, 2, 1.25},
      {{5}, 17, 12, kMax, 2, 1.15},
      {{4, 3}, 16, 14, kSum, 0, kNoNorm, 2, 12},
      {{4, 3}, 16, 14, kMean, 0, kNoNorm, 2, 12},
      {{4, 3}, 16, 14, kMax, 0, kNoNorm, 2, 12},
      {{12}, 17, 12, kSum, 3, 1.25, 2, 10},
      {{5}, 17, 12, kMean, 2, 1.25, 2, 10},
      {{5}, 17, 12, kMax, 2, 1.15, 2, 10},
  };
}

// Other ids on every rank.
Bags BagsOf(const ReferenceCase& c, int rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank));
  Bags bags;
  bags.ids = Tensor::Empty(c.input, {.dtype = kInt64}).value();
  for (int64_t i = 0; i < bags.ids.numel(); ++i) {
    bags.ids.mutable_data_as<int64_t>()[i] =
        static_cast<int64_t>(random() % static_cast<uint64_t>(c.rows));
  }
  if (c.mode == kSum) {
    bags.per_sample_weights = Tensor::Empty(c.input).value();
    for (int64_t i = 0; i < bags.ids.numel(); ++i) {
      bags.per_sample_weights.mutable_data_as<float>()[i] =
          static_cast<float>(random() % 1000) / 1000;
    }
  }
  if (c.offsets == 0) return bags;
  std::vector<int64_t> offsets = {0};
  while (static_cast<int64_t>(offsets.size()) < c.offsets) {
    offsets.push_back(
        static_cast<int64_t>(random() % static_cast<uint64_t>(c.input[0])));
  }
  std::sort(offsets.begin(), offsets.end());
  if (c.last) offsets.back() = c.input[0];
  bags.offsets =
      Tensor::FromSpan(absl::MakeConstSpan(offsets), {c.offsets}).value();
  return bags;
}

Tensor Weights(int64_t rows, int64_t columns) {
  std::mt19937_64 random(5);
  Tensor tensor = Tensor::Empty({rows, columns}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<float>()[i] =
        std::normal_distribution<float>()(random);
  }
  return tensor;
}

void CheckReferenceCase(const ReferenceCase& c, const ShardingSpecPtr& spec,
                        ProcessGroup& group, bool direct, bool reachable,
                        const Device& device) {
  BagOptions options = {.mode = c.mode,
                        .padding_idx = c.padding,
                        .include_last_offset = c.last,
                        .norm_type = c.norm_type};
  if (c.max_norm != kNoNorm) options.max_norm = c.max_norm;
  Tensor whole = Weights(c.rows, c.columns);
  const ShardedTensor table = ShardsOf(whole, spec).To(device).value();
  std::vector<Bags> bags;
  for (int r = 0; r < 4; ++r) bags.push_back(BagsOf(c, r));
  const auto own = static_cast<size_t>(group.rank());
  const Bags used = On(device, bags[own]);
  const auto results = LookUp({{table, used, options}}, {.direct = direct});
  ASSERT_THAT(results, IsOk());
  EXPECT_TRUE(SameDevice((*results)[0].device(), device));
  const Tensor y = (*results)[0].To(Device()).value();
  ModelRenormalize(whole, bags, options);
  const Tensor expected = ModelLookUp(whole, bags[own], options);
  for (const Shard& shard : table.local_shards()) {
    EXPECT_TRUE(shard.tensor.To(Device())->AllClose(
        whole.Narrow(shard.metadata.offsets, shard.metadata.sizes).value(),
        1e-6, 0));
  }
  if (direct && reachable && device.is_cpu()) {
    EXPECT_THAT(y, TensorBitwiseEq(expected));
  } else {
    EXPECT_TRUE(y.AllClose(expected, 1e-5, 1e-6));
  }
}

}  // namespace

void CheckReferenceLookUps(ProcessGroup& group, bool reachable,
                           const Device& device) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2, 3}, {2, 3, 0, 1}, {3, 0, 1, 2}}) {
    std::vector<Placement> placements;
    for (const int r : order) placements.push_back(Placement::OnRank(r));
    const std::vector<ReferenceCase> cases = ReferenceCases();
    for (size_t i = 0; i < 8 * cases.size(); ++i) {
      const bool direct = i % 2 == 0;
      const int dim = static_cast<int>(i / 2 % 4) - 2;
      // There is one path, and negative dims are the same ones.
      if (!device.is_cpu() &&
          (cases[i / 8].max_norm != kNoNorm || direct || dim < 0)) {
        continue;
      }
      SCOPED_TRACE(absl::StrCat("case ", i / 8, ", dim ", dim, ", order ",
                                order[0], direct ? "" : ", by messages"));
      CheckReferenceCase(cases[i / 8],
                         ChunkShardingSpec::Create(dim, placements).value(),
                         group, direct, reachable, device);
    }
  }
}

void CheckRandomLookUp(ProcessGroup& group, uint64_t seed, bool reachable,
                       const Device& device) {
  SCOPED_TRACE(absl::StrCat("case ", seed));
  Random random(seed);
  std::vector<RandomTable> tables;
  const int64_t count = Pick(random, 1, 4);
  for (int64_t t = 0; t < count; ++t) {
    tables.push_back(MakeRandomTable(group.size(), random));
    if (!device.is_cpu()) tables.back().options.max_norm.reset();
  }
  const bool direct = random() % 2 == 0;
  std::vector<TableLookUp> lookups;
  for (const RandomTable& table : tables) {
    TableLookUp& lookup = lookups.emplace_back();
    if (table.spec == nullptr) {
      lookup.table = table.whole.Clone()->To(device).value();
    } else {
      lookup.table = ShardsOf(table.whole, table.spec).To(device).value();
    }
    lookup.bags = table.bags[static_cast<size_t>(group.rank())];
    if (random() % 2 == 0) lookup.bags = On(device, lookup.bags);
    lookup.options = table.options;
  }
  LookUpStats stats;
  auto results = LookUp(lookups, {.direct = direct, .stats = &stats});
  ASSERT_THAT(results, IsOk());
  // A rank without rows has not said which of its devices it means.
  const bool has_rows =
      std::any_of(lookups.begin(), lookups.end(), [](const TableLookUp& l) {
        const auto* const table = std::get_if<ShardedTensor>(&l.table);
        return table == nullptr || !table->local_shards().empty();
      });
  for (Tensor& result : *results) {
    EXPECT_TRUE(
        SameDevice(result.device(), has_rows ? device : Device(device.type)));
    result = result.To(Device()).value();
  }
  const bool expect_direct =
      (direct && reachable && device.is_cpu()) || group.size() == 1 ||
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
    EXPECT_THAT(*(*again)[t].To(Device()), TensorBitwiseEq((*results)[t]));
  }
  if (device.is_cpu()) return;
  // The same bits as on the host by the same path.
  for (size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].spec == nullptr) {
      lookups[t].table = tables[t].whole;
    } else {
      lookups[t].table = ShardsOf(tables[t].whole, tables[t].spec);
    }
    lookups[t].bags = tables[t].bags[static_cast<size_t>(group.rank())];
  }
  const auto on_host = LookUp(lookups, {.direct = expect_direct});
  ASSERT_THAT(on_host, IsOk());
  for (size_t t = 0; t < tables.size(); ++t) {
    EXPECT_THAT((*on_host)[t], TensorBitwiseEq((*results)[t]));
  }
}

}  // namespace sherd::testing
