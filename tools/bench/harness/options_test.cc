#include "sherd/tools/bench/harness/options.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BenchOptionsTest, DefaultsSelectEverythingAtTwoAndFourRanks) {
  const auto options = ParseBenchOptions({});
  ASSERT_THAT(options, IsOk());
  EXPECT_THAT(options->worlds, ElementsAre(2, 4));
  EXPECT_THAT(options->bytes, IsEmpty());
  EXPECT_TRUE(Selects(options->cases, "gather"));
  EXPECT_TRUE(Selects(options->peers, "limit"));
  EXPECT_FALSE(options->list);
  EXPECT_EQ(options->calls, 0);
  EXPECT_EQ(options->python, "python3");
  EXPECT_EQ(options->json, "");
  EXPECT_EQ(options->help, "");
}

TEST(BenchOptionsTest, ReadsEveryOption) {
  const auto options =
      ParseBenchOptions({"--list", "--cases=reshard_.*grid", "--peers=^gloo$",
                         "--world=3,1,3", "--bytes=4096,1MiB,2GiB", "--calls=7",
                         "--python=/opt/python", "--json=out/results.jsonl"});
  ASSERT_THAT(options, IsOk());
  EXPECT_TRUE(options->list);
  EXPECT_TRUE(Selects(options->cases, "reshard_0_to_grid"));
  EXPECT_FALSE(Selects(options->cases, "reshard_0_to_1"));
  EXPECT_TRUE(Selects(options->peers, "gloo"));
  EXPECT_FALSE(Selects(options->peers, "sherd-gloo"));
  EXPECT_THAT(options->worlds, ElementsAre(3, 1));
  EXPECT_THAT(options->bytes, ElementsAre(4096, 1 << 20, int64_t{2} << 30));
  EXPECT_EQ(options->calls, 7);
  EXPECT_EQ(options->python, "/opt/python");
  EXPECT_EQ(options->json, "out/results.jsonl");
}

TEST(BenchOptionsTest, HelpNamesEveryOption) {
  const auto options = ParseBenchOptions({"--help"});
  ASSERT_THAT(options, IsOk());
  EXPECT_THAT(options->help, AllOf(HasSubstr("--list"), HasSubstr("--cases"),
                                   HasSubstr("--peers"), HasSubstr("--world"),
                                   HasSubstr("--bytes"), HasSubstr("--calls"),
                                   HasSubstr("--python"), HasSubstr("--json")));
}

struct BadOption {
  std::vector<std::string> arguments;
  std::string message;
};

class BadBenchOptionTest : public ::testing::TestWithParam<BadOption> {};

TEST_P(BadBenchOptionTest, IsRefusedByName) {
  EXPECT_THAT(ParseBenchOptions(GetParam().arguments),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadBenchOptionTest,
    ::testing::Values(BadOption{{"--wrold=2"}, "--wrold=2"},
                      BadOption{{"gather"}, "gather"},
                      BadOption{{"--cases"}, "--cases"},
                      BadOption{{"--cases=("}, "--cases=("},
                      BadOption{{"--peers=[a"}, "--peers=[a"},
                      BadOption{{"--world=0"}, "--world: \"0\""},
                      BadOption{{"--world=257"}, "from 1 to 256"},
                      BadOption{{"--world=2,x"}, "\"x\""},
                      BadOption{{"--world=2,,4"}, "--world: \"\""},
                      BadOption{{"--world="}, "--world"},
                      BadOption{{"--world=2", "--world=4"}, "--world"},
                      BadOption{{"--calls=0"}, "--calls"},
                      BadOption{{"--calls=64"}, "--calls"},
                      BadOption{{"--bytes=-1"}, "\"-1\""},
                      BadOption{{"--bytes=1MB"}, "\"1MB\""},
                      BadOption{{"--bytes=1,0"}, "\"0\""}));

TEST(ByteCountTest, TakesNumbersAndBinaryUnits) {
  EXPECT_THAT(ParseByteCount("1"), IsOkAndHolds(1));
  EXPECT_THAT(ParseByteCount("64KiB"), IsOkAndHolds(65536));
  EXPECT_THAT(ParseByteCount("1024GiB"), IsOkAndHolds(int64_t{1} << 40));
}

TEST(ByteCountTest, RefusesWhatItCannotHold) {
  for (const char* text :
       {"", "MiB", "1.5MiB", "1025GiB", "1MiBs", "99999999999999999999"}) {
    EXPECT_THAT(ParseByteCount(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

}  // namespace
}  // namespace sherd
