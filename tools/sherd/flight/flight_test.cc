#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/flight/flight_analysis.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_files.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/sherd/flight/flight_trace.h"

namespace sherd {
namespace {

using ::sherd::internal::FlightDump;
using ::sherd::internal::FlightEntry;
using ::sherd::internal::FlightGroup;
using ::sherd::internal::FlightReason;
using ::sherd::internal::FlightState;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMillisecond = 1'000'000;

void WriteText(const std::string& path, const std::string& text) {
  ASSERT_THAT(
      WriteFileAtomically(
          FileSystem::Posix(), path,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                              text.size())),
      IsOk());
}

// The dumps of a job of `size` ranks in one group: `calls` all_reduces that
// ended, each taking a millisecond, one per 10 ms from second 1 on; written at
// second 40.
std::vector<FlightDump> Job(int size, uint64_t calls) {
  std::vector<FlightDump> dumps;
  for (int r = 0; r < size; ++r) {
    FlightDump dump = {.reason = FlightReason::kSignal,
                       .detail = "SIGUSR1",
                       .rank = r,
                       .pid = 100 + r,
                       .host = "h",
                       .boot = "b"};
    dump.snapshot.monotonic_ns = 40 * kSecond;
    dump.snapshot.wall_ns = 1'700'000'000 * kSecond;
    dump.snapshot.clock = "tsc";
    dump.snapshot.capacity = 2048;
    FlightGroup group = {.id = 1, .alive = true};
    group.info = {
        .name = "default", .backend = "gloo", .rank = r, .size = size};
    dump.snapshot.groups = {group};
    for (uint64_t i = 1; i <= calls; ++i) {
      const int64_t begin =
          kSecond + static_cast<int64_t>(i) * 10 * kMillisecond;
      dump.snapshot.entries.push_back({.id = i,
                                       .group = 1,
                                       .state = FlightState::kCompleted,
                                       .op = CollectiveOp::kAllReduce,
                                       .dtype = DType::kFloat32,
                                       .reduction = ReduceOp::kSum,
                                       .bytes = 4096,
                                       .sequence = i,
                                       .enqueued = begin,
                                       .started = begin,
                                       .ended = begin + kMillisecond});
    }
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

FlightEntry& Last(FlightDump& dump) { return dump.snapshot.entries.back(); }

void MakeStuck(FlightEntry& entry) {
  entry.state = FlightState::kStarted;
  entry.ended.reset();
}

void MakeFailed(FlightEntry& entry) {
  entry.state = FlightState::kFailed;
  entry.status = absl::StatusCode::kUnavailable;
}

FlightEntry Message(CollectiveOp op, uint64_t id, int peer, int64_t tag,
                    uint64_t bytes) {
  return {.id = id,
          .group = 1,
          .state = FlightState::kCompleted,
          .op = op,
          .root = peer,
          .tag = tag,
          .bytes = bytes,
          .sequence = id,
          .enqueued = 2 * kSecond,
          .started = 2 * kSecond,
          .ended = 3 * kSecond};
}

class FlightTest : public ::testing::Test {
 protected:
  FlightTest()
      : folder_(absl::StrCat(
            ::testing::TempDir(), "/flight-",
            ::testing::UnitTest::GetInstance()->current_test_info()->name(),
            "-", getpid())) {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(folder_), IsOk());
    EXPECT_THAT(FileSystem::Posix().CreateDirectories(folder_), IsOk());
  }

  std::string PathOf(int rank) const {
    return absl::StrCat(folder_, "/flight.rank-", rank, ".json");
  }

  void Save(const std::vector<FlightDump>& dumps) {
    for (const FlightDump& dump : dumps) {
      WriteText(PathOf(dump.rank), FlightDumpToJson(dump));
    }
  }

  FlightDirectoryFiles Read() {
    absl::StatusOr<FlightDirectoryFiles> files =
        ReadFlightDirectory(FileSystem::Posix(), folder_);
    EXPECT_THAT(files, IsOk());
    return files.ok() ? *std::move(files) : FlightDirectoryFiles();
  }

  FlightReport Analyze(const std::vector<FlightDump>& dumps) {
    Save(dumps);
    return AnalyzeFlight(Read());
  }

  // The only finding of the only group.
  FlightFinding Finding(const std::vector<FlightDump>& dumps) {
    const FlightReport report = Analyze(dumps);
    EXPECT_TRUE(report.HasFindings());
    EXPECT_EQ(report.groups.size(), 1u);
    EXPECT_EQ(report.groups[0].findings.size(), 1u)
        << FormatFlightReport(report);
    if (report.groups[0].findings.empty()) return {};
    return report.groups[0].findings[0];
  }

  const std::string folder_;
};

TEST_F(FlightTest, HealthyRanksDoNotDeviate) {
  const FlightReport report = Analyze(Job(3, 5));
  EXPECT_FALSE(report.HasFindings());
  EXPECT_EQ(FormatFlightReport(report),
            "3 dumps, of ranks 0-2 (signal: 3)\n"
            "  rank 0, signal: SIGUSR1\n"
            "  rank 1, signal: SIGUSR1\n"
            "  rank 2, signal: SIGUSR1\n"
            "\n"
            "Group \"default\", 3 ranks, backend gloo\n"
            "  rank  last call      state                  behind\n"
            "  0     all_reduce #5  completed 38.95 s ago\n"
            "  1     all_reduce #5  completed 38.95 s ago\n"
            "  2     all_reduce #5  completed 38.95 s ago\n"
            "\n"
            "No deviation: all ranks made equal calls.\n");
}

TEST_F(FlightTest, RanksOfAHealthyJobMayBeInDifferentCalls) {
  std::vector<FlightDump> dumps = Job(2, 5);
  MakeStuck(Last(dumps[0]));
  // Called a moment before the dump.
  Last(dumps[0]).enqueued = 40 * kSecond - 5 * kMillisecond;
  Last(dumps[0]).started = Last(dumps[0]).enqueued;
  dumps[1].snapshot.entries.pop_back();
  const FlightReport report = Analyze(dumps);
  EXPECT_FALSE(report.HasFindings());
  EXPECT_EQ(report.groups.at(0).ranks.at(1).behind, 1u);
}

struct Difference {
  const char* name;
  std::function<void(FlightEntry&)> change;
  const char* called;
};

class FlightMismatchTest : public FlightTest,
                           public ::testing::WithParamInterface<Difference> {};

TEST_P(FlightMismatchTest, NamesTheDeviatingRankAndTheCall) {
  std::vector<FlightDump> dumps = Job(4, 7);
  // The calls after the deviation differ, too.
  for (size_t i = 4; i < 7; ++i)
    GetParam().change(dumps[2].snapshot.entries[i]);
  const FlightFinding finding = Finding(dumps);
  EXPECT_EQ(finding.kind, FlightFindingKind::kMismatch);
  EXPECT_THAT(finding.ranks, ElementsAre(2));
  EXPECT_EQ(finding.sequence, 5u);
  EXPECT_EQ(finding.text,
            absl::StrCat("as call #5, rank 2 called ", GetParam().called,
                         "; ranks 0, 1, 3 called all_reduce (float32, sum, "
                         "4096 bytes)"));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, FlightMismatchTest,
    ::testing::Values(
        Difference{"Operation",
                   [](FlightEntry& entry) {
                     entry.op = CollectiveOp::kBroadcast;
                     entry.root = 1;
                     entry.dtype.reset();
                     entry.reduction.reset();
                     entry.bytes = 64;
                   },
                   "broadcast (root 1, 64 bytes)"},
        Difference{"Size", [](FlightEntry& entry) { entry.bytes = 4092; },
                   "all_reduce (float32, sum, 4092 bytes)"},
        Difference{"Place", [](FlightEntry& entry) { entry.on_device = true; },
                   "all_reduce (float32, sum, 4096 bytes, on its device)"},
        Difference{"DType",
                   [](FlightEntry& entry) { entry.dtype = DType::kInt32; },
                   "all_reduce (int32, sum, 4096 bytes)"},
        Difference{"Reduction",
                   [](FlightEntry& entry) { entry.reduction = ReduceOp::kMax; },
                   "all_reduce (float32, max, 4096 bytes)"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(FlightTest, OfTwoRanksThatDifferBothAreNamed) {
  std::vector<FlightDump> dumps = Job(2, 3);
  for (FlightDump& dump : dumps) Last(dump).op = CollectiveOp::kReduce;
  Last(dumps[0]).root = 0;
  Last(dumps[1]).root = 1;
  const FlightFinding finding = Finding(dumps);
  EXPECT_THAT(finding.ranks, ElementsAre(0, 1));
  EXPECT_THAT(finding.text, AllOf(HasSubstr("rank 0 called reduce (root 0,"),
                                  HasSubstr("rank 1 called reduce (root 1,")));
}

TEST_F(FlightTest, ARankOfALargeJobIsFoundAmongTheRest) {
  std::vector<FlightDump> dumps = Job(6, 2);
  for (FlightDump& dump : dumps) {
    Last(dump).op = CollectiveOp::kReduceScatter;
  }
  Last(dumps[3]).bytes = 64;
  const FlightFinding finding = Finding(dumps);
  EXPECT_THAT(finding.ranks, ElementsAre(3));
  EXPECT_EQ(finding.text,
            "as call #2, rank 3 called reduce_scatter (float32, sum, 64 "
            "bytes); ranks 0-2, 4, 5 called reduce_scatter (float32, sum, 4096 "
            "bytes)");
}

TEST_F(FlightTest, BlocksInOneBufferAndInAListAreTheSameReduceScatter) {
  std::vector<FlightDump> dumps = Job(2, 3);
  for (FlightDump& dump : dumps) Last(dump).op = CollectiveOp::kReduceScatter;
  Last(dumps[0]).is_even = true;
  Last(dumps[0]).bytes = 2048;
  EXPECT_FALSE(Analyze(dumps).HasFindings());
}

TEST_F(FlightTest, TheFormOfAnAllToAllIsCompared) {
  std::vector<FlightDump> dumps = Job(3, 3);
  for (FlightDump& dump : dumps) {
    Last(dump).op = CollectiveOp::kAllToAllV;
    Last(dump).dtype.reset();
    Last(dump).reduction.reset();
    Last(dump).is_even = dump.rank != 1;
  }
  const FlightFinding finding = Finding(dumps);
  EXPECT_THAT(finding.ranks, ElementsAre(1));
  EXPECT_EQ(finding.text,
            "as call #3, rank 1 called all_to_all_v; ranks 0, 2 called "
            "all_to_all_v (4096 bytes to each rank)");
}

TEST_F(FlightTest, ACallByBytesFitsEveryTypeOfElements) {
  std::vector<FlightDump> dumps = Job(4, 3);
  for (FlightDump& dump : dumps) {
    Last(dump).op = CollectiveOp::kBroadcast;
    Last(dump).root = 0;
    Last(dump).reduction.reset();
  }
  Last(dumps[1]).dtype.reset();
  EXPECT_FALSE(Analyze(dumps).HasFindings());
  Last(dumps[2]).dtype = DType::kInt32;
  const FlightFinding finding = Finding(dumps);
  EXPECT_THAT(finding.ranks, ElementsAre(2));
  EXPECT_EQ(finding.text,
            "as call #3, rank 2 called broadcast (root 0, int32, 4096 bytes); "
            "ranks 0, 3 called broadcast (root 0, float32, 4096 bytes)");
}

TEST_F(FlightTest, NamesOfALaterVersionAreComparedAsTheyAre) {
  const std::vector<FlightDump> dumps = Job(3, 2);
  Save(dumps);
  WriteText(PathOf(1), absl::StrReplaceAll(FlightDumpToJson(dumps[1]),
                                           {{"all_reduce", "all_sort"}}));
  WriteText(PathOf(2), absl::StrReplaceAll(FlightDumpToJson(dumps[2]),
                                           {{"\"sum\"", "\"median\""}}));
  const FlightReport report = AnalyzeFlight(Read());
  ASSERT_EQ(report.groups.at(0).findings.size(), 1u);
  const FlightFinding& finding = report.groups[0].findings[0];
  EXPECT_THAT(finding.ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(finding.text,
            "as call #1, rank 2 called all_reduce float32 median; rank 1 "
            "called all_sort float32 sum; rank 0 called all_reduce (float32, "
            "sum, 4096 bytes)");
}

TEST_F(FlightTest, SizesMayDifferWhereTheOperationAllowsIt) {
  std::vector<FlightDump> dumps = Job(2, 3);
  for (FlightDump& dump : dumps) Last(dump).op = CollectiveOp::kAllGatherV;
  Last(dumps[1]).bytes = 1;
  EXPECT_FALSE(Analyze(dumps).HasFindings());
}

// By rank: which rank its error names, none if -1.
std::vector<FlightDump> Naming(const std::vector<int>& named) {
  std::vector<FlightDump> dumps = Job(static_cast<int>(named.size()), 2);
  for (size_t r = 0; r < named.size(); ++r) {
    if (named[r] >= 0) dumps[r].snapshot.groups[0].failed_rank = named[r];
  }
  return dumps;
}

TEST_F(FlightTest, TheErrorsOfTheRanksLeadToTheRootCause) {
  struct Case {
    std::vector<int> named;
    int root;
    std::vector<int> named_by;
  };
  EXPECT_THAT(Analyze(Naming({1, 0})).failed, IsEmpty());
  EXPECT_THAT(Analyze(Naming({-1, -1})).failed, IsEmpty());
  const std::vector<Case> cases = {
      // It knows that it deviates.
      {{1, 1, 1}, 1, {0, 2}},
      {{2, 2, -1, 2}, 2, {0, 1, 3}},
      // Rank 2 was late and takes the first that gave up for the cause.
      {{2, 2, 0, 2}, 2, {0, 1, 3}},
      // Rank 3 sees only what rank 0 did because of rank 2.
      {{2, 2, -1, 0}, 2, {0, 1, 3}},
  };
  for (const Case& c : cases) {
    const FlightReport report = Analyze(Naming(c.named));
    ASSERT_EQ(report.failed.size(), 1u);
    EXPECT_EQ(report.failed[0].rank, c.root);
    EXPECT_EQ(report.failed[0].named_by, c.named_by);
    EXPECT_THAT(FormatFlightReport(report),
                HasSubstr(absl::StrCat("! rank ", c.root,
                                       " failed, as the errors say of ranks")));
  }
}

TEST_F(FlightTest, EachGroupMayHaveLostAnotherRank) {
  std::vector<FlightDump> dumps = Naming({1, 1, 1, 1});
  dumps.erase(dumps.begin() + 1);
  for (FlightDump& dump : dumps) {
    FlightGroup smaller = {.id = 2, .alive = true, .failed_rank = 3};
    smaller.info = {.name = "default/shrink#1",
                    .backend = "gloo",
                    .rank = dump.rank == 0 ? 0 : dump.rank - 1,
                    .size = 3,
                    .world_ranks = {0, 2, 3}};
    dump.snapshot.groups.push_back(smaller);
  }
  dumps.pop_back();
  const FlightReport report = Analyze(dumps);
  ASSERT_EQ(report.failed.size(), 2u);
  EXPECT_EQ(report.failed[0].rank, 1);
  EXPECT_EQ(report.failed[1].rank, 3);
  EXPECT_THAT(report.failed[1].named_by, ElementsAre(0, 2));
}

TEST_F(FlightTest, WhereNoErrorNamesARankAFindingDoes) {
  std::vector<FlightDump> dumps = Job(3, 2);
  Last(dumps[2]).op = CollectiveOp::kBarrier;
  const FlightReport report = Analyze(dumps);
  ASSERT_EQ(report.failed.size(), 1u);
  EXPECT_EQ(report.failed[0].rank, 2);
  EXPECT_THAT(report.failed[0].named_by, IsEmpty());
}

TEST_F(FlightTest, AStragglerIsNamedWithItsDistance) {
  std::vector<FlightDump> dumps = Job(4, 17);
  for (FlightDump& dump : dumps) MakeStuck(Last(dump));
  dumps[2].snapshot.entries.resize(15);
  const FlightReport report = Analyze(dumps);
  ASSERT_EQ(report.groups.at(0).findings.size(), 1u);
  const FlightFinding& finding = report.groups[0].findings[0];
  EXPECT_EQ(finding.kind, FlightFindingKind::kMissingInCall);
  EXPECT_THAT(finding.ranks, ElementsAre(2));
  EXPECT_EQ(finding.sequence, 17u);
  EXPECT_EQ(finding.text,
            "rank 2 has not come to all_reduce #17: ranks 0, 1, 3 wait in it "
            "after 38.83 s; rank 2 is 2 calls behind, its last is all_reduce "
            "#15 (completed)");
  EXPECT_EQ(report.groups[0].ranks[2].behind, 2u);
  EXPECT_THAT(FormatFlightReport(report), HasSubstr("\n  ! rank 2 has not"));
}

TEST_F(FlightTest, ARankThatNeverCalledIsMissing) {
  std::vector<FlightDump> dumps = Job(2, 1);
  MakeFailed(Last(dumps[0]));
  dumps[1].snapshot.entries.clear();
  const FlightFinding finding = Finding(dumps);
  EXPECT_EQ(finding.kind, FlightFindingKind::kMissingInCall);
  EXPECT_THAT(finding.text,
              HasSubstr("rank 1 has made no call, 1 call behind"));
}

TEST_F(FlightTest, ARankWithoutADumpIsNamedWithTheOthersErrors) {
  std::vector<FlightDump> dumps = Job(4, 6);
  for (FlightDump& dump : dumps) MakeFailed(Last(dump));
  dumps.erase(dumps.begin() + 1);
  const FlightFinding finding = Finding(dumps);
  EXPECT_EQ(finding.kind, FlightFindingKind::kNoDump);
  EXPECT_THAT(finding.ranks, ElementsAre(1));
  EXPECT_EQ(finding.sequence, 6u);
  EXPECT_THAT(finding.text,
              AllOf(HasSubstr("rank 1 left no dump"),
                    HasSubstr("all_reduce #6: it failed on ranks 0, 2, 3")));
}

TEST_F(FlightTest, IfAllHangTheLastRankIsNamed) {
  std::vector<FlightDump> dumps = Job(3, 4);
  for (FlightDump& dump : dumps) MakeStuck(Last(dump));
  *Last(dumps[1]).started += 7 * kSecond;
  const FlightFinding finding = Finding(dumps);
  EXPECT_EQ(finding.kind, FlightFindingKind::kStuckTogether);
  EXPECT_THAT(finding.text, HasSubstr("rank 1 came last, 7.00 s after rank 0"));
}

TEST_F(FlightTest, ACallThatWasRefusedAndSurvivedIsNotAFinding) {
  std::vector<FlightDump> dumps = Job(2, 4);
  MakeFailed(dumps[0].snapshot.entries[1]);
  EXPECT_FALSE(Analyze(dumps).HasFindings());
}

TEST_F(FlightTest, GroupsAreComparedByMembersAndInstance) {
  std::vector<FlightDump> dumps = Job(4, 2);
  // Two groups of one name: ranks 0 and 1, ranks 2 and 3. In the second one,
  // rank 3 stays behind.
  for (FlightDump& dump : dumps) {
    FlightGroup& group = dump.snapshot.groups[0];
    const int first = dump.rank / 2 * 2;
    group.info.rank = dump.rank % 2;
    group.info.size = 2;
    group.info.world_ranks = {first, first + 1};
  }
  MakeStuck(Last(dumps[2]));
  dumps[3].snapshot.entries.pop_back();
  const FlightReport report = Analyze(dumps);
  ASSERT_EQ(report.groups.size(), 2u);
  EXPECT_THAT(report.groups[0].findings, IsEmpty());
  ASSERT_EQ(report.groups[1].findings.size(), 1u);
  EXPECT_THAT(report.groups[1].findings[0].ranks, ElementsAre(3));
  EXPECT_THAT(FormatFlightReport(report), HasSubstr("3 (1 in the group)"));
}

TEST_F(FlightTest, AMessageThatWasNeverSentIsNamed) {
  std::vector<FlightDump> dumps = Job(2, 0);
  dumps[0].snapshot.entries = {Message(CollectiveOp::kRecv, 1, 1, 7, 8),
                               Message(CollectiveOp::kRecv, 2, 1, 7, 8)};
  MakeStuck(Last(dumps[0]));
  dumps[1].snapshot.entries = {Message(CollectiveOp::kSend, 1, 0, 7, 8),
                               Message(CollectiveOp::kSend, 2, 0, 6, 8)};
  const FlightFinding finding = Finding(dumps);
  EXPECT_EQ(finding.kind, FlightFindingKind::kMessage);
  EXPECT_EQ(finding.text,
            "rank 0 waits in recv #2 from rank 1, tag 7, after 38.00 s: rank 1 "
            "has sent 1 such messages, this is number 2");
}

TEST_F(FlightTest, AMessageOfAnotherSizeIsNamed) {
  std::vector<FlightDump> dumps = Job(2, 0);
  dumps[0].snapshot.entries = {Message(CollectiveOp::kRecv, 1, 1, 7, 8)};
  MakeFailed(Last(dumps[0]));
  dumps[1].snapshot.entries = {Message(CollectiveOp::kSend, 1, 0, 7, 16)};
  const FlightFinding finding = Finding(dumps);
  EXPECT_THAT(finding.ranks, ElementsAre(0, 1));
  EXPECT_THAT(finding.text,
              HasSubstr("it has 8 bytes, send #1 of rank 1 has 16"));
}

TEST_F(FlightTest, OverwrittenRecordsAreNotTakenForMissingCalls) {
  std::vector<FlightDump> dumps = Job(2, 8);
  // Rank 1 remembers only the last two calls.
  auto& entries = dumps[1].snapshot.entries;
  entries.erase(entries.begin(), entries.begin() + 6);
  EXPECT_FALSE(Analyze(dumps).HasFindings());
  // Nothing of a group that has been used.
  entries.clear();
  dumps[1].snapshot.groups[0].counters.operations[0] = {.calls = 8};
  MakeStuck(Last(dumps[0]));
  const FlightReport report = Analyze(dumps);
  EXPECT_FALSE(report.groups.at(0).ranks.at(1).last_sequence.has_value());
  EXPECT_THAT(report.groups[0].findings, IsEmpty());
}

TEST_F(FlightTest, JsonReportsTheSame) {
  std::vector<FlightDump> dumps = Job(3, 2);
  Last(dumps[1]).bytes = 1;
  const auto json =
      nlohmann::json::parse(FlightReportToJson(Analyze(dumps)), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["deviation"], true);
  const auto& finding = json["groups"][0]["findings"][0];
  EXPECT_EQ(finding["kind"], "mismatch");
  EXPECT_EQ(finding["ranks"], nlohmann::json::array({1}));
  EXPECT_EQ(finding["sequence"], 2);
  EXPECT_EQ(json["groups"][0]["ranks"][2]["last_sequence"], 2);
}

TEST_F(FlightTest, TheTraceHasASpanPerOperationOnOneClock) {
  std::vector<FlightDump> dumps = Job(3, 3);
  MakeStuck(Last(dumps[0]));
  // Another host, whose clock began 100 s later, and whose dump is as old.
  dumps[2].boot = "other";
  dumps[2].snapshot.monotonic_ns -= 100 * kSecond;
  for (FlightEntry& entry : dumps[2].snapshot.entries) {
    entry.enqueued += 5 * kSecond;
    entry.started = entry.enqueued;
    *entry.ended += 5 * kSecond;
  }
  dumps[2].snapshot.monotonic_ns = 45 * kSecond;
  Save(dumps);
  const auto trace =
      nlohmann::json::parse(FlightToChromeTrace(Read().files), nullptr, false);
  ASSERT_TRUE(trace.is_object());
  int spans = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M") continue;
    ++spans;
    const auto sequence = event["args"]["sequence"].get<int>();
    EXPECT_NEAR(event["ts"].get<double>(), (sequence - 1) * 10'000.0, 0.01);
    if (event["pid"] == 0 && sequence == 3) {
      EXPECT_EQ(event["name"], "all_reduce (not ended)");
      EXPECT_NEAR(event["dur"].get<double>(), 38.97e6, 0.01);
    } else {
      EXPECT_EQ(event["name"], "all_reduce");
      EXPECT_NEAR(event["dur"].get<double>(), 1000, 0.01);
    }
  }
  EXPECT_EQ(spans, 9);
}

TEST_F(FlightTest, SpansThatOverlapAreOnTracksOfTheirOwn) {
  std::vector<FlightDump> dumps = Job(1, 2);
  Last(dumps[0]).started = *dumps[0].snapshot.entries[0].started;
  Save(dumps);
  const auto trace =
      nlohmann::json::parse(FlightToChromeTrace(Read().files), nullptr, false);
  std::vector<int> tracks;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") tracks.push_back(event["tid"].get<int>());
  }
  EXPECT_THAT(tracks, ElementsAre(1, 2));
}

TEST_F(FlightTest, TheNewestDumpOfARankCounts) {
  std::vector<FlightDump> dumps = Job(2, 3);
  Save(dumps);
  FlightDump newer = dumps[1];
  newer.snapshot.wall_ns += kSecond;
  newer.snapshot.entries.pop_back();
  WriteText(folder_ + "/flight.rank-1.pid-9.json", FlightDumpToJson(newer));
  const FlightDirectoryFiles read = Read();
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[1].entries.size(), 2u);
  EXPECT_THAT(read.notes, ElementsAre(HasSubstr("there is a newer dump of")));
}

TEST_F(FlightTest, ADumpThatIsMuchOlderIsSuspected) {
  std::vector<FlightDump> dumps = Job(2, 3);
  dumps[0].snapshot.wall_ns -= 3600 * kSecond;
  Save(dumps);
  EXPECT_THAT(Read().notes,
              ElementsAre(AllOf(HasSubstr("rank-0.json: 60 minutes older"),
                                HasSubstr("another run"))));
}

TEST_F(FlightTest, OneBadFileDoesNotHideTheOthers) {
  Save(Job(3, 2));
  WriteText(PathOf(1), "{\"format\": \"sherd-fli");
  WriteText(folder_ + "/flight.rank-0.json.tmp-12", "half");
  const FlightReport report = AnalyzeFlight(Read());
  EXPECT_TRUE(report.HasFindings());
  EXPECT_THAT(report.unreadable, ElementsAre(HasSubstr("it is cut off")));
  EXPECT_THAT(report.ranks, ElementsAre(0, 2));
  EXPECT_THAT(FormatFlightReport(report),
              AllOf(HasSubstr("cut off"), HasSubstr("rank 1 left no dump")));
}

TEST_F(FlightTest, NothingToReadIsAnError) {
  EXPECT_THAT(ReadFlightDirectory(FileSystem::Posix(), folder_ + "/no"),
              StatusIs(absl::StatusCode::kNotFound, "no such directory"));
  EXPECT_THAT(ReadFlightDirectory(FileSystem::Posix(), folder_),
              StatusIs(absl::StatusCode::kNotFound, "kill -USR1"));
  WriteText(PathOf(0), "nonsense");
  EXPECT_THAT(ReadFlightDirectory(FileSystem::Posix(), folder_),
              StatusIs(absl::StatusCode::kDataLoss, PathOf(0)));
  ASSERT_EQ(mkfifo(PathOf(1).c_str(), 0600), 0);
  EXPECT_THAT(ReadFlightDirectory(FileSystem::Posix(), folder_),
              StatusIs(absl::StatusCode::kDataLoss, "it is a pipe"));
}

TEST(FlightFileTest, ReadsTheGoldenFile) {
  const std::string path = "core/comm/testdata/flight_dump.json";
  const absl::StatusOr<std::string> text =
      ReadFile(FileSystem::Posix(), path, 1 << 20);
  ASSERT_THAT(text, IsOk());
  const absl::StatusOr<FlightFile> file = ParseFlightFile(path, *text);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->rank, 5);
  EXPECT_EQ(file->reason, "timeout");
  EXPECT_EQ(file->dropped, 1u);
  ASSERT_EQ(file->groups.size(), 2u);
  EXPECT_THAT(file->groups[0].world_ranks, ElementsAre(4, 5));
  EXPECT_EQ(file->groups[0].ended_collectives, 1u);
  EXPECT_FALSE(file->groups[1].ended_collectives.has_value());
  ASSERT_EQ(file->entries.size(), 4u);
  EXPECT_EQ(file->entries[1].dtype, "float32");
  EXPECT_EQ(file->entries[1].reduction, "sum");
  EXPECT_EQ(file->entries[1].deadline_ns, 99 * kSecond);
  EXPECT_TRUE(file->entries[1].outstanding());
  EXPECT_EQ(file->entries[2].tag, 7);
  EXPECT_EQ(file->entries[2].root, 0);
  EXPECT_FALSE(file->entries[0].tag.has_value());
}

TEST(FlightFileTest, ReadsTheGoldenFileOfADevice) {
  const std::string path = "core/comm/testdata/flight_dump_device.json";
  const absl::StatusOr<std::string> text =
      ReadFile(FileSystem::Posix(), path, 1 << 20);
  ASSERT_THAT(text, IsOk());
  const absl::StatusOr<FlightFile> file = ParseFlightFile(path, *text);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->groups[0].device, "cuda:1");
  EXPECT_EQ(file->groups[0].device_backend, "nccl");
  EXPECT_FALSE(file->entries[0].on_device);
  EXPECT_TRUE(file->entries[1].on_device);
}

TEST(FlightFileTest, ReadsTheGoldenFileOfCalls) {
  const std::string path = "core/comm/testdata/flight_dump_calls.json";
  const absl::StatusOr<std::string> text =
      ReadFile(FileSystem::Posix(), path, 1 << 20);
  ASSERT_THAT(text, IsOk());
  const absl::StatusOr<FlightFile> file = ParseFlightFile(path, *text);
  ASSERT_THAT(file, IsOk());
  ASSERT_TRUE(file->groups.at(0).calls.has_value());
  const std::vector<FlightFileCall>& calls = *file->groups[0].calls;
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_FALSE(calls[0].incoming);
  EXPECT_EQ(calls[0].number, 17u);
  EXPECT_EQ(calls[0].method, "scale");
  EXPECT_EQ(calls[0].peer, 1);
  EXPECT_EQ(calls[0].peer_name, "worker1");
  EXPECT_EQ(calls[0].state, "sent");
  EXPECT_EQ(calls[0].deadline_ns, 158 * kSecond);
  EXPECT_TRUE(calls[1].incoming);
  EXPECT_EQ(calls[1].started_ns, 99 * kSecond);
  EXPECT_FALSE(calls[1].deadline_ns.has_value());
}

// The dumps of two of three workers; the third left none.
std::vector<FlightDump> Workers() {
  std::vector<FlightDump> dumps = Job(2, 0);
  for (FlightDump& dump : dumps) {
    FlightGroup& workers = dump.snapshot.groups[0];
    workers.info.name = workers.info.backend = "rpc";
    workers.info.size = 3;
    workers.calls.emplace();
  }
  const auto call = [](int peer, uint64_t number, const char* method,
                       const char* state, int64_t started) {
    return internal::FlightCall{.peer = peer,
                                .peer_name = absl::StrCat("worker", peer),
                                .number = number,
                                .method = method,
                                .state = state,
                                .started = started,
                                .deadline = 60 * kSecond};
  };
  const auto incoming = [&](int peer, uint64_t number, const char* method,
                            const char* state, int64_t started) {
    internal::FlightCall made = call(peer, number, method, state, started);
    made.incoming = true;
    made.deadline = std::nullopt;
    return made;
  };
  dumps[0].snapshot.groups[0].calls = {
      call(1, 19, "scale", "queued", 39 * kSecond),
      call(1, 17, "scale", "sent", 37 * kSecond),
      call(2, 18, "sherd.fetch", "sent", 38 * kSecond)};
  dumps[1].snapshot.groups[0].calls = {
      incoming(0, 17, "scale", "running", 37 * kSecond + 500 * kMillisecond),
      incoming(2, 19, "echo", "waiting", 39 * kSecond + 500 * kMillisecond)};
  return dumps;
}

TEST_F(FlightTest, CallsReportTheAwaitedRankAndTheOutcome) {
  EXPECT_EQ(
      FormatFlightReport(Analyze(Workers())),
      "2 dumps, of ranks 0, 1 (signal: 2)\n"
      "  rank 0, signal: SIGUSR1\n"
      "  rank 1, signal: SIGUSR1\n"
      "\n"
      "Group \"rpc\", 3 ranks, backend rpc\n"
      "  rank 0 waits in call 17 of scale for worker1 (rank 1), sent for 3.00 "
      "s, "
      "deadline in 20.00 s; running for 2.50 s there\n"
      "  rank 0 waits in call 18 of sherd.fetch for worker2 (rank 2), sent for "
      "2.00 s, deadline in 20.00 s; that worker left no dump\n"
      "  rank 0 waits in call 19 of scale for worker1 (rank 1), queued for "
      "1.00 "
      "s, deadline in 20.00 s; that worker does not have it\n"
      "  rank 1 has call 19 of echo from worker2 (rank 2), waiting for 500.0 "
      "ms; "
      "that worker left no dump\n"
      "  ! rank 2 left no dump: dead, stopped, on another host, or not "
      "asked\n");
}

TEST_F(FlightTest, AnRpcGroupWithoutCallsIsReportedAsSuch) {
  std::vector<FlightDump> dumps = Workers();
  for (FlightDump& dump : dumps) dump.snapshot.groups[0].calls.emplace();
  EXPECT_THAT(FormatFlightReport(Analyze(dumps)),
              HasSubstr("backend rpc\n  no call is under way\n"));
}

TEST_F(FlightTest, TheBackendOfAGroupWithDevicesIsThatOfInit) {
  std::vector<FlightDump> dumps = Job(2, 1);
  for (FlightDump& dump : dumps) {
    dump.snapshot.groups[0].info.device = "cuda:0";
    dump.snapshot.groups[0].info.device_backend = "nccl";
  }
  EXPECT_EQ(Analyze(dumps).groups.at(0).backend, "cpu:gloo,cuda:nccl");
}

struct Rejection {
  const char* name;
  // A text of the dump below, and what takes its place.
  const char* from;
  const char* to;
  const char* message;
};

class FlightRejectionTest : public ::testing::TestWithParam<Rejection> {};

TEST_P(FlightRejectionTest, NamesTheFieldAndWhatWasExpected) {
  const Rejection& rejection = GetParam();
  std::string text = FlightDumpToJson(Job(2, 1)[0]);
  ASSERT_THAT(ParseFlightFile("f", text), IsOk());
  const size_t at = text.find(rejection.from);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, std::string(rejection.from).size(), rejection.to);
  const absl::StatusOr<FlightFile> file = ParseFlightFile("f", text);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()),
              AllOf(HasSubstr("f: "), HasSubstr(rejection.message)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, FlightRejectionTest,
    ::testing::Values(
        Rejection{"NotJson", "{", "[", "one JSON object"},
        Rejection{"Format", "sherd-flight", "other", "sherd-flight"},
        Rejection{"Version", "\"version\": 1", "\"version\": 2",
                  "version 2 of the format, expected 1"},
        Rejection{"NegativeRank", "\"rank\": 0", "\"rank\": -1", ".rank"},
        Rejection{"HugeRank", "\"rank\": 0", "\"rank\": 18446744073709551615",
                  ".rank"},
        Rejection{"Fraction", "\"pid\": 100", "\"pid\": 1.5", ".pid"},
        Rejection{"NoGroups", "\"groups\"", "\"group\"", ".groups"},
        Rejection{"GroupOfNoRank", "\"size\":2", "\"size\":0",
                  "groups[0].size"},
        Rejection{"HugeGroup", "\"size\":2", "\"size\":4000000000",
                  "groups[0].size"},
        Rejection{"RankOutsideGroup", "\"rank\":0", "\"rank\":2",
                  "groups[0].rank: expected a number from 0 to 1"},
        Rejection{"WorldRanks", "\"world_ranks\":[]", "\"world_ranks\":[1]",
                  "groups[0].world_ranks"},
        Rejection{"WorldRankNegative", "\"world_ranks\":[]",
                  "\"world_ranks\":[1,-1]", "groups[0].world_ranks"},
        Rejection{"FailedRankNegative", "\"alive\":true",
                  "\"alive\":true,\"failed_rank\":-1", "groups[0].failed_rank"},
        Rejection{"CallIsNoObject", "\"alive\":true",
                  "\"alive\":true,\"calls\":[7]",
                  "groups[0].calls[0]: expected an object"},
        Rejection{"CallsAreNoList", "\"alive\":true",
                  "\"alive\":true,\"calls\":7", "groups[0].calls"},
        Rejection{"CallDirection", "\"alive\":true",
                  "\"alive\":true,\"calls\":[{\"direction\":\"up\"}]",
                  "groups[0].calls[0].direction: expected in or out"},
        Rejection{"CallPeer", "\"alive\":true",
                  "\"alive\":true,\"calls\":[{\"direction\":\"in\","
                  "\"number\":1,\"method\":\"m\",\"peer\":2}]",
                  "groups[0].calls[0].peer: expected a number from 0 to 1"},
        Rejection{"UnknownGroup", "\"group\":1", "\"group\":9",
                  "entries[0].group"},
        Rejection{"RootOutsideGroup", "\"root\":null", "\"root\":2",
                  "entries[0].root"},
        Rejection{"NoTruth", "\"path\"", "\"on_device\":1,\"path\"",
                  "entries[0].on_device: expected true or false"},
        Rejection{"State", "\"state\":\"completed\"", "\"state\":\"lost\"",
                  "entries[0].state"},
        Rejection{"NoEnd", "\"ended_ns\":1011000000", "\"ended_ns\":null",
                  "entries[0].ended_ns"},
        Rejection{"TimeThatWouldOverflow", "\"started_ns\":1010000000",
                  "\"started_ns\":9223372036854775807",
                  "entries[0].started_ns"},
        Rejection{"EntryIsNoObject", "  {\"id\":1,\"group\"",
                  "  7,{\"id\":1,\"group\"", "entries[0]: expected an object"},
        Rejection{"NoClock", "\"clock\"", "\"watch\"", "clock"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FlightFileTest, TextsOfAFileDoNotReachTheTerminalAsTheyAre) {
  std::string text = FlightDumpToJson(Job(2, 1)[0]);
  const std::string name = "\"name\":\"default\"";
  text.replace(text.find(name), name.size(), "\"name\":\"\\u001b[2Jx\"");
  const absl::StatusOr<FlightFile> file = ParseFlightFile("f", text);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->groups[0].name, "?[2Jx");
}

TEST(FlightFileTest, DeepNestingIsRefusedAndHarmless) {
  const std::string deep(1'000'000, '[');
  EXPECT_FALSE(ParseFlightFile("f", deep).ok());
  EXPECT_FALSE(ParseFlightFile("f", deep + std::string(1'000'000, ']')).ok());
}

}  // namespace
}  // namespace sherd
