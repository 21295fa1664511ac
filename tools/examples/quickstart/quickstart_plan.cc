#include "sherd/tools/examples/quickstart/quickstart_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sherd/core/tensor/box.h"

namespace sherd {
namespace {

// In this order tensors take turns.
constexpr LayoutKind kCycle[] = {LayoutKind::kRows, LayoutKind::kColumns,
                                 LayoutKind::kGrid, LayoutKind::kUneven,
                                 LayoutKind::kOneRankEmpty};

PlacedBox Whole(absl::Span<const int64_t> shape, int rank) {
  return {WholeBox(shape), rank};
}

PlacedBox Cut(PlacedBox box, int dim, int64_t begin, int64_t end, int rank) {
  box.offsets[dim] = begin;
  box.sizes[dim] = end - begin;
  box.rank = rank;
  return box;
}

int LongestDim(absl::Span<const int64_t> shape) {
  return static_cast<int>(std::max_element(shape.begin(), shape.end()) -
                          shape.begin());
}

std::vector<PlacedBox> Chunks(absl::Span<const int64_t> shape, int dim,
                              int ranks) {
  const int64_t size = shape[dim];
  const int64_t step = (size + ranks - 1) / ranks;
  std::vector<PlacedBox> boxes;
  for (int r = 0; r < ranks; ++r) {
    const int64_t begin = std::min(size, step * r);
    const int64_t end = std::min(size, begin + step);
    boxes.push_back(Cut(Whole(shape, r), dim, begin, end, r));
  }
  return boxes;
}

// Cuts `dim` in proportion to `weights`; a rank without weight or elements gets
// no box.
std::vector<PlacedBox> Weighted(const PlacedBox& whole, int dim,
                                const std::vector<int64_t>& weights,
                                const std::vector<int>& ranks) {
  const int64_t begin = whole.offsets[dim];
  const int64_t size = whole.sizes[dim];
  const int64_t total =
      std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<PlacedBox> boxes;
  if (total == 0) return boxes;
  int64_t before = 0;
  int64_t weight = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    weight += weights[i];
    // Whole and rest apart, since size * weight may not fit.
    const int64_t end = size / total * weight + size % total * weight / total;
    if (end > before) {
      boxes.push_back(Cut(whole, dim, begin + before, begin + end, ranks[i]));
    }
    before = end;
  }
  return boxes;
}

std::vector<int> Numbers(int first, int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::vector<PlacedBox> Grid(absl::Span<const int64_t> shape, int ranks) {
  const int first = LongestDim(shape);
  int second = -1;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (d != first && (second < 0 || shape[d] > shape[second])) second = d;
  }
  const int bands =
      ranks < 3 ? ranks
                : std::max(2, static_cast<int>(std::sqrt(double(ranks))));
  const int down = std::min(first, second);
  const int right = std::max(first, second);
  const std::vector<PlacedBox> strips = Weighted(
      Whole(shape, 0), down, std::vector<int64_t>(bands, 1), Numbers(0, bands));
  std::vector<PlacedBox> boxes;
  int rank = 0;
  for (const PlacedBox& strip : strips) {
    const int count = ranks / bands + (strip.rank < ranks % bands ? 1 : 0);
    for (PlacedBox& box : Weighted(strip, right, std::vector<int64_t>(count, 1),
                                   Numbers(rank, count))) {
      boxes.push_back(std::move(box));
    }
    rank += count;
  }
  return boxes;
}

std::vector<PlacedBox> Uneven(absl::Span<const int64_t> shape, int ranks,
                              int variation) {
  std::vector<int64_t> weights;
  for (int r = 0; r < ranks; ++r) {
    weights.push_back((r + variation) % ranks + 1);
  }
  return Weighted(Whole(shape, 0), LongestDim(shape), weights,
                  Numbers(0, ranks));
}

std::vector<PlacedBox> OneRankEmpty(absl::Span<const int64_t> shape, int ranks,
                                    int variation) {
  std::vector<int64_t> weights(ranks, 1);
  if (ranks > 1) weights[variation % ranks] = 0;
  return Weighted(Whole(shape, 0), LongestDim(shape), weights,
                  Numbers(0, ranks));
}

std::vector<PlacedBox> Reversed(std::vector<PlacedBox> boxes, int ranks) {
  std::erase_if(boxes, [](const PlacedBox& box) { return box.sizes[0] == 0; });
  for (PlacedBox& box : boxes) box.rank = ranks - 1 - box.rank;
  return boxes;
}

}  // namespace

absl::string_view Name(LayoutKind kind) {
  switch (kind) {
    case LayoutKind::kRows:
      return "rows";
    case LayoutKind::kColumns:
      return "columns";
    case LayoutKind::kGrid:
      return "grid";
    case LayoutKind::kUneven:
      return "uneven";
    case LayoutKind::kOneRankEmpty:
      return "one rank empty";
    case LayoutKind::kWhole:
      return "one rank";
  }
  return "?";
}

PlannedLayout PlanLayout(LayoutKind kind, absl::Span<const int64_t> shape,
                         int ranks, int variation) {
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  const int rank = static_cast<int>(shape.size());
  if (rank == 0) kind = LayoutKind::kWhole;
  if (rank == 1 && kind == LayoutKind::kGrid) kind = LayoutKind::kUneven;
  // Only the chunk rule has pieces of nothing.
  if (empty && kind != LayoutKind::kColumns) kind = LayoutKind::kRows;
  PlannedLayout plan{.kind = kind};
  switch (kind) {
    case LayoutKind::kRows:
      plan.chunk_dim = 0;
      break;
    case LayoutKind::kColumns:
      if (rank > 1 || empty) {
        plan.chunk_dim = rank - 1;
      } else {
        plan.boxes = Reversed(Chunks(shape, 0, ranks), ranks);
      }
      break;
    case LayoutKind::kGrid:
      plan.boxes = Grid(shape, ranks);
      break;
    case LayoutKind::kUneven:
      plan.boxes = Uneven(shape, ranks, variation);
      break;
    case LayoutKind::kOneRankEmpty:
      plan.boxes = OneRankEmpty(shape, ranks, variation);
      break;
    case LayoutKind::kWhole:
      plan.boxes = {Whole(shape, variation % ranks)};
      break;
  }
  if (plan.chunk_dim) plan.boxes = Chunks(shape, *plan.chunk_dim, ranks);
  return plan;
}

QuickstartLayouts PlanQuickstart(int64_t index, absl::Span<const int64_t> shape,
                                 int save_ranks, int load_ranks) {
  constexpr int64_t kKinds = std::size(kCycle);
  const int variation = static_cast<int>(index % 997);
  const auto kind = [&](int64_t step) {
    return kCycle[(index + step) % kKinds];
  };
  return {PlanLayout(kind(0), shape, save_ranks, variation),
          PlanLayout(kind(1), shape, save_ranks, variation + 1),
          PlanLayout(kind(2), shape, load_ranks, variation + 2)};
}

}  // namespace sherd
