#ifndef SHERD_BACKENDS_HOST_REDUCTIONS_H_
#define SHERD_BACKENDS_HOST_REDUCTIONS_H_

#include <cstddef>
#include <cstdint>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Bytes of one element.
inline uint64_t ElementSize(int32_t dtype) {
  switch (dtype) {
    case SHERD_UINT16:
    case SHERD_INT16:
    case SHERD_FLOAT16:
    case SHERD_BFLOAT16:
      return 2;
    case SHERD_UINT32:
    case SHERD_INT32:
    case SHERD_FLOAT32:
      return 4;
    case SHERD_UINT64:
    case SHERD_INT64:
    case SHERD_FLOAT64:
    case SHERD_COMPLEX64:
      return 8;
    case SHERD_COMPLEX128:
      return 16;
    default:
      return 1;
  }
}

// For plugins that leave the arithmetic to the host: says in `plugin` that
// those of its operations that reduce know whatever the host's function does,
// or takes them out if `host` is too old to have one.
inline void UseHostReductions(const sherd_host_v0& host,
                              sherd_plugin_v0& plugin) {
  constexpr size_t kEnd = offsetof(sherd_host_v0, reduce) + sizeof(host.reduce);
  if (host.struct_size < kEnd || host.reduce == nullptr) {
    plugin.operations &=
        ~(uint64_t{1} << SHERD_ALL_REDUCE | uint64_t{1} << SHERD_REDUCE |
          uint64_t{1} << SHERD_REDUCE_SCATTER);
    return;
  }
  constexpr uint32_t kLinear =
      1u << SHERD_SUM | 1u << SHERD_AVG | 1u << SHERD_PRODUCT;
  constexpr uint32_t kOrder = 1u << SHERD_MIN | 1u << SHERD_MAX;
  constexpr uint32_t kBits =
      1u << SHERD_BAND | 1u << SHERD_BOR | 1u << SHERD_BXOR;
  for (int dtype = 0; dtype < SHERD_NUM_DTYPES; ++dtype) {
    uint32_t& reductions = plugin.reductions[dtype];
    if (dtype == SHERD_BOOL) {
      reductions = (kLinear & ~(1u << SHERD_AVG)) | kOrder | kBits;
    } else if (dtype <= SHERD_INT64) {
      reductions = kLinear | kOrder | kBits;
    } else if (dtype <= SHERD_FLOAT64) {
      reductions = kLinear | kOrder;
    } else {
      reductions = kLinear;
    }
  }
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_REDUCTIONS_H_
