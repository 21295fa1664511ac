#ifndef SHERD_TESTING_TENSOR_PATTERN_H_
#define SHERD_TESTING_TENSOR_PATTERN_H_

#include <cstdint>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// The model that tests of sharded tensors compare with: contents that are a
// function of the position in the global tensor, so that a misplaced element is
// detected, whatever the dtype. Compares bits. Link @sherd//testing:sharding.
//
//   FillPattern(tensor);
//   ASSERT_THAT(tensor.Reshard(columns), IsOk());
//   EXPECT_TRUE(HasPattern(tensor));
//
// Ranks. Not collective: a rank fills and compares its own shards only.
//
// Devices. Tensors on devices are filled from and compared in host memory; the
// call waits for that.
//
// Errors. HasPattern reports the first wrong element, by its row-major index in
// the global tensor. FillPattern fails the test if a copy to a device fails.

// Fills the box at `offsets` of a tensor of `global_size`. Tensors with
// different `salt` have different contents.
void FillPattern(Tensor tensor, absl::Span<const int64_t> offsets,
                 absl::Span<const int64_t> global_size, uint64_t salt = 0);

// Fills all local shards.
void FillPattern(const ShardedTensor& tensor, uint64_t salt = 0);

// A whole tensor.
Tensor PatternTensor(absl::Span<const int64_t> size, DType dtype,
                     uint64_t salt = 0);

// Whether a box, or all local shards, have the pattern.
::testing::AssertionResult HasPattern(const Tensor& tensor,
                                      absl::Span<const int64_t> offsets,
                                      absl::Span<const int64_t> global_size,
                                      uint64_t salt = 0);
::testing::AssertionResult HasPattern(const ShardedTensor& tensor,
                                      uint64_t salt = 0);

// The same for a tensor that is the box at `origin` of one of `whole_size`.
::testing::AssertionResult HasPattern(const ShardedTensor& tensor,
                                      absl::Span<const int64_t> origin,
                                      absl::Span<const int64_t> whole_size,
                                      uint64_t salt = 0);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_TENSOR_PATTERN_H_
