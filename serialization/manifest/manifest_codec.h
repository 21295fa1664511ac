#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// The newest encoding that this build reads.
inline constexpr uint32_t kManifestVersion = 2;

// The limit of a manifest's length; longer files are refused.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// The limit of the memory that a manifest takes while it is decoded: some ten
// million shards of version 1.
inline constexpr int64_t kMaxManifestMemory = int64_t{8} << 30;

// Checks all of a manifest of version 2: ValidateParts, and that the extents of
// shards do not overlap, and fill each data file of this save (which has the
// save_id in its name) without hole, with all of its chunks in order.
//   kDataLoss  It is not so; the message names file, tensor and offset.
//
// Cost. O(n log n) for n shards; 40 bytes for each.
absl::Status ValidateManifest(const Manifest& manifest);

// Checks what does not compare tensors with each other: names, ranges, counts,
// layouts that cover their tensor once, runs as long as these and in range.
absl::Status ValidateParts(const Manifest& manifest);

// The parts of ValidateParts: all but the tensors; and one tensor, which comes
// after `previous` if there is one.
absl::Status ValidateAllButTensors(const Manifest& manifest);
absl::Status ValidateTensor(const Manifest& manifest,
                            const ManifestTensor* previous,
                            const ManifestTensor& tensor);

// The bytes of the file, in the encoding manifest.version. Equal manifests
// always give equal bytes.
//   kInvalidArgument    ValidateParts refuses it.
//   kResourceExhausted  It exceeds kMaxManifestBytes, or DecodeManifest would
//                       refuse it with `max_memory`.
//
// Cost. A few nanoseconds per shard; some hundred per tensor and per run.
absl::StatusOr<std::string> EncodeManifest(
    const Manifest& manifest, int64_t max_memory = kMaxManifestMemory);

// The runs of tensor number `tensor` of a manifest.
using RunsOfTensorFn = absl::FunctionRef<SavedRuns(size_t tensor)>;

// The same, in version 2, of a manifest whose tensors have the runs that
// `runs_of` returns, called for each in order, instead of their own: so that
// those of a few tensors at a time are in memory.
absl::StatusOr<std::string> EncodeManifest(
    const Manifest& manifest, RunsOfTensorFn runs_of,
    int64_t max_memory = kMaxManifestMemory);

// Decodes all of untrusted bytes. To read parts of a file, see ManifestReader.
//
// Errors. All begin with `what`, the path.
//   kDataLoss           Not a manifest, truncated, or a CRC is wrong; or
//                       ValidateManifest refuses it.
//   kUnimplemented      A later version wrote it; the message has both.
//   kResourceExhausted  It would take more than `max_memory`; that was not
//                       allocated.
absl::StatusOr<Manifest> DecodeManifest(
    absl::string_view bytes, absl::string_view what,
    int64_t max_memory = kMaxManifestMemory);

// The version of a manifest of `size` bytes that begins with `front`, which has
// kManifestFrontBytes unless there are fewer.
//   kDataLoss       Not a manifest.
//   kUnimplemented  A later version.
absl::StatusOr<uint32_t> ReadManifestVersion(absl::string_view front,
                                             int64_t size);

// The mark and `version`, with which a manifest begins.
std::string ManifestFront(uint32_t version);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_
