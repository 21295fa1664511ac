#ifndef SHERD_BACKENDS_CUDA_KERNEL_PARAMS_H_
#define SHERD_BACKENDS_CUDA_KERNEL_PARAMS_H_

#include <cstddef>
#include <cstdint>

namespace sherd::internal {

// The interface between the code that launches kernels and the kernels
// (kernels.cu), or the code that runs them without a GPU
// (testing/emulated_gpu).
//
// Every kernel takes one parameter, a struct of this file by value, and is
// launched with blocks of kThreads threads in one dimension, a grid in one
// dimension and no dynamic shared memory. The comment on its struct gives the
// number of blocks. Planners (copy_plan.h, element_plan.h, pool_plan.h) fill in
// structs and choose names. Addresses are uint64_t; structs are plain bytes,
// and the same in device and host code.
//
// Kernels. S is the size of the parameter: "small" or "large". Rare kernels
// have only the latter.
//   sherd_copy_rows_S    CopyParams<S>  boxes of kind kRows16 to kRows1
//   sherd_copy_tiles_S   CopyParams<S>  boxes of kind kTile…
//   sherd_copy_mixed_large  LargeCopyParams  boxes of any kind
//   sherd_fill_S         CopyParams<S>  see CopyBox
//   sherd_random         RandomParams
//   sherd_reduce_DTYPE   ReduceParams   DTYPE as in core/tensor/dtype.h
//   sherd_pool_IN_OUT    PoolParams     IN and OUT likewise
inline constexpr uint32_t kThreads = 256;

// The names of all kernels.
inline constexpr const char* kKernelNames[] = {
    "sherd_copy_rows_small",
    "sherd_copy_rows_large",
    "sherd_copy_tiles_small",
    "sherd_copy_tiles_large",
    "sherd_copy_mixed_large",
    "sherd_fill_small",
    "sherd_fill_large",
    "sherd_random",
    "sherd_reduce_bool",
    "sherd_reduce_uint8",
    "sherd_reduce_int8",
    "sherd_reduce_uint16",
    "sherd_reduce_int16",
    "sherd_reduce_uint32",
    "sherd_reduce_int32",
    "sherd_reduce_uint64",
    "sherd_reduce_int64",
    "sherd_reduce_float8_e4m3fn",
    "sherd_reduce_float8_e5m2",
    "sherd_reduce_float16",
    "sherd_reduce_bfloat16",
    "sherd_reduce_float32",
    "sherd_reduce_float64",
    "sherd_reduce_complex64",
    "sherd_reduce_complex128",
    "sherd_pool_float64_float64",
    "sherd_pool_float32_float32",
    "sherd_pool_float16_float16",
    "sherd_pool_bfloat16_bfloat16",
    "sherd_pool_float16_float32",
    "sherd_pool_bfloat16_float32",
    "sherd_pool_float32_float16",
    "sherd_pool_float32_bfloat16",
};

// The blocks of one launch and the indices within a box are below this limit.
inline constexpr uint64_t kIndexLimit = uint64_t{1} << 31;

// Divides numbers below 2^31 by `divisor`, 1 to 2^31 - 1, without a division:
// q = (n * multiplier) >> (32 + shift), or n if divisor is 1.
//
// Source. Granlund and Montgomery, "Division by invariant integers using
// multiplication", PLDI 1994.
struct Divisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;
};

// One dimension of a box. Strides are bytes.
struct BoxDim {
  Divisor size;
  uint32_t reserved = 0;
  int64_t dst_stride = 0;
  int64_t src_stride = 0;
};

enum CopyKind : uint32_t {
  // Units of 16, 8, 4, 2 or 1 bytes that are aligned on both sides.
  kRows16 = 0,
  kRows8 = 1,
  kRows4 = 2,
  kRows2 = 3,
  kRows1 = 4,
  // Tiles of elements of 16, 8, 4, 2 or 1 bytes, whose innermost dimensions
  // differ.
  kTile16 = 5,
  kTile8 = 6,
  kTile4 = 7,
  kTile2 = 8,
  kTile1 = 9,
  // The same with elements of 2 and 1 bytes moved by aligned words of 4.
  kTile2By4 = 10,
  kTile1By4 = 11,
  // See RandomParams.
  kRandomRows = 12,
};
constexpr bool IsTile(uint32_t kind) {
  return kind >= kTile16 && kind <= kTile1By4;
}

