#include "sherd/tools/sherd/checkpoint/inspection.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/units.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors.h"

namespace sherd {
namespace {

// A manifest may claim any world size; pictures have room for so many.
constexpr int kMaxHolders = 1 << 20;

// Of a tensor's name in a table.
constexpr int64_t kMaxNameWidth = 80;

Inspection FromSafetensors(const SafetensorsFile& file) {
  Inspection inspection;
  inspection.path = file.path();
  inspection.metadata = file.metadata();
  const std::string name =
      std::filesystem::path(file.path()).filename().string();
  inspection.files = {{name, file.size()}};
  for (const SafetensorsEntry& entry : file.entries()) {
    InspectedShard shard = {WholeBox(entry.shape)};
    if (entry.nbytes() > 0) {
      shard.extents = {{name, file.data_begin() + entry.begin, entry.nbytes()}};
    }
    inspection.tensors.push_back({entry.name,
                                  entry.dtype,
                                  entry.shape,
                                  entry.nbytes(),
                                  "one piece",
                                  {shard}});
  }
  return inspection;
}

// The rank of "rank:3/cpu" if it is one of the run, otherwise `index`.
int HolderOf(absl::string_view placement, int index, int world_size) {
  int rank;
  if (absl::ConsumePrefix(&placement, "rank:") &&
      absl::SimpleAtoi(placement.substr(0, placement.find('/')), &rank) &&
      rank >= 0 && rank < std::min(world_size, kMaxHolders)) {
    return rank;
  }
  return index;
}

std::string LayoutOf(const ManifestTensor& tensor) {
  if (tensor.num_shards() == 1) return "one piece";
  if (tensor.kind == SavedLayoutKind::kChunk) {
    return absl::StrCat("chunks of dimension ", tensor.chunk_dim);
  }
  return "boxes";
}

InspectedShard FromManifestShard(const Manifest& manifest,
                                 const ManifestTensor& tensor, int64_t shard) {
  InspectedShard result = {tensor.layout.BoxAt(shard)};
  const SavedShardPlace place = tensor.PlaceOf(shard, manifest.chunk_bytes);
  result.placement = manifest.placements[place.placement];
  result.holder =
      HolderOf(result.placement, place.placement, manifest.world_size);
  for (const SavedExtent& extent : place.extents) {
    const ManifestFile& file = manifest.files[extent.file];
    result.extents.push_back(
        {file.name, file.data_begin + extent.data_offset, extent.bytes});
  }
  return result;
}

absl::StatusOr<Inspection> FromCheckpoint(const CheckpointReader& reader) {
  SHERD_ASSIGN_OR_RETURN(const Manifest manifest, reader.manifest().ReadAll());
  Inspection inspection;
  inspection.path = reader.path();
  inspection.is_checkpoint = true;
  inspection.writer = manifest.writer;
  inspection.world_size = manifest.world_size;
  for (const ManifestFile& file : manifest.files) {
    inspection.files.push_back({file.name, file.size});
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    SHERD_ASSIGN_OR_RETURN(const int64_t bytes,
                           NumBytes(tensor.sizes(), tensor.dtype));
    InspectedTensor inspected = {tensor.name, tensor.dtype, tensor.sizes(),
                                 bytes, LayoutOf(tensor)};
    inspected.fingerprint = tensor.fingerprint;
    for (int64_t i = 0; i < tensor.num_shards(); ++i) {
      inspected.shards.push_back(FromManifestShard(manifest, tensor, i));
    }
    inspection.tensors.push_back(std::move(inspected));
  }
  SHERD_ASSIGN_OR_RETURN(inspection.state, reader.ReadState());
  const auto rows = manifest.Find(kRankStateName);
  const int64_t ranks =
      !rows.ok() || (*rows)->sizes().empty()
          ? 0
          : std::min<int64_t>((*rows)->sizes()[0], manifest.world_size);
  for (int rank = 0; rank < ranks; ++rank) {
    SHERD_ASSIGN_OR_RETURN(StateDict own, reader.ReadStateOf(rank));
    if (own.empty()) continue;
    inspection.rank_states.emplace(rank, std::move(own));
  }
  return inspection;
}

bool IsTensor(const StateValue& value) {
  return value.kind() == StateKind::kTensor;
}

// The values of a state that are no tensors: these are in the table.
void AppendValues(const StateDict& state, const std::string& heading,
                  std::string& text) {
  // Text is for people; JSON has all.
  constexpr int64_t kMaxLines = 100;
  int64_t count = 0;
  for (const StateEntry& entry : state.Flatten()) {
    if (IsTensor(entry.value)) continue;
    if (count++ == 0) absl::StrAppend(&text, "\n", heading, "\n");
    if (count > kMaxLines) continue;
    absl::StrAppend(&text, "  ", Shorten(PrintableLine(entry.name), 80), ": ",
                    entry.value.ToString(), "\n");
  }
  if (count > kMaxLines) {
    absl::StrAppend(&text, "  … and ", count - kMaxLines,
                    " more (--json has all)\n");
  }
}

nlohmann::json ToJson(const StateValue& value) {
  if (const auto* boolean = value.get_if<bool>()) return *boolean;
  if (const auto* integer = value.get_if<int64_t>()) return *integer;
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto* text = value.get_if<std::string>()) return *text;
  if (const auto* bytes = value.get_if<StateBytes>()) {
    return {{"bytes", bytes->data.size()}};
  }
  if (const auto* tensor = value.get_if<Tensor>()) {
    return {{"tensor", std::string(Name(tensor->dtype()))},
            {"shape", std::vector<int64_t>(tensor->sizes().begin(),
                                           tensor->sizes().end())}};
  }
  if (const auto* list = value.get_if<StateList>()) {
    nlohmann::json items = nlohmann::json::array();
    for (const StateValue& item : *list) items.push_back(ToJson(item));
    return items;
  }
  if (const auto* map = value.get_if<StateDict>()) {
    nlohmann::json members = nlohmann::json::object();
    for (const StateEntry& entry : *map) {
      members[entry.name] = ToJson(entry.value);
    }
    return members;
  }
  return nullptr;
}

absl::Status NotACheckpoint(FileSystem& files, const std::string& directory) {
  std::vector<std::string> names =
      files.List(directory).value_or(std::vector<std::string>());
  const size_t count = names.size();
  const bool has_data =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return IsSaveFileName(name) && absl::EndsWith(name, ".safetensors");
      });
  names.resize(std::min<size_t>(count, 5));
  return absl::NotFoundError(absl::StrCat(
      directory, ": this directory is not a checkpoint: it has no ",
      kManifestFileName,
      count == 0
          ? std::string(", it is empty")
          : absl::StrCat(", but ", PrintableLine(absl::StrJoin(names, ", ")),
                         count > names.size() ? ", …" : ""),
      has_data ? absl::StrCat("; `sherd recover ", directory,
                              "` rebuilds it if these are whole")
               : ""));
}

