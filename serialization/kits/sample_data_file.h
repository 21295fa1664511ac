#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_DATA_FILE_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_DATA_FILE_H_

#include "sherd/serialization/manifest/data_file.h"

namespace sherd {

// For tests: rank 1 of 2 has saved an increment, in chunks of 32 bytes: "bias",
// which has not changed; "empty"; "step", which has; and of "weight", float32
// [6, 10], the lower half, of which the second chunk and the last one have
// changed, and the first and third are in files of two earlier saves.
inline DataFileContents SampleIncrement() {
  DataFileContents contents;
  contents.save_id = "0123456789abcdef";
  contents.world_size = 2;
  contents.rank = 1;
  contents.files = 2;
  contents.chunk_bytes = 32;
  contents.tensors = {
      {"bias", kBFloat16, {5}},
      {"empty", kInt8, {0, 5}},
      {"step", kUInt64, {}},
      {"weight", kFloat32, {6, 10}, true, SavedLayoutKind::kChunk, 0}};
  contents.placements = {"rank:1/cpu"};
  const Box lower = {{3, 0}, {3, 10}};
  contents.shards = {{lower, 3, 0, 32, 32}, {{}, 2, 0}, {lower, 3, 0, 96, 24}};
  contents.earlier_files = {
      "shard-00001-of-00002.0123456789ab0000.safetensors",
      "shard-00001-of-00002.0123456789ab0001.safetensors"};
  contents.split = {
      {{{0}, {5}}, 0, 0, {{1, 120, 10, 5}}},
      {lower,
       3,
       0,
       {{1, 0, 32, 1}, {0, 0, 32, 1}, {2, 64, 32, 3}, {0, 40, 24, 3}}}};
  return contents;
}

// Of the data behind the header.
inline constexpr int64_t kSampleIncrementBytes = 32 + 8 + 24 + 16;

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_DATA_FILE_H_
