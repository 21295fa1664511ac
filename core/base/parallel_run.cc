#include "sherd/core/base/parallel_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"

namespace sherd {

ParallelRun::ParallelRun(ParallelOptions options)
    : options_(std::move(options)) {}

ParallelRun::~ParallelRun() {
  Fail(absl::CancelledError("the work was given up"));
  for (std::thread& thread : threads_) thread.join();
}

absl::Status ParallelRun::Run(
    int64_t parts, absl::FunctionRef<absl::Status(int64_t part)> work) {
  caller_ = std::this_thread::get_id();
  parts_ = parts;
  work_ = work;
  StartThreads(std::min<int64_t>(options_.threads, parts) - 1);
  return Finish();
}

void ParallelRun::Start(int64_t parts,
                        absl::FunctionRef<absl::Status(int64_t part)> work) {
  caller_ = std::this_thread::get_id();
  parts_ = parts;
  work_ = work;
  StartThreads(std::min<int64_t>(options_.threads - 1, parts));
}

void ParallelRun::StartThreads(int64_t count) {
  const int rank = LogRank();
  for (int64_t i = 0; i < count; ++i) {
    {
      absl::MutexLock lock(&mutex_);
      ++working_;
    }
    auto thread = StartNamedThread(options_.name, [this, rank] {
      if (rank >= 0) SetThreadLogRank(rank);
      Work();
      absl::MutexLock lock(&mutex_);
      --working_;
    });
    if (!thread.ok()) {
      absl::MutexLock lock(&mutex_);
      --working_;
      break;
    }
    threads_.push_back(*std::move(thread));
  }
}

absl::Status ParallelRun::Finish() {
  Work();
  caller_waits_ = true;
  // The others' progress is reported until they have ended.
  for (int64_t seen = 0;;) {
    {
      const auto has_news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return steps_ != seen || working_ == 0;
      };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_news));
      if (working_ == 0) break;
      seen = steps_;
    }
    Fail(Progress());
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(&mutex_);
  return error_;
}

absl::Status ParallelRun::MadeProgress() {
  const bool is_caller = std::this_thread::get_id() == caller_;
  if (failed_ || (!is_caller && caller_waits_)) {
    absl::MutexLock lock(&mutex_);
    if (!is_caller) ++steps_;
    if (!is_caller || !error_.ok()) return error_;
  }
  return is_caller ? Progress() : absl::OkStatus();
}

void ParallelRun::Work() {
  int64_t part;
  while (!failed_ && (part = next_part_++) < parts_) Fail(work_(part));
}

absl::Status ParallelRun::Progress() {
  return options_.progress == nullptr ? absl::OkStatus() : options_.progress();
}

void ParallelRun::Fail(const absl::Status& status) {
  if (status.ok()) return;
  absl::MutexLock lock(&mutex_);
  error_.Update(status);
  failed_ = true;
}

}  // namespace sherd
