#ifndef SHERD_CORE_TENSOR_TYPES_MEMORY_OVERLAP_H_
#define SHERD_CORE_TENSOR_TYPES_MEMORY_OVERLAP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

// Decides whether the operands and results of an operation share memory, for
// tensors, shards and the buffers of collectives.
namespace sherd::internal {

enum class Access { kRead, kWrite };

// The elements of a box, at data + element_size * (sum of x[d] * strides[d])
// for all x with 0 <= x[d] < sizes[d], as an operation reads or writes them.
// Borrows sizes and strides. Without data, or without elements, it touches
// nothing.
struct MemoryAccess {
  Access access = Access::kRead;
  const void* data = nullptr;
  size_t element_size = 0;
  absl::Span<const int64_t> sizes = {};
  // In elements; any.
  absl::Span<const int64_t> strides = {};
};

// The bytes from the first to the last element; none if both are equal.
struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool Meets(const ByteRange& other) const {
    return begin < other.end && other.begin < end;
  }
};

inline MemoryAccess AccessToBytes(const void* data, size_t bytes,
                                  Access access) {
  return {.access = access, .data = data, .element_size = bytes};
}

// Of a Tensor, which outlives the result.
template <typename Tensor>
MemoryAccess AccessToTensor(const Tensor& tensor, Access access) {
  return {.access = access,
          .data = tensor.data(),
          .element_size = tensor.element_size(),
          .sizes = tensor.sizes(),
          .strides = tensor.strides()};
}

// Whether two boxes have the same sizes and the same element at each index.
bool IsSameMemory(const MemoryAccess& a, const MemoryAccess& b);

// Whether a byte of an element of `a` is one of an element of `b` too. Exact
// where of any two strides of both, in bytes, one divides the other, as it is
// with views of one tensor. Elsewhere may return true for disjoint boxes, if
// the exact answer takes more than some 10 us; never returns false for boxes
// that share a byte.
//
// Cost. A comparison of addresses, unless the ranges from first to last byte
// overlap; then O(dimensions) where the strides divide one another.
bool MayShareMemory(const MemoryAccess& a, const MemoryAccess& b);

// Two accesses of which one is a write and that may share memory, the one with
// the lower index first; or twice the same index, if elements that are written
// may coincide (IsNonOverlapping). Reads may share memory.
//
// Cost. O(n log n), O(n) where the addresses ascend, and MayShareMemory for the
// pairs whose ranges from first to last byte overlap. No allocation for up to
// 16 accesses.
std::optional<std::pair<size_t, size_t>> FindConflict(
    absl::Span<const MemoryAccess> accesses);

// The same for accesses that come one by one: those whose ranges meet no others
// are looked at when they are added, and not again, when they may not be in the
// cache any more. Borrows sizes and strides until the last Find.
class ConflictFinder {
 public:
  void reserve(size_t accesses);
  // The indices of accesses are those of calls.
  void Add(const MemoryAccess& access);
  // Of all that were added.
  std::optional<std::pair<size_t, size_t>> Find();

 private:
  struct Entry {
    ByteRange range;
    size_t index = 0;
    Access access = Access::kRead;
  };
  class Sweep;

  absl::InlinedVector<MemoryAccess, 16> accesses_;
  // Of those with bytes.
  absl::InlinedVector<Entry, 16> entries_;
  // The first that conflicts with itself.
  std::optional<size_t> alone_;
  bool is_sorted_ = true;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_TYPES_MEMORY_OVERLAP_H_
