#include "sherd/testing/emulated_gpu/memory/access_history.h"

#include <algorithm>
#include <cstddef>

namespace sherd::testing {
namespace {

using Repeats = std::vector<std::pair<uint64_t, int64_t>>;

uint64_t AddressOf(const MemoryAccess& access) {
  return reinterpret_cast<uint64_t>(access.address);
}

// Bounds of the box of repeats[first, …) whose first range begins at `address`.
std::pair<uint64_t, uint64_t> Bounds(uint64_t address, uint64_t bytes,
                                     const Repeats& repeats, size_t first) {
  uint64_t low = address;
  uint64_t high = address + bytes;
  for (size_t d = first; d < repeats.size(); ++d) {
    const auto& [count, stride] = repeats[d];
    if (count == 0) return {address, address};
    const uint64_t reach = (count - 1) * static_cast<uint64_t>(stride);
    (stride < 0 ? low : high) += reach;
  }
  return {low, high};
}

// Calls visit(address) for each range until one returns true.
template <typename Visit>
bool AnyRange(uint64_t address, const Repeats& repeats, size_t first,
              const Visit& visit) {
  if (first == repeats.size()) return visit(address);
  for (uint64_t i = 0; i < repeats[first].first; ++i) {
    if (AnyRange(address + i * static_cast<uint64_t>(repeats[first].second),
                 repeats, first + 1, visit)) {
      return true;
    }
  }
  return false;
}

// Whether the box has a byte in [low, high).
bool Touches(uint64_t address, uint64_t bytes, const Repeats& repeats,
             size_t first, uint64_t low, uint64_t high) {
  const auto [box_low, box_high] = Bounds(address, bytes, repeats, first);
  if (box_low == box_high || box_high <= low || high <= box_low) return false;
  if (first == repeats.size()) return true;
  const auto& [count, stride] = repeats[first];
  for (uint64_t i = 0; i < count; ++i) {
    if (Touches(address + i * static_cast<uint64_t>(stride), bytes, repeats,
                first + 1, low, high)) {
      return true;
    }
  }
  return false;
}

// Whether every byte of `b` is one of `a`, as far as is seen at a glance.
bool Covers(const MemoryAccess& a, uint64_t a_low, uint64_t a_high,
            const MemoryAccess& b, uint64_t b_low, uint64_t b_high) {
  if (a.repeats.empty()) return a_low <= b_low && b_high <= a_high;
  return a.address == b.address && a.bytes == b.bytes && a.repeats == b.repeats;
}

// Joins neighbours that differ only in their address, at equal distances.
std::vector<MemoryAccess> MergeOnce(const std::vector<MemoryAccess>& ranges) {
  std::vector<MemoryAccess> merged;
  for (size_t i = 0; i < ranges.size();) {
    const MemoryAccess& first = ranges[i];
    size_t count = 1;
    int64_t stride = 0;
    while (i + count < ranges.size()) {
      const MemoryAccess& next = ranges[i + count];
      if (next.bytes != first.bytes || next.repeats != first.repeats) break;
      const auto distance = static_cast<int64_t>(
          AddressOf(next) - AddressOf(ranges[i + count - 1]));
      if (count > 1 && distance != stride) break;
      stride = distance;
      ++count;
    }
    MemoryAccess box = first;
    if (count > 1) {
      if (box.repeats.empty() && stride == static_cast<int64_t>(box.bytes)) {
        box.bytes *= count;
      } else {
        box.repeats.insert(box.repeats.begin(), {count, stride});
      }
    }
    merged.push_back(std::move(box));
    i += count;
  }
  return merged;
}

}  // namespace

bool HappensBefore(const OrderedOperation& first,
                   const OrderedOperation& second) {
  if (first.is_host) return first.index < second.index;
  return second.clock.Of(first.lane) >= first.place;
}

std::pair<uint64_t, uint64_t> BoundsOf(const MemoryAccess& access) {
  return Bounds(AddressOf(access), access.bytes, access.repeats, 0);
}

bool Overlap(const MemoryAccess& a, const MemoryAccess& b) {
  if (a.bytes == 0) return false;
  return AnyRange(AddressOf(a), a.repeats, 0, [&](uint64_t address) {
    return Touches(AddressOf(b), b.bytes, b.repeats, 0, address,
                   address + a.bytes);
  });
}

std::vector<MemoryAccess> MergeRanges(const std::vector<MemoryAccess>& ranges) {
  std::vector<MemoryAccess> all;
  for (const bool writes : {false, true}) {
    std::vector<MemoryAccess> some;
    for (const MemoryAccess& range : ranges) {
      if (range.writes == writes && range.bytes > 0) some.push_back(range);
    }
    for (size_t before = some.size() + 1; some.size() < before;) {
      before = some.size();
      some = MergeOnce(some);
    }
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

OperationRef AccessHistory::Add(const OperationRef& operation,
                                const MemoryAccess& access, bool compact) {
  const auto [low, high] = BoundsOf(access);
  OperationRef conflict;
  const auto check = [&, low = low, high = high](const Record& record) {
    if (record.operation == operation) return false;
    if (record.high <= low || high <= record.low) return false;
    const bool before = HappensBefore(*record.operation, *operation);
    const bool harmless = !record.access.writes && !access.writes;
    if (!harmless && conflict == nullptr && !before &&
        !HappensBefore(*operation, *record.operation) &&
        Overlap(record.access, access)) {
      conflict = record.operation;
    }
    // An access that conflicts with it also conflicts with this one.
    return compact && before && (access.writes || !record.access.writes) &&
           Covers(access, low, high, record.access, record.low, record.high);
  };
  records_.erase(std::remove_if(records_.begin(), records_.end(), check),
                 records_.end());
  records_.push_back({operation, access, low, high});
  return conflict;
}

OperationRef AccessHistory::FindNotBefore(const OrderedOperation& last) const {
  for (const Record& record : records_) {
    if (!HappensBefore(*record.operation, last)) return record.operation;
  }
  return nullptr;
}

void AccessHistory::Forget(const Clock& known) {
  std::erase_if(records_, [&known](const Record& record) {
    return record.operation->is_host ||
           known.Of(record.operation->lane) >= record.operation->place;
  });
}

}  // namespace sherd::testing
