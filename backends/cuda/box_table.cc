#include "sherd/backends/cuda/box_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "sherd/backends/cuda/box_math.h"

namespace sherd::internal {
namespace {

BoxDim MakeDim(const PlanDim& dim) {
  BoxDim result;
  result.size = MakeDivisor(static_cast<uint32_t>(dim.size));
  result.dst_stride = dim.dst_stride;
  result.src_stride = dim.src_stride;
  return result;
}

// Whether all dimensions together, counted in steps of `step(d)`, are below
// kIndexLimit, and each of them is.
template <typename Step>
bool Fits(const PlanBox& box, const Step& step) {
  uint64_t total = 1;
  for (int d = 0; d < box.num_dims; ++d) {
    const uint64_t size = static_cast<uint64_t>(box.dims[d].size);
    if (size >= kIndexLimit) return false;
    total *= (size + step(d) - 1) / step(d);
    if (total >= kIndexLimit) return false;
  }
  return true;
}

// Two halves of a box. The first `num_tiled` dimensions are cut at multiples of
// 4096 only.
void Halve(const PlanBox& box, int num_tiled, PlanBox halves[2]) {
  constexpr int64_t kMultiple = 4096;
  int largest = -1;
  for (int d = 0; d < box.num_dims; ++d) {
    if (d < num_tiled && box.dims[d].size < 2 * kMultiple) continue;
    if (largest < 0 || box.dims[d].size > box.dims[largest].size) largest = d;
  }
  halves[0] = box;
  halves[1] = box;
  const PlanDim& dim = box.dims[largest];
  int64_t half = dim.size / 2;
  if (half > kMultiple) half -= half % kMultiple;
  halves[0].dims[largest].size = half;
  halves[1].dims[largest].size = dim.size - half;
  halves[1].dst += static_cast<uint64_t>(half * dim.dst_stride);
  halves[1].src += static_cast<uint64_t>(half * dim.src_stride);
}

// A tile is about square if both sides of the box are long, otherwise no longer
// on the short side than necessary.
void ShapeTile(CopyKind kind, const PlanBox& plan, CopyBox& box) {
  const int log_cells = static_cast<int>(LogTileCells(kind));
  const int64_t side = CellSide(kind);
  const auto log_of = [](int64_t cells) {
    return static_cast<int>(std::bit_width(static_cast<uint64_t>(cells - 1)));
  };
  const int64_t cells_0 = (plan.dims[0].size + side - 1) / side;
  const int64_t cells_1 = (plan.dims[1].size + side - 1) / side;
  // A warp's worth along dimension 0, the side that is written.
  int log_0 = 5;
  int log_1 = log_cells - log_0;
  if (log_of(cells_0) < log_0) {
    log_0 = std::max(3, log_of(cells_0));
    log_1 = log_cells - log_0;
  } else if (log_of(cells_1) < log_1) {
    log_1 = std::max(3, log_of(cells_1));
    log_0 = log_cells - log_1;
  }
  box.log_cells_0 = static_cast<uint16_t>(log_0);
  box.log_cells_1 = static_cast<uint16_t>(log_1);
}

bool SameDims(const BoxDim* a, const BoxDim* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(BoxDim)) == 0;
}

}  // namespace

void PlanBox::Prepend(const PlanDim& dim) {
  for (int d = num_dims; d > 0; --d) dims[d] = dims[d - 1];
  dims[0] = dim;
  ++num_dims;
}

void PlanBox::Canonicalise(bool sort) {
  int kept = 0;
  for (int d = 0; d < num_dims; ++d) {
    PlanDim dim = dims[d];
    if (dim.size == 1) continue;
    if (sort && dim.dst_stride < 0) {
      dst += static_cast<uint64_t>((dim.size - 1) * dim.dst_stride);
      src += static_cast<uint64_t>((dim.size - 1) * dim.src_stride);
      dim.dst_stride = -dim.dst_stride;
      dim.src_stride = -dim.src_stride;
    }
    int at = kept++;
    for (; sort && at > 0 && dims[at - 1].dst_stride > dim.dst_stride; --at) {
      dims[at] = dims[at - 1];
    }
    dims[at] = dim;
  }
  num_dims = kept;
  if (num_dims == 0) return;
  int last = 0;
  for (int d = 1; d < num_dims; ++d) {
    PlanDim& inner = dims[last];
    if (dims[d].dst_stride == inner.dst_stride * inner.size &&
        dims[d].src_stride == inner.src_stride * inner.size) {
      inner.size *= dims[d].size;
    } else {
      dims[++last] = dims[d];
    }
  }
  num_dims = last + 1;
}

