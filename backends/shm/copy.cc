#include "sherd/backends/shm/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace sherd::internal {

#ifdef __SSE2__

void StreamingCopy(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  auto* out = static_cast<unsigned char*>(to);
  auto* in = static_cast<const unsigned char*>(from);
  const size_t head = std::min(
      bytes, (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  out += head;
  in += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, out += kLine, in += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(in);
    auto* const target = reinterpret_cast<__m128i*>(out);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(out, in, bytes);
  // Streaming stores are not ordered with the stores that announce them.
  _mm_sfence();
}

#else

void StreamingCopy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace sherd::internal
