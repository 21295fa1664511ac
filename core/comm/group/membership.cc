#include "sherd/core/comm/group/membership.h"

#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> HostsOf(absl::Span<const std::string> processes) {
  absl::flat_hash_map<absl::string_view, int> hosts;
  std::vector<int> host_of_rank;
  host_of_rank.reserve(processes.size());
  for (absl::string_view process : processes) {
    const absl::string_view boot = process.substr(0, process.find(' '));
    const int next = static_cast<int>(hosts.size());
    host_of_rank.push_back(hosts.try_emplace(boot, next).first->second);
  }
  return host_of_rank;
}

}  // namespace

std::string ProcessNumber(const std::string& description) {
  const auto parsed = ProcessDescription::Parse(description);
  return parsed ? absl::StrCat(parsed->process.pid) : "unknown";
}

Membership::Membership(std::string name, int rank, int size,
                       std::vector<int> world_ranks, int world_size)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      world_size_(world_ranks.empty() ? size : world_size),
      world_ranks_(world_ranks.empty() ? AllRanks(size)
                                       : std::move(world_ranks)),
      processes_(size) {}

void Membership::SetProcesses(std::vector<std::string> processes) {
  processes_ = std::move(processes);
  host_of_rank_ = HostsOf(processes_);
  const auto own = ProcessDescription::Parse(processes_[rank_]);
  neighbors_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    const auto other = ProcessDescription::Parse(processes_[rank]);
    if (rank != rank_ && own && other && own->IsBeside(*other)) {
      neighbors_.push_back(rank);
    }
  }
  one_host_ = static_cast<int>(neighbors_.size()) + 1 == size_;
}

absl::Status Membership::Describe(absl::string_view operation,
                                  uint64_t sequence,
                                  absl::Status status) const {
  ErrorInfo info;
  info.group = name_;
  info.operation = std::string(operation);
  info.sequence = sequence;
  std::string where = absl::StrCat("group \"", name_, "\", rank ", rank_);
  if (is_member() && world_ranks_[rank_] != rank_) {
    absl::StrAppend(&where, " (rank ", world_ranks_[rank_], " of the job)");
  }
  absl::StrAppend(&where, ", ", operation);
  if (sequence != 0) absl::StrAppend(&where, " #", sequence);
  return WithErrorInfo(Annotate(std::move(status), where), info);
}

absl::Status Membership::WithJobRank(absl::Status status) const {
  const std::optional<int> named = ErrorRank(status);
  if (!named || *named == rank_ || world_ranks_[*named] == *named) {
    return status;
  }
  return WithErrorInfo(
      absl::Status(status.code(),
                   absl::StrCat(status.message(), "; rank ", *named,
                                " of the group is rank ", world_ranks_[*named],
                                " of the job")),
      GetErrorInfo(status));
}

absl::Status Membership::MaybeInjectFault(FaultPoint point,
                                          absl::string_view subject) const {
  return ::sherd::MaybeInjectFault(
      {.point = point,
       .rank = is_member() ? world_ranks_[rank_] : -1,
       .subject = subject});
}

}  // namespace sherd::internal
