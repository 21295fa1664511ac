#include "sherd/tools/bench/cases/load_many_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/tools/bench/cases/many_tensors.h"

namespace sherd {
namespace {

constexpr int64_t kWord = sizeof(uint32_t);

enum class Spread { kRows, kColumns, kReplicas };

absl::StatusOr<ShardingSpecPtr> SpecOf(Spread spread, int ranks) {
  const std::vector<Placement> placements = PlacementsOnRanks(ranks);
  if (spread == Spread::kReplicas) {
    return MeshShardingSpec::Create({{ranks}, placements}, {});
  }
  return ChunkShardingSpec::Create(spread == Spread::kRows ? 0 : 1, placements);
}

// About square.
Dims MatrixOf(int64_t words) {
  int64_t rows = 1;
  for (int64_t i = 1; i * i <= words; ++i) {
    if (words % i == 0) rows = i;
  }
  return {rows, words / rows};
}

// Calls visit(word, value that it has) for the words of this rank's shards.
template <typename Visit>
void ForEachWord(const ShardedTensor& tensor, int64_t number, Visit visit) {
  const int64_t columns = tensor.size()[1];
  for (const Shard& shard : tensor.local_shards()) {
    const Dims& offsets = shard.metadata.offsets;
    const Dims& sizes = shard.metadata.sizes;
    Tensor part = shard.tensor;
    uint32_t* word = part.mutable_data_as<uint32_t>();
    for (int64_t r = 0; r < sizes[0]; ++r) {
      const int64_t first = (offsets[0] + r) * columns + offsets[1];
      for (int64_t c = 0; c < sizes[1]; ++c) {
        visit(*word++, WordOf(number, first + c));
      }
    }
  }
}

// How the bytes are divided among tensors of equal size: into one that is about
// square; into many that are; or into one that has the rows of the many.
enum class Cut { kOne, kMany, kRowsOfMany };

Dims SizesOf(Cut cut, int64_t bytes) {
  if (cut == Cut::kOne) return MatrixOf(bytes / kWord);
  Dims size = MatrixOf(bytes / kManyTensors / kWord);
  if (cut == Cut::kRowsOfMany) size[0] *= kManyTensors;
  return size;
}

absl::StatusOr<std::map<std::string, ShardedTensor>> MakeTensors(
    RankContext& context, Spread spread, Cut cut,
    const char* backend = "gloo") {
  SHERD_ASSIGN_OR_RETURN(const auto group, context.Group(backend));
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         SpecOf(spread, context.world()));
  const Dims size = SizesOf(cut, context.bytes());
  const int64_t count = cut == Cut::kMany ? kManyTensors : 1;
  std::map<std::string, ShardedTensor> tensors;
  for (int64_t t = 0; t < count; ++t) {
    SHERD_ASSIGN_OR_RETURN(
        ShardedTensor tensor,
        ShardedTensor::Empty(spec, size, {.dtype = kUInt32, .group = group}));
    ForEachWord(tensor, t,
                [](uint32_t& word, uint32_t value) { word = value; });
    tensors.emplace(NameOfTensor(t), std::move(tensor));
  }
  return tensors;
}

class LoadTensors : public RankWork {
 public:
  template <typename Work = LoadTensors>
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context,
                                                        const char* directory,
                                                        Spread spread, Cut cut,
                                                        const char* backend) {
    const std::string path = JoinPath(context.directory(), directory);
    SHERD_ASSIGN_OR_RETURN(const auto group, context.Group(backend));
    SHERD_ASSIGN_OR_RETURN(const auto saved,
                           MakeTensors(context, Spread::kRows, cut, backend));
    SHERD_RETURN_IF_ERROR(SaveCheckpoint(path, saved, group, {.sync = false}));
    SHERD_ASSIGN_OR_RETURN(auto tensors,
                           MakeTensors(context, spread, cut, backend));
    return std::make_unique<Work>(path, std::move(tensors), group);
  }

  LoadTensors(std::string path, std::map<std::string, ShardedTensor> tensors,
              std::shared_ptr<ProcessGroup> group)
      : path_(std::move(path)),
        tensors_(std::move(tensors)),
        group_(std::move(group)) {
    for (auto& [name, tensor] : tensors_) destinations_[name] = &tensor;
  }

  const std::string& path() const { return path_; }
  const std::map<std::string, ShardedTensor>& tensors() const {
    return tensors_;
  }
  int rank() const { return group_->rank(); }

  absl::Status Prepare() override {
    for (auto& [name, tensor] : tensors_) {
      ForEachWord(tensor, 0, [](uint32_t& word, uint32_t) { word = ~word; });
    }
    return absl::OkStatus();
  }

