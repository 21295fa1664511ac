#include "sherd/serialization/manifest/manifest_sections.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/layout_codec.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/number_reader.h"
#include "sherd/serialization/manifest/tensor_codec.h"
#include "sherd/serialization/proto/checkpoint_v2.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

namespace proto = checkpoint::v2;

constexpr int kMaxLevel = 8;
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

constexpr uint32_t kRequiresGrad = 1;
constexpr uint32_t kHasFingerprint = 2;

const char* NameOf(SectionKind kind) {
  switch (kind) {
    case SectionKind::kPlacements:
      return "placements";
    case SectionKind::kFiles:
      return "files";
    default:
      return "tensors";
  }
}

std::string Where(const SectionPlace& place) {
  return absl::StrCat("the ",
                      place.level == 0
                          ? "section"
                          : absl::StrCat("index of level ", place.level),
                      " of ", NameOf(place.kind), " at offset ", place.offset);
}

absl::Status Expect(absl::string_view column, int64_t length,
                    int64_t expected) {
  if (length == expected) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(length, " entries in ", column, ", expected ", expected));
}

absl::StatusOr<int64_t> Signed(uint64_t value, absl::string_view column) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return static_cast<int64_t>(value);
  }
  return absl::DataLossError(
      absl::StrCat(value, " in ", column, ", expected less than 2^63"));
}

// Checks the CRC and parses, and takes the memory of the message first. Errors
// are without the place.
template <typename Message>
absl::Status Parse(absl::string_view bytes, const SectionPlace& place,
                   MemoryLoan& loan, Message& message) {
  SHERD_RETURN_IF_ERROR(loan.Take(place.length, kMemoryPerByte));
  const uint32_t crc = Crc32c(AsBytes(bytes));
  if (crc != place.crc32c) {
    return absl::DataLossError(
        absl::StrCat("damaged: the bytes from offset ", place.offset, " to ",
                     place.offset + place.length, " have the CRC-32C ",
                     absl::Hex(crc, absl::kZeroPad8), ", expected ",
                     absl::Hex(place.crc32c, absl::kZeroPad8)));
  }
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("damaged: not a message of the expected form");
  }
  return absl::OkStatus();
}

absl::Status CheckRange(int64_t offset, int64_t length, int64_t max_end) {
  if (offset >= kManifestFrontBytes && length >= 1 &&
      length <= kMaxSectionBytes && offset <= max_end &&
      length <= max_end - offset) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "it leads to ", length, " bytes at offset ", offset,
      ", expected a section that ends at ", max_end, " or before"));
}

absl::StatusOr<int64_t> ReadTree(const proto::Tree& tree, SectionKind kind,
                                 ManifestRoot& root) {
  SHERD_ASSIGN_OR_RETURN(const int64_t count, Signed(tree.count(), "count"));
  if (kind != SectionKind::kTensors && count > kMaxInt) {
    return absl::DataLossError(
        absl::StrCat("there are ", count, " ", NameOf(kind)));
  }
  if (count == 0) {
    if (tree.level() == 0 && tree.offset() == 0 && tree.length() == 0 &&
        tree.crc32c() == 0) {
      return count;
    }
    return absl::DataLossError(
        absl::StrCat("there are no ", NameOf(kind), ", but a section"));
  }
  if (tree.level() > static_cast<uint32_t>(kMaxLevel)) {
    return absl::DataLossError(absl::StrCat("the index of ", NameOf(kind),
                                            " has ", tree.level(), " levels"));
  }
  SectionPlace& top = root.tops.emplace_back();
  top.kind = kind;
  top.level = static_cast<int>(tree.level());
  SHERD_ASSIGN_OR_RETURN(top.offset, Signed(tree.offset(), "offset"));
  top.length = tree.length();
  top.crc32c = tree.crc32c();
  top.max_end = root.offset;
  top.end = count;
  SHERD_RETURN_IF_ERROR(CheckRange(top.offset, top.length, top.max_end));
  return count;
}

