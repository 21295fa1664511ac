#include "sherd/core/tensor/kernels/elementwise.h"

#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/elementwise_kernels.h"
#include "sherd/core/tensor/kernels/strided_loop.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/element_cast.h"
#include "sherd/core/tensor/types/memory_overlap.h"

namespace sherd {
namespace {

using internal::Access;
using internal::AccessToTensor;
using internal::BestElementwiseTarget;
using internal::ComputeDType;
using internal::ConstantBlock;
using internal::ForEachRun;
using internal::IsSameMemory;
using internal::kConstantStep;
using internal::kElementwiseBlock;
using internal::LoopOperand;
using internal::MayShareMemory;
using internal::MemoryAccess;
using internal::RunElementwise;
using internal::RunOperand;

// Checks for an operand or the result.

absl::Status CheckReadable(const Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::FailedPreconditionError("the tensor is undefined");
  }
  if (tensor.device().is_meta() || tensor.device().is_cpu()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the tensor is on ", tensor.device().ToString(),
                   "; expected one in host memory: move it there with "
                   "To(Device())"));
}

absl::Status CheckWritable(const Tensor& tensor) {
  SHERD_RETURN_IF_ERROR(CheckReadable(tensor));
  if (tensor.device().is_meta()) return absl::OkStatus();
  if (!tensor.writable()) {
    return absl::FailedPreconditionError(
        "the tensor's storage is read-only; write to a Clone()");
  }
  if (!IsNonOverlapping(tensor.sizes(), tensor.strides())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements of the tensor coincide: sizes ", FormatDims(tensor.sizes()),
        ", strides ", FormatDims(tensor.strides()), "; write to a Clone()"));
  }
  return absl::OkStatus();
}

absl::Status CheckAlike(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtypes of the tensors differ: ", Name(a.dtype()), " and ",
                     Name(b.dtype()), "; convert one with To()"));
  }
  if (a.sizes() != b.sizes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sizes of the tensors differ: ", FormatDims(a.sizes()), " and ",
        FormatDims(b.sizes()), "; there is no broadcasting"));
  }
  if (a.device().is_meta() != b.device().is_meta()) {
    return absl::FailedPreconditionError(
        "one tensor is on the device meta and has no data, the other has");
  }
  return absl::OkStatus();
}

LoopOperand OperandOf(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), tensor.strides(),
          tensor.element_size()};
}

// `operand`, or a copy of it if writing `out` would change it before it is
// read.
absl::StatusOr<Tensor> ApartFrom(const Tensor& operand, const Tensor& out) {
  const MemoryAccess read = AccessToTensor(operand, Access::kRead);
  const MemoryAccess write = AccessToTensor(out, Access::kWrite);
  if (IsSameMemory(read, write) || !MayShareMemory(read, write)) return operand;
  return operand.Clone();
}

// Scalars

// An integer tensor must not silently drop the fraction of a scalar.
absl::Status CheckWhole(const Scalar& scalar, DType dtype) {
  if (!IsInteger(dtype) || IsInteger(scalar.dtype()) ||
      scalar.dtype() == kBool) {
    return absl::OkStatus();
  }
  std::complex<double> value;
  CastElements(scalar.dtype(), scalar.data(), 0, kComplex128, &value, 1);
  if (value.imag() == 0 && value.real() == std::trunc(value.real())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      scalar.ToString(), " is not a whole number, as an operation on ",
      Name(dtype), " expects; convert the tensor with To() first"));
}

// The number as a tensor of `dtype` computes with it, a block long.
absl::Status FillConstant(const Scalar& scalar, DType dtype,
                          ConstantBlock& block) {
  SHERD_RETURN_IF_ERROR(CheckWhole(scalar, dtype));
  const DType compute = dtype == kBool ? kBool : ComputeDType(dtype);
  SHERD_RETURN_IF_ERROR(
      CastChecked(scalar.dtype(), scalar.data(), compute, block.data()));
  const size_t bytes = SizeOf(compute);
  for (int64_t i = 1; i < kElementwiseBlock; ++i) {
    std::memcpy(block.data() + static_cast<size_t>(i) * bytes, block.data(),
                bytes);
  }
  return absl::OkStatus();
}

