#ifndef SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_BLOB_H_
#define SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_BLOB_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/checkpoint_reader.h"

// What of a state is not a tensor, as bytes in a checkpoint: see "The state" in
// FORMAT.md.
namespace sherd {

// Tensors of bytes, a row for each tree: of states that ranks share, and of
// what is each rank's own.
inline constexpr char kSharedStateName[] = "sherd.state";
inline constexpr char kRankStateName[] = "sherd.rank_state";
// Tensors of a state have no name that begins like this.
inline constexpr char kReservedPrefix[] = "sherd.";
// The names of tensors that are a rank's own begin like this.
inline constexpr char kRankTensorPrefix[] = "sherd.rank:";

// Whether a tensor of that name is one of the two.
bool IsStateBlob(absl::string_view name);

// The name in a checkpoint of a tensor that is `rank`'s own.
std::string RankTensorName(int rank, absl::string_view name);

// The tree: values, and marks for tensors.
absl::StatusOr<std::vector<internal::SavedValue>> StateTreeOf(
    const StateDict& state);

// The state of a message that EncodeTree made, from any source. Tensors are
// undefined. `memory` and errors: as DecodeTree.
absl::StatusOr<StateDict> DecodeStateTree(absl::string_view message,
                                          int64_t& memory);

// Bytes of a row for messages of that length: a little more, so that layouts,
// and with them plans, stay while numbers get longer.
int64_t StateRowBytes(int64_t message_bytes);

// Writes `message` as a row, which has room.
void WriteStateRow(absl::string_view message, absl::Span<std::byte> row);

// The state of a row, from any source; errors as DecodeStateTree.
absl::StatusOr<StateDict> ReadStateRow(absl::Span<const std::byte> row,
                                       int64_t& memory);

// A name that has different values in two states.
struct StateConflict {
  std::string name;
  StateValue there;
  StateValue added;

  // "integer 3", "map of 2".
  static std::string Describe(const StateValue& value);
};

// Adds what of `from` is not in `into`. Maps may have different keys, but lists
// have equal items. Tensors are not compared. Stops at the first conflict.
std::optional<StateConflict> MergeState(const StateDict& from, StateDict& into);

// The trees of a checkpoint, with undefined tensors. `memory`: as of
// DecodeTree.
//   kDataLoss  Damaged; the tensor is named.

// What ranks share; unset: the checkpoint was not saved from a state.
// `progress` is called after every part that takes a while.
absl::StatusOr<std::optional<StateDict>> ReadSharedTree(
    const CheckpointReader& reader, absl::FunctionRef<absl::Status()> progress,
    int64_t& memory);

// What is the rank's own: nothing, if it did not save.
absl::StatusOr<StateDict> ReadRankTree(const CheckpointReader& reader, int rank,
                                       int64_t& memory);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_BLOB_H_
