#include "sherd/core/comm/collective/call_comparison.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

absl::Status NoExchange(absl::Span<const ConstBytes>,
                        absl::Span<const MutableBytes>) {
  return absl::InternalError("a board needs no exchange");
}

// Runs `body` on a thread per rank, each with its comparison on one board. That
// of a rank ends with its body, while others may still compare.
void RunOnBoard(int size,
                const std::function<void(int, CallComparison&)>& body) {
  HashStore store;
  std::vector<std::unique_ptr<CallComparison>> comparisons(size);
  testing::RunRankThreads(size, [&](int rank) {
    auto comparison = CallComparison::OnBoard(store, rank, size, Soon());
    ASSERT_THAT(comparison, IsOk());
    comparisons[rank] = *std::move(comparison);
  });
  for (const auto& comparison : comparisons) ASSERT_NE(comparison, nullptr);
  testing::RunRankThreads(size, [&](int rank) {
    const auto own = std::move(comparisons[rank]);
    body(rank, *own);
  });
}

Collective Sum(uint64_t sequence, uint64_t bytes) {
  return {.op = CollectiveOp::kAllReduce,
          .bytes = bytes,
          .dtype = DType::kFloat32,
          .sequence = sequence,
          .deadline = Soon()};
}

TEST(CallComparisonTest, EqualCallsPassHoweverMany) {
  // Several times what the board remembers, so that its lines are used again.
  RunOnBoard(3, [](int rank, CallComparison& comparison) {
    for (uint64_t call = 1; call <= 5000; ++call) {
      Collective desc = Sum(call, 4 * call);
      if (call % 7 == 0) {
        desc = {.op = CollectiveOp::kBroadcast,
                .root = static_cast<int>(call % 3),
                .bytes = call,
                .sequence = call,
                .deadline = Soon()};
      }
      ASSERT_THAT(comparison.Compare(desc, NoExchange), IsOk())
          << "rank " << rank << ", call " << call;
    }
  });
}

// The deviating call of one rank of three, and the error that the others get.
struct Difference {
  const char* name;
  std::function<void(Collective&)> change;
  const char* text;
};

TEST(CallComparisonTest, TheDeviatingRankIsReported) {
  const std::vector<Difference> differences = {
      {"operation", [](auto& d) { d.op = CollectiveOp::kReduce; },
       "called reduce (root 0, float32, sum, 16 bytes)"},
      {"size", [](auto& d) { d.bytes = 32; },
       "called all_reduce (float32, sum, 32 bytes)"},
      {"dtype", [](auto& d) { d.dtype = DType::kInt32; },
       "called all_reduce (int32, sum, 16 bytes)"},
      {"reduction", [](auto& d) { d.reduction = ReduceOp::kMax; },
       "called all_reduce (float32, max, 16 bytes)"},
  };
  for (const Difference& difference : differences) {
    for (int odd = 0; odd < 3; ++odd) {
      SCOPED_TRACE(::testing::Message()
                   << difference.name << " of rank " << odd);
      std::atomic<int> errors = 0;
      RunOnBoard(3, [&](int rank, CallComparison& comparison) {
        Collective desc = Sum(1, 16);
        if (rank == odd) difference.change(desc);
        const absl::Status status = comparison.Compare(desc, NoExchange);
        if (status.ok()) return;
        ++errors;
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr(difference.text),
                                           HasSubstr("called all_reduce ("))));
        EXPECT_EQ(FailedRank(status), odd);
      });
      EXPECT_GE(errors, 1);
    }
  }
}

// Of two ranks that disagree neither is right; of four, two against two.
TEST(CallComparisonTest, InADrawNoRankIsReported) {
  for (const int size : {2, 4}) {
    std::atomic<int> errors = 0;
    RunOnBoard(size, [&](int rank, CallComparison& comparison) {
      const absl::Status status =
          comparison.Compare(Sum(1, rank % 2 == 0 ? 16 : 0), NoExchange);
      if (status.ok()) return;
      ++errors;
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(size == 2 ? "rank 0" : "ranks 0, 2"),
                                 HasSubstr(size == 2 ? "rank 1" : "ranks 1, 3"),
                                 HasSubstr("16 bytes"), HasSubstr("0 bytes"))));
      EXPECT_EQ(ErrorRank(status), std::nullopt);
    });
    EXPECT_GE(errors, 1);
  }
}

