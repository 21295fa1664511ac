#ifndef SHERD_SERIALIZATION_MANIFEST_NUMBER_READER_H_
#define SHERD_SERIALIZATION_MANIFEST_NUMBER_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

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

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_NUMBER_READER_H_
