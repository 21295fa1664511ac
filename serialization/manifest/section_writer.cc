#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/layout_codec.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/tensor_codec.h"
#include "sherd/serialization/proto/checkpoint_v2.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

namespace proto = checkpoint::v2;

// Of a section of things, about: it ends with the one that exceeds it.
constexpr size_t kSectionBytes = 64 << 10;

// Appends a section and returns what leads to it.
absl::StatusOr<proto::Tree> AppendSection(
    const google::protobuf::MessageLite& message, std::string& bytes) {
  const size_t begin = bytes.size();
  const size_t length = message.ByteSizeLong();
  if (length > static_cast<size_t>(kMaxSectionBytes) ||
      begin + length > static_cast<size_t>(kMaxManifestBytes)) {
    return LimitError(absl::StrCat(
        "the manifest would have ", begin + length,
        " bytes, with a section of ", length, ", expected at most ",
        kMaxManifestBytes, " and ", kMaxSectionBytes,
        "; spread the tensors over several checkpoints, or save fewer shards"));
  }
  if (!message.AppendToString(&bytes)) {
    return absl::InternalError("a section of the manifest is not complete");
  }
  proto::Tree place;
  place.set_offset(begin);
  place.set_length(static_cast<uint32_t>(length));
  place.set_crc32c(Crc32c(AsBytes(absl::string_view(bytes).substr(begin))));
  return place;
}

// Writes the sections of one kind and the indexes above them.
class TreeWriter {
 public:
  TreeWriter(MemoryBudget& memory, std::string& bytes)
      : memory_(memory), bytes_(bytes) {}

  // `name` or `number` is the first in the section. Returns its length.
  absl::StatusOr<int64_t> Add(const google::protobuf::MessageLite& section,
                              absl::string_view name, int64_t number) {
    SHERD_ASSIGN_OR_RETURN(proto::Tree place, Append(section));
    const int64_t length = place.length();
    sections_.push_back({std::string(name), number, std::move(place)});
    return length;
  }

  // `count` things are in the sections.
  absl::StatusOr<proto::Tree> Finish(int64_t count, bool by_name) {
    uint32_t level = 0;
    for (; sections_.size() > 1; ++level) {
      std::vector<Section> above;
      for (size_t begin = 0; begin < sections_.size();
           begin += kMaxIndexEntries) {
        const size_t end = std::min(sections_.size(), begin + kMaxIndexEntries);
        proto::Index index;
        for (size_t i = begin; i < end; ++i) {
          const Section& section = sections_[i];
          if (by_name) {
            index.add_first_name(section.name);
          } else {
            index.add_first_number(static_cast<uint64_t>(section.number));
          }
          index.add_offset(section.place.offset());
          index.add_length(section.place.length());
          index.add_crc32c(section.place.crc32c());
        }
        SHERD_ASSIGN_OR_RETURN(proto::Tree place, Append(index));
        above.push_back({std::move(sections_[begin].name),
                         sections_[begin].number, std::move(place)});
      }
      sections_ = std::move(above);
    }
    proto::Tree tree;
    if (!sections_.empty()) tree = sections_[0].place;
    tree.set_level(level);
    tree.set_count(static_cast<uint64_t>(count));
    return tree;
  }

 private:
  absl::StatusOr<proto::Tree> Append(
      const google::protobuf::MessageLite& section) {
    SHERD_ASSIGN_OR_RETURN(proto::Tree place, AppendSection(section, bytes_));
    SHERD_RETURN_IF_ERROR(memory_.Take(1, kPerSection));
    MemoryLoan loan(memory_);
    SHERD_RETURN_IF_ERROR(loan.Take(place.length(), kMemoryPerByte));
    return place;
  }

  struct Section {
    std::string name;
    int64_t number;
    proto::Tree place;
  };

  MemoryBudget& memory_;
  std::string& bytes_;
  std::vector<Section> sections_;
};

absl::StatusOr<proto::Tree> AppendPlacements(const Manifest& manifest,
                                             MemoryBudget& memory,
                                             std::string& bytes) {
  TreeWriter writer(memory, bytes);
  const std::vector<std::string>& all = manifest.placements;
  for (size_t i = 0; i < all.size();) {
    const size_t first = i;
    proto::Placements section;
    for (size_t size = 0; i < all.size() && size < kSectionBytes; ++i) {
      section.add_placement(all[i]);
      size += all[i].size() + 4;
    }
    SHERD_ASSIGN_OR_RETURN(
        const int64_t length,
        writer.Add(section, "", static_cast<int64_t>(first)));
    SHERD_RETURN_IF_ERROR(memory.Take(length, kMemoryPerByte));
  }
  return writer.Finish(static_cast<int64_t>(all.size()), false);
}

