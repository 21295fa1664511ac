#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_MANIFEST_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_MANIFEST_PLAN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

class RunPlan;

// The manifest of a save, and the rank of each file. What only the ranks or the
// save itself know is left out: save_id, fingerprints, and of a file all but
// `chunks` and `size`, which is without the bytes before the data.
struct ManifestPlan {
  // Its tensors have no runs.
  Manifest manifest;
  std::vector<int> rank_of_file;
  std::shared_ptr<const RunPlan> runs;

  // The runs of tensor number `tensor`. Thread-safe.
  //
  // Cost. O(its parts * (classes * log(changes of a class) + log parts)); see
  // PlanManifest.
  SavedRuns RunsOf(size_t tensor) const;

  // The manifest with all runs, which may take a hundred times the memory.
  Manifest WithRuns() const;
};

// Plans where the shards of all ranks are. Ranks whose files have the same
// sizes of the same tensors are planned once, as a class; and what all classes
// have in common once for all of them.
//
// Cost. A part is a maximal sequence of shards of one size whose owners follow
// one another. O(parts * (log parts + classes)) in time; in memory O(parts +
// classes), and 20 bytes for each tensor and size of which one class of ranks
// has more or less than most classes, for each such class.
ManifestPlan PlanManifest(const SaveLayout& layout);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_MANIFEST_PLAN_H_
