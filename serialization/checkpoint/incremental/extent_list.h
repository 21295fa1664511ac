#ifndef SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_EXTENT_LIST_H_
#define SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_EXTENT_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// Where the shards of one rank are, if not as planned: what rank 0 must know of
// an incremental save.
struct ExtentList {
  struct Shard {
    // As in PlannedShard.
    int32_t tensor = 0;
    int64_t shard = 0;
    // The file is 0 for that of the save, otherwise 1 + index in `files`.
    SavedExtents extents;

    friend bool operator==(const Shard&, const Shard&) = default;
  };

  // Files of earlier saves.
  std::vector<ManifestFile> files;
  // All that the rank writes, by tensor and number.
  std::vector<Shard> shards;

  friend bool operator==(const ExtentList&, const ExtentList&) = default;
};

// The bytes in which a list goes to rank 0: some ten per extent.
std::string EncodeExtentList(const ExtentList& list);

// Puts shards where the lists say. Entry r of `lists` is the encoding of rank
// r's, or empty if all is as planned; `rank_of_file` are the ranks of the files
// that the manifest has. Files of earlier saves are added so that those of one
// save follow one another by rank: then shards that no rank has changed are
// still one run.
//   kInternal  A list cannot be decoded.
//
// Cost. Memory for the extents of one tensor at a time, besides the manifest.
absl::Status ApplyExtentLists(absl::Span<const std::string> lists,
                              absl::Span<const int> rank_of_file,
                              Manifest& manifest);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_EXTENT_LIST_H_
