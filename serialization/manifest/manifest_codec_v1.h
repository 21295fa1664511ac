#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_V1_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_V1_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

// As EncodeManifest and DecodeManifest in manifest_codec.h, of version 1.
absl::StatusOr<std::string> EncodeManifestV1(const ManifestV1& manifest);
absl::StatusOr<ManifestV1> DecodeManifestV1(
    absl::string_view bytes, absl::string_view what,
    int64_t max_memory = kMaxManifestMemory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_CODEC_V1_H_
