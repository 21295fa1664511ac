#include "sherd/core/tensor/kernels/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

constexpr size_t kCacheLine = 64;

// Streaming stores write whole cache lines to memory without reading them
// first, which saves a third of the traffic, but what they wrote is not in the
// cache afterwards. They are used for copies that would not stay there anyway,
// and from a smaller size on if the destination is scattered (a contiguous one
// may be a message that is read next) or transposed.
constexpr size_t kStreamBytes = size_t{32} << 20;
constexpr size_t kStreamScatteredBytes = size_t{4} << 20;
// Runs that are shorter are copied through the cache, which joins them if they
// are neighbours.
constexpr size_t kStreamRun = 512;
constexpr size_t kStreamScatteredRun = kCacheLine;
// From this size on several pages at a time are faster than one.
constexpr size_t kStreamPagesRun = size_t{96} << 20;
// For small parts of a large copy, waiting for the streaming stores at their
// ends costs more than these gain.
constexpr size_t kStreamPart = size_t{4} << 10;
// How far into the next run of a source with gaps to read ahead: further than
// the processor sees by itself.
constexpr size_t kReadAhead = 1024;

#ifdef __SSE2__
constexpr bool kCanStream = true;

// Copies whole cache lines to an aligned destination, past the cache.
void StreamLines(std::byte* dst, const std::byte* src, size_t lines) {
  for (size_t i = 0; i < lines; ++i) {
    const __m128i* const from =
        reinterpret_cast<const __m128i*>(src + i * kCacheLine);
    __m128i* const to = reinterpret_cast<__m128i*>(dst + i * kCacheLine);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
}

// The same for very long runs: a line of each of four pages in turn, so that
// more of the memory is at work at once.
void StreamPages(std::byte* dst, const std::byte* src, size_t lines) {
  constexpr size_t kPageLines = 4096 / kCacheLine;
  constexpr size_t kPages = 4;
  for (; lines >= kPages * kPageLines; lines -= kPages * kPageLines) {
    for (size_t i = 0; i < kPageLines; ++i) {
      for (size_t page = 0; page < kPages; ++page) {
        const size_t at = (page * kPageLines + i) * kCacheLine;
        __builtin_prefetch(src + at + 2 * kCacheLine);
        StreamLines(dst + at, src + at, 1);
      }
    }
    dst += kPages * kPageLines * kCacheLine;
    src += kPages * kPageLines * kCacheLine;
  }
  StreamLines(dst, src, lines);
}

// Orders streaming stores before everything that follows.
void FinishStreaming() { _mm_sfence(); }
#else
constexpr bool kCanStream = false;

void StreamLines(std::byte* dst, const std::byte* src, size_t lines) {
  std::memcpy(dst, src, lines * kCacheLine);
}

void StreamPages(std::byte* dst, const std::byte* src, size_t lines) {
  StreamLines(dst, src, lines);
}

void FinishStreaming() {}
#endif

// Bytes from `data` to the next cache line.
size_t BytesToLine(const std::byte* data) {
  return -reinterpret_cast<uintptr_t>(data) % kCacheLine;
}

// One loop; strides are bytes.
struct Axis {
  int64_t size;
  int64_t dst;
  int64_t src;
};

// Units of contiguous bytes, and the loops over them, outermost first. Not
// initialized: only the first `rank` axes are ever read.
struct Loops {
  size_t unit;
  int rank;
  std::array<Axis, kMaxRank> axes;
};

// How the copy passes the cache.
enum class Streaming { kNone, kContiguous, kScattered };

Streaming StreamingOf(const Loops& loops, bool transposes, size_t whole_bytes) {
  size_t bytes = loops.unit;
  bool scattered = transposes;
  for (int i = loops.rank - 1; i >= 0; --i) {
    scattered = scattered || loops.axes[i].dst != static_cast<int64_t>(bytes);
    bytes *= static_cast<size_t>(loops.axes[i].size);
  }
  if (!kCanStream || bytes < kStreamPart) return Streaming::kNone;
  bytes = std::max(bytes, whole_bytes);
  if (bytes < (scattered ? kStreamScatteredBytes : kStreamBytes)) {
    return Streaming::kNone;
  }
  return scattered ? Streaming::kScattered : Streaming::kContiguous;
}

// Joins neighbouring loops that are one walk through memory on both sides, and
// the innermost one with the unit.
void Merge(Loops& loops) {
  int merged = 0;
  for (int i = 0; i < loops.rank; ++i) {
    const Axis inner = loops.axes[i];
    if (merged > 0) {
      Axis& outer = loops.axes[merged - 1];
      if (outer.dst == inner.dst * inner.size &&
          outer.src == inner.src * inner.size) {
        outer = {outer.size * inner.size, inner.dst, inner.src};
        continue;
      }
    }
    loops.axes[merged++] = inner;
  }
  loops.rank = merged;
  if (merged == 0) return;
  const int64_t bytes = static_cast<int64_t>(loops.unit);
  const Axis& innermost = loops.axes[merged - 1];
  if (innermost.dst == bytes && innermost.src == bytes) {
    loops.unit *= static_cast<size_t>(innermost.size);
    --loops.rank;
  }
}

// Fills `loops` with the equivalent loops of least number, sorted by falling
// destination stride. Returns false if there is nothing to copy.
bool Canonicalize(absl::Span<const int64_t> dst_strides,
                  absl::Span<const int64_t> src_strides,
                  absl::Span<const int64_t> sizes, size_t element_size,
                  Loops& loops) {
  const int64_t bytes = static_cast<int64_t>(element_size);
  const auto outside = [](const Axis& a, const Axis& b) {
    return std::abs(a.dst) != std::abs(b.dst)
               ? std::abs(a.dst) > std::abs(b.dst)
               : std::abs(a.src) > std::abs(b.src);
  };
  int rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] == 1) continue;
    const Axis axis = {sizes[d], dst_strides[d] * bytes,
                       src_strides[d] * bytes};
    int at = rank++;
    for (; at > 0 && outside(axis, loops.axes[at - 1]); --at) {
      loops.axes[at] = loops.axes[at - 1];
    }
    loops.axes[at] = axis;
  }
  loops.unit = element_size;
  loops.rank = rank;
  Merge(loops);
  return true;
}

