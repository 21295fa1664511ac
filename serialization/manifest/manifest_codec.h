#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// The newest encoding that this build reads.
inline constexpr uint32_t kManifestVersion = 1;

// The limit of a manifest's length; longer files are refused.
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// The limit of the memory that a manifest takes while it is decoded: some ten
// million shards.
inline constexpr int64_t kMaxManifestMemory = int64_t{8} << 30;

// The bytes of the file. Equal manifests always give equal bytes.
//   kInvalidArgument    ValidateManifest refuses it.
//   kResourceExhausted  It exceeds kMaxManifestBytes, or would exceed
//                       kMaxManifestMemory when it is read.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);

// Decodes untrusted bytes.
//
// Errors. All begin with `what`, the path.
//   kDataLoss           Not a manifest, truncated, or its CRC is wrong; or
//                       ValidateManifest refuses it.
//   kUnimplemented      A later version wrote it; the message has both.
//   kResourceExhausted  It would take more than `max_memory` (as ManifestMemory
//                       counts); nothing was allocated.
absl::StatusOr<Manifest> DecodeManifest(
    absl::string_view bytes, absl::string_view what,
    int64_t max_memory = kMaxManifestMemory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_H_
