#include "sherd/core/tensor/types/memory_overlap.h"

#include <algorithm>
#include <numeric>

#include "absl/container/inlined_vector.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

ByteRange RangeOf(const MemoryAccess& box) {
  if (box.data == nullptr || box.element_size == 0) return {};
  const auto data = reinterpret_cast<uintptr_t>(box.data);
  ByteRange range = {data, data + box.element_size};
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    if (box.sizes[d] == 0) return {};
    if (box.sizes[d] == 1) continue;
    const int64_t reach = (box.sizes[d] - 1) * box.strides[d] *
                          static_cast<int64_t>(box.element_size);
    (reach < 0 ? range.begin : range.end) += static_cast<uintptr_t>(reach);
  }
  return range;
}

// Whether  sum of coefficient[i] * x[i] + rest == target  has a solution with
// 0 <= x[i] <= most[i] and 0 <= rest <= max_rest, by trying the numbers that
// the bounds and the greatest common divisors of the coefficients leave. Where
// the coefficients divide one another that is one number for each x.
//
// Source. As numpy.shares_memory does it ("mem_overlap.c").
class BoundedSum {
 public:
  explicit BoundedSum(int64_t max_rest) : max_rest_(max_rest) {}

  void Add(int64_t coefficient, int64_t most) {
    if (coefficient != 0 && most != 0) {
      terms_.push_back({.coefficient = coefficient, .most = most});
    }
  }

  bool MayReach(int64_t target) {
    Prepare();
    return target <= reach_ && Try(terms_.size(), target);
  }

 private:
  struct Term {
    int64_t coefficient = 0;
    int64_t most = 0;
    // Of this and all smaller coefficients.
    int64_t divisor = 0;
    // The maximum of all smaller terms and the rest.
    int64_t reach_of_smaller = 0;
  };

  // Sorts the terms by their coefficients, and merges those whose sums are the
  // same as those of one term.
  void Prepare() {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) {
      return a.coefficient < b.coefficient;
    });
    size_t kept = 0;
    for (const Term& term : terms_) {
      int64_t& most = kept == 0 ? max_rest_ : terms_[kept - 1].most;
      const int64_t unit = kept == 0 ? 1 : terms_[kept - 1].coefficient;
      const int64_t multiple = term.coefficient / unit;
      if (term.coefficient % unit == 0 && most >= multiple - 1) {
        most += multiple * term.most;
      } else {
        terms_[kept++] = term;
      }
    }
    terms_.resize(kept);
    int64_t divisor = 0;
    reach_ = max_rest_;
    for (Term& term : terms_) {
      term.divisor = divisor = std::gcd(divisor, term.coefficient);
      term.reach_of_smaller = reach_;
      reach_ += term.coefficient * term.most;
    }
  }

  // With the first `terms` terms; `target` is neither negative nor out of their
  // range.
  bool Try(size_t terms, int64_t target) {
    if (terms == 0) return true;
    const Term& term = terms_[terms - 1];
    if (target % term.divisor > max_rest_) return false;
    const int64_t missing =
        std::max<int64_t>(target - term.reach_of_smaller, 0);
    const int64_t least =
        missing / term.coefficient + (missing % term.coefficient != 0 ? 1 : 0);
    for (int64_t x = std::min(term.most, target / term.coefficient); x >= least;
         --x) {
      if (--steps_ < 0) return true;
      if (Try(terms - 1, target - x * term.coefficient)) return true;
    }
    return false;
  }

  int64_t max_rest_;
  int64_t reach_ = 0;
  absl::InlinedVector<Term, 8> terms_;
  int steps_ = 2000;
};

