#include "sherd/testing/rank_threads.h"

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"

namespace sherd::testing::internal {

RankThreads& RankThreads::Global() {
  static RankThreads* const threads = new RankThreads;
  return *threads;
}

absl::Status RankThreads::Reserve(int n) {
  while (static_cast<int>(threads_.size()) < n) {
    const int rank = static_cast<int>(threads_.size());
    Thread& thread = threads_.emplace_back();
    try {
      std::thread([&thread, rank] {
        pthread_setname_np(pthread_self(), absl::StrCat("rank ", rank).c_str());
        for (;;) {
          thread.start.acquire();
          SetThreadLogRank(rank);
          std::exchange(thread.job, nullptr)(rank);
        }
      }).detach();
    } catch (const std::system_error& error) {
      threads_.pop_back();
      return absl::ResourceExhaustedError(absl::StrCat(
          "no thread for rank ", rank, " of ", n, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

void RankThreads::Run(int n, const std::function<void(int)>& job) {
  for (int rank = 0; rank < n; ++rank) {
    threads_[rank].job = job;
    threads_[rank].start.release();
  }
}

}  // namespace sherd::testing::internal
