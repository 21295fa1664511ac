#ifndef SHERD_CORE_TENSOR_TYPES_SCALAR_H_
#define SHERD_CORE_TENSOR_TYPES_SCALAR_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>

#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The C++ types of numbers that can be an element.
template <typename T>
concept ScalarType = std::integral<T> || requires {
  internal::DTypeOfImpl<T>::value;
};

// One number of any type that a tensor can hold, as given: it is rounded only
// when it is converted to a tensor's dtype. C++ numbers convert to it:
//
//     Apply(BinaryOp::kMul, tensor, 0.5)
//
// Value. Integers of one width and sign are one type, independent of their C++
// name.
class Scalar {
 public:
  template <ScalarType T>
  Scalar(T value)  // NOLINT(google-explicit-constructor)
      : dtype_(internal::ValueDType<T>()) {
    std::memcpy(bytes_.data(), &value, sizeof(T));
  }

  DType dtype() const { return dtype_; }
  // The number, as an object of the type of dtype().
  const void* data() const { return bytes_.data(); }

  // "2", "0.5", "(1,2)", "true".
  std::string ToString() const;

 private:
  DType dtype_;
  alignas(16) std::array<std::byte, 16> bytes_ = {};
};

// An element as Scalar::ToString prints it, and of a carried dtype its bits:
// "0x7f". Aligned.
std::string ElementToString(DType dtype, const void* element);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_TYPES_SCALAR_H_
