#ifndef SHERD_BACKENDS_SHM_FREE_RANGES_H_
#define SHERD_BACKENDS_SHM_FREE_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sherd::internal {

// Bytes [begin, begin + size) of an arena.
struct SlabRange {
  uint64_t begin = 0;
  uint64_t size = 0;

  uint64_t end() const { return begin + size; }
  friend bool operator==(const SlabRange&, const SlabRange&) = default;
};

// Disjoint free ranges; neighbours are merged. Allocation is best fit: the
// smallest range that is large enough, and the first of several.
//
// Cost. O(log n) of n ranges, for each function.
class FreeRanges {
 public:
  // With `walls`, ranges are not merged across any of them. They outlive this
  // object; one may be added or removed where no two ranges meet.
  explicit FreeRanges(const std::set<uint64_t>* walls = nullptr)
      : walls_(walls) {}

  // Adds a range that overlaps none here, and returns the range that it was
  // merged into. A merged range is as young as its youngest part; age 0 means
  // no age.
  SlabRange Add(SlabRange range, uint64_t age = 0);

  // The size of the range that Take(bytes) would cut, if there is one.
  std::optional<uint64_t> FindFit(uint64_t bytes) const;

  // Cuts `bytes` > 0 off the beginning of the best fit.
  std::optional<SlabRange> Take(uint64_t bytes);

  // Takes the whole range that begins at `begin`; it must exist.
  SlabRange TakeAt(uint64_t begin);

  // The oldest range and its age, if one has an age.
  struct Aged {
    uint64_t age;
    uint64_t begin;
  };
  std::optional<Aged> FindOldest() const;

  uint64_t total_bytes() const { return total_bytes_; }
  size_t count() const { return by_begin_.size(); }

 private:
  struct Entry {
    uint64_t size;
    uint64_t age;
  };
  using Place = std::map<uint64_t, Entry>::iterator;

  void Insert(SlabRange range, uint64_t age);
  SlabRange Remove(Place place);

  const std::set<uint64_t>* const walls_;
  std::map<uint64_t, Entry> by_begin_;
  // (size, begin)
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
  // (age, begin) of those that have an age.
  std::set<std::pair<uint64_t, uint64_t>> by_age_;
  uint64_t total_bytes_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_FREE_RANGES_H_
