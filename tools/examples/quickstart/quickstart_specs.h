#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_SPECS_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_SPECS_H_

#include "absl/status/statusor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/tools/examples/quickstart/quickstart_plan.h"

namespace sherd {

// The spec that lays a tensor out as planned, on the CPUs of `ranks` ranks.
absl::StatusOr<ShardingSpecPtr> SpecFor(const PlannedLayout& layout, int ranks);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_SPECS_H_
