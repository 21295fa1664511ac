#include "sherd/serialization/checkpoint/replica_check.h"

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
#include "sherd/serialization/checkpoint/shard_writer.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"

namespace sherd {
namespace {

// In place of a CRC, of a shard that could not be read.
constexpr uint64_t kUnread = ~uint64_t{0};

// The CRCs of this rank's replicas, for the rank that compares each of them.
// After an error too, since the others wait for them.
absl::Status AddCrcs(absl::Span<const NamedTensor> tensors,
                     absl::Span<const ReplicaSet> sets,
                     std::vector<std::vector<uint64_t>>& to_rank) {
  absl::Status status;
  for (const ReplicaSet& set : sets) {
    const NamedTensor& named = tensors[static_cast<size_t>(set.tensor)];
    std::vector<uint64_t>& crcs =
        to_rank[static_cast<size_t>(set.holders.front())];
    for (const size_t held : set.held) {
      crcs.push_back(kUnread);
      if (!status.ok()) continue;
      const absl::StatusOr<uint32_t> crc =
          Crc32cOfElements(LocalShard(*named.tensor, held));
      if (crc.ok()) {
        crcs.back() = *crc;
      } else {
        status = Annotate(crc.status(),
                          absl::StrCat("tensor ", Quoted(*named.name)));
      }
    }
  }
  return status;
}

absl::Status DifferenceOf(const NamedTensor& named, const ReplicaSet& set,
                          const std::map<uint64_t, std::vector<int>>& ranks) {
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

absl::Status CompareReplicas(ProcessGroup& group, const OperationLabel& what,
                             absl::Span<const NamedTensor> tensors,
                             absl::Span<const ReplicaSet> sets,
                             const CollectiveOptions& options) {
  const size_t world = static_cast<size_t>(group.size());
  std::vector<std::vector<uint64_t>> to_rank(world), from_rank(world);
  const absl::Status read = AddCrcs(tensors, sets, to_rank);
  for (const ReplicaSet& set : sets) {
    if (set.holders.front() != group.rank()) continue;
    for (const int holder : set.holders) {
      from_rank[static_cast<size_t>(holder)].push_back(0);
    }
  }
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  for (size_t r = 0; r < world; ++r) {
    sends.emplace_back(reinterpret_cast<const std::byte*>(to_rank[r].data()),
                       to_rank[r].size() * sizeof(uint64_t));
    recvs.emplace_back(reinterpret_cast<std::byte*>(from_rank[r].data()),
                       from_rank[r].size() * sizeof(uint64_t));
  }
  SHERD_RETURN_IF_ERROR(
      InOperation(what, group.AllToAllV(sends, recvs, options)));
  SHERD_RETURN_IF_ERROR(read);
  std::vector<size_t> next(world);
  for (const ReplicaSet& set : sets) {
    if (set.holders.front() != group.rank()) continue;
    std::map<uint64_t, std::vector<int>> ranks;
    for (const int holder : set.holders) {
      const size_t r = static_cast<size_t>(holder);
      ranks[from_rank[r][next[r]++]].push_back(holder);
    }
    // The rank that could not read its replica has said so.
    ranks.erase(kUnread);
    if (ranks.size() > 1) {
      return DifferenceOf(tensors[static_cast<size_t>(set.tensor)], set, ranks);
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
