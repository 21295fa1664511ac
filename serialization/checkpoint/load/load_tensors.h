#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_TENSORS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_TENSORS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load/loader.h"

namespace sherd {

struct LoadedTensors {
  // The new ones, by position of the name; not defined where nothing was
  // loaded.
  std::vector<ShardedTensor> tensors;
  // Of the save that they are of.
  std::string save_id;
};

// What both forms of LoadCheckpoint do: a load, and another one if a save
// replaced the checkpoint meanwhile. Collective; errors as there. Names ascend.
absl::StatusOr<LoadedTensors> LoadTensors(
    const std::string& path, absl::Span<const absl::string_view> names,
    const Loader::Destinations& destinations,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options);

// The error of a load that found nothing, `not_found`, on a rank of a group in
// which another rank finds the checkpoint: kFailedPrecondition, since a program
// begins afresh at kNotFound, and would replace what the others see.
absl::Status FoundElsewhere(const absl::Status& not_found);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_TENSORS_H_