absl::Status ReadRoot(absl::string_view bytes, const SectionPlace& place,
                      MemoryBudget& memory, ManifestRoot& root) {
  proto::Root message;
  MemoryLoan loan(memory);
  SHERD_RETURN_IF_ERROR(Parse(bytes, place, loan, message));
  root.offset = place.offset;
  root.summary.version = 2;
  root.summary.writer = message.writer();
  root.summary.save_id = message.save_id();
  if (message.world_size() > static_cast<uint32_t>(kMaxInt)) {
    return absl::DataLossError(
        absl::StrCat("the world size is ", message.world_size()));
  }
  root.summary.world_size = static_cast<int32_t>(message.world_size());
  SHERD_ASSIGN_OR_RETURN(root.summary.chunk_bytes,
                         Signed(message.chunk_bytes(), "chunk_bytes"));
  SHERD_RETURN_IF_ERROR(CheckSummary(root.summary));
  SHERD_ASSIGN_OR_RETURN(
      root.placements,
      ReadTree(message.placements(), SectionKind::kPlacements, root));
  SHERD_ASSIGN_OR_RETURN(root.files,
                         ReadTree(message.files(), SectionKind::kFiles, root));
  SHERD_ASSIGN_OR_RETURN(
      root.tensors, ReadTree(message.tensors(), SectionKind::kTensors, root));
  return absl::OkStatus();
}

absl::Status ReadIndex(absl::string_view bytes, const SectionPlace& place,
                       MemoryBudget& memory,
                       std::vector<SectionPlace>& children) {
  proto::Index message;
  MemoryLoan loan(memory);
  SHERD_RETURN_IF_ERROR(Parse(bytes, place, loan, message));
  const bool by_name = place.kind == SectionKind::kTensors;
  const int count = message.offset_size();
  if (count < 1 || count > kMaxIndexEntries) {
    return absl::DataLossError(
        absl::StrCat(count, " entries, expected 1 to ", kMaxIndexEntries));
  }
  SHERD_RETURN_IF_ERROR(Expect("length", message.length_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("crc32c", message.crc32c_size(), count));
  SHERD_RETURN_IF_ERROR(
      Expect("first_name", message.first_name_size(), by_name ? count : 0));
  SHERD_RETURN_IF_ERROR(
      Expect("first_number", message.first_number_size(), by_name ? 0 : count));
  children.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    SectionPlace& child = children[i];
    child.kind = place.kind;
    child.level = place.level - 1;
    SHERD_ASSIGN_OR_RETURN(child.offset, Signed(message.offset(i), "offset"));
    child.length = message.length(i);
    child.crc32c = message.crc32c(i);
    child.max_end = place.offset;
    SHERD_RETURN_IF_ERROR(
        CheckRange(child.offset, child.length, child.max_end));
    if (by_name) {
      child.first_name = message.first_name(i);
    } else {
      SHERD_ASSIGN_OR_RETURN(child.first,
                             Signed(message.first_number(i), "first_number"));
    }
    const bool follows =
        by_name ? i == 0 || child.first_name > children[i - 1].first_name
                : i == 0 || child.first > children[i - 1].first;
    if (!follows) return absl::DataLossError("its entries are out of order");
    if (i > 0) {
      children[i - 1].end_name = child.first_name;
      children[i - 1].end = child.first;
    }
  }
  children.back().end_name = place.end_name;
  children.back().end = place.end;
  const SectionPlace& first = children.front();
  const SectionPlace& last = children.back();
  if (by_name ? first.first_name < place.first_name ||
                    (place.end_name && last.first_name >= *place.end_name)
              : first.first != place.first || last.first >= place.end) {
    return absl::DataLossError("its entries are of other sections");
  }
  return absl::OkStatus();
}

