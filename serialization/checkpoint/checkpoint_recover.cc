#include "sherd/serialization/checkpoint_recover.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/version.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/save/save_directory.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/checkpoint/series/manifest_index.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// Data files of a directory by save, the newest first: identifiers grow with
// time.
using FilesBySave =
    std::map<std::string, std::vector<std::string>, std::greater<>>;

FilesBySave ListDataFiles(const std::vector<std::string>& names) {
  FilesBySave saves;
  for (const std::string& name : names) {
    // shard-RRRRR-of-WWWWW.ID.safetensors
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    if (IsSaveFileName(name) && parts.size() == 3 && IsSaveId(parts[1]) &&
        parts[2] == "safetensors") {
      saves[parts[1]].push_back(name);
    }
  }
  return saves;
}

// A tensor as its data files tell.
struct FoundTensor {
  DataFileTensor tensor;
  std::vector<Box> boxes;
  std::vector<SavedShardPlace> places;
  uint32_t fingerprint = 0;
};

// Puts the files of one save together.
class Rebuilder {
 public:
  Rebuilder(FileSystem& files, const std::string& path,
            const std::string& save_id)
      : files_(files), path_(path) {
    manifest_.writer = absl::StrCat("sherd ", kVersion);
    manifest_.save_id = save_id;
  }

  absl::StatusOr<Manifest> Run(const std::vector<std::string>& names) {
    std::vector<CheckedDataFile> checked;
    for (const std::string& name : names) {
      SHERD_ASSIGN_OR_RETURN(checked.emplace_back(),
                             CheckDataFile(files_, JoinPath(path_, name)));
    }
    std::sort(checked.begin(), checked.end(),
              [](const CheckedDataFile& a, const CheckedDataFile& b) {
                return a.contents.rank < b.contents.rank;
              });
    SHERD_RETURN_IF_ERROR(CheckComplete(checked));
    for (const CheckedDataFile& file : checked) {
      SHERD_RETURN_IF_ERROR(AddFile(file));
    }
    for (const CheckedDataFile& file : checked) {
      SHERD_RETURN_IF_ERROR(AddSplitShards(file));
    }
    for (auto& [name, found] : found_) {
      SHERD_RETURN_IF_ERROR(AddTensor(std::move(found)));
    }
    SHERD_RETURN_IF_ERROR(ValidateManifest(manifest_));
    return std::move(manifest_);
  }

 private:
  static constexpr size_t kShownRanks = 10;

  absl::Status CheckComplete(const std::vector<CheckedDataFile>& checked) {
    const DataFileContents& first = checked[0].contents;
    std::vector<int32_t> missing;
    int32_t next = 0;
    // There may be very many ranks, and those without elements wrote no file.
    const auto add_missing = [&](int32_t end) {
      for (; next < end && missing.size() <= kShownRanks; ++next) {
        missing.push_back(next);
      }
    };
    for (const CheckedDataFile& file : checked) {
      const DataFileContents& contents = file.contents;
      if (contents.save_id != manifest_.save_id || contents.rank < next ||
          contents.world_size != first.world_size ||
          contents.files != first.files || contents.step != first.step ||
          contents.chunk_bytes != first.chunk_bytes) {
        return absl::DataLossError(absl::StrCat(
            JoinPath(path_, file.file.name), " says that it is of rank ",
            contents.rank, " of ", contents.world_size, ", one of ",
            contents.files, " files of save ", Quoted(contents.save_id),
            "; expected one that belongs to ",
            JoinPath(path_, checked[0].file.name)));
      }
      add_missing(contents.rank);
      next = contents.rank + 1;
    }
    add_missing(first.world_size);
    if (static_cast<int64_t>(checked.size()) == first.files) {
      manifest_.world_size = first.world_size;
      manifest_.chunk_bytes = first.chunk_bytes;
      return absl::OkStatus();
    }
    // More where some ranks had no element, and so no file.
    const bool exact =
        static_cast<int64_t>(missing.size() + checked.size()) == first.files;
    const bool all = missing.size() <= kShownRanks;
    if (!all) missing.resize(kShownRanks);
    return absl::DataLossError(absl::StrCat(
        path_, ": save ", manifest_.save_id, " has ", first.files,
        " data files, of which ", checked.size(),
        " are there: missing are those of ranks ", exact ? "" : "among ",
        absl::StrJoin(missing, ", "), all ? "" : ", …"));
  }

  int32_t PlacementOf(const std::string& placement) {
    const auto [it, added] = placements_.emplace(
        placement, static_cast<int32_t>(manifest_.placements.size()));
    if (added) manifest_.placements.push_back(placement);
    return it->second;
  }

