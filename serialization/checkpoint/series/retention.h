#ifndef SHERD_SERIALIZATION_CHECKPOINT_SERIES_RETENTION_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SERIES_RETENTION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sherd {

// Which steps of a series stay, beside those that are pinned; see
// SeriesOptions.
struct RetentionRule {
  // 0: all.
  int keep_last = 0;
  // 0: none.
  int64_t keep_every = 0;
};

// What a writer sees of a step that is there, without reading its data.
struct StepState {
  enum State {
    // The manifest can be read, and its files are there.
    kWhole,
    // The manifest can be read, and a file is missing.
    kIncomplete,
    // The manifest is damaged.
    kDamaged,
    // It is not known what the manifest says, as it cannot be read now.
    kUnknown,
  };
  int64_t step = 0;
  State state = kWhole;
};

// The steps that may go once step number `saved` is there, ascending: those
// below the keep_last whole ones that end with `saved`, but for multiples of
// keep_every that are not damaged, and those that are unknown. `steps` ascend,
// and `saved` is one of them, or is whole. Later steps than `saved` stay, and
// so does everything where there are fewer than keep_last whole ones.
std::vector<int64_t> ExpiredSteps(const RetentionRule& rule, int64_t saved,
                                  absl::Span<const StepState> steps);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SERIES_RETENTION_H_
