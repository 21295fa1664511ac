#ifndef SHERD_BACKENDS_CUDA_BOX_MATH_H_
#define SHERD_BACKENDS_CUDA_BOX_MATH_H_

#include <cstdint>

#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/core/tensor/device/host_device.h"

// The work of one thread of the copying kernels, for GPUs and for the host.
// Memory is accessed through a template parameter:
//
//   Unit memory.Load<Unit>(uint64_t address)
//   void memory.Store<Unit>(uint64_t address, const Unit& value)
namespace sherd::internal {

struct alignas(16) Unit16 {
  uint64_t words[2];
};

SHERD_HD uint32_t MultiplyHigh(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __umulhi(a, b);
#else
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
#endif
}

// n / divisor.divisor, for n below 2^31.
SHERD_HD uint32_t Divide(uint32_t n, const Divisor& divisor) {
  const uint32_t quotient =
      MultiplyHigh(n, divisor.multiplier) >> divisor.shift;
  return divisor.divisor == 1 ? n : quotient;
}

constexpr uint32_t UnitBytes(uint32_t kind) {
  constexpr uint32_t kBytes[] = {16, 8, 4, 2, 1, 16, 8, 4, 2, 1, 2, 1};
  return kBytes[kind];
}

// Units that a thread moves: enough loads in flight to hide the latency of
// memory.
constexpr uint32_t UnitsPerThread(uint32_t kind) {
  return kind == kRandomRows ? 2 : kind == kRows16 ? 4 : 8;
}

// Of a tile of `kind`: log2 of its number of cells, and the elements of a cell
// along each side.
constexpr uint32_t LogTileCells(uint32_t kind) {
  return kind == kTile4 || kind == kTile2 || kind == kTile1 ? 11 : 10;
}
constexpr uint32_t CellSide(uint32_t kind) {
  return kind == kTile2By4 ? 2 : kind == kTile1By4 ? 4 : 1;
}
// The most shared memory that a tile needs.
inline constexpr uint32_t kTileBytes = 16384;

SHERD_HD uint32_t BlocksOfBox(uint32_t kind, uint32_t units) {
  if (IsTile(kind)) return units;
  const uint32_t per_block = kThreads * UnitsPerThread(kind);
  return (units + per_block - 1) / per_block;
}

// The box of a block: the last that begins at or before it.
SHERD_HD uint32_t FindBox(const CopyBox* boxes, uint32_t num_boxes,
                          uint32_t block) {
  uint32_t low = 0;
  uint32_t high = num_boxes;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (boxes[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct Offsets {
  int64_t dst;
  int64_t src;
};

// The offsets of index `index` in the box dims[0, num_dims), dims[0] fastest.
// num_dims is at least 1.
SHERD_HD Offsets Locate(uint32_t index, const BoxDim* dims, uint32_t num_dims) {
  Offsets offsets = {0, 0};
  SHERD_NO_UNROLL
  for (uint32_t d = 0; d + 1 < num_dims; ++d) {
    const uint32_t quotient = Divide(index, dims[d].size);
    const int64_t rest = index - quotient * dims[d].size.divisor;
    offsets.dst += rest * dims[d].dst_stride;
    offsets.src += rest * dims[d].src_stride;
    index = quotient;
  }
  offsets.dst += int64_t{index} * dims[num_dims - 1].dst_stride;
  offsets.src += int64_t{index} * dims[num_dims - 1].src_stride;
  return offsets;
}

// A thread's part of block `block` of a box of rows. All loads are issued
// before the first store.
template <typename Unit, uint32_t kUnits, typename Memory>
SHERD_HD void CopyRows(const CopyBox& box, const BoxDim* dims, uint32_t block,
                       uint32_t thread, Memory& memory) {
  const uint32_t first = block * (kThreads * kUnits) + thread;
  Unit units[kUnits];
  uint64_t dst[kUnits];
  SHERD_UNROLL
  for (uint32_t u = 0; u < kUnits; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index < box.units) {
      const Offsets offsets = Locate(index, dims, box.num_dims);
      units[u] = memory.template Load<Unit>(box.src + offsets.src);
      dst[u] = box.dst + offsets.dst;
    }
  }
  SHERD_UNROLL
  for (uint32_t u = 0; u < kUnits; ++u) {
    if (first + u * kThreads < box.units) {
      memory.template Store<Unit>(dst[u], units[u]);
    }
  }
}

// The value that a fill writes `offset` bytes after the beginning of a run.
template <typename Unit>
SHERD_HD Unit FillUnit(const CopyBox& box, uint32_t offset) {
  return static_cast<Unit>(box.value[(offset >> 3) & 1] >> (8 * (offset & 7)));
}
template <>
SHERD_HD Unit16 FillUnit<Unit16>(const CopyBox& box, uint32_t /*offset*/) {
  return {{box.value[0], box.value[1]}};
}

template <typename Unit, uint32_t kUnits, typename Memory>
SHERD_HD void FillRows(const CopyBox& box, const BoxDim* dims, uint32_t block,
                       uint32_t thread, Memory& memory) {
  const uint32_t first = block * (kThreads * kUnits) + thread;
  const Divisor run = dims[0].size;
  SHERD_UNROLL
  for (uint32_t u = 0; u < kUnits; ++u) {
    const uint32_t index = first + u * kThreads;
    if (index < box.units) {
      const uint32_t in_run = index - Divide(index, run) * run.divisor;
      memory.template Store<Unit>(
          box.dst + Locate(index, dims, box.num_dims).dst,
          FillUnit<Unit>(box, in_run * sizeof(Unit)));
    }
  }
}

// Calls body.template operator()<Unit, kUnits>() for a kind of rows.
template <typename Body>
SHERD_HD void DispatchRows(uint32_t kind, const Body& body) {
  switch (kind) {
    case kRows16:
      return body.template Run<Unit16, UnitsPerThread(kRows16)>();
    case kRows8:
      return body.template Run<uint64_t, UnitsPerThread(kRows8)>();
    case kRows4:
      return body.template Run<uint32_t, UnitsPerThread(kRows4)>();
    case kRows2:
      return body.template Run<uint16_t, UnitsPerThread(kRows2)>();
    default:
      return body.template Run<uint8_t, UnitsPerThread(kRows1)>();
  }
}

// A tile: its position, and how much of it is in the box, in elements.
struct Tile {
  uint64_t dst;
  uint64_t src;
  uint32_t size_0;
  uint32_t size_1;
};

SHERD_HD Tile FindTile(const CopyBox& box, const BoxDim* dims, uint32_t tile,
                       uint32_t cell_side) {
  const uint32_t rest = Divide(tile, dims[2].size);
  const uint32_t tile_0 = tile - rest * dims[2].size.divisor;
  uint32_t outer = Divide(rest, dims[3].size);
  const uint32_t tile_1 = rest - outer * dims[3].size.divisor;
  Offsets offsets = {0, 0};
  if (box.num_dims > 4) {
    offsets = Locate(outer, dims + 4, box.num_dims - 4);
  }
  offsets.dst += int64_t{tile_0} * dims[2].dst_stride +
                 int64_t{tile_1} * dims[3].dst_stride;
  offsets.src += int64_t{tile_0} * dims[2].src_stride +
                 int64_t{tile_1} * dims[3].src_stride;
  const uint32_t side_0 = cell_side << box.log_cells_0;
  const uint32_t side_1 = cell_side << box.log_cells_1;
  const uint32_t left_0 = dims[0].size.divisor - tile_0 * side_0;
  const uint32_t left_1 = dims[1].size.divisor - tile_1 * side_1;
  return {box.dst + offsets.dst, box.src + offsets.src,
          left_0 < side_0 ? left_0 : side_0, left_1 < side_1 ? left_1 : side_1};
}

// Where a tile keeps the word of row `row` (of cells along dimension 1) and
// column c0. Rows are as long as the tile has cells along dimension 0. Words of
// a row are permuted, so that threads that differ in c0, and those that differ
// in c1 as they load, access different banks.
SHERD_HD uint32_t TileSlot(const CopyBox& box, uint32_t row, uint32_t c0,
                           uint32_t c1) {
  const uint32_t log_0 = box.log_cells_0;
  const uint32_t log_1 = box.log_cells_1;
  const uint32_t left = log_1 < 5 ? 5 - log_1 : 0;
  const uint32_t right = log_0 < 5 ? 5 - log_0 : 0;
  const uint32_t mask = (1u << (log_0 < 5 ? log_0 : 5)) - 1;
  return (row << log_0) + (c0 ^ (((c1 << left) >> right) & mask));
}

// words[r] holds the elements (r, 0), (r, 1), … of a cell; afterwards (0, r),
// (1, r), ….
template <uint32_t kSide, typename Word>
SHERD_HD void TransposeCell(Word (&words)[kSide]) {
  if constexpr (kSide == 2) {
    const uint32_t a = words[0];
    const uint32_t b = words[1];
    words[0] = (a & 0xffff) | (b << 16);
    words[1] = (a >> 16) | (b & 0xffff0000);
  } else if constexpr (kSide == 4) {
    const uint32_t even_0 =
        (words[0] & 0x00ff00ff) | ((words[1] & 0x00ff00ff) << 8);
    const uint32_t odd_0 =
        ((words[0] >> 8) & 0x00ff00ff) | (words[1] & 0xff00ff00);
    const uint32_t even_2 =
        (words[2] & 0x00ff00ff) | ((words[3] & 0x00ff00ff) << 8);
    const uint32_t odd_2 =
        ((words[2] >> 8) & 0x00ff00ff) | (words[3] & 0xff00ff00);
    words[0] = (even_0 & 0xffff) | (even_2 << 16);
    words[1] = (odd_0 & 0xffff) | (odd_2 << 16);
    words[2] = (even_0 >> 16) | (even_2 & 0xffff0000);
    words[3] = (odd_0 >> 16) | (odd_2 & 0xffff0000);
  }
}

// A thread's part of a tile, in two halves, between which all threads of the
// block synchronize. `shared` has (kSide << kLogCells) words.
template <typename Word, uint32_t kSide, uint32_t kLogCells, typename Memory>
SHERD_HD void LoadTile(const CopyBox& box, const BoxDim* dims,
                       uint32_t tile_index, uint32_t thread, Word* shared,
                       Memory& memory) {
  constexpr uint32_t kCells = (1u << kLogCells) / kThreads;
  constexpr uint32_t kElement = sizeof(Word) / kSide;
  const Tile tile = FindTile(box, dims, tile_index, kSide);
  const int64_t stride = dims[0].src_stride;
  const uint32_t mask_1 = (1u << box.log_cells_1) - 1;
  Word words[kCells][kSide];
  SHERD_UNROLL
  for (uint32_t k = 0; k < kCells; ++k) {
    const uint32_t cell = thread + k * kThreads;
    const uint32_t x0 = (cell >> box.log_cells_1) * kSide;
    const uint32_t x1 = (cell & mask_1) * kSide;
    if (x0 < tile.size_0 && x1 < tile.size_1) {
      SHERD_UNROLL
      for (uint32_t r = 0; r < kSide; ++r) {
        words[k][r] = memory.template Load<Word>(
            tile.src + int64_t{x0 + r} * stride + x1 * kElement);
      }
    }
  }
  SHERD_UNROLL
  for (uint32_t k = 0; k < kCells; ++k) {
    const uint32_t cell = thread + k * kThreads;
    const uint32_t c0 = cell >> box.log_cells_1;
    const uint32_t c1 = cell & mask_1;
    if (c0 * kSide < tile.size_0 && c1 * kSide < tile.size_1) {
      TransposeCell<kSide>(words[k]);
      SHERD_UNROLL
      for (uint32_t r = 0; r < kSide; ++r) {
        shared[TileSlot(box, (r << box.log_cells_1) + c1, c0, c1)] =
            words[k][r];
      }
    }
  }
}

template <typename Word, uint32_t kSide, uint32_t kLogCells, typename Memory>
SHERD_HD void StoreTile(const CopyBox& box, const BoxDim* dims,
                        uint32_t tile_index, uint32_t thread,
                        const Word* shared, Memory& memory) {
  constexpr uint32_t kWords = (kSide << kLogCells) / kThreads;
  constexpr uint32_t kElement = sizeof(Word) / kSide;
  const Tile tile = FindTile(box, dims, tile_index, kSide);
  const int64_t stride = dims[1].dst_stride;
  const uint32_t mask_0 = (1u << box.log_cells_0) - 1;
  const uint32_t mask_1 = (1u << box.log_cells_1) - 1;
  SHERD_UNROLL
  for (uint32_t k = 0; k < kWords; ++k) {
    const uint32_t word = thread + k * kThreads;
    const uint32_t c0 = word & mask_0;
    const uint32_t row = word >> box.log_cells_0;
    const uint32_t c1 = row & mask_1;
    const uint32_t x0 = c0 * kSide;
    const uint32_t x1 = c1 * kSide + (row >> box.log_cells_1);
    if (x0 < tile.size_0 && x1 < tile.size_1) {
      memory.template Store<Word>(
          tile.dst + int64_t{x1} * stride + x0 * kElement,
          shared[TileSlot(box, row, c0, c1)]);
    }
  }
}

// Calls body.Run<Word, kSide, kLogCells>() for a kind of tiles.
template <typename Body>
SHERD_HD void DispatchTiles(uint32_t kind, const Body& body) {
  switch (kind) {
    case kTile16:
      return body.template Run<Unit16, 1, LogTileCells(kTile16)>();
    case kTile8:
      return body.template Run<uint64_t, 1, LogTileCells(kTile8)>();
    case kTile4:
      return body.template Run<uint32_t, 1, LogTileCells(kTile4)>();
    case kTile2:
      return body.template Run<uint16_t, 1, LogTileCells(kTile2)>();
    case kTile1:
      return body.template Run<uint8_t, 1, LogTileCells(kTile1)>();
    case kTile2By4:
      return body.template Run<uint32_t, 2, LogTileCells(kTile2By4)>();
    default:
      return body.template Run<uint32_t, 4, LogTileCells(kTile1By4)>();
  }
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_BOX_MATH_H_
