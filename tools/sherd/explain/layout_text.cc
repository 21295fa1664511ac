#include "sherd/tools/sherd/explain/layout_text.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/box.h"

namespace sherd {

const char kLayoutHelp[] =
    "Layouts are written as one of\n"
    "  chunk(0) over 8            dimension 0 in 8 chunks, on ranks 0 to 7\n"
    "  grid(2x4)                  a 2 x 4 grid of boxes, one for each rank\n"
    "  mesh(2x4: shard(0), replicate)\n"
    "                             a mesh of ranks, as in DTensor\n"
    "  cyclic(64x64, 2x4)         64 x 64 blocks dealt to a 2 x 4 grid of "
    "ranks\n"
    "  whole over 8               all of it on each of 8 ranks\n"
    "\"over\" takes a number of ranks, or a list: over 4-7, over 3,1,0,2, over "
    "5-5";

namespace {

constexpr int64_t kMaxBoxes = int64_t{1} << 22;
constexpr int64_t kMaxRanks = int64_t{1} << 20;

absl::Status Error(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\": expected ", expected));
}

// A word like "chunk" and the text in its parentheses, if it has any.
struct Term {
  absl::string_view name;
  std::optional<absl::string_view> inside;
};

absl::StatusOr<Term> ParseTerm(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t open = text.find('(');
  if (open == absl::string_view::npos) return Term{text, std::nullopt};
  if (!absl::EndsWith(text, ")")) return Error(text, "a closing parenthesis");
  return Term{absl::StripAsciiWhitespace(text.substr(0, open)),
              text.substr(open + 1, text.size() - open - 2)};
}

absl::StatusOr<int64_t> ParseNumber(absl::string_view text, int64_t min,
                                    int64_t max) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) {
    return number;
  }
  return Error(text, absl::StrCat("a number from ", min, " to ", max));
}

absl::StatusOr<std::vector<int>> ParseRanks(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  std::vector<int> ranks;
  const bool is_count = text.find_first_of(",-") == absl::string_view::npos;
  if (is_count) {
    SHERD_ASSIGN_OR_RETURN(const int64_t count,
                           ParseNumber(text, 1, kMaxRanks));
    return AllRanks(static_cast<int>(count));
  }
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(item, absl::MaxSplits('-', 1));
    SHERD_ASSIGN_OR_RETURN(const int64_t first,
                           ParseNumber(ends.first, 0, kMaxRanks - 1));
    int64_t last = first;
    if (absl::StrContains(item, '-')) {
      SHERD_ASSIGN_OR_RETURN(last,
                             ParseNumber(ends.second, first, kMaxRanks - 1));
    }
    if (static_cast<int64_t>(ranks.size()) + last - first >= kMaxRanks) {
      return Error(text, absl::StrCat(kMaxRanks, " ranks at most"));
    }
    for (int64_t rank = first; rank <= last; ++rank) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

// The number of cells of a grid, each of whose sizes is positive.
absl::StatusOr<int64_t> CountCells(const Dims& grid) {
  int64_t cells = 1;
  for (const int64_t size : grid) {
    const std::optional<int64_t> product = CheckedMul(cells, size);
    if (size < 1 || !product || *product > kMaxRanks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a grid of ", FormatDims(grid), ", expected positive sizes and ",
          kMaxRanks, " cells at most"));
    }
    cells = *product;
  }
  return cells;
}

// The ranks given, or one for each cell; as many as cells.
absl::StatusOr<std::vector<int>> RanksOfCells(
    const Dims& grid, const std::optional<std::vector<int>>& ranks) {
  SHERD_ASSIGN_OR_RETURN(const int64_t cells, CountCells(grid));
  if (!ranks) return AllRanks(static_cast<int>(cells));
  if (static_cast<int64_t>(ranks->size()) == cells) return *ranks;
  return absl::InvalidArgumentError(
      absl::StrCat("a grid of ", FormatDims(grid), " has ", cells,
                   " cells, but is laid over ", ranks->size(), " ranks"));
}

absl::StatusOr<std::vector<PlacedBox>> BoxesOf(const ShardingSpec& spec,
                                               absl::Span<const int64_t> size) {
  SHERD_ASSIGN_OR_RETURN(const ShardedTensorMetadata metadata,
                         spec.BuildMetadata(size, {}));
  std::vector<PlacedBox> boxes;
  boxes.reserve(metadata.shards.size());
  for (const ShardMetadata& shard : metadata.shards) {
    // Placed by rank, all of them.
    boxes.push_back({{shard.offsets, shard.sizes}, *shard.placement->rank()});
  }
  return boxes;
}

absl::StatusOr<std::vector<PlacedBox>> Mesh(
    absl::string_view inside, const std::optional<std::vector<int>>& over,
    absl::Span<const int64_t> size) {
  const std::pair<absl::string_view, absl::string_view> sides =
      absl::StrSplit(inside, absl::MaxSplits(':', 1));
  SHERD_ASSIGN_OR_RETURN(const Dims shape, ParseDims(sides.first));
  SHERD_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                         RanksOfCells(shape, over));
  std::vector<MeshPlacement> parts;
  for (const absl::string_view part : absl::StrSplit(sides.second, ',')) {
    SHERD_ASSIGN_OR_RETURN(const Term term, ParseTerm(part));
    if (term.name == "replicate" && !term.inside) {
      parts.push_back(MeshPlacement::Replicate());
    } else if (term.name == "shard" && term.inside) {
      SHERD_ASSIGN_OR_RETURN(const int64_t dim,
                             ParseNumber(*term.inside, -kMaxRank, kMaxRank));
      parts.push_back(MeshPlacement::Shard(static_cast<int>(dim)));
    } else {
      return Error(part, "shard(DIM) or replicate");
    }
  }
  SHERD_ASSIGN_OR_RETURN(
      const auto spec,
      MeshShardingSpec::FromPlacements({shape, PlacementsOn(ranks)}, parts));
  return BoxesOf(*spec, size);
}