  absl::Status AddFile(const CheckedDataFile& checked) {
    const DataFileContents& contents = checked.contents;
    const auto file = static_cast<int32_t>(manifest_.files.size());
    manifest_.files.push_back(checked.file);
    for (const DataFileTensor& tensor : contents.tensors) {
      const auto [it, added] =
          found_.emplace(tensor.name, FoundTensor{.tensor = tensor});
      if (!added && !(it->second.tensor == tensor)) {
        return absl::DataLossError(absl::StrCat(
            JoinPath(path_, checked.file.name), ": tensor ",
            Quoted(tensor.name), " is ", Name(tensor.dtype), " ",
            FormatDims(tensor.sizes), ", but in another file it is ",
            Name(it->second.tensor.dtype), " ",
            FormatDims(it->second.tensor.sizes)));
      }
    }
    for (size_t i = 0; i < contents.shards.size(); ++i) {
      const DataFileShard& shard = contents.shards[i];
      FoundTensor& found = found_.at(contents.tensors[shard.tensor].name);
      found.fingerprint ^= checked.fingerprints[i];
      if (shard.part_bytes > 0) continue;
      SavedExtent extent = checked.extents[i];
      extent.file = file;
      found.boxes.push_back(shard);
      found.places.push_back(
          {PlacementOf(contents.placements[shard.placement]), {extent}});
    }
    return absl::OkStatus();
  }

  // The shards of a file that are in files of earlier saves too.
  absl::Status AddSplitShards(const CheckedDataFile& checked) {
    const DataFileContents& contents = checked.contents;
    // By number in `contents`; the first is the file itself.
    std::vector<int32_t> numbers = {NumberOf(checked.file.name)};
    for (const std::string& name : contents.earlier_files) {
      if (NumberOf(name) < 0) SHERD_RETURN_IF_ERROR(AddEarlierFile(name));
      numbers.push_back(NumberOf(name));
    }
    for (const SplitShard& shard : contents.split) {
      const DataFileTensor& tensor = contents.tensors[shard.tensor];
      FoundTensor& found = found_.at(tensor.name);
      SavedExtents extents = shard.extents;
      BoxFingerprint fingerprint(tensor.sizes, shard, SizeOf(tensor.dtype));
      for (SavedExtent& extent : extents) {
        const bool is_earlier = extent.file > 0;
        extent.file = numbers[extent.file];
        if (is_earlier) {
          SHERD_RETURN_IF_ERROR(CheckInShard(extent, tensor.name));
          SHERD_RETURN_IF_ERROR(AddBytes(extent, fingerprint));
          found.fingerprint ^= fingerprint.Take();
        } else {
          fingerprint.Skip(extent.bytes);
        }
      }
      found.boxes.push_back(shard);
      found.places.push_back({PlacementOf(contents.placements[shard.placement]),
                              std::move(extents)});
    }
    return absl::OkStatus();
  }

  // Its number in the manifest; -1 if it has none.
  int32_t NumberOf(const std::string& name) const {
    for (size_t i = 0; i < manifest_.files.size(); ++i) {
      if (manifest_.files[i].name == name) return static_cast<int32_t>(i);
    }
    return -1;
  }

