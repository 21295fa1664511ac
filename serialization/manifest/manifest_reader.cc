#include "sherd/serialization/manifest/manifest_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/manifest/manifest_codec.h"

namespace sherd {
namespace {

// Whether the directory has a manifest, or a link in its place, wherever that
// leads.
absl::StatusOr<bool> HasManifestName(FileSystem& files,
                                     const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  if (absl::IsNotFound(names.status())) return false;
  SHERD_RETURN_IF_ERROR(names.status());
  return std::binary_search(names->begin(), names->end(), kManifestFileName);
}

// A disk that is away, and comes back, is not a checkpoint that is missing.
absl::Status LeadsNowhere(const std::string& manifest_path) {
  return absl::FailedPreconditionError(absl::StrCat(
      manifest_path,
      " is the name of a file that is not there: expected a file, or a link to "
      "one; mount the disk to which the link leads, or remove the link"));
}

absl::StatusOr<std::unique_ptr<File>> OpenManifest(
    FileSystem& files, const std::string& path,
    const std::string& manifest_path) {
  absl::StatusOr<std::unique_ptr<File>> file = files.OpenForRead(manifest_path);
  if (!absl::IsNotFound(file.status())) return file;
  SHERD_ASSIGN_OR_RETURN(const bool is_named, HasManifestName(files, path));
  if (!is_named) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not a checkpoint: there is no file ", manifest_path));
  }
  // A first save may have given the name since.
  file = files.OpenForRead(manifest_path);
  if (absl::IsNotFound(file.status())) return LeadsNowhere(manifest_path);
  return file;
}

}  // namespace

struct ManifestReader::State {
  std::string path;
  Manifest manifest;
  int64_t bytes_read = 0;
};

absl::StatusOr<bool> CheckpointExists(const std::string& path,
                                      FileSystem& files) {
  const std::string manifest_path = JoinPath(path, kManifestFileName);
  SHERD_ASSIGN_OR_RETURN(bool exists, files.Exists(manifest_path));
  if (exists) return true;
  SHERD_ASSIGN_OR_RETURN(const bool is_named, HasManifestName(files, path));
  if (!is_named) return false;
  // As in OpenManifest.
  SHERD_ASSIGN_OR_RETURN(exists, files.Exists(manifest_path));
  if (exists) return true;
  return LeadsNowhere(manifest_path);
}

absl::StatusOr<ManifestReader> ManifestReader::Open(
    FileSystem& files, const std::string& checkpoint_path) {
  auto state = std::make_shared<State>();
  state->path = JoinPath(checkpoint_path, kManifestFileName);
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         OpenManifest(files, checkpoint_path, state->path));
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadFile(files, state->path, kMaxManifestBytes));
  SHERD_ASSIGN_OR_RETURN(state->manifest, DecodeManifest(bytes, state->path));
  state->bytes_read = static_cast<int64_t>(bytes.size());
  return ManifestReader(std::move(state));
}

const std::string& ManifestReader::path() const { return state_->path; }
const ManifestSummary& ManifestReader::summary() const {
  return state_->manifest;
}
int64_t ManifestReader::num_tensors() const {
  return static_cast<int64_t>(state_->manifest.tensors.size());
}
int64_t ManifestReader::num_files() const {
  return static_cast<int64_t>(state_->manifest.files.size());
}
absl::Span<const uint32_t> ManifestReader::chunk_crc32c() const {
  return state_->manifest.chunk_crc32c;
}
int64_t ManifestReader::bytes_read() const { return state_->bytes_read; }

absl::StatusOr<std::shared_ptr<const ManifestTensor>> ManifestReader::Find(
    absl::string_view name) const {
  const absl::StatusOr<const ManifestTensor*> found =
      state_->manifest.Find(name);
  if (!found.ok()) return Annotate(found.status(), state_->path);
  return std::shared_ptr<const ManifestTensor>(state_, *found);
}

absl::StatusOr<std::vector<std::shared_ptr<const ManifestTensor>>>
ManifestReader::FindAll(absl::Span<const std::string> sorted_names) const {
  std::vector<std::shared_ptr<const ManifestTensor>> found;
  found.reserve(sorted_names.size());
  for (const std::string& name : sorted_names) {
    SHERD_ASSIGN_OR_RETURN(found.emplace_back(), Find(name));
  }
  return found;
}

absl::StatusOr<const ManifestFile*> ManifestReader::FileAt(
    int32_t index) const {
  if (index < 0 || index >= num_files()) {
    return absl::DataLossError(absl::StrCat(state_->path, ": there is no file ",
                                            index, " of ", num_files()));
  }
  return &state_->manifest.files[index];
}

absl::StatusOr<Manifest> ManifestReader::ReadAll() const {
  return state_->manifest;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& checkpoint_path) {
  SHERD_ASSIGN_OR_RETURN(const ManifestReader reader,
                         ManifestReader::Open(files, checkpoint_path));
  return reader.ReadAll();
}

}  // namespace sherd
