// Properties that only show at the C table, or at this plugin's own limits:
// sizes at which it changes its algorithm, announced messages, addresses, and
// threads and sockets that it leaves behind.

#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/peer_sockets.h"
#include "sherd/backends/local/plugin_checks.h"
#include "sherd/backends/local/plugin_ranks.h"

namespace sherd::testing {
namespace {

using ::sherd::internal::GlooSocket;
using ::testing::AnyOf;
using ::testing::Eq;

// Larger than one message of a reduction, so that several are in flight.
constexpr uint64_t kLarge = uint64_t{16} << 20;

sherd_op_v0 Message(int op, int peer, int64_t tag, std::vector<char>& data) {
  sherd_op_v0 desc = {};
  desc.op = op;
  desc.root = peer;
  desc.tag = tag;
  desc.in = desc.out = data.data();
  desc.bytes = data.size();
  return desc;
}

sherd_op_v0 Barrier() {
  sherd_op_v0 desc = {};
  desc.op = SHERD_BARRIER;
  return desc;
}

class GlooPluginTest : public ::testing::TestWithParam<int> {};

TEST_P(GlooPluginTest, EveryOperationIsRightAtTheSizesWhereItChanges) {
  RunPluginRanks(GetParam(), [](PluginRank& self) {
    CheckAllReduce(self, kLarge);
    CheckReduce(self, kLarge);
    CheckReduceScatter(self, kLarge);
    CheckAllGatherV(self);
    CheckGather(self);
    CheckScatter(self);
    CheckRoundsOnce(self);
    CheckMessages(self);
    CheckMessagesBesideCollectives(self);
  });
}

INSTANTIATE_TEST_SUITE_P(All, GlooPluginTest, ::testing::Values(2, 3, 5));

TEST(GlooPluginMessageTest, AnotherLengthIsTheReceiversErrorAndHangsNoRank) {
  const struct {
    size_t sent, expected;
  } kCases[] = {{5, 4}, {4, 5}, {200000, 4}, {4, 200000}, {200000, 200001}};
  for (const auto& c : kCases) {
    RunPluginRanks(2, [&c](PluginRank& self) {
      std::vector<char> data(self.rank() == 0 ? c.sent : c.expected, 'x');
      const PluginOutcome outcome =
          self.Run(Message(self.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                           1 - self.rank(), 3, data));
      if (self.rank() == 0) {
        // The sender of a short one may have exited before the receiver looks
        // at it.
        EXPECT_THAT(outcome.code, AnyOf(Eq(SHERD_OK), Eq(SHERD_PEER_LOST)));
        return;
      }
      EXPECT_EQ(outcome.code, SHERD_INVALID_ARGUMENT);
      EXPECT_EQ(outcome.peer, 0);
      EXPECT_EQ(outcome.text, "sends " + std::to_string(c.sent) +
                                  " bytes with tag 3, this rank expects " +
                                  std::to_string(c.expected));
      EXPECT_EQ(data, std::vector<char>(c.expected, 'x'));
      self.Abort();
    });
  }
}

// Connect to everything that this process listens on, and stay.
class Strangers {
 public:
  // The behaviour of a stranger once it is connected.
  using Manners = void (*)(GlooSocket&);

  void Come(Manners manners) {
    DIR* const entries = opendir("/proc/self/fd");
    while (const dirent* const entry = readdir(entries)) {
      const int fd = std::atoi(entry->d_name);
      int listens = 0;
      socklen_t size = sizeof(listens);
      sockaddr_storage address = {};
      socklen_t length = sizeof(address);
      auto* const plain = reinterpret_cast<sockaddr*>(&address);
      if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
          listens == 0 || getsockname(fd, plain, &length) != 0) {
        continue;
      }
      GlooSocket stranger(
          socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(stranger.get(), plain, length) != 0) continue;
      manners(stranger);
      const std::lock_guard<std::mutex> lock(mutex_);
      strangers_.push_back(std::move(stranger));
    }
    closedir(entries);
  }

