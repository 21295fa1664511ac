#include "sherd/testing/distributed_test.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/launched_ranks.h"
#include "sherd/testing/rank_supervisor.h"
#include "sherd/testing/run_outcome.h"

namespace sherd::testing {
namespace {

using internal::RankReporter;
using internal::RunOutcome;
using internal::Verdict;

constexpr int kDefaultWorldSize = 4;
constexpr int kMaxWorldSize = 256;
constexpr char kOwnProgram[] = "/proc/self/exe";

// Of the whole process, for what is left of TEST_TIMEOUT.
const Deadline::Clock::time_point process_start = Deadline::Clock::now();

int OwnRank() {
  if (RankReporter::Get() == nullptr) return -1;
  const absl::StatusOr<std::optional<int64_t>> rank =
      GetIntKnob(Knob::kRank, 0, kMaxWorldSize - 1);
  SHERD_CHECK(rank.ok() && rank->has_value()) << "a rank without RANK";
  return static_cast<int>(**rank);
}

std::string TargetBackend() {
  return GetKnobOr(Knob::kTestBackend,
                   GetKnobInfo(Knob::kTestBackend).default_text);
}

int CountGpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    absl::string_view name(entry.path().filename().c_str());
    int number;
    count +=
        absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &number);
  }
  return count;
}