// The first two differ; the deviating one is known once the third has called.
TEST(CallComparisonTest, ALateRankIsAwaitedBeforeARankIsNamed) {
  for (int odd = 0; odd < 2; ++odd) {
    // The rank that sees the difference checks again and again.
    std::atomic<int> questions = 0;
    absl::Notification waits;
    RunOnBoard(3, [&](int rank, CallComparison& comparison) {
      comparison.WatchRanks([&] {
        if (++questions == 5) waits.Notify();
        return false;
      });
      if (rank == 2) {
        EXPECT_TRUE(waits.WaitForNotificationWithTimeout(absl::Seconds(20)));
      }
      const absl::Status status =
          comparison.Compare(Sum(1, rank == odd ? 0 : 16), NoExchange);
      if (status.ok()) return;
      EXPECT_EQ(FailedRank(status), odd) << status;
    });
  }
}

TEST(CallComparisonTest, AFailedRankIsNotWaitedFor) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    if (rank == 2) return;
    comparison.WatchRanks([] { return true; });
    const absl::Status status =
        comparison.Compare(Sum(1, rank == 0 ? 16 : 8), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(status.message(), HasSubstr("of rank 2 nothing is known"));
    EXPECT_EQ(FailedRank(status), std::nullopt);
  });
  EXPECT_EQ(errors, 1);
}

Collective Move(uint64_t sequence, std::optional<DType> type) {
  Collective desc = {.op = CollectiveOp::kBroadcast,
                     .bytes = 8,
                     .sequence = sequence,
                     .deadline = Soon()};
  if (type) desc.dtype = *type;
  desc.typed = type.has_value();
  return desc;
}

TEST(CallComparisonTest, ComparesTypesOfMovedElements) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    const absl::Status status = comparison.Compare(
        Move(1, rank == 1 ? DType::kInt32 : DType::kFloat32), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("rank 1 called broadcast (root 0, int32, ")));
    EXPECT_EQ(FailedRank(status), 1);
  });
  EXPECT_GE(errors, 1);
}

// The call by bytes may arrive first, and the two others contradict each other
// all the same.
TEST(CallComparisonTest, ACallByBytesFitsEveryType) {
  RunOnBoard(3, [](int rank, CallComparison& comparison) {
    for (uint64_t call = 1; call <= 300; ++call) {
      std::optional<DType> type;
      if (call % 3 != static_cast<uint64_t>(rank)) type = DType::kFloat32;
      ASSERT_THAT(comparison.Compare(Move(call, type), NoExchange), IsOk());
    }
  });
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    const std::optional<DType> types[] = {std::nullopt, DType::kFloat32,
                                          DType::kInt32};
    const absl::Status status =
        comparison.Compare(Move(1, types[rank]), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 1 called broadcast (root 0, float32"),
                      HasSubstr("rank 2 called broadcast (root 0, int32")));
    EXPECT_EQ(FailedRank(status), std::nullopt);
  });
  EXPECT_GE(errors, 1);
}

TEST(CallComparisonTest, RootsDiffer) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    const Collective desc = {.op = CollectiveOp::kBroadcast,
                             .root = rank == 2 ? 1 : 0,
                             .bytes = 8,
                             .sequence = 1,
                             .deadline = Soon()};
    const absl::Status status = comparison.Compare(desc, NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_EQ(FailedRank(status), 2);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 called broadcast (root 1"));
  });
  EXPECT_GE(errors, 1);
}

// all_to_all_v of `size` ranks in which rank `from` sends `sent` bytes to rank
// `to`, and all others 8.
class Lengths {
 public:
  Lengths(int rank, int size) : memory_(64 * size) {
    for (int r = 0; r < size; ++r) {
      sends_.emplace_back(memory_.data(), 8);
      recvs_.emplace_back(memory_.data() + 8 * r, 8);
    }
    sends_[rank] = {};
    recvs_[rank] = {};
  }
  void Send(int to, size_t bytes) { sends_[to] = {memory_.data(), bytes}; }
  void Want(int from, size_t bytes) { recvs_[from] = {memory_.data(), bytes}; }
  Collective Desc(uint64_t sequence) const {
    return {.op = CollectiveOp::kAllToAllV,
            .sends = sends_,
            .recvs = recvs_,
            .sequence = sequence,
            .deadline = Soon()};
  }

 private:
  std::vector<std::byte> memory_;
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
};

TEST(CallComparisonTest, LengthsOfAPairDiffer) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    Lengths lengths(rank, 3);
    for (uint64_t call = 1; call <= 100; ++call) {
      ASSERT_THAT(comparison.Compare(lengths.Desc(call), NoExchange), IsOk());
    }
    if (rank == 1) lengths.Send(2, 5);
    const absl::Status status =
        comparison.Compare(lengths.Desc(101), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 sends 5 bytes to rank 2 in "
                                           "all_to_all_v, which expects 8")));
    // Neither of two is in the right.
    EXPECT_EQ(ErrorRank(status), std::nullopt);
  });
  EXPECT_GE(errors, 1);
}

