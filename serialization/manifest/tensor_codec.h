#ifndef SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_
#define SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Layouts and runs as lists of numbers; see FORMAT.md.

// Memory that may still be taken while something untrusted is decoded.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t bytes) : limit_(bytes), left_(bytes) {}

  // `count` things of `bytes` each.
  //   kResourceExhausted  There is less left.
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

// Hands out a list of untrusted numbers in order.
class NumberReader {
 public:
  NumberReader(absl::Span<const uint64_t> numbers, absl::string_view column)
      : numbers_(numbers), column_(column) {}

  absl::string_view column() const { return column_; }
  size_t left() const { return numbers_.size() - next_; }

  //   kDataLoss  There are no more, or the number exceeds `max`.
  absl::StatusOr<int64_t> Take(int64_t max);
  // One that Zigzag made, added to `base`; the result is in [0, max].
  absl::StatusOr<int64_t> TakeDelta(int64_t base, int64_t max);
  // What is left.
  absl::Span<const uint64_t> rest() const { return numbers_.subspan(next_); }
  // Takes these numbers if they come next; returns whether they do.
  bool TakeIfNext(absl::Span<const uint64_t> numbers) {
    if (rest().first(std::min(left(), numbers.size())) != numbers) return false;
    next_ += numbers.size();
    return true;
  }
  // That all were taken.
  absl::Status ExpectEmpty() const;

 private:
  absl::Status Wrong(uint64_t number, int64_t max) const;
  absl::StatusOr<uint64_t> Next();

  absl::Span<const uint64_t> numbers_;
  absl::string_view column_;
  size_t next_ = 0;
};

// Small numbers for differences of either sign.
inline uint64_t Zigzag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^
         static_cast<uint64_t>(value >> 63);
}

void AppendLayout(const SavedLayout& layout, std::vector<uint64_t>& numbers);
// A layout of a tensor of these sizes, which has passed Validate.
absl::StatusOr<SavedLayout> TakeLayout(Dims sizes, NumberReader& numbers,
                                       MemoryBudget& memory);

// Takes the layouts of tensors, one after another. Most tensors of a model have
// the sizes and numbers of one beside them: such a layout is a copy.
class LayoutReader {
 public:
  // Both are borrowed.
  LayoutReader(NumberReader& numbers, MemoryBudget& memory)
      : numbers_(numbers), memory_(memory) {}

  // As TakeLayout. A copy takes as much memory of the budget.
  absl::StatusOr<SavedLayout> Take(const Dims& sizes);

 private:
  NumberReader& numbers_;
  MemoryBudget& memory_;
  // The last layout and its numbers.
  SavedLayout last_;
  absl::Span<const uint64_t> last_numbers_;
};

// `tensor` is complete.
void AppendRuns(const ManifestTensor& tensor, int64_t chunk_bytes,
                std::vector<uint64_t>& numbers);
// The runs of a tensor that is complete but for them. Placements and files are
// in the lists of so many, and no offset is 2^62 or more. Takes kPerListedShard
// of memory for each shard, though the runs need none of it.
absl::StatusOr<std::vector<SavedRun>> TakeRuns(
    const ManifestTensor& tensor, int64_t chunk_bytes, int64_t placements,
    int64_t files, NumberReader& numbers, MemoryBudget& memory);

// Takes from `memory` what decoding the layout and the runs of a tensor takes.
absl::Status TakeTensorMemory(const ManifestTensor& tensor,
                              MemoryBudget& memory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_TENSOR_CODEC_H_
