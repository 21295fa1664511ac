#include "sherd/core/sharding/box_overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

#include "absl/container/btree_map.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/sharding/box_grid.h"

namespace sherd::internal {
namespace {

using Positions = std::vector<uint32_t>;

Positions AllPositions(const BoxSet& boxes) {
  Positions all(boxes.size());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

// The dimensions in which not all boxes have the same interval; the others say
// nothing about who overlaps whom.
std::vector<int> VaryingDims(const BoxSet& a, const BoxSet& b) {
  std::vector<int> varying;
  const BoxSet& any = a.size() > 0 ? a : b;
  if (any.size() == 0) return varying;
  for (int d = 0; d < a.dims(); ++d) {
    const auto differs = [&](const BoxSet& set) {
      for (size_t i = 0; i < set.size(); ++i) {
        if (set.lo(i)[d] != any.lo(0)[d] || set.hi(i)[d] != any.hi(0)[d]) {
          return true;
        }
      }
      return false;
    };
    if (differs(a) || differs(b)) varying.push_back(d);
  }
  return varying;
}

// All overlapping pairs between two sets of boxes.
//
// Source. Zomorodian and Edelsbrunner, "Fast software for box intersections",
// 2002: a segment tree over the points of one set, walked without being built.
// Two intervals overlap if and only if one holds the begin of the other, so
// each dimension asks, in both roles, which intervals hold which points. Those
// that hold all points at hand go on to the next dimension; the rest is split
// at the median point.
class OverlapFinder {
 public:
  OverlapFinder(const BoxSet& a, const BoxSet& b,
                absl::FunctionRef<bool(size_t, size_t)> visit)
      : sets_{&a, &b}, visit_(visit), dims_(VaryingDims(a, b)) {}

  void Run() {
    const Positions a = AllPositions(*sets_[0]);
    const Positions b = AllPositions(*sets_[1]);
    Both(0, a, b, 0);
  }

 private:
  // Below this, comparing all pairs is faster than splitting further.
  static constexpr size_t kFew = 16;

  int64_t Lo(int set, uint32_t box, size_t level) const {
    return sets_[set]->lo(box)[dims_[level]];
  }
  int64_t Hi(int set, uint32_t box, size_t level) const {
    return sets_[set]->hi(box)[dims_[level]];
  }

  // Whether an interval of `set` that begins at `lo` may hold the point of a
  // box of the other set. Equal begins count for set 0 only, so that each pair
  // is found once.
  static bool BeginsBefore(int set, int64_t lo, int64_t point) {
    return set == 0 ? lo <= point : lo < point;
  }

  bool Report(int set, uint32_t interval, uint32_t point) {
    return set == 0 ? visit_(interval, point) : visit_(point, interval);
  }

  bool Both(int set, const Positions& own, const Positions& other,
            size_t level) {
    if (own.empty() || other.empty()) return true;
    if (level == dims_.size()) {
      for (const uint32_t i : own) {
        for (const uint32_t j : other) {
          if (!Report(set, i, j)) return false;
        }
      }
      return true;
    }
    return Split(set, own, other, level) && Split(1 - set, other, own, level);
  }

  // Pairs of an interval of `set` and a box of the other set whose begin it
  // holds, in the dimension of `level`, and which overlap in all later ones.
  bool Split(int set, const Positions& intervals, const Positions& points,
             size_t level) {
    if (intervals.empty() || points.empty()) return true;
    if (intervals.size() <= kFew || points.size() <= kFew) {
      return CompareAll(set, intervals, points, level);
    }
    const auto begins = [&](uint32_t p) { return Lo(1 - set, p, level); };
    int64_t first = begins(points[0]);
    int64_t last = first;
    for (const uint32_t p : points) {
      first = std::min(first, begins(p));
      last = std::max(last, begins(p));
    }
    Positions spanning, rest;
    for (const uint32_t i : intervals) {
      const int64_t lo = Lo(set, i, level);
      const int64_t hi = Hi(set, i, level);
      if (!BeginsBefore(set, lo, last) || hi <= first) continue;
      const bool spans = BeginsBefore(set, lo, first) && hi > last;
      (spans ? spanning : rest).push_back(i);
    }
    if (!Both(set, spanning, points, level + 1)) return false;
    // With a single point nothing is left: an interval holds it or does not.
    if (rest.empty() || first == last) return true;
    spanning = Positions();

    std::vector<int64_t> values;
    values.reserve(points.size());
    for (const uint32_t p : points) values.push_back(begins(p));
    const auto middle = values.begin() + values.size() / 2;
    std::nth_element(values.begin(), middle, values.end());
    int64_t median = *middle;
    if (median == first) {
      // The smallest value above it, so that neither half is empty.
      median = last;
      for (const int64_t v : values) {
        if (v > first) median = std::min(median, v);
      }
    }
    Positions left, right;
    for (const uint32_t p : points) {
      (begins(p) < median ? left : right).push_back(p);
    }
    return Split(set, rest, left, level) && Split(set, rest, right, level);
  }

  bool CompareAll(int set, const Positions& intervals, const Positions& points,
                  size_t level) {
    for (const uint32_t i : intervals) {
      const int64_t lo = Lo(set, i, level);
      const int64_t hi = Hi(set, i, level);
      for (const uint32_t p : points) {
        const int64_t point = Lo(1 - set, p, level);
        if (!BeginsBefore(set, lo, point) || point >= hi) continue;
        bool overlap = true;
        for (size_t l = level + 1; l < dims_.size() && overlap; ++l) {
          overlap = Lo(set, i, l) < Hi(1 - set, p, l) &&
                    Lo(1 - set, p, l) < Hi(set, i, l);
        }
        if (overlap && !Report(set, i, p)) return false;
      }
    }
    return true;
  }

  const std::array<const BoxSet*, 2> sets_;
  const absl::FunctionRef<bool(size_t, size_t)> visit_;
  const std::vector<int> dims_;
};

std::optional<std::pair<size_t, size_t>> Ordered(uint32_t a, uint32_t b) {
  return std::pair<size_t, size_t>(std::min(a, b), std::max(a, b));
}

// Neighbours in the order of their begins.
std::optional<std::pair<size_t, size_t>> FindOverlap1(const BoxSet& boxes,
                                                      int dim) {
  Positions order = AllPositions(boxes);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return boxes.lo(a)[dim] < boxes.lo(b)[dim];
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (boxes.hi(order[i - 1])[dim] > boxes.lo(order[i])[dim]) {
      return Ordered(order[i - 1], order[i]);
    }
  }
  return std::nullopt;
}

// A line sweeps along the dimension `x`; the intervals in `y` of the boxes that
// it crosses are disjoint as long as no overlap was found.
std::optional<std::pair<size_t, size_t>> FindOverlap2(const BoxSet& boxes,
                                                      int x, int y) {
  struct Event {
    int64_t at;
    // Ends come before begins at the same place.
    bool begin;
    uint32_t box;
  };
  std::vector<Event> events;
  events.reserve(2 * boxes.size());
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    events.push_back({boxes.lo(i)[x], true, i});
    events.push_back({boxes.hi(i)[x], false, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.begin < b.begin;
  });
  absl::btree_map<int64_t, uint32_t> crossed;
  for (const Event& event : events) {
    const int64_t lo = boxes.lo(event.box)[y];
    if (!event.begin) {
      crossed.erase(lo);
      continue;
    }
    const auto next = crossed.lower_bound(lo);
    if (next != crossed.end() && next->first < boxes.hi(event.box)[y]) {
      return Ordered(next->second, event.box);
    }
    if (next != crossed.begin()) {
      const uint32_t before = std::prev(next)->second;
      if (boxes.hi(before)[y] > lo) return Ordered(before, event.box);
    }
    crossed.emplace_hint(next, lo, event.box);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(const BoxSet& boxes) {
  if (boxes.size() < 2) return std::nullopt;
  if (const std::optional<BoxGrid> grid = BoxGrid::Detect(boxes)) {
    return grid->FindDuplicate();
  }
  // Some dimension varies, or the boxes would all be one cell.
  const std::vector<int> dims = VaryingDims(boxes, boxes);
  if (dims.size() == 1) return FindOverlap1(boxes, dims[0]);
  if (dims.size() == 2) return FindOverlap2(boxes, dims[0], dims[1]);
  std::optional<std::pair<size_t, size_t>> found;
  const auto visit = [&](size_t i, size_t j) {
    if (i != j) found = std::pair(std::min(i, j), std::max(i, j));
    return !found.has_value();
  };
  OverlapFinder(boxes, boxes, visit).Run();
  return found;
}

void ForEachOverlap(const BoxSet& a, const BoxSet& b,
                    absl::FunctionRef<bool(size_t, size_t)> visit) {
  SHERD_CHECK(a.dims() == b.dims());
  if (a.size() == 0 || b.size() == 0) return;
  const std::optional<BoxGrid> grid = BoxGrid::Detect(b);
  if (!grid || !grid->dense()) return OverlapFinder(a, b, visit).Run();
  for (size_t i = 0; i < a.size(); ++i) {
    const bool go_on = grid->ForEachIn(a.lo(i), a.hi(i),
                                       [&](size_t j) { return visit(i, j); });
    if (!go_on) return;
  }
}

}  // namespace sherd::internal