  absl::Status AddEarlierFile(const std::string& name) {
    const std::string path = JoinPath(path_, name);
    absl::StatusOr<CheckedDataFile> checked = CheckDataFile(files_, path);
    if (absl::IsNotFound(checked.status())) {
      return absl::DataLossError(absl::StrCat(
          path, " is missing, to which save ", manifest_.save_id, " refers"));
    }
    SHERD_RETURN_IF_ERROR(checked.status());
    if (checked->contents.chunk_bytes != manifest_.chunk_bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has chunks of ", checked->contents.chunk_bytes,
                       " bytes, expected those of save ", manifest_.save_id,
                       ", ", manifest_.chunk_bytes));
    }
    earlier_[static_cast<int32_t>(manifest_.files.size())] =
        std::move(checked->extents);
    manifest_.files.push_back(checked->file);
    return absl::OkStatus();
  }

  // That an extent has chunks of one tensor in an earlier file.
  absl::Status CheckInShard(const SavedExtent& extent,
                            absl::string_view tensor) const {
    const auto found = earlier_.find(extent.file);
    const auto shards = found == earlier_.end()
                            ? absl::Span<const SavedExtent>()
                            : absl::MakeConstSpan(found->second);
    const auto after =
        std::upper_bound(shards.begin(), shards.end(), extent.data_offset,
                         [](int64_t offset, const SavedExtent& shard) {
                           return offset < shard.data_offset;
                         });
    if (after != shards.begin()) {
      const SavedExtent& shard = *std::prev(after);
      const int64_t before = extent.data_offset - shard.data_offset;
      const int64_t left = shard.bytes - before - extent.bytes;
      if (before % manifest_.chunk_bytes == 0 && left >= 0 &&
          (extent.bytes % manifest_.chunk_bytes == 0 || left == 0) &&
          extent.first_chunk ==
              shard.first_chunk + before / manifest_.chunk_bytes) {
        return absl::OkStatus();
      }
    }
    return absl::DataLossError(absl::StrCat(
        path_, ": save ", manifest_.save_id, " refers for tensor ",
        Quoted(tensor), " to ", extent.bytes, " bytes from ",
        extent.data_offset, ", chunk ", extent.first_chunk, ", of the data of ",
        manifest_.files[extent.file].name, ", which has no such chunks"));
  }

  // Adds the bytes of an extent of a file that was found sound.
  absl::Status AddBytes(const SavedExtent& extent,
                        BoxFingerprint& fingerprint) {
    const ManifestFile& info = manifest_.files[extent.file];
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.OpenForRead(JoinPath(path_, info.name)));
    std::vector<std::byte> buffer;
    for (int64_t done = 0; done < extent.bytes;) {
      const int64_t n = std::min(manifest_.chunk_bytes, extent.bytes - done);
      buffer.resize(static_cast<size_t>(n));
      SHERD_RETURN_IF_ERROR(file->ReadAt(
          info.data_begin + extent.data_offset + done, absl::MakeSpan(buffer)));
      fingerprint.Add(buffer);
      done += n;
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(FoundTensor found) {
    const DataFileTensor& from = found.tensor;
    ManifestTensor tensor = {.name = from.name,
                             .dtype = from.dtype,
                             .requires_grad = from.requires_grad,
                             .kind = from.kind,
                             .chunk_dim = from.chunk_dim};
    if (Volume(from.sizes) == 0) {
      tensor.layout = SavedLayout::Whole(from.sizes);
      found.places = {{PlacementOf("rank:0/cpu"), {}}};
    } else {
      const absl::Status covers =
          SavedLayout::Boxes(from.sizes, found.boxes).Validate();
      if (!covers.ok()) {
        return absl::DataLossError(absl::StrCat(
            path_, ": save ", manifest_.save_id, " does not have tensor ",
            Quoted(from.name), " completely: ", covers.message()));
      }
      std::vector<int64_t> order;
      tensor.layout = SavedLayout::FromBoxes(from.sizes, found.boxes, &order);
      std::vector<SavedShardPlace> places;
      for (const int64_t i : order) places.push_back(found.places[i]);
      found.places = std::move(places);
    }
    tensor.fingerprint = Crc32cFromLinear(
        found.fingerprint, static_cast<uint64_t>(tensor.bytes()));
    for (SavedShardPlace& place : found.places) {
      AppendPlace(std::move(place), manifest_.chunk_bytes, tensor.runs);
    }
    manifest_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string& path_;
  Manifest manifest_;
  absl::flat_hash_map<std::string, int32_t> placements_;
  // By number of a file of an earlier save: what is in it.
  std::map<int32_t, std::vector<SavedExtent>> earlier_;
  // By name, as a manifest has them.
  std::map<std::string, FoundTensor> found_;
};

// That the manifest of that path is not there, or damaged for good.
absl::Status CheckLost(FileSystem& files, const std::string& path) {
  const absl::Status status = ReadManifest(files, path).status();
  if (status.ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there, and can be read: nothing to recover"));
  }
  if (absl::IsNotFound(status) || absl::IsDataLoss(status)) {
    return absl::OkStatus();
  }
  return status;
}

// The files of one save that may be of version 2: files of version 1 do not say
// enough, and those that cannot be read are named later.
struct SaveFiles {
  std::vector<std::string> names;
  // The manifest that one of them says they are of; none says so: "".
  std::string manifest;
};

absl::StatusOr<SaveFiles> WithoutVersion1(
    FileSystem& files, const std::string& path,
    const std::vector<std::string>& names) {
  SaveFiles save;
  for (const std::string& name : names) {
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(files, JoinPath(path, name));
    if (!file.ok() && !absl::IsDataLoss(file.status())) return file.status();
    if (file.ok() && !IsDataFile({file->entries(), file->metadata()})) continue;
    save.names.push_back(name);
    if (!file.ok()) continue;
    const auto contents =
        ParseDataFileHeader({file->entries(), file->metadata()}, file->path());
    if (!contents.ok()) continue;
    save.manifest = contents->step.has_value()
                        ? StepManifestName(*contents->step)
                        : kManifestFileName;
  }
  return save;
}

// The save may not have made the files durable.
absl::Status SyncFiles(FileSystem& files, const std::string& path,
                       const Manifest& manifest) {
  for (const ManifestFile& named : manifest.files) {
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files.OpenForRead(JoinPath(path, named.name)));
    SHERD_RETURN_IF_ERROR(file->Sync());
  }
  return absl::OkStatus();
}

