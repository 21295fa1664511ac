#include "sherd/testing/harness/exit_codes.h"

#include <iterator>

namespace sherd::testing {
namespace {

constexpr SkipInfo kSkips[] = {
    {SkipReason::kBackendUnavailable, "backend_unavailable",
     "Skipped because distributed backend is not available."},
    {SkipReason::kSmallWorldSize, "small_worldsize",
     "Skipped due to small world size."},
    {SkipReason::kNoCuda, "no_cuda", "CUDA is not available."},
    {SkipReason::kMultiGpu1, "multi-gpu-1", "Need at least 1 CUDA device"},
    {SkipReason::kNoNccl, "nccl", "c10d not compiled with NCCL support"},
    {SkipReason::kMultiGpu2, "multi-gpu-2", "Need at least 2 CUDA devices"},
    {SkipReason::kRocm, "skipIfRocm", "Test skipped for ROCm"},
    {SkipReason::kNoPeerAccess, "no_peer_access",
     "Test skipped because no GPU peer access"},
    {SkipReason::kMultiGpu3, "multi-gpu-3", "Need at least 3 CUDA devices"},
    {SkipReason::kMultiGpu4, "multi-gpu-4", "Need at least 4 CUDA devices"},
    {SkipReason::kMultiGpu5, "multi-gpu-5", "Need at least 5 CUDA devices"},
    {SkipReason::kMultiGpu6, "multi-gpu-6", "Need at least 6 CUDA devices"},
    {SkipReason::kMultiGpu7, "multi-gpu-7", "Need at least 7 CUDA devices"},
    {SkipReason::kMultiGpu8, "multi-gpu-8", "Need at least 8 CUDA devices"},
    {SkipReason::kGeneric, "generic",
     "Test skipped at subprocess level, look at subprocess log for skip "
     "reason"},
    {SkipReason::kOddWorldSize, "odd_worldsize",
     "Skipped due to odd world size."},
    {SkipReason::kMissingDependency, "importerror",
     "Test skipped due to missing import"},
    {SkipReason::kNoAccelerator, "no_accelerator",
     "accelerator is not available."},
};

constexpr int kFirstSkip = static_cast<int>(SkipReason::kBackendUnavailable);

}  // namespace

absl::Span<const SkipInfo> AllSkips() { return kSkips; }

absl::string_view SkipText(SkipReason reason) {
  return kSkips[static_cast<int>(reason) - kFirstSkip].text;
}

std::optional<SkipReason> SkipReasonFromExitCode(int code) {
  if (code < kFirstSkip ||
      code >= kFirstSkip + static_cast<int>(std::size(kSkips))) {
    return std::nullopt;
  }
  return static_cast<SkipReason>(code);
}

SkipReason FewerGpusThan(int gpus) {
  if (gpus <= 1) return SkipReason::kMultiGpu1;
  if (gpus == 2) return SkipReason::kMultiGpu2;
  if (gpus > 8) return SkipReason::kGeneric;
  return static_cast<SkipReason>(static_cast<int>(SkipReason::kMultiGpu3) +
                                 gpus - 3);
}

}  // namespace sherd::testing
