#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/shard_publication.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/archive_reader.h"
#include "sherd/serialization/archive/group_state.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/store/store_registry.h"

namespace sherd {
namespace internal {
namespace {

// Loads values of an archive. Their elements are shared as they were.
class Loader {
 public:
  // `mapping`: of the archive; null if elements are to be read.
  Loader(const ArchiveReader& reader, std::optional<Device> device,
         std::shared_ptr<Storage> mapping)
      : reader_(reader), device_(device), mapping_(std::move(mapping)) {}

  // The value at `index`, with all that is in it; or `opened`, which the ranks
  // that publish with this one then learn.
  absl::StatusOr<StateValue> Load(size_t index, const absl::Status& opened);

 private:
  const SavedState& state() const { return reader_.state(); }

  // What needs no other rank, into values_: with the check of the places first,
  // so that nothing is read in vain.
  absl::Status CheckPlaces(size_t begin, size_t end) const;
  absl::Status LoadValues(size_t begin, size_t end);
  // Publishes what was published, or `status`, so that no rank waits for one
  // that cannot. The first error.
  absl::Status Publish(size_t begin, size_t end, absl::Status status);

  absl::StatusOr<StateValue> LoadTensor(const SavedTensor& saved);
  absl::StatusOr<StateValue> LoadSharded(const SavedShardedTensor& saved);
  // `pinned` is of host memory. `allocator` null: the default of the device.
  absl::StatusOr<Tensor> Load(const SavedTensor& saved, const Device& device,
                              bool pinned, Allocator* allocator);
  absl::StatusOr<std::shared_ptr<Storage>> LoadBlock(int64_t block,
                                                     const Device& device,
                                                     bool pinned,
                                                     Allocator* allocator);
  absl::Status Named(const absl::Status& status, size_t index) const {
    return Annotate(status, NameOf(state().values, index));
  }

  const ArchiveReader& reader_;
  const std::optional<Device> device_;
  const std::shared_ptr<Storage> mapping_;
  // By block, device, and whether it is pinned.
  std::map<std::tuple<int64_t, Device, bool>, std::shared_ptr<Storage>> blocks_;
  absl::flat_hash_map<size_t, StateValue> values_;
};

absl::StatusOr<std::shared_ptr<Storage>> Loader::LoadBlock(
    int64_t block, const Device& device, bool pinned, Allocator* allocator) {
  std::shared_ptr<Storage>& storage = blocks_[{block, device, pinned}];
  if (storage != nullptr) return storage;
  const size_t index = static_cast<size_t>(block);
  SHERD_ASSIGN_OR_RETURN(
      const Tensor bytes,
      MakeLocalTensor({state().blocks[index]},
                      {.dtype = kUInt8, .pin_memory = pinned}, device,
                      allocator));
  SHERD_RETURN_IF_ERROR(reader_.ReadBlock(index, bytes));
  storage = bytes.storage();
  return storage;
}

absl::StatusOr<Tensor> Loader::Load(const SavedTensor& saved,
                                    const Device& device, bool pinned,
                                    Allocator* allocator) {
  if (saved.block < 0) {
    return Tensor::Empty(saved.size, {.dtype = saved.dtype, .device = device});
  }
  pinned = pinned && device.is_cpu();
  if (mapping_ != nullptr && device.is_cpu() && !pinned) {
    const int64_t offset =
        reader_.layout().offsets[static_cast<size_t>(saved.block)] +
        saved.offset;
    return Tensor::FromStorageStrided(mapping_, offset, saved.size,
                                      saved.strides, saved.dtype);
  }
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage,
                         LoadBlock(saved.block, device, pinned, allocator));
  return Tensor::FromStorageStrided(std::move(storage), saved.offset,
                                    saved.size, saved.strides, saved.dtype);
}

absl::StatusOr<StateValue> Loader::LoadTensor(const SavedTensor& saved) {
  const bool stays = !device_ || saved.device.is_meta();
  SHERD_ASSIGN_OR_RETURN(
      Tensor tensor,
      Load(saved, stays ? saved.device : *device_, saved.pinned, nullptr));
  return StateValue(std::move(tensor));
}

absl::StatusOr<StateValue> Loader::LoadSharded(
    const SavedShardedTensor& saved) {
  std::shared_ptr<ProcessGroup> group;
  if (saved.group) {
    SHERD_ASSIGN_OR_RETURN(group, LoadGroup());
  }
  // Also where the memory was not, for want of a device that would use it.
  const bool pinned = saved.metadata.properties.pin_memory;
  std::vector<Shard> shards;
  for (size_t i = 0; i < saved.shards.size(); ++i) {
    const SavedTensor& part = saved.shards[i];
    // Peers read shards of a group where they are.
    Allocator* const allocator =
        pinned ? nullptr : AllocatorFor(group.get(), part.device, nullptr);
    SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                           Load(part, part.device, pinned, allocator));
    const size_t index = static_cast<size_t>(saved.shard_indices[i]);
    shards.push_back({std::move(tensor), saved.metadata.shards[index]});
  }
  absl::StatusOr<ShardedTensor> tensor =
      group == nullptr ? ShardedTensor::WithoutGroup(std::move(shards),
                                                     saved.metadata, saved.spec)
                       : ShardedTensor::FromLocalShardsAndMetadata(
                             std::move(shards), saved.metadata,
                             {.group = group}, saved.spec);
  if (!tensor.ok()) return tensor.status();
  return StateValue(*std::move(tensor));
}

absl::StatusOr<GroupState> PlaceNow() {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         LoadGroup());
  return GroupStateOf(*group);
}

