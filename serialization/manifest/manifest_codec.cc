#include "sherd/serialization/manifest/manifest_codec.h"

#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/manifest_codec_v1.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  return EncodeManifestV1(ToV1(manifest));
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes,
                                        absl::string_view what,
                                        int64_t max_memory) {
  SHERD_ASSIGN_OR_RETURN(ManifestV1 manifest,
                         DecodeManifestV1(bytes, what, max_memory));
  return FromV1(std::move(manifest));
}

}  // namespace sherd
