#include "sherd/core/comm/coalescer.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;

using Numbers = std::vector<int32_t>;

// first, first + 1, ….
Numbers Counting(int first, size_t count) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

MutableBytes BytesOf(Numbers& numbers) {
  return MutableBytes(reinterpret_cast<std::byte*>(numbers.data()),
                      numbers.size() * sizeof(int32_t));
}

// How a batch is run, and with which limits.
struct Mode {
  int size = 1;
  bool async = false;
  CoalescerOptions options;
};

absl::Status LaunchAs(const Mode& mode, Coalescer& batch) {
  return mode.async ? batch.LaunchAsync().Wait() : batch.Launch();
}

// Limits under which everything is packed, some things are, and nothing is.
std::vector<Mode> Modes() {
  std::vector<Mode> modes;
  for (const int size : {1, 2, 3, 5}) {
    for (const bool async : {false, true}) {
      modes.push_back({size, async, {}});
      modes.push_back({size, async, {.max_packed_block = 20}});
      modes.push_back({size, async, {.max_packed_block = 100, .max_pack = 40}});
      modes.push_back({size, async, {.max_packed_block = 0}});
    }
  }
  return modes;
}

class CoalescerTest : public ::testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(Modes, CoalescerTest, ::testing::ValuesIn(Modes()),
                         [](const auto& info) {
                           const Mode& mode = info.param;
                           return absl::StrCat(
                               "Size", mode.size, mode.async ? "Async" : "Sync",
                               "Limit", mode.options.max_packed_block, "Pack",
                               mode.options.max_pack);
                         });

TEST_P(CoalescerTest, MixedCollectivesEndAsIfCalledByThemselves) {
  RunLocalRanks(GetParam().size, [](ProcessGroup& group) {
    const int p = group.size();
    const int rank = group.rank();
    Coalescer batch(group, GetParam().options);
    constexpr int kRounds = 7;
    std::vector<Numbers> sums, maxima, roots, blocks, gathered, parts, reduced;
    const auto length = [](int i) { return static_cast<size_t>(3 * i % 8); };
    for (int i = 0; i < kRounds; ++i) {
      sums.push_back(Counting(100 * i + rank, length(i)));
      maxima.push_back(Counting(10 * i + rank, length(i + 1)));
      roots.push_back(Counting(1000 * rank + i, length(i + 2)));
      blocks.push_back(Counting(1000 * rank + 10 * i, length(i + 3)));
      gathered.push_back(Numbers(p * length(i + 3), -1));
      parts.push_back(Counting(100 * i + rank, p * length(i + 4)));
      reduced.push_back(Numbers(length(i + 4), -1));
    }
    std::vector<Numbers> outs = maxima;
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_THAT(batch.AllReduce(BytesOf(sums[i]), BytesOf(sums[i]), kInt32,
                                  ReduceOp::kSum),
                  IsOk());
      ASSERT_THAT(batch.AllReduce(BytesOf(maxima[i]), BytesOf(outs[i]), kInt32,
                                  ReduceOp::kMax),
                  IsOk());
      ASSERT_THAT(batch.Broadcast(BytesOf(roots[i]), i % p), IsOk());
      ASSERT_THAT(batch.AllGather(BytesOf(blocks[i]), BytesOf(gathered[i])),
                  IsOk());
      ASSERT_THAT(batch.ReduceScatter(BytesOf(parts[i]), BytesOf(reduced[i]),
                                      kInt32, ReduceOp::kSum),
                  IsOk());
    }
    EXPECT_EQ(batch.num_operations(), 5 * kRounds);
    ASSERT_THAT(LaunchAs(GetParam(), batch), IsOk());
    for (int i = 0; i < kRounds; ++i) {
      for (size_t k = 0; k < sums[i].size(); ++k) {
        EXPECT_EQ(sums[i][k],
                  p * (100 * i + static_cast<int>(k)) + p * (p - 1) / 2);
      }
      EXPECT_EQ(maxima[i], Counting(10 * i + rank, length(i + 1)));
      EXPECT_EQ(outs[i], Counting(10 * i + p - 1, length(i + 1)));
      EXPECT_EQ(roots[i], Counting(1000 * (i % p) + i, length(i + 2)));
      Numbers all;
      for (int r = 0; r < p; ++r) {
        const Numbers block = Counting(1000 * r + 10 * i, length(i + 3));
        all.insert(all.end(), block.begin(), block.end());
      }
      EXPECT_EQ(gathered[i], all);
      for (size_t k = 0; k < reduced[i].size(); ++k) {
        const int place =
            rank * static_cast<int>(length(i + 4)) + static_cast<int>(k);
        EXPECT_EQ(reduced[i][k], p * (100 * i + place) + p * (p - 1) / 2);
      }
    }
  });
}