  absl::Status Run() override {
    return LoadCheckpointInto(path_, destinations_, group_, {.stats = &stats_});
  }

  absl::Status Check() override {
    int64_t number = 0;
    int64_t wrong = 0;
    for (auto& [name, tensor] : tensors_) {
      ForEachWord(tensor, number++, [&](uint32_t word, uint32_t value) {
        wrong += word == value ? 0 : 1;
      });
    }
    if (wrong == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("wrong result: ", wrong, " words"));
  }

  // What was read and moved, of what was wanted.
  std::optional<WorkFigures> Figures() const override {
    if (stats_.tensor_bytes == 0) return std::nullopt;
    const auto of_all = [&](int64_t bytes) {
      return absl::StrFormat("%.2f",
                             static_cast<double>(bytes) /
                                 static_cast<double>(stats_.tensor_bytes));
    };
    return WorkFigures{.way = absl::StrCat("read ", of_all(stats_.file_bytes),
                                           ", moved ",
                                           of_all(stats_.exchanged_bytes),
                                           " in ", stats_.exchanges)};
  }

 private:
  const std::string path_;
  std::map<std::string, ShardedTensor> tensors_;
  std::map<std::string, ShardedTensor*> destinations_;
  const std::shared_ptr<ProcessGroup> group_;
  CheckpointStats stats_;
};

// Plain reads of this rank's rows of all tensors, straight into them, many at a
// time, and the CRC of each.
class ReadTensors final : public LoadTensors {
 public:
  using LoadTensors::LoadTensors;

  absl::Status Prepare() override {
    if (reads_.empty()) SHERD_RETURN_IF_ERROR(FindRows());
    return LoadTensors::Prepare();
  }

  absl::Status Run() override {
    constexpr size_t kTogether = size_t{256} << 10;
    if (reads_.empty()) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(const auto file,
                           FileSystem::Posix().OpenForRead(file_));
    for (size_t first = 0, last = 0; first < reads_.size(); first = last) {
      size_t bytes = 0;
      while (last < reads_.size() && bytes < kTogether) {
        bytes += reads_[last++].buffer.size();
      }
      SHERD_RETURN_IF_ERROR(file->ReadMany(
          absl::MakeConstSpan(reads_).subspan(first, last - first),
          [&](size_t i) {
            // Only its time matters.
            Crc32c(reads_[first + i].buffer);
            return absl::OkStatus();
          }));
    }
    return absl::OkStatus();
  }

 private:
  // They are all in one file.
  absl::Status FindRows() {
    SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                           ReadManifest(FileSystem::Posix(), path()));
    for (const ManifestTensor& saved : manifest.tensors) {
      const SavedShardPlace place = saved.PlaceOf(rank(), manifest.chunk_bytes);
      // Of more ranks than rows some have none.
      if (place.extents.empty()) continue;
      const SavedExtent& extent = place.extents[0];
      const ManifestFile& file = manifest.files[extent.file];
      file_ = JoinPath(path(), file.name);
      Tensor rows = tensors().at(saved.name).local_shards()[0].tensor;
      reads_.push_back({file.data_begin + extent.data_offset,
                        absl::MakeSpan(static_cast<std::byte*>(rows.data()),
                                       static_cast<size_t>(rows.nbytes()))});
    }
    std::sort(reads_.begin(), reads_.end(),
              [](const FileRead& a, const FileRead& b) {
                return a.offset < b.offset;
              });
    return absl::OkStatus();
  }

  std::string file_;
  std::vector<FileRead> reads_;
};