absl::Status Loader::CheckPlaces(size_t begin, size_t end) const {
  std::optional<absl::StatusOr<GroupState>> now;
  for (size_t i = begin; i < end; ++i) {
    const SavedShardedTensor* const saved = state().values[i].sharded();
    if (saved == nullptr || !saved->group) continue;
    if (!now) now = PlaceNow();
    const absl::Status status =
        now->ok() ? CheckSamePlace(*saved->group, **now) : now->status();
    if (!status.ok()) return Named(status, i);
  }
  return absl::OkStatus();
}

absl::Status Loader::LoadValues(size_t begin, size_t end) {
  SHERD_RETURN_IF_ERROR(CheckPlaces(begin, end));
  for (size_t i = begin; i < end; ++i) {
    const SavedValue& value = state().values[i];
    absl::StatusOr<StateValue> loaded;
    if (const SavedTensor* const tensor = value.tensor()) {
      loaded = LoadTensor(*tensor);
    } else if (const SavedShardedTensor* const sharded = value.sharded()) {
      loaded = LoadSharded(*sharded);
    } else {
      continue;
    }
    if (!loaded.ok()) return Named(loaded.status(), i);
    values_[i] = *std::move(loaded);
  }
  return absl::OkStatus();
}

absl::Status Loader::Publish(size_t begin, size_t end, absl::Status status) {
  const std::shared_ptr<RemoteAccess> access = DefaultRemoteAccess();
  bool agreed = false;
  for (size_t i = begin; i < end; ++i) {
    const SavedShardedTensor* const saved = state().values[i].sharded();
    if (saved == nullptr || !saved->init_rrefs) continue;
    // Without a group there are no ranks to inform.
    const absl::StatusOr<std::shared_ptr<ProcessGroup>> group = LoadGroup();
    if (!group.ok()) break;
    if (agreed) {
      // All members know the error. Workers that are none go on, and count.
      if (access != nullptr) access->TakeNumber((*group)->name());
      continue;
    }
    absl::StatusOr<ShardedTensor> tensor = PublishShards(
        status.ok()
            ? absl::StatusOr<ShardedTensor>(*values_[i].get_if<ShardedTensor>())
            : status,
        *group, access);
    agreed = !tensor.ok();
    // The error of this rank is the one that it can do something about.
    if (!status.ok()) continue;
    if (tensor.ok()) {
      values_[i] = *std::move(tensor);
    } else {
      status = Named(tensor.status(), i);
    }
  }
  return status;
}

absl::StatusOr<StateValue> Loader::Load(size_t index,
                                        const absl::Status& opened) {
  const size_t end = EndOf(state(), index);
  SHERD_RETURN_IF_ERROR(
      Publish(index, end, opened.ok() ? LoadValues(index, end) : opened));
  return BuildValue(state(), index,
                    [&](size_t i) -> absl::StatusOr<StateValue> {
                      return std::move(values_[i]);
                    });
}