// How one unit is moved. With a constant size memcpy becomes one or two moves.
template <size_t kBytes>
struct CopyExactly {
  void operator()(std::byte* dst, const std::byte* src) const {
    std::memcpy(dst, src, kBytes);
  }
};

// Between kBytes and 2 * kBytes: the two ends, which may share bytes.
template <size_t kBytes>
struct CopyEnds {
  size_t unit;
  void operator()(std::byte* dst, const std::byte* src) const {
    std::array<std::byte, kBytes> head;
    std::array<std::byte, kBytes> tail;
    std::memcpy(head.data(), src, kBytes);
    std::memcpy(tail.data(), src + (unit - kBytes), kBytes);
    std::memcpy(dst, head.data(), kBytes);
    std::memcpy(dst + (unit - kBytes), tail.data(), kBytes);
  }
};

struct CopyRun {
  size_t unit;
  void operator()(std::byte* dst, const std::byte* src) const {
    std::memcpy(dst, src, unit);
  }
};

struct StreamRun {
  size_t unit;
  void operator()(std::byte* dst, const std::byte* src) const {
    const size_t head = BytesToLine(dst);
    if (head > 0) std::memcpy(dst, src, head);
    const size_t lines = (unit - head) / kCacheLine;
    if (unit >= kStreamPagesRun) {
      StreamPages(dst + head, src + head, lines);
    } else {
      StreamLines(dst + head, src + head, lines);
    }
    const size_t done = head + lines * kCacheLine;
    if (done < unit) std::memcpy(dst + done, src + done, unit - done);
  }
};

// StreamRun, with the begin of the run after this one, `step` bytes further in
// the source, on its way to the cache.
struct StreamAndReadAhead {
  size_t unit;
  int64_t step;
  void operator()(std::byte* dst, const std::byte* src) const {
    const std::byte* const next = src + step;
    for (size_t i = 0; i < std::min(unit, kReadAhead); i += kCacheLine) {
      __builtin_prefetch(next + i);
    }
    StreamRun{unit}(dst, src);
  }
};

