#include "sherd/core/tensor/kernels/elementwise_op.h"

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

absl::Status Undefined(absl::string_view op, DType dtype,
                       absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the operation ", op, " is not defined for ", Name(dtype), ": ", why));
}

}  // namespace

absl::string_view Name(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNot:
      return "not";
    case UnaryOp::kNeg:
      return "neg";
    case UnaryOp::kSquare:
      return "square";
    case UnaryOp::kAbs:
      return "abs";
    case UnaryOp::kSign:
      return "sign";
    case UnaryOp::kRelu:
      return "relu";
    case UnaryOp::kFloor:
      return "floor";
    case UnaryOp::kCeil:
      return "ceil";
    case UnaryOp::kRound:
      return "round";
    case UnaryOp::kReciprocal:
      return "reciprocal";
    case UnaryOp::kSqrt:
      return "sqrt";
    case UnaryOp::kExp:
      return "exp";
    case UnaryOp::kLog:
      return "log";
    case UnaryOp::kSin:
      return "sin";
    case UnaryOp::kCos:
      return "cos";
    case UnaryOp::kTanh:
      return "tanh";
    case UnaryOp::kSigmoid:
      return "sigmoid";
  }
  return "unknown unary operation";
}

absl::string_view Name(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "add";
    case BinaryOp::kSub:
      return "sub";
    case BinaryOp::kMul:
      return "mul";
    case BinaryOp::kDiv:
      return "div";
    case BinaryOp::kMin:
      return "min";
    case BinaryOp::kMax:
      return "max";
    case BinaryOp::kPow:
      return "pow";
  }
  return "unknown binary operation";
}

std::ostream& operator<<(std::ostream& out, UnaryOp op) {
  return out << Name(op);
}
std::ostream& operator<<(std::ostream& out, BinaryOp op) {
  return out << Name(op);
}

absl::Status CheckElementwise(UnaryOp op, DType dtype) {
  SHERD_RETURN_IF_ERROR(CheckComputed(dtype));
  switch (op) {
    case UnaryOp::kNot:
      if (dtype == kBool || IsInteger(dtype)) return absl::OkStatus();
      return Undefined(Name(op), dtype, "it has no bits of its own to turn");
    case UnaryOp::kNeg:
    case UnaryOp::kSquare:
      if (dtype != kBool) return absl::OkStatus();
      return Undefined(Name(op), dtype,
                       "it is not a number; convert with To()");
    case UnaryOp::kAbs:
    case UnaryOp::kSign:
    case UnaryOp::kRelu:
    case UnaryOp::kFloor:
    case UnaryOp::kCeil:
    case UnaryOp::kRound:
      if (dtype == kBool) {
        return Undefined(Name(op), dtype,
                         "it is not a number; convert with To()");
      }
      if (!IsComplex(dtype)) return absl::OkStatus();
      return Undefined(Name(op), dtype,
                       "complex numbers have no order; see ViewAsReal()");
    default:
      if (IsFloatingPoint(dtype) || IsComplex(dtype)) return absl::OkStatus();
      return Undefined(Name(op), dtype,
                       "the result is not a whole number; convert with To()");
  }
}

absl::Status CheckElementwise(BinaryOp op, DType dtype) {
  SHERD_RETURN_IF_ERROR(CheckComputed(dtype));
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kMul:
      return absl::OkStatus();
    case BinaryOp::kSub:
    case BinaryOp::kDiv:
    case BinaryOp::kPow:
      if (dtype != kBool) return absl::OkStatus();
      return Undefined(Name(op), dtype,
                       "it is not a number; convert with To()");
    case BinaryOp::kMin:
    case BinaryOp::kMax:
      if (!IsComplex(dtype)) return absl::OkStatus();
      return Undefined(Name(op), dtype,
                       "complex numbers have no order; see ViewAsReal()");
  }
  return absl::OkStatus();
}

}  // namespace sherd
