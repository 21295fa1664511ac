#include "sherd/testing/faults.h"

#include <algorithm>
#include <bitset>
#include <csignal>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/testing/harness/rank_reporter.h"

namespace sherd::testing {
namespace internal {

constexpr size_t kMaxFaultPoints = 128;

struct FaultState {
  // Constant once it is armed.
  std::string what;
  std::string point;
  std::bitset<kMaxFaultPoints> points;
  FaultOptions options;
  FaultLocation location;
  std::thread::id thread;
  std::function<absl::Status(const FaultPassage&)> action;

  // Guarded by the mutex of Faults.
  int64_t count = 0;
  uint64_t bytes = 0;
  bool happened = false;
  // Passages that do not match.
  int64_t others = 0;
  int last_other_rank = -1;
  std::string last_other_subject;
};

namespace {

bool Matches(absl::string_view pattern, absl::string_view text) {
  // Where to take the last '*' up again, one character longer.
  size_t star = absl::string_view::npos;
  size_t resume = 0;
  size_t p = 0;
  for (size_t t = 0; t < text.size();) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == absl::string_view::npos;
}

// This process's rank if it is one rank of a test, else -1.
int ProcessRank() {
  if (RankReporter::Get() == nullptr) return -1;
  if (LogRank() >= 0) return LogRank();
  const auto rank = GetIntKnob(Knob::kRank, 0, std::numeric_limits<int>::max());
  return rank.ok() ? static_cast<int>(rank->value_or(-1)) : -1;
}

int RankOf(const FaultPassage& passage) {
  if (passage.rank >= 0) return passage.rank;
  return LogRank() >= 0 ? LogRank() : ProcessRank();
}

bool Fits(const FaultState& state, const FaultPassage& passage, int rank) {
  const FaultOptions& options = state.options;
  return (!options.rank || *options.rank == rank) &&
         passage.bytes >= options.min_bytes &&
         (!options.this_thread || state.thread == std::this_thread::get_id()) &&
         Matches(options.subject, passage.subject);
}

// All faults of this process.
class Faults {
 public:
  static Faults& Get() {
    static Faults* const faults = new Faults;
    return *faults;
  }

  void Add(std::shared_ptr<FaultState> state) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    states_.push_back(std::move(state));
    if (states_.size() > 1) return;
    SetFaultHandler(
        [this](const FaultPassage& passage) { return MaybeInject(passage); });
  }

  void Remove(const std::shared_ptr<FaultState>& state)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    states_.erase(std::find(states_.begin(), states_.end(), state));
    if (states_.empty()) SetFaultHandler(nullptr);
  }

  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

 private:
  absl::Status MaybeInject(const FaultPassage& passage)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status outcome;
    for (const std::shared_ptr<FaultState>& state : Count(passage)) {
      outcome.Update(state->action(passage));
    }
    return outcome;
  }

  // The faults that happen at this passage.
  std::vector<std::shared_ptr<FaultState>> Count(const FaultPassage& passage)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    const int rank = RankOf(passage);
    std::vector<std::shared_ptr<FaultState>> happening;
    absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<FaultState>& state : states_) {
      if (!state->points[static_cast<size_t>(passage.point)]) continue;
      if (!Fits(*state, passage, rank)) {
        ++state->others;
        state->last_other_rank = rank;
        state->last_other_subject = std::string(passage.subject);
        continue;
      }
      ++state->count;
      state->bytes += passage.bytes;
      const int64_t nth = state->options.nth;
      if (state->count < nth || state->count - nth >= state->options.times) {
        continue;
      }
      state->happened = true;
      happening.push_back(state);
    }
    return happening;
  }

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<FaultState>> states_ ABSL_GUARDED_BY(mutex_);
};

