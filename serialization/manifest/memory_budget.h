#ifndef SHERD_SERIALIZATION_MANIFEST_MEMORY_BUDGET_H_
#define SHERD_SERIALIZATION_MANIFEST_MEMORY_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"

namespace sherd {

// Memory that may still be taken while something untrusted is decoded.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t bytes) : limit_(bytes), left_(bytes) {}

  // `count` things of `bytes` each.
  //   kResourceExhausted  There is less left; a LimitError (limit_error.h).
  absl::Status Take(int64_t count, int64_t bytes);
  // So many bytes that were taken.
  void Give(int64_t bytes) { left_ += bytes; }
  int64_t taken() const { return limit_ - left_; }

 private:
  int64_t limit_;
  int64_t left_;
};

// What is taken for a while: until the loan ends.
class MemoryLoan {
 public:
  explicit MemoryLoan(MemoryBudget& budget) : budget_(budget) {}
  MemoryLoan(const MemoryLoan&) = delete;
  MemoryLoan& operator=(const MemoryLoan&) = delete;
  ~MemoryLoan() { budget_.Give(bytes_); }

  // As MemoryBudget.
  absl::Status Take(int64_t count, int64_t bytes);

 private:
  MemoryBudget& budget_;
  int64_t bytes_ = 0;
};

// Memory of a shard in a list of all: of the extents, where they are compared
// or verified.
inline constexpr int64_t kPerListedShard = 64;

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MEMORY_BUDGET_H_
