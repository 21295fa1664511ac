#ifndef SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_OP_H_
#define SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_OP_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// Operations on each element by itself. Which dtypes they are defined for:
//
//                                             bool  integers  floats  complex
//   kNot                                       x       x
//   kNeg, kSquare                                      x        x        x
//   kAbs, kSign, kRelu                                 x        x
//   kFloor, kCeil, kRound                              x        x
//   kReciprocal, kSqrt, kExp, kLog, kSin,
//   kCos, kTanh, kSigmoid                                       x        x
//   kAdd, kMul                                 x       x        x        x
//   kSub, kDiv, kPow                                   x        x        x
//   kMin, kMax                                 x       x        x
enum class UnaryOp : int32_t {
  kNot,  // of bool: whether it is false; of integers: every bit
  kNeg,
  kSquare,
  kAbs,
  kSign,   // -1, 0 or 1; a zero and NaN stay what they are
  kRelu,   // max(x, 0)
  kFloor,  // integers stay what they are
  kCeil,
  kRound,  // halves to even
  kReciprocal,
  kSqrt,
  kExp,
  kLog,
  kSin,
  kCos,
  kTanh,
  kSigmoid,  // 1 / (1 + exp(-x))
};
enum class BinaryOp : int32_t { kAdd, kSub, kMul, kDiv, kMin, kMax, kPow };

// "neg", "add", ….
absl::string_view Name(UnaryOp op);
absl::string_view Name(BinaryOp op);
std::ostream& operator<<(std::ostream& out, UnaryOp op);
std::ostream& operator<<(std::ostream& out, BinaryOp op);

// OK if the table above has an x.
//   kInvalidArgument  The message has the reason and the alternative.
//   kUnimplemented    The dtype is carried.
absl::Status CheckElementwise(UnaryOp op, DType dtype);
absl::Status CheckElementwise(BinaryOp op, DType dtype);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_OP_H_
