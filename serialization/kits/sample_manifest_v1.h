#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_V1_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_V1_H_

#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

// For tests: two ranks saved "weight", float32 [4, 6], by rows (3 and 1, the
// chunks of 32 bytes), "scalar", float64, on rank 1, and "empty", int8 [0, 5],
// on rank 0.
inline ManifestV1 SampleManifestV1() {
  ManifestV1 manifest;
  manifest.writer = "sherd 0.1.0";
  manifest.save_id = "0123456789abcdef";
  manifest.world_size = 2;
  manifest.chunk_bytes = 32;
  manifest.files = {{"shard-00000-of-00002.0123456789abcdef.safetensors",
                     4096 + 72, 4096, 0x11111111},
                    {"shard-00001-of-00002.0123456789abcdef.safetensors",
                     4096 + 32, 4096, 0x22222222}};
  manifest.placements = {"rank:0/cpu", "rank:1/cpu"};
  ManifestTensorV1 empty;
  empty.name = "empty";
  empty.dtype = kInt8;
  empty.sizes = {0, 5};
  empty.shards = {{{{0, 0}, {0, 5}}, 0}};
  ManifestTensorV1 scalar;
  scalar.name = "scalar";
  scalar.dtype = kFloat64;
  scalar.shards = {
      {.placement = 1, .file = 1, .file_offset = 4096 + 24, .first_chunk = 0}};
  ManifestTensorV1 weight;
  weight.name = "weight";
  weight.dtype = kFloat32;
  weight.sizes = {4, 6};
  weight.requires_grad = true;
  weight.layout = SavedLayoutKind::kChunk;
  // Placement, file, place there and first chunk of each.
  weight.shards = {{{{0, 0}, {3, 6}}, 0, 0, 4096, 1},
                   {{{3, 0}, {1, 6}}, 1, 1, 4096, 4}};
  manifest.tensors = {empty, scalar, weight};
  manifest.chunk_crc32c = {0xa0, 0xb0, 0xb1, 0xb2, 0xc0};
  return manifest;
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_MANIFEST_V1_H_
