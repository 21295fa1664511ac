#include "sherd/core/tensor/concatenate.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

bool IsLeftOut(const Tensor& tensor) {
  return tensor.dim() == 1 && tensor.numel() == 0;
}

// Whether tensor `i` of the list goes with `first` along any dimension.
absl::Status CheckKind(const Tensor& first, const Tensor& tensor, size_t i) {
  if (!tensor.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", i, " in the list is undefined"));
  }
  if (tensor.dim() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero-dimensional tensor (at position ", i,
                     ") cannot be concatenated"));
  }
  if (tensor.dtype() != first.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected tensors of one dtype, got ", Name(first.dtype()),
                     " and ", Name(tensor.dtype()), " for tensor number ", i,
                     " in the list; see To"));
  }
  if (tensor.device() == first.device()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Expected all tensors to be on the same device, got ",
                   first.device().ToString(), " and ",
                   tensor.device().ToString(), " for tensor number ", i));
}

absl::Status CheckSizes(const Tensor& expected, const Tensor& tensor, int dim,
                        size_t i) {
  if (tensor.dim() != expected.dim()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tensors must have same number of dimensions: got ",
                     expected.dim(), " and ", tensor.dim()));
  }
  for (int d = 0; d < static_cast<int>(tensor.dim()); ++d) {
    const auto at = static_cast<size_t>(d);
    if (d == dim || tensor.sizes()[at] == expected.sizes()[at]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Sizes of tensors must match except in dimension ", dim,
        ". Expected size ", expected.sizes()[at], " but got size ",
        tensor.sizes()[at], " for tensor number ", i, " in the list."));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Concatenate(absl::Span<const Tensor> tensors,
                                   int64_t dim) {
  if (tensors.empty()) {
    return absl::InvalidArgumentError("expected a non-empty list of Tensors");
  }
  const Tensor* expected = &tensors[0];
  for (size_t i = 0; i < tensors.size(); ++i) {
    SHERD_RETURN_IF_ERROR(CheckKind(tensors[0], tensors[i], i));
    if (IsLeftOut(*expected)) expected = &tensors[i];
  }
  SHERD_ASSIGN_OR_RETURN(const int axis, NormalizeDim(dim, expected->dim()));
  Dims sizes(expected->sizes().begin(), expected->sizes().end());
  int64_t& length = sizes[static_cast<size_t>(axis)];
  length = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (IsLeftOut(tensors[i])) continue;
    SHERD_RETURN_IF_ERROR(CheckSizes(*expected, tensors[i], axis, i));
    if (__builtin_add_overflow(
            length, tensors[i].sizes()[static_cast<size_t>(axis)], &length)) {
      return absl::InvalidArgumentError("the result's size overflows");
    }
  }
  SHERD_ASSIGN_OR_RETURN(Tensor result,
                         Tensor::Empty(sizes, {.dtype = expected->dtype(),
                                               .device = expected->device()}));
  if (result.device().is_meta()) return result;
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    if (IsLeftOut(tensor)) continue;
    const int64_t count = tensor.sizes()[static_cast<size_t>(axis)];
    SHERD_ASSIGN_OR_RETURN(Tensor part, result.Narrow(axis, at, count));
    SHERD_RETURN_IF_ERROR(part.CopyFrom(tensor));
    at += count;
  }
  return result;
}

}  // namespace sherd
