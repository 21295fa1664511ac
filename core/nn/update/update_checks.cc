#include "sherd/core/nn/update/update_checks.h"

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {

absl::Status CheckUpdateOptions(const UpdateOptions& options) {
  if (options.rule < SparseRule::kSgd ||
      options.rule > SparseRule::kRowWiseAdagrad) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rule of SparseRule, got ",
                     static_cast<int32_t>(options.rule)));
  }
  const auto valid = [](double x) { return std::isfinite(x) && x >= 0; };
  if (valid(options.learning_rate) && valid(options.eps)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a finite learning rate and eps of 0 or more, got ",
                   options.learning_rate, " and ", options.eps));
}

absl::Status CheckTableWritable(const EmbeddingTable& table) {
  const auto check = [](const Tensor& tensor) -> absl::Status {
    if (tensor.numel() > 0 && !tensor.writable()) {
      return absl::FailedPreconditionError("the table may not be written to");
    }
    if (IsNonOverlapping(tensor.sizes(), tensor.strides())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of the table coincide: sizes ", FormatDims(tensor.sizes()),
        ", strides ", FormatDims(tensor.strides()), "; update a Clone()"));
  };
  if (const auto* const tensor = std::get_if<Tensor>(&table)) {
    return check(*tensor);
  }
  for (const Shard& shard : std::get<ShardedTensor>(table).local_shards()) {
    SHERD_RETURN_IF_ERROR(check(shard.tensor));
  }
  return absl::OkStatus();
}

absl::Status CheckTablesApart(absl::Span<const TableLookUp> lookups,
                              absl::Span<const size_t> same) {
  std::vector<Shard> shards;
  for (size_t t = 0; t < lookups.size(); ++t) {
    if (same[t] != t) continue;
    if (const auto* const tensor = std::get_if<Tensor>(&lookups[t].table)) {
      const ShardMetadata whole = {
          .offsets = {0, 0},
          .sizes = {tensor->sizes().begin(), tensor->sizes().end()}};
      shards.push_back({*tensor, whole});
      continue;
    }
    const auto& table = std::get<ShardedTensor>(lookups[t].table);
    shards.insert(shards.end(), table.local_shards().begin(),
                  table.local_shards().end());
  }
  if (shards.size() < 2) return absl::OkStatus();
  return Annotate(CheckDestinations(shards), "tables");
}

absl::Status HoldGradient(const Tensor& gradient, const PlannedTable& table,
                          Tensor& held) {
  if (table.options.mode == BagMode::kMax) {
    return absl::UnimplementedError(
        "mode max has no gradient: expected sum, mean or none");
  }
  const Dims size = table.bags.ResultSize(table.columns);
  if (!gradient.defined() || gradient.dtype() != table.dtype ||
      gradient.sizes() != absl::MakeSpan(size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gradient needs to be of ", Name(table.dtype), " and size ",
        FormatDims(size), " as the result of the lookup, got ",
        gradient.defined() ? absl::StrCat(Name(gradient.dtype()), " and size ",
                                          FormatDims(gradient.sizes()))
                           : "an undefined Tensor"));
  }
  if (gradient.device().is_meta()) {
    return absl::FailedPreconditionError(
        "the gradient is on meta and has no data");
  }
  if (!gradient.device().is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient is on ", gradient.device().ToString(),
                     ", expected it in host memory: copy it, see To"));
  }
  SHERD_ASSIGN_OR_RETURN(held, gradient.Contiguous());
  return absl::OkStatus();
}

TableIdentity IdentityOf(const EmbeddingTable& table) {
  if (const auto* const sharded = std::get_if<ShardedTensor>(&table)) {
    return {.memory = ShardedTensorAccess::ShardsOf(*sharded).get()};
  }
  const Tensor& tensor = std::get<Tensor>(table);
  if (!tensor.defined() || tensor.dim() != 2) return {};
  return {.memory = tensor.storage().get(),
          .data = tensor.data(),
          .dtype = tensor.dtype(),
          .rows = tensor.sizes()[0],
          .columns = tensor.sizes()[1],
          .stride = tensor.sizes()[0] > 1 ? tensor.strides()[0] : 0};
}

void FindSameTables(absl::Span<const TableLookUp> lookups,
                    std::vector<std::pair<TableIdentity, size_t>>& order,
                    std::vector<size_t>& same) {
  order.clear();
  same.resize(lookups.size());
  for (size_t t = 0; t < lookups.size(); ++t) {
    order.emplace_back(IdentityOf(lookups[t].table), t);
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [identity, t] = order[i];
    same[t] =
        i > 0 && order[i - 1].first == identity ? same[order[i - 1].second] : t;
  }
}

}  // namespace sherd::internal
