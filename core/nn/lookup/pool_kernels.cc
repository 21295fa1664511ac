#include "sherd/core/nn/lookup/pool_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/float_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sherd::internal {
namespace {

#define SHERD_VECTOR_BODY "sherd/core/nn/lookup/pool_kernels.inc"
#include "sherd/core/tensor/kernels/vector_targets.inc"  // NOLINT(build/include)

}  // namespace

ReductionTarget RowTargetFor(DType dtype, int64_t width) {
  const auto bytes = static_cast<size_t>(width) * SizeOf(AccumulatorOf(dtype));
  const ReductionTarget fitting = bytes >= 64   ? ReductionTarget::kAvx512
                                  : bytes >= 32 ? ReductionTarget::kAvx2
                                                : ReductionTarget::kBaseline;
  return std::min(fitting, BestReductionTarget());
}

DType AccumulatorOf(DType dtype) {
  return dtype == kFloat64 ? kFloat64 : kFloat32;
}

void PoolRows(DType in, DType out, bool max, const PoolBatch& batch) {
  PoolRowsWith(RowTargetFor(in, batch.width), in, out, max, batch);
}

void PoolRowsWith(ReductionTarget target, DType in, DType out, bool max,
                  const PoolBatch& batch) {
  SHERD_CHECK(in == out || AccumulatorOf(in) == out || AccumulatorOf(out) == in)
      << in << " " << out;
  SHERD_CHECK(!max || batch.weights == nullptr);
  switch (target) {
#if defined(__x86_64__)
    case ReductionTarget::kAvx512:
      return avx512::PoolAny(in, out, max, batch);
    case ReductionTarget::kAvx2:
      return avx2::PoolAny(in, out, max, batch);
#endif
    default:
      return baseline::PoolAny(in, out, max, batch);
  }
}

void CopyRows(std::byte* out, int64_t out_stride, const std::byte* const* rows,
              int64_t count, size_t bytes) {
  constexpr size_t kMaxFetched = 1024;
  const size_t fetched = std::min(bytes, kMaxFetched);
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* const ahead = rows[i + int64_t{kRowsAhead}];
    for (size_t byte = 0; byte < fetched; byte += 64) {
      __builtin_prefetch(ahead + byte);
    }
    std::memcpy(out + i * out_stride, rows[i], bytes);
  }
}

}  // namespace sherd::internal
