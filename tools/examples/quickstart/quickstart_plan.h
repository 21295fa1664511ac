#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PLAN_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/tools/sherd/checkpoint/layout_picture.h"

namespace sherd {

// How the quickstart cuts tensors: the kinds take turns, so that each is tried
// on a model of any kind.
enum class LayoutKind {
  // Equal pieces of the first dimension, trailing ones smaller or empty.
  kRows,
  // Equal pieces of the last dimension; of a vector, in reverse order of ranks.
  kColumns,
  // A rectangle per rank, cut along the two longest dimensions.
  kGrid,
  // Pieces of the longest dimension that grow from rank to rank.
  kUneven,
  // Equal pieces of the longest dimension, and one rank without any.
  kOneRankEmpty,
  // All of it on one rank: what a scalar needs.
  kWhole,
};

// "rows", "columns", "grid", "uneven", "one rank empty", "one rank".
absl::string_view Name(LayoutKind kind);

struct PlannedLayout {
  LayoutKind kind = LayoutKind::kWhole;
  // Set if all pieces follow the chunk rule along this dimension, rank after
  // rank; then `boxes` has one entry per rank, empty ones included. Otherwise
  // no box is empty, unless the tensor is.
  std::optional<int> chunk_dim;
  std::vector<PlacedBox> boxes;
};

// The layout of a tensor over `ranks` ranks; `variation` moves what is unequal
// from one rank to the next. `shape` has passed NumElements.
PlannedLayout PlanLayout(LayoutKind kind, absl::Span<const int64_t> shape,
                         int ranks, int variation);

// The three layouts of tensor number `index` in the quickstart.
struct QuickstartLayouts {
  PlannedLayout scattered;
  PlannedLayout saved;
  PlannedLayout loaded;
};
QuickstartLayouts PlanQuickstart(int64_t index, absl::Span<const int64_t> shape,
                                 int save_ranks, int load_ranks);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_PLAN_H_
