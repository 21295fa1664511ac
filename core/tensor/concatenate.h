#ifndef SHERD_CORE_TENSOR_CONCATENATE_H_
#define SHERD_CORE_TENSOR_CONCATENATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// Joins tensors along a dimension, as torch.cat does.
//
//     SHERD_ASSIGN_OR_RETURN(Tensor all, Concatenate({a, b}, /*dim=*/-1));
//
// Layout. With the sizes n0, n1, … of the dimension, elements [n0 + … + n(i-1),
// n0 + … + ni) of the result are those of tensor i: contiguous, in new memory
// of the tensors' device. A tensor of size [0] is left out, whatever the
// dimensions of the others; of such tensors alone the result is one. On meta
// nothing is copied.
//
// Errors.
//   kInvalidArgument     "expected a non-empty list of Tensors";
//                        "zero-dimensional tensor … cannot be concatenated";
//                        "Tensors must have same number of dimensions"; "Sizes
//                        of tensors must match except in dimension …"; dtypes
//                        or devices differ: nothing is promoted or moved.
//   kOutOfRange          `dim` is not one of the dimensions; negative ones
//                        count from the end.
//   kFailedPrecondition  A tensor is undefined.
//   kResourceExhausted   There is no memory.
absl::StatusOr<Tensor> Concatenate(absl::Span<const Tensor> tensors,
                                   int64_t dim = 0);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_CONCATENATE_H_