// Why a fault had no effect.
std::string Explain(const FaultState& state) {
  const FaultOptions& options = state.options;
  std::string text =
      absl::StrCat("the fault did not happen: ", state.what, " at passage ",
                   options.nth, " of ", state.point);
  if (options.subject != "*") absl::StrAppend(&text, " for ", options.subject);
  if (options.rank) absl::StrAppend(&text, " by rank ", *options.rank);
  if (options.min_bytes > 0) {
    absl::StrAppend(&text, " with ", options.min_bytes, " bytes or more");
  }
  if (options.this_thread) absl::StrAppend(&text, " on this thread");
  absl::StrAppend(&text, ". It was passed ", state.count, " times in this way");
  if (state.others > 0) {
    absl::StrAppend(&text, ", and ", state.others,
                    " times otherwise, the last time for \"",
                    state.last_other_subject, "\"");
    if (state.last_other_rank >= 0) {
      absl::StrAppend(&text, " by rank ", state.last_other_rank);
    }
  }
  return text;
}

}  // namespace
}  // namespace internal

namespace {

using internal::FaultNeeds;
using internal::Faults;
using internal::FaultState;

absl::Status Lose(const FaultPassage& passage) {
  *passage.lost = true;
  return absl::OkStatus();
}

FaultOptions For(int rank, FaultOptions options) {
  options.rank = rank;
  return options;
}

FaultOptions About(absl::string_view subject, FaultOptions options) {
  options.subject = std::string(subject);
  return options;
}

// The points that `pattern` names, where `needs` is possible.
absl::StatusOr<std::bitset<internal::kMaxFaultPoints>> FindPoints(
    absl::string_view what, absl::string_view pattern, FaultNeeds needs) {
  std::bitset<internal::kMaxFaultPoints> points;
  std::vector<absl::string_view> known;
  for (const FaultPointInfo& info : AllFaultPoints()) {
    known.push_back(info.name);
    if (!internal::Matches(pattern, info.name)) continue;
    if ((needs == FaultNeeds::kErrors && !info.can_fail) ||
        (needs == FaultNeeds::kLosses && !info.can_be_lost)) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " is not possible at ", info.name, " (", info.where,
          "), which ",
          needs == FaultNeeds::kErrors ? "cannot fail"
                                       : "cannot be left out unnoticed"));
    }
    points.set(static_cast<size_t>(info.point));
  }
  if (points.any()) return points;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no fault point ", pattern,
                   "; there are: ", absl::StrJoin(known, ", ")));
}

absl::Status Check(absl::string_view what, const FaultOptions& options,
                   FaultNeeds needs) {
  if (options.nth < 1 || options.times < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("FaultOptions: nth is ", options.nth, " and times ",
                     options.times, ", expected 1 or more"));
  }
  if (needs == FaultNeeds::kProcesses &&
      internal::RankReporter::Get() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        what,
        " needs ranks that are processes, as those of DistributedTest: here "
        "it would end the whole test program. FailAt and SlowRankAt work "
        "where ranks are threads"));
  }
  return absl::OkStatus();
}

}  // namespace

Fault::Fault(absl::string_view what, absl::string_view point,
             const FaultOptions& options, const Location& location,
             FaultNeeds needs,
             std::function<absl::Status(const FaultPassage&)> action) {
  const auto points = FindPoints(what, point, needs);
  absl::Status status = points.status();
  status.Update(Check(what, options, needs));
  if (!status.ok()) {
    ADD_FAILURE_AT(location.file, location.line) << status.message();
    return;
  }
  state_ = std::make_shared<FaultState>();
  state_->what = std::string(what);
  state_->point = std::string(point);
  state_->points = *points;
  state_->options = options;
  state_->location = location;
  state_->thread = std::this_thread::get_id();
  state_->action = std::move(action);
  Faults::Get().Add(state_);
}

Fault::~Fault() {
  if (state_ == nullptr) return;
  Faults::Get().Remove(state_);
  // A fault for another rank happens in that rank's process.
  const std::optional<int> rank = state_->options.rank;
  const bool elsewhere = rank && internal::RankReporter::Get() != nullptr &&
                         *rank != internal::ProcessRank();
  if (state_->options.optional || elsewhere) return;
  absl::MutexLock lock(&Faults::Get().mutex());
  if (state_->happened) return;
  ADD_FAILURE_AT(state_->location.file, state_->location.line)
      << internal::Explain(*state_);
}

int64_t Fault::count() const {
  if (state_ == nullptr) return 0;
  absl::MutexLock lock(&Faults::Get().mutex());
  return state_->count;
}