// Each rank reads its own rows, straight into place; one all_gather makes the
// replicas.
class ReadAndGather final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    const std::string path = JoinPath(context.directory(), "limit");
    SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
    SHERD_ASSIGN_OR_RETURN(const auto saved,
                           MakeTensors(context, Spread::kRows, Cut::kOne));
    SHERD_RETURN_IF_ERROR(SaveCheckpoint(path, saved, group, {.sync = false}));
    SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                           ReadManifest(FileSystem::Posix(), path));
    const SavedShardPlace place =
        manifest.tensors[0].PlaceOf(context.rank(), manifest.chunk_bytes);
    SHERD_ASSIGN_OR_RETURN(auto tensors,
                           MakeTensors(context, Spread::kReplicas, Cut::kOne));
    auto work = std::make_unique<ReadAndGather>();
    work->group_ = group;
    work->tensor_ = tensors.begin()->second;
    work->extent_ = place.extents.at(0);
    const ManifestFile& file = manifest.files[work->extent_.file];
    work->offset_ = file.data_begin + work->extent_.data_offset;
    work->path_ = JoinPath(path, file.name);
    return work;
  }

  absl::Status Prepare() override {
    ForEachWord(tensor_, 0, [](uint32_t& word, uint32_t) { word = ~word; });
    return absl::OkStatus();
  }

  absl::Status Run() override {
    constexpr size_t kBlockBytes = size_t{8} << 20;
    Tensor whole = tensor_.local_shards()[0].tensor;
    const auto bytes = absl::MakeSpan(static_cast<std::byte*>(whole.data()),
                                      static_cast<size_t>(whole.nbytes()));
    const size_t part = static_cast<size_t>(extent_.bytes);
    const auto own =
        bytes.subspan(part * static_cast<size_t>(group_->rank()), part);
    SHERD_ASSIGN_OR_RETURN(const auto file,
                           FileSystem::Posix().OpenForRead(path_));
    for (size_t done = 0; done < part; done += kBlockBytes) {
      SHERD_RETURN_IF_ERROR(file->ReadAt(offset_ + static_cast<int64_t>(done),
                                         own.subspan(done, kBlockBytes)));
    }
    return group_->AllGather(ConstBytes(own), bytes);
  }

  absl::Status Check() override {
    int64_t wrong = 0;
    ForEachWord(tensor_, 0, [&](uint32_t word, uint32_t value) {
      wrong += word == value ? 0 : 1;
    });
    if (wrong == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("wrong result: ", wrong, " words"));
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  ShardedTensor tensor_;
  SavedExtent extent_;
  int64_t offset_ = 0;
  std::string path_;
};

BenchPeer PeerOf(const char* name, const char* help, Spread spread, Cut cut,
                 const char* backend = "gloo") {
  return {.name = name, .help = help, .make = [=](RankContext& context) {
            return LoadTensors::Make(context, name, spread, cut, backend);
          }};
}

BenchPeer CheckedPeer() {
  static constexpr char kName[] = "limit-crc";
  return {.name = kName,
          .help =
              "plain reads of the same bytes into the same tensors, and "
              "the CRC of each",
          .make = [](RankContext& context) {
            return LoadTensors::Make<ReadTensors>(context, kName, Spread::kRows,
                                                  Cut::kMany, "gloo");
          }};
}

absl::Status CheckReplicas(int world, int64_t bytes,
                           const std::string& directory) {
  const Dims size = MatrixOf(bytes / kWord);
  if (bytes % kWord != 0 || size[0] % world != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("needs a matrix whose rows divide by ", world, " ranks"));
  }
  return CheckSpaceForThree(bytes, directory);
}

BenchCase ManyCase(const char* name, const char* help, Spread spread) {
  return {.name = name,
          .help = help,
          .peers = {PeerOf("sherd", "LoadCheckpointInto", spread, Cut::kMany),
                    PeerOf("sherd-shm", "LoadCheckpointInto over shared memory",
                           spread, Cut::kMany, "shm"),
                    PeerOf("sherd-one", "the same bytes as one tensor", spread,
                           Cut::kOne)},
          .bytes = {64'000'000, 512'000'000},
          .fit = FitManyTensors,
          .check = CheckManyTensors};
}

}  // namespace

std::vector<BenchCase> LoadManyCases() {
  BenchCase same = ManyCase("checkpoint_load_many",
                            "10,000 tensors, rows to rows", Spread::kRows);
  same.peers.push_back(CheckedPeer());
  BenchCase resharded =
      ManyCase("checkpoint_load_many_resharded",
               "10,000 tensors, rows to columns", Spread::kColumns);
  const char* rows = "the same rows as one tensor";
  resharded.peers.push_back(
      PeerOf("sherd-rows", rows, Spread::kColumns, Cut::kRowsOfMany));
  resharded.peers.push_back(PeerOf("sherd-shm-rows", rows, Spread::kColumns,
                                   Cut::kRowsOfMany, "shm"));
  return {std::move(same),
          std::move(resharded),
          {.name = "checkpoint_load_replicated",
           .help = "rows to a copy on every rank",
           .peers = {PeerOf("sherd", "LoadCheckpointInto", Spread::kReplicas,
                            Cut::kOne),
                     {.name = "limit",
                      .help = "plain reads of own rows, and one all_gather",
                      .make = ReadAndGather::Make}},
           .bytes = {int64_t{64} << 20, int64_t{512} << 20},
           .check = CheckReplicas}};
}

}  // namespace sherd