// Integers that must not be a second operand.

template <typename T>
bool AnyRefused(BinaryOp op, const std::byte* at, int64_t step, int64_t count) {
  bool refused = false;
  for (int64_t i = 0; i < count; ++i) {
    const T value = *reinterpret_cast<const T*>(at + i * step);
    refused |= op == BinaryOp::kDiv ? value == 0 : value < T{0};
  }
  return refused;
}

absl::Status RefusedOperand(BinaryOp op, DType dtype) {
  if (op == BinaryOp::kDiv) {
    return absl::InvalidArgumentError(
        absl::StrCat("division of ", Name(dtype), " by zero"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Integers to negative integer powers are not allowed: an "
                   "exponent of ",
                   Name(dtype), " is negative"));
}

bool HasRefusedOperands(BinaryOp op, DType dtype) {
  return IsInteger(dtype) &&
         (op == BinaryOp::kDiv || (op == BinaryOp::kPow && IsSigned(dtype)));
}

absl::Status CheckSecond(BinaryOp op, const Tensor& b) {
  if (!HasRefusedOperands(op, b.dtype()) || b.device().is_meta()) {
    return absl::OkStatus();
  }
  const bool accepted = DispatchDType(b.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      return ForEachRun<1>(
          b.sizes(), {{OperandOf(b)}},
          [&](const auto& at, const auto& steps, int64_t count) {
            return !AnyRefused<T>(op, at[0], steps[0], count);
          });
    }
    return true;
  });
  return accepted ? absl::OkStatus() : RefusedOperand(op, b.dtype());
}

absl::Status CheckSecond(BinaryOp op, DType dtype, const ConstantBlock& b) {
  if (!HasRefusedOperands(op, dtype)) return absl::OkStatus();
  const bool refused = DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      return AnyRefused<T>(op, b.data(), sizeof(T), 1);
    }
    return false;
  });
  return refused ? RefusedOperand(op, dtype) : absl::OkStatus();
}

// Computing. Everything has been checked.

bool HasNothingToCompute(const Tensor& out) {
  return out.device().is_meta() || out.numel() == 0;
}

void Compute(UnaryOp op, const Tensor& a, Tensor& out) {
  ForEachRun<2>(out.sizes(), {{OperandOf(out), OperandOf(a)}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  RunElementwise(BestElementwiseTarget(), op, out.dtype(),
                                 const_cast<std::byte*>(at[0]), steps[0],
                                 {at[1], steps[1]}, count);
                  return true;
                });
}

void Compute(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& out) {
  ForEachRun<3>(out.sizes(), {{OperandOf(out), OperandOf(a), OperandOf(b)}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  RunElementwise(BestElementwiseTarget(), op, out.dtype(),
                                 const_cast<std::byte*>(at[0]), steps[0],
                                 {at[1], steps[1]}, {at[2], steps[2]}, count);
                  return true;
                });
}

// With a constant as the first or the second operand.
void Compute(BinaryOp op, const Tensor& a, const ConstantBlock& constant,
             bool constant_first, Tensor& out) {
  const RunOperand repeated = {constant.data(), kConstantStep};
  ForEachRun<2>(out.sizes(), {{OperandOf(out), OperandOf(a)}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  const RunOperand run = {at[1], steps[1]};
                  RunElementwise(BestElementwiseTarget(), op, out.dtype(),
                                 const_cast<std::byte*>(at[0]), steps[0],
                                 constant_first ? repeated : run,
                                 constant_first ? run : repeated, count);
                  return true;
                });
}

absl::Status ApplyConstant(BinaryOp op, const Tensor& a, const Scalar& scalar,
                           bool constant_first, Tensor& out) {
  SHERD_RETURN_IF_ERROR(CheckReadable(a));
  SHERD_RETURN_IF_ERROR(CheckWritable(out));
  SHERD_RETURN_IF_ERROR(CheckAlike(a, out));
  SHERD_RETURN_IF_ERROR(CheckElementwise(op, a.dtype()));
  alignas(16) ConstantBlock constant;
  SHERD_RETURN_IF_ERROR(FillConstant(scalar, a.dtype(), constant));
  SHERD_RETURN_IF_ERROR(constant_first ? CheckSecond(op, a)
                                       : CheckSecond(op, a.dtype(), constant));
  if (HasNothingToCompute(out)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Tensor from, ApartFrom(a, out));
  Compute(op, from, constant, constant_first, out);
  return absl::OkStatus();
}

