#include "sherd/serialization/manifest/manifest_reader.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_codec_v1.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/manifest/section_tree.h"

namespace sherd {
namespace {

// A manifest that is read at once.
constexpr int64_t kSmallBytes = 64 << 10;
// Of a larger one, with the root and, unless it is very large, the indexes.
constexpr int64_t kTailBytes = 16 << 10;
// Of one operation on the file.
constexpr int64_t kBlockBytes = int64_t{4} << 20;
// Of sections of tensors that are kept, and always one.
constexpr int64_t kKeptBytes = int64_t{64} << 20;

// What a directory tells of a manifest that cannot be opened.
enum class Trace {
  // There is none.
  kNone,
  // Its name is there: as that of a link, wherever that leads.
  kName,
  // It was committed, or another one.
  kLost,
};

absl::StatusOr<Trace> FindTrace(FileSystem& files, const ManifestPlace& place) {
  const absl::StatusOr<std::vector<std::string>> names =
      files.List(place.directory);
  if (absl::IsNotFound(names.status())) return Trace::kNone;
  SHERD_RETURN_IF_ERROR(names.status());
  if (std::binary_search(names->begin(), names->end(), place.name)) {
    return Trace::kName;
  }
  return AllManifestsAreLost(*names) ? Trace::kLost : Trace::kNone;
}

// A disk that is away, and comes back, is not a checkpoint that is missing.
absl::Status LeadsNowhere(const std::string& manifest_path) {
  return absl::FailedPreconditionError(absl::StrCat(
      manifest_path,
      " is the name of a file that is not there: expected a file, or a link to "
      "one; mount the disk to which the link leads, or remove the link"));
}

absl::StatusOr<std::unique_ptr<File>> OpenManifest(
    FileSystem& files, const ManifestPlace& place,
    const std::string& manifest_path) {
  absl::StatusOr<std::unique_ptr<File>> file = files.OpenForRead(manifest_path);
  if (!absl::IsNotFound(file.status())) return file;
  SHERD_ASSIGN_OR_RETURN(const Trace trace, FindTrace(files, place));
  if (trace == Trace::kNone) {
    return absl::NotFoundError(
        absl::StrCat(place.directory, " is not a checkpoint: there is no file ",
                     manifest_path));
  }
  // A first save may have given the name since.
  file = files.OpenForRead(manifest_path);
  if (!absl::IsNotFound(file.status())) return file;
  return trace == Trace::kName ? LeadsNowhere(manifest_path)
                               : ManifestsAreLost(place.directory);
}

// Errors of the file system have the path already.
absl::Status WithPath(absl::Status status, const std::string& path) {
  if (absl::StrContains(status.message(), path)) return status;
  return Annotate(std::move(status), path);
}

}  // namespace

absl::Status ManifestsAreLost(const std::string& directory) {
  return absl::DataLossError(absl::StrCat(
      directory, ": the manifest is missing: there is ", kCommittedFileName,
      ", which says that one was committed, and there are data files; `sherd "
      "recover ",
      directory, "` rebuilds it; remove the data files to begin afresh"));
}

absl::StatusOr<bool> ManifestExists(FileSystem& files,
                                    const std::string& path) {
  const ManifestPlace place = PlaceOfManifest(path);
  const std::string manifest_path = JoinPath(place.directory, place.name);
  SHERD_ASSIGN_OR_RETURN(bool exists, files.Exists(manifest_path));
  if (exists) return true;
  SHERD_ASSIGN_OR_RETURN(const Trace trace, FindTrace(files, place));
  if (trace == Trace::kNone) return false;
  if (trace == Trace::kLost) return true;
  // As in OpenManifest.
  SHERD_ASSIGN_OR_RETURN(exists, files.Exists(manifest_path));
  if (exists) return true;
  return LeadsNowhere(manifest_path);
}

using TensorPtr = std::shared_ptr<const ManifestTensor>;
using TensorsPtr = std::shared_ptr<const std::vector<ManifestTensor>>;

struct ManifestReader::State {
  // Reads the front and, of version 2, the root; of version 1 all.
  absl::Status Open();
  // Of version 2, with the lock.
  absl::StatusOr<absl::string_view> ReadBytes(int64_t offset, int64_t length,
                                              std::string& buffer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Fills `kept` with the file's bytes from `begin` on.
  absl::Status KeepFrom(int64_t begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The section that has the tensor of that name, if there is one; there are
  // tensors.
  absl::StatusOr<TensorsPtr> SectionOf(absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<TensorsPtr> TensorsIn(const SectionPlace& place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<TensorPtr> Find(absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<const ManifestFile*> FileAt(int32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status NoTensor(absl::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  std::string directory;
  std::string path;
  AfterRead after_read;
  ManifestSummary summary;
  int64_t num_tensors = 0;
  int64_t num_files = 0;
  // Of version 1.
  std::shared_ptr<const Manifest> whole;

  absl::Mutex mutex;
  int64_t size ABSL_GUARDED_BY(mutex) = 0;
  std::unique_ptr<File> file ABSL_GUARDED_BY(mutex);
  int64_t bytes_read ABSL_GUARDED_BY(mutex) = 0;
  // The last bytes of the file, up to all of it, from offset `kept_from` on.
  std::string kept ABSL_GUARDED_BY(mutex);
  int64_t kept_from ABSL_GUARDED_BY(mutex) = 0;
  std::optional<SectionTree> tree ABSL_GUARDED_BY(mutex);
  // Of all that is kept, and of what parsing takes.
  MemoryBudget memory ABSL_GUARDED_BY(mutex){kMaxManifestMemory};
  struct Section {
    SectionPlace place;
    TensorsPtr tensors;
    int64_t bytes = 0;
  };
  // Sections of tensors that were read last, the latest last.
  std::deque<Section> sections ABSL_GUARDED_BY(mutex);
  // Behind the tensor that was found last: names are mostly asked for in order.
  size_t next ABSL_GUARDED_BY(mutex) = 0;
  int64_t section_bytes ABSL_GUARDED_BY(mutex) = 0;
  // Sections of files, by first number; they stay where they are.
  std::map<int64_t, std::vector<ManifestFile>> file_sections
      ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<absl::string_view> ManifestReader::State::ReadBytes(
    int64_t offset, int64_t length, std::string& buffer) {
  if (offset >= kept_from) {
    return absl::string_view(kept).substr(offset - kept_from, length);
  }
  buffer.resize(static_cast<size_t>(length));
  for (int64_t done = 0; done < length; done += kBlockBytes) {
    SHERD_RETURN_IF_ERROR(file->ReadAt(
        offset + done,
        absl::MakeSpan(
            reinterpret_cast<std::byte*>(buffer.data()) + done,
            static_cast<size_t>(std::min(kBlockBytes, length - done)))));
    if (after_read != nullptr) SHERD_RETURN_IF_ERROR(after_read());
  }
  bytes_read += length;
  return absl::string_view(buffer);
}

absl::Status ManifestReader::State::KeepFrom(int64_t begin) {
  std::string tail;
  SHERD_RETURN_IF_ERROR(ReadBytes(begin, size - begin, tail).status());
  kept = std::move(tail);
  kept_from = begin;
  return absl::OkStatus();
}

absl::Status ManifestReader::State::Open() {
  absl::MutexLock lock(&mutex);
  SHERD_ASSIGN_OR_RETURN(size, file->Size());
  if (size > kMaxManifestBytes) {
    return LimitError(absl::StrCat("the manifest has ", size,
                                   " bytes, expected at most ",
                                   kMaxManifestBytes));
  }
  kept_from = size;
  std::string front_buffer;
  const int64_t front_bytes = std::min(size, kManifestFrontBytes);
  if (size <= kSmallBytes) SHERD_RETURN_IF_ERROR(KeepFrom(0));
  SHERD_ASSIGN_OR_RETURN(const absl::string_view front,
                         ReadBytes(0, front_bytes, front_buffer));
  SHERD_ASSIGN_OR_RETURN(const uint32_t version,
                         ReadManifestVersion(front, size));
  if (version == 1) {
    if (kept_from > 0) SHERD_RETURN_IF_ERROR(KeepFrom(0));
    SHERD_ASSIGN_OR_RETURN(ManifestV1 manifest, DecodeManifestV1(kept, path));
    whole = std::make_shared<const Manifest>(FromV1(std::move(manifest)));
    summary = *whole;
    num_tensors = static_cast<int64_t>(whole->tensors.size());
    num_files = static_cast<int64_t>(whole->files.size());
    kept.clear();
    file.reset();
    return absl::OkStatus();
  }
  if (kept_from > 0) SHERD_RETURN_IF_ERROR(KeepFrom(size - kTailBytes));
  SHERD_ASSIGN_OR_RETURN(
      tree, SectionTree::Open(
                size,
                [this](int64_t offset, int64_t length, std::string& buffer) {
                  mutex.AssertHeld();
                  return ReadBytes(offset, length, buffer);
                },
                memory));
  summary = tree->root().summary;
  num_tensors = tree->root().tensors;
  num_files = tree->root().files;
  return absl::OkStatus();
}

absl::StatusOr<TensorsPtr> ManifestReader::State::TensorsIn(
    const SectionPlace& place) {
  for (const Section& section : sections) {
    if (section.place == place) return section.tensors;
  }
  SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, tree->Read(place));
  const int64_t before = memory.taken();
  absl::StatusOr<std::vector<ManifestTensor>> tensors =
      ParseTensors(bytes, place, tree->root(), memory);
  int64_t kept = memory.taken() - before;
  if (!tensors.ok()) {
    memory.Give(kept);
    return tensors.status();
  }
  // The shards are not listed here.
  for (const ManifestTensor& tensor : *tensors) {
    memory.Give(tensor.num_shards() * kPerListedShard);
  }
  kept = memory.taken() - before;
  section_bytes += kept;
  sections.push_back(
      {place,
       std::make_shared<const std::vector<ManifestTensor>>(*std::move(tensors)),
       kept});
  while (section_bytes > kKeptBytes && sections.size() > 1) {
    section_bytes -= sections.front().bytes;
    memory.Give(sections.front().bytes);
    sections.pop_front();
  }
  return sections.back().tensors;
}

absl::StatusOr<TensorsPtr> ManifestReader::State::SectionOf(
    absl::string_view name) {
  // Names are mostly asked for in order.
  if (!sections.empty()) {
    const TensorsPtr& last = sections.back().tensors;
    if (last->front().name <= name && name <= last->back().name) return last;
  }
  SHERD_ASSIGN_OR_RETURN(const SectionPlace place,
                         tree->FindTensor(name, memory));
  return TensorsIn(place);
}

absl::StatusOr<TensorPtr> ManifestReader::State::Find(absl::string_view name) {
  if (whole != nullptr) {
    SHERD_ASSIGN_OR_RETURN(const ManifestTensor* tensor, whole->Find(name));
    return TensorPtr(whole, tensor);
  }
  if (num_tensors == 0) return NoTensor(name);
  if (!sections.empty()) {
    const TensorsPtr& last = sections.back().tensors;
    if (next < last->size() && (*last)[next].name == name) {
      return TensorPtr(last, &(*last)[next++]);
    }
  }
  SHERD_ASSIGN_OR_RETURN(TensorsPtr section, SectionOf(name));
  const auto it = std::lower_bound(
      section->begin(), section->end(), name,
      [](const ManifestTensor& tensor, absl::string_view wanted) {
        return absl::string_view(tensor.name) < wanted;
      });
  if (it == section->end() || it->name != name) return NoTensor(name);
  next = static_cast<size_t>(it - section->begin()) + 1;
  return TensorPtr(section, &*it);
}

absl::Status ManifestReader::State::NoTensor(absl::string_view name) {
  std::vector<std::string> some;
  if (num_tensors > 0) {
    SHERD_ASSIGN_OR_RETURN(const SectionPlace place,
                           tree->FindTensor("", memory));
    SHERD_ASSIGN_OR_RETURN(const TensorsPtr section, TensorsIn(place));
    for (size_t i = 0; i < std::min<size_t>(3, section->size()); ++i) {
      some.push_back((*section)[i].name);
    }
  }
  return NoSuchTensor(name, num_tensors, some);
}

absl::StatusOr<const ManifestFile*> ManifestReader::State::FileAt(
    int32_t index) {
  if (index < 0 || index >= num_files) {
    return absl::DataLossError(
        absl::StrCat("there is no file ", index, " of ", num_files));
  }
  if (whole != nullptr) return &whole->files[index];
  auto it = file_sections.upper_bound(index);
  if (it != file_sections.begin()) {
    --it;
    const int64_t within = index - it->first;
    if (within < static_cast<int64_t>(it->second.size())) {
      return &it->second[within];
    }
  }
  SHERD_ASSIGN_OR_RETURN(const SectionPlace place,
                         tree->FindNumber(SectionKind::kFiles, index, memory));
  SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, tree->Read(place));
  SHERD_ASSIGN_OR_RETURN(std::vector<ManifestFile> files,
                         ParseFiles(bytes, place, memory));
  if (index - place.first >= static_cast<int64_t>(files.size())) {
    return absl::DataLossError(absl::StrCat("the section of files at offset ",
                                            place.offset, " has no file ",
                                            index));
  }
  SHERD_RETURN_IF_ERROR(memory.Take(place.length, kMemoryPerByte));
  it = file_sections.emplace(place.first, std::move(files)).first;
  return &it->second[index - place.first];
}

absl::StatusOr<ManifestReader> ManifestReader::Open(
    FileSystem& files, const std::string& checkpoint_path,
    AfterRead after_read) {
  auto state = std::make_shared<State>();
  state->after_read = std::move(after_read);
  const ManifestPlace place = PlaceOfManifest(checkpoint_path);
  state->directory = place.directory;
  state->path = JoinPath(place.directory, place.name);
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                         OpenManifest(files, place, state->path));
  if (state->after_read != nullptr) SHERD_RETURN_IF_ERROR(state->after_read());
  {
    absl::MutexLock lock(&state->mutex);
    state->file = std::move(file);
  }
  absl::Status status = state->Open();
  if (!status.ok()) return WithPath(std::move(status), state->path);
  return ManifestReader(std::move(state));
}

const std::string& ManifestReader::directory() const {
  return state_->directory;
}
const std::string& ManifestReader::path() const { return state_->path; }
const ManifestSummary& ManifestReader::summary() const {
  return state_->summary;
}
int64_t ManifestReader::num_tensors() const { return state_->num_tensors; }
int64_t ManifestReader::num_files() const { return state_->num_files; }
absl::Span<const uint32_t> ManifestReader::chunk_crc32c() const {
  if (state_->whole == nullptr) return {};
  return state_->whole->chunk_crc32c;
}
int64_t ManifestReader::bytes_read() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->bytes_read;
}

absl::StatusOr<TensorPtr> ManifestReader::Find(absl::string_view name) const {
  absl::MutexLock lock(&state_->mutex);
  absl::StatusOr<TensorPtr> found = state_->Find(name);
  if (!found.ok()) return WithPath(found.status(), state_->path);
  return found;
}

absl::StatusOr<std::vector<TensorPtr>> ManifestReader::FindAll(
    absl::Span<const absl::string_view> sorted_names) const {
  absl::MutexLock lock(&state_->mutex);
  std::vector<TensorPtr> found;
  found.reserve(sorted_names.size());
  for (const absl::string_view name : sorted_names) {
    absl::StatusOr<TensorPtr> tensor = state_->Find(name);
    if (!tensor.ok()) return WithPath(tensor.status(), state_->path);
    found.push_back(*std::move(tensor));
  }
  return found;
}

absl::StatusOr<const ManifestFile*> ManifestReader::FileAt(
    int32_t index) const {
  absl::MutexLock lock(&state_->mutex);
  absl::StatusOr<const ManifestFile*> file = state_->FileAt(index);
  if (!file.ok()) return WithPath(file.status(), state_->path);
  return file;
}

absl::StatusOr<Manifest> ManifestReader::ReadAll() const {
  if (state_->whole != nullptr) return *state_->whole;
  absl::MutexLock lock(&state_->mutex);
  MemoryBudget memory(kMaxManifestMemory);
  absl::StatusOr<Manifest> manifest = state_->tree->ReadAll(memory);
  absl::Status status = manifest.status();
  if (status.ok()) status = ValidateManifest(*manifest);
  if (!status.ok()) return WithPath(std::move(status), state_->path);
  return manifest;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& checkpoint_path) {
  SHERD_ASSIGN_OR_RETURN(const ManifestReader reader,
                         ManifestReader::Open(files, checkpoint_path));
  return reader.ReadAll();
}

}  // namespace sherd
