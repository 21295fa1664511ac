// Any bytes in pieces of any size: the decoder finds the frames that a plain
// reading of the format finds, and refuses where that does.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/net/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMaxPayload = 64;
  if (size < 2) return 0;
  // The sizes of the pieces alternate.
  const size_t pieces[] = {size_t{data[0]} % 16 + 1, size_t{data[1]} % 5 + 1};
  const absl::string_view all(reinterpret_cast<const char*>(data) + 2,
                              size - 2);
  sherd::FrameDecoder decoder(kMaxPayload);
  size_t given = 0, at = 0;
  bool refused = false;
  for (int i = 0; given < all.size() && !refused; ++i) {
    const absl::string_view piece = all.substr(given, pieces[i % 2]);
    decoder.Append(piece);
    given += piece.size();
    for (;;) {
      const absl::StatusOr<std::optional<absl::string_view>> payload =
          decoder.Next();
      uint32_t length = 0;
      const bool has_length = given - at >= sherd::kFrameHeaderBytes;
      for (size_t b = 0; has_length && b < sherd::kFrameHeaderBytes; ++b) {
        length |= uint32_t{static_cast<uint8_t>(all[at + b])} << (8 * b);
      }
      refused = has_length && length > kMaxPayload;
      SHERD_CHECK(payload.ok() == !refused);
      if (refused) break;
      const bool whole =
          has_length && given - at - sherd::kFrameHeaderBytes >= length;
      SHERD_CHECK(payload->has_value() == whole);
      if (!whole) break;
      SHERD_CHECK(**payload ==
                  all.substr(at + sherd::kFrameHeaderBytes, length));
      at += sherd::kFrameHeaderBytes + length;
    }
    SHERD_CHECK(refused || decoder.buffered_bytes() == given - at);
  }
  return 0;
}
