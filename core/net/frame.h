#ifndef SHERD_CORE_NET_FRAME_H_
#define SHERD_CORE_NET_FRAME_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// A frame on the wire is its payload's length and the payload:
//
//     u32 length (little-endian), payload of that many bytes

inline constexpr size_t kFrameHeaderBytes = 4;

// The header of a frame; `payload_bytes` is less than 4 GiB.
std::string FrameHeader(size_t payload_bytes);

// FrameHeader and payload.
std::string EncodeFrame(absl::string_view payload);

// Cuts a stream of bytes from a stranger into frames. It allocates for what has
// come, not for what a length announces.
class FrameDecoder {
 public:
  explicit FrameDecoder(size_t max_payload_bytes)
      : max_payload_bytes_(max_payload_bytes) {}

  // For frames that Next has not returned yet.
  void set_max_payload_bytes(size_t bytes) { max_payload_bytes_ = bytes; }

  void Append(absl::string_view bytes);

  // The next whole payload, valid until Append, or nothing if more bytes are
  // needed.
  //   kInvalidArgument  A length is over the maximum; what follows means
  //                     nothing, and every later call returns this too.
  absl::StatusOr<std::optional<absl::string_view>> Next();

  // Bytes of a frame that has begun and is not whole.
  size_t buffered_bytes() const { return buffer_.size() - position_; }

 private:
  size_t max_payload_bytes_;
  std::string buffer_;
  // Where the next frame begins.
  size_t position_ = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_H_