// Blocks dealt out like cards, in each dimension.
absl::StatusOr<std::vector<PlacedBox>> Cyclic(
    absl::string_view inside, const std::optional<std::vector<int>>& over,
    absl::Span<const int64_t> size) {
  const std::pair<absl::string_view, absl::string_view> sides =
      absl::StrSplit(inside, absl::MaxSplits(',', 1));
  SHERD_ASSIGN_OR_RETURN(const Dims block, ParseDims(sides.first));
  SHERD_ASSIGN_OR_RETURN(const Dims grid, ParseDims(sides.second));
  SHERD_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                         RanksOfCells(grid, over));
  if (block.size() != size.size() || grid.size() != size.size()) {
    return Error(inside, absl::StrCat("blocks and a grid of ", size.size(),
                                      " dimensions, those of the tensor"));
  }
  Dims counts;
  int64_t total = 1;
  for (size_t d = 0; d < size.size(); ++d) {
    if (block[d] < 1) return Error(inside, "positive sizes");
    counts.push_back(ChunkLength(size[d], block[d]));
    const std::optional<int64_t> product = CheckedMul(total, counts[d]);
    if (!product || *product > kMaxBoxes) {
      return Error(inside, absl::StrCat(kMaxBoxes, " blocks at most"));
    }
    total = *product;
  }
  std::vector<PlacedBox> boxes(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) {
    PlacedBox& box = boxes[static_cast<size_t>(i)];
    box.offsets.resize(size.size());
    box.sizes.resize(size.size());
    int64_t rest = i;
    int64_t cell = 0;
    int64_t stride = 1;
    for (size_t d = size.size(); d-- > 0;) {
      const int64_t at = rest % counts[d];
      rest /= counts[d];
      box.offsets[d] = at * block[d];
      box.sizes[d] = std::min(block[d], size[d] - at * block[d]);
      cell += at % grid[d] * stride;
      stride *= grid[d];
    }
    box.rank = ranks[static_cast<size_t>(cell)];
  }
  return boxes;
}

}  // namespace

absl::StatusOr<Dims> ParseDims(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  Dims dims;
  if (text.empty() || text == "scalar") return dims;
  for (const absl::string_view size : absl::StrSplit(text, 'x')) {
    SHERD_ASSIGN_OR_RETURN(dims.emplace_back(),
                           ParseNumber(size, 0, INT64_MAX));
  }
  SHERD_RETURN_IF_ERROR(NumElements(dims).status());
  return dims;
}

absl::StatusOr<std::vector<PlacedBox>> ParseLayout(
    absl::string_view text, absl::Span<const int64_t> size) {
  const std::pair<absl::string_view, absl::string_view> sides =
      absl::StrSplit(text, absl::MaxSplits(" over ", 1));
  std::optional<std::vector<int>> over;
  if (absl::StrContains(text, " over ")) {
    SHERD_ASSIGN_OR_RETURN(over, ParseRanks(sides.second));
  }
  SHERD_ASSIGN_OR_RETURN(const Term term, ParseTerm(sides.first));
  if (!over && (term.name == "chunk" || term.name == "whole")) {
    return Error(text, "ranks, as in \"… over 8\"");
  }
  if (term.name == "chunk" && term.inside) {
    SHERD_ASSIGN_OR_RETURN(const int64_t dim,
                           ParseNumber(*term.inside, -kMaxRank, kMaxRank));
    SHERD_ASSIGN_OR_RETURN(
        const auto spec,
        ChunkShardingSpec::Create(static_cast<int>(dim), PlacementsOn(*over)));
    return BoxesOf(*spec, size);
  }
  if (term.name == "grid" && term.inside) {
    SHERD_ASSIGN_OR_RETURN(const Dims grid, ParseDims(*term.inside));
    SHERD_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                           RanksOfCells(grid, over));
    SHERD_ASSIGN_OR_RETURN(const auto spec,
                           MeshShardingSpec::Grid(grid, PlacementsOn(ranks)));
    return BoxesOf(*spec, size);
  }
  if (term.name == "mesh" && term.inside) {
    return Mesh(*term.inside, over, size);
  }
  if (term.name == "cyclic" && term.inside) {
    return Cyclic(*term.inside, over, size);
  }
  if (term.name == "whole" && !term.inside) {
    std::vector<PlacedBox> boxes;
    for (const int rank : *over) boxes.push_back({WholeBox(size), rank});
    return boxes;
  }
  return Error(text,
               "chunk(DIM) over RANKS, grid(AxB), mesh(AxB: PARTS), "
               "cyclic(AxB, CxD) or whole over RANKS");
}

}  // namespace sherd
