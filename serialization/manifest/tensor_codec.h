#ifndef SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_
#define SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/memory_budget.h"
#include "sherd/serialization/manifest/number_reader.h"

namespace sherd {

// The runs of tensors as lists of numbers; see FORMAT.md.

// `tensor` is complete.
void AppendRuns(const ManifestTensor& tensor, int64_t chunk_bytes,
                std::vector<uint64_t>& numbers);
// The runs of a tensor that is complete but for them. Placements and files are
// in the lists of so many, and no offset is 2^62 or more. Takes kPerListedShard
// of memory for each shard, though the runs need none of it.
absl::StatusOr<SavedRuns> TakeRuns(const ManifestTensor& tensor,
                                   int64_t chunk_bytes, int64_t placements,
                                   int64_t files, NumberReader& numbers,
                                   MemoryBudget& memory);

// Takes from `memory` what decoding the layout and the runs of a tensor takes.
absl::Status TakeTensorMemory(const ManifestTensor& tensor,
                              MemoryBudget& memory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_
