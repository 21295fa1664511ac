#ifndef SHERD_TOOLS_BENCH_PEERS_CALL_OVERHEAD_H_
#define SHERD_TOOLS_BENCH_PEERS_CALL_OVERHEAD_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Makes groups of calls on rank 0, since the clock takes as long as a call. The
// time of one call is the `quantile` of the groups.
class CallOverhead : public RankWork {
 public:
  static constexpr int kGroups = 1000;
  static constexpr int kCallsPerGroup = 10;

  CallOverhead(RankContext& context, double quantile, int groups = kGroups)
      : measures_(context.rank() == 0), quantile_(quantile), seconds_(groups) {}

  absl::Status Prepare() override { return absl::OkStatus(); }

  absl::Status Run() override {
    if (!measures_) return absl::OkStatus();
    using Clock = std::chrono::steady_clock;
    for (double& seconds : seconds_) {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < kCallsPerGroup; ++i) SHERD_RETURN_IF_ERROR(Call());
      seconds = std::chrono::duration<double>(Clock::now() - begin).count() /
                kCallsPerGroup;
      SHERD_RETURN_IF_ERROR(AfterGroup());
    }
    std::sort(seconds_.begin(), seconds_.end());
    return absl::OkStatus();
  }

  std::optional<double> OwnSeconds() const override {
    if (!measures_) return 0;
    return seconds_[static_cast<size_t>(
        quantile_ * static_cast<double>(seconds_.size() - 1))];
  }

  absl::Status Check() override { return absl::OkStatus(); }

 protected:
  virtual absl::Status Call() = 0;
  // Not included in the time.
  virtual absl::Status AfterGroup() { return absl::OkStatus(); }

  int calls_per_sample() const {
    return static_cast<int>(seconds_.size()) * kCallsPerGroup;
  }

 private:
  const bool measures_;
  const double quantile_;
  // Of each group.
  std::vector<double> seconds_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_CALL_OVERHEAD_H_
