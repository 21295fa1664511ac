#include "sherd/core/comm/group/peer_monitor.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {

PeerMonitor::PeerMonitor(std::shared_ptr<Store> store,
                         const Membership& membership, Owner& owner)
    : membership_(membership),
      owner_(owner),
      log_(membership.is_member()
               ? std::make_unique<FailureLog>(store, membership)
               : nullptr),
      meeting_(membership.is_member()
                   ? std::make_unique<WatchedStore>(
                         *store, [this] { return log_->FindFailedRank(); })
                   : nullptr) {}

absl::Status PeerMonitor::cause() const {
  absl::MutexLock lock(&state_mutex_);
  return poison_;
}

absl::Status PeerMonitor::health() const {
  absl::MutexLock lock(&state_mutex_);
  if (left_) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", membership_.name(), "\" was destroyed"));
  }
  return poison_;
}

absl::Status PeerMonitor::Refusal(absl::string_view operation,
                                  uint64_t sequence) const {
  const absl::Status status = health();
  absl::Status refused = absl::FailedPreconditionError(
      absl::StrCat("the group is not usable any more: ", status.message()));
  return membership_.Describe(
      operation, sequence,
      WithErrorInfo(std::move(refused), GetErrorInfo(status)));
}

absl::Status PeerMonitor::Fail(absl::string_view operation, uint64_t sequence,
                               absl::Status symptom) {
  const auto describe = [&](absl::Status status) {
    return membership_.Describe(operation, sequence, std::move(status));
  };
  const std::optional<int> peer = ErrorRank(symptom);
  // Written before the connections close, so that the ranks which notice find
  // it; then closed, so that they do notice.
  const bool is_difference = absl::IsInvalidArgument(symptom);
  log_->Report(is_difference ? symptom : describe(symptom), peer,
               is_difference);
  owner_.EndOperations();
  absl::MutexLock one_at_a_time(&cause_mutex_);
  {
    // An abort by this program, or another thread's failure, is the cause,
    // whatever error the backend returned.
    absl::MutexLock lock(&state_mutex_);
    if (!poison_.ok()) return describe(poison_);
  }
  absl::Status status =
      is_difference ? std::move(symptom) : FindCause(peer, std::move(symptom));
  if (const std::optional<int> failed = FailedRank(status)) {
    owner_.FoundFailedRank(*failed);
  }
  status = describe(membership_.WithJobRank(std::move(status)));
  absl::MutexLock lock(&state_mutex_);
  if (poison_.ok()) poison_ = status;
  usable_.store(false, std::memory_order_release);
  return status;
}

absl::Status PeerMonitor::FailToConnect(absl::Status symptom) {
  // The rank that the backend waited for may itself have waited.
  const std::optional<int> failed = meeting_->failed_rank();
  const std::optional<int> peer =
      failed && absl::IsUnavailable(symptom) ? failed : ErrorRank(symptom);
  log_->Report(symptom, peer);
  return FindCause(peer, std::move(symptom));
}

void PeerMonitor::Report(const absl::Status& status) {
  log_->Report(status, ErrorRank(status));
}

bool PeerMonitor::Abort(const absl::Status& cause) {
  {
    absl::MutexLock lock(&state_mutex_);
    if (left_) return false;
    if (poison_.ok()) poison_ = cause;
    usable_.store(false, std::memory_order_release);
  }
  // The cause may be an error of another group, and name a rank of that one.
  const std::optional<int> failed = FailedRank(cause);
  if (failed && *failed < membership_.size()) owner_.FoundFailedRank(*failed);
  log_->Report(cause, std::nullopt);
  owner_.EndOperations();
  return true;
}

bool PeerMonitor::BeginToLeave() {
  absl::MutexLock lock(&state_mutex_);
  if (left_) return false;
  left_ = true;
  usable_.store(false, std::memory_order_release);
  return true;
}

bool PeerMonitor::has_left() const {
  absl::MutexLock lock(&state_mutex_);
  return left_;
}

absl::Status PeerMonitor::FindCause(std::optional<int> peer,
                                    absl::Status symptom) const {
  // If the backend does not report the rank it waited for, the ranks' records
  // do.
  if (!peer) peer = log_->FirstSuspect();
  if (!peer ||
      !(absl::IsUnavailable(symptom) || absl::IsDeadlineExceeded(symptom))) {
    return symptom;
  }
  const FailureLog::RootCause found =
      log_->FindRootCause(*peer, symptom.message());
  // A rank that exited is a dead peer, even if the symptom was a timeout.
  const absl::StatusCode code = found.code.value_or(symptom.code());
  if (!found.rank) return absl::Status(code, found.cause);
  return WithFailedRank(
      absl::Status(code,
                   code == absl::StatusCode::kInvalidArgument
                       ? found.cause
                       : absl::StrCat("rank ", *found.rank, ": ", found.cause)),
      *found.rank);
}

void PeerMonitor::LeaveOut(absl::Span<const int> ranks) {
  absl::MutexLock lock(&state_mutex_);
  left_out_.assign(ranks.begin(), ranks.end());
}

std::vector<int> PeerMonitor::FailedRanks() const {
  if (log_ == nullptr) return {};
  std::set<int> failed;
  for (const int r : log_->EndedRanks()) failed.insert(r);
  absl::MutexLock lock(&state_mutex_);
  failed.insert(left_out_.begin(), left_out_.end());
  const std::optional<int> named = FailedRank(poison_);
  if (named && *named < membership_.size()) failed.insert(*named);
  return {failed.begin(), failed.end()};
}

absl::Status PeerMonitor::FindDeadPeer(bool ask_others) const {
  for (int r = 0; r < membership_.size(); ++r) {
    if (r == membership_.rank()) continue;
    if (StateOf(membership_.process(r)) == ProcessState::kEnded) {
      return WithFailedRank(absl::UnavailableError("its process has ended"), r);
    }
  }
  if (!ask_others) return absl::OkStatus();
  if (const std::optional<int> suspect = log_->FirstSuspect()) {
    return WithFailedRank(absl::UnavailableError("gave up"), *suspect);
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
