#ifndef SHERD_CORE_TENSOR_KERNELS_STRIDED_COPY_H_
#define SHERD_CORE_TENSOR_KERNELS_STRIDED_COPY_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sherd {

// Copies an n-dimensional box of elements between two layouts.
//
// Layout. Sizes and strides are elements, one per dimension. For every index x
// with 0 <= x[d] < sizes[d]
//
//     dst[sum of x[d] * dst_strides[d]] = src[sum of x[d] * src_strides[d]]
//
// in units of `element_size` bytes, any number > 0. Strides may be negative;
// those of `src` may be zero. At most kMaxRank dimensions. With a size of 0
// nothing is touched, and the pointers may be null.
//
// Buffers. The elements read and those written must not overlap, and no two
// indices may write the same element. No alignment is needed.
//
// Threads. Safe for disjoint destinations.
//
// Cost. No allocation. Dimensions of size 1 are dropped, the others sorted by
// destination stride and merged where both sides allow; the rest runs as memcpy
// of the longest common runs, or, when the two sides disagree on the innermost
// dimension, as transposition in tiles of one cache line each way. Large copies
// bypass the cache: from 32 MiB on, or 4 MiB for transpositions and if the
// destination is not one contiguous run. If a larger copy is made in parts,
// pass the bytes of all parts as `whole_bytes`.
void StridedCopy(void* dst, absl::Span<const int64_t> dst_strides,
                 const void* src, absl::Span<const int64_t> src_strides,
                 absl::Span<const int64_t> sizes, size_t element_size,
                 size_t whole_bytes = 0);

// Whether the elements of the box are one run of memory in row-major order, so
// that it can be sent or received in place instead of being packed. A box
// without elements is one.
bool IsContiguousRun(absl::Span<const int64_t> sizes,
                     absl::Span<const int64_t> strides);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_STRIDED_COPY_H_