// "0-3, 7", or "-" if no rank holds it.
std::string HoldersOf(const InspectedTensor& tensor) {
  std::set<int> holders;
  for (const InspectedShard& shard : tensor.shards) {
    if (!shard.extents.empty()) holders.insert(shard.holder);
  }
  std::vector<std::string> ranges;
  for (auto it = holders.begin(); it != holders.end();) {
    const int first = *it;
    int last = first;
    while (++it != holders.end() && *it == last + 1) last = *it;
    ranges.push_back(first == last ? absl::StrCat(first)
                                   : absl::StrCat(first, "-", last));
  }
  return ranges.empty() ? "-" : absl::StrJoin(ranges, ",");
}

bool HasStepsAlone(const Inspection& inspection) {
  return !inspection.is_checkpoint && !inspection.steps.empty();
}

std::string Heading(const Inspection& inspection) {
  if (HasStepsAlone(inspection)) {
    return absl::StrCat("series of ", inspection.steps.size(), " steps");
  }
  return inspection.is_checkpoint
             ? absl::StrCat("checkpoint of ", inspection.world_size, " ranks (",
                            PrintableLine(inspection.writer), ")")
             : "safetensors file";
}

std::string Totals(const Inspection& inspection) {
  const size_t files = inspection.files.size();
  int64_t file_bytes = 0;
  for (const InspectedFile& file : inspection.files) file_bytes += file.bytes;
  return absl::StrCat(
      FormatCount(static_cast<int64_t>(inspection.tensors.size())),
      " tensors, ", FormatCount(inspection.tensor_bytes()), " bytes (",
      FormatBytes(inspection.tensor_bytes()), ") in ", files,
      files == 1 ? " file" : " files", " of ", FormatBytes(file_bytes));
}

