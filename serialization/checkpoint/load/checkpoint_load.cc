#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load/load_tensors.h"
#include "sherd/serialization/checkpoint/load/loader.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {
namespace {

// The names and the values of a map, which stays, in its order.
template <typename Value>
struct NamedValues {
  explicit NamedValues(const std::map<std::string, Value>& map) {
    names.reserve(map.size());
    values.reserve(map.size());
    for (const auto& [name, value] : map) {
      names.push_back(name);
      values.push_back(value);
    }
  }

  std::vector<absl::string_view> names;
  std::vector<Value> values;
};

}  // namespace

absl::StatusOr<LoadedTensors> LoadTensors(
    const std::string& path, absl::Span<const absl::string_view> names,
    const Loader::Destinations& destinations,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options) {
  // A save may replace the checkpoint after one rank has read it and before
  // another does: the latter finds a file missing, or another manifest than the
  // others. All ranks see the same error, so all look, and start over, once.
  for (int attempt = 0;; ++attempt) {
    Loader loader(path, names, destinations, *group, options);
    const absl::Status status =
        InOperation(loader.operation(), loader.Run(), group->name());
    if (status.ok()) {
      if (options.stats != nullptr) *options.stats = loader.stats();
      if (options.report != nullptr) *options.report = loader.TakeReport();
      return LoadedTensors{loader.TakeNew(), loader.save_id()};
    }
    const bool may_be_replaced = absl::IsNotFound(status) ||
                                 absl::IsDataLoss(status) ||
                                 absl::IsInvalidArgument(status);
    if (!may_be_replaced) return status;
    const absl::Status health = group->health();
    const absl::StatusOr<Loader::Found> found =
        health.ok() ? loader.LookAgain() : health;
    if (!found.ok()) {
      return absl::IsNotFound(status)
                 ? InOperation(loader.operation(), found.status(),
                               group->name())
                 : status;
    }
    if (*found == Loader::kAnother && attempt == 0) continue;
    if (!absl::IsNotFound(status) || *found == Loader::kNothing) return status;
    return FoundElsewhere(status);
  }
}

absl::Status FoundElsewhere(const absl::Status& not_found) {
  return WithErrorInfo(
      absl::FailedPreconditionError(absl::StrCat(
          not_found.message(),
          "; but another rank finds it: expected a directory that all ranks "
          "see alike")),
      GetErrorInfo(not_found));
}

absl::Status LoadCheckpointInto(
    const std::string& path,
    const std::map<std::string, ShardedTensor*>& destinations,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  const NamedValues list(destinations);
  return LoadTensors(path, list.names, {.given = list.values}, group, options)
      .status();
}

absl::StatusOr<std::map<std::string, ShardedTensor>> LoadCheckpoint(
    const std::string& path,
    const std::map<std::string, ShardingSpecPtr>& specs,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  const NamedValues list(specs);
  const auto create =
      [&](size_t number,
          const ManifestTensor& saved) -> absl::StatusOr<ShardedTensor> {
    absl::StatusOr<ShardedTensor> tensor =
        ShardedTensor::Empty(list.values[number], saved.sizes(),
                             {.dtype = saved.dtype,
                              .group = group,
                              .requires_grad = saved.requires_grad,
                              .allocator = options.allocator});
    if (tensor.ok()) return tensor;
    return Annotate(tensor.status(),
                    absl::StrCat("tensor ", Quoted(list.names[number])));
  };
  SHERD_ASSIGN_OR_RETURN(
      LoadedTensors loaded,
      LoadTensors(path, list.names, {.make = create}, group, options));
  std::map<std::string, ShardedTensor> tensors;
  for (size_t i = 0; i < list.names.size(); ++i) {
    if (!loaded.tensors[i].defined()) continue;
    tensors.emplace_hint(tensors.end(), list.names[i],
                         std::move(loaded.tensors[i]));
  }
  return tensors;
}

}  // namespace sherd