// All ranks send before any can have received.
TEST_P(CoalescerTest, MessagesCrossWithoutWaitingForEachOther) {
  RunLocalRanks(GetParam().size, [](ProcessGroup& group) {
    const int p = group.size();
    const int rank = group.rank();
    Coalescer batch(group, GetParam().options);
    std::vector<Numbers> sends(8 * p), recvs(8 * p);
    Numbers total = {rank};
    ASSERT_THAT(
        batch.AllReduce(BytesOf(total), BytesOf(total), kInt32, ReduceOp::kSum),
        IsOk());
    for (int i = 0; i < 8; ++i) {
      for (int peer = 0; peer < p; ++peer) {
        if (peer == rank) continue;
        Numbers& send = sends[i * p + peer];
        Numbers& recv = recvs[i * p + peer];
        send = Counting(1000 * rank + 100 * peer + i, i);
        recv.resize(i);
        const int tag = i % 2;
        ASSERT_THAT(batch.Send(BytesOf(send), peer, tag), IsOk());
        ASSERT_THAT(batch.Recv(BytesOf(recv), peer, tag), IsOk());
      }
    }
    ASSERT_THAT(LaunchAs(GetParam(), batch), IsOk());
    EXPECT_EQ(total[0], p * (p - 1) / 2);
    for (int i = 0; i < 8; ++i) {
      for (int peer = 0; peer < p; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(recvs[i * p + peer],
                  Counting(1000 * peer + 100 * rank + i, i));
      }
    }
  });
}

TEST(CoalescerPlanTest, OperationsOfAKindBecomeOneCall) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Coalescer batch(group, {.max_packed_block = 64, .max_pack = 128});
    std::vector<Numbers> small(40, Numbers(4)), large(3, Numbers(17));
    // 16 bytes each: 8 to a pack.
    for (Numbers& numbers : small) {
      ASSERT_THAT(batch.AllReduce(BytesOf(numbers), BytesOf(numbers), kInt32,
                                  ReduceOp::kSum),
                  IsOk());
    }
    EXPECT_EQ(batch.num_calls(), 5);
    // Other dtypes, reductions and roots are other kinds.
    for (int i = 0; i < 2; ++i) {
      ASSERT_THAT(batch.AllReduce(BytesOf(small[0]), BytesOf(small[0]), kInt64,
                                  ReduceOp::kSum),
                  IsOk());
      ASSERT_THAT(batch.AllReduce(BytesOf(small[0]), BytesOf(small[0]), kInt32,
                                  ReduceOp::kMin),
                  IsOk());
      ASSERT_THAT(batch.Broadcast(BytesOf(small[0]), 0), IsOk());
      ASSERT_THAT(batch.Broadcast(BytesOf(small[0]), 1), IsOk());
    }
    EXPECT_EQ(batch.num_calls(), 9);
    // 68 bytes each: by themselves.
    for (Numbers& numbers : large) {
      ASSERT_THAT(batch.AllReduce(BytesOf(numbers), BytesOf(numbers), kInt32,
                                  ReduceOp::kSum),
                  IsOk());
    }
    EXPECT_EQ(batch.num_calls(), 12);
    EXPECT_EQ(batch.num_operations(), 51);
  });
}