// "whole", or the first line of why not.
std::string StateOf(const SeriesStep& step) {
  return step.status.ok() ? "whole" : PrintableLine(step.status.message());
}

std::string StepTable(const std::vector<SeriesStep>& steps) {
  constexpr TextTable::Align kRight = TextTable::Align::kRight;
  TextTable table({{"step", kRight},
                   {"save"},
                   {"bytes", kRight},
                   {"files", kRight},
                   {"pinned"},
                   {"state"}});
  for (const SeriesStep& step : steps) {
    table.AddRow({absl::StrCat(step.step), step.save_id,
                  FormatCount(step.bytes), FormatCount(step.files),
                  step.pinned ? "yes" : "-", StateOf(step)});
  }
  return table.ToString();
}

nlohmann::json ToJson(const SeriesStep& step) {
  nlohmann::json json = {{"step", step.step},        {"path", step.path},
                         {"save_id", step.save_id},  {"bytes", step.bytes},
                         {"files", step.files},      {"pinned", step.pinned},
                         {"whole", step.status.ok()}};
  if (!step.status.ok()) json["reason"] = std::string(step.status.message());
  return json;
}

nlohmann::json ToJson(const Dims& dims) {
  return std::vector<int64_t>(dims.begin(), dims.end());
}

// One extent is what its shard says itself.
void AppendExtents(const std::vector<InspectedExtent>& extents,
                   nlohmann::json& shard) {
  if (extents.size() == 1) {
    shard["file"] = extents[0].file;
    shard["file_offset"] = extents[0].file_offset;
    return;
  }
  for (const InspectedExtent& extent : extents) {
    shard["extents"].push_back({{"file", extent.file},
                                {"file_offset", extent.file_offset},
                                {"bytes", extent.bytes}});
  }
}

nlohmann::json ToJson(const InspectedTensor& tensor) {
  nlohmann::json shards = nlohmann::json::array();
  for (const InspectedShard& shard : tensor.shards) {
    nlohmann::json item = {{"offsets", ToJson(shard.offsets)},
                           {"sizes", ToJson(shard.sizes)}};
    if (!shard.placement.empty()) item["placement"] = shard.placement;
    AppendExtents(shard.extents, item);
    shards.push_back(std::move(item));
  }
  nlohmann::json json = {{"name", tensor.name},
                         {"dtype", std::string(Name(tensor.dtype))},
                         {"shape", ToJson(tensor.shape)},
                         {"bytes", tensor.bytes},
                         {"layout", tensor.layout},
                         {"shards", std::move(shards)}};
  if (tensor.fingerprint) {
    json["fingerprint"] = absl::StrFormat("%08x", *tensor.fingerprint);
  }
  return json;
}

}  // namespace

int64_t Inspection::tensor_bytes() const {
  int64_t total = 0;
  for (const InspectedTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

absl::StatusOr<Inspection> Inspect(FileSystem& files, const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const FileKind kind, files.KindOf(path));
  if (kind == FileKind::kNone) {
    return absl::NotFoundError(absl::StrCat(
        path,
        ": no such file or directory, expected a safetensors file or a "
        "checkpoint directory"));
  }
  const bool is_directory = kind == FileKind::kDirectory;
  if (!is_directory &&
      !IsManifestName(std::filesystem::path(path).filename().string())) {
    SHERD_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(files, path));
    return FromSafetensors(file);
  }
  std::vector<SeriesStep> steps;
  if (is_directory) {
    SHERD_ASSIGN_OR_RETURN(steps, ListSteps(path, files));
  }
  SHERD_ASSIGN_OR_RETURN(const bool exists, CheckpointExists(path, files));
  Inspection inspection = {.path = path};
  if (exists) {
    SHERD_ASSIGN_OR_RETURN(const CheckpointReader reader,
                           CheckpointReader::Open(path, files));
    SHERD_ASSIGN_OR_RETURN(inspection, FromCheckpoint(reader));
  } else if (steps.empty()) {
    return NotACheckpoint(files, path);
  }
  inspection.steps = std::move(steps);
  return inspection;
}

