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

// What the conformance suite sends, what it expects, and buffers that notice a
// write beside them.

// Memory between two canaries, prefilled with bytes that no test sends.
class GuardedBuffer {
 public:
  // `shift` bytes past an aligned address.
  explicit GuardedBuffer(size_t size, size_t shift = 0);

  MutableBytes bytes() { return {memory_.data() + begin_, size_}; }
  ConstBytes bytes() const { return {memory_.data() + begin_, size_}; }
  // With the canaries.
  MutableBytes whole() { return absl::MakeSpan(memory_); }

  // An error that says where it was written beside the buffer.
  absl::Status CheckCanaries() const;

  static constexpr std::byte kUntouched{0xa5};

 private:
  size_t size_;
  size_t begin_;
  std::vector<std::byte> memory_;
};

// OK if every byte is as GuardedBuffer's constructor left it.
absl::Status CheckUntouched(ConstBytes bytes);

// A key for what rank `from` sends to rank `to` in call number `call`: other
// keys, other bytes.
uint64_t MessageKey(uint64_t call, int from, int to);

// Fills `bytes` with the message of `key`.
void FillMessage(uint64_t key, MutableBytes bytes);

// OK if `bytes` is the message of `key`, otherwise the first difference.
absl::Status CheckMessage(uint64_t key, ConstBytes bytes);

// Whether Sherd has a meaning for `op` over elements of `dtype`: bits of floats
// are not combined, complex numbers have no order, truth has no average.
bool HasReduction(DType dtype, ReduceOp op);

// Fills `bytes` with the elements from number `first` on that `rank` brings
// into a reduction in call number `call`. They are chosen so that sums and
// products of up to 16 ranks lose nothing before they are rounded to `dtype`,
// whatever the order.
void FillElements(DType dtype, ReduceOp op, uint64_t call, int rank,
                  size_t first, MutableBytes bytes);

enum class Rounding {
  kOnce,      // from the exact result
  kEachStep,  // in `dtype`, after each of the ranks; an average may be the sum
              // of the ranks' shares, as in NCCL
};

// OK if `bytes` is what ranks 0 to `ranks` - 1 have together, otherwise the
// first element that is not.
absl::Status CheckReduced(DType dtype, ReduceOp op, uint64_t call, int ranks,
                          size_t first, Rounding rounding, ConstBytes bytes);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_CONFORMANCE_DATA_H_
