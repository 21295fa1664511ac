#ifndef SHERD_SERIALIZATION_CHECKPOINT_STATE_COLLECT_TENSORS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_STATE_COLLECT_TENSORS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/saver.h"

namespace sherd {

// Makes of the states of all ranks what a save to `path` saves: tensors over
// `group`, by their names in the checkpoint, with the same names and layouts on
// all ranks.
//
// Layout. A sharded tensor over `group` is itself. One of a part of the group
// is over `group`, with shards where it has them. A tensor is a shard that all
// ranks with this name hold. What is below a name in options.per_rank is each
// rank's own, under names of that rank. Values that are not tensors, and the
// trees, are new tensors of bytes: see "The state" in FORMAT.md.
//
// Collective. Every rank of `group` calls it alike but for `state`; of the
// options, `per_rank` and `timeout` are used.
//
// Buffers. Sharded tensors and tensors are handles, which share their elements
// with those of `state`. The bytes of values are copies of this moment.
//
// Errors. All ranks return the same; as SaveCheckpoint of a state, whose
// message begins with `save "path": `. That there is no memory for the bytes of
// values is known to this rank alone, and is SaveJob::failure.
//
// Cost. One small collective if `state` is as in one of the last calls of the
// group but for elements and values, or if it is the same on all ranks.
// Otherwise three, in which each distinct description of a rank's tensors, with
// its values, travels once.
absl::StatusOr<SaveJob> CollectTensors(
    const std::string& path, const StateDict& state,
    const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_STATE_COLLECT_TENSORS_H_
