#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/bootstrap/launch_environment.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::IsSupersetOf;

using Variables = std::map<std::string, std::string>;

std::string ReadExample(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile(
      FileSystem::Posix(), absl::StrCat("tools/launch/", name), 1 << 20);
  EXPECT_THAT(text, IsOk());
  return text.value_or("");
}

std::vector<std::string> Matches(const std::string& text,
                                 const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end;
       ++i) {
    found.push_back((*i)[1].str());
  }
  return found;
}

// Names that look like a launcher's variables or ours.
std::set<std::string> VariablesIn(const std::string& text) {
  const std::vector<std::string> found = Matches(
      text,
      "\\b((?:SHERD|MASTER|SLURM|OMPI|PMI|PMIX|TORCHELASTIC|JOB_COMPLETION|"
      "LOCAL|WORLD)_[A-Z_]*[A-Z]|RANK|TMPDIR)\\b");
  return {found.begin(), found.end()};
}

std::set<std::string> AllVariables() {
  std::set<std::string> names;
  for (const KnobInfo& info : AllKnobs()) names.insert(info.variable);
  return names;
}

absl::StatusOr<LaunchEnvironment> Read(const Variables& variables) {
  return ReadLaunchEnvironment(
      {}, [&](Knob knob) -> std::optional<std::string> {
        const auto it = variables.find(GetKnobInfo(knob).variable);
        if (it == variables.end()) return std::nullopt;
        return it->second;
      });
}

TEST(LaunchExamplesTest, EveryVariableThatTheyNameIsRead) {
  const std::set<std::string> known = AllVariables();
  // Slurm's own, for the script.
  const std::set<std::string> of_scripts = {"SLURM_SUBMIT_DIR"};
  for (const char* file : {"README.md", "slurm.sh", "mpirun.sh", "torchrun.sh",
                           "kubernetes.yaml"}) {
    const std::set<std::string> named = VariablesIn(ReadExample(file));
    EXPECT_GE(named.size(), 5u) << file;
    for (const std::string& name : named) {
      EXPECT_TRUE(known.count(name) != 0 || of_scripts.count(name) != 0)
          << file << " names " << name << ", which nothing reads";
    }
  }
}

TEST(LaunchExamplesTest, TheIndexedJobsPodsAreItsRanks) {
  const std::string manifest = ReadExample("kubernetes.yaml");
  Variables variables;
  const std::regex pair("- name: ([A-Z_]+)\\s+value: \"?([^\"\\n]+)\"?");
  for (std::sregex_iterator i(manifest.begin(), manifest.end(), pair), end;
       i != end; ++i) {
    variables[(*i)[1].str()] = (*i)[2].str();
  }
  const std::vector<std::string> completions =
      Matches(manifest, "completions: (\\d+)");
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(Matches(manifest, "parallelism: (\\d+)"), completions);
  int ranks;
  ASSERT_TRUE(absl::SimpleAtoi(completions[0], &ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    variables["JOB_COMPLETION_INDEX"] = absl::StrCat(rank);
    const absl::StatusOr<LaunchEnvironment> place = Read(variables);
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->rank, rank);
    EXPECT_EQ(place->world_size, ranks);
    // Pod 0 of the job below the headless service.
    const std::string job = Matches(manifest,
                                    "kind: Job\\s+metadata:\\s+name: "
                                    "(\\S+)")
                                .at(0);
    const std::string service =
        Matches(manifest, "kind: Service\\s+metadata:\\s+name: (\\S+)").at(0);
    EXPECT_EQ(place->master_addr, absl::StrCat(job, "-0.", service));
    EXPECT_EQ(Matches(manifest, "subdomain: (\\S+)").at(0), service);
    EXPECT_EQ(absl::StrCat(place->master_port),
              Matches(manifest, "containerPort: (\\d+)").at(0));
  }
}

TEST(LaunchExamplesTest, TheScriptsPassOnWhatRanksNeedAcrossHosts) {
  EXPECT_THAT(VariablesIn(ReadExample("mpirun.sh")),
              IsSupersetOf({"MASTER_ADDR", "MASTER_PORT", "SHERD_SECRET_FILE",
                            "SHERD_SOCKET_IFNAME", "OMPI_COMM_WORLD_RANK"}));
  EXPECT_THAT(VariablesIn(ReadExample("slurm.sh")),
              IsSupersetOf({"SHERD_SECRET_FILE", "SLURM_PROCID",
                            "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"}));
  EXPECT_THAT(VariablesIn(ReadExample("torchrun.sh")),
              IsSupersetOf({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                            "TORCHELASTIC_USE_AGENT_STORE"}));
}

}  // namespace
}  // namespace sherd
