#include "sherd/core/sharding/spec/shard_validation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/box/box_overlap.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/sharding/box/distinct_boxes.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using internal::BoxSet;
using internal::DistinctBoxes;

std::string FormatVolume(absl::uint128 volume) {
  std::string digits;
  do {
    digits.insert(digits.begin(),
                  static_cast<char>('0' + static_cast<int>(volume % 10)));
    volume /= 10;
  } while (volume != 0);
  return digits;
}

absl::Status CheckInside(const ShardMetadata& shard,
                         absl::Span<const int64_t> size) {
  const std::optional<size_t> d = FindDimOutside(shard, size);
  if (!d) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Shard offset ", shard.offsets[*d], " and length ", shard.sizes[*d],
      " exceeds tensor dim: ", size[*d], " for shard ", shard.ToString()));
}

using Pair = std::pair<size_t, size_t>;

// Overlaps that an error names, at most.
constexpr size_t kMaxNamed = 3;

// `first` and what else overlaps, by the positions of the shards.
absl::Status OverlapError(absl::Span<const ShardMetadata> shards,
                          const BoxSet& boxes, const Pair& first) {
  std::vector<Pair> found = {first};
  internal::ForEachOverlap(boxes, boxes, [&](size_t i, size_t j) {
    if (i < j && Pair(i, j) != first) found.emplace_back(i, j);
    return found.size() <= kMaxNamed;
  });
  const auto name = [&](const Pair& pair) {
    return absl::StrCat(shards[boxes.id(pair.first)].ToString(), " and ",
                        shards[boxes.id(pair.second)].ToString());
  };
  std::string text = absl::StrCat("Shards ", name(first), " overlap");
  for (size_t i = 1; i < std::min(found.size(), kMaxNamed); ++i) {
    absl::StrAppend(&text, i == 1 ? "; so do " : ", ", name(found[i]));
  }
  if (found.size() > kMaxNamed) text += ", and others";
  return absl::InvalidArgumentError(text);
}

// Two of `holders`, positions of shards with equal boxes, that have the same
// placement.
std::optional<std::pair<int, int>> FindSamePlacement(
    absl::Span<const ShardMetadata> shards, absl::Span<const int> holders) {
  constexpr size_t kFew = 8;
  if (holders.size() <= kFew) {
    for (size_t i = 0; i < holders.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (shards[holders[i]].placement == shards[holders[j]].placement) {
          return std::pair(holders[j], holders[i]);
        }
      }
    }
    return std::nullopt;
  }
  absl::flat_hash_map<Placement, int> seen;
  int unplaced = -1;
  for (const int i : holders) {
    if (!shards[i].placement) {
      if (unplaced >= 0) return std::pair(unplaced, i);
      unplaced = i;
      continue;
    }
    const auto [same, is_new] = seen.try_emplace(*shards[i].placement, i);
    if (!is_new) return std::pair(same->second, i);
  }
  return std::nullopt;
}

// Of `boxes`, the first of those that are equal.
//   kInvalidArgument  Two of them have the same placement.
absl::StatusOr<DistinctBoxes> WithoutReplicas(
    absl::Span<const ShardMetadata> shards, const BoxSet& boxes) {
  DistinctBoxes distinct =
      internal::FindDistinct(boxes, [](size_t) { return true; });
  for (const auto& holders : distinct.holders) {
    const auto same = FindSamePlacement(shards, holders);
    if (!same) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Shards ", shards[same->first].ToString(), " and ",
                     shards[same->second].ToString(),
                     " overlap: replicas of a box have different placements"));
  }
  return distinct;
}

}  // namespace

absl::Status ValidateNonOverlapping(absl::Span<const ShardMetadata> shards,
                                    Replicas replicas) {
  if (shards.empty()) return absl::OkStatus();
  const size_t dims = shards[0].sizes.size();
  BoxSet boxes(static_cast<int>(dims));
  boxes.Reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardMetadata& shard = shards[i];
    SHERD_RETURN_IF_ERROR(shard.Validate());
    if (shard.sizes.size() != dims) {
      return absl::InvalidArgumentError(
          absl::StrCat("Found inconsistent ranks for shards: ", dims,
                       " dimensions in ", shards[0].ToString(), " and ",
                       shard.sizes.size(), " in ", shard.ToString()));
    }
    boxes.Add(shard, static_cast<int>(i));
  }
  std::optional<Pair> overlap = internal::FindOverlap(boxes);
  if (!overlap) return absl::OkStatus();
  if (replicas == Replicas::kAllowed) {
    SHERD_ASSIGN_OR_RETURN(DistinctBoxes distinct,
                           WithoutReplicas(shards, boxes));
    if (!distinct.overlap) return absl::OkStatus();
    overlap = distinct.overlap;
    boxes = std::move(distinct.boxes);
  }
  return OverlapError(shards, boxes, *overlap);
}

absl::Status ValidateCover(absl::Span<const ShardMetadata> shards,
                           absl::Span<const int64_t> size, Replicas replicas) {
  SHERD_ASSIGN_OR_RETURN(const int64_t expected, NumElements(size));
  absl::uint128 volume = 0;
  // With replicas: the boxes that were counted. They do not move.
  BoxSet boxes(static_cast<int>(size.size()));
  absl::flat_hash_set<absl::Span<const int64_t>> counted;
  if (replicas == Replicas::kAllowed) boxes.Reserve(shards.size());
  for (const ShardMetadata& shard : shards) {
    SHERD_RETURN_IF_ERROR(shard.Validate());
    if (shard.sizes.size() != size.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Rank of tensor is ", size.size(), ", but shards rank is ",
          shard.sizes.size(), " in ", shard.ToString()));
    }
    // It holds nothing, wherever it is.
    if (IsEmpty(shard)) continue;
    SHERD_RETURN_IF_ERROR(CheckInside(shard, size));
    if (replicas == Replicas::kAllowed) {
      boxes.Add(shard, 0);
      if (!counted.insert(boxes.numbers(boxes.size() - 1)).second) continue;
    }
    volume += static_cast<uint64_t>(Volume(shard));
  }
  if (volume == static_cast<uint64_t>(expected)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the volume of the shards, ", FormatVolume(volume),
      ", does not match tensor volume ", expected, " of size ",
      FormatDims(size), ": the shards do not cover the entire tensor"));
}

}  // namespace sherd