  size_t count() const { return strangers_.size(); }

 private:
  std::mutex mutex_;
  std::vector<GlooSocket> strangers_;
};

void SendNothing(GlooSocket&) {}

void SendLines(GlooSocket& stranger) {
  const std::string text(200, '\n');
  EXPECT_GT(send(stranger.get(), text.data(), text.size(), MSG_NOSIGNAL), 0);
}

void Leave(GlooSocket& stranger) { shutdown(stranger.get(), SHUT_RDWR); }

void Reset(GlooSocket& stranger) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  EXPECT_EQ(setsockopt(stranger.get(), SOL_SOCKET, SO_LINGER, &at_once,
                       sizeof(at_once)),
            0);
  stranger = GlooSocket();
}

TEST(GlooPluginConnectTest, AnUnrelatedConnectionIsNotAPeer) {
  for (const Strangers::Manners manners :
       {SendNothing, SendLines, Leave, Reset}) {
    Strangers strangers;
    RunPluginRanks(
        4,
        [](PluginRank& self) {
          CheckAllGatherV(self);
          EXPECT_EQ(self.Run(Barrier()).code, SHERD_OK);
        },
        "127.0.0.1", [&] { strangers.Come(manners); });
    // Each rank's listener at the least met one.
    EXPECT_GE(strangers.count(), 4u);
  }
}

TEST(GlooPluginFailureTest, AbortEndsAllRunningOperations) {
  RunPluginRanks(3, [](PluginRank& self) {
    if (self.rank() == 2) {
      // Never does anything, until the others have given up.
      std::vector<char> token(1);
      EXPECT_EQ(self.Run(Message(SHERD_RECV, 0, 1, token)).code,
                SHERD_PEER_LOST);
      return;
    }
    std::vector<std::thread> threads;
    std::vector<char> large(1 << 20), small(8);
    threads.emplace_back([&] {
      const sherd_code code = self.Run(Barrier()).code;
      EXPECT_THAT(code, AnyOf(Eq(SHERD_ABORTED), Eq(SHERD_PEER_LOST)));
    });
    threads.emplace_back([&] {
      const sherd_code code = self.Run(Message(SHERD_SEND, 2, 7, large)).code;
      EXPECT_THAT(code, AnyOf(Eq(SHERD_ABORTED), Eq(SHERD_PEER_LOST)));
    });
    threads.emplace_back([&] {
      const sherd_code code = self.Run(Message(SHERD_RECV, 2, 8, small)).code;
      EXPECT_THAT(code, AnyOf(Eq(SHERD_ABORTED), Eq(SHERD_PEER_LOST)));
    });
    self.Abort();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(self.Run(Barrier()).code, SHERD_ABORTED);
  });
}

TEST(GlooPluginFailureTest, AConnectionThatBreaksInTheMiddleOfAMessage) {
  // Gloo does not notify a rank that has half of a message. The message is so
  // large that it is still in flight when the sender aborts, after the first
  // byte arrived; untouched pages take no memory.
  constexpr size_t kBytes = size_t{16} << 30;
  std::atomic<bool> begun = false;
  RunPluginRanks(2, [&begun](PluginRank& self) {
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    volatile char* const first = static_cast<char*>(memory);
    sherd_op_v0 op = {};
    op.op = self.rank() == 0 ? SHERD_SEND : SHERD_RECV;
    op.root = 1 - self.rank();
    op.in = op.out = memory;
    op.bytes = kBytes;
    if (self.rank() == 0) {
      *first = 1;
      std::thread aborts([&] {
        while (!begun) std::this_thread::yield();
        self.Abort();
      });
      EXPECT_EQ(self.Run(op).code, SHERD_ABORTED);
      aborts.join();
    } else {
      std::thread watches([&] {
        while (*first == 0 && !begun) std::this_thread::yield();
        begun = true;
      });
      const PluginOutcome outcome = self.Run(op, absl::Minutes(10));
      EXPECT_EQ(outcome.code, SHERD_PEER_LOST) << outcome.text;
      EXPECT_EQ(outcome.peer, 0);
      begun = true;
      watches.join();
    }
    munmap(memory, kBytes);
  });
}

