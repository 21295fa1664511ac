#include "sherd/core/net/frame.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"

namespace sherd {
namespace {

// An empty buffer larger than this is freed.
constexpr size_t kKeptBytes = size_t{16} << 10;

void PutNumber(std::string* to, size_t at, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; ++i) {
    (*to)[at + i] = static_cast<char>(value >> (8 * i));
  }
}

uint64_t NumberAt(const char* data, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<uint8_t>(data[i])} << (8 * i);
  }
  return value;
}

absl::Status TooLong(uint64_t bytes, absl::string_view of, uint64_t maximum) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame announces ", bytes, " bytes", of,
                   ", expected at most ", maximum));
}

}  // namespace

std::string FrameHeader(size_t payload_bytes) {
  std::string header(kFrameHeaderBytes, '\0');
  PutNumber(&header, 0, kFrameHeaderBytes, payload_bytes);
  return header;
}

std::string TailFrameHeader(size_t head_bytes, uint64_t tail_bytes) {
  std::string header(kTailFrameHeaderBytes, '\0');
  PutNumber(&header, 0, kFrameHeaderBytes, head_bytes);
  PutNumber(&header, kFrameHeaderBytes, sizeof(tail_bytes), tail_bytes);
  return header;
}

std::string EncodeFrame(absl::string_view payload) {
  return absl::StrCat(FrameHeader(payload.size()), payload);
}

void FrameDecoder::Lend(absl::string_view bytes) {
  if (input_.empty()) {
    input_ = bytes;
    is_kept_ = false;
    return;
  }
  Keep();
  const size_t taken = buffer_.size() - input_.size();
  if (taken > buffer_.size() / 2) buffer_.erase(0, taken);
  const size_t left = input_.size();
  buffer_.append(bytes.data(), bytes.size());
  input_ =
      absl::string_view(buffer_).substr(buffer_.size() - bytes.size() - left);
}

void FrameDecoder::Keep() {
  if (input_.empty()) {
    if (buffer_.capacity() > kKeptBytes) std::string().swap(buffer_);
  } else if (!is_kept_) {
    buffer_.assign(input_.data(), input_.size());
    input_ = buffer_;
    is_kept_ = true;
  }
}

absl::StatusOr<std::optional<absl::string_view>> FrameDecoder::Next() {
  const size_t header = has_tails_ ? kTailFrameHeaderBytes : kFrameHeaderBytes;
  if (tail_bytes_left_ > 0 || input_.size() < header) return std::nullopt;
  const uint64_t length = NumberAt(input_.data(), kFrameHeaderBytes);
  const uint64_t tail =
      has_tails_ ? NumberAt(input_.data() + kFrameHeaderBytes, sizeof(uint64_t))
                 : 0;
  if (length > max_payload_bytes_) {
    return TooLong(length, has_tails_ ? " of its head" : "",
                   max_payload_bytes_);
  }
  if (tail > max_tail_bytes_) {
    return TooLong(tail, " of its tail", max_tail_bytes_);
  }
  if (input_.size() - header < length) return std::nullopt;
  const absl::string_view payload = input_.substr(header, length);
  input_.remove_prefix(header + length);
  tail_bytes_left_ = tail;
  return payload;
}

void FrameDecoder::SkipTail(uint64_t size) {
  SHERD_CHECK(input_.empty() && size <= tail_bytes_left_);
  tail_bytes_left_ -= size;
}

absl::string_view FrameDecoder::TakeTail(uint64_t size) {
  const absl::string_view bytes = input_.substr(
      0, std::min({size, tail_bytes_left_, uint64_t{input_.size()}}));
  input_.remove_prefix(bytes.size());
  tail_bytes_left_ -= bytes.size();
  return bytes;
}

}  // namespace sherd
