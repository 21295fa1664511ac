#include "sherd/core/sharding/box/box_overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

#include "absl/container/btree_map.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/sharding/box/box_grid.h"
#include "sherd/core/sharding/box/box_shadow.h"

namespace sherd::internal {
namespace {

using Positions = std::vector<uint32_t>;

Positions AllPositions(const BoxSet& boxes) {
  Positions all(boxes.size());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

// The dimensions in which not all boxes have the same interval; in the others
// all boxes overlap.
std::vector<int> VaryingDims(const BoxSet& a, const BoxSet& b) {
  std::vector<int> varying;
  const BoxSet& any = a.size() > 0 ? a : b;
  if (any.size() == 0) return varying;
  for (int d = 0; d < a.dims(); ++d) {
    const auto differs = [&](const BoxSet& set) {
      for (size_t i = 0; i < set.size(); ++i) {
        if (set.lo(i, d) != any.lo(0, d) || set.hi(i, d) != any.hi(0, d)) {
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
// each dimension determines, in both roles, which intervals hold which points.
// Intervals that hold all current points go on to the next dimension; the rest
// is split at the median point.
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
    return sets_[set]->lo(box, dims_[level]);
  }
  int64_t Hi(int set, uint32_t box, size_t level) const {
    return sets_[set]->hi(box, dims_[level]);
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
    // A single point needs no further test: an interval holds it or does not.
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

using Pair = std::pair<size_t, size_t>;

std::optional<Pair> Ordered(size_t a, size_t b) {
  return Pair(std::min(a, b), std::max(a, b));
}

// A line sweeps along the dimension `x`; the intervals in `y` of the boxes that
// it crosses are disjoint as long as no overlap was found.
std::optional<Pair> Sweep(const BoxSet& boxes, int x, int y) {
  struct Event {
    int64_t at;
    uint32_t box;
    bool operator<(const Event& other) const { return at < other.at; }
  };
  std::vector<Event> begins, ends;
  begins.reserve(boxes.size());
  ends.reserve(boxes.size());
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    begins.push_back({boxes.lo(i, x), i});
    ends.push_back({boxes.hi(i, x), i});
  }
  for (std::vector<Event>* events : {&begins, &ends}) {
    if (std::is_sorted(events->begin(), events->end())) continue;
    std::sort(events->begin(), events->end());
  }
  absl::btree_map<int64_t, uint32_t> crossed;
  auto end = ends.begin();
  for (const Event& begin : begins) {
    // Ends come before begins at the same place.
    for (; end->at <= begin.at; ++end) crossed.erase(boxes.lo(end->box, y));
    const int64_t lo = boxes.lo(begin.box, y);
    const auto next = crossed.lower_bound(lo);
    if (next != crossed.end() && next->first < boxes.hi(begin.box, y)) {
      return Ordered(next->second, begin.box);
    }
    if (next != crossed.begin()) {
      const uint32_t before = std::prev(next)->second;
      if (boxes.hi(before, y) > lo) return Ordered(before, begin.box);
    }
    crossed.emplace_hint(next, lo, begin.box);
  }
  return std::nullopt;
}

// Finds an overlap by cutting the set where a plane touches no box, in one
// dimension after the other, until nothing is left to compare: completely for
// grids, bricks and any other result of cutting. Only groups that no plane
// cuts, or that would take too many cuts, are searched otherwise.
class Separation {
 public:
  explicit Separation(const BoxSet& boxes) : boxes_(boxes) {}

  std::optional<Pair> FindOverlap() {
    const size_t n = boxes_.size();
    order_ = AllPositions(boxes_);
    intervals_.resize(n);
    // A set of n boxes that are cut off one by one has n levels.
    int max_level = 16 * std::max(boxes_.dims(), 1);
    for (size_t left = n; left > 0; left /= 2) ++max_level;
    groups_.push_back({0, n, 0, 0});
    while (!groups_.empty()) {
      const Group group = groups_.back();
      groups_.pop_back();
      if (group.level < max_level && Cut(group)) continue;
      if (const auto found = Search(group)) return found;
    }
    return std::nullopt;
  }

 private:
  // The boxes order_[begin] to order_[end - 1], at least two.
  struct Group {
    size_t begin;
    size_t end;
    // Where to try first.
    int dim;
    int level;
  };
  struct Interval {
    int64_t lo;
    int64_t hi;
    uint32_t box;
  };

  // Lists mostly have some order, and a dimension along which they are sorted
  // is cheap to cut.
  bool Cut(const Group& group) {
    for (const bool may_sort : {false, true}) {
      for (int i = 0; i < boxes_.dims(); ++i) {
        const int dim = (group.dim + i) % boxes_.dims();
        if (CutAlong(dim, group, may_sort)) return true;
      }
    }
    return false;
  }

  // With `may_sort`, only what is not sorted.
  bool CutAlong(int dim, const Group& group, bool may_sort) {
    Interval* const intervals = intervals_.data();
    const size_t n = group.end - group.begin;
    bool sorted = true;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t box = order_[group.begin + i];
      intervals[i] = {boxes_.lo(box, dim), boxes_.hi(box, dim), box};
      sorted = sorted && (i == 0 || intervals[i - 1].lo <= intervals[i].lo);
      if (!sorted && !may_sort) return false;
    }
    if (sorted && may_sort) return false;
    if (!sorted) {
      std::sort(
          intervals, intervals + n,
          [](const Interval& a, const Interval& b) { return a.lo < b.lo; });
    }
    size_t begin = 0;
    int64_t end = intervals[0].hi;
    for (size_t i = 1; i < n; ++i) {
      if (intervals[i].lo >= end) {
        Push(begin, i, dim, group);
        begin = i;
      }
      end = std::max(end, intervals[i].hi);
    }
    if (begin == 0) return false;
    Push(begin, n, dim, group);
    if (!sorted) {
      for (size_t i = 0; i < n; ++i) {
        order_[group.begin + i] = intervals[i].box;
      }
    }
    return true;
  }

  void Push(size_t begin, size_t end, int dim, const Group& group) {
    if (end - begin < 2) return;
    groups_.push_back({group.begin + begin, group.begin + end,
                       (dim + 1) % boxes_.dims(), group.level + 1});
  }

  std::optional<Pair> Search(const Group& group) const {
    BoxSet set(boxes_.dims());
    set.Reserve(group.end - group.begin);
    for (size_t i = group.begin; i < group.end; ++i) {
      set.AddFrom(boxes_, order_[i], static_cast<int>(order_[i]));
    }
    const std::optional<Pair> found = SearchAll(set);
    if (!found) return std::nullopt;
    return Ordered(static_cast<size_t>(set.id(found->first)),
                   static_cast<size_t>(set.id(found->second)));
  }

  static std::optional<Pair> SearchAll(const BoxSet& set) {
    const std::vector<int> dims = VaryingDims(set, set);
    // All equal.
    if (dims.empty()) return Pair(0, 1);
    // With one dimension the other one is the same for all.
    if (dims.size() <= 2) return Sweep(set, dims.front(), dims.back());
    std::optional<Pair> found;
    const auto visit = [&](size_t i, size_t j) {
      if (i != j) found = Ordered(i, j);
      return !found.has_value();
    };
    OverlapFinder(set, set, visit).Run();
    return found;
  }

  const BoxSet& boxes_;
  Positions order_;
  // For one group at a time.
  std::vector<Interval> intervals_;
  std::vector<Group> groups_;
};

// Pairs of any two sets.
void ForEachPair(const BoxSet& a, const BoxSet& b,
                 absl::FunctionRef<bool(size_t, size_t)> visit) {
  const std::optional<BoxGrid> grid = BoxGrid::Detect(b);
  if (!grid) return OverlapFinder(a, b, visit).Run();
  for (size_t i = 0; i < a.size(); ++i) {
    const bool go_on =
        grid->ForEachIn(a[i], [&](size_t j) { return visit(i, j); });
    if (!go_on) return;
  }
}

// The boxes of `set` that may have an element in common with one of `few`, by
// their position.
BoxSet Near(const BoxSet& few, const BoxSet& set) {
  const BoxShadow shadow(few);
  BoxSet near(set.dims());
  for (size_t i = 0; i < set.size(); ++i) {
    if (!shadow.Touches(set[i])) continue;
    near.AddFrom(set, i, static_cast<int>(i));
  }
  return near;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(const BoxSet& boxes) {
  if (boxes.size() < 2) return std::nullopt;
  return Separation(boxes).FindOverlap();
}

void ForEachOverlap(const BoxSet& a, const BoxSet& b,
                    absl::FunctionRef<bool(size_t, size_t)> visit) {
  SHERD_CHECK(a.dims() == b.dims());
  if (a.size() == 0 || b.size() == 0) return;
  // A rank of many has few boxes, and few of all others are near them.
  constexpr size_t kFewer = 16;
  if (a.size() < b.size() / kFewer) {
    const BoxSet near = Near(a, b);
    return ForEachPair(a, near, [&](size_t i, size_t j) {
      return visit(i, static_cast<size_t>(near.id(j)));
    });
  }
  if (b.size() < a.size() / kFewer) {
    const BoxSet near = Near(b, a);
    return ForEachPair(near, b, [&](size_t i, size_t j) {
      return visit(static_cast<size_t>(near.id(i)), j);
    });
  }
  ForEachPair(a, b, visit);
}

}  // namespace sherd::internal
