#ifndef SHERD_CORE_NN_LAYERS_MATRIX_PRODUCT_H_
#define SHERD_CORE_NN_LAYERS_MATRIX_PRODUCT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// float32 or float64 in which products of `dtype` are computed.
//   kInvalidArgument  The dtype is not a floating-point one.
absl::StatusOr<DType> ProductType(DType dtype);

// out += x w^T, for x of size [m, k], w of size [n, k] and out of size [m, n],
// in host memory, of one dtype: that of ProductType. Rows of `out` are
// contiguous, but need not follow each other.
//   kInvalidArgument  A size exceeds that of an int, which CBLAS takes.
absl::Status AddProduct(const Tensor& x, const Tensor& w, Tensor& out);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LAYERS_MATRIX_PRODUCT_H_
