#include "sherd/core/sharding/spec/placed_box.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, const RankResolver& resolver) {
  std::vector<PlacedBox> boxes;
  boxes.reserve(shards.size());
  for (const ShardMetadata& shard : shards) {
    const absl::StatusOr<int> rank = resolver.Resolve(shard.placement);
    if (!rank.ok()) return Annotate(rank.status(), shard.ToString());
    boxes.push_back({{shard.offsets, shard.sizes}, *rank});
  }
  return boxes;
}

absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, absl::Span<const int> world_ranks) {
  return PlacedBoxes(shards, RankResolver(world_ranks));
}

namespace internal {
namespace {

absl::Status CheckBox(const PlacedBox& box, size_t dims) {
  if (!IsValid(box) || box.rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(FormatPlacedBox(box),
                     ": expected as many offsets as sizes, none negative, "
                     "and an end that fits in 64 bits"));
  }
  if (box.sizes.size() != dims) {
    return absl::InvalidArgumentError(
        absl::StrCat(FormatPlacedBox(box), " has ", box.sizes.size(),
                     " dimensions, the first one has ", dims));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FormatPlacedBox(const PlacedBox& box) {
  return absl::StrCat("box at ", FormatDims(box.offsets), " of size ",
                      FormatDims(box.sizes), " on rank ", box.rank);
}

absl::StatusOr<int> CheckBoxes(absl::Span<const PlacedBox> from,
                               absl::Span<const PlacedBox> to,
                               absl::Span<const int> host_of_rank) {
  const absl::Span<const PlacedBox> any = from.empty() ? to : from;
  const size_t dims = any.empty() ? 0 : any[0].sizes.size();
  for (const absl::Span<const PlacedBox> boxes : {from, to}) {
    for (const PlacedBox& box : boxes) {
      SHERD_RETURN_IF_ERROR(CheckBox(box, dims));
      if (host_of_rank.empty() ||
          static_cast<size_t>(box.rank) < host_of_rank.size()) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat(FormatPlacedBox(box), ": hosts are given of ",
                       host_of_rank.size(), " ranks only"));
    }
  }
  return static_cast<int>(dims);
}

BoxSet ToBoxSet(absl::Span<const PlacedBox> boxes, int dims) {
  BoxSet set(dims);
  set.Reserve(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    set.Add(boxes[i], static_cast<int>(i));
  }
  return set;
}

int LastRank(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to) {
  int last = 0;
  for (const absl::Span<const PlacedBox> boxes : {from, to}) {
    for (const PlacedBox& box : boxes) last = std::max(last, box.rank);
  }
  return last;
}

}  // namespace internal
}  // namespace sherd
