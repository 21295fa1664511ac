#include "sherd/tools/bench/cases/load_plan_cases.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/serialization/checkpoint/load/load_exchange.h"
#include "sherd/serialization/checkpoint/load/load_plan.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/saved_layout.h"
#include "sherd/tools/bench/cases/metadata_work.h"

namespace sherd {
namespace {

// Sizes that are no multiples of the numbers of ranks.
constexpr int64_t kRows = 4100;
constexpr int64_t kColumns = 4100;
constexpr int64_t kPartBytes = int64_t{4} << 20;

SavedLayout::Axis Cut(int64_t size, int64_t ranks) {
  return {.cells = ranks, .step = (size + ranks - 1) / ranks};
}

SavedLayout RowsOver(int64_t ranks) {
  return SavedLayout::Grid({kRows, kColumns}, {Cut(kRows, ranks), {}});
}
SavedLayout ColumnsOver(int64_t ranks) {
  return SavedLayout::Grid({kRows, kColumns}, {{}, Cut(kColumns, ranks)});
}

// Matrices of float32 by rows, of which each rank's file has one shard each.
std::vector<ManifestTensor> Model(int64_t tensors, int ranks) {
  std::vector<ManifestTensor> model;
  int64_t offset = 0;
  int64_t chunk = 1;
  for (int64_t t = 0; t < tensors; ++t) {
    ManifestTensor& tensor = model.emplace_back();
    tensor.name = absl::StrFormat("layers.%05d.weight", t);
    tensor.layout = RowsOver(ranks);
    const int64_t bytes = tensor.ShardBytes(0);
    tensor.runs.push_back(
        {.shards = ranks,
         .placement_step = 1,
         .file_step = 1,
         .extents = {
             {.data_offset = offset, .bytes = bytes, .first_chunk = chunk}}});
    offset += bytes;
    chunk += NumChunks(bytes, kChunkBytes);
  }
  return model;
}

// The reads of a rank in the middle, of a world of other size.
class PiecesWork final : public MetadataWork {
 public:
  PiecesWork(RankContext& context, int64_t tensors, int ranks)
      : MetadataWork(context),
        model_(Model(tensors, ranks)),
        wanted_(RowsOver(ranks * 3 / 4)),
        ranks_(ranks * 3 / 4) {}

 private:
  absl::Status Work() override {
    StrategyChooser chooser(ranks_, 1024);
    std::vector<ShardRead> reads;
    const Box box = wanted_.BoxAt(ranks_ / 2);
    for (size_t t = 0; t < model_.size(); ++t) {
      const ManifestTensor& saved = model_[t];
      if (chooser.Choose(LargestSizes(saved.layout), LargestSizes(wanted_),
                         SizeOf(saved.dtype)) != ReadStrategy::kPieces) {
        return absl::InternalError("an exchange, expected long pieces");
      }
      PlanReads(saved, kChunkBytes, static_cast<int32_t>(t), box, 0, reads);
    }
    SortReads(reads);
    reads_ = reads.size();
    return reads.size() >= model_.size()
               ? absl::OkStatus()
               : absl::DataLossError("reads are missing");
  }
  std::string Remark() const override {
    return absl::StrCat(", ", reads_, " reads");
  }

  const std::vector<ManifestTensor> model_;
  const SavedLayout wanted_;
  const int ranks_;
  size_t reads_ = 0;
};

// The rounds of a rank in the middle that wants columns: what it reads and to
// whom it sends it, and what it receives from whom.
class ExchangeWork final : public MetadataWork {
 public:
  ExchangeWork(RankContext& context, int64_t tensors, int ranks)
      : MetadataWork(context),
        model_(Model(tensors, ranks)),
        wanted_(ColumnsOver(ranks)),
        ranks_(ranks) {}

 private:
  absl::Status Work() override {
    ExchangeStream stream(sizeof(float), ranks_, kPartBytes);
    for (const ManifestTensor& saved : model_) stream.Add(saved.layout);
    stream.Finish();
    const int rank = ranks_ / 2;
    const Box own = wanted_.BoxAt(rank);
    copies_ = 0;
    int64_t received = 0;
    for (int64_t round = 0; round < stream.rounds(); ++round) {
      std::vector<BoxCopy> copies;
      const auto add = [&](const BoxView& a, const BoxView& b) {
        static_cast<Box&>(copies.emplace_back()) = *Intersect(a, b);
      };
      stream
          .ForEachOf(round, rank,
                     [&](const ExchangeStream::Piece& piece) {
                       wanted_.ForEachIn(piece.box, [&](int64_t to) {
                         add(piece.box, wanted_.BoxAt(to));
                         return true;
                       });
                       return absl::OkStatus();
                     })
          .IgnoreError();
      const auto [first, last] = stream.TensorsIn(round);
      for (size_t t = first; t < last; ++t) {
        stream.ForEachIn(round, t, own,
                         [&](const ExchangeStream::Piece& piece) {
                           add(piece.box, own);
                           received += Volume(copies.back());
                         });
      }
      copies_ += copies.size();
    }
    return received == static_cast<int64_t>(model_.size()) * Volume(own)
               ? absl::OkStatus()
               : absl::DataLossError("pieces are missing");
  }
  std::string Remark() const override {
    return absl::StrCat(", ", copies_, " copies");
  }

  const std::vector<ManifestTensor> model_;
  const SavedLayout wanted_;
  const int ranks_;
  size_t copies_ = 0;
};

template <typename Work>
BenchPeer PeerOf(const char* name, const char* help, int64_t tensors,
                 int ranks) {
  return {.name = name,
          .help = help,
          .make = [=](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            return std::make_unique<Work>(context, tensors, ranks);
          }};
}

absl::Status CheckOneRank(int world, int64_t, const std::string&) {
  if (world == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "measured on one rank, others being simulated");
}

BenchCase CaseOf(const char* name, const char* help, int64_t tensors,
                 int ranks) {
  return {
      .name = name,
      .help = help,
      .peers = {PeerOf<PiecesWork>("sherd", "rows, by three quarters as many",
                                   tensors, ranks),
                PeerOf<ExchangeWork>("sherd-columns",
                                     "columns, by as many: all rounds", tensors,
                                     ranks)},
      .bytes = {},
      .check = CheckOneRank};
}

}  // namespace

std::vector<BenchCase> LoadPlanCases() {
  return {CaseOf("checkpoint_plan_load_1024x1024",
                 "a load of 1024 tensors by rows of 1024 ranks, planned", 1024,
                 1024),
          CaseOf("checkpoint_plan_load_10000x1000",
                 "a load of 10,000 tensors by rows of 1000 ranks, planned",
                 10'000, 1000)};
}

}  // namespace sherd
