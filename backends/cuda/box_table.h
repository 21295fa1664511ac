#ifndef SHERD_BACKENDS_CUDA_BOX_TABLE_H_
#define SHERD_BACKENDS_CUDA_BOX_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sherd/backends/cuda/kernel_params.h"

namespace sherd::internal {

// A dimension of a box while it is planned; strides are bytes.
struct PlanDim {
  int64_t size;
  int64_t dst_stride;
  int64_t src_stride;
};

// Ranks of tensors, and the dimensions that planning adds.
inline constexpr int kMaxTensorRank = 64;
inline constexpr int kMaxPlanDims = kMaxTensorRank + 2;

// A box while it is planned. Dimensions are ordered innermost first.
struct PlanBox {
  uint64_t dst = 0;
  uint64_t src = 0;
  int num_dims = 0;
  PlanDim dims[kMaxPlanDims];

  void Append(const PlanDim& dim) { dims[num_dims++] = dim; }
  void Prepend(const PlanDim& dim);
  // Drops dimensions of size 1. If `sort`, makes destination strides positive
  // and orders by them; then merges neighbours where both sides allow.
  void Canonicalise(bool sort);
};

// Reads sizes and strides in units of `scale` bytes into `box`, innermost last
// as in tensors. Returns null, or a description of the error; *is_empty is set
// if there are no elements. A null src_strides gives strides of 0.
const char* ReadBox(const int64_t* sizes, const int64_t* dst_strides,
                    const int64_t* src_strides, int32_t rank, int64_t dst_scale,
                    int64_t src_scale, PlanBox& box, bool* is_empty);

Divisor MakeDivisor(uint32_t divisor);

// Boxes and their dimensions as kernels read them.
class BoxTable {
 public:
  void Clear() {
    boxes_.clear();
    dims_.clear();
  }

  // Adds a box, cut into parts if an index cannot count its units. `box` counts
  // units (rows) or elements (tiles: dims[0] and dims[1] are the innermost ones
  // of dst and src). The code that launches sets first_block.
  void AddRows(CopyKind kind, const PlanBox& box);
  void AddTiles(CopyKind kind, const PlanBox& box);
  // Adds parts of random numbers (see RandomParams), rows along dims[0].
  void AddRandomRows(const PlanBox& box, int64_t parts_per_block);
  // Adds a box as it is, with `dims` after it.
  void Add(CopyBox box, const BoxDim* dims, uint32_t num_dims);

  std::vector<CopyBox>& boxes() { return boxes_; }
  const std::vector<BoxDim>& dims() const { return dims_; }

  // The bytes of boxes [first, last) and their dimensions.
  size_t BytesOf(size_t first, size_t last) const;
  // Writes them to `to`, which has BytesOf(first, last) bytes, and returns the
  // number of dimensions.
  uint32_t Write(size_t first, size_t last, unsigned char* to) const;

 private:
  std::vector<CopyBox> boxes_;
  std::vector<BoxDim> dims_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_BOX_TABLE_H_
