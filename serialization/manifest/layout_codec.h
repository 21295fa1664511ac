#ifndef SHERD_SERIALIZATION_MANIFEST_LAYOUT_CODEC_H_
#define SHERD_SERIALIZATION_MANIFEST_LAYOUT_CODEC_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/memory_budget.h"
#include "sherd/serialization/manifest/number_reader.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Layouts as lists of numbers; see FORMAT.md.

void AppendLayout(const SavedLayout& layout, std::vector<uint64_t>& numbers);
// A layout of a tensor of these sizes, which has passed Validate.
absl::StatusOr<SavedLayout> TakeLayout(Dims sizes, NumberReader& numbers,
                                       MemoryBudget& memory);

// Takes the layouts of tensors, one after another. Most tensors of a model have
// the sizes and numbers of one beside them: such a layout is a copy.
class LayoutReader {
 public:
  // Both are borrowed.
  LayoutReader(NumberReader& numbers, MemoryBudget& memory)
      : numbers_(numbers), memory_(memory) {}

  // As TakeLayout. A copy takes as much memory of the budget.
  absl::StatusOr<SavedLayout> Take(const Dims& sizes);

 private:
  NumberReader& numbers_;
  MemoryBudget& memory_;
  // The last layout and its numbers.
  SavedLayout last_;
  absl::Span<const uint64_t> last_numbers_;
};

// Takes from `memory` what TakeLayout takes for such a layout.
absl::Status TakeLayoutMemory(const SavedLayout& layout, MemoryBudget& memory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_LAYOUT_CODEC_H_
