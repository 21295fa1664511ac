#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint_reader.h"

namespace sherd {
namespace {

// Puts tensors on meta in place of those of `tree`.
absl::StatusOr<StateDict> Describe(
    const CheckpointReader& reader, StateDict tree,
    absl::FunctionRef<std::string(const std::string& name)> saved_name) {
  for (const StateEntry& entry : tree.Flatten()) {
    if (entry.value.kind() != StateKind::kTensor) continue;
    const auto saved = reader.manifest().Find(saved_name(entry.name));
    if (absl::IsInvalidArgument(saved.status())) {
      return absl::DataLossError(
          absl::StrCat(reader.path(),
                       ": the state has a tensor that the "
                       "checkpoint does not have: ",
                       saved.status().message()));
    }
    SHERD_RETURN_IF_ERROR(saved.status());
    SHERD_ASSIGN_OR_RETURN(
        Tensor described,
        Tensor::Empty((*saved)->sizes(),
                      {.dtype = (*saved)->dtype, .device = DeviceType::kMeta}));
    SHERD_RETURN_IF_ERROR(tree.Set(entry.name, std::move(described)));
  }
  return tree;
}

}  // namespace

absl::StatusOr<StateDict> CheckpointReader::ReadState() const {
  int64_t memory = 0;
  SHERD_ASSIGN_OR_RETURN(std::optional<StateDict> shared,
                         ReadSharedTree(
                             *this, [] { return absl::OkStatus(); }, memory));
  return Describe(*this, std::move(shared).value_or(StateDict()),
                  [](const std::string& name) { return name; });
}

absl::StatusOr<StateDict> CheckpointReader::ReadStateOf(int rank) const {
  const int ranks = manifest_.summary().world_size;
  if (rank < 0 || rank >= ranks) {
    return absl::OutOfRangeError(absl::StrCat(
        path_, ": rank ", rank, " did not save, expected 0 to ", ranks - 1));
  }
  int64_t memory = 0;
  SHERD_ASSIGN_OR_RETURN(StateDict own, ReadRankTree(*this, rank, memory));
  return Describe(*this, std::move(own), [&](const std::string& name) {
    return RankTensorName(rank, name);
  });
}

}  // namespace sherd