absl::StatusOr<proto::Tree> AppendFiles(const Manifest& manifest,
                                        MemoryBudget& memory,
                                        std::string& bytes) {
  TreeWriter writer(memory, bytes);
  for (size_t i = 0; i < manifest.files.size();) {
    const size_t first = i;
    proto::Files section;
    for (size_t size = 0; i < manifest.files.size() && size < kSectionBytes;
         ++i) {
      const ManifestFile& file = manifest.files[i];
      section.add_name(file.name);
      section.add_size(static_cast<uint64_t>(file.size));
      section.add_data_begin(static_cast<uint64_t>(file.data_begin));
      section.add_chunks(static_cast<uint64_t>(file.chunks));
      section.add_crc32c(file.crc32c);
      size += file.name.size() + 16;
    }
    SHERD_ASSIGN_OR_RETURN(
        const int64_t length,
        writer.Add(section, "", static_cast<int64_t>(first)));
    SHERD_RETURN_IF_ERROR(memory.Take(length, kMemoryPerByte));
  }
  return writer.Finish(static_cast<int64_t>(manifest.files.size()), false);
}

// Adds a tensor to a section, and returns its bytes there, about.
size_t AddTensor(const ManifestTensor& tensor, int64_t chunk_bytes,
                 std::vector<uint64_t>& numbers, proto::Tensors& section) {
  section.add_name(tensor.name);
  section.add_dtype(static_cast<uint32_t>(tensor.dtype));
  section.add_rank(static_cast<uint32_t>(tensor.sizes().size()));
  for (const int64_t size : tensor.sizes()) {
    section.add_size(static_cast<uint64_t>(size));
  }
  section.add_flags((tensor.requires_grad ? 1 : 0) |
                    (tensor.fingerprint.has_value() ? 2 : 0));
  section.add_cut(tensor.kind == SavedLayoutKind::kChunk
                      ? static_cast<uint32_t>(1 + tensor.chunk_dim)
                      : 0);
  section.add_fingerprint(tensor.fingerprint.value_or(0));
  size_t bytes = tensor.name.size() + 12 + 3 * tensor.sizes().size();
  numbers.clear();
  AppendLayout(tensor.layout, numbers);
  section.mutable_layout()->Add(numbers.begin(), numbers.end());
  bytes += 2 * numbers.size();
  numbers.clear();
  AppendRuns(tensor, chunk_bytes, numbers);
  section.mutable_run()->Add(numbers.begin(), numbers.end());
  return bytes + 2 * numbers.size();
}

absl::StatusOr<proto::Tree> AppendTensors(const Manifest& manifest,
                                          TensorAtFn tensor_at,
                                          MemoryBudget& memory,
                                          std::string& bytes) {
  TreeWriter writer(memory, bytes);
  std::vector<uint64_t> numbers;
  std::vector<ManifestTensor> tensors;
  proto::Tensors section;
  for (size_t i = 0; i < manifest.tensors.size();) {
    tensors.clear();
    section.Clear();
    for (size_t size = 0; i < manifest.tensors.size() && size < kSectionBytes;
         ++i) {
      SHERD_ASSIGN_OR_RETURN(tensors.emplace_back(), tensor_at(i));
      size += AddTensor(tensors.back(), manifest.chunk_bytes, numbers, section);
    }
    SHERD_ASSIGN_OR_RETURN(const int64_t length,
                           writer.Add(section, tensors[0].name, 0));
    // As ParseTensors does.
    MemoryLoan loan(memory);
    SHERD_RETURN_IF_ERROR(loan.Take(length, kMemoryPerByte));
    for (const ManifestTensor& tensor : tensors) {
      SHERD_RETURN_IF_ERROR(memory.Take(1, kPerTensor));
      SHERD_RETURN_IF_ERROR(TakeTensorMemory(tensor, memory));
    }
  }
  return writer.Finish(static_cast<int64_t>(manifest.tensors.size()), true);
}

}  // namespace

absl::Status AppendSections(const Manifest& manifest, TensorAtFn tensor_at,
                            MemoryBudget& memory, std::string& bytes) {
  proto::Root root;
  root.set_writer(manifest.writer);
  root.set_save_id(manifest.save_id);
  root.set_world_size(static_cast<uint32_t>(manifest.world_size));
  root.set_chunk_bytes(static_cast<uint64_t>(manifest.chunk_bytes));
  SHERD_ASSIGN_OR_RETURN(*root.mutable_placements(),
                         AppendPlacements(manifest, memory, bytes));
  SHERD_ASSIGN_OR_RETURN(*root.mutable_files(),
                         AppendFiles(manifest, memory, bytes));
  SHERD_ASSIGN_OR_RETURN(*root.mutable_tensors(),
                         AppendTensors(manifest, tensor_at, memory, bytes));
  SHERD_ASSIGN_OR_RETURN(const proto::Tree place, AppendSection(root, bytes));
  const size_t trailer = bytes.size();
  AppendLittleEndian<uint64_t>(place.offset(), bytes);
  AppendLittleEndian<uint32_t>(place.length(), bytes);
  AppendLittleEndian<uint32_t>(place.crc32c(), bytes);
  AppendLittleEndian<uint32_t>(
      Crc32c(AsBytes(absl::string_view(bytes).substr(trailer))), bytes);
  return absl::OkStatus();
}

}  // namespace sherd
