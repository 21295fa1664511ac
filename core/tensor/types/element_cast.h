#ifndef SHERD_CORE_TENSOR_TYPES_ELEMENT_CAST_H_
#define SHERD_CORE_TENSOR_TYPES_ELEMENT_CAST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// Whether elements of one dtype become elements of another: those of a carried
// dtype only of their own.
//   kUnimplemented  As CheckComputed.
absl::Status CheckCast(DType from, DType to);

// Converts `count` elements of computed dtypes, those of the source `src_step`
// bytes apart, those of the destination contiguous. Both aligned, not
// overlapping.
//
// Values. To floating-point: rounded once, to nearest even. To bool: whether it
// is not zero. Integer to integer: modulo 2^n. Floating-point to integer:
// toward zero, limited to the range, NaN gives 0. Complex to real: the real
// part. Real to complex: imaginary part 0.
void CastElements(DType src_dtype, const void* src, int64_t src_step,
                  DType dst_dtype, void* dst, int64_t count);

// Converts one element and refuses a value that the destination cannot hold.
// A carried destination holds 0 alone.
//   kUnimplemented    As CheckComputed.
//   kInvalidArgument  A number outside the range of an integer dtype (a
//                     fraction is dropped, but NaN is refused) or other than 0
//                     and 1 for bool; a finite number that overflows a
//                     floating-point dtype; an imaginary part for a real one.
absl::Status CastChecked(DType src_dtype, const void* src, DType dst_dtype,
                         void* dst);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_TYPES_ELEMENT_CAST_H_
