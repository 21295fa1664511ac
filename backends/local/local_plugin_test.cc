// Properties that only show at the C table: calls that the host would have
// refused or changed, and ranks that leave while messages are in flight.

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/local/plugin_checks.h"
#include "sherd/backends/local/plugin_ranks.h"

namespace sherd::testing {
namespace {

class LocalPluginTest : public ::testing::TestWithParam<int> {};

TEST_P(LocalPluginTest, EveryOperationIsRightAtTheSizesWhereItChanges) {
  RunPluginRanks(GetParam(), [](PluginRank& self) {
    CheckAllReduce(self, uint64_t{4} << 20);
    CheckReduce(self, uint64_t{4} << 20);
    CheckReduceScatter(self, uint64_t{4} << 20);
    CheckAllGatherV(self);
    CheckGather(self);
    CheckScatter(self);
    CheckRoundsOnce(self);
    CheckMessages(self);
    CheckMessagesBesideCollectives(self);
  });
}

INSTANTIATE_TEST_SUITE_P(All, LocalPluginTest, ::testing::Values(2, 3, 5, 8));

sherd_op_v0 Op(int op, uint64_t bytes = 0, int root = 0) {
  sherd_op_v0 desc = {};
  desc.op = op;
  desc.root = root;
  desc.bytes = bytes;
  desc.dtype = SHERD_FLOAT32;
  return desc;
}

struct Difference {
  const char* name;
  // Rank 1's call; the others make `others`.
  std::function<sherd_op_v0()> one, others;
  // Behind "the ranks made different calls: ".
  const char* text;
  int peer = 1;
};

class LocalDifferenceTest : public ::testing::TestWithParam<Difference> {};

TEST_P(LocalDifferenceTest, IsAnErrorOnAllRanksBeforeAnythingMoves) {
  RunPluginRanks(3, [](PluginRank& self) {
    sherd_op_v0 op = self.rank() == 1 ? GetParam().one() : GetParam().others();
    std::vector<char> memory(64, static_cast<char>(self.rank()));
    const std::vector<char> before = memory;
    std::vector<sherd_bytes_v0> entries(3, {memory.data(), op.bytes});
    op.in = op.out = memory.data();
    op.sends = op.recvs = entries.data();
    const PluginOutcome outcome = self.Run(op);
    EXPECT_EQ(outcome.code, SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(outcome.peer, GetParam().peer);
    EXPECT_EQ(outcome.text, std::string("the ranks made different calls: ") +
                                GetParam().text);
    EXPECT_EQ(memory, before);
  });
}

sherd_op_v0 WithDType(sherd_op_v0 op, int32_t dtype) {
  op.dtype = dtype;
  return op;
}

// An operation that only moves elements of this type.
sherd_op_v0 Typed(sherd_op_v0 op, int32_t dtype) {
  op.flags |= SHERD_OP_TYPED;
  return WithDType(op, dtype);
}

sherd_op_v0 WithReduction(sherd_op_v0 op, int32_t reduction) {
  op.reduction = reduction;
  return op;
}

INSTANTIATE_TEST_SUITE_P(
    All, LocalDifferenceTest,
    ::testing::Values(
        Difference{"Operation", [] { return Op(SHERD_BROADCAST, 4, 2); },
                   [] { return Op(SHERD_BARRIER); },
                   "rank 1 called broadcast (root 2, 4 bytes); ranks 0, 2 "
                   "called barrier"},
        Difference{"Root", [] { return Op(SHERD_GATHER, 4, 2); },
                   [] { return Op(SHERD_GATHER, 4, 1); },
                   "rank 1 called gather (root 2); ranks 0, 2 called gather "
                   "(root 1)"},
        Difference{"Length", [] { return Op(SHERD_ALL_GATHER, 8); },
                   [] { return Op(SHERD_ALL_GATHER, 4); },
                   "rank 1 called all_gather (8 bytes); ranks 0, 2 called "
                   "all_gather (4 bytes)"},
        Difference{"NoBytes", [] { return Op(SHERD_ALL_REDUCE, 0); },
                   [] { return Op(SHERD_ALL_REDUCE, 8); },
                   "rank 1 called all_reduce (float32, sum, 0 bytes); ranks 0, "
                   "2 called all_reduce (float32, sum, 8 bytes)"},
        Difference{
            "DType",
            [] { return WithDType(Op(SHERD_ALL_REDUCE, 8), SHERD_BFLOAT16); },
            [] { return Op(SHERD_ALL_REDUCE, 8); },
            "rank 1 called all_reduce (bfloat16, sum, 8 bytes); ranks 0, 2 "
            "called all_reduce (float32, sum, 8 bytes)"},
        Difference{"TypeOfWhatIsMoved",
                   [] { return Typed(Op(SHERD_BROADCAST, 8), SHERD_INT32); },
                   [] { return Typed(Op(SHERD_BROADCAST, 8), SHERD_FLOAT32); },
                   "rank 1 called broadcast (root 0, int32, 8 bytes); ranks 0, "
                   "2 called broadcast (root 0, float32, 8 bytes)"},
        Difference{
            "Reduction",
            [] { return WithReduction(Op(SHERD_REDUCE, 8, 1), SHERD_MAX); },
            [] { return Op(SHERD_REDUCE, 8, 1); },
            "rank 1 called reduce (root 1, float32, max, 8 bytes); ranks 0, 2 "
            "called reduce (root 1, float32, sum, 8 bytes)"},
        Difference{"ReduceScatterLength",
                   [] { return Op(SHERD_REDUCE_SCATTER, 12); },
                   [] { return Op(SHERD_REDUCE_SCATTER, 8); },
                   "rank 1 called reduce_scatter (float32, sum, blocks of 12, "
                   "12, 12 bytes); ranks 0, 2 called reduce_scatter (float32, "
                   "sum, blocks of 8, 8, 8 bytes)"},
        Difference{
            "GatheredLists", [] { return Op(SHERD_ALL_GATHER_V, 8); },
            [] { return Op(SHERD_ALL_GATHER_V, 4); },
            "rank 1 called all_gather_v (blocks of 8, 8, 8 bytes); ranks "
            "0, 2 called all_gather_v (blocks of 4, 4, 4 bytes)"},
        Difference{"GatheredLength", [] { return Op(SHERD_GATHER, 8); },
                   [] { return Op(SHERD_GATHER, 4); },
                   "rank 1 sends 8 bytes to rank 0 in gather, which expects 4",
                   -1}),
    [](const auto& info) { return info.param.name; });

TEST(LocalDifferenceTest, OfTwoNeitherIsSingledOut) {
  RunPluginRanks(2, [](PluginRank& self) {
    std::vector<char> memory(8);
    sherd_op_v0 op = Op(SHERD_BROADCAST, 8 * self.rank());
    op.out = memory.data();
    const PluginOutcome outcome = self.Run(op);
    EXPECT_EQ(outcome.code, SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(outcome.peer, -1);
    EXPECT_EQ(outcome.text,
              "the ranks made different calls: rank 1 called broadcast "
              "(root 0, 8 bytes); rank 0 called broadcast (root 0, 0 bytes)");
  });
}

TEST(LocalDifferenceTest, IsNoneBetweenATypeAndBytes) {
  RunPluginRanks(3, [](PluginRank& self) {
    std::vector<char> memory(8);
    sherd_op_v0 op = Op(SHERD_BROADCAST, 8);
    if (self.rank() != 0) op = Typed(op, SHERD_INT32);
    op.out = memory.data();
    EXPECT_EQ(self.Run(op).code, SHERD_OK);
  });
}

sherd_op_v0 Message(int op, int peer, int64_t tag, std::vector<char>& data) {
  sherd_op_v0 desc = Op(op, data.size(), peer);
  desc.tag = tag;
  desc.in = desc.out = data.data();
  return desc;
}

TEST(LocalMessageTest, AnotherLengthIsAnErrorAtBothEnds) {
  RunPluginRanks(2, [](PluginRank& self) {
    const bool sends = self.rank() == 0;
    std::vector<char> data(sends ? 5 : 4, 'x');
    const PluginOutcome outcome = self.Run(
        Message(sends ? SHERD_SEND : SHERD_RECV, 1 - self.rank(), 3, data));
    EXPECT_EQ(outcome.code, SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(outcome.peer, 1 - self.rank());
    EXPECT_EQ(outcome.text,
              sends ? "expects 4 bytes with tag 3, this rank sends 5"
                    : "sends 5 bytes with tag 3, this rank expects 4");
  });
}

TEST(LocalMessageTest, ADeadlineNamesThePeerAndRemovesTheMessage) {
  RunPluginRanks(2, [](PluginRank& self) {
    std::vector<char> data(4, static_cast<char>(self.rank()));
    if (self.rank() == 0) {
      const PluginOutcome outcome =
          self.Run(Message(SHERD_SEND, 1, 3, data), absl::Milliseconds(20));
      EXPECT_EQ(outcome.code, SHERD_TIMEOUT);
      EXPECT_EQ(outcome.peer, 1);
    }
    ASSERT_EQ(self.Run(Op(SHERD_BARRIER)).code, SHERD_OK);
    if (self.rank() == 0) {
      data.assign(4, 9);
      EXPECT_EQ(self.Run(Message(SHERD_SEND, 1, 3, data)).code, SHERD_OK);
    } else {
      EXPECT_EQ(self.Run(Message(SHERD_RECV, 0, 3, data)).code, SHERD_OK);
      EXPECT_EQ(data, std::vector<char>(4, 9));
    }
  });
}

TEST(LocalMessageTest, ARankThatLeavesEndsTheWaitsForItOnly) {
  RunPluginRanks(3, [](PluginRank& self) {
    std::vector<char> data(4);
    if (self.rank() == 2) {
      self.Leave();
      return;
    }
    const PluginOutcome lost = self.Run(Message(SHERD_RECV, 2, 1, data));
    EXPECT_EQ(lost.code, SHERD_PEER_LOST);
    EXPECT_EQ(lost.peer, 2);
    EXPECT_EQ(self.Run(Message(self.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                               1 - self.rank(), 1, data))
                  .code,
              SHERD_OK);
  });
}

TEST(LocalMessageTest, AbortEndsTheWaitsOfThisRank) {
  RunPluginRanks(2, [](PluginRank& self) {
    if (self.rank() == 1) {
      std::vector<char> token(1);
      EXPECT_EQ(self.Run(Message(SHERD_RECV, 0, 9, token)).code,
                SHERD_PEER_LOST);
      return;
    }
    std::vector<char> data(4);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      EXPECT_EQ(self.Run(Message(SHERD_RECV, 1, 1, data)).code, SHERD_ABORTED);
    });
    threads.emplace_back(
        [&] { EXPECT_EQ(self.Run(Op(SHERD_BARRIER)).code, SHERD_ABORTED); });
    self.Abort();
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(LocalMessageTest, ItsOwnAbortComesBeforeAPeerThatLeftEarlier) {
  RunPluginRanks(2, [](PluginRank& self) {
    if (self.rank() == 1) return;
    std::vector<char> data(4);
    EXPECT_EQ(self.Run(Message(SHERD_RECV, 1, 1, data)).code, SHERD_PEER_LOST);
    EXPECT_EQ(self.Run(Op(SHERD_BARRIER)).code, SHERD_PEER_LOST);
    self.Abort();
    EXPECT_EQ(self.Run(Message(SHERD_RECV, 1, 1, data)).code, SHERD_ABORTED);
    EXPECT_EQ(self.Run(Op(SHERD_BARRIER)).code, SHERD_ABORTED);
  });
}

TEST(LocalMessageTest, AbortEndsTheWaitsOfOtherRanks) {
  RunPluginRanks(3, [](PluginRank& self) {
    if (self.rank() == 2) {
      self.Abort();
      return;
    }
    const auto expect_lost = [&self](const sherd_op_v0& op) {
      const PluginOutcome outcome = self.Run(op);
      EXPECT_EQ(outcome.code, SHERD_PEER_LOST);
      EXPECT_EQ(outcome.peer, 2);
    };
    std::vector<char> sent(4), received(4);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { expect_lost(Message(SHERD_SEND, 2, 1, sent)); });
    threads.emplace_back(
        [&] { expect_lost(Message(SHERD_RECV, 2, 2, received)); });
    expect_lost(Op(SHERD_BARRIER));
    for (std::thread& thread : threads) thread.join();
    // The two others still have each other.
    EXPECT_EQ(self.Run(Message(self.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                               1 - self.rank(), 1, sent))
                  .code,
              SHERD_OK);
  });
}

// Aborts fall anywhere into operations that take long enough for it: every rank
// ends, with the result or the abort.
TEST(LocalAbortTest, InTheMiddleOfACollectiveHangsNoRank) {
  for (int round = 0; round < 50; ++round) {
    RunPluginRanks(4, [round](PluginRank& self) {
      std::vector<float> values(100000, 1);
      sherd_op_v0 op = Op(SHERD_ALL_REDUCE, values.size() * sizeof(float));
      op.in = op.out = values.data();
      std::thread aborts([&] {
        if (self.rank() == round % 4) self.Abort();
      });
      for (;;) {
        const sherd_code code = self.Run(op).code;
        if (code == SHERD_OK) continue;
        EXPECT_EQ(code,
                  self.rank() == round % 4 ? SHERD_ABORTED : SHERD_PEER_LOST);
        break;
      }
      aborts.join();
    });
  }
}

}  // namespace
}  // namespace sherd::testing
