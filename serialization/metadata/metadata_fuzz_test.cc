// Any bytes as metadata and as a spec: an error, or a value that survives
// serializing and parsing unchanged.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/metadata.h"

namespace {

void CheckRefusal(const absl::Status& status) {
  SHERD_CHECK(status.code() == absl::StatusCode::kDataLoss ||
              status.code() == absl::StatusCode::kUnimplemented)
      << status.ToString();
}

void TryMetadata(absl::string_view bytes) {
  const auto metadata = sherd::ParseMetadata(bytes);
  if (!metadata.ok()) return CheckRefusal(metadata.status());
  const absl::StatusOr<std::string> written =
      sherd::SerializeMetadata(*metadata);
  SHERD_CHECK(written.ok()) << written.status().ToString();
  const auto again = sherd::ParseMetadata(*written);
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*again == *metadata);
}

void TrySpec(absl::string_view bytes) {
  const auto spec = sherd::ParseSpec(bytes);
  if (!spec.ok()) return CheckRefusal(spec.status());
  const absl::StatusOr<std::string> written = sherd::SerializeSpec(*spec);
  SHERD_CHECK(written.ok()) << written.status().ToString();
  const auto again = sherd::ParseSpec(*written);
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(**again == **spec);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  TryMetadata(bytes);
  TrySpec(bytes);
  return 0;
}
