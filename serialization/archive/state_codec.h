#ifndef SHERD_SERIALIZATION_ARCHIVE_STATE_CODEC_H_
#define SHERD_SERIALIZATION_ARCHIVE_STATE_CODEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/archive/saved_state.h"

namespace sherd::internal {

// The version that this build writes, and the newest that it reads.
inline constexpr int kStateVersion = 1;

inline constexpr int64_t kMaxStateBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxStateMemory = int64_t{1} << 33;
// A CRC takes 4 bytes in the file, and a chunk a buffer in a reader.
inline constexpr int64_t kMaxStateChunkBytes = int64_t{1} << 26;

// A message sherd.state.v1.State. Equal states give equal bytes.
//   kInvalidArgument    SerializeMetadata refuses the metadata of a sharded
//                       tensor; named.
//   kResourceExhausted  There would be more than kMaxStateBytes, or DecodeState
//                       would refuse them for their memory.
absl::StatusOr<std::string> EncodeState(const SavedState& state,
                                        int64_t max_memory = kMaxStateMemory);

// The same for the tree of a checkpoint, whose tensors are all StoredTensor.
absl::StatusOr<std::string> EncodeTree(const std::vector<SavedValue>& values,
                                       int64_t max_memory = kMaxStateMemory);

// The inverse, for bytes from any source. The tree is complete, keys are
// unique, tensors are inside their blocks, and each block has one; all
// are on one device.
//   kDataLoss       Not such a message, or not complete; the value is named.
//   kUnimplemented  A later version wrote it; the message has both versions.
//
// Memory. By StateMemory, before it is taken: at most `max_memory` bytes.
absl::StatusOr<SavedState> DecodeState(absl::string_view bytes,
                                       int64_t max_memory = kMaxStateMemory);

// The same for the tree of a checkpoint; a SavedState of values only. Adds to
// `memory` what it takes, up to kMaxStateMemory.
absl::StatusOr<SavedState> DecodeTree(absl::string_view bytes, int64_t& memory);

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_STATE_CODEC_H_
