#ifndef SHERD_CORE_TENSOR_KERNELS_STRIDED_LOOP_H_
#define SHERD_CORE_TENSOR_KERNELS_STRIDED_LOOP_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace internal {

// One of several tensors of the same sizes that are walked together.
struct LoopOperand {
  const std::byte* data;
  absl::Span<const int64_t> strides;  // In elements.
  size_t element_size;
};

// Walks the elements in row-major order, in runs as long as the strides of all
// operands allow: calls
//
//     body(addresses, steps, count)
//
// where the k-th element of operand i is at addresses[i] + k * steps[i] bytes,
// until it returns false. Returns whether it always returned true.
//
// Cost. No allocation; the body is inlined and called once per run.
template <size_t kOperands, typename Body>
bool ForEachRun(absl::Span<const int64_t> sizes,
                const std::array<LoopOperand, kOperands>& operands,
                Body&& body) {
  using Steps = std::array<int64_t, kOperands>;
  std::array<int64_t, kMaxRank> size;
  std::array<Steps, kMaxRank> step;
  int rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] == 1) continue;
    Steps steps;
    bool merges = rank > 0;
    for (size_t i = 0; i < kOperands; ++i) {
      steps[i] = operands[i].strides[d] *
                 static_cast<int64_t>(operands[i].element_size);
      merges = merges && step[rank - 1][i] == steps[i] * sizes[d];
    }
    if (merges) {
      size[rank - 1] *= sizes[d];
      step[rank - 1] = steps;
    } else {
      size[rank] = sizes[d];
      step[rank++] = steps;
    }
  }
  if (rank == 0) {
    size[0] = 1;
    for (size_t i = 0; i < kOperands; ++i) {
      step[0][i] = static_cast<int64_t>(operands[i].element_size);
    }
    rank = 1;
  }
  std::array<const std::byte*, kOperands> at;
  for (size_t i = 0; i < kOperands; ++i) at[i] = operands[i].data;
  std::array<int64_t, kMaxRank> index;
  std::fill_n(index.begin(), rank, 0);
  while (true) {
    if (!body(at, step[rank - 1], size[rank - 1])) return false;
    int d = rank - 2;
    for (; d >= 0; --d) {
      for (size_t i = 0; i < kOperands; ++i) at[i] += step[d][i];
      if (++index[d] < size[d]) break;
      for (size_t i = 0; i < kOperands; ++i) at[i] -= step[d][i] * size[d];
      index[d] = 0;
    }
    if (d < 0) return true;
  }
}

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_STRIDED_LOOP_H_