std::string PathOfStep(const std::string& directory,
                       std::optional<int64_t> step) {
  return step.has_value() ? JoinPath(directory, StepManifestName(*step))
                          : directory;
}

std::string FormatInspection(const Inspection& inspection) {
  std::string text =
      absl::StrCat(inspection.path, ": ", Heading(inspection), "\n");
  if (HasStepsAlone(inspection)) {
    return absl::StrCat(text, "\n", StepTable(inspection.steps));
  }
  absl::StrAppend(&text, Totals(inspection), "\n");
  for (const auto& [key, value] : inspection.metadata) {
    absl::StrAppend(&text, "metadata ", Shorten(PrintableLine(key), 100), " = ",
                    Shorten(PrintableLine(value), 100), "\n");
  }
  constexpr TextTable::Align kRight = TextTable::Align::kRight;
  TextTable table({{"tensor", TextTable::Align::kLeft, kMaxNameWidth},
                   {"dtype"},
                   {"shape"},
                   {"bytes", kRight},
                   {"shards", kRight},
                   {"ranks"},
                   {"layout"}});
  for (const InspectedTensor& tensor : inspection.tensors) {
    std::vector<std::string> row = {
        tensor.name, std::string(Name(tensor.dtype)), FormatDims(tensor.shape),
        FormatCount(tensor.bytes)};
    if (inspection.is_checkpoint) {
      row.insert(row.end(), {absl::StrCat(tensor.shards.size()),
                             HoldersOf(tensor), tensor.layout});
    } else {
      row.insert(row.end(), {"1", "-", tensor.layout});
    }
    table.AddRow(std::move(row));
  }
  absl::StrAppend(&text, "\n", table.ToString());
  AppendValues(inspection.state, "state", text);
  for (const auto& [rank, state] : inspection.rank_states) {
    AppendValues(state, absl::StrCat("state of rank ", rank), text);
  }
  if (inspection.steps.empty()) return text;
  return absl::StrCat(text, "\n", StepTable(inspection.steps));
}

std::string InspectionToJson(const Inspection& inspection) {
  nlohmann::json json = {{"path", inspection.path},
                         {"kind", HasStepsAlone(inspection)  ? "series"
                                  : inspection.is_checkpoint ? "checkpoint"
                                                             : "safetensors"},
                         {"tensor_bytes", inspection.tensor_bytes()},
                         {"files", nlohmann::json::array()},
                         {"tensors", nlohmann::json::array()}};
  for (const SeriesStep& step : inspection.steps) {
    json["steps"].push_back(ToJson(step));
  }
  if (inspection.is_checkpoint) {
    json["writer"] = inspection.writer;
    json["world_size"] = inspection.world_size;
    if (!inspection.state.empty()) json["state"] = ToJson(inspection.state);
    for (const auto& [rank, state] : inspection.rank_states) {
      json["rank_states"][absl::StrCat(rank)] = ToJson(state);
    }
  } else if (inspection.steps.empty()) {
    json["metadata"] = inspection.metadata;
  }
  for (const InspectedFile& file : inspection.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  for (const InspectedTensor& tensor : inspection.tensors) {
    json["tensors"].push_back(ToJson(tensor));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::string> InspectionToSvg(const Inspection& inspection) {
  if (HasStepsAlone(inspection)) {
    return absl::InvalidArgumentError(
        absl::StrCat(inspection.path, " has ", inspection.steps.size(),
                     " steps: choose one by --step"));
  }
  HeldStage stage;
  for (const InspectedTensor& tensor : inspection.tensors) {
    HeldTensor held = {tensor.name, tensor.dtype, tensor.shape, {}};
    for (const InspectedShard& shard : tensor.shards) {
      held.boxes.push_back({shard, shard.holder});
      stage.ranks = std::max(stage.ranks, shard.holder + 1);
    }
    stage.tensors.push_back(std::move(held));
  }
  stage.ranks =
      std::max(stage.ranks, std::min(inspection.world_size, kMaxHolders));
  const std::string name =
      std::filesystem::path(inspection.path).filename().string();
  return DrawStage(absl::StrCat("Who holds what: ", name),
                   absl::StrCat(Heading(inspection), " · ", Totals(inspection)),
                   stage);
}

}  // namespace sherd
