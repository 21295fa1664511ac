#include "sherd/tools/bench/cases/overhead_cases.h"

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/allocation_counter.h"
#include "sherd/tools/bench/peers/call_overhead.h"
#include "sherd/tools/bench/peers/null_plugin.h"

namespace sherd {
namespace {

using ::sherd::testing::AllocationsOfThisThread;

class SherdOverhead final : public CallOverhead {
 public:
  SherdOverhead(RankContext& context, double quantile,
                std::shared_ptr<ProcessGroup> group)
      : CallOverhead(context, quantile), group_(std::move(group)) {}

  absl::Status Run() override {
    const int64_t before = AllocationsOfThisThread();
    SHERD_RETURN_IF_ERROR(CallOverhead::Run());
    allocations_ = AllocationsOfThisThread() - before;
    return absl::OkStatus();
  }

  absl::Status Check() override {
    // The first run fills what is used again.
    const bool warm = std::exchange(warm_, true);
    if (!warm || allocations_ == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(calls_per_sample(),
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

class BareOverhead final : public CallOverhead {
 public:
  using CallOverhead::CallOverhead;
  ~BareOverhead() override {
    if (communicator_ != nullptr) NullPlugin().destroy(communicator_);
  }

  absl::Status Prepare() override {
    sherd_comm_config_v0 config = {};
    config.struct_size = sizeof(config);
    config.size = 2;
    sherd_error_v0 error;
    if (NullPlugin().create(&config, &communicator_, &error) != SHERD_OK) {
      return absl::InternalError("the null plugin made no communicator");
    }
    return absl::OkStatus();
  }

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
    if (plugin->post(communicator_, &op, &request, &error) != SHERD_OK) {
      return absl::InternalError("the null plugin failed");
    }
    return absl::OkStatus();
  }

  sherd_comm_v0* communicator_ = nullptr;
  float values_[2] = {};
  uint64_t sequence_ = 0;
};

// The cost that the comparison of calls adds, on the board of a group of one.
class ComparisonOverhead final : public CallOverhead {
 public:
  ComparisonOverhead(RankContext& context, double quantile,
                     std::unique_ptr<internal::CallComparison> comparison)
      : CallOverhead(context, quantile), comparison_(std::move(comparison)) {}

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
