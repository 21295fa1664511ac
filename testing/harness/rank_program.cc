#include "sherd/testing/harness/rank_program.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/subprocess.h"

namespace sherd::testing::internal {
namespace {

constexpr char kOwnProgram[] = "/proc/self/exe";

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

// The command line of this process, but with `tests` as the only tests.
std::vector<std::string> RankArguments(const std::vector<std::string>& tests,
                                       bool again) {
  std::vector<std::string> arguments;
  for (std::string& argument : OwnArguments()) {
    if (!absl::StartsWith(argument, "--gtest_")) {
      arguments.push_back(std::move(argument));
    }
  }
  // Directly after the name: arguments after "--" are not flags.
  arguments.insert(arguments.begin() + std::min<size_t>(1, arguments.size()),
                   {absl::StrCat("--gtest_filter=", absl::StrJoin(tests, ":")),
                    absl::StrCat("--gtest_repeat=", again ? -1 : 1),
                    "--gtest_also_run_disabled_tests", "--gtest_color=no"});
  return arguments;
}

using KnobValues = std::vector<std::pair<Knob, std::string>>;

// The environment of this process with `values` and those of the rank.
std::vector<std::string> RankEnvironment(KnobValues values, int rank,
                                         RankFds fds) {
  if (rank >= 0) {
    values.insert(values.end(),
                  {{Knob::kRank, absl::StrCat(rank)},
                   {Knob::kLocalRank, absl::StrCat(rank)},
                   {Knob::kTestRankFd, absl::StrCat(fds.results)}});
  }
  if (fds.commands >= 0) {
    values.emplace_back(Knob::kTestCommandFd, absl::StrCat(fds.commands));
  }
  std::vector<std::string> environment;
  for (std::string& variable : OwnEnvironment()) {
    const absl::string_view name =
        absl::string_view(variable).substr(0, variable.find('='));
    const bool changed =
        std::any_of(values.begin(), values.end(), [name](const auto& value) {
          return GetKnobInfo(value.first).variable == name;
        });
    if (!changed && !IsForParentOnly(name)) {
      environment.push_back(std::move(variable));
    }
  }
  for (const auto& [knob, value] : values) {
    environment.push_back(absl::StrCat(GetKnobInfo(knob).variable, "=", value));
  }
  return environment;
}

}  // namespace

absl::StatusOr<RankDirectory> RankDirectory::Make() {
  SHERD_ASSIGN_OR_RETURN(ScopedDirectory scoped, ScopedDirectory::Make());
  RankDirectory directory(std::move(scoped));
  SHERD_RETURN_IF_ERROR(
      FileSystem::Posix().CreateDirectories(directory.files()));
  absl::StatusOr<std::unique_ptr<Guardian>> guardian =
      Guardian::Start(directory.path(), directory.mark());
  if (guardian.ok()) directory.guardian_ = *std::move(guardian);
  return directory;
}

std::string RankDirectory::files() const { return JoinPath(path(), "files"); }

std::string RankDirectory::init_method() const {
  return absl::StrCat("file://", path(), "/rendezvous");
}

RunFiles RankDirectory::run_files() const {
  RunFiles files;
  // Elsewhere the user could not find them.
  if (!GetKnobOr(Knob::kTestOutputsDir, "").empty()) {
    files.outputs = JoinPath(path(), "outputs");
  }
  // A user who wants the dumps elsewhere has them there.
  if (GetKnobOr(Knob::kFlightDir, "").empty()) {
    files.flights = JoinPath(path(), "flights");
  }
  return files;
}

std::string RankDirectory::mark() const {
  return absl::StrCat(GetKnobInfo(Knob::kTestTmpDir).variable, "=", files());
}

absl::Status RankDirectory::Empty() const {
  FileSystem& system = FileSystem::Posix();
  SHERD_RETURN_IF_ERROR(system.RemoveAll(StoreFile(files())));
  // A test may have removed it.
  SHERD_RETURN_IF_ERROR(system.CreateDirectories(files()));
  SHERD_ASSIGN_OR_RETURN(const auto left, system.List(files()));
  for (const auto& name : left) {
    SHERD_RETURN_IF_ERROR(system.RemoveAll(JoinPath(files(), name)));
  }
  return absl::OkStatus();
}

std::string StoreFile(const std::string& files) {
  return absl::StrCat(files, ".store");
}

absl::StatusOr<SupervisorOptions> RankOptions(const RankProgram& program,
                                              const RankDirectory& directory) {
  SupervisorOptions options = {
      .world_size = program.world_size,
      .program = kOwnProgram,
      .arguments = RankArguments(program.tests, program.again),
      .persistent = program.persistent,
      .files = directory.run_files(),
      .mark = directory.mark()};
  KnobValues values = {
      {Knob::kWorldSize, absl::StrCat(program.world_size)},
      {Knob::kBackend, GetKnobOr(Knob::kTestBackend,
                                 GetKnobInfo(Knob::kTestBackend).default_text)},
      {Knob::kInitMethod, directory.init_method()},
      {Knob::kTestTmpDir, directory.files()},
      {Knob::kTestTimeout, absl::StrCat(std::max<int64_t>(
                               1, absl::ToInt64Seconds(program.time_left)))}};
  if (!options.files.flights.empty()) {
    values.emplace_back(Knob::kFlightDir, options.files.flights);
  }
  if (program.visible_gpus) {
    values.emplace_back(Knob::kCudaVisibleDevices, *program.visible_gpus);
  }
  options.environment = [values, shares_gpus = program.shares_gpus](
                            int rank, RankFds fds) {
    KnobValues own = values;
    // NCCL takes two ranks on one GPU for a mistake unless it believes them to
    // be on two hosts.
    if (shares_gpus) own.emplace_back(Knob::kNcclHostId, absl::StrCat(rank));
    return RankEnvironment(std::move(own), rank, fds);
  };
  if (!program.launcher.empty()) {
    // The launcher's own /proc/self is another.
    std::error_code error;
    options.program =
        std::filesystem::read_symlink(kOwnProgram, error).string();
    if (error) return absl::InternalError("the own program is not known");
    options.launcher = {.program = program.launcher,
                        .name = program.launcher_name,
                        .directory = directory.path()};
  }
  return options;
}

}  // namespace sherd::testing::internal
