// Any bytes as a lease: an error, or a value that is encoded as the same bytes.
// The CRC is put behind the bytes first, since no fuzzer guesses it; and the
// bytes are tried as a whole file too.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace {

void Try(absl::string_view bytes) {
  const absl::StatusOr<sherd::LeaseRecord> record =
      sherd::DecodeLease(bytes, "fuzz");
  if (!record.ok()) {
    SHERD_CHECK(record.status().code() == absl::StatusCode::kDataLoss ||
                record.status().code() == absl::StatusCode::kUnimplemented)
        << record.status().ToString();
    return;
  }
  SHERD_CHECK(sherd::EncodeLease(*record) == bytes);
  // Looks for the process that the bytes name.
  (void)sherd::LeaseIsOver(*record, absl::Now());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  const uint32_t crc = sherd::Crc32c(absl::MakeSpan(
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  Try(std::string(bytes) + absl::StrFormat("crc32c %08x\n", crc));
  return 0;
}
