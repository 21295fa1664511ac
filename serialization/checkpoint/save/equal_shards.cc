#include "sherd/serialization/checkpoint/save/equal_shards.h"

#include <algorithm>
#include <cstddef>

namespace sherd {
namespace {

// Consecutive cells of one volume.
using VisitCells = absl::FunctionRef<void(int64_t cells, int64_t volume)>;

// Consecutive cells of an axis, and how wide each of them is.
void ForEachWidth(const SavedLayout::Axis& axis, int64_t size,
                  VisitCells visit) {
  if (axis.step > 0) {
    const int64_t full = std::min(axis.cells, size / axis.step);
    const int64_t part = full < axis.cells && size % axis.step != 0 ? 1 : 0;
    if (full > 0) visit(full, axis.step);
    if (part > 0) visit(1, size % axis.step);
    if (full + part < axis.cells) visit(axis.cells - full - part, 0);
    return;
  }
  if (axis.cuts.empty()) {
    visit(1, size);
    return;
  }
  for (size_t i = 1; i < axis.cuts.size(); ++i) {
    visit(1, axis.cuts[i] - axis.cuts[i - 1]);
  }
}

// The cells of a grid in the dimensions [d, dims), whose volume in the others
// is `others`.
void ForEachCell(const SavedLayout& layout, size_t d, size_t dims,
                 int64_t others, VisitCells visit) {
  if (d == dims) {
    visit(1, others);
    return;
  }
  ForEachWidth(layout.axes()[d], layout.sizes()[d],
               [&](int64_t cells, int64_t width) {
                 if (d + 1 == dims) {
                   visit(cells, others * width);
                   return;
                 }
                 for (int64_t i = 0; i < cells; ++i) {
                   ForEachCell(layout, d + 1, dims, others * width, visit);
                 }
               });
}

void ForEachVolume(const SavedLayout& layout, VisitCells visit) {
  if (layout.is_grid()) {
    size_t dims = layout.sizes().size();
    int64_t behind = 1;
    while (dims > 0 && layout.axes()[dims - 1].cells == 1) {
      behind *= layout.sizes()[--dims];
    }
    ForEachCell(layout, 0, dims, behind, visit);
    return;
  }
  for (int64_t i = 0; i < layout.size(); ++i) visit(1, layout.VolumeAt(i));
}

// Gives shards their owners, and joins parts that are one.
class Joiner {
 public:
  Joiner(const TensorLayout& tensor,
         absl::FunctionRef<void(const EqualShards&)> visit)
      : element_bytes_(static_cast<int64_t>(SizeOf(tensor.dtype))),
        owners_(*tensor.owners),
        visit_(visit) {}

  void Add(int64_t shards, int64_t volume) {
    const int64_t bytes = volume * element_bytes_;
    if (bytes != equal_.bytes) Flush();
    equal_.bytes = bytes;
    equal_.shards += shards;
  }

  // Call it after the last Add.
  void Flush() {
    while (equal_.shards > 0) {
      const OwnerRun& run = owners_[run_];
      EqualShards part = equal_;
      part.shards = std::min(equal_.shards, run.shards - in_run_);
      part.rank = run.rank + static_cast<int32_t>(in_run_) * run.rank_step;
      part.placement =
          run.placement + static_cast<int32_t>(in_run_) * run.placement_step;
      part.rank_step = run.rank_step;
      part.placement_step = run.placement_step;
      visit_(part);
      equal_.first += part.shards;
      equal_.shards -= part.shards;
      in_run_ += part.shards;
      if (in_run_ == run.shards) {
        ++run_;
        in_run_ = 0;
      }
    }
  }

 private:
  const int64_t element_bytes_;
  const absl::Span<const OwnerRun> owners_;
  const absl::FunctionRef<void(const EqualShards&)> visit_;
  // What has no owners yet.
  EqualShards equal_;
  size_t run_ = 0;
  int64_t in_run_ = 0;
};

}  // namespace

void ForEachEqualShards(const TensorLayout& tensor,
                        absl::FunctionRef<void(const EqualShards&)> visit) {
  Joiner joiner(tensor, visit);
  ForEachVolume(tensor.layout, [&](int64_t cells, int64_t volume) {
    joiner.Add(cells, volume);
  });
  joiner.Flush();
}

}  // namespace sherd