// Variables of GoogleTest and of Bazel's test protocol that are for the parent
// only: two processes that write one XML file, or create and remove one
// premature-exit file, disturb each other, and a shard would leave out the test
// of the ranks.
bool IsForParentOnly(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {
      "TEST_PREMATURE_EXIT_FILE",  "XML_OUTPUT_FILE",
      "TEST_WARNINGS_OUTPUT_FILE", "TESTBRIDGE_TEST_ONLY",
      "TEST_TOTAL_SHARDS",         "TEST_SHARD_INDEX",
      "TEST_SHARD_STATUS_FILE"};
  return absl::StartsWith(name, "GTEST_") ||
         std::find(std::begin(kNames), std::end(kNames), name) !=
             std::end(kNames);
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// This process's environment with `changes` in place of what it had.
std::vector<std::string> RankEnvironment(const Variables& changes) {
  std::vector<std::string> environment;
  for (std::string& variable : internal::OwnEnvironment()) {
    const absl::string_view name =
        absl::string_view(variable).substr(0, variable.find('='));
    const bool changed = std::any_of(
        changes.begin(), changes.end(),
        [name](const auto& change) { return change.first == name; });
    if (!changed && !IsForParentOnly(name)) {
      environment.push_back(std::move(variable));
    }
  }
  for (const auto& [name, value] : changes) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

// This process's command line with a filter for `test` only.
std::vector<std::string> RankArguments(const std::string& test) {
  std::vector<std::string> arguments;
  for (std::string& argument : internal::OwnArguments()) {
    if (!absl::StartsWith(argument, "--gtest_")) {
      arguments.push_back(std::move(argument));
    }
  }
  // Directly behind the name: what follows "--" is no flag.
  arguments.insert(arguments.begin() + std::min<size_t>(1, arguments.size()),
                   {absl::StrCat("--gtest_filter=", test),
                    "--gtest_also_run_disabled_tests", "--gtest_color=no"});
  return arguments;
}

// A directory below TEST_TMPDIR that goes with this object.
class ScopedDirectory {
 public:
  static absl::StatusOr<ScopedDirectory> Make() {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::absolute(
        GetKnobOr(Knob::kTestTmpDir,
                  GetKnobInfo(Knob::kTestTmpDir).default_text),
        error);
    std::string path = (parent / "sherd_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      return ErrnoStatus(errno, "making directory", path);
    }
    return ScopedDirectory(std::move(path));
  }

  explicit ScopedDirectory(std::string path) : path_(std::move(path)) {}
  ScopedDirectory(ScopedDirectory&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  ~ScopedDirectory() {
    if (path_.empty()) return;
    const absl::Status removed = FileSystem::Posix().RemoveAll(path_);
    EXPECT_TRUE(removed.ok()) << removed;
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string FullName(const ::testing::TestInfo& info) {
  return absl::StrCat(info.test_suite_name(), ".", info.name());
}

// `launcher`, if there is one, is the path of `launcher_name`.
absl::StatusOr<RunOutcome> RunRanks(int world_size, absl::Duration timeout,
                                    absl::Duration grace,
                                    const std::string& launcher_name,
                                    const std::string& launcher) {
  SHERD_ASSIGN_OR_RETURN(ScopedDirectory directory, ScopedDirectory::Make());
  const std::string files = JoinPath(directory.path(), "files");
  SHERD_RETURN_IF_ERROR(FileSystem::Posix().CreateDirectories(files));
  std::vector<std::string> arguments = RankArguments(
      FullName(*::testing::UnitTest::GetInstance()->current_test_info()));
  std::string program = kOwnProgram;
  if (!launcher.empty()) {
    // The launcher's own /proc/self is another.
    std::error_code error;
    program = std::filesystem::read_symlink(kOwnProgram, error).string();
    if (error) return absl::InternalError("the own program is not known");
  }
  const auto variable = [](Knob knob) {
    return std::string(GetKnobInfo(knob).variable);
  };
  const auto environment = [&](int rank, int fd) {
    Variables variables = {
        {variable(Knob::kWorldSize), absl::StrCat(world_size)},
        {variable(Knob::kInitMethod),
         absl::StrCat("file://", directory.path(), "/rendezvous")},
        {variable(Knob::kBackend), TargetBackend()},
        {variable(Knob::kTestTmpDir), files}};
    if (rank >= 0) {
      variables.insert(variables.end(),
                       {{variable(Knob::kRank), absl::StrCat(rank)},
                        {variable(Knob::kLocalRank), absl::StrCat(rank)},
                        {variable(Knob::kTestRankFd), absl::StrCat(fd)}});
    }
    return RankEnvironment(variables);
  };
  std::optional<internal::LauncherOptions> launcher_options;
  if (!launcher.empty()) {
    launcher_options = {.program = launcher,
                        .name = launcher_name,
                        .directory = directory.path()};
  }
  return internal::SuperviseRanks({.world_size = world_size,
                                   .program = std::move(program),
                                   .arguments = std::move(arguments),
                                   .environment = environment,
                                   .timeout = timeout,
                                   .grace = grace,
                                   .launcher = launcher_options});
}

void Report(const RunOutcome& run, const Verdict& verdict, const char* file,
            int line) {
  switch (verdict.kind) {
    case Verdict::Kind::kPassed:
      return;
    case Verdict::Kind::kSkipped:
      GTEST_SKIP() << verdict.text;
    case Verdict::Kind::kFailed:
      break;
  }
  ADD_FAILURE_AT(file, line) << verdict.text;
  for (const Verdict::Failure& failure : verdict.failures) {
    if (failure.file.empty()) {
      ADD_FAILURE_AT(file, line) << failure.text;
    } else {
      ADD_FAILURE_AT(failure.file.c_str(), failure.line) << failure.text;
    }
  }
  for (size_t r = 0; r < run.ranks.size(); ++r) {
    const std::string output =
        internal::PrefixLines(static_cast<int>(r), run.ranks[r].output);
    std::fwrite(output.data(), 1, output.size(), stdout);
  }
  const std::string& launcher = run.launcher_output;
  if (!launcher.empty()) std::printf("[launcher] %s\n", launcher.c_str());
  std::fflush(stdout);
}

// The text of the exception that is being handled.
std::string CurrentExceptionText() {
  try {
    throw;
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "of unknown type";
  }
}

}  // namespace

DistributedTest::DistributedTest() : rank_(OwnRank()) {}

int DistributedTest::world_size() const {
  const absl::StatusOr<std::optional<int64_t>> size =
      GetIntKnob(Knob::kTestWorldSize, 1, kMaxWorldSize);
  // 0 is refused, with the text below, before any rank starts.
  EXPECT_TRUE(size.ok()) << size.status();
  if (!size.ok()) return 0;
  return static_cast<int>(size->value_or(kDefaultWorldSize));
}

absl::Duration DistributedTest::timeout() const {
  const absl::StatusOr<std::optional<int64_t>> seconds =
      GetIntKnob(Knob::kTestTimeout, 1, int64_t{1} << 30);
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  const absl::Duration whole =
      absl::Seconds(seconds.ok() ? seconds->value_or(300) : 300);
  // For stacks, termination and the report.
  const absl::Duration margin = std::min(absl::Seconds(15), whole / 4);
  return whole - margin -
         absl::FromChrono(Deadline::Clock::now() - process_start);
}

ProcessGroup& DistributedTest::group() {
  SHERD_CHECK(group_ != nullptr)
      << "group() is there only in the body of a test with communication";
  return *group_;
}

std::string DistributedTest::temp_dir() const {
  return GetKnobOr(Knob::kTestTmpDir, "");
}

std::string DistributedTest::init_method() const {
  return GetKnobOr(Knob::kInitMethod, "");
}

void DistributedTest::ExpectRankDies(int rank, int signal) {
  ASSERT_TRUE(IsRank()) << "ExpectRankDies is for the ranks";
  ASSERT_GE(rank, 0);
  ASSERT_LT(rank, world_size());
  final_barrier_ = false;
  RankReporter::Get()->ExpectDeath(rank, signal);
}

void DistributedTest::RunDistributed(const std::optional<WithComms>& comms,
                                     const std::function<void()>& body,
                                     Location location) {
  if (IsRank()) {
    RunAsRank(comms, body);
  } else {
    RunAsParent(comms, location);
  }
}

void DistributedTest::RunAsParent(const std::optional<WithComms>& comms,
                                  Location location) {
  const int size = world_size();
  ASSERT_TRUE(size >= 1 && size <= kMaxWorldSize)
      << "world size " << size << ", expected 1 to " << kMaxWorldSize;
  if (comms) {
    const std::string backend =
        comms->backend.empty() ? TargetBackend() : comms->backend;
    if (backend == "nccl" && CountGpus() < size) {
      SHERD_SKIP(FewerGpusThan(size))
          << "(" << size << " ranks, " << CountGpus() << " GPUs)";
    }
    ASSERT_NE(backend, "local")
        << "backend local: its ranks are threads, and those of this test are "
           "processes; use sherd::testing::RunLocalRanks";
    if (comms->init_rpc) {
      GTEST_SKIP() << "init_rpc: no RPC is linked into this test";
    }
  }
  const absl::Duration limit = timeout();
  ASSERT_GT(limit, absl::ZeroDuration())
      << "no time is left of TEST_TIMEOUT for this test";
  const std::string launcher_name = GetKnobOr(Knob::kTestLauncher, "");
  std::string launcher;
  if (!launcher_name.empty()) {
    absl::StatusOr<std::string> path = internal::FindLauncher(launcher_name);
    if (!path.ok()) {
      SHERD_SKIP(SkipReason::kMissingDependency) << path.status().message();
    }
    launcher = *std::move(path);
  }
  const absl::StatusOr<RunOutcome> run =
      RunRanks(size, limit, grace(), launcher_name, launcher);
  ASSERT_TRUE(run.ok()) << run.status();
  Report(*run, internal::Judge(*run), location.file, location.line);
}

void DistributedTest::RunAsRank(const std::optional<WithComms>& comms,
                                const std::function<void()>& body) {
  RankReporter& reporter = *RankReporter::Get();
  if (comms) {
    reporter.Phase("Init");
    SetUpComms(*comms);
    if (HasFatalFailure()) return;
  }
  reporter.Phase("body");
  try {
    body();
  } catch (...) {
    ADD_FAILURE() << "the body ended with an exception: "
                  << CurrentExceptionText();
  }
  if (comms) TearDownComms();
  reporter.Phase("TearDown");
}

void DistributedTest::SetUpComms(const WithComms& comms) {
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
      Init({.backend = comms.backend.empty() ? TargetBackend() : comms.backend,
            .rank = rank(),
            .world_size = world_size(),
            .init_method = init_method(),
            .timeout = std::min(comms.timeout, timeout() * 3 / 4)});
  ASSERT_TRUE(group.ok()) << group.status();
  group_ = *std::move(group);
  // No rank may fail or skip, and leave, while another one still connects.
  const absl::Status status = group_->Barrier();
  ASSERT_TRUE(status.ok()) << "barrier after Init: " << status;
}

void DistributedTest::TearDownComms() {
  RankReporter& reporter = *RankReporter::Get();
  // Whoever failed may be out of step with the others.
  const bool in_step = !HasFailure() && !IsSkipped() && group_->health().ok();
  if (in_step && final_barrier_) {
    reporter.Phase("barrier");
    const absl::Status status = group_->Barrier();
    EXPECT_TRUE(status.ok()) << internal::kFinalBarrier << ": " << status;
  }
  reporter.Phase("Destroy");
  const absl::Status status = group_->Destroy();
  EXPECT_TRUE(status.ok()) << status;
  group_.reset();
}

}  // namespace sherd::testing
