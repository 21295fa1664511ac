#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/number_reader.h"
#include "sherd/serialization/manifest/tensor_codec.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {
namespace {

constexpr size_t kMaxTextBytes = 1024;

// Consecutive bytes of a tensor in a file, and their first chunk.
struct Range {
  int32_t file;
  int64_t begin;
  int64_t end;
  int64_t first_chunk;
  const ManifestTensor* tensor;
};

absl::Status AppendRanges(const Manifest& manifest,
                          const ManifestTensor& tensor,
                          std::vector<Range>& ranges) {
  for (int64_t i = 0; i < tensor.num_shards(); ++i) {
    const SavedShardPlace place = tensor.PlaceOf(i, manifest.chunk_bytes);
    for (const SavedExtent& extent : place.extents) {
      absl::Status status = CheckExtent(extent, manifest.files[extent.file],
                                        manifest.chunk_bytes);
      if (!status.ok()) {
        return Annotate(
            std::move(status),
            absl::StrCat("tensor ", Quoted(tensor.name), ": the shard of ",
                         FormatBox(tensor.layout.BoxAt(i))));
      }
      ranges.push_back({extent.file, extent.data_offset,
                        extent.data_offset + extent.bytes, extent.first_chunk,
                        &tensor});
    }
  }
  return absl::OkStatus();
}

// Whether the ranges of a file, by offset, do not overlap, and if `fill` leave
// neither a hole nor a chunk.
absl::Status CheckFileRanges(const Manifest& manifest, const ManifestFile& file,
                             bool fill, absl::Span<const Range> ranges) {
  int64_t position = 0;
  int64_t chunk = 1;
  for (const Range& range : ranges) {
    if (range.begin < position || range.first_chunk < chunk ||
        (fill && (range.begin != position || range.first_chunk != chunk))) {
      return absl::DataLossError(absl::StrCat(
          "file ", file.name, ": tensor ", Quoted(range.tensor->name),
          " begins at offset ", file.data_begin + range.begin, ", chunk ",
          range.first_chunk, ", expected ", file.data_begin + position,
          ", chunk ", chunk, ": an overlap or a hole"));
    }
    position = range.end;
    chunk = range.first_chunk +
            NumChunks(range.end - range.begin, manifest.chunk_bytes);
  }
  const int64_t data_bytes =
      file.size - file.data_begin - CrcTableBytes(file.chunks);
  if (!fill || (position == data_bytes && chunk == 1 + file.chunks)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "file ", file.name, " has ", data_bytes - position, " bytes from offset ",
      file.data_begin + position, " on, and ", 1 + file.chunks - chunk,
      " chunks, that belong to no tensor"));
}

absl::Status CheckFilesAreFilled(const Manifest& manifest) {
  std::vector<Range> ranges;
  static_assert(sizeof(Range) <= kPerListedShard);
  int64_t extents = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    extents += tensor.num_extents();
  }
  ranges.reserve(static_cast<size_t>(extents));
  for (const ManifestTensor& tensor : manifest.tensors) {
    SHERD_RETURN_IF_ERROR(AppendRanges(manifest, tensor, ranges));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  });
  const std::string id = absl::StrCat(".", manifest.save_id, ".");
  size_t next = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const size_t begin = next;
    while (next < ranges.size() && ranges[next].file == static_cast<int>(i)) {
      ++next;
    }
    // Of the file of an earlier save some bytes may be of no use any more.
    const bool fill = absl::StrContains(manifest.files[i].name, id);
    SHERD_RETURN_IF_ERROR(CheckFileRanges(
        manifest, manifest.files[i], fill,
        absl::MakeConstSpan(ranges).subspan(begin, next - begin)));
  }
  return absl::OkStatus();
}

// Whether `files` and `placements` bound what the runs say.
absl::Status CheckRuns(const Manifest& manifest, const ManifestTensor& tensor) {
  // As a decoder does, with the same checks.
  std::vector<uint64_t> numbers;
  // Most runs take five.
  numbers.reserve(5 * tensor.runs.size());
  AppendRuns(tensor, manifest.chunk_bytes, numbers);
  NumberReader reader(numbers, "run");
  MemoryBudget memory(kMaxManifestMemory);
  const auto runs =
      TakeRuns(tensor, manifest.chunk_bytes,
               static_cast<int64_t>(manifest.placements.size()),
               static_cast<int64_t>(manifest.files.size()), reader, memory);
  absl::Status status = runs.status();
  if (status.ok()) status = reader.ExpectEmpty();
  if (status.ok() && *runs != tensor.runs) {
    status = absl::DataLossError("its runs are not in the form of SavedRun");
  }
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("tensor ", Quoted(tensor.name), ": ", status.message()));
}

}  // namespace

absl::Status CheckExtent(const SavedExtent& extent, const ManifestFile& file,
                         int64_t chunk_bytes) {
  const int64_t data_bytes =
      file.size - file.data_begin - CrcTableBytes(file.chunks);
  const int64_t chunks = NumChunks(extent.bytes, chunk_bytes);
  if (extent.bytes > 0 && extent.data_offset >= 0 &&
      extent.data_offset <= data_bytes &&
      extent.bytes <= data_bytes - extent.data_offset &&
      extent.first_chunk >= 1 && chunks <= file.chunks &&
      extent.first_chunk - 1 <= file.chunks - chunks) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      extent.bytes, " bytes are said to be at offset ",
      file.data_begin + extent.data_offset, " of file ", file.name, ", chunks ",
      extent.first_chunk, " to ", extent.first_chunk + chunks,
      "; expected offsets ", file.data_begin, " to ",
      file.data_begin + data_bytes, " and chunks 1 to ", 1 + file.chunks));
}

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() <= kMaxTextBytes && IsValidUtf8(text)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(what, " of ", text.size(),
                                          " bytes is too long or not UTF-8"));
}

