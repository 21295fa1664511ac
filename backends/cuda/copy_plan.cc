#include "sherd/backends/cuda/copy_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "sherd/backends/cuda/box_launches.h"
#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/box_table.h"
#include "sherd/backends/cuda/kernel_params.h"

namespace sherd::internal {
namespace {

// The minimum part of a tile that a box must fill for it to be faster than
// strided rows: elements on each side, and a part of its cells.
constexpr int64_t kMinTileSide = 8;
constexpr int64_t kMinTilePart = 4;

// The largest power of two up to 16 that divides all of them, seen as bits.
uint32_t CommonUnit(uint64_t bits) {
  return 1u << std::min(4, std::countr_zero(bits | 16));
}

uint64_t Magnitude(int64_t stride) {
  return static_cast<uint64_t>(stride < 0 ? -stride : stride);
}

CopyKind RowsOf(uint32_t unit) {
  return static_cast<CopyKind>(kRows16 + 4 - std::countr_zero(unit));
}

CopyKind TileOf(uint32_t unit) {
  return static_cast<CopyKind>(kTile16 + 4 - std::countr_zero(unit));
}

bool FillsTile(CopyKind kind, int64_t size_0, int64_t size_1) {
  const int64_t side = CellSide(kind);
  const int64_t cells = int64_t{1} << LogTileCells(kind);
  return std::min(cells, size_0 / side) * std::min(cells, size_1 / side) *
             kMinTilePart >=
         cells;
}

// Moves the source's innermost dimension to dims[1] if the box, of elements of
// `unit` bytes, is to be moved in tiles.
bool IsTransposition(uint32_t unit, PlanBox& box) {
  const int64_t step = unit;
  if (box.num_dims < 2 || box.dims[0].dst_stride != step ||
      box.dims[0].size < kMinTileSide) {
    return false;
  }
  for (int d = 1; d < box.num_dims; ++d) {
    if (box.dims[d].src_stride != step) continue;
    if (box.dims[d].size < kMinTileSide ||
        !FillsTile(TileOf(unit), box.dims[0].size, box.dims[d].size)) {
      return false;
    }
    const PlanDim inner = box.dims[d];
    for (int i = d; i > 1; --i) box.dims[i] = box.dims[i - 1];
    box.dims[1] = inner;
    return true;
  }
  return false;
}

// Elements of 1 and 2 bytes move by words of 4 if these are aligned.
CopyKind WidenTile(uint32_t unit, const PlanBox& box) {
  const CopyKind narrow = TileOf(unit);
  if (unit > 2) return narrow;
  const int64_t side = 4 / unit;
  uint64_t bits = box.dst | box.src;
  for (int d = 0; d < box.num_dims; ++d) {
    if (d != 0) bits |= Magnitude(box.dims[d].dst_stride);
    if (d != 1) bits |= Magnitude(box.dims[d].src_stride);
  }
  if (bits % 4 != 0 || box.dims[0].size % side != 0 ||
      box.dims[1].size % side != 0) {
    return narrow;
  }
  const CopyKind wide = unit == 2 ? kTile2By4 : kTile1By4;
  return FillsTile(wide, box.dims[0].size, box.dims[1].size) ? wide : narrow;
}

// `box` counts bytes.
void AddBytes(PlanBox& box, BoxTable& table) {
  uint64_t run = 1;
  if (box.num_dims > 0 && box.dims[0].dst_stride == 1 &&
      box.dims[0].src_stride == 1) {
    run = static_cast<uint64_t>(box.dims[0].size);
    for (int d = 1; d < box.num_dims; ++d) box.dims[d - 1] = box.dims[d];
    --box.num_dims;
  }
  uint64_t bits = run | box.dst | box.src;
  for (int d = 0; d < box.num_dims; ++d) {
    bits |= Magnitude(box.dims[d].dst_stride);
    bits |= Magnitude(box.dims[d].src_stride);
  }
  const uint32_t unit = CommonUnit(bits);
  if (run == unit && IsTransposition(unit, box)) {
    table.AddTiles(WidenTile(unit, box), box);
    return;
  }
  if (run != unit) {
    box.Prepend({static_cast<int64_t>(run / unit), unit, unit});
  }
  table.AddRows(RowsOf(unit), box);
}

}  // namespace

const char* PlanCopies(const sherd_strided_copy_v0* copies, size_t num_copies,
                       LaunchPlan& plan) {
  plan.Clear();
  BoxTable& table = plan.boxes();
  bool is_single_run = false;
  for (size_t i = 0; i < num_copies; ++i) {
    const sherd_strided_copy_v0& copy = copies[i];
    PlanBox box;
    bool is_empty = false;
    const char* const wrong =
        copy.element_size == 0 ? "elements of 0 bytes"
        : copy.rank > 0 && copy.src_strides == nullptr
            ? "sizes or strides that are null"
            : ReadBox(copy.sizes, copy.dst_strides, copy.src_strides, copy.rank,
                      copy.element_size, copy.element_size, box, &is_empty);
    if (wrong != nullptr) {
      plan.Clear();
      return wrong;
    }
    if (is_empty) continue;
    box.dst = reinterpret_cast<uint64_t>(copy.dst);
    box.src = reinterpret_cast<uint64_t>(copy.src);
    box.Prepend({copy.element_size, 1, 1});
    box.Canonicalise(/*sort=*/true);
    const bool is_run = box.num_dims == 0 ||
                        (box.num_dims == 1 && box.dims[0].dst_stride == 1 &&
                         box.dims[0].src_stride == 1);
    is_single_run = is_run && table.boxes().empty();
    if (is_single_run) {
      plan.copy_dst = box.dst;
      plan.copy_src = box.src;
      plan.copy_bytes =
          box.num_dims == 0 ? 1 : static_cast<uint64_t>(box.dims[0].size);
    }
    AddBytes(box, table);
  }
  if (is_single_run) return nullptr;
  plan.copy_bytes = 0;
  static constexpr BoxKernels kRows = {"sherd_copy_rows_small",
                                       "sherd_copy_rows_large", true};
  static constexpr BoxKernels kTiles = {"sherd_copy_tiles_small",
                                        "sherd_copy_tiles_large", true};
  static constexpr BoxKernels kMixed = {nullptr, "sherd_copy_mixed_large",
                                        true};
  bool has_rows = false;
  bool has_tiles = false;
  for (const CopyBox& box : table.boxes()) {
    (IsTile(box.kind) ? has_tiles : has_rows) = true;
  }
  static constexpr unsigned char kHeader[offsetof(LargeCopyParams, table)] = {};
  AddBoxLaunches(has_rows && has_tiles ? kMixed
                 : has_tiles           ? kTiles
                                       : kRows,
                 kHeader, sizeof(kHeader), plan);
  return nullptr;
}

}  // namespace sherd::internal
