#include <cstdint>

#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/element_math.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/pool_math.h"

// The kernels listed in kernel_params.h. box_math.h, element_math.h and
// pool_math.h compute; the code here finds a block's box and accesses memory.

namespace sherd::internal {
namespace {

template <typename Unit>
struct Native {
  using Type = Unit;
};
template <>
struct Native<Unit16> {
  using Type = uint4;
};
template <>
struct Native<uint64_t> {
  using Type = unsigned long long;
};

template <typename Unit>
__device__ __forceinline__ Unit LoadAs(uint64_t address, bool is_read_only) {
  using Type = typename Native<Unit>::Type;
  const Type* const from = reinterpret_cast<const Type*>(address);
  const Type value = is_read_only ? __ldg(from) : __ldcs(from);
  return __builtin_bit_cast(Unit, value);
}

template <typename Unit>
__device__ __forceinline__ void StoreAs(uint64_t address, const Unit& unit) {
  using Type = typename Native<Unit>::Type;
  __stcs(reinterpret_cast<Type*>(address), __builtin_bit_cast(Type, unit));
}

// All data is read once and written once, and bypasses the caches. Several
// warps may read small units of one line, so these stay in the first-level
// cache.
struct StreamedMemory {
  template <typename Unit>
  __device__ __forceinline__ Unit Load(uint64_t address) {
    return LoadAs<Unit>(address, /*is_read_only=*/sizeof(Unit) < 16);
  }
  template <typename Unit>
  __device__ __forceinline__ void Store(uint64_t address, const Unit& unit) {
    StoreAs<Unit>(address, unit);
  }
};

// The same where the kernel may read what it writes.
struct SharedMemory {
  template <typename Unit>
  __device__ __forceinline__ Unit Load(uint64_t address) {
    return LoadAs<Unit>(address, /*is_read_only=*/false);
  }
  template <typename Unit>
  __device__ __forceinline__ void Store(uint64_t address, const Unit& unit) {
    StoreAs<Unit>(address, unit);
  }
};

// What is read is not written meanwhile, and often read again: several bags
// have a row, and all threads of a bag its list.
struct TableMemory {
  template <typename Unit>
  __device__ __forceinline__ Unit Load(uint64_t address) {
    return LoadAs<Unit>(address, /*is_read_only=*/true);
  }
  template <typename Unit>
  __device__ __forceinline__ void Store(uint64_t address, const Unit& unit) {
    StoreAs<Unit>(address, unit);
  }
};

struct RowsBody {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;

  template <typename Unit, uint32_t kUnits>
  __device__ __forceinline__ void Run() const {
    StreamedMemory memory;
    CopyRows<Unit, kUnits>(box, dims, block, threadIdx.x, memory);
  }
};

struct FillBody {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;

  template <typename Unit, uint32_t kUnits>
  __device__ __forceinline__ void Run() const {
    StreamedMemory memory;
    FillRows<Unit, kUnits>(box, dims, block, threadIdx.x, memory);
  }
};

struct TileBody {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;
  unsigned char* shared;

  template <typename Word, uint32_t kSide, uint32_t kLogCells>
  __device__ __forceinline__ void Run() const {
    Word* const words = reinterpret_cast<Word*>(shared);
    StreamedMemory memory;
    LoadTile<Word, kSide, kLogCells>(box, dims, block, threadIdx.x, words,
                                     memory);
    __syncthreads();
    StoreTile<Word, kSide, kLogCells>(box, dims, block, threadIdx.x, words,
                                      memory);
  }
};

__device__ __forceinline__ const unsigned char* TableOf(
    const SmallCopyParams& params) {
  return params.table;
}
__device__ __forceinline__ const unsigned char* TableOf(
    const LargeCopyParams& params) {
  return params.table_address == 0
             ? params.table
             : reinterpret_cast<const unsigned char*>(params.table_address);
}

// A table consists of boxes and then dimensions.
__device__ __forceinline__ const BoxDim* DimsOf(const unsigned char* table,
                                                uint32_t num_boxes) {
  return reinterpret_cast<const BoxDim*>(table + num_boxes * sizeof(CopyBox));
}

template <bool kRows, bool kTiles>
__device__ __forceinline__ void CopyBlock(const unsigned char* table,
                                          uint32_t num_boxes) {
  const CopyBox* const boxes = reinterpret_cast<const CopyBox*>(table);
  const CopyBox& box = boxes[FindBox(boxes, num_boxes, blockIdx.x)];
  const BoxDim* const dims = DimsOf(table, num_boxes) + box.first_dim;
  const uint32_t block = blockIdx.x - box.first_block;
  if constexpr (kTiles) {
    __shared__ alignas(16) unsigned char shared[kTileBytes];
    if (!kRows || IsTile(box.kind)) {
      DispatchTiles(box.kind, TileBody{box, dims, block, shared});
      return;
    }
  }
  if constexpr (kRows) DispatchRows(box.kind, RowsBody{box, dims, block});
}

template <typename Params>
__device__ __forceinline__ void FillBlock(const Params& params) {
  const CopyBox* const boxes = reinterpret_cast<const CopyBox*>(params.table);
  const CopyBox& box = boxes[FindBox(boxes, params.num_boxes, blockIdx.x)];
  const BoxDim* const dims =
      DimsOf(params.table, params.num_boxes) + box.first_dim;
  DispatchRows(box.kind, FillBody{box, dims, blockIdx.x - box.first_block});
}

struct RandomBody {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;
  RandomStream stream;
  int32_t distribution;
  double a;
  double b;