// Makes the manifest the checkpoint.
absl::Status Switch(FileSystem& files, const std::string& path,
                    const Manifest& manifest, SaveDirectory& directory) {
  SHERD_RETURN_IF_ERROR(SyncFiles(files, path, manifest));
  SHERD_RETURN_IF_ERROR(directory.SyncNames());
  SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
  absl::Status status = directory.Switch(manifest, bytes);
  if (!status.ok()) {
    files.Remove(JoinPath(path, StagedManifestName(directory.save_id())))
        .IgnoreError();
  }
  return status;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLostManifests(
    const std::string& directory, const RecoverOptions& options) {
  FileSystem& files =
      options.files != nullptr ? *options.files : CheckpointFiles();
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         files.List(directory));
  ManifestIndex index;
  index.Refresh(files, directory, names);
  const absl::flat_hash_set<std::string> in_use = index.in_use();
  std::set<std::string> manifests;
  for (const auto& [save_id, save_names] : ListDataFiles(names)) {
    // Of a step that is over, to whose files later ones refer.
    if (std::all_of(
            save_names.begin(), save_names.end(),
            [&](const std::string& name) { return in_use.contains(name); })) {
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(const SaveFiles save,
                           WithoutVersion1(files, directory, save_names));
    if (!save.manifest.empty()) manifests.insert(save.manifest);
  }
  for (const std::string& name : names) {
    if (IsManifestName(name)) manifests.insert(name);
  }
  if (manifests.empty()) manifests.insert(kManifestFileName);
  std::vector<std::string> lost;
  absl::Status found;
  for (const std::string& name : manifests) {
    const std::string path = JoinPath(directory, name);
    const absl::Status status = CheckLost(files, path);
    if (status.ok()) {
      lost.push_back(path);
    } else if (absl::IsAlreadyExists(status)) {
      found.Update(status);
    } else {
      return status;
    }
  }
  if (lost.empty()) return found;
  return lost;
}

absl::StatusOr<RecoverReport> RecoverManifest(const std::string& path,
                                              const RecoverOptions& options) {
  FileSystem& files =
      options.files != nullptr ? *options.files : CheckpointFiles();
  const ManifestPlace place = PlaceOfManifest(path);
  const std::string manifest_path = JoinPath(place.directory, place.name);
  SHERD_RETURN_IF_ERROR(CheckLost(files, manifest_path));
  SHERD_ASSIGN_OR_RETURN(std::vector<std::string> names,
                         files.List(place.directory));
  FilesBySave saves = ListDataFiles(names);
  const auto none = [&] {
    return absl::NotFoundError(
        absl::StrCat(place.directory, " has no data files of a save of ",
                     place.name, ": there is nothing to recover"));
  };
  if (saves.empty()) return none();
  // Under a number of its own: the save that wrote the files must not take the
  // lease for its own.
  SaveDirectory directory(files, place.directory, /*sync=*/true,
                          [] { return absl::OkStatus(); },
                          {.step = StepOfManifestName(place.name)});
  SHERD_ASSIGN_OR_RETURN(const uint64_t id,
                         directory.TakeLease(LeaseOptions().duration));
  directory.SetSaveId(id);
  // Again, now that no save is at work.
  SHERD_RETURN_IF_ERROR(CheckLost(files, manifest_path));
  SHERD_ASSIGN_OR_RETURN(names, files.List(place.directory));
  saves = ListDataFiles(names);
  RecoverReport report;
  absl::Status newest = none();
  for (const auto& [save_id, all_names] : saves) {
    SHERD_ASSIGN_OR_RETURN(const SaveFiles save,
                           WithoutVersion1(files, place.directory, all_names));
    if (save.names.empty()) continue;
    // Files that say nothing may be of this one.
    if (!save.manifest.empty() && save.manifest != place.name) continue;
    const absl::StatusOr<Manifest> manifest =
        Rebuilder(files, place.directory, save_id).Run(save.names);
    if (!manifest.ok()) {
      if (!absl::IsDataLoss(manifest.status())) return manifest.status();
      if (report.passed_over.empty()) newest = manifest.status();
      report.passed_over.emplace_back(manifest.status().message());
      continue;
    }
    SHERD_RETURN_IF_ERROR(Switch(files, place.directory, *manifest, directory));
    report.path = manifest_path;
    report.save_id = save_id;
    report.tensors = static_cast<int64_t>(manifest->tensors.size());
    report.files = static_cast<int64_t>(manifest->files.size());
    for (const ManifestFile& file : manifest->files) report.bytes += file.size;
    return report;
  }
  return newest;
}

}  // namespace sherd
