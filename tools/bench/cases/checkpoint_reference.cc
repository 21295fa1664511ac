#include "sherd/tools/bench/cases/checkpoint_reference.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/tools/bench/peers/sharded_words.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;

FileSystem& Files() { return FileSystem::Posix(); }

}  // namespace

SavedRows FindRows(const Manifest& manifest, const WordBox& rows) {
  const ManifestTensor& tensor = manifest.tensors[0];
  Box box;
  for (int64_t i = 0; rows.words() > 0 && i < tensor.num_shards(); ++i) {
    const SavedShardPlace place = tensor.PlaceOf(i, manifest.chunk_bytes);
    tensor.layout.BoxAt(i, box);
    if (place.extents.empty() || box.offsets[0] != rows.offsets[1]) continue;
    const ManifestFile& file = manifest.files[place.extents[0].file];
    return {&file, file.data_begin + place.extents[0].data_offset};
  }
  return {};
}

absl::StatusOr<CheckpointReferencePtr> CheckpointReference::Get(
    RankContext& context) {
  std::any& common = context.common();
  if (!common.has_value()) {
    auto reference = std::make_shared<CheckpointReference>();
    SHERD_RETURN_IF_ERROR(reference->Init(context));
    common = CheckpointReferencePtr(std::move(reference));
  }
  return std::any_cast<CheckpointReferencePtr>(common);
}

absl::Status CheckpointReference::Save(const std::string& path) const {
  return SaveCheckpoint(path, {{kTensorName, tensor_}}, tensor_.group());
}

absl::Status CheckpointReference::CheckSaved(const std::string& path,
                                             int rank) const {
  SHERD_ASSIGN_OR_RETURN(const Manifest saved, ReadManifest(Files(), path));
  const WordBox box = RowsOf(rank);
  if (box.words() == 0) return absl::OkStatus();
  const SavedRows rows = FindRows(saved, box);
  if (rows.file == nullptr) {
    return absl::DataLossError("wrong result: the manifest has no such shard");
  }
  SHERD_ASSIGN_OR_RETURN(const auto storage, Storage::Allocate(box.bytes()));
  SHERD_ASSIGN_OR_RETURN(const auto opened,
                         Files().OpenForRead(JoinPath(path, rows.file->name)));
  SHERD_RETURN_IF_ERROR(ReadBlocks(
      *opened, rows.offset,
      absl::MakeSpan(static_cast<std::byte*>(storage->data()), box.bytes())));
  return Check(matrix_,
               {DenseBox(box, static_cast<uint32_t*>(storage->data()))});
}

absl::Status CheckpointReference::Init(RankContext& context) {
  SHERD_ASSIGN_OR_RETURN(matrix_, MatrixOfBytes(context.bytes()));
  rows_ = BoxesOf(matrix_, RowsOver(matrix_, context.world()));
  path_ = JoinPath(context.directory(), "reference");
  SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
  SHERD_ASSIGN_OR_RETURN(tensor_, MakeShardedWords(matrix_, rows_, group));
  Fill(matrix_, StoredShards(tensor_));
  SHERD_RETURN_IF_ERROR(Save(path_));
  SHERD_ASSIGN_OR_RETURN(manifest_, ReadManifest(Files(), path_));
  SHERD_ASSIGN_OR_RETURN(
      manifest_bytes_,
      ReadFile(Files(), JoinPath(path_, kManifestFileName), kMaxManifestBytes));
  return absl::OkStatus();
}

absl::Status ReadBlocks(File& file, int64_t offset, absl::Span<std::byte> to) {
  for (size_t done = 0; done < to.size(); done += kBlockBytes) {
    SHERD_RETURN_IF_ERROR(
        file.ReadAt(offset + static_cast<int64_t>(done),
                    to.subspan(done, static_cast<size_t>(kBlockBytes))));
  }
  return absl::OkStatus();
}

absl::Status WriteBlocks(File& file, int64_t offset,
                         absl::Span<const std::byte> from) {
  for (size_t done = 0; done < from.size(); done += kBlockBytes) {
    SHERD_RETURN_IF_ERROR(
        file.WriteAt(offset + static_cast<int64_t>(done),
                     from.subspan(done, static_cast<size_t>(kBlockBytes))));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpointSpace(int, int64_t bytes,
                                  const std::string& directory) {
  SHERD_RETURN_IF_ERROR(MatrixOfBytes(bytes).status());
  SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes,
                         Files().FreeBytes(directory));
  if (free_bytes / 4 >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs four times as much space in ", directory, ", where ",
                   free_bytes, " bytes are free"));
}

BenchPeer TorchCheckpointPeer(const char* name, const char* help,
                              std::function<std::string(int world)> work_of) {
  return {
      .name = name,
      .help = help,
      .measuring_program =
          [work_of](const BenchTask& task, const std::string& report) {
            const absl::StatusOr<WordTensor> matrix = MatrixOfBytes(task.bytes);
            return TorchCheckpointProgram(work_of(task.world), task, *matrix,
                                          report);
          },
      .check = [](int, int64_t, const std::string&) { return FindTorch(); }};
}

}  // namespace sherd
