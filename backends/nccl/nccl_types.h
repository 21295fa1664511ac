#ifndef SHERD_BACKENDS_NCCL_NCCL_TYPES_H_
#define SHERD_BACKENDS_NCCL_NCCL_TYPES_H_

#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

// The reductions that NCCL computes, and their types and operators in NCCL.
namespace sherd::internal {

struct NcclReduction {
  bool native = false;
  NcclDataType type = kNcclUint8;
  NcclRedOp op = kNcclSum;
  // Bytes of one element in NCCL's count.
  uint64_t element_size = 1;
};

namespace nccl_types {

struct Type {
  bool native;
  NcclDataType type;
  uint64_t size;
};

// NCCL reduces a complex number as two floats; types that it lacks have no
// entry.
constexpr Type TypeOf(int32_t dtype) {
  switch (dtype) {
    case SHERD_BOOL:
    case SHERD_UINT8:
      return {true, kNcclUint8, 1};
    case SHERD_INT8:
      return {true, kNcclInt8, 1};
    case SHERD_UINT32:
      return {true, kNcclUint32, 4};
    case SHERD_INT32:
      return {true, kNcclInt32, 4};
    case SHERD_UINT64:
      return {true, kNcclUint64, 8};
    case SHERD_INT64:
      return {true, kNcclInt64, 8};
    case SHERD_FLOAT16:
      return {true, kNcclFloat16, 2};
    case SHERD_BFLOAT16:
      return {true, kNcclBfloat16, 2};
    case SHERD_FLOAT32:
    case SHERD_COMPLEX64:
      return {true, kNcclFloat32, 4};
    case SHERD_FLOAT64:
    case SHERD_COMPLEX128:
      return {true, kNcclFloat64, 8};
    default:
      return {false, kNcclUint8, 1};
  }
}

constexpr NcclReduction Native(const Type& type, NcclRedOp op) {
  return {true, type.type, op, type.size};
}

// A bool is a byte of 0 or 1: "and" is the minimum, "or" the maximum.
constexpr NcclReduction BoolReduction(const Type& type, int32_t reduction) {
  switch (reduction) {
    case SHERD_SUM:
    case SHERD_MAX:
    case SHERD_BOR:
      return Native(type, kNcclMax);
    case SHERD_PRODUCT:
    case SHERD_MIN:
    case SHERD_BAND:
      return Native(type, kNcclMin);
    default:
      return {};
  }
}

}  // namespace nccl_types

// Integers have no native average: NCCL does not specify how it rounds. Only
// some devices reduce 8-bit floats, and none reduces bits.
constexpr NcclReduction NcclReductionOf(int32_t dtype, int32_t reduction) {
  const nccl_types::Type type = nccl_types::TypeOf(dtype);
  if (!type.native) return {};
  if (dtype == SHERD_BOOL) return nccl_types::BoolReduction(type, reduction);
  const bool is_complex = dtype == SHERD_COMPLEX64 || dtype == SHERD_COMPLEX128;
  const bool is_float = is_complex || dtype == SHERD_FLOAT16 ||
                        dtype == SHERD_BFLOAT16 || dtype == SHERD_FLOAT32 ||
                        dtype == SHERD_FLOAT64;
  if (reduction == SHERD_SUM) return nccl_types::Native(type, kNcclSum);
  if (reduction == SHERD_AVG && is_float) {
    return nccl_types::Native(type, kNcclAvg);
  }
  if (is_complex) return {};
  switch (reduction) {
    case SHERD_PRODUCT:
      return nccl_types::Native(type, kNcclProd);
    case SHERD_MIN:
      return nccl_types::Native(type, kNcclMin);
    case SHERD_MAX:
      return nccl_types::Native(type, kNcclMax);
    default:
      return {};
  }
}

// sherd_plugin_v0.reductions[dtype].
constexpr uint32_t NcclReductionBits(int32_t dtype) {
  uint32_t bits = 0;
  for (int32_t r = 0; r < SHERD_NUM_REDUCTIONS; ++r) {
    if (NcclReductionOf(dtype, r).native) bits |= 1u << r;
  }
  return bits;
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_TYPES_H_
