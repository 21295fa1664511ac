#include "sherd/core/net/event_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::ElementsAre;

std::unique_ptr<EventLoop> StartLoop() {
  absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::Start("test");
  EXPECT_THAT(loop, IsOk());
  return *std::move(loop);
}

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

TEST(EventLoopTest, RunsTasksInTheirOrderAndAllBeforeItEnds) {
  std::vector<int> order;
  auto loop = StartLoop();
  for (int i = 0; i < 1000; ++i)
    loop->Post([&order, i] { order.push_back(i); });
  loop.reset();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(EventLoopTest, TakesTasksFromManyThreads) {
  int count = 0;
  auto loop = StartLoop();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) loop->Post([&count] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop.reset();
  EXPECT_EQ(count, 2000);
}

TEST(EventLoopTest, TimersRunInTheOrderOfTheirTimeAndNotEarly) {
  auto loop = StartLoop();
  std::vector<int> order;
  absl::Notification done;
  const auto now = Deadline::Clock::now();
  loop->Post([&] {
    using std::chrono::milliseconds;
    loop->RunAt(now + milliseconds(40), [&] {
      EXPECT_GE(Deadline::Clock::now(), now + milliseconds(40));
      order.push_back(40);
      done.Notify();
    });
    loop->RunAt(now + milliseconds(10), [&] { order.push_back(10); });
    const EventLoop::TimerId cancelled =
        loop->RunAt(now + milliseconds(20), [&] { order.push_back(20); });
    loop->RunAt(now + milliseconds(15), [&, cancelled] {
      order.push_back(15);
      loop->Cancel(cancelled);
    });
  });
  done.WaitForNotification();
  loop.reset();
  EXPECT_THAT(order, ElementsAre(10, 15, 40));
}

TEST(EventLoopTest, AHandlerIsToldOfItsDescriptorUntilItIsUnwatched) {
  auto loop = StartLoop();
  auto [mine, theirs] = SocketPair();
  const int fd = mine.get();
  std::string received;
  absl::Notification done;
  loop->Post([&] {
    EXPECT_THAT(loop->Watch(fd, EPOLLIN,
                            [&](uint32_t) {
                              char byte;
                              ASSERT_EQ(read(fd, &byte, 1), 1);
                              received.push_back(byte);
                              if (byte != 'c') return;
                              loop->Unwatch(fd);
                              done.Notify();
                            }),
                IsOk());
  });
  ASSERT_EQ(write(theirs.get(), "abcd", 4), 4);
  done.WaitForNotification();
  loop.reset();
  EXPECT_EQ(received, "abc");
}

TEST(EventLoopTest, WhatItsEndDropsMayStillCallIt) {
  constexpr int kSockets = 20;
  auto owned = StartLoop();
  EventLoop* const loop = owned.get();
  std::vector<std::pair<UniqueFd, UniqueFd>> sockets;
  for (int i = 0; i < kSockets; ++i) sockets.push_back(SocketPair());
  int dropped = 0;
  // Calls the loop for all that the others have when the last of it goes.
  const auto owner = [&](std::vector<EventLoop::TimerId>* timers) {
    return std::shared_ptr<void>(nullptr, [&, timers](void*) {
      for (const auto& [mine, theirs] : sockets) loop->Unwatch(mine.get());
      for (const EventLoop::TimerId& timer : *timers) loop->Cancel(timer);
      loop->Post([] {});
      ++dropped;
    });
  };
  std::vector<EventLoop::TimerId> timers;
  absl::Notification done;
  loop->Post([&] {
    for (const auto& [mine, theirs] : sockets) {
      EXPECT_THAT(
          loop->Watch(mine.get(), EPOLLIN, [own = owner(&timers)](uint32_t) {}),
          IsOk());
      timers.push_back(
          loop->RunAt(Deadline::Clock::now() + std::chrono::hours(1),
                      [own = owner(&timers)] {}));
    }
    done.Notify();
  });
  done.WaitForNotification();
  owned.reset();
  EXPECT_EQ(dropped, 2 * kSockets);
}

// Two are ready in one round, and the first to run closes the other, whose
// number a new descriptor takes at once.
TEST(EventLoopTest, AnEventForAClosedDescriptorReachesNobody) {
  auto loop = StartLoop();
  auto a = SocketPair(), b = SocketPair();
  ASSERT_EQ(write(a.second.get(), "x", 1), 1);
  ASSERT_EQ(write(b.second.get(), "x", 1), 1);
  int runs = 0, strays = 0;
  std::pair<UniqueFd, UniqueFd> fresh;
  absl::Notification done;
  const auto handler = [&](std::pair<UniqueFd, UniqueFd>& own,
                           std::pair<UniqueFd, UniqueFd>& other) {
    return [&](uint32_t) {
      ++runs;
      loop->Unwatch(own.first.get());
      loop->Unwatch(other.first.get());
      const int number = other.first.get();
      other.first.Reset();
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
      EXPECT_TRUE(fds[0] == number || fds[1] == number);
      fresh = {UniqueFd(fds[0]), UniqueFd(fds[1])};
      EXPECT_THAT(loop->Watch(number, EPOLLIN, [&](uint32_t) { ++strays; }),
                  IsOk());
      // After this round and the next.
      loop->Post([&] { loop->Post([&] { done.Notify(); }); });
    };
  };
  loop->Post([&] {
    EXPECT_THAT(loop->Watch(a.first.get(), EPOLLIN, handler(a, b)), IsOk());
    EXPECT_THAT(loop->Watch(b.first.get(), EPOLLIN, handler(b, a)), IsOk());
  });
  done.WaitForNotification();
  loop.reset();
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(strays, 0);
}

}  // namespace
}  // namespace sherd