TEST(CoalescerPlanTest, AnEmptyBatchEndsAtOnce) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    // On one rank only: it is not a collective.
    if (group.rank() == 1) return;
    Coalescer batch(group);
    EXPECT_EQ(batch.num_calls(), 0);
    EXPECT_THAT(batch.Launch(), IsOk());
    EXPECT_THAT(Coalescer(group).LaunchAsync().Wait(), IsOk());
  });
}

TEST(CoalescerErrorTest, NothingIsAddedOrLaunchedAfterLaunch) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Numbers numbers = {1, 2};
    Coalescer batch(group);
    ASSERT_THAT(batch.Broadcast(BytesOf(numbers), 0), IsOk());
    ASSERT_THAT(batch.Launch(), IsOk());
    EXPECT_THAT(batch.Broadcast(BytesOf(numbers), 0),
                StatusIs(kPrecondition, "nothing can be added"));
    EXPECT_THAT(batch.Launch(), StatusIs(kPrecondition, "launched before"));
    EXPECT_THAT(batch.LaunchAsync().Wait(),
                StatusIs(kPrecondition, "launched before"));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

// Memory of a device is not even read.
TEST(CoalescerErrorTest, BuffersOnADeviceAreRefusedBeforeAnythingIsSent) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Numbers numbers = {group.rank() + 1, 2}, more = {3, 4};
    Coalescer batch(group);
    for (Numbers* each : {&numbers, &more}) {
      ASSERT_THAT(batch.AllReduce(BytesOf(*each), BytesOf(*each), kInt32,
                                  ReduceOp::kSum),
                  IsOk());
    }
    const CollectiveOptions on_device = {.device = {DeviceType::kCuda, 0}};
    for (const absl::Status& status :
         {batch.Launch(on_device), batch.LaunchAsync(on_device).Wait()}) {
      EXPECT_THAT(status,
                  AllOf(StatusIs(absl::StatusCode::kUnimplemented, "cuda:0"),
                        StatusIs(absl::StatusCode::kUnimplemented,
                                 "copy them to the host")));
    }
    EXPECT_THAT(batch.Launch(), IsOk());
    EXPECT_THAT(numbers, ElementsAre(3, 4));
  });
}

TEST(CoalescerErrorTest, AWrongOperationIsNamedAndTheGroupStaysUsable) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    for (const bool async : {false, true}) {
      Numbers numbers = {group.rank(), 7}, other(3);
      Coalescer batch(group);
      ASSERT_THAT(batch.Broadcast(BytesOf(numbers), 0), IsOk());
      const std::string named =
          absl::StrCat("rank ", group.rank(), ", coalesced operation 1, ");
      EXPECT_THAT(batch.AllReduce(BytesOf(numbers), BytesOf(other), kInt32,
                                  ReduceOp::kSum),
                  StatusIs(kInvalid, AllOf(HasSubstr(named + "all_reduce: "),
                                           HasSubstr("equal lengths"))));
      EXPECT_THAT(batch.Broadcast(BytesOf(numbers), 2),
                  StatusIs(kInvalid, "root is 2"));
      EXPECT_THAT(batch.Send(BytesOf(numbers), group.rank()),
                  StatusIs(kInvalid, "which is this rank"));
      EXPECT_THAT(batch.Recv(BytesOf(numbers), 5),
                  StatusIs(kInvalid, "the peer is 5"));
      EXPECT_THAT(batch.AllGather(BytesOf(numbers), BytesOf(other)),
                  StatusIs(kInvalid, "expected 2 ranks times"));
      EXPECT_THAT(batch.ReduceScatter(BytesOf(numbers), BytesOf(other), kInt32,
                                      ReduceOp::kSum),
                  StatusIs(kInvalid, "expected 2 ranks times"));
      const Mode mode = {2, async, {}};
      EXPECT_THAT(LaunchAs(mode, batch),
                  StatusIs(kInvalid, named + "all_reduce: "));
      // Nothing moved.
      EXPECT_EQ(numbers, (Numbers{group.rank(), 7}));
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(CoalescerErrorTest, OperationsWhoseBuffersOverlapAreNamed) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    for (const bool async : {false, true}) {
      Numbers numbers = {group.rank(), 7, 8, 9}, other(2);
      const auto part = [&](size_t begin, size_t count) {
        return BytesOf(numbers).subspan(begin * sizeof(numbers[0]),
                                        count * sizeof(numbers[0]));
      };
      Coalescer batch(group);
      ASSERT_THAT(batch.AllGather(part(group.rank(), 1), part(0, 2)), IsOk());
      ASSERT_THAT(
          batch.AllReduce(part(2, 2), BytesOf(other), kInt32, ReduceOp::kSum),
          IsOk());
      ASSERT_THAT(batch.Broadcast(part(1, 1), 0), IsOk());
      const Numbers before = numbers;
      EXPECT_THAT(LaunchAs({2, async, {}}, batch),
                  StatusIs(kInvalid,
                           "coalesced operation 0, all_gather, and of "
                           "operation 2, broadcast, overlap"));
      EXPECT_EQ(numbers, before);
      // Several operations may read the same buffer.
      Coalescer reads(group);
      Numbers sums[] = {Numbers(1), Numbers(1)};
      for (Numbers& sum : sums) {
        ASSERT_THAT(
            reads.AllReduce(part(3, 1), BytesOf(sum), kInt32, ReduceOp::kSum),
            IsOk());
      }
      EXPECT_THAT(LaunchAs({2, async, {}}, reads), IsOk());
      EXPECT_EQ(sums[0], sums[1]);
    }
  });
}

