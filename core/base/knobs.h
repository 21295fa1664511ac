#ifndef SHERD_CORE_BASE_KNOBS_H_
#define SHERD_CORE_BASE_KNOBS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sherd {

// Every environment variable that Sherd reads is listed in the table of
// knobs.cc, and no other code calls getenv.
//
// A knob is set if its variable is present, even if empty. A malformed value
// is an error that names variable, value and expected form; it never falls
// back to the default in silence.
//
// Threads. Safe while no thread changes the environment.
enum class Knob {
  kRank,
  kWorldSize,
  kLocalRank,
  kInitMethod,
  kBackend,
  kTimeout,
  kCheckCalls,
  kPluginPath,
  kLogLevel,
  kTmpDir,
  kBuildWorkingDirectory,
  kTestSeed,
  kTestTmpDir,
  kTestTimeout,
  kTestSrcDir,
  kTestBackend,
  kTestWorldSize,
  kTestRankFd,
  kTestLauncher,
  kTestRankDir,
  kTestExternal,
  kMasterAddr,
  kMasterPort,
  kLocalWorldSize,
  kTorchRunId,
  kTorchAgentStore,
  kJobCompletionIndex,
  kOmpiRank,
  kOmpiSize,
  kOmpiLocalRank,
  kOmpiLocalSize,
  kOmpiJobKey,
  kPmixNamespace,
  kPmiRank,
  kPmiSize,
  kMpiLocalRank,
  kMpiLocalSize,
  kSlurmProcId,
  kSlurmStepTasks,
  kSlurmTasks,
  kSlurmLocalId,
  kSlurmStepNodes,
  kSlurmNodes,
  kSlurmStepNodeList,
  kSlurmJobNodeList,
  kSlurmJobId,
  kSlurmStepId,
  kSocketIfname,
  kSecretFile,
  kRpcTransports,
  kFlightEntries,
  kFlightDir,
  kTestGpus,
  kCudaVisibleDevices,
  kTestOutputsDir,
  kTestCommandFd,
  kTestCases,
  kCudaLibrary,
  kNcclLibrary,
  kEmulatedGpus,
  kEmulatedGpuFaults,
  kTestShareGpus,
  kNcclHostId,
  kTestRpc,
};

enum class KnobStability { kStable, kDebug };

struct KnobInfo {
  Knob knob;
  const char* variable;
  const char* type;
  const char* default_text;
  KnobStability stability;
  const char* help;
};

// The whole table, in the order of `Knob`.
const std::vector<KnobInfo>& AllKnobs();
const KnobInfo& GetKnobInfo(Knob knob);

// The raw text, or nothing if the variable is absent.
std::optional<std::string> GetKnob(Knob knob);

// The text, or `fallback` if the variable is absent or empty.
std::string GetKnobOr(Knob knob, absl::string_view fallback);

// The value as a number in [low, high], nothing if the variable is absent or
// empty.
//   kInvalidArgument  Not a decimal number, or outside the range.
absl::StatusOr<std::optional<int64_t>> GetIntKnob(Knob knob, int64_t low,
                                                  int64_t high);

// The value as a duration ("30s", "500ms", "1m30s"; a bare number is seconds),
// nothing if the variable is absent or empty.
//   kInvalidArgument  Not a duration, or not positive.
absl::StatusOr<std::optional<absl::Duration>> GetDurationKnob(Knob knob);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_KNOBS_H_
