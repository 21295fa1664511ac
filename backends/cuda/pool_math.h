#ifndef SHERD_BACKENDS_CUDA_POOL_MATH_H_
#define SHERD_BACKENDS_CUDA_POOL_MATH_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/element_math.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/core/tensor/device/host_device.h"

// The work of one thread of the kernels that pool rows, for GPUs and for the
// host: see PoolParams. Memory is accessed, and numbers are rounded, as in
// element_math.h.
namespace sherd::internal {

// As SHERD_POOL_… of backends/device_abi.h.
enum PoolMode : int32_t {
  kPoolSum = 0,
  kPoolMean = 1,
  kPoolMax = 2,
  kPoolNone = 3,
};

// The columns of a vector: 16 bytes of the wider type.
template <typename In, typename Out>
SHERD_HD constexpr uint32_t PoolLanes() {
  return 16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
}

// Rows that are loaded before the first of them is added: enough to hide the
// latency of memory.
inline constexpr uint32_t kPoolRowsAhead = 4;

// Entry `index` of an array of int64.
template <typename Memory>
SHERD_HD int64_t LoadIndex(uint64_t array, uint64_t index, Memory& memory) {
  return static_cast<int64_t>(
      memory.template Load<uint64_t>(array + index * sizeof(int64_t)));
}

template <typename Memory>
SHERD_HD uint64_t PooledRow(const PoolParams& params, uint64_t k,
                            Memory& memory) {
  return params.table +
         static_cast<uint64_t>(LoadIndex(params.rows, k, memory)) *
             static_cast<uint64_t>(params.row_stride);
}

// Adds row k of a bag that begins at `begin`.
template <typename A, uint32_t kLanes, typename Memory>
SHERD_HD void AddPooledRow(const PoolParams& params, uint64_t k, uint64_t begin,
                           A (&next)[kLanes], A (&sums)[kLanes],
                           Memory& memory) {
  if (params.weights != 0) {
    const A weight = std::bit_cast<A>(
        memory.template Load<Bits<A>>(params.weights + k * sizeof(A)));
    SHERD_UNROLL
    for (uint32_t lane = 0; lane < kLanes; ++lane) next[lane] *= weight;
  }
  SHERD_UNROLL
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    sums[lane] = k == begin ? next[lane]
                 : params.mode == kPoolMax
                     ? Combine<kReduceMax>(sums[lane], next[lane])
                     : Combine<kReduceSum>(sums[lane], next[lane]);
  }
}

// Unit `unit` of bag `bag`.
template <typename In, typename Out, bool kVector, typename Memory>
SHERD_HD void PoolUnit(const PoolParams& params, uint64_t bag, uint64_t unit,
                       Memory& memory) {
  using A = Accumulator<In>;
  constexpr uint32_t kLanes = kVector ? PoolLanes<In, Out>() : 1;
  const uint64_t from = unit * (kLanes * sizeof(In));
  const uint64_t to = params.out +
                      bag * static_cast<uint64_t>(params.out_stride) +
                      unit * (kLanes * sizeof(Out));
  if (params.mode == kPoolNone) {
    // The bits as they are, also those of a NaN.
    using Unit = typename BitsOf<kLanes * sizeof(In)>::Type;
    memory.template Store<Unit>(
        to, memory.template Load<Unit>(PooledRow(params, bag, memory) + from));
    return;
  }
  const uint64_t begin =
      bag == 0 ? 0
               : static_cast<uint64_t>(LoadIndex(params.ends, bag - 1, memory));
  const uint64_t end =
      static_cast<uint64_t>(LoadIndex(params.ends, bag, memory));
  A sums[kLanes] = {};
  SHERD_NO_UNROLL
  for (uint64_t k = begin; k < end; k += kPoolRowsAhead) {
    A rows[kPoolRowsAhead][kLanes];
    SHERD_UNROLL
    for (uint32_t i = 0; i < kPoolRowsAhead; ++i) {
      if (k + i < end) {
        LoadElements<In, kVector>(PooledRow(params, k + i, memory) + from,
                                  memory, rows[i]);
      }
    }
    SHERD_UNROLL
    for (uint32_t i = 0; i < kPoolRowsAhead; ++i) {
      if (k + i < end) {
        AddPooledRow(params, k + i, begin, rows[i], sums, memory);
      }
    }
  }
  if (params.mode == kPoolMean) {
    const int64_t divisor = params.divisors != 0
                                ? LoadIndex(params.divisors, bag, memory)
                                : static_cast<int64_t>(end - begin);
    SHERD_UNROLL
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (divisor > 1) sums[lane] /= static_cast<A>(divisor);
    }
  }
  StoreElements<Out, kVector>(to, /*average_of=*/1, sums, memory);
}

// What thread `thread` of the grid does.
template <typename In, typename Out, typename Memory>
SHERD_HD void PoolThread(const PoolParams& params, uint32_t thread,
                         Memory& memory) {
  const uint32_t in_launch = Divide(thread, params.units);
  if (in_launch >= params.num_bags) return;
  const uint64_t bag = params.first_bag + in_launch;
  const uint64_t unit = thread - in_launch * params.units.divisor;
  if (params.is_vector != 0) {
    PoolUnit<In, Out, true>(params, bag, unit, memory);
  } else {
    PoolUnit<In, Out, false>(params, bag, unit, memory);
  }
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_POOL_MATH_H_
