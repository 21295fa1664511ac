#include "sherd/tools/bench/harness/rank_loop.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/kits/sanitized.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/bench/harness/rank_processes.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank 0 writes down what it is asked to do, in the memory of the board; one
// call of one rank may give a wrong result.
class FakeWork : public RankWork {
 public:
  struct WrongResult {
    int rank = -1;
    int call = -1;
  };

  FakeWork(RankContext& context, char name, WrongResult wrong)
      : context_(context), name_(name), wrong_(wrong) {}

  absl::Status Prepare() override {
    Note('p');
    return absl::OkStatus();
  }
  absl::Status Run() override {
    Note('r');
    ++calls_;
    return absl::OkStatus();
  }
  absl::Status Check() override {
    Note('c');
    if (context_.rank() == wrong_.rank && calls_ == wrong_.call) {
      return absl::DataLossError("7 elements differ");
    }
    return absl::OkStatus();
  }

 private:
  void Note(char step) {
    if (context_.rank() != 0) return;
    char* const log = reinterpret_cast<char*>(context_.shared().data());
    const char note[] = {name_, step, '\0'};
    std::strcat(log, note);
  }

  RankContext& context_;
  const char name_;
  const WrongResult wrong_;
  int calls_ = 0;
};

BenchPeer FakePeer(const char* name, FakeWork::WrongResult wrong = {}) {
  return {.name = name,
          .help = "",
          .make = [=](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            return std::make_unique<FakeWork>(context, name[0], wrong);
          }};
}

class RankLoopTest : public ::testing::Test {
 protected:
  absl::Status RunRanks(const BenchCase& bench_case, std::vector<int> peers,
                        int calls) {
    board_ = *Board::Create({.case_name = bench_case.name,
                             .peers = peers,
                             .world = 2,
                             .calls = calls,
                             .shared_bytes = 4096});
    RankProcesses ranks(*board_);
    const absl::Status forked = ranks.Fork(
        [&](int rank) { return RunRankProcess(*board_, bench_case, rank); });
    if (!forked.ok()) return forked;
    return ranks.Wait(absl::Minutes(5), /*stop_fd=*/-1);
  }

  std::string Log() const {
    return reinterpret_cast<const char*>(board_->shared().data());
  }

  std::unique_ptr<Board> board_;
};

TEST_F(RankLoopTest, PeersTakeTurnsAndEveryCallIsCheckedAndTimed) {
  const BenchCase bench_case{
      .name = "fake",
      .help = "",
      .peers = {FakePeer("a"), FakePeer("b"), FakePeer("c")}};
  ASSERT_THAT(RunRanks(bench_case, {0, 2}, /*calls=*/3), IsOk());
  const std::string turn = "aparaccpcrcc";
  EXPECT_EQ(Log(), turn + turn + turn);
  for (int peer = 0; peer < 2; ++peer) {
    for (int call = 0; call < 3; ++call) {
      EXPECT_GT(board_->CallSeconds(peer, call), 0.0);
      EXPECT_GT(board_->CallCpuSeconds(peer, call), 0.0);
    }
  }
}

TEST_F(RankLoopTest, AWrongResultOfOneRankFailsTheMeasurement) {
  const BenchCase bench_case{
      .name = "fake",
      .help = "",
      .peers = {FakePeer("a"), FakePeer("b", {.rank = 1, .call = 2})}};
  EXPECT_THAT(RunRanks(bench_case, {0, 1}, /*calls=*/3),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("rank 1"), HasSubstr("b, call 2"),
                             HasSubstr("7 elements differ"))));
}

TEST_F(RankLoopTest, TheMemoryOfTablesIsThatOfMakingThemAndOfTheFirstCall) {
  constexpr int64_t kTable = int64_t{8} << 20;
  class TableWork : public FakeWork {
   public:
    explicit TableWork(RankContext& context)
        : FakeWork(context, 't', {}), table_(kTable, 't') {}
    absl::Status Run() override {
      result_.resize(kTable, 'r');
      return absl::OkStatus();
    }

   private:
    const std::vector<char> table_;
    std::vector<char> result_;
  };
  BenchCase bench_case{.name = "fake", .help = "", .measures_tables = true};
  bench_case.peers.push_back({.name = "t",
                              .help = "",
                              .make = [](RankContext& context)
                                  -> absl::StatusOr<std::unique_ptr<RankWork>> {
                                return std::make_unique<TableWork>(context);
                              }});
  ASSERT_THAT(RunRanks(bench_case, {0}, /*calls=*/2), IsOk());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_GE(board_->Figures(rank, 0).extra_bytes, 2 * kTable);
    // A sanitizer's shadow of them is as large as they are, or more.
    if (sherd::testing::kIsSanitized) continue;
    EXPECT_LT(board_->Figures(rank, 0).extra_bytes, 3 * kTable);
  }
}

TEST_F(RankLoopTest, OfWorkThatTimesItselfTheCpuTimeIsNotKnown) {
  class OwnTimeWork : public FakeWork {
   public:
    explicit OwnTimeWork(RankContext& context) : FakeWork(context, 'o', {}) {}
    std::optional<double> OwnSeconds() const override { return 0.25; }
  };
  BenchCase bench_case{.name = "fake", .help = ""};
  bench_case.peers.push_back({.name = "o",
                              .help = "",
                              .make = [](RankContext& context)
                                  -> absl::StatusOr<std::unique_ptr<RankWork>> {
                                return std::make_unique<OwnTimeWork>(context);
                              }});
  ASSERT_THAT(RunRanks(bench_case, {0}, /*calls=*/2), IsOk());
  EXPECT_EQ(board_->CallSeconds(0, 1), 0.25);
  EXPECT_EQ(board_->CallCpuSeconds(0, 1), -1);
}

TEST_F(RankLoopTest, ACaseThatStartsRanksRunsOneWorkOnce) {
  const BenchCase bench_case{.name = "fake",
                             .help = "",
                             .peers = {FakePeer("a"), FakePeer("b")},
                             .starts_ranks = true};
  ASSERT_THAT(RunRanks(bench_case, {1}, /*calls=*/1), IsOk());
  EXPECT_EQ(Log(), "bpbrbc");
}

}  // namespace
}  // namespace sherd
