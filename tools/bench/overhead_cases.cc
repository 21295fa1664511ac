#include "sherd/tools/bench/overhead_cases.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/backend_registry.h"
#include "sherd/core/comm/call_comparison.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/tools/bench/allocation_count.h"
#include "sherd/tools/bench/null_plugin.h"

namespace sherd {
namespace {

// Calls per sample, timed in groups: the clock takes as long as a call.
constexpr int kGroups = 1000;
constexpr int kCallsPerGroup = 10;

// Calls something again and again on rank 0 and counts as the time of one call
// at `quantile` of the groups.
class Overhead : public RankWork {
 public:
  Overhead(RankContext& context, double quantile)
      : measures_(context.rank() == 0), quantile_(quantile) {}

  absl::Status Prepare() override { return absl::OkStatus(); }

  absl::Status Run() override {
    if (!measures_) return absl::OkStatus();
    using Clock = std::chrono::steady_clock;
    for (double& seconds : seconds_) {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < kCallsPerGroup; ++i) SHERD_RETURN_IF_ERROR(Call());
      seconds = std::chrono::duration<double>(Clock::now() - begin).count() /
                kCallsPerGroup;
    }
    std::sort(seconds_.begin(), seconds_.end());
    return absl::OkStatus();
  }

  std::optional<double> OwnSeconds() const override {
    if (!measures_) return 0;
    return seconds_[static_cast<size_t>(quantile_ * (kGroups - 1))];
  }

  absl::Status Check() override { return absl::OkStatus(); }

 protected:
  virtual absl::Status Call() = 0;

  bool measures() const { return measures_; }

 private:
  const bool measures_;
  const double quantile_;
  std::vector<double> seconds_ = std::vector<double>(kGroups);
};

class SherdOverhead final : public Overhead {
 public:
  SherdOverhead(RankContext& context, double quantile,
                std::shared_ptr<ProcessGroup> group)
      : Overhead(context, quantile), group_(std::move(group)) {}

  absl::Status Run() override {
    const int64_t before = AllocationsOfThisThread();
    SHERD_RETURN_IF_ERROR(Overhead::Run());
    allocations_ = AllocationsOfThisThread() - before;
    return absl::OkStatus();
  }

  absl::Status Check() override {
    // The first run fills what is used again.
    const bool warm = std::exchange(warm_, true);
    if (!warm || allocations_ == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(kGroups * kCallsPerGroup,
                                            " calls allocated ", allocations_,
                                            " times, expected none"));
  }

 private:
  absl::Status Call() override {
    return group_->AllReduce<float>(absl::MakeSpan(values_), ReduceOp::kSum);
  }

  const std::shared_ptr<ProcessGroup> group_;
  float values_[2] = {};
  bool warm_ = false;
  int64_t allocations_ = 0;
};

// The group that the measuring rank calls, and its silent partner.
absl::StatusOr<std::shared_ptr<ProcessGroup>> NullGroup() {
  SHERD_ASSIGN_OR_RETURN(const Backend* backend,
                         BackendRegistry::Global().Find("null"));
  auto store = std::make_shared<HashStore>();
  absl::StatusOr<std::shared_ptr<ProcessGroup>> groups[2];
  std::thread other([&] {
    groups[1] = ProcessGroup::Create(
        *backend, {.name = "null", .rank = 1, .size = 2, .store = store});
  });
  groups[0] = ProcessGroup::Create(
      *backend, {.name = "null", .rank = 0, .size = 2, .store = store});
  other.join();
  SHERD_RETURN_IF_ERROR(groups[1].status());
  return groups[0];
}

class BareOverhead final : public Overhead {
 public:
  using Overhead::Overhead;

 private:
  absl::Status Call() override {
    sherd_op_v0 op = {};
    op.struct_size = sizeof(op);
    op.op = SHERD_ALL_REDUCE;
    op.in = values_;
    op.out = values_;
    op.bytes = sizeof(values_);
    op.sequence = ++sequence_;
    op.dtype = SHERD_FLOAT32;
    sherd_request_v0 request;
    sherd_error_v0 error;
    // A call as through a loaded table, which the compiler cannot look into.
    const sherd_plugin_v0* volatile plugin = &NullPlugin();
    if (plugin->post(nullptr, &op, &request, &error) != SHERD_OK) {
      return absl::InternalError("the null plugin failed");
    }
    return absl::OkStatus();
  }

  float values_[2] = {};
  uint64_t sequence_ = 0;
};

// What the comparison of calls adds, on the board of a group of one.
class ComparisonOverhead final : public Overhead {
 public:
  ComparisonOverhead(RankContext& context, double quantile,
                     std::unique_ptr<internal::CallComparison> comparison)
      : Overhead(context, quantile), comparison_(std::move(comparison)) {}

 private:
  absl::Status Call() override {
    return comparison_->Compare(
        {.op = CollectiveOp::kAllReduce, .bytes = 8, .sequence = ++sequence_},
        [](absl::Span<const ConstBytes>, absl::Span<const MutableBytes>) {
          return absl::OkStatus();
        });
  }

  const std::unique_ptr<internal::CallComparison> comparison_;
  uint64_t sequence_ = 0;
};

BenchCase CaseAt(const char* name, const char* help, double quantile) {
  return {.name = name,
          .help = help,
          .peers = {{.name = "sherd",
                     .help = "ProcessGroup::AllReduce of 8 bytes",
                     .make = [quantile](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       SHERD_ASSIGN_OR_RETURN(auto group, NullGroup());
                       return std::make_unique<SherdOverhead>(context, quantile,
                                                              std::move(group));
                     }},
                    {.name = "comparison",
                     .help = "comparing calls on the board of one host, alone",
                     .make = [quantile](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       HashStore store;
                       SHERD_ASSIGN_OR_RETURN(
                           auto comparison,
                           internal::CallComparison::OnBoard(
                               store, 0, 1, Deadline::Infinite()));
                       return std::make_unique<ComparisonOverhead>(
                           context, quantile, std::move(comparison));
                     }},
                    {.name = "limit",
                     .help = "the bare call of the plugin's table",
                     .make = [quantile](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       return std::make_unique<BareOverhead>(context, quantile);
                     }}},
          .check = [](int, int64_t bytes, const std::string&) -> absl::Status {
            if (bytes == 8) return absl::OkStatus();
            return absl::InvalidArgumentError(
                "measured for calls of 8 bytes: --bytes=8");
          }};
}

}  // namespace

std::vector<BenchCase> OverheadCases() {
  return {CaseAt("host_overhead", "a call over a plugin that does nothing, p50",
                 0.5),
          CaseAt("host_overhead_p99", "the same, p99", 0.99)};
}

}  // namespace sherd
