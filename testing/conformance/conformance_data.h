#ifndef SHERD_TESTING_CONFORMANCE_CONFORMANCE_DATA_H_
#define SHERD_TESTING_CONFORMANCE_CONFORMANCE_DATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing::internal {

// The data that the conformance suite sends, the data that it expects, and
// buffers that detect a write beside them.

// Memory between two canaries, prefilled with bytes that no test sends.
class GuardedBuffer {
 public:
  // The data begins `shift` bytes after an aligned address.
  explicit GuardedBuffer(size_t size, size_t shift = 0);

  MutableBytes bytes() { return {memory_.data() + begin_, size_}; }
  ConstBytes bytes() const { return {memory_.data() + begin_, size_}; }
  // Includes the canaries.
  MutableBytes whole() { return absl::MakeSpan(memory_); }

  // Returns an error that gives the position of a write beside the buffer.
  absl::Status CheckCanaries() const;

  static constexpr std::byte kUntouched{0xa5};

 private:
  size_t size_;
  size_t begin_;
  std::vector<std::byte> memory_;
};

// Returns OK if every byte is as GuardedBuffer's constructor left it.
absl::Status CheckUntouched(ConstBytes bytes);

// A key for the message of rank `from` to rank `to` in call number `call`;
// different keys give different bytes.
uint64_t MessageKey(uint64_t call, int from, int to);

// Fills `bytes` with the message of `key`.
void FillMessage(uint64_t key, MutableBytes bytes);

// Returns OK if `bytes` is the message of `key`, otherwise the first
// difference.
absl::Status CheckMessage(uint64_t key, ConstBytes bytes);

// Whether `op` is defined for elements of `dtype`: bits of floats are not
// combined, complex numbers have no order, bools have no average.
bool HasReduction(DType dtype, ReduceOp op);

// Fills `bytes` with `rank`'s elements, from number `first` on, for a reduction
// in call number `call`. They are chosen so that sums and products of up to 16
// ranks are exact before they are rounded to `dtype`, in any order.
void FillElements(DType dtype, ReduceOp op, uint64_t call, int rank,
                  size_t first, MutableBytes bytes);

enum class Rounding {
  kOnce,      // from the exact result
  kEachStep,  // in `dtype`, after each of the ranks; an average may be the sum
              // of the ranks' shares, as in NCCL
};

// Returns OK if `bytes` is the result of ranks 0 to `ranks` - 1, otherwise the
// first wrong element.
absl::Status CheckReduced(DType dtype, ReduceOp op, uint64_t call, int ranks,
                          size_t first, Rounding rounding, ConstBytes bytes);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_CONFORMANCE_DATA_H_
