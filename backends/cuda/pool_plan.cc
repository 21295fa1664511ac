#include "sherd/backends/cuda/pool_plan.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>

#include "sherd/backends/cuda/box_table.h"
#include "sherd/backends/cuda/kernel_params.h"

namespace sherd::internal {
namespace {

struct PoolTypes {
  int32_t in;
  int32_t out;
  const char* kernel;
};

constexpr PoolTypes kPoolTypes[] = {
    {SHERD_FLOAT64, SHERD_FLOAT64, "sherd_pool_float64_float64"},
    {SHERD_FLOAT32, SHERD_FLOAT32, "sherd_pool_float32_float32"},
    {SHERD_FLOAT16, SHERD_FLOAT16, "sherd_pool_float16_float16"},
    {SHERD_BFLOAT16, SHERD_BFLOAT16, "sherd_pool_bfloat16_bfloat16"},
    {SHERD_FLOAT16, SHERD_FLOAT32, "sherd_pool_float16_float32"},
    {SHERD_BFLOAT16, SHERD_FLOAT32, "sherd_pool_bfloat16_float32"},
    {SHERD_FLOAT32, SHERD_FLOAT16, "sherd_pool_float32_float16"},
    {SHERD_FLOAT32, SHERD_BFLOAT16, "sherd_pool_float32_bfloat16"},
};

const PoolTypes* FindTypes(const sherd_pool_rows_v0& pool) {
  const auto* const end = std::end(kPoolTypes);
  const auto* const found =
      std::find_if(std::begin(kPoolTypes), end, [&](const PoolTypes& types) {
        return types.in == pool.table_dtype && types.out == pool.out_dtype;
      });
  return found == end ? nullptr : found;
}

uint64_t BytesOf(int32_t dtype) {
  return dtype == SHERD_FLOAT64 ? 8 : dtype == SHERD_FLOAT32 ? 4 : 2;
}

uint64_t AddressOf(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

// The mode, and which arrays there are.
const char* CheckMode(const sherd_pool_rows_v0& pool) {
  if (pool.mode < SHERD_POOL_SUM || pool.mode > SHERD_POOL_NONE) {
    return "a mode that there is not";
  }
  if ((pool.ends == nullptr) != (pool.mode == SHERD_POOL_NONE)) {
    return "ends of bags with rows that are not pooled, or none of others";
  }
  if (pool.weights != nullptr && pool.mode != SHERD_POOL_SUM) {
    return "weights of another mode than the sum";
  }
  if (pool.divisors != nullptr && pool.mode != SHERD_POOL_MEAN) {
    return "divisors of another mode than the mean";
  }
  if (pool.mode == SHERD_POOL_NONE && pool.table_dtype != pool.out_dtype) {
    return "rows that are copied into another dtype";
  }
  return nullptr;
}

const char* CheckMemory(const sherd_pool_rows_v0& pool) {
  const uint64_t in_bytes = BytesOf(pool.table_dtype);
  const uint64_t out_bytes = BytesOf(pool.out_dtype);
  if (!std::has_single_bit(pool.row_alignment) ||
      pool.row_alignment < in_bytes ||
      (AddressOf(pool.out) | static_cast<uint64_t>(pool.out_stride)) %
              out_bytes !=
          0 ||
      (AddressOf(pool.ends) | AddressOf(pool.rows) | AddressOf(pool.divisors)) %
              sizeof(int64_t) !=
          0 ||
      AddressOf(pool.weights) % std::max<uint64_t>(in_bytes, 4) != 0) {
    return "memory that is not aligned to its elements";
  }
  // Threads write rows of the result in any order.
  uint64_t row = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(pool.columns), out_bytes,
                             &row) ||
      (pool.bags > 1 &&
       (pool.out_stride < 0 || static_cast<uint64_t>(pool.out_stride) < row))) {
    return "rows of the result that overlap";
  }
  return nullptr;
}

}  // namespace

const char* PlanPoolRows(const sherd_pool_rows_v0& pool, LaunchPlan& plan) {
  plan.Clear();
  const PoolTypes* const types = FindTypes(pool);
  if (types == nullptr) return "dtypes that are not pooled";
  if (pool.columns < 0 || pool.bags < 0) return "a negative size";
  if (pool.columns == 0 || pool.bags == 0) return nullptr;
  if (const char* const why = CheckMode(pool); why != nullptr) return why;
  if (const char* const why = CheckMemory(pool); why != nullptr) return why;
  const uint64_t in_bytes = BytesOf(pool.table_dtype);
  const uint64_t out_bytes = BytesOf(pool.out_dtype);
  const uint64_t lanes = 16 / std::max(in_bytes, out_bytes);
  const bool is_vector =
      static_cast<uint64_t>(pool.columns) % lanes == 0 &&
      pool.row_alignment >= lanes * in_bytes &&
      (AddressOf(pool.out) | static_cast<uint64_t>(pool.out_stride)) %
              (lanes * out_bytes) ==
          0;
  const uint64_t units =
      static_cast<uint64_t>(pool.columns) / (is_vector ? lanes : 1);
  if (units >= kIndexLimit - kThreads)
    return "more columns than a launch can count";
  PoolParams params = {};
  params.out = AddressOf(pool.out);
  params.out_stride = pool.out_stride;
  params.table = AddressOf(pool.table);
  params.row_stride = pool.row_stride;
  params.ends = AddressOf(pool.ends);
  params.rows = AddressOf(pool.rows);
  params.weights = AddressOf(pool.weights);
  params.divisors = AddressOf(pool.divisors);
  params.mode = pool.mode;
  params.units = MakeDivisor(static_cast<uint32_t>(units));
  params.is_vector = is_vector ? 1 : 0;
  // Blocks are whole: the last one's threads are below the limit, too.
  const uint64_t bags = static_cast<uint64_t>(pool.bags);
  const uint64_t most = (kIndexLimit - kThreads) / units;
  for (; params.first_bag < bags; params.first_bag += params.num_bags) {
    params.num_bags =
        static_cast<uint32_t>(std::min(most, bags - params.first_bag));
    const uint64_t threads = params.num_bags * units;
    plan.Add(types->kernel,
             static_cast<uint32_t>((threads + kThreads - 1) / kThreads),
             &params, sizeof(params));
  }
  return nullptr;
}

}  // namespace sherd::internal