const char* ReadBox(const int64_t* sizes, const int64_t* dst_strides,
                    const int64_t* src_strides, int32_t rank, int64_t dst_scale,
                    int64_t src_scale, PlanBox& box, bool* is_empty) {
  *is_empty = false;
  if (rank < 0 || rank > kMaxTensorRank) {
    return "a rank that is not between 0 and 64";
  }
  if (rank > 0 && (sizes == nullptr || dst_strides == nullptr)) {
    return "sizes or strides that are null";
  }
  for (int32_t d = 0; d < rank; ++d) {
    if (sizes[d] < 0) return "a size below 0";
    if (sizes[d] == 0) *is_empty = true;
  }
  if (*is_empty) return nullptr;
  int64_t total = std::max<int64_t>(1, std::max(dst_scale, src_scale));
  // The farthest element from the first, on each side.
  int64_t reach[2] = {total, total};
  for (int32_t d = rank - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    PlanDim dim = {sizes[d], dst_strides[d],
                   src_strides == nullptr ? 0 : src_strides[d]};
    int64_t* const strides[2] = {&dim.dst_stride, &dim.src_stride};
    const int64_t scales[2] = {dst_scale, src_scale};
    bool overflows = __builtin_mul_overflow(total, dim.size, &total);
    for (int side = 0; side < 2; ++side) {
      int64_t& stride = *strides[side];
      int64_t span = 0;
      overflows = overflows || stride == INT64_MIN ||
                  __builtin_mul_overflow(stride, scales[side], &stride) ||
                  __builtin_mul_overflow(stride < 0 ? -stride : stride,
                                         dim.size, &span) ||
                  __builtin_add_overflow(reach[side], span, &reach[side]);
    }
    if (overflows) return "a box that is larger than memory";
    box.Append(dim);
  }
  return nullptr;
}

Divisor MakeDivisor(uint32_t divisor) {
  Divisor result;
  result.divisor = divisor;
  if (divisor <= 1) return result;
  result.shift = static_cast<uint32_t>(std::bit_width(divisor - 1)) - 1;
  const uint64_t power = uint64_t{1} << (32 + result.shift);
  result.multiplier = static_cast<uint32_t>((power + divisor - 1) / divisor);
  return result;
}

void BoxTable::AddRows(CopyKind kind, const PlanBox& box) {
  if (!Fits(box, [](int) { return uint64_t{1}; })) {
    PlanBox halves[2];
    Halve(box, 0, halves);
    AddRows(kind, halves[0]);
    AddRows(kind, halves[1]);
    return;
  }
  CopyBox result;
  result.dst = box.dst;
  result.src = box.src;
  result.kind = kind;
  result.units = 1;
  BoxDim dims[kMaxPlanDims];
  for (int d = 0; d < box.num_dims; ++d) {
    dims[d] = MakeDim(box.dims[d]);
    result.units *= dims[d].size.divisor;
  }
  Add(result, dims,
      static_cast<uint32_t>(box.num_dims == 0 ? 1 : box.num_dims));
}

