#ifndef SHERD_TESTING_HARNESS_EXIT_CODES_H_
#define SHERD_TESTING_HARNESS_EXIT_CODES_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd::testing {

// How a rank of a distributed test ends, as its exit code. The numbers are
// those of torch.testing's MultiProcessTestCase.
inline constexpr int kRankPassed = 0;
inline constexpr int kRankFailed = 10;

// Why a rank skipped its test; the value is its exit code. An exit code alone
// is never a skip: the rank must have reported it through its result pipe.
enum class SkipReason : int {
  kBackendUnavailable = 72,
  kSmallWorldSize = 73,
  kNoCuda = 74,
  kMultiGpu1 = 75,
  kNoNccl = 76,
  kMultiGpu2 = 77,
  kRocm = 78,
  kNoPeerAccess = 79,
  kMultiGpu3 = 80,
  kMultiGpu4 = 81,
  kMultiGpu5 = 82,
  kMultiGpu6 = 83,
  kMultiGpu7 = 84,
  kMultiGpu8 = 85,
  kGeneric = 86,
  kOddWorldSize = 87,
  kMissingDependency = 88,
  kNoAccelerator = 89,
};

// Why a test does not run here.
struct Skip {
  SkipReason reason;
  // The missing thing, and how to get it; follows the reason's text.
  std::string detail;
};

struct SkipInfo {
  SkipReason reason;
  // Name in the table of torch.testing.
  absl::string_view key;
  absl::string_view text;
};

// The whole table, by exit code.
absl::Span<const SkipInfo> AllSkips();

absl::string_view SkipText(SkipReason reason);

// The reason whose exit code is `code`, or nothing.
std::optional<SkipReason> SkipReasonFromExitCode(int code);

// The reason for a test that needs `gpus` GPUs: one of its own up to 8,
// kGeneric above.
SkipReason FewerGpusThan(int gpus);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_HARNESS_EXIT_CODES_H_
