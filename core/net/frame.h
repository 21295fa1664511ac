#ifndef SHERD_CORE_NET_FRAME_H_
#define SHERD_CORE_NET_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// A frame on the wire is its payload's length and the payload:
//
//     u32 length (little-endian), payload of that many bytes
//
// or, where both ends have agreed on tails, a head that is read as a whole and
// a tail that goes where the reader of the head wants it:
//
//     u32 head bytes, u64 tail bytes (little-endian), head, tail

inline constexpr size_t kFrameHeaderBytes = 4;
inline constexpr size_t kTailFrameHeaderBytes = 12;

// The header of a frame; `payload_bytes` is less than 4 GiB.
std::string FrameHeader(size_t payload_bytes);

// The same of a frame with a tail.
std::string TailFrameHeader(size_t head_bytes, uint64_t tail_bytes);

// FrameHeader and payload.
std::string EncodeFrame(absl::string_view payload);

// Cuts a stream of bytes from a stranger into frames. It allocates for what has
// come, not for what a length announces, and nothing for a tail.
class FrameDecoder {
 public:
  explicit FrameDecoder(size_t max_payload_bytes)
      : max_payload_bytes_(max_payload_bytes) {}
  // It points into itself.
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;

  // For frames that Next has not returned yet; with tails, of their heads.
  void set_max_payload_bytes(size_t bytes) { max_payload_bytes_ = bytes; }
  // Frames that Next has not returned yet have tails, of at most so many bytes.
  void set_has_tails(uint64_t max_tail_bytes) {
    has_tails_ = true;
    max_tail_bytes_ = max_tail_bytes;
  }

  bool has_tails() const { return has_tails_; }

  // `bytes` follow.
  void Append(absl::string_view bytes) {
    Lend(bytes);
    Keep();
  }
  // As Append, but not copied: until Keep, or the decoder's end, they stay as
  // they are.
  void Lend(absl::string_view bytes);
  // Copies what has not been taken of what was lent.
  void Keep();

  // The next whole payload, or the next whole head where frames have tails,
  // valid until the next Append, Lend or Keep; nothing if more bytes are
  // needed, or before the tail of the frame before is taken.
  //   kInvalidArgument  A length is over the maximum; what follows means
  //                     nothing, and every later call returns this too.
  absl::StatusOr<std::optional<absl::string_view>> Next();

  // Of the tail of the frame that Next returned last: what is not taken yet.
  uint64_t tail_bytes_left() const { return tail_bytes_left_; }
  // Takes up to `size` bytes of it from what was appended; valid as a head.
  absl::string_view TakeTail(uint64_t size);
  // `size` bytes of it, at most what is left, were received past the decoder.
  // All that was appended has been taken.
  void SkipTail(uint64_t size);

  // Bytes of a frame that has begun and is not whole, but for a tail's.
  size_t buffered_bytes() const { return input_.size(); }

 private:
  size_t max_payload_bytes_;
  bool has_tails_ = false;
  uint64_t max_tail_bytes_ = 0;
  uint64_t tail_bytes_left_ = 0;
  // What is not taken: the end of buffer_, or of what was lent.
  absl::string_view input_;
  bool is_kept_ = false;
  std::string buffer_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_H_