TEST(GlooPluginFailureTest, ARankThatLeavesIsNamedAndOthersGoOnWithoutIt) {
  RunPluginRanks(3, [](PluginRank& self) {
    ASSERT_EQ(self.Run(Barrier()).code, SHERD_OK);
    if (self.rank() == 2) {
      self.Leave();
      return;
    }
    std::vector<char> data(300000);
    const PluginOutcome lost = self.Run(Message(SHERD_RECV, 2, 1, data));
    EXPECT_EQ(lost.code, SHERD_PEER_LOST);
    EXPECT_EQ(lost.peer, 2);
    for (int i = 0; i < 3; ++i) {
      const int op = self.rank() == 0 ? SHERD_SEND : SHERD_RECV;
      EXPECT_EQ(self.Run(Message(op, 1 - self.rank(), 1, data)).code, SHERD_OK);
    }
  });
}

TEST(GlooPluginFailureTest, ARankThatLeavesEarlyDoesNotFailTheOthers) {
  // Rank 0 releases the others one after another; the first exits while the
  // next still waits.
  for (int round = 0; round < 20; ++round) {
    RunPluginRanks(5, [](PluginRank& self) {
      const PluginOutcome outcome = self.Run(Barrier());
      EXPECT_EQ(outcome.code, SHERD_OK) << outcome.peer << outcome.text;
    });
  }
}

TEST(GlooPluginFailureTest, ATimeoutNamesTheAbsentRankToAllThatRuns) {
  RunPluginRanks(3, [](PluginRank& self) {
    std::vector<char> token(8);
    if (self.rank() == 2) {
      EXPECT_EQ(self.Run(Message(SHERD_RECV, 0, 9, token)).code,
                SHERD_PEER_LOST);
      return;
    }
    std::vector<char> other(8);
    PluginOutcome message;
    std::thread waits([&] {
      message = self.Run(Message(SHERD_RECV, 1 - self.rank(), 5, other));
    });
    const PluginOutcome outcome =
        self.Run(Message(SHERD_RECV, 2, 6, token), absl::Milliseconds(300));
    waits.join();
    // The two may also see each other go.
    EXPECT_THAT(outcome.code, AnyOf(Eq(SHERD_TIMEOUT), Eq(SHERD_PEER_LOST)));
    EXPECT_EQ(outcome.peer,
              outcome.code == SHERD_TIMEOUT ? 2 : 1 - self.rank());
    EXPECT_THAT(message.code, AnyOf(Eq(SHERD_TIMEOUT), Eq(SHERD_PEER_LOST)));
    EXPECT_NE(message.peer, -1);
  });
}

TEST(GlooPluginAddressTest, WorksOverIpv6) {
  RunPluginRanks(
      3, [](PluginRank& self) { CheckAllReduce(self, 100000); }, "::1");
}

size_t NumEntries(const char* directory) {
  DIR* const dir = opendir(directory);
  size_t n = 0;
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

TEST(GlooPluginLifeTest, ManyGroupsLeaveNoThreadAndNoDescriptor) {
  const auto live = [] {
    RunPluginRanks(2, [](PluginRank& self) {
      EXPECT_EQ(self.Run(Barrier()).code, SHERD_OK);
    });
  };
  live();
  const size_t threads = NumEntries("/proc/self/task");
  const size_t descriptors = NumEntries("/proc/self/fd");
  for (int i = 0; i < 200; ++i) live();
  // The kernel may still list a thread that was just joined.
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (NumEntries("/proc/self/task") > threads && absl::Now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(NumEntries("/proc/self/task"), threads);
  EXPECT_EQ(NumEntries("/proc/self/fd"), descriptors);
}

}  // namespace
}  // namespace sherd::testing