// Calls `body` with the fastest functor for units of that many bytes.
template <typename Body>
void WithUnitCopy(size_t unit, Body&& body) {
  switch (unit) {
    case 1:
      return body(CopyExactly<1>());
    case 2:
      return body(CopyExactly<2>());
    case 4:
      return body(CopyExactly<4>());
    case 8:
      return body(CopyExactly<8>());
    case 16:
      return body(CopyExactly<16>());
    case 32:
      return body(CopyExactly<32>());
    case 64:
      return body(CopyExactly<64>());
    default:
      break;
  }
  if (unit > 64) return body(CopyRun{unit});
  if (unit > 32) return body(CopyEnds<32>{unit});
  if (unit > 16) return body(CopyEnds<16>{unit});
  if (unit > 8) return body(CopyEnds<8>{unit});
  if (unit > 4) return body(CopyEnds<4>{unit});
  return body(CopyEnds<2>{unit});
}

// Calls `body(dst, src)` for every combination of the first `rank` loops.
template <typename Body>
void ForEach(const Axis* axes, int rank, std::byte* dst, const std::byte* src,
             Body&& body) {
  std::array<int64_t, kMaxRank> index;
  std::fill_n(index.begin(), rank, 0);
  while (true) {
    body(dst, src);
    int d = rank - 1;
    for (; d >= 0; --d) {
      dst += axes[d].dst;
      src += axes[d].src;
      if (++index[d] < axes[d].size) break;
      dst -= axes[d].dst * axes[d].size;
      src -= axes[d].src * axes[d].size;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

void CopyRows(const Loops& loops, Streaming streaming, std::byte* dst,
              const std::byte* src) {
  const Axis inner = loops.axes[loops.rank - 1];
  const auto copy_all = [&](auto copy) {
    ForEach(loops.axes.data(), loops.rank - 1, dst, src,
            [&](std::byte* d, const std::byte* s) {
              for (int64_t i = 0; i < inner.size; ++i) {
                copy(d + i * inner.dst, s + i * inner.src);
              }
            });
  };
  const size_t unit = loops.unit;
  const bool has_gaps = inner.src != static_cast<int64_t>(unit);
  if (streaming == Streaming::kNone ||
      unit < (streaming == Streaming::kScattered ? kStreamScatteredRun
                                                 : kStreamRun)) {
    WithUnitCopy(unit, copy_all);
  } else if (has_gaps) {
    copy_all(StreamAndReadAhead{unit, inner.src});
  } else {
    copy_all(StreamRun{unit});
  }
}

// A plane of two loops whose innermost sides differ: the destination is
// walked along `row`, the source along `column`.
struct Plane {
  Axis row;
  Axis column;
};

// Any strides and units, in blocks that touch few cache lines at a time.
template <typename Copy>
void TransposeBlocks(const Plane& plane, std::byte* dst, const std::byte* src,
                     Copy copy) {
  constexpr int64_t kBlock = 16;
  const Axis& row = plane.row;
  const Axis& column = plane.column;
  for (int64_t c0 = 0; c0 < column.size; c0 += kBlock) {
    const int64_t c1 = std::min(c0 + kBlock, column.size);
    for (int64_t r0 = 0; r0 < row.size; r0 += kBlock) {
      const int64_t r1 = std::min(r0 + kBlock, row.size);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) {
          copy(dst + c * column.dst + r * row.dst,
               src + c * column.src + r * row.src);
        }
      }
    }
  }
}

// Transposition of a square that fills vector registers of 16 bytes: each of
// the log2(N) rounds interleaves the lanes of vector i with those of vector
// i + N / 2, which rotates the index bits of (vector, lane) by one.
template <typename Lane>
struct RegisterSquare {
  static constexpr int kLanes = 16 / sizeof(Lane);
  typedef Lane Vector __attribute__((vector_size(16)));

  template <int kFirst, int... kIndex>
  static Vector Interleave(Vector a, Vector b,
                           std::integer_sequence<int, kIndex...>) {
    return __builtin_shufflevector(
        a, b, (kFirst + kIndex / 2 + (kIndex % 2) * kLanes)...);
  }

  static void Transpose(std::byte* dst, int64_t dst_stride,
                        const std::byte* src, int64_t src_stride) {
    constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
    Vector a[kLanes];
    Vector b[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(&a[i], src + i * src_stride, 16);
    }
    for (int round = 1; round < kLanes; round *= 2) {
      for (int i = 0; i < kLanes / 2; ++i) {
        b[2 * i] = Interleave<0>(a[i], a[i + kLanes / 2], kAll);
        b[2 * i + 1] = Interleave<kLanes / 2>(a[i], a[i + kLanes / 2], kAll);
      }
      for (int i = 0; i < kLanes; ++i) a[i] = b[i];
    }
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(dst + i * dst_stride, &a[i], 16);
    }
  }
};

