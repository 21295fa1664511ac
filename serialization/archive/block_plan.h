#ifndef SHERD_SERIALIZATION_ARCHIVE_BLOCK_PLAN_H_
#define SHERD_SERIALIZATION_ARCHIVE_BLOCK_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// Where the elements of tensors go in an archive.
struct BlockPlan {
  struct Place {
    // -1: no elements, or on meta.
    int64_t block = -1;
    // In bytes.
    int64_t offset = 0;
    // In the block, in elements.
    Dims strides;
  };

  // The contents of each, in row-major order. Large ones (kLargeBlockBytes)
  // come first, otherwise they are in the order of the tensors.
  std::vector<Tensor> blocks;
  // Of each tensor.
  std::vector<Place> places;
};

// Tensors that share elements share a block; each other one has its own, and so
// has each of those at the indices `apart`, ascending, row-major.
absl::StatusOr<BlockPlan> PlanBlocks(absl::Span<const Tensor> tensors,
                                     absl::Span<const size_t> apart = {});

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_BLOCK_PLAN_H_
