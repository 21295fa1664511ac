#include "sherd/serialization/manifest/data_file.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/data_file_text.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {
namespace {

constexpr absl::string_view kVersion = "2";

// Metadata. Numbers are decimal.
constexpr char kSaveIdKey[] = "sherd_save_id";
// Only of a step of a series.
constexpr char kStepKey[] = "sherd_step";
constexpr char kFormatKey[] = "sherd_format";
constexpr char kWorldSizeKey[] = "sherd_world_size";
constexpr char kRankKey[] = "sherd_rank";
constexpr char kFilesKey[] = "sherd_files";
constexpr char kChunkBytesKey[] = "sherd_chunk_bytes";
// For each tensor with a shard in the file, by name: "DTYPE[SIZES]GRAD,CUT;".
constexpr char kTensorsKey[] = "sherd_tensors";
// For each without elements: the same, with "=LENGTH:NAME" before the ";".
constexpr char kEmptyTensorsKey[] = "sherd_empty_tensors";
// For runs of shards in the order of the file: "COUNT*LENGTH:PLACEMENT;".
constexpr char kPlacementsKey[] = "sherd_placements";

// The names of tensors, which are those before the last "@" of the keys.
absl::string_view NameInKey(absl::string_view key) {
  return key.substr(0, key.rfind('@'));
}

int64_t BytesOf(const DataFileTensor& tensor, const DataFileShard& shard) {
  if (shard.part_bytes > 0) return shard.part_bytes;
  return Volume(shard) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

std::map<std::string, std::string> MetadataOf(
    const DataFileContents& contents) {
  std::vector<bool> has_shards(contents.tensors.size());
  std::string placements;
  for (size_t i = 0; i < contents.shards.size();) {
    const size_t placement = contents.shards[i].placement;
    const size_t begin = i;
    for (; i < contents.shards.size() &&
           contents.shards[i].placement == placement;
         ++i) {
      has_shards[contents.shards[i].tensor] = true;
    }
    const std::string& text = contents.placements[placement];
    absl::StrAppend(&placements, i - begin, "*", text.size(), ":", text, ";");
  }
  std::string tensors, empty;
  for (size_t t = 0; t < contents.tensors.size(); ++t) {
    const DataFileTensor& tensor = contents.tensors[t];
    if (has_shards[t]) {
      absl::StrAppend(&tensors, TensorText(tensor), ";");
    } else if (Volume(tensor.sizes) == 0) {
      absl::StrAppend(&empty, TensorText(tensor), "=", tensor.name.size(), ":",
                      tensor.name, ";");
    }
  }
  std::map<std::string, std::string> metadata = {
      {kSaveIdKey, contents.save_id},
      {kFormatKey, std::string(kVersion)},
      {kWorldSizeKey, absl::StrCat(contents.world_size)},
      {kRankKey, absl::StrCat(contents.rank)},
      {kFilesKey, absl::StrCat(contents.files)},
      {kChunkBytesKey, absl::StrCat(contents.chunk_bytes)},
      {kTensorsKey, std::move(tensors)},
      {kEmptyTensorsKey, std::move(empty)},
      {kPlacementsKey, std::move(placements)}};
  AppendSplitShards(contents, metadata);
  if (contents.step.has_value()) {
    metadata[kStepKey] = absl::StrCat(*contents.step);
  }
  return metadata;
}

// Reads the parts of a header in turn.
class ContentsReader {
 public:
  explicit ContentsReader(const SafetensorsHeader& header) : header_(header) {}

  absl::StatusOr<DataFileContents> Read() {
    SHERD_ASSIGN_OR_RETURN(const absl::string_view version, Find(kFormatKey));
    if (version != kVersion) {
      int64_t number;
      const bool later = absl::SimpleAtoi(version, &number) && number > 2;
      const std::string text =
          absl::StrCat(kFormatKey, " is ", Quoted(Shown(version)),
                       ", this build reads \"", kVersion, "\"");
      return later ? absl::UnimplementedError(text + "; use a later Sherd")
                   : absl::DataLossError(text);
    }
    SHERD_ASSIGN_OR_RETURN(const absl::string_view id, Find(kSaveIdKey));
    contents_.save_id = std::string(id);
    SHERD_RETURN_IF_ERROR(ReadStep());
    SHERD_RETURN_IF_ERROR(ReadNumber(kWorldSizeKey, 1, contents_.world_size));
    SHERD_RETURN_IF_ERROR(ReadNumber(kRankKey, 0, contents_.rank));
    SHERD_RETURN_IF_ERROR(ReadNumber(kFilesKey, 1, contents_.files));
    int32_t chunk_bytes = 0;
    SHERD_RETURN_IF_ERROR(ReadNumber(kChunkBytesKey, 1, chunk_bytes));
    contents_.chunk_bytes = chunk_bytes;
    if (contents_.rank >= contents_.world_size ||
        contents_.files > contents_.world_size ||
        contents_.chunk_bytes > kMaxChunkBytes) {
      return absl::DataLossError(absl::StrCat(
          "the metadata has rank ", contents_.rank, " of ",
          contents_.world_size, ", ", contents_.files, " files, and chunks of ",
          contents_.chunk_bytes, " bytes"));
    }
    if (header_.entries.empty() ||
        header_.entries.back().name != kCrcTableKey) {
      return absl::DataLossError(
          absl::StrCat("the last tensor is not ", Quoted(kCrcTableKey)));
    }
    SHERD_RETURN_IF_ERROR(ReadTensors());
    SHERD_ASSIGN_OR_RETURN(split_,
                           ReadSplitShards(header_.metadata, contents_));
    SHERD_RETURN_IF_ERROR(AddSplitTensors());
    SHERD_RETURN_IF_ERROR(ReadEmptyTensors());
    FindSplitShards();
    SHERD_RETURN_IF_ERROR(ReadShards());
    SHERD_RETURN_IF_ERROR(ReadPlacements());
    SHERD_RETURN_IF_ERROR(CheckTable());
    return std::move(contents_);
  }

 private:
  static absl::string_view Shown(absl::string_view text) {
    return text.substr(0, 100);
  }

  absl::StatusOr<absl::string_view> Find(const char* key) const {
    const auto it = header_.metadata.find(key);
    if (it != header_.metadata.end()) return absl::string_view(it->second);
    return absl::DataLossError(
        absl::StrCat("the metadata has no ", key,
                     ": expected a data file of version ", kVersion));
  }

  absl::Status ReadNumber(const char* key, int64_t min, int32_t& value) const {
    SHERD_ASSIGN_OR_RETURN(const absl::string_view text, Find(key));
    TextScanner scanner(text);
    int64_t number;
    if (!scanner.Number(number) || !scanner.done() || number < min ||
        number > std::numeric_limits<int32_t>::max()) {
      return MalformedMetadata(key);
    }
    value = static_cast<int32_t>(number);
    return absl::OkStatus();
  }

  absl::Status ReadStep() {
    const auto it = header_.metadata.find(kStepKey);
    if (it == header_.metadata.end()) return absl::OkStatus();
    TextScanner scanner(it->second);
    int64_t step;
    if (!scanner.Number(step) || !scanner.done()) {
      return MalformedMetadata(kStepKey);
    }
    contents_.step = step;
    return absl::OkStatus();
  }

  // Those that have shards here, with names from the keys.
  absl::Status ReadTensors() {
    for (size_t i = 0; i + 1 < header_.entries.size(); ++i) {
      const std::string& key = header_.entries[i].name;
      if (key.find('@') == std::string::npos) {
        return absl::DataLossError(absl::StrCat(
            "the tensor ", Quoted(Shown(key)), " has no \"@\" in its name"));
      }
      names_.push_back(NameInKey(key));
    }
    std::sort(names_.begin(), names_.end());
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    SHERD_ASSIGN_OR_RETURN(const absl::string_view text, Find(kTensorsKey));
    TextScanner scanner(text);
    for (const absl::string_view name : names_) {
      DataFileTensor& tensor = contents_.tensors.emplace_back();
      tensor.name = std::string(name);
      if (!ReadTensorText(scanner, tensor) || !scanner.Consume(';')) {
        return MalformedMetadata(kTensorsKey);
      }
    }
    return scanner.done() ? absl::OkStatus() : MalformedMetadata(kTensorsKey);
  }

  // Those that have no shards here, but in earlier files.
  absl::Status AddSplitTensors() {
    const size_t count = contents_.tensors.size();
    for (const SplitShardText& split : split_) {
      const auto known = std::lower_bound(names_.begin(), names_.end(),
                                          absl::string_view(split.tensor.name));
      const DataFileTensor* same = nullptr;
      if (known != names_.end() && *known == split.tensor.name) {
        same = &contents_.tensors[known - names_.begin()];
      } else if (contents_.tensors.size() > count &&
                 contents_.tensors.back().name == split.tensor.name) {
        same = &contents_.tensors.back();
      } else {
        contents_.tensors.push_back(split.tensor);
      }
      if (same != nullptr && *same != split.tensor) {
        return MalformedMetadata(kSplitShardsKey);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadEmptyTensors() {
    SHERD_ASSIGN_OR_RETURN(const absl::string_view text,
                           Find(kEmptyTensorsKey));
    TextScanner scanner(text);
    while (!scanner.done()) {
      DataFileTensor& tensor = contents_.tensors.emplace_back();
      absl::string_view name;
      if (!ReadTensorText(scanner, tensor) || !scanner.Consume('=') ||
          !scanner.Text(kMaxTensorNameBytes, name) || !scanner.Consume(';') ||
          Volume(tensor.sizes) != 0) {
        return MalformedMetadata(kEmptyTensorsKey);
      }
      tensor.name = std::string(name);
    }
    auto& tensors = contents_.tensors;
    const auto by_name = [](const DataFileTensor& a, const DataFileTensor& b) {
      return a.name < b.name;
    };
    std::sort(tensors.begin(), tensors.end(), by_name);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const std::string& name = tensors[t].name;
      if (name.empty() || name == kCrcTableName || !IsValidUtf8(name) ||
          static_cast<int64_t>(name.size()) > kMaxTensorNameBytes ||
          (t > 0 && tensors[t - 1].name == name)) {
        return absl::DataLossError(
            absl::StrCat("the tensor name ", Quoted(Shown(name)),
                         " is not allowed here, or given twice"));
      }
    }
    return absl::OkStatus();
  }

  // One of those that are there.
  size_t TensorAt(absl::string_view name) const {
    const auto it = std::lower_bound(
        contents_.tensors.begin(), contents_.tensors.end(), name,
        [](const DataFileTensor& tensor, absl::string_view wanted) {
          return absl::string_view(tensor.name) < wanted;
        });
    return static_cast<size_t>(it - contents_.tensors.begin());
  }

  void FindSplitShards() {
    for (SplitShardText& split : split_) {
      SplitShard& shard = contents_.split.emplace_back(std::move(split.shard));
      shard.tensor = TensorAt(split.tensor.name);
      int64_t begin = 0;
      for (size_t i = 0; i < shard.extents.size(); ++i) {
        if (shard.extents[i].file == 0) {
          parts_.emplace(PartKey(split.tensor.name, shard.offsets, begin),
                         Part{contents_.split.size() - 1, i, begin});
        }
        begin += shard.extents[i].bytes;
      }
    }
  }

  absl::Status ReadShards() {
    int64_t chunk = 1;
    for (size_t i = 0; i + 1 < header_.entries.size(); ++i) {
      const SafetensorsEntry& entry = header_.entries[i];
      const auto part = parts_.find(entry.name);
      SHERD_RETURN_IF_ERROR(part == parts_.end()
                                ? ReadShard(entry)
                                : ReadPart(entry, part->second, chunk));
      if (part != parts_.end()) parts_.erase(part);
      chunk += NumChunks(entry.nbytes(), contents_.chunk_bytes);
    }
    if (parts_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        kSplitShardsKey, " has ", Quoted(Shown(parts_.begin()->first)),
        ", which the file does not have"));
  }

  absl::Status ReadShard(const SafetensorsEntry& entry) {
    const absl::string_view name = NameInKey(entry.name);
    DataFileShard& shard = contents_.shards.emplace_back();
    shard.tensor = TensorAt(name);
    const DataFileTensor& tensor = contents_.tensors[shard.tensor];
    TextScanner scanner(absl::string_view(entry.name).substr(name.size() + 1));
    if (!scanner.Numbers(tensor.sizes.size(), shard.offsets)) {
      return WrongShard(entry);
    }
    shard.sizes = entry.shape;
    if (IsStoredAsParts(tensor.dtype) && !shard.sizes.empty()) {
      shard.sizes.pop_back();
    }
    if (!scanner.done() || !IsInside(shard, tensor.sizes) || IsEmpty(shard) ||
        entry.dtype_name != SafetensorsDTypeName(tensor.dtype) ||
        SafetensorsShape(shard.sizes, tensor.dtype) != entry.shape) {
      return WrongShard(entry);
    }
    return absl::OkStatus();
  }

  // An extent of a split shard that is in this file.
  struct Part {
    size_t split = 0;
    size_t extent = 0;
    int64_t begin = 0;
  };

  absl::Status ReadPart(const SafetensorsEntry& entry, const Part& part,
                        int64_t first_chunk) {
    SplitShard& split = contents_.split[part.split];
    SavedExtent& extent = split.extents[part.extent];
    if (entry.dtype_name != "U8" || entry.shape != Dims{extent.bytes}) {
      return WrongShard(entry);
    }
    extent.data_offset = entry.begin;
    extent.first_chunk = first_chunk;
    DataFileShard& shard = contents_.shards.emplace_back();
    static_cast<Box&>(shard) = split;
    shard.tensor = split.tensor;
    shard.part_begin = part.begin;
    shard.part_bytes = extent.bytes;
    return absl::OkStatus();
  }

  static absl::Status WrongShard(const SafetensorsEntry& entry) {
    return absl::DataLossError(absl::StrCat(
        "the shard ", Quoted(Shown(entry.name)), ", ", entry.dtype_name, " ",
        FormatDims(entry.shape), ", is none of the tensor that ", kTensorsKey,
        " describes"));
  }

  absl::Status ReadPlacements() {
    SHERD_ASSIGN_OR_RETURN(const absl::string_view text, Find(kPlacementsKey));
    TextScanner scanner(text);
    std::map<std::string, size_t, std::less<>> known;
    const auto number_of = [&](absl::string_view placement) {
      const auto [it, added] =
          known.emplace(std::string(placement), contents_.placements.size());
      if (added) contents_.placements.emplace_back(placement);
      return it->second;
    };
    size_t next = 0;
    while (!scanner.done()) {
      int64_t count;
      absl::string_view placement;
      if (!scanner.Number(count) || count < 1 ||
          count > static_cast<int64_t>(contents_.shards.size() - next) ||
          !scanner.Consume('*') ||
          !scanner.Text(kMaxPlacementBytes, placement) ||
          !scanner.Consume(';')) {
        return MalformedMetadata(kPlacementsKey);
      }
      const size_t number = number_of(placement);
      for (; count > 0; --count) contents_.shards[next++].placement = number;
    }
    for (size_t i = 0; i < split_.size(); ++i) {
      contents_.split[i].placement = number_of(split_[i].placement);
    }
    return next == contents_.shards.size() ? absl::OkStatus()
                                           : MalformedMetadata(kPlacementsKey);
  }

  absl::Status CheckTable() const {
    int64_t chunks = 0;
    for (size_t i = 0; i + 1 < header_.entries.size(); ++i) {
      chunks += NumChunks(header_.entries[i].nbytes(), contents_.chunk_bytes);
    }
    if (chunks > kMaxFileChunks) {
      return absl::DataLossError(absl::StrCat("the tensors have ", chunks,
                                              " chunks, expected at most ",
                                              kMaxFileChunks));
    }
    const SafetensorsEntry& table = header_.entries.back();
    if (table.dtype_name == "U8" && table.shape == Dims{1 + chunks, 4}) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        Quoted(kCrcTableKey), " is ", table.dtype_name, " ",
        FormatDims(table.shape), ", expected U8 [", 1 + chunks, ", 4]"));
  }

  const SafetensorsHeader& header_;
  // Of the keys, ascending.
  std::vector<absl::string_view> names_;
  std::vector<SplitShardText> split_;
  // By key, those whose tensors were not met yet.
  std::map<std::string, Part> parts_;
  DataFileContents contents_;
};

}  // namespace

