#include "sherd/tools/bench/cases/embedding_cases.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

constexpr int64_t kTables = 10;
constexpr int64_t kWidth = 64;
constexpr int64_t kBags = 512;
constexpr int64_t kIdsPerBag = 20;

enum class Cut { kRows, kColumns, kTables };

int64_t RowsOf(int64_t bytes) {
  return std::max<int64_t>(
      bytes / (kTables * kWidth * static_cast<int64_t>(sizeof(float))), 1);
}

// Small integers: their sums are exact.
float ElementAt(int64_t table, int64_t row, int64_t column) {
  return static_cast<float>((131 * table + 7 * row + column) % 1000);
}

// Fills the box of `tensor` that begins at (row, column).
void FillTable(Tensor tensor, int64_t table, int64_t row, int64_t column) {
  auto* to = tensor.mutable_data_as<float>();
  for (int64_t r = 0; r < tensor.sizes()[0]; ++r) {
    for (int64_t c = 0; c < tensor.sizes()[1]; ++c) {
      *to++ = ElementAt(table, row + r, column + c);
    }
  }
}

// What all peers have: ids, and outputs with their check.
class EmbeddingWork : public RankWork {
 public:
  explicit EmbeddingWork(const RankContext& context)
      : rows_(RowsOf(context.bytes())),
        rank_(context.rank()),
        world_(context.world()) {
    std::mt19937_64 random(static_cast<uint64_t>(rank_));
    std::uniform_int_distribution<int64_t> row(0, rows_ - 1);
    for (int64_t t = 0; t < kTables; ++t) {
      Tensor ids = *Tensor::Empty({kBags, kIdsPerBag}, {.dtype = kInt64});
      for (int64_t i = 0; i < ids.numel(); ++i) {
        ids.mutable_data_as<int64_t>()[i] = row(random);
      }
      ids_.push_back(std::move(ids));
      outputs_.push_back(*Tensor::Empty({kBags, kWidth}));
    }
  }

  absl::Status Prepare() override {
    for (Tensor& output : outputs_) {
      SHERD_RETURN_IF_ERROR(
          output.Fill(std::numeric_limits<float>::quiet_NaN()));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    for (int64_t t = 0; t < kTables; ++t) {
      const auto i = static_cast<size_t>(t);
      const auto* const out = outputs_[i].data_as<float>();
      const auto* const ids = ids_[i].data_as<int64_t>();
      for (int64_t at = 0; at < kBags * kWidth; ++at) {
        float sum = 0;
        for (int64_t k = 0; k < kIdsPerBag; ++k) {
          sum += ElementAt(t, ids[at / kWidth * kIdsPerBag + k], at % kWidth);
        }
        if (out[at] == sum) continue;
        return absl::DataLossError(absl::StrCat(
            "table ", t, ", element ", at, ": ", out[at], ", expected ", sum));
      }
    }
    return absl::OkStatus();
  }

 protected:
  const int64_t rows_;
  const int rank_;
  const int world_;
  std::vector<Tensor> ids_;
  std::vector<Tensor> outputs_;
};

// LookUp over a group, or in tables that every rank has.
class SherdEmbedding final : public EmbeddingWork {
 public:
  using EmbeddingWork::EmbeddingWork;

  // `group`: null for tables of its own.
  absl::Status Create(Cut cut, const std::shared_ptr<ProcessGroup>& group) {
    for (int64_t t = 0; t < kTables; ++t) {
      TableLookUp& lookup = lookups_.emplace_back();
      lookup.bags.ids = ids_[static_cast<size_t>(t)];
      lookup.options.mode = BagMode::kSum;
      if (group == nullptr) {
        SHERD_ASSIGN_OR_RETURN(Tensor whole, Tensor::Empty({rows_, kWidth}));
        FillTable(whole, t, 0, 0);
        lookup.table = std::move(whole);
        continue;
      }
      std::vector<Placement> placements = PlacementsOnRanks(world_);
      if (cut == Cut::kTables) {
        placements = {Placement::OnRank(static_cast<int>(t % world_))};
      }
      SHERD_ASSIGN_OR_RETURN(
          const auto spec,
          ChunkShardingSpec::Create(cut == Cut::kColumns ? 1 : 0, placements));
      SHERD_ASSIGN_OR_RETURN(
          const ShardedTensor table,
          ShardedTensor::Empty(spec, {rows_, kWidth}, {.group = group}));
      for (const Shard& shard : table.local_shards()) {
        FillTable(shard.tensor, t, shard.metadata.offsets[0],
                  shard.metadata.offsets[1]);
      }
      lookup.table = table;
    }
    return absl::OkStatus();
  }

  absl::Status Run() override {
    return LookUpInto(lookups_, absl::MakeSpan(outputs_));
  }

