// The dumps of ranks that fail, as sherd flight reads them.

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/flight/flight_analysis.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_files.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FlightRanksTest : public ::testing::Test {
 protected:
  // One directory for all tests: the process reads the knob once.
  static void SetUpTestSuite() {
    setenv("SHERD_FLIGHT_DIR", Folder().c_str(), 1);
  }
  void SetUp() override {
    ASSERT_THAT(FileSystem::Posix().RemoveAll(Folder()), IsOk());
  }

  static std::string Folder() { return ::testing::TempDir() + "/flight-ranks"; }

  // Of the latest group; dumps also contain those of former tests.
  static std::vector<FlightFinding> Findings() {
    const absl::StatusOr<FlightDirectoryFiles> files =
        ReadFlightDirectory(FileSystem::Posix(), Folder());
    EXPECT_THAT(files, IsOk());
    if (!files.ok()) return {};
    const FlightReport report = AnalyzeFlight(*files);
    EXPECT_FALSE(report.groups.empty());
    return report.groups.empty() ? std::vector<FlightFinding>()
                                 : report.groups.back().findings;
  }
};

TEST_F(FlightRanksTest, ARankThatMadeAnotherCallIsFound) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    std::vector<float> values = {1, 2, 3};
    EXPECT_THAT(group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum),
                IsOk());
    const absl::Status status =
        group.rank() == 1
            ? group.Broadcast(
                  MutableBytes(reinterpret_cast<std::byte*>(values.data()), 12),
                  0)
            : group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum);
    EXPECT_FALSE(status.ok());
  });
  const std::vector<FlightFinding> findings = Findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].kind, FlightFindingKind::kMismatch);
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text,
              AllOf(HasSubstr("rank 1 called broadcast (root 0, 12 bytes)"),
                    HasSubstr("ranks 0, 2 called all_reduce (float32, sum, "
                              "12 bytes)")));
}

TEST_F(FlightRanksTest, AMissingRankIsFound) {
  absl::BlockingCounter failed(2);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    EXPECT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 2) {
      failed.Wait();
      internal::WriteFlightDump(internal::TakeFlightDump(
          internal::FlightRecorder::Global(), internal::FlightReason::kRequest,
          "asked by a test", 2));
      return;
    }
    EXPECT_FALSE(group.Barrier({.timeout = absl::Milliseconds(300)}).ok());
    failed.DecrementCount();
  });
  const std::vector<FlightFinding> findings = Findings();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].kind, FlightFindingKind::kMissingInCall);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_THAT(findings[0].text,
              AllOf(HasSubstr("rank 2 is 1 call behind, its last is barrier #"),
                    HasSubstr("failed on ranks 0, 1")));
}

TEST_F(FlightRanksTest, BlocksOfSeveralLengthsAreNotAMismatch) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const std::vector<float> values = {1, 2, 3};
    const absl::Span<const float> whole = absl::MakeSpan(values);
    const absl::Span<const float> sends[] = {whole.subspan(0, 1),
                                             whole.subspan(1)};
    std::vector<float> recv(static_cast<size_t>(1 + group.rank()));
    EXPECT_THAT(group.ReduceScatterV<float>(sends, absl::MakeSpan(recv),
                                            ReduceOp::kSum),
                IsOk());
    internal::WriteFlightDump(internal::TakeFlightDump(
        internal::FlightRecorder::Global(), internal::FlightReason::kRequest,
        "asked by a test", group.rank()));
  });
  EXPECT_THAT(Findings(), IsEmpty());
}

TEST_F(FlightRanksTest, CountersReportTheCallsOfTheGroup) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const GroupCounters before = group.counters();
    std::vector<double> values(100, group.rank());
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(group.AllReduce(absl::MakeSpan(values), ReduceOp::kMax),
                  IsOk());
    }
    const OperationCount count = group.counters().Of(CollectiveOp::kAllReduce);
    const OperationCount former = before.Of(CollectiveOp::kAllReduce);
    EXPECT_EQ(count.calls - former.calls, 3u);
    EXPECT_EQ(count.bytes - former.bytes, 3u * 800);
    EXPECT_EQ(count.errors, 0u);
    EXPECT_GT(count.seconds, former.seconds);
  });
}

}  // namespace
}  // namespace sherd
