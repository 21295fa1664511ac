#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_H_

#include <utility>
#include <vector>

#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// For tests: two ranks saved, in chunks of 32 bytes, "empty", int8 [0, 5], on
// rank 0; "pinwheel", uint8 [3, 3], in five boxes that are not a grid, the
// middle one on rank 1; "scalar", float64, on rank 1; "split", uint8 [80], on
// rank 0, half of it in a file of an earlier save; and "weight",
// float32 [4, 6], by rows (3 and 1).
inline Manifest SampleManifest() {
  Manifest manifest;
  manifest.writer = "sherd 0.1.0";
  manifest.save_id = "0123456789abcdef";
  manifest.world_size = 2;
  manifest.chunk_bytes = 32;
  manifest.placements = {"rank:0/cpu", "rank:1/cpu"};
  const auto add_file = [&](const char* name, int64_t bytes, int64_t chunks,
                            uint32_t crc) {
    manifest.files.push_back({.name = name,
                              .size = 4096 + bytes + CrcTableBytes(chunks),
                              .data_begin = 4096,
                              .chunks = chunks,
                              .crc32c = crc});
  };
  add_file("shard-00000-of-00002.0123456789abcdef.safetensors", 72 + 40 + 8, 9,
           0x11111111);
  add_file("shard-00001-of-00002.0123456789abcdef.safetensors", 24 + 8 + 1, 3,
           0x22222222);
  add_file("shard-00000-of-00001.fedcba9876543210.safetensors", 96, 3,
           0x33333333);
  const auto add = [&](ManifestTensor tensor,
                       std::vector<SavedShardPlace> places) {
    for (SavedShardPlace& place : places) {
      AppendPlace(std::move(place), manifest.chunk_bytes, tensor.runs);
    }
    manifest.tensors.push_back(std::move(tensor));
  };
  add({.name = "empty",
       .dtype = kInt8,
       .fingerprint = 0,
       .layout = SavedLayout::Whole({0, 5})},
      {{.placement = 0}});
  // The one in the middle last.
  const std::vector<Box> boxes = {{{0, 0}, {1, 2}},
                                  {{0, 2}, {2, 1}},
                                  {{2, 1}, {1, 2}},
                                  {{1, 0}, {2, 1}},
                                  {{1, 1}, {1, 1}}};
  add({.name = "pinwheel",
       .dtype = kUInt8,
       .fingerprint = 0x44444444,
       .layout = SavedLayout::FromBoxes({3, 3}, boxes)},
      {{.placement = 0, .extents = {{0, 112, 2, 6}}},
       {.placement = 0, .extents = {{0, 114, 2, 7}}},
       {.placement = 0, .extents = {{0, 116, 2, 8}}},
       {.placement = 0, .extents = {{0, 118, 2, 9}}},
       {.placement = 1, .extents = {{1, 32, 1, 3}}}});
  add({.name = "scalar",
       .dtype = kFloat64,
       .fingerprint = 0x55555555,
       .layout = SavedLayout::Whole({})},
      {{.placement = 1, .extents = {{1, 24, 8, 2}}}});
  add({.name = "split",
       .dtype = kUInt8,
       .fingerprint = 0x66666666,
       .layout = SavedLayout::Whole({80})},
      {{.placement = 0, .extents = {{0, 72, 40, 4}, {2, 32, 40, 2}}}});
  add({.name = "weight",
       .dtype = kFloat32,
       .requires_grad = true,
       .kind = SavedLayoutKind::kChunk,
       .fingerprint = 0x77777777,
       .layout = SavedLayout::Grid({4, 6}, {{.cells = 2, .step = 3}, {}})},
      {{.placement = 0, .extents = {{0, 0, 72, 1}}},
       {.placement = 1, .extents = {{1, 0, 24, 1}}}});
  return manifest;
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_H_
