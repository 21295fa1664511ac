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
// a tail that is received where the reader of the head wants it:
//
//     u32 head bytes, u64 tail bytes (little-endian), head, tail

inline constexpr size_t kFrameHeaderBytes = 4;
inline constexpr size_t kTailFrameHeaderBytes = 12;

// The header of a frame; `payload_bytes` is less than 4 GiB.
std::string FrameHeader(size_t payload_bytes);

// The header of a frame with a tail.
std::string TailFrameHeader(size_t head_bytes, uint64_t tail_bytes);

// FrameHeader and payload, joined.
std::string EncodeFrame(absl::string_view payload);

// Cuts a stream of bytes from an untrusted peer into frames. Allocates for the
// bytes that arrived, not for those that a length announces, and nothing for a
// tail.
class FrameDecoder {
 public:
  explicit FrameDecoder(size_t max_payload_bytes)
      : max_payload_bytes_(max_payload_bytes) {}
  // Not copyable: it points into itself.
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;

  // Applies to frames that Next has not returned yet; with tails, to heads.
  void set_max_payload_bytes(size_t bytes) { max_payload_bytes_ = bytes; }
  // Frames that Next has not returned yet have tails of at most so many bytes.
  void set_has_tails(uint64_t max_tail_bytes) {
    has_tails_ = true;
    max_tail_bytes_ = max_tail_bytes;
  }

  bool has_tails() const { return has_tails_; }

  // Adds the next bytes of the stream.
  void Append(absl::string_view bytes) {
    Lend(bytes);
    Keep();
  }
  // As Append, but without a copy: they must stay unchanged until Keep or the
  // decoder's end.
  void Lend(absl::string_view bytes);
  // Copies the lent bytes that have not been taken.
  void Keep();

  // Returns the next whole payload, or the next whole head where frames have
  // tails, valid until the next Append, Lend or Keep; nothing if more bytes are
  // needed, or before the tail of the previous frame is taken.
  //   kInvalidArgument  A length is over the maximum; the rest of the stream is
  //                     meaningless, and every later call returns this too.
  absl::StatusOr<std::optional<absl::string_view>> Next();

  // Bytes not yet taken of the tail of the frame that Next returned last.
  uint64_t tail_bytes_left() const { return tail_bytes_left_; }
  // Takes up to `size` bytes of it from the buffer; valid as long as a head.
  absl::string_view TakeTail(uint64_t size);
  // `size` bytes of it, at most those left, were received without the decoder.
  // All appended bytes have been taken.
  void SkipTail(uint64_t size);

  // Bytes of an incomplete frame, without its tail.
  size_t buffered_bytes() const { return input_.size(); }

 private:
  size_t max_payload_bytes_;
  bool has_tails_ = false;
  uint64_t max_tail_bytes_ = 0;
  uint64_t tail_bytes_left_ = 0;
  // Bytes not yet taken: the end of buffer_, or of the lent bytes.
  absl::string_view input_;
  bool is_kept_ = false;
  std::string buffer_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_H_