std::string PartKey(absl::string_view tensor_name,
                    absl::Span<const int64_t> offsets, int64_t begin) {
  return absl::StrCat(ShardKey(tensor_name, offsets), "+", begin);
}

absl::StatusOr<std::string> EncodeDataFileHeader(
    const DataFileContents& contents) {
  SafetensorsHeader header;
  header.metadata = MetadataOf(contents);
  header.entries.reserve(contents.shards.size() + 1);
  int64_t position = 0;
  int64_t chunks = 0;
  for (const DataFileShard& shard : contents.shards) {
    const DataFileTensor& tensor = contents.tensors[shard.tensor];
    if (tensor.name == kCrcTableName) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a tensor has the name ", Quoted(kCrcTableName),
          ", which is that of the checksums in data files: rename it"));
    }
    const int64_t bytes = BytesOf(tensor, shard);
    SafetensorsEntry& entry = header.entries.emplace_back();
    if (shard.part_bytes > 0) {
      entry.name = PartKey(tensor.name, shard.offsets, shard.part_begin);
      entry.dtype_name = "U8";
      entry.shape = {bytes};
    } else {
      entry.name = ShardKey(tensor.name, shard.offsets);
      entry.dtype_name = std::string(SafetensorsDTypeName(tensor.dtype));
      entry.shape = SafetensorsShape(shard.sizes, tensor.dtype);
    }
    entry.begin = position;
    entry.end = position += bytes;
    chunks += NumChunks(bytes, contents.chunk_bytes);
  }
  if (chunks > kMaxFileChunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors of a data file have ", chunks,
                     " chunks, expected at most ", kMaxFileChunks,
                     ": save with more ranks"));
  }
  SafetensorsEntry& table = header.entries.emplace_back();
  table.name = kCrcTableKey;
  table.dtype_name = "U8";
  table.shape = {1 + chunks, 4};
  table.begin = position;
  table.end = position + CrcTableBytes(chunks);
  return EncodeSafetensorsHeader(header);
}

