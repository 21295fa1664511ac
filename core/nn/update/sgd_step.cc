#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

absl::Status CheckInHostMemory(const Tensor& tensor) {
  if (tensor.defined() && tensor.device().is_cpu()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "expected elements in host memory, got ",
      tensor.defined() ? tensor.device().ToString() : "an undefined Tensor"));
}

// Whatever would refuse to write to it.
absl::Status CheckParameter(const Tensor& tensor) {
  SHERD_RETURN_IF_ERROR(CheckInHostMemory(tensor));
  if (tensor.numel() > 0 && !tensor.writable()) {
    return absl::FailedPreconditionError("the parameter may not be written to");
  }
  if (!IsNonOverlapping(tensor.sizes(), tensor.strides())) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of the parameter coincide: sizes ",
                     FormatDims(tensor.sizes()), ", strides ",
                     FormatDims(tensor.strides()), "; train a Clone()"));
  }
  return absl::OkStatus();
}

absl::Status CheckParameter(const ShardedTensor& tensor) {
  for (const Shard& shard : tensor.local_shards()) {
    SHERD_RETURN_IF_ERROR(CheckInHostMemory(shard.tensor));
  }
  return internal::CheckDestinations(tensor.local_shards());
}

bool Fits(const Tensor& parameter, const Tensor& gradient) {
  return gradient.defined() && gradient.device().is_cpu() &&
         gradient.dtype() == parameter.dtype() &&
         gradient.sizes() == parameter.sizes();
}

bool Fits(const ShardedTensor& parameter, const ShardedTensor& gradient) {
  return gradient.dtype() == parameter.dtype() &&
         gradient.group() == parameter.group() &&
         internal::SameLayout(gradient.metadata(), parameter.metadata());
}

// What is subtracted from the parameter, in new memory.
template <typename T>
absl::StatusOr<Value> StepOf(const T& parameter, const Value& gradient,
                             const SgdOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckParameter(parameter));
  const T* const direction = gradient.get_if<T>();
  if (direction == nullptr || !IsFloatingPoint(parameter.dtype()) ||
      !Fits(parameter, *direction)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a floating-point parameter and a gradient of its kind, size, "
        "dtype and layout, got ",
        Value(parameter).ToString(), " and ", gradient.ToString()));
  }
  if (options.weight_decay == 0) {
    SHERD_ASSIGN_OR_RETURN(
        T step, Apply(BinaryOp::kMul, *direction, options.learning_rate));
    return Value(std::move(step));
  }
  SHERD_ASSIGN_OR_RETURN(
      T step, Apply(BinaryOp::kMul, parameter, options.weight_decay));
  SHERD_RETURN_IF_ERROR(ApplyInPlace(BinaryOp::kAdd, step, *direction));
  SHERD_RETURN_IF_ERROR(
      ApplyInPlace(BinaryOp::kMul, step, options.learning_rate));
  return Value(std::move(step));
}

absl::StatusOr<Value> StepOf(const Value& parameter, const Value& gradient,
                             const SgdOptions& options) {
  if (gradient.is_none()) return Value();
  if (const auto* const tensor = parameter.get_if<Tensor>()) {
    return StepOf(*tensor, gradient, options);
  }
  if (const auto* const sharded = parameter.get_if<ShardedTensor>()) {
    return StepOf(*sharded, gradient, options);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a Tensor or ShardedTensor as a parameter, got ",
                   parameter.ToString()));
}

template <typename T>
absl::Status Subtract(T parameter, const Value& step) {
  return ApplyInPlace(BinaryOp::kSub, parameter, *step.get_if<T>());
}

}  // namespace

absl::Status SgdStep(absl::Span<const Value> parameters,
                     absl::Span<const Value> gradients,
                     const SgdOptions& options) {
  if (parameters.size() != gradients.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sgd_step: expected a gradient for each of ",
                     parameters.size(), " parameters, got ", gradients.size()));
  }
  if (!std::isfinite(options.learning_rate) ||
      !std::isfinite(options.weight_decay) || options.learning_rate < 0 ||
      options.weight_decay < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sgd_step: expected a finite learning rate and weight decay of 0 or "
        "more, got ",
        options.learning_rate, " and ", options.weight_decay));
  }
  // All steps before the first change, so that an error leaves all as it was.
  std::vector<Value> steps;
  for (size_t i = 0; i < parameters.size(); ++i) {
    absl::StatusOr<Value> step = StepOf(parameters[i], gradients[i], options);
    if (!step.ok()) {
      return absl::Status(step.status().code(),
                          absl::StrCat("sgd_step: parameter ", i, ": ",
                                       step.status().message()));
    }
    steps.push_back(*std::move(step));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (steps[i].is_none()) continue;
    if (const auto* const tensor = parameters[i].get_if<Tensor>()) {
      SHERD_RETURN_IF_ERROR(Subtract(*tensor, steps[i]));
    } else {
      SHERD_RETURN_IF_ERROR(
          Subtract(*parameters[i].get_if<ShardedTensor>(), steps[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
