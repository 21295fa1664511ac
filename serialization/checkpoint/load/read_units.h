#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_READ_UNITS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_READ_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"

namespace sherd {

// The reads of a rank, cut so that several threads share them. Pure functions.

// What one thread reads before it takes the next unit.
struct ReadUnit {
  // Of the list of reads: [first, last).
  size_t first = 0;
  size_t last = 0;
  // If the unit is a part of one read: its box, in the global tensor.
  std::optional<Box> part;

  friend bool operator==(const ReadUnit&, const ReadUnit&) = default;
};

// The box of a read, in the global tensor; empty where nothing is read.
struct BoxToRead {
  Box box;
  int64_t element_size = 1;

  int64_t bytes() const { return Volume(box) * element_size; }
};

// Divides reads into units that follow one another in their order, and in
// row-major order within a read: of at most `unit_bytes`, or of one element.
std::vector<ReadUnit> DivideReads(absl::Span<const BoxToRead> reads,
                                  int64_t unit_bytes);

// Calls `visit` with boxes of at most `max_elements` > 0 elements that together
// are `box`, and follow one another in its row-major order.
void CutBox(const Box& box, int64_t max_elements,
            absl::FunctionRef<void(const Box&)> visit);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_READ_UNITS_H_