// An even all_to_all has no lists: its block is compared as the call is.
Collective EvenAllToAll(uint64_t sequence, uint64_t block) {
  return {.op = CollectiveOp::kAllToAllV,
          .bytes = block,
          .even = true,
          .sequence = sequence,
          .deadline = Soon()};
}

TEST(CallComparisonTest, BlocksOfAnEvenAllToAllDiffer) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    for (uint64_t call = 1; call <= 100; ++call) {
      ASSERT_THAT(comparison.Compare(EvenAllToAll(call, 8), NoExchange),
                  IsOk());
    }
    const absl::Status status =
        comparison.Compare(EvenAllToAll(101, rank == 0 ? 16 : 8), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 0 called all_to_all_v (16 "
                                           "bytes to each rank); ranks 1, 2 "
                                           "called all_to_all_v (8 bytes")));
    EXPECT_EQ(FailedRank(status), 0);
  });
  EXPECT_GE(errors, 1);
}

TEST(CallComparisonTest, AnEvenAllToAllIsNotOneWithLists) {
  std::atomic<int> errors = 0;
  RunOnBoard(3, [&](int rank, CallComparison& comparison) {
    const Lengths lengths(rank, 3);
    const absl::Status status = comparison.Compare(
        rank == 1 ? lengths.Desc(1) : EvenAllToAll(1, 0), NoExchange);
    if (status.ok()) return;
    ++errors;
    EXPECT_THAT(status.message(),
                HasSubstr("rank 1 called all_to_all_v (lists)"));
    EXPECT_EQ(FailedRank(status), 1);
  });
  EXPECT_GE(errors, 1);
}

TEST(CallComparisonTest, NoRankRunsAheadOfTheBoard) {
  RunOnBoard(2, [](int rank, CallComparison& comparison) {
    if (rank == 1) return;
    absl::Status status;
    uint64_t calls = 0;
    while (status.ok() && calls < 5000) {
      Collective desc = Sum(++calls, 4);
      desc.deadline = Deadline::After(absl::Milliseconds(20));
      status = comparison.Compare(desc, NoExchange);
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(ErrorRank(status), 1);
    EXPECT_LE(calls, 1024u);
  });
}

TEST(CallComparisonTest, AFailureIsSeenByAll) {
  HashStore store;
  std::vector<std::unique_ptr<CallComparison>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(*CallComparison::OnBoard(store, rank, 2, Soon()));
  }
  EXPECT_EQ(ranks[0]->FailedRank(), std::nullopt);
  ranks[1]->Fail();
  ranks[0]->Fail();
  EXPECT_EQ(ranks[0]->FailedRank(), 1);
  EXPECT_EQ(ranks[1]->FailedRank(), 1);
}

TEST(CallComparisonTest, ByMessagesEveryRankReportsTheDifference) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto exchange = [&group](absl::Span<const ConstBytes> sends,
                                   absl::Span<const MutableBytes> recvs) {
      std::vector<ConstBytes> out(sends.begin(), sends.end());
      std::vector<MutableBytes> in(recvs.begin(), recvs.end());
      out[group.rank()] = {};
      in[group.rank()] = {};
      return group.AllToAllV(out, in);
    };
    auto comparison = CallComparison::ByMessages(group.rank(), group.size());
    EXPECT_THAT(comparison->Compare(Sum(1, 16), exchange), IsOk());
    Collective desc = Sum(2, 16);
    if (group.rank() == 0) desc.bytes = 8;
    const absl::Status status = comparison->Compare(desc, exchange);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 0 called all_reduce (float32, "
                                           "sum, 8 bytes); ranks 1, 2")));
    EXPECT_EQ(FailedRank(status), 0);

    Lengths lengths(group.rank(), 3);
    if (group.rank() == 2) lengths.Want(0, 3);
    const absl::Status pair = comparison->Compare(lengths.Desc(3), exchange);
    if (group.rank() == 1) {
      EXPECT_THAT(pair, IsOk()) << "it has no part in the difference";
    } else {
      EXPECT_THAT(pair, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 0 sends 8 bytes to rank 2 in "
                                           "all_to_all_v, which expects 3")));
    }
  });
}

}  // namespace
}  // namespace sherd::internal