absl::StatusOr<DataFileContents> ParseDataFileHeader(
    const SafetensorsHeader& header, absl::string_view what) {
  absl::StatusOr<DataFileContents> contents = ContentsReader(header).Read();
  if (!contents.ok()) return Annotate(contents.status(), what);
  return contents;
}

std::string EncodeCrcTable(absl::Span<const uint32_t> crcs) {
  std::string text;
  text.reserve(4 * crcs.size());
  for (const uint32_t crc : crcs) {
    for (int i = 0; i < 4; ++i) text += static_cast<char>(crc >> (8 * i));
  }
  return text;
}

absl::StatusOr<std::vector<uint32_t>> ReadCrcTable(
    File& file, const ManifestFile& expected) {
  const int64_t bytes = CrcTableBytes(expected.chunks);
  std::vector<std::byte> table(static_cast<size_t>(bytes));
  SHERD_RETURN_IF_ERROR(
      file.ReadAt(expected.size - bytes, absl::MakeSpan(table)));
  if (const uint32_t crc = Crc32c(table); crc != expected.crc32c) {
    return absl::DataLossError(absl::StrCat(
        file.path(), ": the checksums are damaged: the bytes from offset ",
        expected.size - bytes, " to ", expected.size, ", tensor ",
        Quoted(kCrcTableKey), ", have the CRC-32C ",
        absl::Hex(crc, absl::kZeroPad8), ", the manifest says ",
        absl::Hex(expected.crc32c, absl::kZeroPad8)));
  }
  std::vector<uint32_t> crcs(table.size() / 4);
  for (size_t i = 0; i < table.size(); ++i) {
    crcs[i / 4] |= static_cast<uint32_t>(table[i]) << (8 * (i % 4));
  }
  return crcs;
}

}  // namespace sherd