absl::Status ReadFiles(absl::string_view bytes, const SectionPlace& place,
                       MemoryBudget& memory, std::vector<ManifestFile>& files) {
  proto::Files message;
  MemoryLoan loan(memory);
  SHERD_RETURN_IF_ERROR(Parse(bytes, place, loan, message));
  const int count = message.name_size();
  SHERD_RETURN_IF_ERROR(Expect("name", count, place.end - place.first));
  SHERD_RETURN_IF_ERROR(Expect("size", message.size_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("data_begin", message.data_begin_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("chunks", message.chunks_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("crc32c", message.crc32c_size(), count));
  files.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ManifestFile& file = files[i];
    file.name = message.name(i);
    SHERD_ASSIGN_OR_RETURN(file.size, Signed(message.size(i), "size"));
    SHERD_ASSIGN_OR_RETURN(file.data_begin,
                           Signed(message.data_begin(i), "data_begin"));
    SHERD_ASSIGN_OR_RETURN(file.chunks, Signed(message.chunks(i), "chunks"));
    file.crc32c = message.crc32c(i);
    SHERD_RETURN_IF_ERROR(CheckFile(file));
  }
  return absl::OkStatus();
}

// Takes the name out of the message.
absl::Status ReadTensor(proto::Tensors& message, int i, NumberReader& sizes,
                        ManifestTensor& tensor, Dims& dims) {
  tensor.name = std::move(*message.mutable_name(i));
  if (!IsValid(static_cast<int32_t>(message.dtype(i)))) {
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(tensor.name.substr(0, 200)),
                     " has dtype ", message.dtype(i), ", which is not one"));
  }
  tensor.dtype = static_cast<DType>(message.dtype(i));
  const uint32_t rank = message.rank(i);
  const uint32_t flags = message.flags(i);
  const uint32_t cut = message.cut(i);
  if (rank > static_cast<uint32_t>(kMaxRank) || cut > rank || flags > 3 ||
      ((flags & kHasFingerprint) == 0 && message.fingerprint(i) != 0)) {
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(tensor.name.substr(0, 200)), " has ",
                     rank, " dimensions, flags ", flags, " and cut ", cut));
  }
  tensor.requires_grad = (flags & kRequiresGrad) != 0;
  if ((flags & kHasFingerprint) != 0) {
    tensor.fingerprint = message.fingerprint(i);
  }
  tensor.kind =
      cut > 0 ? SavedLayoutKind::kChunk : SavedLayoutKind::kEnumerable;
  tensor.chunk_dim = cut > 0 ? static_cast<int32_t>(cut - 1) : 0;
  dims.clear();
  for (uint32_t d = 0; d < rank; ++d) {
    SHERD_ASSIGN_OR_RETURN(const int64_t size,
                           sizes.Take(std::numeric_limits<int64_t>::max()));
    dims.push_back(size);
  }
  return CheckTensor(tensor, dims);
}

absl::Status ReadTensors(absl::string_view bytes, const SectionPlace& place,
                         const ManifestRoot& root, MemoryBudget& memory,
                         std::vector<ManifestTensor>& tensors) {
  proto::Tensors message;
  MemoryLoan loan(memory);
  SHERD_RETURN_IF_ERROR(Parse(bytes, place, loan, message));
  const int count = message.name_size();
  SHERD_RETURN_IF_ERROR(Expect("dtype", message.dtype_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("rank", message.rank_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("flags", message.flags_size(), count));
  SHERD_RETURN_IF_ERROR(Expect("cut", message.cut_size(), count));
  SHERD_RETURN_IF_ERROR(
      Expect("fingerprint", message.fingerprint_size(), count));
  if (count == 0) return absl::DataLossError("no tensors");
  SHERD_RETURN_IF_ERROR(memory.Take(count, kPerTensor));
  NumberReader sizes(message.size(), "size");
  NumberReader layouts(message.layout(), "layout");
  LayoutReader layout_reader(layouts, memory);
  NumberReader runs(message.run(), "run");
  Dims dims;
  tensors.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    ManifestTensor& tensor = tensors.emplace_back();
    SHERD_RETURN_IF_ERROR(ReadTensor(message, i, sizes, tensor, dims));
    const bool in_order =
        i == 0
            ? tensor.name >= place.first_name &&
                  (place.first_name.empty() || tensor.name == place.first_name)
            : tensor.name > tensors[static_cast<size_t>(i) - 1].name;
    if (!in_order || (place.end_name && tensor.name >= *place.end_name)) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", Quoted(tensor.name.substr(0, 200)),
          " is out of order: expected each name once, ascending, and where the "
          "index says"));
    }
    const auto annotate = [&](const absl::Status& status) {
      return Annotate(status, absl::StrCat("tensor ", Quoted(tensor.name)));
    };
    auto layout = layout_reader.Take(dims);
    if (!layout.ok()) return annotate(layout.status());
    tensor.layout = *std::move(layout);
    auto tensor_runs = TakeRuns(tensor, root.summary.chunk_bytes,
                                root.placements, root.files, runs, memory);
    if (!tensor_runs.ok()) return annotate(tensor_runs.status());
    tensor.runs = *std::move(tensor_runs);
  }
  SHERD_RETURN_IF_ERROR(sizes.ExpectEmpty());
  SHERD_RETURN_IF_ERROR(layouts.ExpectEmpty());
  return runs.ExpectEmpty();
}