void BoxTable::AddTiles(CopyKind kind, const PlanBox& box) {
  CopyBox result;
  const int64_t side = CellSide(kind);
  ShapeTile(kind, box, result);
  const int64_t steps[2] = {side << result.log_cells_0,
                            side << result.log_cells_1};
  if (!Fits(box, [&](int d) {
        return d < 2 ? static_cast<uint64_t>(steps[d]) : uint64_t{1};
      })) {
    PlanBox halves[2];
    Halve(box, 2, halves);
    AddTiles(kind, halves[0]);
    AddTiles(kind, halves[1]);
    return;
  }
  result.dst = box.dst;
  result.src = box.src;
  result.kind = kind;
  result.units = 1;
  BoxDim dims[kMaxPlanDims + 2];
  int num_dims = 4;
  for (int d = 0; d < 2; ++d) {
    const PlanDim& dim = box.dims[d];
    const int64_t step = steps[d];
    dims[d] = MakeDim(dim);
    dims[2 + d] = MakeDim({(dim.size + step - 1) / step, dim.dst_stride * step,
                           dim.src_stride * step});
  }
  for (int d = 2; d < box.num_dims; ++d) {
    dims[num_dims++] = MakeDim(box.dims[d]);
  }
  for (int d = 2; d < num_dims; ++d) result.units *= dims[d].size.divisor;
  Add(result, dims, static_cast<uint32_t>(num_dims));
}

void BoxTable::AddRandomRows(const PlanBox& box, int64_t parts_per_block) {
  // Where a row begins within a block: alike for all, or anywhere.
  bool is_alike = true;
  for (int d = 1; d < box.num_dims; ++d) {
    is_alike = is_alike && box.dims[d].src_stride % parts_per_block == 0;
  }
  const int64_t lead = is_alike
                           ? static_cast<int64_t>(box.src % parts_per_block)
                           : parts_per_block - 1;
  PlanBox counts = box;
  counts.dims[0].size =
      (lead + box.dims[0].size + parts_per_block - 1) / parts_per_block;
  if (static_cast<uint64_t>(box.dims[0].size) >= kIndexLimit ||
      !Fits(counts, [](int) { return uint64_t{1}; })) {
    PlanBox halves[2];
    Halve(box, 0, halves);
    AddRandomRows(halves[0], parts_per_block);
    AddRandomRows(halves[1], parts_per_block);
    return;
  }
  CopyBox result;
  result.dst = box.dst;
  result.src = box.src;
  result.kind = kRandomRows;
  BoxDim dims[kMaxPlanDims + 1];
  dims[0] = MakeDim(box.dims[0]);
  dims[1] = MakeDim({counts.dims[0].size, 0, 0});
  result.units = dims[1].size.divisor;
  for (int d = 1; d < box.num_dims; ++d) {
    dims[d + 1] = MakeDim(box.dims[d]);
    result.units *= dims[d + 1].size.divisor;
  }
  Add(result, dims, static_cast<uint32_t>(box.num_dims + 1));
}

void BoxTable::Add(CopyBox box, const BoxDim* dims, uint32_t num_dims) {
  box.num_dims = num_dims;
  // Boxes of one operation mostly differ in their positions only.
  if (!boxes_.empty() && boxes_.back().num_dims == num_dims &&
      SameDims(&dims_[boxes_.back().first_dim], dims, num_dims)) {
    box.first_dim = boxes_.back().first_dim;
  } else {
    box.first_dim = static_cast<uint32_t>(dims_.size());
    dims_.insert(dims_.end(), dims, dims + num_dims);
  }
  boxes_.push_back(box);
}

size_t BoxTable::BytesOf(size_t first, size_t last) const {
  const size_t num_dims = boxes_[last - 1].first_dim +
                          boxes_[last - 1].num_dims - boxes_[first].first_dim;
  return (last - first) * sizeof(CopyBox) + num_dims * sizeof(BoxDim);
}

uint32_t BoxTable::Write(size_t first, size_t last, unsigned char* to) const {
  const uint32_t first_dim = boxes_[first].first_dim;
  const uint32_t num_dims =
      boxes_[last - 1].first_dim + boxes_[last - 1].num_dims - first_dim;
  for (size_t i = first; i < last; ++i) {
    CopyBox box = boxes_[i];
    box.first_dim -= first_dim;
    std::memcpy(to, &box, sizeof(box));
    to += sizeof(box);
  }
  std::memcpy(to, dims_.data() + first_dim, num_dims * sizeof(BoxDim));
  return num_dims;
}

}  // namespace sherd::internal