struct Lane16 {
  std::array<std::byte, 16> bytes;
};
template <>
struct RegisterSquare<Lane16> {
  static constexpr int kLanes = 1;
  static void Transpose(std::byte* dst, int64_t, const std::byte* src,
                        int64_t) {
    std::memcpy(dst, src, 16);
  }
};

// Part of a plane.
Plane Crop(Plane plane, int64_t rows, int64_t columns) {
  plane.row.size = rows;
  plane.column.size = columns;
  return plane;
}

// Units of 1 to 16 bytes, contiguous in both directions. Squares of one cache
// line per row on both sides; the rest in blocks.
template <typename Lane>
void TransposeTiles(const Plane& plane, std::byte* dst, const std::byte* src) {
  using Square = RegisterSquare<Lane>;
  constexpr int64_t kTile = kCacheLine / sizeof(Lane);
  constexpr int64_t kBytes = sizeof(Lane);
  const Axis& row = plane.row;
  const Axis& column = plane.column;
  const int64_t rows = row.size / kTile * kTile;
  const int64_t columns = column.size / kTile * kTile;
  for (int64_t c = 0; c < columns; c += kTile) {
    for (int64_t r = 0; r < rows; r += kTile) {
      std::byte* const d = dst + c * column.dst + r * kBytes;
      const std::byte* const s = src + c * kBytes + r * row.src;
      for (int64_t i = 0; i < kTile; i += Square::kLanes) {
        for (int64_t j = 0; j < kTile; j += Square::kLanes) {
          Square::Transpose(d + i * column.dst + j * kBytes, column.dst,
                            s + i * kBytes + j * row.src, row.src);
        }
      }
    }
  }
  const CopyExactly<sizeof(Lane)> copy;
  TransposeBlocks(Crop(plane, row.size - rows, columns), dst + rows * kBytes,
                  src + rows * row.src, copy);
  TransposeBlocks(Crop(plane, row.size, column.size - columns),
                  dst + columns * column.dst, src + columns * kBytes, copy);
}

// The same past the cache: each square is transposed into a buffer first, of
// which two whole lines go to each row of the destination.
template <typename Lane>
void TransposeStreaming(const Plane& plane, std::byte* dst,
                        const std::byte* src) {
  using Square = RegisterSquare<Lane>;
  constexpr int64_t kTile = kCacheLine / sizeof(Lane);
  constexpr int64_t kBytes = sizeof(Lane);
  constexpr int64_t kLines = 2;
  constexpr int64_t kStep = kLines * kTile;
  constexpr int64_t kPitch = kLines * kCacheLine;
  const Axis& row = plane.row;
  const Axis& column = plane.column;
  const int64_t first = static_cast<int64_t>(BytesToLine(dst)) / kBytes;
  const int64_t line = static_cast<int64_t>(kCacheLine);
  if (column.dst % line != 0 || BytesToLine(dst) % kBytes != 0 ||
      row.size < first + kStep) {
    return TransposeTiles<Lane>(plane, dst, src);
  }
  const int64_t last = first + (row.size - first) / kStep * kStep;
  const int64_t columns = column.size / kTile * kTile;
  alignas(kCacheLine) std::array<std::byte, kTile * kPitch> buffer;
  for (int64_t r = first; r < last; r += kStep) {
    for (int64_t c = 0; c < columns; c += kTile) {
      const std::byte* const s = src + c * kBytes + r * row.src;
      for (int64_t j = 0; j < kStep; j += Square::kLanes) {
        for (int64_t i = 0; i < kTile; i += Square::kLanes) {
          Square::Transpose(buffer.data() + i * kPitch + j * kBytes, kPitch,
                            s + i * kBytes + j * row.src, row.src);
        }
      }
      std::byte* const d = dst + c * column.dst + r * kBytes;
      for (int64_t i = 0; i < kTile; ++i) {
        StreamLines(d + i * column.dst, buffer.data() + i * kPitch, kLines);
      }
    }
  }
  TransposeTiles<Lane>(Crop(plane, first, columns), dst, src);
  TransposeTiles<Lane>(Crop(plane, row.size - last, columns),
                       dst + last * kBytes, src + last * row.src);
  TransposeTiles<Lane>(Crop(plane, row.size, column.size - columns),
                       dst + columns * column.dst, src + columns * kBytes);
}