 private:
  std::vector<TableLookUp> lookups_;
};

// Plain loops over shards in shared memory.
class LimitEmbedding final : public EmbeddingWork {
 public:
  LimitEmbedding(const RankContext& context, Cut cut)
      : EmbeddingWork(context),
        cut_(cut),
        part_(cut == Cut::kColumns ? ChunkLength(kWidth, world_) : kWidth),
        tables_(reinterpret_cast<float*>(context.shared().data())) {
    // Each rank writes its shards.
    for (int64_t t = 0; t < kTables; ++t) {
      for (int64_t r = 0; r < rows_; ++r) {
        for (int64_t c = 0; c < kWidth; ++c) {
          if (OwnerOf(t, r, c) == rank_) *Address(t, r, c) = ElementAt(t, r, c);
        }
      }
    }
  }

  absl::Status Run() override {
    for (int64_t t = 0; t < kTables; ++t) {
      for (int64_t begin = 0; begin < kWidth; begin += part_) {
        switch (std::min(part_, kWidth - begin)) {
          case 64:
            AddRows<64>(t, begin);
            break;
          case 32:
            AddRows<32>(t, begin);
            break;
          case 16:
            AddRows<16>(t, begin);
            break;
          default:
            for (int64_t c = begin; c < std::min(begin + part_, kWidth); ++c) {
              AddRows<1>(t, c);
            }
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Of known width, so that the compiler makes vectors of the loop.
  template <int64_t kColumns>
  void AddRows(int64_t table, int64_t begin) {
    const auto i = static_cast<size_t>(table);
    const auto* const ids = ids_[i].data_as<int64_t>();
    auto* const out = outputs_[i].mutable_data_as<float>();
    const float* const first = Address(table, 0, begin);
    const int64_t stride = Address(table, 1, begin) - first;
    for (int64_t b = 0; b < kBags; ++b) {
      float sums[kColumns] = {};
      for (int64_t k = 0; k < kIdsPerBag; ++k) {
        const float* const row = first + ids[b * kIdsPerBag + k] * stride;
        for (int64_t c = 0; c < kColumns; ++c) sums[c] += row[c];
      }
      std::copy_n(sums, kColumns, out + b * kWidth + begin);
    }
  }

  int OwnerOf(int64_t table, int64_t row, int64_t column) const {
    switch (cut_) {
      case Cut::kRows:
        return static_cast<int>(row / ChunkLength(rows_, world_));
      case Cut::kColumns:
        return static_cast<int>(column / part_);
      case Cut::kTables:
        return static_cast<int>(table % world_);
    }
    return 0;
  }
  // By columns a shard is a matrix of its own; otherwise its place in the
  // whole table does.
  float* Address(int64_t table, int64_t row, int64_t column) const {
    float* const begin = tables_ + table * rows_ * kWidth;
    if (cut_ != Cut::kColumns) return begin + row * kWidth + column;
    const int64_t first = column / part_ * part_;
    return begin + first * rows_ + row * std::min(part_, kWidth - first) +
           (column - first);
  }

  const Cut cut_;
  // Columns of a shard.
  const int64_t part_;
  float* const tables_;
};

BenchPeer SherdPeer(const std::string& name, const std::string& help, Cut cut,
                    const std::string& backend) {
  return {.name = name,
          .help = help,
          .make = [cut, backend](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            std::shared_ptr<ProcessGroup> group;
            if (!backend.empty()) {
              SHERD_ASSIGN_OR_RETURN(group, context.Group(backend));
            }
            auto work = std::make_unique<SherdEmbedding>(context);
            SHERD_RETURN_IF_ERROR(work->Create(cut, group));
            return work;
          }};
}

BenchCase CaseOf(const std::string& name, const std::string& help, Cut cut) {
  BenchCase result = {.name = name, .help = help};
  result.peers = {
      SherdPeer("sherd-shm", "LookUpInto over shm: rows are read in place", cut,
                "shm"),
      SherdPeer("sherd-gloo", "LookUpInto over gloo: by messages", cut, "gloo"),
      SherdPeer("local", "LookUpInto, each rank with whole tables", cut, "")};
  BenchPeer& limit = result.peers.emplace_back();
  limit.name = "limit";
  limit.help = "plain loops over shards in shared memory";
  limit.make =
      [cut](RankContext& context) -> absl::StatusOr<std::unique_ptr<RankWork>> {
    return std::make_unique<LimitEmbedding>(context, cut);
  };
  result.bytes = {int64_t{256} << 20};
  result.shared_bytes = [](int, int64_t bytes) {
    return RowsOf(bytes) * kTables * kWidth *
           static_cast<int64_t>(sizeof(float));
  };
  return result;
}

}  // namespace

std::vector<BenchCase> EmbeddingCases() {
  return {
      CaseOf("embedding_rows",
             "512 bags of 20 ids per rank in each of 10 tables cut by rows",
             Cut::kRows),
      CaseOf("embedding_columns", "the same, cut by columns", Cut::kColumns),
      CaseOf("embedding_tables", "the same, each table whole on one rank",
             Cut::kTables)};
}

}  // namespace sherd
