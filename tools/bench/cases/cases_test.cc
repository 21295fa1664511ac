#include "sherd/tools/bench/cases/cases.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/bench/harness/board.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

BenchOptions Options(std::vector<std::string> arguments) {
  return *ParseBenchOptions(std::move(arguments));
}

std::vector<std::string> Descriptions(const BenchOptions& options) {
  std::vector<std::string> list;
  for (const Measurement& measurement : SelectMeasurements(options)) {
    list.push_back(Describe(measurement));
  }
  return list;
}

TEST(AllBenchCasesTest, NamesAreUniqueAndPeersFitTheBoard) {
  std::set<std::string> names;
  for (const BenchCase& bench_case : AllBenchCases()) {
    EXPECT_TRUE(names.insert(bench_case.name).second) << bench_case.name;
    EXPECT_LE(bench_case.peers.size(), static_cast<size_t>(kMaxBenchPeers));
    std::set<std::pair<std::string, std::string>> peers;
    for (const BenchPeer& peer : bench_case.peers) {
      EXPECT_TRUE(peers.emplace(peer.name, peer.way).second)
          << peer.name << " " << peer.way;
    }
  }
}

TEST(SelectMeasurementsTest, GoesThroughWorldsAndSizes) {
  EXPECT_THAT(Descriptions(Options(
                  {"--cases=^gather$", "--world=2,3", "--bytes=4096,1MiB"})),
              ElementsAre("gather, 2 ranks, 4 KiB", "gather, 2 ranks, 1 MiB",
                          "gather, 3 ranks, 4 KiB", "gather, 3 ranks, 1 MiB"));
}

TEST(SelectMeasurementsTest, ACaseWithoutASizeIsMeasuredOncePerWorld) {
  EXPECT_THAT(
      Descriptions(Options({"--cases=test_start", "--bytes=4096,1MiB"})),
      ElementsAre("test_start, 2 ranks", "test_start, 4 ranks"));
}

TEST(SelectMeasurementsTest, ACaseHasSizesOfItsOwnUnlessTheUserNamesOthers) {
  EXPECT_THAT(Descriptions(Options({"--cases=^gather$", "--world=2"})),
              ElementsAre("gather, 2 ranks, 1 MiB", "gather, 2 ranks, 64 MiB"));
  EXPECT_THAT(Descriptions(Options({"--cases=^rpc_calls$", "--world=2"})),
              ElementsAre("rpc_calls, 2 ranks, 64 B"));
  EXPECT_THAT(
      Descriptions(Options({"--cases=^rpc_calls$", "--world=2", "--bytes=8"})),
      ElementsAre("rpc_calls, 2 ranks, 8 B"));
}

TEST(SelectMeasurementsTest, ManyTensorsGetASizeThatTheyHave) {
  EXPECT_THAT(
      Descriptions(Options({"--cases=^checkpoint_load_many$", "--world=2",
                            "--bytes=512MiB,4000000,4096"})),
      ElementsAre("checkpoint_load_many, 2 ranks, 536000000 B",
                  "checkpoint_load_many, 2 ranks, 4000000 B",
                  "checkpoint_load_many, 2 ranks, 4 KiB"));
  const auto few = SelectMeasurements(Options(
      {"--cases=^checkpoint_(save|load)_many$", "--world=2", "--bytes=4096"}));
  ASSERT_EQ(few.size(), 2u);
  for (const Measurement& measurement : few) {
    EXPECT_THAT(CanMeasure(measurement),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("at least 4000000 bytes")));
  }
}

TEST(SelectMeasurementsTest, LeavesOutCasesWithoutSuchAPeer) {
  EXPECT_THAT(Descriptions(Options(
                  {"--cases=checkpoint_(save|load_(same|resharded))$|gather",
                   "--peers=^sherd$", "--world=2", "--bytes=4096"})),
              ElementsAre("checkpoint_save, 2 ranks, 4 KiB",
                          "checkpoint_load_same, 2 ranks, 4 KiB",
                          "checkpoint_load_resharded, 2 ranks, 4 KiB"));
  EXPECT_THAT(SelectMeasurements(Options({"--peers=no such peer"})), IsEmpty());
}

TEST(SelectMeasurementsTest, KeepsTheOrderOfPeers) {
  const auto list =
      SelectMeasurements(Options({"--cases=^gather", "--peers=^gloo$|limit",
                                  "--world=2", "--bytes=4096"}));
  ASSERT_EQ(list.size(), 1u);
  std::vector<std::string> names;
  for (const int peer : list[0].peers) {
    names.push_back(list[0].bench_case->peers[peer].name);
  }
  EXPECT_THAT(names, ElementsAre("gloo", "limit"));
}

TEST(CanMeasureTest, ReportsWhyNot) {
  const auto odd = SelectMeasurements(
      Options({"--cases=_to_grid", "--world=3", "--bytes=4096"}));
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_THAT(CanMeasure(odd[0]), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("even world")));
  const auto uneven = SelectMeasurements(
      Options({"--cases=^gather", "--world=3", "--bytes=4100,4096"}));
  ASSERT_EQ(uneven.size(), 2u);
  EXPECT_THAT(
      CanMeasure(uneven[0]),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4100 bytes")));
  EXPECT_THAT(CanMeasure(uneven[1]), IsOk());
}

TEST(EmbeddingCasesTest, TorchRecIsSkippedWhereItCannotCutColumns) {
  size_t found = 0;
  for (const BenchCase& bench_case : AllBenchCases()) {
    if (bench_case.name != "embedding_columns" &&
        bench_case.name != "embedding_step_columns") {
      continue;
    }
    for (const BenchPeer& peer : bench_case.peers) {
      if (peer.name != "torchrec") continue;
      ++found;
      EXPECT_THAT(peer.check(3, 4096, ""),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("64 columns into 3")));
      EXPECT_FALSE(absl::IsInvalidArgument(peer.check(4, 4096, "")));
    }
  }
  EXPECT_EQ(found, 2u);
}

TEST(ListCasesTest, NamesAPeerOnceHoweverManyVariantsItHas) {
  const std::string list = ListCases(Options({"--cases=^gather$"}));
  const size_t first = list.find("\n  openmpi ");
  if (first == std::string::npos) GTEST_SKIP() << "no mpirun here";
  EXPECT_EQ(list.find("\n  openmpi ", first + 1), std::string::npos);
}

TEST(ListCasesTest, ShowsWhatIsSelected) {
  EXPECT_THAT(
      ListCases(Options({"--cases=gather", "--peers=limit|sherd"})),
      AllOf(HasSubstr("gather"), HasSubstr("limit"), HasSubstr("sherd-gloo"),
            Not(HasSubstr("checkpoint")), Not(HasSubstr("\n  gloo"))));
}

}  // namespace
}  // namespace sherd
