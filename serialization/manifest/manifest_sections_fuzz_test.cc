// Any bytes as a section of tensors, in a manifest of version 2 that is
// otherwise intact, since no fuzzer guesses a CRC; and as a whole manifest: an
// error, or a value that survives encoding and decoding unchanged. And as an
// index above sections that are intact, with the right CRCs, however it leads
// to them: what is looked for in it is where it says, or an error.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/section_tree.h"
#include "sherd/serialization/proto/checkpoint_v2.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace {

namespace proto = sherd::checkpoint::v2;

constexpr int64_t kMaxMemory = int64_t{64} << 20;

// Appends a section and says where it is.
void Place(absl::string_view section, std::string& bytes, proto::Tree& tree) {
  tree.set_offset(bytes.size());
  tree.set_length(static_cast<uint32_t>(section.size()));
  tree.set_crc32c(sherd::Crc32c(sherd::AsBytes(section)));
  bytes.append(section.data(), section.size());
}

void AppendTrailer(const proto::Tree& place, std::string& bytes) {
  const size_t trailer = bytes.size();
  sherd::AppendLittleEndian<uint64_t>(place.offset(), bytes);
  sherd::AppendLittleEndian<uint32_t>(place.length(), bytes);
  sherd::AppendLittleEndian<uint32_t>(place.crc32c(), bytes);
  sherd::AppendLittleEndian<uint32_t>(
      sherd::Crc32c(sherd::AsBytes(absl::string_view(bytes).substr(trailer))),
      bytes);
}

std::string Framed(absl::string_view section) {
  std::string bytes = sherd::ManifestFront(2);
  proto::Root root;
  root.set_world_size(2);
  root.set_chunk_bytes(32);
  proto::Placements placements;
  placements.add_placement("rank:0/cpu");
  placements.add_placement("rank:1/cpu");
  Place(placements.SerializeAsString(), bytes, *root.mutable_placements());
  root.mutable_placements()->set_count(2);
  // Of an earlier save, so that they need not be filled.
  proto::Files files;
  for (const char* name : {"shard-0.x.safetensors", "shard-1.x.safetensors"}) {
    files.add_name(name);
    files.add_size(4096 + 128 + 4 * 5);
    files.add_data_begin(4096);
    files.add_chunks(4);
    files.add_crc32c(7);
  }
  Place(files.SerializeAsString(), bytes, *root.mutable_files());
  root.mutable_files()->set_count(2);
  proto::Tensors tensors;
  const bool parsed =
      tensors.ParseFromArray(section.data(), static_cast<int>(section.size()));
  Place(section, bytes, *root.mutable_tensors());
  root.mutable_tensors()->set_count(
      parsed ? static_cast<uint64_t>(tensors.name_size()) : 1);
  root.set_save_id("0123456789abcdef");
  proto::Tree place;
  Place(root.SerializeAsString(), bytes, place);
  AppendTrailer(place, bytes);
  return bytes;
}

void Try(absl::string_view bytes) {
  const absl::StatusOr<sherd::Manifest> manifest =
      sherd::DecodeManifest(bytes, "fuzz", kMaxMemory);
  if (!manifest.ok()) {
    SHERD_CHECK(manifest.status().code() == absl::StatusCode::kDataLoss ||
                manifest.status().code() == absl::StatusCode::kUnimplemented ||
                manifest.status().code() ==
                    absl::StatusCode::kResourceExhausted)
        << manifest.status().ToString();
    return;
  }
  // Version 1 has a target of its own.
  if (manifest->version == 1) return;
  const absl::StatusOr<std::string> encoded = sherd::EncodeManifest(*manifest);
  SHERD_CHECK(encoded.ok()) << encoded.status().ToString();
  const absl::StatusOr<sherd::Manifest> again =
      sherd::DecodeManifest(*encoded, "again");
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(sherd::EncodeManifest(*again).value() == *encoded);
}