// Equal lengths in another order: only the comparison can detect it.
TEST(CoalescerErrorTest, RanksThatAddedInAnotherOrderAreNamedBeforeDataMoves) {
  for (const bool async : {false, true}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      Numbers a = {group.rank()}, b = {1, 2};
      const Numbers a_before = a, b_before = b;
      Coalescer batch(group);
      const auto add = [&](Numbers& numbers) {
        ASSERT_THAT(batch.AllReduce(BytesOf(numbers), BytesOf(numbers), kInt32,
                                    ReduceOp::kSum),
                    IsOk());
      };
      add(group.rank() == 1 ? b : a);
      add(group.rank() == 1 ? a : b);
      const absl::Status status = LaunchAs({3, async, {}}, batch);
      EXPECT_THAT(status, StatusIs(kInvalid, "rank 1 added other operations"));
      EXPECT_EQ(ErrorRank(status), 1);
      EXPECT_EQ(a, a_before);
      EXPECT_EQ(b, b_before);
      EXPECT_THAT(group.health(), StatusIs(kInvalid, "rank 1 added other"));
    });
  }
}

TEST(CoalescerErrorTest, RanksThatAddedMoreThanOthersAreNamed) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Numbers numbers[] = {{5}, {6}};
    Coalescer batch(group);
    for (int i = 0; i <= group.rank(); ++i) {
      ASSERT_THAT(batch.Broadcast(BytesOf(numbers[i]), i), IsOk());
    }
    EXPECT_THAT(batch.LaunchAsync().Wait(),
                StatusIs(kInvalid,
                         "a rank added other operations: rank 1 added 2 "
                         "operations of 8 bytes"));
  });
}

// 4 + 8 bytes against 8 + 4.
TEST(CoalescerErrorTest, MessagesOfOtherLengthsAreRefusedByTheReceiver) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Numbers a = {1}, b = {2, 3};
    Coalescer batch(group);
    if (group.rank() == 0) {
      ASSERT_THAT(batch.Send(BytesOf(a), 1), IsOk());
      ASSERT_THAT(batch.Send(BytesOf(b), 1), IsOk());
      EXPECT_THAT(batch.Launch(), IsOk());
      // Until rank 1 has seen it.
      EXPECT_FALSE(group.Barrier().ok());
      return;
    }
    ASSERT_THAT(batch.Recv(BytesOf(b), 0), IsOk());
    ASSERT_THAT(batch.Recv(BytesOf(a), 0), IsOk());
    const absl::Status status = batch.Launch();
    EXPECT_THAT(status, StatusIs(kInvalid,
                                 AllOf(HasSubstr("operations 0 to 1 of a kind, "
                                                 "2 together, recv of 12"),
                                       HasSubstr("rank 0 sent 12 bytes as 2 "
                                                 "operations"))));
    EXPECT_FALSE(IsRankFailure(status));
    EXPECT_EQ(a, (Numbers{1}));
  });
}

