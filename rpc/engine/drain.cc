#include "sherd/rpc/engine/drain.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/drain_agreement.h"

namespace sherd::internal {
namespace {

// Pause between waves while requests are under way.
constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
// Names in one error.
constexpr size_t kMostNames = 8;

}  // namespace

Drain::Drain(int rank, int world_size, DrainAgreement::Look look, Send send,
             Describe describe)
    : look_(std::move(look)),
      send_(std::move(send)),
      describe_(std::move(describe)),
      agreement_(rank, world_size) {}

absl::Status Drain::Wait(Deadline deadline) {
  if (waiting_.exchange(true)) {
    return absl::FailedPreconditionError(
        "drain: another thread is already waiting for it");
  }
  absl::Duration pause = kFirstPause;
  bool new_wave = true;
  absl::Status outcome;
  mutex_.Lock();
  if (!agreement_.agreed()) agreement_.Join();
  while (!agreement_.over()) {
    news_ = false;
    const DrainAgreement::Messages messages =
        agreement_.Advance(look_, std::exchange(new_wave, false));
    mutex_.Unlock();
    SendAll(messages);
    mutex_.Lock();
    if (news_ || agreement_.over()) continue;
    const Deadline end = Deadline::Earlier(deadline, limit_);
    if (end.HasPassed()) break;
    const bool due = agreement_.wave_is_due();
    const absl::Duration remaining = end.Remaining();
    new_wave = changed_.WaitWithTimeout(
        &mutex_, due ? std::min(pause, remaining) : remaining);
    if (due && new_wave) pause = std::min(2 * pause, kLongestPause);
  }
  DrainAgreement::Messages messages;
  if (agreement_.agreed()) {
    outcome = Outcome();
  } else {
    outcome = Late(deadline);
    messages = agreement_.GiveUp();
  }
  mutex_.Unlock();
  SendAll(messages);
  waiting_ = false;
  return outcome;
}

void Drain::OnMessage(int from, const DrainHeader& header) {
  DrainAgreement::Messages answers;
  {
    absl::MutexLock lock(&mutex_);
    answers = agreement_.OnMessage(from, header);
    news_ = true;
    changed_.Signal();
  }
  SendAll(answers);
}

void Drain::OnGone(int worker, absl::string_view why) {
  absl::MutexLock lock(&mutex_);
  agreement_.OnGone(worker, why);
  news_ = true;
  changed_.Signal();
}

void Drain::EndBy(Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  limit_ = Deadline::Earlier(limit_, deadline);
  news_ = true;
  changed_.Signal();
}

void Drain::Wake() {
  absl::MutexLock lock(&mutex_);
  news_ = true;
  changed_.Signal();
}

void Drain::SendAll(const DrainAgreement::Messages& messages) {
  for (const auto& message : messages) send_(message.to, message.header);
}

absl::Status Drain::Outcome() const {
  const std::map<int, std::string> lost = agreement_.lost();
  if (lost.empty()) return absl::OkStatus();
  std::vector<std::string> parts;
  for (const auto& [worker, why] : lost) {
    if (parts.size() == kMostNames) {
      parts.push_back("…");
      break;
    }
    parts.push_back(absl::StrCat(describe_(worker), ": ", why));
  }
  return WithFailedRank(
      absl::UnavailableError(
          absl::StrCat("drain: no call is left, but workers were lost before: ",
                       absl::StrJoin(parts, "; "))),
      lost.begin()->first);
}

absl::Status Drain::Late(Deadline deadline) const {
  const DrainCounts own = look_({});
  return absl::DeadlineExceededError(absl::StrCat(
      "drain: ",
      limit_.when() < deadline.when() ? "another thread's shutdown ended it"
                                      : "its deadline passed",
      " while it waited for ", DescribeAll(agreement_.Missing()),
      own.idle ? "" : "; this worker itself has calls under way"));
}

std::string Drain::DescribeAll(const std::vector<int>& workers) const {
  std::vector<std::string> names;
  for (const int worker : workers) {
    if (names.size() == kMostNames) {
      names.push_back(absl::StrCat(workers.size() - kMostNames, " others"));
      break;
    }
    names.push_back(describe_(worker));
  }
  return names.empty() ? "requests on their way" : absl::StrJoin(names, ", ");
}

}  // namespace sherd::internal
