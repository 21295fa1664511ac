#include "sherd/tools/bench/cases/checkpoint_incremental_cases.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/incremental/chunk_hash.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/tools/bench/cases/checkpoint_reference.h"
#include "sherd/tools/bench/cases/settle_disk.h"
#include "sherd/tools/bench/peers/box_layout.h"
#include "sherd/tools/bench/peers/sharded_words.h"

namespace sherd {
namespace {

// One chunk of so many changes between two saves.
constexpr int64_t kPeriod = 100;

// A tensor spread by rows, of which a hundredth of the chunks changes before
// each save.
class IncrementalSave final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    auto work = std::make_unique<IncrementalSave>(context);
    SHERD_ASSIGN_OR_RETURN(const WordTensor words,
                           MatrixOfBytes(context.bytes()));
    SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
    SHERD_ASSIGN_OR_RETURN(
        const ShardedTensor tensor,
        MakeShardedWords(
            words, BoxesOf(words, RowsOver(words, context.world())), group));
    Fill(words, StoredShards(tensor));
    work->tensors_ = {{CheckpointReference::kTensorName, tensor}};
    // The whole save to which the measured ones refer.
    SHERD_RETURN_IF_ERROR(work->Run());
    return work;
  }

  explicit IncrementalSave(RankContext& context)
      : rank_(context.rank()),
        bytes_(context.bytes()),
        path_(JoinPath(context.directory(), "incremental")) {}

  absl::Status Prepare() override {
    ++round_;
    for (const Shard& shard : tensor().local_shards()) {
      Tensor data = shard.tensor;
      auto* const words = data.mutable_data_as<uint32_t>();
      for (int64_t chunk = round_ % kPeriod;
           chunk * kChunkBytes < data.nbytes(); chunk += kPeriod) {
        words[chunk * kChunkBytes / 4] ^= 1;
      }
    }
    return rank_ == 0 ? SettleDisk(path_) : absl::OkStatus();
  }

  absl::Status Run() override {
    return RunSave({.path = path_,
                    .tensors = std::shared_ptr<const SaveJob::Tensors>(
                        std::shared_ptr<const void>(), &tensors_),
                    .group = tensor().group(),
                    .options = {.stats = &stats_},
                    .base = base_});
  }

  absl::Status Check() override {
    SHERD_ASSIGN_OR_RETURN(const CheckpointReader reader,
                           CheckpointReader::Open(path_));
    for (const Shard& shard : tensor().local_shards()) {
      SHERD_ASSIGN_OR_RETURN(
          const Tensor saved,
          reader.ReadSlice(CheckpointReference::kTensorName,
                           shard.metadata.offsets, shard.metadata.sizes));
      if (std::memcmp(saved.data(), shard.tensor.data(),
                      static_cast<size_t>(saved.nbytes())) != 0) {
        return absl::DataLossError("wrong result: rows differ");
      }
    }
    return absl::OkStatus();
  }

  std::optional<WorkFigures> Figures() const override {
    return WorkFigures{
        .way = absl::StrFormat("wrote %.2f %%",
                               100 * static_cast<double>(stats_.file_bytes) /
                                   static_cast<double>(bytes_))};
  }

 private:
  const ShardedTensor& tensor() const { return tensors_.begin()->second; }

  const int rank_;
  const int64_t bytes_;
  const std::string path_;
  std::map<std::string, ShardedTensor> tensors_;
  const std::shared_ptr<SaveBase> base_ = std::make_shared<SaveBase>();
  CheckpointStats stats_;
  int64_t round_ = 0;
};

// The hashes of the same rows.
class HashRows final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
    return std::make_unique<HashRows>(std::move(reference));
  }

  explicit HashRows(CheckpointReferencePtr reference)
      : reference_(std::move(reference)) {}

  absl::Status Prepare() override {
    hashes_.clear();
    return absl::OkStatus();
  }

  absl::Status Run() override {
    for (const Shard& shard : reference_->tensor().local_shards()) {
      const size_t begin = hashes_.size();
      hashes_.resize(begin + static_cast<size_t>(NumChunks(
                                 shard.tensor.nbytes(), kChunkBytes)));
      SHERD_RETURN_IF_ERROR(HashChunks(
          shard.tensor, kChunkBytes, [] { return absl::OkStatus(); },
          absl::MakeSpan(hashes_).subspan(begin)));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    size_t i = 0;
    for (const Shard& shard : reference_->tensor().local_shards()) {
      const auto* const bytes =
          static_cast<const std::byte*>(shard.tensor.data());
      for (int64_t at = 0; at < shard.tensor.nbytes(); at += kChunkBytes) {
        const auto chunk = absl::MakeConstSpan(
            bytes + at,
            std::min<int64_t>(kChunkBytes, shard.tensor.nbytes() - at));
        if (!(hashes_[i++] == HashChunk(chunk))) {
          return absl::DataLossError("wrong result: a hash differs");
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  const CheckpointReferencePtr reference_;
  std::vector<ChunkHash> hashes_;
};

}  // namespace

std::vector<BenchCase> CheckpointIncrementalCases() {
  return {{.name = "checkpoint_incremental",
           .help = "rows saved again, of which one chunk in a hundred changed",
           .peers = {{.name = "sherd",
                      .help = "a save that refers to files of the one before",
                      .make = IncrementalSave::Make},
                     {.name = "hash",
                      .help = "the hashes of the same rows",
                      .make = HashRows::Make}},
           .check = CheckCheckpointSpace}};
}

}  // namespace sherd
