#ifndef SHERD_TOOLS_SHERD_EXPLAIN_LAYOUT_TEXT_H_
#define SHERD_TOOLS_SHERD_EXPLAIN_LAYOUT_TEXT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// The grammar of ParseLayout, line by line, for a help text.
extern const char kLayoutHelp[];

// Sizes written as "8192x8192"; "" and "scalar" have no dimensions.
//   kInvalidArgument  The text has another form, or a size overflows.
absl::StatusOr<Dims> ParseDims(absl::string_view text);

// The boxes of a tensor of `size` in a layout written as text.
//
// Grammar.
//
//     layout = kind [ "over" ranks ]
//     kind   = "chunk(" dim ")"                    ChunkShardingSpec
//            | "grid(" dims ")"                    MeshShardingSpec::Grid
//            | "mesh(" dims ":" part { "," part } ")"
//                                                  ::FromPlacements
//            | "cyclic(" dims "," dims ")"         blocks of the first sizes,
//                                                  dealt to a grid of ranks
//            | "whole"                             all of it on each rank
//     part   = "shard(" dim ")" | "replicate"
//     ranks  = count | item { "," item }           0 to count - 1
//     item   = rank | rank "-" rank                a lone rank is "3-3"
//
// Without "over", grid, mesh and cyclic take as many ranks as they have cells,
// from 0; chunk and whole need it.
//   kInvalidArgument  The text does not match the grammar, the layout does not
//                     fit the size, or there are more than 2^22 boxes or 2^20
//                     ranks.
absl::StatusOr<std::vector<PlacedBox>> ParseLayout(
    absl::string_view text, absl::Span<const int64_t> size);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_EXPLAIN_LAYOUT_TEXT_H_