// Without elements, ranks and groups.
absl::StatusOr<StateValue> Describe(const SavedValue& value) {
  if (const SavedTensor* const tensor = value.tensor()) {
    SHERD_ASSIGN_OR_RETURN(
        Tensor described,
        Tensor::Empty(tensor->size,
                      {.dtype = tensor->dtype, .device = DeviceType::kMeta}));
    return StateValue(std::move(described));
  }
  const SavedShardedTensor& sharded = *value.sharded();
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensor described,
      ShardedTensor::WithoutGroup({}, sharded.metadata, sharded.spec));
  return StateValue(std::move(described));
}

// By address: the values of a state, numbered in the order of the tree.
using Numbers = absl::flat_hash_map<const StateValue*, size_t>;

void Number(const StateValue& value, size_t& next, Numbers& numbers) {
  numbers[&value] = next++;
  if (const auto* map = value.get_if<StateDict>()) {
    for (const StateEntry& entry : *map) Number(entry.value, next, numbers);
  } else if (const auto* list = value.get_if<StateList>()) {
    for (const StateValue& item : *list) Number(item, next, numbers);
  }
}

class FileSource final : public ArchiveSource {
 public:
  explicit FileSource(std::unique_ptr<File> file) : file_(std::move(file)) {}

  absl::StatusOr<int64_t> Size() override { return file_->Size(); }
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    return file_->ReadAt(offset, buffer);
  }
  std::string name() const override { return Quoted(file_->path()); }

 private:
  const std::unique_ptr<File> file_;
};

// Borrows the bytes.
class BytesSource final : public ArchiveSource {
 public:
  explicit BytesSource(absl::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<int64_t> Size() override {
    return static_cast<int64_t>(bytes_.size());
  }
  // The reader stays within the size.
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    if (buffer.empty()) return absl::OkStatus();
    std::memcpy(buffer.data(), bytes_.data() + offset, buffer.size());
    return absl::OkStatus();
  }
  std::string name() const override { return "the bytes"; }

 private:
  const absl::string_view bytes_;
};

// An archive, and how its elements are to be loaded.
struct OpenArchive {
  ArchiveReader reader;
  std::optional<Device> device;
  std::shared_ptr<Storage> mapping;

  // What Load needs beside the tree, of the file at `path` if it is mapped.
  absl::Status Complete(const std::string* path, bool map) {
    SHERD_RETURN_IF_ERROR(reader.ReadTable());
    if (!map) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(mapping, reader.Map(*path));
    return absl::OkStatus();
  }

  // `completed`: of Complete.
  absl::StatusOr<StateValue> Load(size_t index,
                                  const absl::Status& completed) const {
    return Loader(reader, device, mapping).Load(index, completed);
  }
};

// Reads the tree.
absl::StatusOr<OpenArchive> OpenSource(std::shared_ptr<ArchiveSource> source,
                                       const std::string* path,
                                       const ArchiveLoadOptions& options) {
  if (options.map && path == nullptr) {
    return absl::InvalidArgumentError(
        "only a file can be mapped: pass its path");
  }
  if (options.map) {
    SHERD_ASSIGN_OR_RETURN(const auto address, ParseStoreAddress(*path));
    if (address.has_value()) {
      return absl::InvalidArgumentError(
          "only a file can be mapped: expected a path without a scheme");
    }
  }
  if (options.device) SHERD_RETURN_IF_ERROR(options.device->status());
  SHERD_ASSIGN_OR_RETURN(ArchiveReader reader,
                         ArchiveReader::Open(std::move(source)));
  return OpenArchive{std::move(reader), options.device};
}

absl::StatusOr<std::shared_ptr<ArchiveSource>> SourceAt(
    const std::string& path, const ArchiveLoadOptions& options) {
  FileSystem& files =
      options.files == nullptr ? CheckpointFiles() : *options.files;
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.OpenForRead(path));
  return std::make_shared<FileSource>(std::move(file));
}

std::string Loading(const ArchiveSource& source) {
  return absl::StrCat("loading ", source.name());
}

// The map at the top of an archive.
absl::StatusOr<StateDict> StateOf(absl::StatusOr<StateValue> top,
                                  absl::string_view loading) {
  if (!top.ok()) return Annotate(top.status(), loading);
  return std::move(*top->get_if<StateDict>());
}

