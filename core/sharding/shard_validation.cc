#include "sherd/core/sharding/shard_validation.h"

#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/box_overlap.h"
#include "sherd/core/sharding/box_set.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

absl::uint128 Volume(absl::Span<const int64_t> sizes) {
  // Validated: the product fits in int64_t.
  absl::uint128 volume = 1;
  for (const int64_t size : sizes) volume *= static_cast<uint64_t>(size);
  return volume;
}

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
  for (size_t d = 0; d < size.size(); ++d) {
    if (shard.sizes[d] > size[d] ||
        shard.offsets[d] > size[d] - shard.sizes[d]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Shard offset ", shard.offsets[d], " and length ", shard.sizes[d],
          " exceeds tensor dim: ", size[d], " for shard ", shard.ToString()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateNonOverlapping(absl::Span<const ShardMetadata> shards) {
  if (shards.empty()) return absl::OkStatus();
  const size_t dims = shards[0].sizes.size();
  internal::BoxSet boxes(static_cast<int>(dims));
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
    boxes.Add(shard.offsets, shard.sizes, static_cast<int>(i));
  }
  const auto overlap = internal::FindOverlap(boxes);
  if (!overlap) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Shards ", shards[boxes.id(overlap->first)].ToString(), " and ",
      shards[boxes.id(overlap->second)].ToString(), " overlap"));
}

absl::Status ValidateCover(absl::Span<const ShardMetadata> shards,
                           absl::Span<const int64_t> size) {
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  absl::uint128 volume = 0;
  for (const ShardMetadata& shard : shards) {
    SHERD_RETURN_IF_ERROR(shard.Validate());
    if (shard.sizes.size() != size.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Rank of tensor is ", size.size(), ", but shards rank is ",
          shard.sizes.size(), " in ", shard.ToString()));
    }
    const absl::uint128 own = Volume(shard.sizes);
    if (own == 0) continue;
    SHERD_RETURN_IF_ERROR(CheckInside(shard, size));
    volume += own;
  }
  if (volume == Volume(size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the volume of the shards, ", FormatVolume(volume),
                   ", does not match tensor volume ",
                   FormatVolume(Volume(size)), " of size ", FormatDims(size),
                   ": the shards do not cover the entire tensor"));
}

}  // namespace sherd
