// Any text as the header of a data file, with as much data as it claims: an
// error, or contents that survive encoding and parsing unchanged.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  // That of the corpus's shards and checksums.
  for (const int64_t bytes : {4, 80, 448}) {
    const absl::StatusOr<sherd::SafetensorsHeader> header =
        sherd::ParseSafetensorsHeader(text, bytes, "fuzz");
    if (!header.ok()) continue;
    const absl::StatusOr<sherd::DataFileContents> contents =
        sherd::ParseDataFileHeader(*header, "fuzz");
    if (!contents.ok()) {
      SHERD_CHECK(contents.status().code() == absl::StatusCode::kDataLoss ||
                  contents.status().code() == absl::StatusCode::kUnimplemented)
          << contents.status().ToString();
      continue;
    }
    const absl::StatusOr<std::string> front =
        sherd::EncodeDataFileHeader(*contents);
    SHERD_CHECK(front.ok()) << front.status().ToString();
    const absl::StatusOr<sherd::SafetensorsHeader> again =
        sherd::ParseSafetensorsHeader(front->substr(8), bytes, "again");
    SHERD_CHECK(again.ok()) << again.status().ToString();
    SHERD_CHECK(sherd::ParseDataFileHeader(*again, "again").value() ==
                *contents);
  }
  return 0;
}
