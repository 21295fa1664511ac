// Any bytes as a safetensors file: an error, or a header that survives encoding
// and parsing unchanged.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first two bytes are the length of the data after the header.
  if (size < 2) return 0;
  const int64_t data_bytes = data[0] | data[1] << 8;
  const absl::string_view json(reinterpret_cast<const char*>(data) + 2,
                               size - 2);
  const absl::StatusOr<sherd::SafetensorsHeader> header =
      sherd::ParseSafetensorsHeader(json, data_bytes, "fuzz");
  if (!header.ok()) {
    SHERD_CHECK(header.status().code() == absl::StatusCode::kDataLoss ||
                header.status().code() == absl::StatusCode::kUnimplemented)
        << header.status().ToString();
    return 0;
  }
  SHERD_CHECK(header->data_bytes() == data_bytes);
  const absl::StatusOr<std::string> text =
      sherd::EncodeSafetensorsHeader(*header);
  SHERD_CHECK(text.ok()) << text.status().ToString();
  const absl::StatusOr<sherd::SafetensorsHeader> again =
      sherd::ParseSafetensorsHeader(absl::string_view(*text).substr(8),
                                    data_bytes, "again");
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*again == *header);
  return 0;
}
