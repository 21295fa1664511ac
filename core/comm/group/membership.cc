#include "sherd/core/comm/group/membership.h"

#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
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

// A plain look: the deadline has passed already.
Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

// How often a wait for a rank checks whether its process is alive.
constexpr absl::Duration kLook = absl::Milliseconds(100);

std::string MemberKey(int rank) { return absl::StrCat("member/", rank); }
std::string JoinedKey(int rank) { return absl::StrCat("joined/", rank); }

// The record of `rank`, whose process is `expected`; empty: not known.
absl::StatusOr<std::string> AwaitMember(Store& store, int rank,
                                        const std::string& expected,
                                        Deadline deadline) {
  if (expected.empty()) return store.Get(MemberKey(rank), deadline);
  bool ended = false;
  for (;;) {
    absl::StatusOr<std::string> member = store.Get(
        MemberKey(rank),
        Deadline::Earlier(deadline, ended ? Now() : Deadline::After(kLook)));
    if (!absl::IsDeadlineExceeded(member.status())) return member;
    if (ended) {
      return WithFailedRank(
          absl::UnavailableError(absl::StrCat("rank ", rank, " died (process ",
                                              ProcessNumber(expected),
                                              " has ended) before it joined")),
          rank);
    }
    if (deadline.HasPassed()) return member;
    // A value that the rank wrote before its end is read once more.
    ended = StateOf(expected) == ProcessState::kEnded;
  }
}

// The error of missing ranks, of which `first` is the first.
absl::Status Absent(Store& store, int first, int size) {
  std::vector<int> missing;
  for (int rank = first; rank < size; ++rank) {
    if (!store.Get(MemberKey(rank), Now()).ok()) missing.push_back(rank);
  }
  // Those that joined meanwhile were late all the same.
  if (missing.empty()) missing.push_back(first);
  return DidNotJoin(missing, size);
}

}  // namespace

absl::Status DidNotJoin(const std::vector<int>& missing, int size) {
  return WithFailedRank(
      absl::DeadlineExceededError(
          absl::StrCat(RankList(missing), " of ", size,
                       " did not join in time: were all of them started, with "
                       "the same rendezvous and secret?")),
      missing.front());
}

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

absl::Status ExchangeMembership(Store& store,
                                absl::Span<const std::string> expected,
                                Deadline deadline, Membership& membership,
                                absl::string_view note,
                                std::vector<std::string>* notes) {
  const int own = membership.rank();
  const int size = membership.size();
  SHERD_ASSIGN_OR_RETURN(const int64_t joined, store.Add(JoinedKey(own), 1));
  if (joined != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", own,
        " has joined already: two processes have the same rank, or the "
        "rendezvous is left over from another run and must be removed"));
  }
  SHERD_RETURN_IF_ERROR(
      store.Set(MemberKey(own),
                absl::StrCat(size, " ", DescribeOwnProcess(), "\n", note)));
  std::vector<std::string> processes;
  if (notes != nullptr) notes->clear();
  for (int rank = 0; rank < size; ++rank) {
    const absl::StatusOr<std::string> member = AwaitMember(
        store, rank, expected.empty() ? "" : expected[rank], deadline);
    if (absl::IsDeadlineExceeded(member.status())) {
      return Absent(store, rank, size);
    }
    if (!member.ok()) return member.status();
    std::pair<std::string, std::string> fields =
        absl::StrSplit(*member, absl::MaxSplits(' ', 1));
    if (fields.first != absl::StrCat(size)) {
      // These are two ranks of several: who deviates is not known.
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " has world size ", fields.first,
                       ", rank ", own, " has ", size));
    }
    // A process is described in one line.
    const size_t line = fields.second.find('\n');
    if (notes != nullptr) {
      notes->push_back(
          line == std::string::npos ? "" : fields.second.substr(line + 1));
    }
    processes.push_back(fields.second.substr(0, line));
  }
  membership.SetProcesses(std::move(processes));
  return absl::OkStatus();
}

}  // namespace sherd::internal
