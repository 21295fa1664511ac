#include "sherd/core/sharding/shard_metadata.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/error_info.h"

namespace sherd {

absl::Status ShardMetadata::Validate() const {
  size_t dim = 0;
  switch (FindBoxDefect(*this, &dim)) {
    case BoxDefect::kNone:
      break;
    case BoxDefect::kDifferentDims:
      return absl::InvalidArgumentError(absl::StrCat(
          "shard_offsets and shard_sizes should have the same number of "
          "elements, found ",
          offsets.size(), " and ", sizes.size(), " in ", ToString()));
    case BoxDefect::kNegativeOffset:
      return absl::InvalidArgumentError(
          absl::StrCat("shard_offsets should be >=0, found ", ToString()));
    case BoxDefect::kNegativeSize:
      return absl::InvalidArgumentError(
          absl::StrCat("shard_sizes should be >= 0, found ", ToString()));
    case BoxDefect::kEndOverflows:
      return absl::InvalidArgumentError(
          absl::StrCat("the end of the shard in dimension ", dim,
                       " does not fit in 64 bits: ", ToString()));
    case BoxDefect::kTooLarge:
      return Annotate(NumElements(sizes).status(), ToString());
  }
  return placement ? placement->status() : absl::OkStatus();
}

std::string ShardMetadata::ToString() const {
  return absl::StrCat("ShardMetadata(offsets=", FormatDims(offsets),
                      ", sizes=", FormatDims(sizes), ", placement=",
                      placement ? placement->ToString() : "None", ")");
}

std::ostream& operator<<(std::ostream& out, const ShardMetadata& shard) {
  return out << shard.ToString();
}

bool SameShard(const ShardMetadata& a, const ShardMetadata& b) {
  return a == b || (BoxView(a) == BoxView(b) && a.placement && b.placement &&
                    SamePlace(*a.placement, *b.placement));
}

std::string ShardedTensorMetadata::ToString() const {
  const auto format = [](std::string* out, const ShardMetadata& shard) {
    absl::StrAppend(out, shard.ToString());
  };
  return absl::StrCat("ShardedTensorMetadata(shards=[",
                      absl::StrJoin(shards, ", ", format),
                      "], size=", FormatDims(size),
                      ", properties=", properties.ToString(), ")");
}

std::ostream& operator<<(std::ostream& out,
                         const ShardedTensorMetadata& metadata) {
  return out << metadata.ToString();
}

}  // namespace sherd
