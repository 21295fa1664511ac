#ifndef SHERD_CORE_NN_LOOKUP_TABLE_LAYOUT_H_
#define SHERD_CORE_NN_LOOKUP_TABLE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"

// Which shards hold the rows of a table. Pure, and the same on all ranks but
// for the choice among replicas.
namespace sherd::internal {

// The rows [begin, end) of a strip are those of `shard`, a position in the
// table's list of boxes.
struct RowBand {
  int64_t begin = 0;
  int64_t end = 0;
  int shard = 0;
};

// The columns [column, column + width), and the shards that hold them, by
// ascending rows.
struct ColumnStrip {
  int64_t column = 0;
  int64_t width = 0;
  std::vector<RowBand> bands = {};
};

// The position of the last of `begins`, which ascend, that is at most `row`; 0
// if there is none.
inline size_t LastAtOrBefore(absl::Span<const int64_t> begins, int64_t row) {
  // Without branches, which would be mispredicted.
  const int64_t* at = begins.data();
  for (size_t n = begins.size(); n > 1; n -= n / 2) {
    at += at[n / 2] <= row ? n / 2 : 0;
  }
  return static_cast<size_t>(at - begins.data());
}

// The strips of a table by ascending columns, as `reader` reads it: of replicas
// its own, and otherwise those of different ranks for different readers. Strips
// are the parts between all columns where a box begins or ends; a table in rows
// or whole has one.
//
// Cost. O(n log n + bands).
std::vector<ColumnStrip> StripsOf(absl::Span<const PlacedBox> boxes,
                                  int reader);

// The requests of one rank to another: ids of some rows, whose rows lie in
// strips that the owner holds for exactly these rows.
struct StreamShape {
  int owner = 0;
  // Columns of the strips together: the width of a row of the reply.
  int64_t width = 0;
  // With the bands of this owner alone.
  std::vector<ColumnStrip> strips = {};
};

// The streams of `reader`, by ascending owner.
std::vector<StreamShape> StreamsOf(absl::Span<const ColumnStrip> strips,
                                   absl::Span<const PlacedBox> boxes);

// For rows from begins[i] to begins[i + 1] - 1, the streams that hold a part of
// them are streams[i].
struct StreamRoutes {
  std::vector<int64_t> begins;
  std::vector<std::vector<int>> streams;
};

StreamRoutes RoutesOf(absl::Span<const StreamShape> streams);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_TABLE_LAYOUT_H_
