#include "sherd/tools/bench/cases/save_many_cases.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/tools/bench/cases/many_tensors.h"
#include "sherd/tools/bench/cases/settle_disk.h"

namespace sherd {
namespace {

// Saves `count` tensors of equal size, in chunks on all ranks, that have all
// bytes together.
class SaveTensors final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context,
                                                        const char* directory,
                                                        int64_t count) {
    auto work = std::make_unique<SaveTensors>(context, directory, count);
    SHERD_RETURN_IF_ERROR(work->MakeTensors());
    return work;
  }

  SaveTensors(RankContext& context, const char* directory, int64_t count)
      : context_(context),
        path_(JoinPath(context.directory(), directory)),
        count_(count),
        words_(context.bytes() / count / int64_t{sizeof(uint32_t)}) {}

  absl::Status Prepare() override {
    if (context_.rank() != 0) return absl::OkStatus();
    FileSystem& files = FileSystem::Posix();
    SHERD_RETURN_IF_ERROR(files.RemoveAll(path_));
    SHERD_RETURN_IF_ERROR(files.CreateDirectories(path_));
    return SettleDisk(path_);
  }

  absl::Status Run() override {
    return SaveCheckpoint(path_, tensors_, group_);
  }

  // The files are what their checksums say, and these are what they should be.
  absl::Status Check() override {
    if (context_.rank() != 0) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(VerifyCheckpoint(path_).status());
    SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                           ReadManifest(FileSystem::Posix(), path_));
    for (int64_t t = 0; t < count_; ++t) {
      const ManifestTensor& saved = manifest.tensors[static_cast<size_t>(t)];
      if (saved.name != NameOfTensor(t) ||
          saved.fingerprint != FingerprintOf(t)) {
        return absl::DataLossError(
            absl::StrCat("wrong result: tensor ", saved.name));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status MakeTensors() {
    SHERD_ASSIGN_OR_RETURN(group_, context_.Group());
    SHERD_ASSIGN_OR_RETURN(
        const ShardingSpecPtr spec,
        ChunkShardingSpec::Create(0, PlacementsOnRanks(context_.world())));
    for (int64_t t = 0; t < count_; ++t) {
      SHERD_ASSIGN_OR_RETURN(
          ShardedTensor tensor,
          ShardedTensor::Empty(spec, {words_},
                               {.dtype = kUInt32, .group = group_}));
      for (const Shard& shard : tensor.local_shards()) {
        Tensor part = shard.tensor;
        uint32_t* const words = part.mutable_data_as<uint32_t>();
        for (int64_t i = 0; i < part.numel(); ++i) {
          words[i] = WordOf(t, shard.metadata.offsets[0] + i);
        }
      }
      tensors_.emplace(NameOfTensor(t), std::move(tensor));
    }
    return absl::OkStatus();
  }

  uint32_t FingerprintOf(int64_t tensor) const {
    uint32_t block[1024];
    uint32_t crc = 0;
    for (int64_t i = 0; i < words_;) {
      size_t n = 0;
      for (; n < std::size(block) && i < words_; ++n, ++i) {
        block[n] = WordOf(tensor, i);
      }
      crc =
          Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(block),
                                     n * sizeof(uint32_t)),
                 crc);
    }
    return crc;
  }

  RankContext& context_;
  const std::string path_;
  const int64_t count_;
  // Of each tensor.
  const int64_t words_;
  std::shared_ptr<ProcessGroup> group_;
  std::map<std::string, ShardedTensor> tensors_;
};

BenchPeer PeerOf(const char* name, const char* help, int64_t count) {
  return {.name = name, .help = help, .make = [=](RankContext& context) {
            return SaveTensors::Make(context, name, count);
          }};
}

}  // namespace

std::vector<BenchCase> SaveManyCases() {
  return {{.name = "checkpoint_save_many",
           .help = "10,000 tensors in chunks, durable when it returns",
           .peers = {PeerOf("sherd", "SaveCheckpoint", kManyTensors),
                     PeerOf("sherd-one", "the same bytes as one tensor", 1)},
           .bytes = {64'000'000, 512'000'000},
           .fit = FitManyTensors,
           .check = CheckManyTensors}};
}

}  // namespace sherd
