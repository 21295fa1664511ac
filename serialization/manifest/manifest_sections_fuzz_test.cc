// Any bytes as a section of tensors, in a manifest of version 2 that is
// otherwise intact, since no fuzzer guesses a CRC; and as a whole manifest: an
// error, or a value that survives encoding and decoding unchanged.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/manifest/manifest_codec.h"
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
  const size_t trailer = bytes.size();
  sherd::AppendLittleEndian<uint64_t>(place.offset(), bytes);
  sherd::AppendLittleEndian<uint32_t>(place.length(), bytes);
  sherd::AppendLittleEndian<uint32_t>(place.crc32c(), bytes);
  sherd::AppendLittleEndian<uint32_t>(
      sherd::Crc32c(sherd::AsBytes(absl::string_view(bytes).substr(trailer))),
      bytes);
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  Try(Framed(bytes));
  return 0;
}
