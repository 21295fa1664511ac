#include "sherd/tools/bench/harness/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/process/shared_segment.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

TEST(BoardTest, AnAttachedProcessSeesTheTaskAndTheSameMemory) {
  const auto made = Board::Create({.case_name = "gather",
                                   .peers = {2, 0},
                                   .world = 3,
                                   .bytes = int64_t{5} << 30,
                                   .calls = 7,
                                   .directory = "/some/where",
                                   .shared_bytes = 10000});
  ASSERT_THAT(made, IsOk());
  const auto attached = Board::Attach(dup((*made)->fd()));
  ASSERT_THAT(attached, IsOk());
  const BenchTask& task = (*attached)->task();
  EXPECT_EQ(task.case_name, "gather");
  EXPECT_THAT(task.peers, ElementsAre(2, 0));
  EXPECT_EQ(task.world, 3);
  EXPECT_EQ(task.bytes, int64_t{5} << 30);
  EXPECT_EQ(task.calls, 7);
  EXPECT_EQ(task.directory, "/some/where");
  EXPECT_EQ((*attached)->parent(), getpid());
  ASSERT_EQ((*attached)->shared().size(), 10000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*attached)->shared().data()) % 4096,
            0u);
  (*made)->shared()[9999] = std::byte{17};
  EXPECT_EQ((*attached)->shared()[9999], std::byte{17});
}

TEST(BoardTest, ACallLastsFromTheFirstThatEntersToTheLastThatLeaves) {
  const auto board = Board::Create({.case_name = "x", .world = 3, .calls = 2});
  ASSERT_THAT(board, IsOk());
  (*board)->SetCall(/*rank=*/0, /*peer=*/1, /*call=*/1, {12.0, 13.0, 0.5});
  (*board)->SetCall(1, 1, 1, {11.5, 12.0, 0.25});
  (*board)->SetCall(2, 1, 1, {12.5, 14.25, 3.0});
  EXPECT_DOUBLE_EQ((*board)->CallSeconds(1, 1), 2.75);
  EXPECT_DOUBLE_EQ((*board)->CallCpuSeconds(1, 1), 3.75);
  (*board)->SetCall(1, 1, 1, {11.5, 12.0, -1});
  EXPECT_EQ((*board)->CallCpuSeconds(1, 1), -1);
}

TEST(BoardTest, EachRankHasFiguresOfEachPeer) {
  const auto board = Board::Create({.case_name = "x", .world = 2});
  ASSERT_THAT(board, IsOk());
  (*board)->SetFigures(1, 3,
                       {.bytes_sent = int64_t{5} << 40,
                        .bytes_received = 6,
                        .extra_bytes = 7,
                        .way = std::string(100, 'w')});
  const WorkFigures figures = (*board)->Figures(1, 3);
  EXPECT_EQ(figures.bytes_sent, int64_t{5} << 40);
  EXPECT_EQ(figures.bytes_received, 6);
  EXPECT_EQ(figures.extra_bytes, 7);
  EXPECT_EQ(figures.way, std::string(63, 'w'));
}

TEST(BoardTest, OutcomesKeepCodeAndMessage) {
  const auto board = Board::Create({.case_name = "x", .world = 3});
  ASSERT_THAT(board, IsOk());
  (*board)->SetOutcome(0, absl::OkStatus());
  (*board)->SetOutcome(1, absl::DataLossError(std::string(5000, 'y')));
  EXPECT_THAT((*board)->Outcome(0), IsOk());
  EXPECT_THAT((*board)->Outcome(1), StatusIs(absl::StatusCode::kDataLoss,
                                             ::testing::StartsWith("yyy")));
  EXPECT_THAT((*board)->Outcome(2), StatusIs(absl::StatusCode::kUnknown));
}

TEST(BoardTest, AttachRefusesOtherDescriptors) {
  EXPECT_THAT(Board::Attach(-1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Board::Attach(open("/dev/null", O_RDWR)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const uint64_t bytes : {64 << 20, 4096}) {
    SharedSegment other;
    ASSERT_EQ(other.Create("not-a-board", bytes),
              SharedSegment::Failure::kNone);
    EXPECT_THAT(Board::Attach(dup(other.fd())),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(BoardTest, RefusesATextThatDoesNotFit) {
  EXPECT_THAT(Board::Create({.case_name = std::string(64, 'n')}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sherd