  template <typename T>
  __device__ __forceinline__ void Run() const {
    StreamedMemory memory;
    if (distribution == 0) {
      RandomRows<T>(stream, UniformDraw<T>(a, b), box, dims, block, threadIdx.x,
                    memory);
    } else {
      RandomRows<T>(stream, NormalDraw<T>(a, b), box, dims, block, threadIdx.x,
                    memory);
    }
  }
};

__device__ __forceinline__ void RandomBlocks(const RandomParams& params) {
  const CopyBox* const boxes = reinterpret_cast<const CopyBox*>(params.table);
  const CopyBox& box = boxes[FindBox(boxes, params.num_boxes, blockIdx.x)];
  const BoxDim* const dims =
      DimsOf(params.table, params.num_boxes) + box.first_dim;
  DispatchReal(params.dtype, RandomBody{box,
                                        dims,
                                        blockIdx.x - box.first_block,
                                        {params.seed, params.position},
                                        params.distribution,
                                        params.a,
                                        params.b});
}

template <typename T>
__device__ __forceinline__ void ReduceBlock(const ReduceParams& params) {
  const uint64_t* const inputs =
      params.inputs_table != 0
          ? reinterpret_cast<const uint64_t*>(params.inputs_table)
          : params.inputs;
  SharedMemory memory;
  ReduceThread<T>(params, inputs, uint64_t{blockIdx.x} * kThreads + threadIdx.x,
                  uint64_t{gridDim.x} * kThreads, memory);
}

template <typename In, typename Out>
__device__ __forceinline__ void PoolBlock(const PoolParams& params) {
  TableMemory memory;
  PoolThread<In, Out>(params, blockIdx.x * kThreads + threadIdx.x, memory);
}

}  // namespace
}  // namespace sherd::internal

#define SHERD_KERNEL extern "C" __global__ void __launch_bounds__(256)
#define SHERD_COPY_KERNEL(name, rows, tiles, Params)                          \
  SHERD_KERNEL sherd_copy_##name(                                             \
      const __grid_constant__ sherd::internal::Params params) {               \
    sherd::internal::CopyBlock<rows, tiles>(sherd::internal::TableOf(params), \
                                            params.num_boxes);                \
  }
SHERD_COPY_KERNEL(rows_small, true, false, SmallCopyParams)
SHERD_COPY_KERNEL(rows_large, true, false, LargeCopyParams)
SHERD_COPY_KERNEL(tiles_small, false, true, SmallCopyParams)
SHERD_COPY_KERNEL(tiles_large, false, true, LargeCopyParams)
SHERD_COPY_KERNEL(mixed_large, true, true, LargeCopyParams)

SHERD_KERNEL sherd_fill_small(
    const __grid_constant__ sherd::internal::SmallCopyParams params) {
  sherd::internal::FillBlock(params);
}
SHERD_KERNEL sherd_fill_large(
    const __grid_constant__ sherd::internal::LargeCopyParams params) {
  sherd::internal::FillBlock(params);
}

SHERD_KERNEL sherd_random(
    const __grid_constant__ sherd::internal::RandomParams params) {
  sherd::internal::RandomBlocks(params);
}

#define SHERD_REDUCE_KERNEL(name, type)                               \
  SHERD_KERNEL sherd_reduce_##name(                                   \
      const __grid_constant__ sherd::internal::ReduceParams params) { \
    sherd::internal::ReduceBlock<type>(params);                       \
  }
SHERD_REDUCE_KERNEL(bool, sherd::internal::BoolByte)
SHERD_REDUCE_KERNEL(uint8, uint8_t)
SHERD_REDUCE_KERNEL(int8, int8_t)
SHERD_REDUCE_KERNEL(uint16, uint16_t)
SHERD_REDUCE_KERNEL(int16, int16_t)
SHERD_REDUCE_KERNEL(uint32, uint32_t)
SHERD_REDUCE_KERNEL(int32, int32_t)
SHERD_REDUCE_KERNEL(uint64, uint64_t)
SHERD_REDUCE_KERNEL(int64, int64_t)
SHERD_REDUCE_KERNEL(float8_e4m3fn, sherd::Float8E4M3)
SHERD_REDUCE_KERNEL(float8_e5m2, sherd::Float8E5M2)
SHERD_REDUCE_KERNEL(float16, sherd::Float16)
SHERD_REDUCE_KERNEL(bfloat16, sherd::BFloat16)
SHERD_REDUCE_KERNEL(float32, float)
SHERD_REDUCE_KERNEL(float64, double)
SHERD_REDUCE_KERNEL(complex64, sherd::internal::ComplexPair<float>)
SHERD_REDUCE_KERNEL(complex128, sherd::internal::ComplexPair<double>)

#define SHERD_POOL_KERNEL(name, In, Out)                            \
  SHERD_KERNEL sherd_pool_##name(                                   \
      const __grid_constant__ sherd::internal::PoolParams params) { \
    sherd::internal::PoolBlock<In, Out>(params);                    \
  }
SHERD_POOL_KERNEL(float64_float64, double, double)
SHERD_POOL_KERNEL(float32_float32, float, float)
SHERD_POOL_KERNEL(float16_float16, sherd::Float16, sherd::Float16)
SHERD_POOL_KERNEL(bfloat16_bfloat16, sherd::BFloat16, sherd::BFloat16)
SHERD_POOL_KERNEL(float16_float32, sherd::Float16, float)
SHERD_POOL_KERNEL(bfloat16_float32, sherd::BFloat16, float)
SHERD_POOL_KERNEL(float32_float16, float, sherd::Float16)
SHERD_POOL_KERNEL(float32_bfloat16, float, sherd::BFloat16)