// Whether boxes whose ranges meet share a byte.
bool MeetingBoxesMayShare(const MemoryAccess& a, const MemoryAccess& b,
                          const ByteRange& a_range, const ByteRange& b_range) {
  if (IsContiguous(a.sizes, a.strides) && IsContiguous(b.sizes, b.strides)) {
    return true;
  }
  // Counted from the first byte of `a` and, for `b`, down from its last, so
  // that all that is added up is positive.
  BoundedSum sum(static_cast<int64_t>(a.element_size + b.element_size) - 2);
  for (const MemoryAccess* box : {&a, &b}) {
    for (size_t d = 0; d < box->sizes.size(); ++d) {
      const int64_t stride =
          box->sizes[d] == 1
              ? 0
              : box->strides[d] * static_cast<int64_t>(box->element_size);
      sum.Add(stride < 0 ? -stride : stride, box->sizes[d] - 1);
    }
  }
  return sum.MayReach(static_cast<int64_t>(b_range.end - 1 - a_range.begin));
}

}  // namespace

bool IsSameMemory(const MemoryAccess& a, const MemoryAccess& b) {
  if (a.data != b.data || a.element_size != b.element_size ||
      a.sizes != b.sizes) {
    return false;
  }
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

bool MayShareMemory(const MemoryAccess& a, const MemoryAccess& b) {
  const ByteRange a_range = RangeOf(a);
  const ByteRange b_range = RangeOf(b);
  return a_range.Meets(b_range) && MeetingBoxesMayShare(a, b, a_range, b_range);
}

// The accesses of one kind so far, in the order of their begins, without those
// that ended before what is looked for.
class ConflictFinder::Sweep {
 public:
  explicit Sweep(absl::Span<const MemoryAccess> accesses)
      : accesses_(accesses) {}

  void Add(const Entry& entry) {
    entries_.push_back(entry);
    end_ = std::max(end_, entry.range.end);
  }

  // The first that shares memory with `entry`, which begins where they do or
  // behind.
  const Entry* FindSharing(const Entry& entry) {
    if (end_ <= entry.range.begin) {
      entries_.clear();
      return nullptr;
    }
    const auto ended = [&](const Entry& earlier) {
      return earlier.range.end <= entry.range.begin;
    };
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), ended),
                   entries_.end());
    for (const Entry& earlier : entries_) {
      if (MeetingBoxesMayShare(accesses_[earlier.index], accesses_[entry.index],
                               earlier.range, entry.range)) {
        return &earlier;
      }
    }
    return nullptr;
  }

 private:
  absl::Span<const MemoryAccess> accesses_;
  absl::InlinedVector<Entry, 16> entries_;
  uintptr_t end_ = 0;
};

void ConflictFinder::reserve(size_t accesses) {
  accesses_.reserve(accesses);
  entries_.reserve(accesses);
}

void ConflictFinder::Add(const MemoryAccess& access) {
  const size_t index = accesses_.size();
  accesses_.push_back(access);
  const ByteRange range = RangeOf(access);
  if (range.begin == range.end) return;
  if (!alone_ && access.access == Access::kWrite && !access.sizes.empty() &&
      !IsNonOverlapping(access.sizes, access.strides)) {
    alone_ = index;
  }
  is_sorted_ = is_sorted_ &&
               (entries_.empty() || entries_.back().range.begin <= range.begin);
  entries_.push_back({range, index, access.access});
}

std::optional<std::pair<size_t, size_t>> ConflictFinder::Find() {
  if (alone_) return std::pair(*alone_, *alone_);
  if (!is_sorted_) {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) {
                return a.range.begin < b.range.begin;
              });
    is_sorted_ = true;
  }
  Sweep reads(accesses_);
  Sweep writes(accesses_);
  for (const Entry& entry : entries_) {
    const bool is_write = entry.access == Access::kWrite;
    const Entry* other = writes.FindSharing(entry);
    if (other == nullptr && is_write) other = reads.FindSharing(entry);
    if (other != nullptr) return std::minmax(other->index, entry.index);
    (is_write ? writes : reads).Add(entry);
  }
  return std::nullopt;
}

std::optional<std::pair<size_t, size_t>> FindConflict(
    absl::Span<const MemoryAccess> accesses) {
  ConflictFinder finder;
  finder.reserve(accesses.size());
  for (const MemoryAccess& access : accesses) finder.Add(access);
  return finder.Find();
}

}  // namespace sherd::internal
