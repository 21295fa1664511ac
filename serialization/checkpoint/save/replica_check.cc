#include "sherd/serialization/checkpoint/save/replica_check.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/checkpoint/save/shard_writer.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/safetensors/tensors_on_host.h"

namespace sherd {
namespace {

absl::Status DifferenceOf(const NamedTensor& named, const ReplicaSet& set,
                          const std::map<uint32_t, std::vector<int>>& ranks) {
  std::string parties;
  for (const auto& [crc, holders] : ranks) {
    absl::StrAppend(&parties, parties.empty() ? "" : ", others those of ",
                    holders.size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(holders, ", "));
  }
  return absl::DataLossError(absl::StrCat(
      "tensor ", Quoted(*named.name), ": expected equal replicas of ",
      FormatBox(set.box), ", but some have the elements of ", parties,
      "; make them equal, or save without check_replicas"));
}

}  // namespace

absl::StatusOr<ReplicaCrcs> ReadReplicas(
    int world_size, absl::Span<const NamedTensor> tensors,
    absl::Span<const ReplicaSet> sets,
    absl::FunctionRef<absl::Status()> progress) {
  struct Replica {
    const ReplicaSet* set;
    size_t held;
  };
  std::vector<Replica> replicas;
  for (const ReplicaSet& set : sets) {
    for (const size_t held : set.held) replicas.push_back({&set, held});
  }
  const auto named_of = [&](size_t i) -> const NamedTensor& {
    return tensors[static_cast<size_t>(replicas[i].set->tensor)];
  };
  const auto elements_of = [&](size_t i) -> absl::StatusOr<Tensor> {
    return LocalShard(*named_of(i).tensor, replicas[i].held);
  };
  TensorsOnHost on_host(replicas.size(), elements_of, /*ahead=*/true);
  const auto crc_of = [&](size_t i) -> absl::StatusOr<uint32_t> {
    SHERD_ASSIGN_OR_RETURN(const Tensor elements, on_host.At(i));
    return Crc32cOfElements(elements, progress);
  };
  ReplicaCrcs to_rank(static_cast<size_t>(world_size));
  for (size_t i = 0; i < replicas.size(); ++i) {
    const absl::StatusOr<uint32_t> crc = crc_of(i);
    if (!crc.ok()) {
      return Annotate(crc.status(),
                      absl::StrCat("tensor ", Quoted(*named_of(i).name)));
    }
    to_rank[static_cast<size_t>(replicas[i].set->comparer)].push_back(*crc);
    SHERD_RETURN_IF_ERROR(progress());
  }
  return to_rank;
}

absl::Status CompareReplicas(ProcessGroup& group, const OperationLabel& what,
                             absl::Span<const NamedTensor> tensors,
                             absl::Span<const ReplicaSet> sets,
                             const ReplicaCrcs& to_rank,
                             const CollectiveOptions& options) {
  const size_t world = static_cast<size_t>(group.size());
  ReplicaCrcs from_rank(world);
  for (const ReplicaSet& set : sets) {
    if (set.comparer != group.rank()) continue;
    for (const int holder : *set.holders) {
      from_rank[static_cast<size_t>(holder)].push_back(0);
    }
  }
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  for (size_t r = 0; r < world; ++r) {
    sends.emplace_back(reinterpret_cast<const std::byte*>(to_rank[r].data()),
                       to_rank[r].size() * sizeof(uint32_t));
    recvs.emplace_back(reinterpret_cast<std::byte*>(from_rank[r].data()),
                       from_rank[r].size() * sizeof(uint32_t));
  }
  SHERD_RETURN_IF_ERROR(
      InOperation(what, group.AllToAllV(sends, recvs, options)));
  std::vector<size_t> next(world);
  for (const ReplicaSet& set : sets) {
    if (set.comparer != group.rank()) continue;
    std::map<uint32_t, std::vector<int>> ranks;
    for (const int holder : *set.holders) {
      const size_t r = static_cast<size_t>(holder);
      ranks[from_rank[r][next[r]++]].push_back(holder);
    }
    if (ranks.size() > 1) {
      return DifferenceOf(tensors[static_cast<size_t>(set.tensor)], set, ranks);
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
