#ifndef SHERD_TESTING_TENSOR_MATCHERS_H_
#define SHERD_TESTING_TENSOR_MATCHERS_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// Matchers of tensors.
//
//   EXPECT_THAT(sum, TensorEq(Tensor::FromSpan<float>({1, 2, 3}, {3})));
//   EXPECT_THAT(file.ReadTensor("w"), IsOkAndHolds(TensorNear(w)));
//   EXPECT_THAT(parts, ElementsAre(TensorEq(a), TensorEq(b)));
//   EXPECT_THAT(parts, Pointwise(TensorEq(), expected_parts));
//
// All of them require the same dtype, sizes and, by default, device; strides
// may differ. A failure reports which of these differ, or
//
//   which differs in 3 of 24 elements, first at [0, 1, 2]: 1.5, expected 1.25;
//   largest difference 2 at [1, 0, 0]: 3, expected 1
//
// where numbers have all digits that distinguish them from others of their
// dtype.
//
// Values. Undefined tensors match each other. Two meta tensors match by dtype
// and sizes. Tensors on a device are copied to host memory to be compared, and
// the host waits for that.
//
// Lifetime. A Tensor is a handle, in a matcher too: expect a Clone() of data
// that will be overwritten. An error in place of the expected tensor fails the
// test.
//
// Cost. No copies. Runs of elements that are contiguous in both tensors are
// compared as bytes, and one by one only where these differ.

// Whether matching tensors must be on one device.
enum class CompareDevices {
  kStrictly,
  // Elements are compared on any device. A meta tensor has no elements, and
  // matches only a meta tensor.
  kNotAtAll,
};

// Every element has the same value as its counterpart. NaN equals NaN, with any
// bits, as in TestCase.assertEqual of PyTorch, and -0 equals 0. Complex numbers
// are equal if both parts are.
//
//   EXPECT_THAT(moved.local_tensor(),
//               IsOkAndHolds(TensorEq(before, CompareDevices::kNotAtAll)));
::testing::Matcher<const Tensor&> TensorEq(
    absl::StatusOr<Tensor> expected,
    CompareDevices devices = CompareDevices::kStrictly);

// Every element has the same bits as its counterpart, including those of -0, of
// a NaN, and of a bool that is true, for which there are many.
::testing::Matcher<const Tensor&> TensorBitwiseEq(
    absl::StatusOr<Tensor> expected,
    CompareDevices devices = CompareDevices::kStrictly);

// How far elements may differ. The default is 0.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
  // Whether NaN matches NaN. It never matches anything else.
  bool equal_nan = true;
};

// The tolerances of torch.testing.assert_close (rtol, atol):
//   float16 1e-3, 1e-5 · bfloat16 1.6e-2, 1e-5 · float32, complex64 1.3e-6,
//   1e-5 · float64, complex128 1e-7, 1e-7 · all others 0, 0
// (https://pytorch.org/docs/stable/testing.html). There NaN matches nothing;
// here it matches NaN by default.
Tolerance DefaultTolerance(DType dtype);

// a - e| <= atol + rtol * |e| for every element a and its counterpart e, by
// default with the tolerance of the expected tensor's dtype. Infinities match
// themselves only. Finite complex numbers are compared by their distance in the
// plane, others part by part. Integers are compared without rounding, and bool
// by its truth value alone.
::testing::Matcher<const Tensor&> TensorNear(absl::StatusOr<Tensor> expected);
::testing::Matcher<const Tensor&> TensorNear(
    absl::StatusOr<Tensor> expected, const Tolerance& tolerance,
    CompareDevices devices = CompareDevices::kStrictly);

// The same for a pair (tensor, expected tensor): for Pointwise.
MATCHER(TensorEq, negation ? "do not equal" : "equal") {
  return ::testing::ExplainMatchResult(TensorEq(std::get<1>(arg)),
                                       std::get<0>(arg), result_listener);
}
MATCHER(TensorNear, negation ? "are not near" : "are near") {
  return ::testing::ExplainMatchResult(TensorNear(std::get<1>(arg)),
                                       std::get<0>(arg), result_listener);
}

namespace internal {

// How two elements are compared.
struct ElementRule {
  // By their bits; the tolerance is ignored.
  bool bitwise = false;
  Tolerance tolerance;
  CompareDevices devices = CompareDevices::kStrictly;
};

// Returns "which differs in …" or "whose dtype is …"; empty if the tensors
// match. `origin` is the position of both in a larger tensor, for the indices
// in the text; empty if they are not part of one.
std::string ExplainDifference(const Tensor& actual, const Tensor& expected,
                              const ElementRule& rule,
                              absl::Span<const int64_t> origin = {});

// Returns "within rtol 0.5 and atol 0 of ".
std::string FormatTolerance(const Tolerance& tolerance);

// Fails the test, on behalf of a matcher, if a tolerance is negative or NaN.
void CheckTolerance(absl::string_view matcher, const Tolerance& tolerance);

}  // namespace internal
}  // namespace sherd::testing

#endif  // SHERD_TESTING_TENSOR_MATCHERS_H_
