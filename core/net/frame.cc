#include "sherd/core/net/frame.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

// An empty buffer larger than this is given back.
constexpr size_t kKeptBytes = size_t{256} << 10;

}  // namespace

std::string FrameHeader(size_t payload_bytes) {
  std::string header(kFrameHeaderBytes, '\0');
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    header[i] = static_cast<char>(payload_bytes >> (8 * i));
  }
  return header;
}

std::string EncodeFrame(absl::string_view payload) {
  return absl::StrCat(FrameHeader(payload.size()), payload);
}

void FrameDecoder::Append(absl::string_view bytes) {
  if (position_ == buffer_.size()) {
    if (buffer_.capacity() > kKeptBytes) std::string().swap(buffer_);
    buffer_.clear();
    position_ = 0;
  } else if (position_ > buffer_.size() / 2) {
    buffer_.erase(0, position_);
    position_ = 0;
  }
  buffer_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<absl::string_view>> FrameDecoder::Next() {
  if (buffered_bytes() < kFrameHeaderBytes) return std::nullopt;
  uint32_t length = 0;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    length |= uint32_t{static_cast<uint8_t>(buffer_[position_ + i])} << (8 * i);
  }
  if (length > max_payload_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("a frame announces ", length,
                                                   " bytes, expected at most ",
                                                   max_payload_bytes_));
  }
  if (buffered_bytes() - kFrameHeaderBytes < length) return std::nullopt;
  const absl::string_view payload(
      buffer_.data() + position_ + kFrameHeaderBytes, length);
  position_ += kFrameHeaderBytes + length;
  return payload;
}

}  // namespace sherd