TEST(CoalescerErrorTest, TheFirstFailureIsThatOfTheBatchAndIsNamed) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      // Takes part in nothing until rank 0 has given up.
      EXPECT_FALSE(group.Barrier().ok());
      return;
    }
    Numbers numbers = {1}, more = {2};
    Coalescer batch(group);
    ASSERT_THAT(batch.Recv(BytesOf(numbers), 1, 4), IsOk());
    ASSERT_THAT(batch.Recv(BytesOf(more), 1, 4), IsOk());
    EXPECT_THAT(
        batch.LaunchAsync({.timeout = absl::Milliseconds(20)}).Wait(),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 "coalesced operations 0 to 1 of a kind, 2 together, recv of 8 "
                 "bytes: "));
  });
}

TEST(CoalescerErrorTest, AProcessThatIsNotAMemberGetsAnError) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({0}));
    if (world.rank() == 0) return;
    for (const bool message : {false, true}) {
      Numbers numbers = {1};
      Coalescer batch(*group);
      ASSERT_THAT(message ? batch.Send(BytesOf(numbers), 0)
                          : batch.AllGather(BytesOf(numbers), BytesOf(numbers)),
                  IsOk());
      EXPECT_THAT(batch.Launch(),
                  StatusIs(kPrecondition, "not a member of the group"));
    }
  });
}

TEST(CoalescerLifetimeTest, ADroppedBatchAndWorkStillDeliver) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Numbers a = {group.rank()}, b = {10 * group.rank(), 1};
    {
      auto batch = std::make_unique<Coalescer>(group);
      for (Numbers* numbers : {&a, &b}) {
        ASSERT_THAT(batch->AllReduce(BytesOf(*numbers), BytesOf(*numbers),
                                     kInt32, ReduceOp::kSum),
                    IsOk());
      }
      Work dropped = batch->LaunchAsync();
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_EQ(a, (Numbers{3}));
    EXPECT_EQ(b, (Numbers{30, 3}));
  });
}

TEST(CoalescerLifetimeTest, ABatchThatIsNotLaunchedSendsNothing) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Numbers numbers = {group.rank()};
    {
      Coalescer batch(group);
      if (group.rank() == 0) {
        ASSERT_THAT(batch.Broadcast(BytesOf(numbers), 0), IsOk());
      }
    }
    EXPECT_THAT(group.Barrier(), IsOk());
    EXPECT_EQ(numbers[0], group.rank());
  });
}

// Batches and other calls keep the order in which they were made.
TEST(CoalescerOrderTest, AsynchronousBatchesMixWithOtherCalls) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Numbers a = {group.rank()}, b = {1}, c = {2};
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i) {
      Coalescer batch(group);
      for (Numbers* numbers : {&b, &c}) {
        ASSERT_THAT(batch.AllReduce(BytesOf(*numbers), BytesOf(*numbers),
                                    kInt32, ReduceOp::kSum),
                    IsOk());
      }
      works.push_back(batch.LaunchAsync());
      works.push_back(
          group.AllReduceAsync(BytesOf(a), BytesOf(a), kInt32, ReduceOp::kMax));
      // The next batch reads, at its launch, the results queued before.
      ASSERT_THAT(WhenAll(std::move(works)).Wait(), IsOk());
      works.clear();
    }
    EXPECT_EQ(a, (Numbers{2}));
    EXPECT_EQ(b, (Numbers{243}));
    EXPECT_EQ(c, (Numbers{486}));
  });
}

}  // namespace
}  // namespace sherd
