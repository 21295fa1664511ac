#include "sherd/core/nn/layers/matrix_product.h"

#include <cblas.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {

absl::StatusOr<DType> ProductType(DType dtype) {
  if (dtype == kFloat64) return kFloat64;
  if (dtype == kFloat32 || dtype == kFloat16 || dtype == kBFloat16) {
    return kFloat32;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Expected float32, float64, float16 or bfloat16, but found ",
                   Name(dtype)));
}

absl::Status AddProduct(const Tensor& x, const Tensor& w, Tensor& out) {
  SHERD_ASSIGN_OR_RETURN(const Tensor left, x.Contiguous());
  SHERD_ASSIGN_OR_RETURN(const Tensor right, w.Contiguous());
  const int64_t m = left.sizes()[0];
  const int64_t k = left.sizes()[1];
  const int64_t n = right.sizes()[0];
  if (m == 0 || n == 0 || k == 0) return absl::OkStatus();
  const int64_t stride = m > 1 ? out.strides()[0] : n;
  if (std::max({m, n, k, stride}) > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a product of ", FormatDims(left.sizes()), " and ",
        FormatDims(right.sizes()), " exceeds CBLAS, whose sizes are at most ",
        std::numeric_limits<int>::max()));
  }
  const auto rows = static_cast<int>(m);
  const auto columns = static_cast<int>(n);
  const auto inner = static_cast<int>(k);
  if (out.dtype() == kFloat64) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, columns, inner,
                1.0, left.data_as<double>(), inner, right.data_as<double>(),
                inner, 1.0, out.mutable_data_as<double>(),
                static_cast<int>(stride));
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, columns, inner,
                1.0F, left.data_as<float>(), inner, right.data_as<float>(),
                inner, 1.0F, out.mutable_data_as<float>(),
                static_cast<int>(stride));
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
