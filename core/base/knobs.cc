#include "sherd/core/base/knobs.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

constexpr KnobStability kStable = KnobStability::kStable;
constexpr KnobStability kDebug = KnobStability::kDebug;

const std::vector<KnobInfo>& Table() {
  static const auto* const table = new std::vector<KnobInfo>{
      {Knob::kRank, "RANK", "integer", "(none)", kStable,
       "Rank of this process, from 0. Set by sherd run and by torchrun."},
      {Knob::kWorldSize, "WORLD_SIZE", "integer", "(none)", kStable,
       "Number of ranks. Set by sherd run and by torchrun."},
      {Knob::kLocalRank, "LOCAL_RANK", "integer", "(none)", kStable,
       "Rank among the processes of this host. Set by sherd run."},
      {Knob::kInitMethod, "SHERD_INIT_METHOD", "URL", "(none)", kStable,
       "Where ranks meet when Init names no method: file:///PATH."},
      {Knob::kBackend, "SHERD_BACKEND", "name", "auto", kStable,
       "Backend when Init names none."},
      {Knob::kTimeout, "SHERD_TIMEOUT", "duration", "5m", kStable,
       "How long a collective may take when Init names no timeout."},
      {Knob::kPluginPath, "SHERD_PLUGIN_PATH", "directories, ':' between",
       "(none)", kStable,
       "Searched for libsherd_backend_NAME.so before the program's own "
       "directory."},
      {Knob::kLogLevel, "SHERD_LOG_LEVEL", "debug|info|warning|error",
       "warning", kDebug, "Least severe log lines that are printed."},
      {Knob::kTmpDir, "TMPDIR", "directory", "/tmp", kStable,
       "Where sherd run makes the directory in which its ranks meet."},
      {Knob::kBuildWorkingDirectory, "BUILD_WORKING_DIRECTORY", "directory",
       "(the working directory)", kStable,
       "Where a program's relative paths count from. Set by bazel run."},
      {Knob::kTestSeed, "SHERD_TEST_SEED", "integer", "(random, printed)",
       kDebug, "Seed of random tests; repeats a run."},
      {Knob::kTestTmpDir, "TEST_TMPDIR", "directory", "/tmp", kStable,
       "Directory for the files of tests. Set by Bazel."},
      {Knob::kTestTimeout, "TEST_TIMEOUT", "integer", "300", kStable,
       "Seconds a test may take. Set by Bazel."},
      {Knob::kTestSrcDir, "TEST_SRCDIR", "directory", "(none)", kStable,
       "Root of a test's data files. Set by Bazel."},
      {Knob::kTestBackend, "SHERD_TEST_BACKEND", "name", "gloo", kStable,
       "Backend of a distributed test. Set by sherd_distributed_test."},
      {Knob::kTestWorldSize, "SHERD_TEST_WORLD_SIZE", "integer",
       "(the fixture's)", kStable,
       "World size of a distributed test. Set by sherd_distributed_test."},
      {Knob::kTestRankFd, "SHERD_TEST_RANK_FD", "integer", "(none)", kDebug,
       "Marks a process as a rank of a distributed test and names the pipe "
       "for its results. Set by the test harness."},
  };
  return *table;
}

absl::Status Malformed(Knob knob, absl::string_view value,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", GetKnobInfo(knob).variable,
                   " is \"", value, "\", expected ", expected));
}

}  // namespace

const std::vector<KnobInfo>& AllKnobs() { return Table(); }

const KnobInfo& GetKnobInfo(Knob knob) {
  return Table()[static_cast<size_t>(knob)];
}

std::optional<std::string> GetKnob(Knob knob) {
  const char* const value = std::getenv(GetKnobInfo(knob).variable);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::string GetKnobOr(Knob knob, absl::string_view fallback) {
  std::optional<std::string> value = GetKnob(knob);
  return value && !value->empty() ? *value : std::string(fallback);
}

absl::StatusOr<std::optional<int64_t>> GetIntKnob(Knob knob, int64_t low,
                                                  int64_t high) {
  const std::string text = GetKnobOr(knob, "");
  if (text.empty()) return std::nullopt;
  int64_t value;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return Malformed(knob, text,
                     absl::StrCat("a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<std::optional<absl::Duration>> GetDurationKnob(Knob knob) {
  const std::string text = GetKnobOr(knob, "");
  if (text.empty()) return std::nullopt;
  absl::Duration value;
  double seconds;
  if (absl::SimpleAtod(text, &seconds)) {
    value = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &value)) {
    return Malformed(knob, text, "a duration such as 30s or 1m30s");
  }
  if (value <= absl::ZeroDuration()) {
    return Malformed(knob, text, "a duration above zero");
  }
  return value;
}

}  // namespace sherd