uint64_t Fault::bytes() const {
  if (state_ == nullptr) return 0;
  absl::MutexLock lock(&Faults::Get().mutex());
  return state_->bytes;
}

bool Fault::happened() const {
  if (state_ == nullptr) return false;
  absl::MutexLock lock(&Faults::Get().mutex());
  return state_->happened;
}

KillRankAt::KillRankAt(absl::string_view point, int rank, FaultOptions options,
                       Location location)
    : Fault("killing a rank", point, For(rank, std::move(options)), location,
            FaultNeeds::kProcesses, [](const FaultPassage&) {
              raise(SIGKILL);
              return absl::OkStatus();
            }) {}

StopRankAt::StopRankAt(absl::string_view point, int rank, FaultOptions options,
                       Location location)
    : Fault("stopping a rank", point, For(rank, std::move(options)), location,
            FaultNeeds::kProcesses, [](const FaultPassage&) {
              raise(SIGSTOP);
              return absl::OkStatus();
            }) {}

SlowRankAt::SlowRankAt(absl::string_view point, int rank,
                       absl::Duration duration, FaultOptions options,
                       Location location)
    : Fault("slowing a rank down", point, For(rank, std::move(options)),
            location, FaultNeeds::kNothing, [duration](const FaultPassage&) {
              absl::SleepFor(duration);
              return absl::OkStatus();
            }) {}

FailAt::FailAt(absl::string_view point, absl::Status error,
               FaultOptions options, Location location)
    : Fault("a failure", point, options, location, FaultNeeds::kErrors,
            [error = std::move(error)](const FaultPassage&) { return error; }) {
}

DropAt::DropAt(absl::string_view point, FaultOptions options, Location location)
    : Fault("losing a message", point, options, location, FaultNeeds::kLosses,
            Lose) {}

DropStoreMessage::DropStoreMessage(absl::string_view key, FaultOptions options,
                                   Location location)
    : Fault("losing a message", "store/set", About(key, std::move(options)),
            location, FaultNeeds::kLosses, Lose) {}

DelayStoreMessage::DelayStoreMessage(absl::string_view key,
                                     absl::Duration duration,
                                     FaultOptions options, Location location)
    : Fault("delaying a message", "store/set", About(key, std::move(options)),
            location, FaultNeeds::kNothing, [duration](const FaultPassage&) {
              absl::SleepFor(duration);
              return absl::OkStatus();
            }) {}

FailAllocationAt::FailAllocationAt(FaultOptions options, Location location)
    : Fault("a failed allocation", "tensor/allocate", options, location,
            FaultNeeds::kErrors, [](const FaultPassage& passage) {
              return absl::ResourceExhaustedError(
                  absl::StrCat("injected: no memory for ", passage.bytes,
                               " bytes (", passage.subject, ")"));
            }) {}

FailFileOperation::FailFileOperation(absl::string_view operation,
                                     absl::string_view path, absl::Status error,
                                     FaultOptions options, Location location)
    : Fault("a failure", absl::StrCat("file/", operation),
            About(path, std::move(options)), location, FaultNeeds::kErrors,
            [error = std::move(error)](const FaultPassage&) { return error; }) {
}

LeaveOutSyncs::LeaveOutSyncs(Location location)
    : Fault("leaving out syncs", "file/sync*",
            {.times = std::numeric_limits<int64_t>::max(),
             .subject = "/*",
             .optional = true},
            location, FaultNeeds::kLosses, Lose) {}

CallAt::CallAt(absl::string_view point, std::function<void()> call,
               FaultOptions options, Location location)
    : Fault("a call", point, options, location, FaultNeeds::kNothing,
            [call = std::move(call)](const FaultPassage&) {
              call();
              return absl::OkStatus();
            }) {}

CountPassages::CountPassages(absl::string_view point, FaultOptions options,
                             Location location)
    : Fault(
          "counting", point,
          [&] {
            options.optional = true;
            return options;
          }(),
          location, FaultNeeds::kNothing,
          [](const FaultPassage&) { return absl::OkStatus(); }) {}

}  // namespace sherd::testing