absl::StatusOr<StateDict> LoadAll(std::shared_ptr<ArchiveSource> source,
                                  const std::string* path,
                                  const ArchiveLoadOptions& options) {
  const std::string loading = Loading(*source);
  auto archive = OpenSource(std::move(source), path, options);
  if (!archive.ok()) return Annotate(archive.status(), loading);
  return StateOf(archive->Load(0, archive->Complete(path, options.map)),
                 loading);
}

}  // namespace
}  // namespace internal

struct Archive::State {
  static absl::StatusOr<Archive> Open(std::shared_ptr<ArchiveSource> source,
                                      const std::string* path,
                                      const ArchiveLoadOptions& options);

  std::string loading;
  internal::OpenArchive archive;
  // A map.
  StateValue contents;
  internal::Numbers numbers;
};

absl::StatusOr<Archive> Archive::State::Open(
    std::shared_ptr<ArchiveSource> source, const std::string* path,
    const ArchiveLoadOptions& options) {
  std::string loading = internal::Loading(*source);
  absl::StatusOr<internal::OpenArchive> archive =
      internal::OpenSource(std::move(source), path, options);
  absl::Status status = archive.status();
  if (status.ok()) status = archive->Complete(path, options.map);
  if (!status.ok()) return Annotate(status, loading);
  auto state = std::make_shared<State>(
      State{std::move(loading), *std::move(archive), {}, {}});
  const internal::SavedState& saved = state->archive.reader.state();
  absl::StatusOr<StateValue> contents = internal::BuildValue(
      saved, 0, [&](size_t i) { return internal::Describe(saved.values[i]); });
  if (!contents.ok()) return Annotate(contents.status(), state->loading);
  state->contents = *std::move(contents);
  size_t next = 0;
  internal::Number(state->contents, next, state->numbers);
  return Archive(std::move(state));
}

Archive::Archive(std::shared_ptr<const State> state)
    : state_(std::move(state)) {}

absl::StatusOr<Archive> Archive::Open(const std::string& path,
                                      const ArchiveLoadOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ArchiveSource> source,
                         internal::SourceAt(path, options));
  return State::Open(std::move(source), &path, options);
}

absl::StatusOr<Archive> Archive::Open(std::shared_ptr<ArchiveSource> source,
                                      const ArchiveLoadOptions& options) {
  return State::Open(std::move(source), nullptr, options);
}

const StateDict& Archive::contents() const {
  return *state_->contents.get_if<StateDict>();
}

absl::StatusOr<StateDict> Archive::Load() const {
  return internal::StateOf(state_->archive.Load(0, absl::OkStatus()),
                           state_->loading);
}

absl::StatusOr<StateValue> Archive::Load(absl::string_view name) const {
  absl::StatusOr<const StateValue*> found = contents().Find(name);
  if (!found.ok()) return Annotate(found.status(), state_->loading);
  absl::StatusOr<StateValue> value =
      state_->archive.Load(state_->numbers.at(*found), absl::OkStatus());
  if (!value.ok()) return Annotate(value.status(), state_->loading);
  return value;
}

absl::Status Archive::Verify() const {
  const internal::ArchiveReader& reader = state_->archive.reader;
  for (size_t i = 0; i < reader.state().blocks.size(); ++i) {
    SHERD_RETURN_IF_ERROR(Annotate(reader.VerifyBlock(i), state_->loading));
  }
  return absl::OkStatus();
}

absl::StatusOr<StateDict> Load(const std::string& path,
                               const ArchiveLoadOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ArchiveSource> source,
                         internal::SourceAt(path, options));
  return internal::LoadAll(std::move(source), &path, options);
}

absl::StatusOr<StateDict> Load(std::shared_ptr<ArchiveSource> source,
                               const ArchiveLoadOptions& options) {
  return internal::LoadAll(std::move(source), nullptr, options);
}

absl::StatusOr<StateDict> LoadFromString(absl::string_view bytes,
                                         const ArchiveLoadOptions& options) {
  return internal::LoadAll(std::make_shared<internal::BytesSource>(bytes),
                           nullptr, options);
}

}  // namespace sherd
