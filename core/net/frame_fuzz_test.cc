// Any bytes in pieces of any size: the decoder finds the frames that a plain
// reading of the format finds, with tails and without, and refuses where that
// does.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/net/frame.h"

namespace {

constexpr size_t kMaxPayload = 64;
constexpr uint64_t kMaxTail = 256;

uint64_t NumberAt(absl::string_view bytes, size_t at, size_t size) {
  uint64_t number = 0;
  for (size_t i = 0; i < size; ++i) {
    number |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  }
  return number;
}

// A stream of which `given` bytes are known to both readers: the decoder, and
// this plain one, which has come to `at`.
struct Reading {
  absl::string_view all;
  bool has_tails;
  sherd::FrameDecoder decoder{kMaxPayload};
  size_t given = 0;
  size_t at = 0;
  uint64_t tail_left = 0;

  // Whether both find a frame, or the end of what is given, or (`refused`) a
  // length over the maximum.
  bool NextAgrees(bool* refused) {
    const absl::StatusOr<std::optional<absl::string_view>> payload =
        decoder.Next();
    const size_t header =
        has_tails ? sherd::kTailFrameHeaderBytes : sherd::kFrameHeaderBytes;
    const bool has_lengths = tail_left == 0 && given - at >= header;
    const uint64_t length = has_lengths ? NumberAt(all, at, 4) : 0;
    const uint64_t tail =
        has_lengths && has_tails ? NumberAt(all, at + 4, 8) : 0;
    *refused = length > kMaxPayload || tail > kMaxTail;
    SHERD_CHECK(payload.ok() == !*refused);
    if (*refused) return false;
    const bool is_whole = has_lengths && given - at - header >= length;
    SHERD_CHECK(payload->has_value() == is_whole);
    if (!is_whole) return false;
    SHERD_CHECK(**payload == all.substr(at + header, length));
    at += header + length;
    tail_left = tail;
    SHERD_CHECK(decoder.tail_bytes_left() == tail);
    return true;
  }

  // Takes of the tail what is given, `step` bytes at a time.
  void TakeTail(uint64_t step) {
    for (;;) {
      const absl::string_view bytes = decoder.TakeTail(step);
      SHERD_CHECK(bytes == all.substr(at, std::min({step, tail_left,
                                                    uint64_t{given - at}})));
      at += bytes.size();
      tail_left -= bytes.size();
      SHERD_CHECK(decoder.tail_bytes_left() == tail_left);
      if (bytes.empty()) return;
    }
  }

  // Up to `size` bytes of the tail that come past the decoder.
  void SkipTail(uint64_t size) {
    if (given != at) return;
    size = std::min({size, tail_left, uint64_t{all.size() - given}});
    decoder.SkipTail(size);
    given += size;
    at += size;
    tail_left -= size;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  // The sizes of the pieces alternate. Some are lent in memory that changes.
  const size_t pieces[] = {size_t{data[0]} % 16 + 1, size_t{data[1]} % 5 + 1};
  const bool is_lent = data[0] >= 128;
  Reading reading = {.all = {reinterpret_cast<const char*>(data) + 2, size - 2},
                     .has_tails = data[1] >= 128};
  if (reading.has_tails) reading.decoder.set_has_tails(kMaxTail);
  std::string scratch;
  bool refused = false;
  for (int i = 0; reading.given < reading.all.size() && !refused; ++i) {
    if (i % 3 == 2) reading.SkipTail(pieces[0]);
    scratch = std::string(reading.all.substr(reading.given, pieces[i % 2]));
    reading.given += scratch.size();
    if (is_lent) {
      reading.decoder.Lend(scratch);
    } else {
      reading.decoder.Append(scratch);
    }
    do {
      reading.TakeTail(pieces[1]);
    } while (reading.NextAgrees(&refused));
    if (is_lent) reading.decoder.Keep();
    std::fill(scratch.begin(), scratch.end(), '#');
    SHERD_CHECK(refused ||
                reading.decoder.buffered_bytes() == reading.given - reading.at);
  }
  return 0;
}
