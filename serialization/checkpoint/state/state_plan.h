#ifndef SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/save/last_of_groups.h"

namespace sherd {

// A tensor of this rank.
struct StateTensor {
  std::string name;
  // This rank's own, whatever others have under that name.
  bool per_rank = false;
  std::variant<Tensor, ShardedTensor> value;
};

// What other ranks need to know of one.
struct StateTensorDescription {
  std::string name;
  bool per_rank = false;
  bool is_sharded = false;
  // Sharded over the group of the save or load itself.
  bool is_direct = false;
  DType dtype = kFloat32;
  Dims size;
  // Of a tensor that is not sharded; without an index if it is the rank's
  // device in the group.
  Device device;
  // Of one that is sharded, but not direct: the global ranks of its group, and
  // all shards, with their owners by rank.
  std::vector<int> members;
  ShardedTensorMetadata metadata;
};

// Whether a state of this rank may have the tensor.
//   kInvalidArgument     The name is reserved, or none that a checkpoint may
//                        have.
//   kFailedPrecondition  It is not defined.
absl::Status CheckStateTensor(const StateTensor& tensor,
                              const ProcessGroup& group);

// Describes tensors, which are defined. Equal fingerprints stand for equal
// descriptions: that is what a steady state computes.
//   kInvalidArgument  A sharded tensor has no group, or is per rank.
absl::StatusOr<uint64_t> FingerprintOf(absl::Span<const StateTensor> tensors,
                                       const ProcessGroup& group);
std::vector<StateTensorDescription> Describe(
    absl::Span<const StateTensor> tensors, const ProcessGroup& group);

// A rank's tensors, and its tree without those that are per rank; tensors in it
// are marks.
struct StateDescription {
  StateDict shared;
  std::vector<StateTensorDescription> tensors;
};

// For the other ranks of a job, which run the same build.
absl::StatusOr<std::string> EncodeDescription(
    absl::string_view shared_message,
    absl::Span<const StateTensorDescription> tensors);
absl::StatusOr<StateDescription> DecodeDescription(absl::string_view bytes);

// How the tensors of all ranks become tensors over the group. The ranks with
// equal structures form a class, numbered by their first ranks, which lead it.
struct StatePlan {
  struct Item {
    // In the checkpoint.
    std::string name;
    // Null: it is this rank's.
    internal::ShardedTensorStatePtr state;
    // Number of this rank's tensor; -1: it has none of that name.
    int own = -1;
  };

  // By rank.
  std::vector<uint64_t> structures;
  // Of these.
  uint64_t fingerprint = 0;
  // By class, ascending.
  std::vector<int> leaders;
  std::vector<int> class_of_rank;
  // Names ascend.
  std::vector<Item> items;
  // For the entries of this rank's flat tree. The sum over classes of weights
  // times values is 0 if and, but for chance, only if all classes that have a
  // name have the same value.
  std::vector<uint64_t> weights;
};

uint64_t FingerprintOf(absl::Span<const uint64_t> structures);

// Sets the classes of a plan.
void FindClasses(std::vector<uint64_t> structures, StatePlan& plan);

// `classes`: a description of each; their trees are needed if there are
// several. A function of what all ranks have, but for Item::own.
//   kInvalidArgument  Ranks have tensors of different kinds, dtypes, sizes or
//                     layouts under one name; a tensor's group is not part of
//                     this one; a member of it lacks the tensor, or a rank that
//                     is none has it.
absl::StatusOr<std::shared_ptr<const StatePlan>> MakeStatePlan(
    const std::shared_ptr<ProcessGroup>& group,
    std::vector<uint64_t> structures,
    absl::Span<const StateDescription> classes);

// The last plans of each group, for steady states.
//
// Memory. As LastOfGroups; each plan some 200 bytes per name, and the metadata
// of tensors that are not direct: those that are not sharded share it where
// they are alike.
//
// Threads. Safe.
class KeptStatePlans {
 public:
  using Plan = std::shared_ptr<const StatePlan>;

  // Those of this process. Lives forever.
  static KeptStatePlans& Get();

  // The last plan in which this rank has that structure; null if there is none.
  Plan Find(const std::shared_ptr<ProcessGroup>& group, uint64_t structure);
  void Keep(const std::shared_ptr<ProcessGroup>& group, const Plan& plan);

 private:
  LastOfGroups<Plan> plans_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_PLAN_H_