absl::Status ReadPlacements(absl::string_view bytes, const SectionPlace& place,
                            MemoryBudget& memory,
                            std::vector<std::string>& placements) {
  proto::Placements message;
  MemoryLoan loan(memory);
  SHERD_RETURN_IF_ERROR(Parse(bytes, place, loan, message));
  SHERD_RETURN_IF_ERROR(
      Expect("placement", message.placement_size(), place.end - place.first));
  placements.assign(message.placement().begin(), message.placement().end());
  for (const std::string& placement : placements) {
    SHERD_RETURN_IF_ERROR(CheckPlacement(placement));
  }
  return absl::OkStatus();
}

}  // namespace

const SectionPlace* ManifestRoot::Top(SectionKind kind) const {
  for (const SectionPlace& top : tops) {
    if (top.kind == kind) return &top;
  }
  return nullptr;
}

absl::StatusOr<SectionPlace> ParseTrailer(absl::string_view trailer,
                                          int64_t size) {
  const uint32_t stored = ReadLittleEndian<uint32_t>(trailer.substr(16));
  const uint32_t crc = Crc32c(AsBytes(trailer.substr(0, 16)));
  const int64_t begin = size - kManifestTrailerBytes;
  if (crc != stored) {
    return absl::DataLossError(absl::StrCat(
        "the manifest is damaged or cut short: its last bytes, from offset ",
        begin, " on, have the CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
        ", expected ", absl::Hex(stored, absl::kZeroPad8)));
  }
  SectionPlace root;
  root.offset = static_cast<int64_t>(ReadLittleEndian<uint64_t>(trailer));
  root.length = ReadLittleEndian<uint32_t>(trailer.substr(8));
  root.crc32c = ReadLittleEndian<uint32_t>(trailer.substr(12));
  root.max_end = begin;
  // The root is last: a file that was cut has another trailer, or none.
  if (root.offset < kManifestFrontBytes || root.length > kMaxSectionBytes ||
      root.offset > begin || root.length != begin - root.offset) {
    return absl::DataLossError(absl::StrCat(
        "the manifest is damaged: its root has ", root.length,
        " bytes at offset ", root.offset, ", expected it to end at ", begin));
  }
  return root;
}

absl::StatusOr<ManifestRoot> ParseRoot(absl::string_view bytes,
                                       const SectionPlace& place,
                                       MemoryBudget& memory) {
  ManifestRoot root;
  if (absl::Status status = ReadRoot(bytes, place, memory, root);
      !status.ok()) {
    return Annotate(std::move(status),
                    absl::StrCat("the root at offset ", place.offset));
  }
  return root;
}

absl::StatusOr<std::vector<SectionPlace>> ParseIndex(absl::string_view bytes,
                                                     const SectionPlace& place,
                                                     MemoryBudget& memory) {
  std::vector<SectionPlace> children;
  absl::Status status = ReadIndex(bytes, place, memory, children);
  if (!status.ok()) return Annotate(std::move(status), Where(place));
  return children;
}

absl::StatusOr<std::vector<std::string>> ParsePlacements(
    absl::string_view bytes, const SectionPlace& place, MemoryBudget& memory) {
  std::vector<std::string> placements;
  absl::Status status = ReadPlacements(bytes, place, memory, placements);
  if (!status.ok()) return Annotate(std::move(status), Where(place));
  return placements;
}

absl::StatusOr<std::vector<ManifestFile>> ParseFiles(absl::string_view bytes,
                                                     const SectionPlace& place,
                                                     MemoryBudget& memory) {
  std::vector<ManifestFile> files;
  absl::Status status = ReadFiles(bytes, place, memory, files);
  if (!status.ok()) return Annotate(std::move(status), Where(place));
  return files;
}

absl::StatusOr<std::vector<ManifestTensor>> ParseTensors(
    absl::string_view bytes, const SectionPlace& place,
    const ManifestRoot& root, MemoryBudget& memory) {
  std::vector<ManifestTensor> tensors;
  absl::Status status = ReadTensors(bytes, place, root, memory, tensors);
  if (!status.ok()) return Annotate(std::move(status), Where(place));
  return tensors;
}

}  // namespace sherd