// A tensor for the result of an operation on `a`.
absl::StatusOr<Tensor> ResultFor(const Tensor& a) {
  SHERD_RETURN_IF_ERROR(CheckReadable(a));
  return Tensor::Empty(a.sizes(), {.dtype = a.dtype(), .device = a.device()});
}

}  // namespace

absl::Status ApplyInto(UnaryOp op, const Tensor& a, Tensor& out) {
  SHERD_RETURN_IF_ERROR(CheckReadable(a));
  SHERD_RETURN_IF_ERROR(CheckWritable(out));
  SHERD_RETURN_IF_ERROR(CheckAlike(a, out));
  SHERD_RETURN_IF_ERROR(CheckElementwise(op, a.dtype()));
  if (HasNothingToCompute(out)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Tensor from, ApartFrom(a, out));
  Compute(op, from, out);
  return absl::OkStatus();
}

absl::Status ApplyInto(BinaryOp op, const Tensor& a, const Tensor& b,
                       Tensor& out) {
  SHERD_RETURN_IF_ERROR(CheckReadable(a));
  SHERD_RETURN_IF_ERROR(CheckReadable(b));
  SHERD_RETURN_IF_ERROR(CheckWritable(out));
  SHERD_RETURN_IF_ERROR(CheckAlike(a, b));
  SHERD_RETURN_IF_ERROR(CheckAlike(a, out));
  SHERD_RETURN_IF_ERROR(CheckElementwise(op, a.dtype()));
  SHERD_RETURN_IF_ERROR(CheckSecond(op, b));
  if (HasNothingToCompute(out)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Tensor first, ApartFrom(a, out));
  SHERD_ASSIGN_OR_RETURN(const Tensor second, ApartFrom(b, out));
  Compute(op, first, second, out);
  return absl::OkStatus();
}

absl::Status ApplyInto(BinaryOp op, const Tensor& a, const Scalar& b,
                       Tensor& out) {
  return ApplyConstant(op, a, b, /*constant_first=*/false, out);
}

absl::Status ApplyInto(BinaryOp op, const Scalar& a, const Tensor& b,
                       Tensor& out) {
  return ApplyConstant(op, b, a, /*constant_first=*/true, out);
}

absl::StatusOr<Tensor> Apply(UnaryOp op, const Tensor& a) {
  SHERD_ASSIGN_OR_RETURN(Tensor out, ResultFor(a));
  SHERD_RETURN_IF_ERROR(ApplyInto(op, a, out));
  return out;
}

absl::StatusOr<Tensor> Apply(BinaryOp op, const Tensor& a, const Tensor& b) {
  SHERD_ASSIGN_OR_RETURN(Tensor out, ResultFor(a));
  SHERD_RETURN_IF_ERROR(ApplyInto(op, a, b, out));
  return out;
}

absl::StatusOr<Tensor> Apply(BinaryOp op, const Tensor& a, const Scalar& b) {
  SHERD_ASSIGN_OR_RETURN(Tensor out, ResultFor(a));
  SHERD_RETURN_IF_ERROR(ApplyInto(op, a, b, out));
  return out;
}

absl::StatusOr<Tensor> Apply(BinaryOp op, const Scalar& a, const Tensor& b) {
  SHERD_ASSIGN_OR_RETURN(Tensor out, ResultFor(b));
  SHERD_RETURN_IF_ERROR(ApplyInto(op, a, b, out));
  return out;
}

absl::Status ApplyInPlace(UnaryOp op, Tensor& a) { return ApplyInto(op, a, a); }
absl::Status ApplyInPlace(BinaryOp op, Tensor& a, const Tensor& b) {
  return ApplyInto(op, a, b, a);
}
absl::Status ApplyInPlace(BinaryOp op, Tensor& a, const Scalar& b) {
  return ApplyInto(op, a, b, a);
}

}  // namespace sherd