// The first byte is the level; offsets choose a section, whose length and CRC
// follow unless the length is 0.
std::string IndexFramed(absl::string_view data, bool of_files) {
  std::string bytes = sherd::ManifestFront(2);
  proto::Files files;
  files.add_name("shard-0.x.safetensors");
  files.add_size(4100);
  files.add_data_begin(4096);
  files.add_chunks(0);
  files.add_crc32c(7);
  proto::Tensors tensors;
  tensors.add_name("a");
  tensors.add_dtype(1);
  tensors.add_rank(0);
  tensors.add_flags(0);
  tensors.add_cut(0);
  tensors.add_fingerprint(0);
  tensors.add_layout(1);
  for (const int number : {1 << 3, 0, 0, 0, 2}) tensors.add_run(number);
  proto::Tree places[4];
  Place(of_files ? files.SerializeAsString() : tensors.SerializeAsString(),
        bytes, places[0]);
  for (int i = 1; i < 4; ++i) {
    proto::Index index;
    if (of_files) {
      index.add_first_number(0);
    } else {
      index.add_first_name("a");
    }
    index.add_offset(places[i - 1].offset());
    index.add_length(places[i - 1].length());
    index.add_crc32c(places[i - 1].crc32c());
    Place(index.SerializeAsString(), bytes, places[i]);
  }
  proto::Index index;
  if (data.empty() || !index.ParseFromArray(
                          data.data() + 1, static_cast<int>(data.size()) - 1)) {
    return "";
  }
  for (int i = 0; i < index.offset_size(); ++i) {
    const proto::Tree& place = places[index.offset(i) % 4];
    index.set_offset(i, place.offset());
    if (i < index.length_size() && index.length(i) != 0) {
      index.set_length(i, place.length());
    }
    if (i < index.crc32c_size()) index.set_crc32c(i, place.crc32c());
  }
  proto::Root root;
  root.set_world_size(2);
  root.set_chunk_bytes(32);
  root.set_save_id("0123456789abcdef");
  proto::Tree& tree =
      of_files ? *root.mutable_files() : *root.mutable_tensors();
  Place(index.SerializeAsString(), bytes, tree);
  tree.set_level(static_cast<unsigned char>(data[0]) % 8);
  tree.set_count(20);
  proto::Tree place;
  Place(root.SerializeAsString(), bytes, place);
  AppendTrailer(place, bytes);
  return bytes;
}

void TryIndex(const std::string& bytes) {
  sherd::MemoryBudget memory(kMaxMemory);
  const auto read = [&bytes](
                        int64_t offset, int64_t length,
                        std::string&) -> absl::StatusOr<absl::string_view> {
    return absl::string_view(bytes).substr(offset, length);
  };
  auto tree = sherd::SectionTree::Open(static_cast<int64_t>(bytes.size()), read,
                                       memory);
  if (!tree.ok()) return;
  const auto* files = tree->root().Top(sherd::SectionKind::kFiles);
  for (int64_t number = 0; files != nullptr && number < 20; ++number) {
    const auto place =
        tree->FindNumber(sherd::SectionKind::kFiles, number, memory);
    if (!place.ok()) continue;
    const auto list = sherd::ParseFiles(*tree->Read(*place), *place, memory);
    SHERD_CHECK(!list.ok() ||
                (number >= place->first &&
                 number - place->first < static_cast<int64_t>(list->size())));
  }
  if (tree->root().Top(sherd::SectionKind::kTensors) != nullptr) {
    for (const char* name : {"", "a", "b", "zz"}) {
      const auto place = tree->FindTensor(name, memory);
      if (!place.ok()) continue;
      sherd::ParseTensors(*tree->Read(*place), *place, tree->root(), memory)
          .status()
          .IgnoreError();
    }
  }
  tree->ReadAll(memory).status().IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  Try(Framed(bytes));
  TryIndex(IndexFramed(bytes, true));
  TryIndex(IndexFramed(bytes, false));
  return 0;
}
