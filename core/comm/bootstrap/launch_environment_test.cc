#include "sherd/core/comm/bootstrap/launch_environment.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kRecorded[] = "core/comm/testdata/launch_environments.txt";

using Variables = std::map<std::string, std::string>;

struct Recorded {
  std::string name;
  Variables variables;
  std::vector<std::string> expected;
};

std::vector<Recorded> ReadRecorded() {
  const absl::StatusOr<std::string> text =
      ReadFile(FileSystem::Posix(), kRecorded, 1 << 20);
  EXPECT_THAT(text, IsOk());
  std::vector<Recorded> all;
  for (absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      all.push_back({std::string(line)});
    } else if (absl::ConsumePrefix(&line, "-> ")) {
      all.back().expected = absl::StrSplit(line, "; ");
    } else {
      const std::pair<std::string, std::string> fields =
          absl::StrSplit(line, absl::MaxSplits('=', 1));
      all.back().variables.insert(fields);
    }
  }
  return all;
}

absl::StatusOr<LaunchEnvironment> Read(const Variables& variables,
                                       const GivenPlace& given = {}) {
  return ReadLaunchEnvironment(
      given, [&](Knob knob) -> std::optional<std::string> {
        const auto it = variables.find(GetKnobInfo(knob).variable);
        if (it == variables.end()) return std::nullopt;
        return it->second;
      });
}

std::map<std::string, std::string> FieldsOf(const LaunchEnvironment& place) {
  std::map<std::string, std::string> fields = {
      {"launcher", place.launcher},
      {"rank", absl::StrCat(place.rank)},
      {"world_size", absl::StrCat(place.world_size)}};
  if (place.local_rank) fields["local_rank"] = absl::StrCat(*place.local_rank);
  if (place.one_host) fields["one_host"] = *place.one_host ? "1" : "0";
  if (!place.master_addr.empty()) fields["master_addr"] = place.master_addr;
  if (place.master_port != 0) {
    fields["master_port"] = absl::StrCat(place.master_port);
  }
  if (!place.job_id.empty()) fields["job_id"] = place.job_id;
  return fields;
}

TEST(LaunchEnvironmentTest, EveryRecordedEnvironmentIsReadAsItIs) {
  const std::vector<Recorded> all = ReadRecorded();
  ASSERT_GT(all.size(), 25u);
  for (const Recorded& recorded : all) {
    SCOPED_TRACE(recorded.name);
    ASSERT_FALSE(recorded.expected.empty());
    const absl::StatusOr<LaunchEnvironment> place = Read(recorded.variables);
    if (recorded.expected[0] == "error") {
      for (size_t i = 1; i < recorded.expected.size(); ++i) {
        EXPECT_THAT(place, StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr(recorded.expected[i])));
      }
      continue;
    }
    ASSERT_THAT(place, IsOk());
    std::map<std::string, std::string> expected;
    for (const std::string& field : recorded.expected) {
      expected.insert(std::pair<std::string, std::string>(
          absl::StrSplit(field, absl::MaxSplits('=', 1))));
    }
    EXPECT_EQ(FieldsOf(*place), expected);
  }
}

TEST(LaunchEnvironmentTest, AllRanksOfASlurmStepAgreeOnOnePort) {
  const auto port = [](std::string job, std::string step) {
    return Read({{"SLURM_JOB_ID", job},
                 {"SLURM_STEP_ID", step},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_NODELIST", "a,b"}})
        ->master_port;
  };
  EXPECT_EQ(port("77", "0"), port("77", "0"));
  EXPECT_NE(port("77", "0"), port("77", "1"));
  EXPECT_NE(port("77", "0"), port("78", "0"));
  for (const char* job : {"0", "1", "199", "4294967295"}) {
    EXPECT_GE(port(job, "4294967290"), 10000);
    EXPECT_LT(port(job, "4294967290"), 30000);
  }
}

TEST(LaunchEnvironmentTest, ValuesOfTheProgramWin) {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  const auto other = Read(mpirun, {.rank = 0, .world_size = 2});
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(other->rank, 0);
  EXPECT_EQ(other->world_size, 2);
  EXPECT_EQ(other->launcher, "the program");
  // Two of four ranks may be on different hosts.
  EXPECT_EQ(other->one_host, std::nullopt);
}

TEST(LaunchEnvironmentTest, AProgramThatRepeatsItsLauncherKeepsTheRest) {
  const Variables mpirun = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  for (const GivenPlace& given :
       {GivenPlace{.rank = 1, .world_size = 4}, GivenPlace{.rank = 1},
        GivenPlace{.world_size = 4}}) {
    const auto same = Read(mpirun, given);
    ASSERT_THAT(same, IsOk());
    EXPECT_EQ(same->rank, 1);
    EXPECT_EQ(same->world_size, 4);
    EXPECT_EQ(same->launcher, "Open MPI's mpirun");
    EXPECT_EQ(same->one_host, true);
  }
}

TEST(LaunchEnvironmentTest, RejectsOptionsOutOfRange) {
  for (const auto& [given, words] :
       {std::pair(GivenPlace{.world_size = 0}, "world_size is 0"),
        {GivenPlace{.world_size = kMaxWorldSize + 1}, "world_size is"},
        {GivenPlace{.rank = -1, .world_size = 2},
         "rank is -1, expected 0 to 1"},
        {GivenPlace{.rank = 2, .world_size = 2}, "rank is 2, expected 0 to 1"},
        {GivenPlace{.rank = 0}, "WORLD_SIZE expected, but not set"},
        {GivenPlace{.world_size = 3}, "RANK expected, but not set"}}) {
    EXPECT_THAT(Read({}, given),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  }
  EXPECT_THAT(Read({{"WORLD_SIZE", "2"}}, {.rank = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("WORLD_SIZE is \"2\"")));
}

TEST(LaunchEnvironmentTest, AMeetingPlaceIsNotAWorldOfOne) {
  EXPECT_THAT(Read({}, {.meeting_place = true}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("WORLD_SIZE expected, but not set")));
  EXPECT_THAT(Read({{"SHERD_INIT_METHOD", "file:///f"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("WORLD_SIZE expected, but not set")));
}

TEST(LaunchEnvironmentTest, OneRankIsAlwaysOnOneHost) {
  const auto place = Read({}, {.rank = 0, .world_size = 1});
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->one_host, true);
}

TEST(FirstHostTest, ExpandsTheFirstNameOnly) {
  for (const auto& [list, host] :
       {std::pair("node01", "node01"),
        {"node[01-04,07],gpu3", "node01"},
        {"tux[3,5-9]", "tux3"},
        {"a,b", "a"},
        {"rack[2-3]n[10-11].example.org", "rack2n10.example.org"},
        {"n[007]", "n007"}}) {
    EXPECT_THAT(internal::FirstHost(list), IsOkAndHolds(std::string(host)))
        << list;
  }
}

TEST(FirstHostTest, RejectsEverythingElse) {
  for (const char* bad : {"", ",a", "node[", "node[]", "node[a-b]", "node]",
                          "a b", "a;rm -rf", "n[1", "n[1;2]", "\n"}) {
    EXPECT_THAT(internal::FirstHost(bad),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("not a host list")))
        << bad;
  }
  EXPECT_THAT(internal::FirstHost(std::string(300, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sherd