// A box of a launch. Its dimensions are dims[first_dim, first_dim + num_dims).
//
// Rows. Unit i, 0 <= i < units, has the index x with x[0] fastest: its bytes
// are copied from src + sum of x[d] * src_stride to dst + sum of x[d] *
// dst_stride. Each thread moves UnitsPerThread(kind) units; block b of the box
// moves those from b * kThreads * kUnitsPerThread on.
//
// Tiles. dims[0] is innermost for dst, dims[1] for src; sizes count elements.
// dims[2] and dims[3] count the tiles along them, with the strides from tile to
// tile; further ones are as for rows. There are `units` tiles, one per block.
//
// Fills. Rows without src; the unit's value is box.value.
struct CopyBox {
  uint64_t dst = 0;
  uint64_t src = 0;
  // Blocks of the launch before this box.
  uint32_t first_block = 0;
  uint32_t units = 0;
  uint32_t first_dim = 0;
  uint32_t num_dims = 0;
  uint32_t kind = kRows1;
  // Tiles: log2 of the cells of a tile along dims[0] and dims[1].
  uint16_t log_cells_0 = 0;
  uint16_t log_cells_1 = 0;
  // Fills: the element, repeated.
  uint64_t value[2] = {0, 0};
};

// Bytes of a parameter for boxes, followed by the dimensions of all boxes.
inline constexpr uint32_t kSmallBytes = 960;
inline constexpr uint32_t kLargeBytes = 4032;

// grid: blocks of all boxes.
template <uint32_t kBytes>
struct CopyParams {
  uint32_t num_boxes;
  uint32_t num_dims;
  // 0, or the address of a table that replaces the one below (large copies
  // only). The device reads it there; it is aligned to 16, written earlier on
  // the stream and kept until the launch has run.
  uint64_t table_address;
  // CopyBox boxes[num_boxes]; BoxDim dims[num_dims].
  alignas(16) unsigned char table[kBytes];
};
using SmallCopyParams = CopyParams<kSmallBytes>;
using LargeCopyParams = CopyParams<kLargeBytes>;

// Random numbers: see core/tensor/random/random_math.h. A box is a set of rows
// of real parts. dims[0] counts the parts of a row, dims[1] the blocks of the
// generator that a row may take, and further ones the rows. dst_stride is
// bytes; src_stride counts parts, 1 along dims[0], and CopyBox::src is the
// number of the first part. A unit is a block of a row.
struct RandomParams {
  uint32_t num_boxes;
  uint32_t num_dims;
  // 0 uniform, 1 normal; as DType, of a real part.
  int32_t distribution;
  int32_t dtype;
  double a;
  double b;
  uint64_t seed;
  uint64_t position;
  alignas(16) unsigned char table[kLargeBytes];
};

// The number of inputs that fit into the parameter.
inline constexpr uint32_t kMaxInlineInputs = 32;

// out[i] = ins[0][i] op … op ins[num_ins - 1][i], as defined in
// core/comm/reduction.h. grid: any; blocks stride over the array.
struct ReduceParams {
  uint64_t out;
  uint64_t count;
  // The addresses of the inputs, in memory as for CopyParams; 0: see `inputs`.
  uint64_t inputs_table;
  int32_t reduction;
  int32_t divisor;
  uint32_t num_ins;
  // Whether all addresses are multiples of 16.
  uint32_t is_aligned;
  uint64_t inputs[kMaxInlineInputs];
};

// Pooled rows, as sherd_pool_rows_v0 of backends/device_abi.h defines them, of
// the bags [first_bag, first_bag + num_bags). A unit is as many columns as a
// thread computes; thread i of the grid has unit i % units of bag
// first_bag + i / units, so that neighbours read neighbours. grid: as many
// blocks as that takes.
struct PoolParams {
  uint64_t out;
  int64_t out_stride;
  uint64_t table;
  int64_t row_stride;
  // Of arrays in the device's memory; 0: there is none.
  uint64_t ends;
  uint64_t rows;
  uint64_t weights;
  uint64_t divisors;
  uint64_t first_bag;
  uint32_t num_bags;
  // SHERD_POOL_….
  int32_t mode;
  // Units of a row.
  Divisor units;
  // Whether units are vectors (PoolLanes) or single elements.
  uint32_t is_vector;
};

static_assert(sizeof(Divisor) == 12);
static_assert(sizeof(BoxDim) == 32);
static_assert(sizeof(CopyBox) == 56);
static_assert(sizeof(SmallCopyParams) == 976);
static_assert(sizeof(LargeCopyParams) == 4048);
static_assert(sizeof(RandomParams) <= 4096);
static_assert(sizeof(ReduceParams) == 296);
static_assert(sizeof(PoolParams) == 96);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_KERNEL_PARAMS_H_