template <typename Lane>
void TransposeLanes(const Plane& plane, bool stream, std::byte* dst,
                    const std::byte* src) {
  if (stream) return TransposeStreaming<Lane>(plane, dst, src);
  TransposeTiles<Lane>(plane, dst, src);
}

void TransposePlane(const Plane& plane, size_t unit, bool stream,
                    std::byte* dst, const std::byte* src) {
  const int64_t bytes = static_cast<int64_t>(unit);
  if (plane.row.dst == bytes && plane.column.src == bytes) {
    switch (unit) {
      case 1:
        return TransposeLanes<uint8_t>(plane, stream, dst, src);
      case 2:
        return TransposeLanes<uint16_t>(plane, stream, dst, src);
      case 4:
        return TransposeLanes<uint32_t>(plane, stream, dst, src);
      case 8:
        return TransposeLanes<uint64_t>(plane, stream, dst, src);
      case 16:
        return TransposeLanes<Lane16>(plane, stream, dst, src);
      default:
        break;
    }
  }
  WithUnitCopy(unit,
               [&](auto copy) { TransposeBlocks(plane, dst, src, copy); });
}

// The loop along which the source is densest, if that is not the innermost one
// and units are small enough for it to matter; otherwise -1.
int FindColumn(const Loops& loops) {
  if (loops.unit >= kCacheLine || loops.rank < 2) return -1;
  int column = loops.rank - 1;
  for (int i = loops.rank - 2; i >= 0; --i) {
    if (std::abs(loops.axes[i].src) < std::abs(loops.axes[column].src)) {
      column = i;
    }
  }
  if (column == loops.rank - 1 || loops.axes[column].src == 0) return -1;
  return column;
}

}  // namespace

void StridedCopy(void* dst, absl::Span<const int64_t> dst_strides,
                 const void* src, absl::Span<const int64_t> src_strides,
                 absl::Span<const int64_t> sizes, size_t element_size,
                 size_t whole_bytes) {
  SHERD_CHECK(sizes.size() <= kMaxRank && dst_strides.size() == sizes.size() &&
              src_strides.size() == sizes.size());
  Loops loops;
  if (!Canonicalize(dst_strides, src_strides, sizes, element_size, loops)) {
    return;
  }
  std::byte* const to = static_cast<std::byte*>(dst);
  const std::byte* const from = static_cast<const std::byte*>(src);
  const int column = FindColumn(loops);
  const Streaming streaming =
      StreamingOf(loops, /*transposes=*/column >= 0, whole_bytes);
  const bool stream = streaming != Streaming::kNone;
  if (loops.rank == 0 && stream) {
    StreamRun{loops.unit}(to, from);
  } else if (loops.rank == 0) {
    WithUnitCopy(loops.unit, [&](auto copy) { copy(to, from); });
  } else if (column < 0) {
    CopyRows(loops, streaming, to, from);
  } else {
    const Plane plane = {loops.axes[loops.rank - 1], loops.axes[column]};
    std::copy(loops.axes.begin() + column + 1,
              loops.axes.begin() + loops.rank - 1, loops.axes.begin() + column);
    ForEach(loops.axes.data(), loops.rank - 2, to, from,
            [&](std::byte* d, const std::byte* s) {
              TransposePlane(plane, loops.unit, stream, d, s);
            });
  }
  if (stream) FinishStreaming();
}

bool IsContiguousRun(absl::Span<const int64_t> sizes,
                     absl::Span<const int64_t> strides) {
  return IsContiguous(sizes, strides);
}

}  // namespace sherd
