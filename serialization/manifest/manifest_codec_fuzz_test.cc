// Any bytes as a manifest: an error, or a value that survives encoding and
// decoding unchanged. The frame is put around the bytes first, since no fuzzer
// guesses a CRC; and the bytes are tried as a whole file too.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace {

void AppendNumber(uint64_t value, int bytes, std::string& text) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
}

std::string Framed(absl::string_view message) {
  std::string text("SHERD\r\n\x1a");
  AppendNumber(1, 4, text);
  AppendNumber(message.size(), 8, text);
  text.append(message.data(), message.size());
  AppendNumber(
      sherd::Crc32c(absl::MakeSpan(
          reinterpret_cast<const std::byte*>(text.data()), text.size())),
      4, text);
  return text;
}

void Try(absl::string_view bytes) {
  const absl::StatusOr<sherd::Manifest> manifest =
      sherd::DecodeManifest(bytes, "fuzz");
  if (!manifest.ok()) {
    SHERD_CHECK(manifest.status().code() == absl::StatusCode::kDataLoss ||
                manifest.status().code() == absl::StatusCode::kUnimplemented)
        << manifest.status().ToString();
    return;
  }
  const absl::StatusOr<std::string> encoded = sherd::EncodeManifest(*manifest);
  SHERD_CHECK(encoded.ok()) << encoded.status().ToString();
  const absl::StatusOr<sherd::Manifest> again =
      sherd::DecodeManifest(*encoded, "again");
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*again == *manifest);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  Try(Framed(bytes));
  return 0;
}
