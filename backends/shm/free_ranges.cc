#include "sherd/backends/shm/free_ranges.h"

#include <algorithm>
#include <iterator>

namespace sherd::internal {

void FreeRanges::Insert(SlabRange range, uint64_t age) {
  by_begin_.emplace(range.begin, Entry{range.size, age});
  by_size_.emplace(range.size, range.begin);
  if (age != 0) by_age_.emplace(age, range.begin);
  total_bytes_ += range.size;
}

SlabRange FreeRanges::Remove(Place place) {
  const SlabRange range = {place->first, place->second.size};
  by_size_.erase({range.size, range.begin});
  if (place->second.age != 0) by_age_.erase({place->second.age, range.begin});
  by_begin_.erase(place);
  total_bytes_ -= range.size;
  return range;
}

SlabRange FreeRanges::Add(SlabRange range, uint64_t age) {
  const auto walled = [this](uint64_t at) {
    return walls_ != nullptr && walls_->contains(at);
  };
  const Place after = by_begin_.lower_bound(range.begin);
  if (after != by_begin_.begin() && !walled(range.begin)) {
    const Place before = std::prev(after);
    if (before->first + before->second.size == range.begin) {
      age = std::max(age, before->second.age);
      const SlabRange joined = Remove(before);
      range = {joined.begin, joined.size + range.size};
    }
  }
  if (after != by_begin_.end() && after->first == range.end() &&
      !walled(range.end())) {
    age = std::max(age, after->second.age);
    range.size += Remove(after).size;
  }
  Insert(range, age);
  return range;
}

std::optional<uint64_t> FreeRanges::FindFit(uint64_t bytes) const {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) return std::nullopt;
  return fit->first;
}

std::optional<SlabRange> FreeRanges::Take(uint64_t bytes) {
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const Place place = by_begin_.find(fit->second);
  const uint64_t age = place->second.age;
  const SlabRange range = Remove(place);
  if (range.size > bytes) {
    Insert({range.begin + bytes, range.size - bytes}, age);
  }
  return SlabRange{range.begin, bytes};
}

SlabRange FreeRanges::TakeAt(uint64_t begin) {
  return Remove(by_begin_.find(begin));
}

std::optional<FreeRanges::Aged> FreeRanges::FindOldest() const {
  if (by_age_.empty()) return std::nullopt;
  return Aged{by_age_.begin()->first, by_age_.begin()->second};
}

}  // namespace sherd::internal