absl::Status CheckFileName(absl::string_view name) {
  const bool is_name =
      !name.empty() && name.size() <= 255 && name.front() != '.' &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
               c == '_' || c == '.';
      });
  if (is_name) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("a file name of ", name.size(),
                   " bytes has more than letters, digits, \"-\", \"_\" and "
                   "\".\", or begins with \".\""));
}

absl::Status CheckTensorForm(absl::string_view name,
                             absl::Span<const int64_t> sizes, DType dtype,
                             SavedLayoutKind kind, int32_t chunk_dim) {
  if (name.empty() || static_cast<int64_t>(name.size()) > kMaxTensorNameBytes ||
      !IsValidUtf8(name)) {
    return absl::DataLossError(
        absl::StrCat("a tensor name of ", name.size(),
                     " bytes is empty, too long or not UTF-8"));
  }
  if (const auto bytes = NumBytes(sizes, dtype); !bytes.ok()) {
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(name), ": ", bytes.status().message()));
  }
  const int64_t rank = static_cast<int64_t>(sizes.size());
  if (kind == SavedLayoutKind::kChunk ? chunk_dim < 0 || chunk_dim >= rank
                                      : chunk_dim != 0) {
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(name), " is said to be cut along ",
                     "dimension ", chunk_dim, " of ", rank));
  }
  return absl::OkStatus();
}

absl::Status CheckSummary(const ManifestSummary& summary) {
  SHERD_RETURN_IF_ERROR(CheckText("the writer", summary.writer));
  SHERD_RETURN_IF_ERROR(CheckText("the save id", summary.save_id));
  if (summary.world_size < 1) {
    return absl::DataLossError(
        absl::StrCat("the world size is ", summary.world_size));
  }
  if (summary.chunk_bytes < 1 || summary.chunk_bytes > kMaxChunkBytes) {
    return absl::DataLossError(absl::StrCat("chunks have ", summary.chunk_bytes,
                                            " bytes, expected 1 to ",
                                            kMaxChunkBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(absl::string_view placement) {
  return CheckText("a placement", placement);
}

absl::Status CheckFile(const ManifestFile& file) {
  SHERD_RETURN_IF_ERROR(CheckFileName(file.name));
  if (file.chunks > kMaxFileChunks) {
    return absl::DataLossError(
        absl::StrCat("file ", file.name, " has ", file.chunks,
                     " chunks, expected at most ", kMaxFileChunks));
  }
  if (file.data_begin < 0 || file.data_begin > file.size || file.chunks < 0 ||
      file.chunks > (file.size - file.data_begin) / 4 - 1) {
    return absl::DataLossError(absl::StrCat(
        "the data of file ", file.name, " begins at offset ", file.data_begin,
        " and ends with the CRCs of ", file.chunks,
        " chunks, but the file has ", file.size, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const ManifestTensor& tensor,
                         absl::Span<const int64_t> sizes) {
  if (tensor.name == kCrcTableName) {
    return absl::DataLossError(
        absl::StrCat("a tensor name is ", Quoted(kCrcTableName),
                     ", which is that of the checksums"));
  }
  return CheckTensorForm(tensor.name, sizes, tensor.dtype, tensor.kind,
                         tensor.chunk_dim);
}

absl::Status ValidateAllButTensors(const Manifest& manifest) {
  SHERD_RETURN_IF_ERROR(CheckSummary(manifest));
  for (const std::string& placement : manifest.placements) {
    SHERD_RETURN_IF_ERROR(CheckPlacement(placement));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    SHERD_RETURN_IF_ERROR(CheckFile(file));
    if (!names.insert(file.name).second) {
      return absl::DataLossError(
          absl::StrCat("the file ", file.name, " appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateTensor(const Manifest& manifest,
                            const ManifestTensor* previous,
                            const ManifestTensor& tensor) {
  SHERD_RETURN_IF_ERROR(CheckTensor(tensor, tensor.sizes()));
  if (previous != nullptr && previous->name >= tensor.name) {
    return absl::DataLossError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " follows ", Quoted(previous->name),
        ", expected each name once, in order"));
  }
  if (absl::Status status = tensor.layout.Validate(); !status.ok()) {
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(tensor.name), ": ", status.message()));
  }
  return CheckRuns(manifest, tensor);
}

absl::Status ValidateParts(const Manifest& manifest) {
  SHERD_RETURN_IF_ERROR(ValidateAllButTensors(manifest));
  const ManifestTensor* previous = nullptr;
  for (const ManifestTensor& tensor : manifest.tensors) {
    SHERD_RETURN_IF_ERROR(ValidateTensor(manifest, previous, tensor));
    previous = &tensor;
  }
  return absl::OkStatus();
}

absl::Status ValidateManifest(const Manifest& manifest) {
  SHERD_RETURN_IF_ERROR(ValidateParts(manifest));
  return CheckFilesAreFilled(manifest);
}

}  // namespace sherd
