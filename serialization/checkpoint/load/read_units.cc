#include "sherd/serialization/checkpoint/load/read_units.h"

#include <algorithm>

namespace sherd {

void CutBox(const Box& box, int64_t max_elements,
            absl::FunctionRef<void(const Box&)> visit) {
  const int64_t elements = Volume(box);
  if (elements <= max_elements) return visit(box);
  size_t dim = 0;
  while (box.sizes[dim] == 1) ++dim;
  // As many rows as there is room for; of a longer one, parts.
  const int64_t row = elements / box.sizes[dim];
  const int64_t rows = std::max<int64_t>(max_elements / row, 1);
  Box slab = box;
  for (int64_t done = 0; done < box.sizes[dim]; done += rows) {
    slab.offsets[dim] = box.offsets[dim] + done;
    slab.sizes[dim] = std::min(rows, box.sizes[dim] - done);
    CutBox(slab, max_elements, visit);
  }
}

std::vector<ReadUnit> DivideReads(absl::Span<const BoxToRead> reads,
                                  int64_t unit_bytes) {
  std::vector<ReadUnit> units;
  // Whole reads that are collected for the next unit.
  ReadUnit next;
  int64_t collected = 0;
  const auto end_unit = [&] {
    if (next.first < next.last) units.push_back(next);
    collected = 0;
  };
  for (size_t i = 0; i < reads.size(); ++i) {
    const BoxToRead& read = reads[i];
    const int64_t bytes = read.bytes();
    if (collected + bytes > unit_bytes) {
      end_unit();
      next.first = i;
    }
    next.last = i + 1;
    collected += bytes;
    if (bytes <= unit_bytes) continue;
    CutBox(read.box, std::max<int64_t>(unit_bytes / read.element_size, 1),
           [&](const Box& part) {
             units.push_back({i, i + 1, part});
           });
    next.first = next.last;
    collected = 0;
  }
  end_unit();
  return units;
}

}  // namespace sherd
