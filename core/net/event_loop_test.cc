#include "sherd/core/net/event_loop.h"

#include <poll.h>
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
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/shared_work.h"
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

TEST(EventLoopTest, AHandlerIsCalledForItsDescriptorUntilItIsUnwatched) {
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

TEST(EventLoopTest, CapturesDroppedAtItsEndMayStillCallIt) {
  constexpr int kSockets = 20;
  auto owned = StartLoop();
  EventLoop* const loop = owned.get();
  std::vector<std::pair<UniqueFd, UniqueFd>> sockets;
  for (int i = 0; i < kSockets; ++i) sockets.push_back(SocketPair());
  int dropped = 0;
  // Calls the loop when the last reference of it is released.
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
TEST(EventLoopTest, AnEventForAClosedDescriptorCallsNoHandler) {
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

using internal::SharedWork;

// Until the thread that waits sleeps.
void AwaitSleep(const SharedWork::Wait& wait) {
  while (!wait.sleeps()) std::this_thread::yield();
}

TEST(EventLoopTest, WhatIsPostedSoonRunsThoughNothingElseHappens) {
  auto loop = StartLoop();
  for (int i = 0; i < 100; ++i) {
    absl::Notification ran;
    loop->PostSoon([&] { ran.Notify(); });
    ran.WaitForNotification();
  }
}

TEST(EventLoopTest, WhatAFunctionPostsSoonRunsOnceItHasReturned) {
  auto loop = StartLoop();
  std::vector<int> order;
  absl::Notification done;
  loop->Post([&] {
    loop->PostSoon([&] {
      order.push_back(2);
      loop->PostSoon([&] {
        order.push_back(4);
        done.Notify();
      });
    });
    loop->PostSoon([&] { order.push_back(3); });
    order.push_back(1);
  });
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4));
}

TEST(EventLoopTest, WhatIsPostedSoonMaySetATimer) {
  auto loop = StartLoop();
  for (int i = 0; i < 20; ++i) {
    absl::Notification ran;
    loop->PostSoon([&] {
      loop->RunAt(Deadline::Clock::now() + std::chrono::milliseconds(1),
                  [&] { ran.Notify(); });
    });
    // Has the loop's thread look right after, or not.
    if (i % 2 == 0) loop->Post([] {});
    ran.WaitForNotification();
  }
}

TEST(EventLoopTest, WhatIsPostedSoonAtItsEndRunsOrIsDropped) {
  const auto alive = std::make_shared<int>();
  auto loop = StartLoop();
  loop->PostSoon([alive] {});
  loop.reset();
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(EventLoopWorkTest, AThreadThatTakesPartBeginsWithWhatIsPostedSoon) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  bool ran_here = false;
  // Where this thread has to wait for a core, the loop's own comes first.
  for (int attempt = 0; attempt < 1000 && !ran_here; ++attempt) {
    absl::Notification ran;
    loop->PostSoon([&, visitor = std::this_thread::get_id()] {
      ran_here = std::this_thread::get_id() == visitor;
      ran.Notify();
    });
    SharedWork::Wait wait(*work);
    wait.End();
    EXPECT_TRUE(work->WorkUntil(wait, Deadline::Infinite()));
    ran.WaitForNotification();
  }
  EXPECT_TRUE(ran_here);
}

TEST(EventLoopWorkTest, FunctionsOfTheLoopDefer) {
  auto loop = StartLoop();
  auto other = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  EXPECT_FALSE(work->RunsHere());
  absl::Notification elsewhere, go, done;
  other->Post([&] {
    EXPECT_FALSE(work->RunsHere());
    elsewhere.Notify();
  });
  elsewhere.WaitForNotification();
  std::vector<int> order;
  // So that the others run in one round.
  loop->Post([&] { go.WaitForNotification(); });
  loop->Post([&] {
    EXPECT_TRUE(work->RunsHere());
    work->Defer([&, thread = std::this_thread::get_id()] {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_TRUE(work->RunsHere());
      order.push_back(2);
    });
    order.push_back(1);
  });
  loop->Post([&] {
    order.push_back(3);
    done.Notify();
  });
  go.Notify();
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  loop.reset();
  EXPECT_FALSE(work->RunsHere());
}

TEST(EventLoopWorkTest, EachTaskRunsOnceOnAnyThread) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  auto [near, far] = SocketPair();
  absl::Notification watched;
  SharedWork::Wait wait(*work);
  int frames = 0;
  loop->Post([&, fd = near.get()] {
    EXPECT_THAT(loop->Watch(fd, EPOLLIN | EPOLLET,
                            [&, fd](uint32_t) {
                              char byte;
                              if (read(fd, &byte, 1) != 1) return;
                              if (++frames == 100) wait.End();
                              EXPECT_EQ(write(fd, &byte, 1), 1);
                            }),
                IsOk());
    watched.Notify();
  });
  watched.WaitForNotification();
  std::thread peer([far = far.get()] {
    pollfd entry = {far, POLLIN, 0};
    for (char byte = 0; byte < 100; ++byte) {
      EXPECT_EQ(write(far, &byte, 1), 1);
      EXPECT_EQ(poll(&entry, 1, -1), 1);
      char back;
      EXPECT_EQ(read(far, &back, 1), 1);
      EXPECT_EQ(back, byte);
    }
  });
  EXPECT_TRUE(work->WorkUntil(wait, Deadline::Infinite()));
  peer.join();
  EXPECT_EQ(frames, 100);
}

TEST(EventLoopWorkTest, AWaitEndsThoughAnotherThreadIsWoken) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  for (int round = 0; round < 200; ++round) {
    SharedWork::Wait waits[2] = {SharedWork::Wait(*work),
                                 SharedWork::Wait(*work)};
    std::vector<std::thread> threads;
    for (SharedWork::Wait& wait : waits) {
      threads.emplace_back([&] {
        EXPECT_TRUE(work->WorkUntil(wait, Deadline::Infinite()));
        EXPECT_TRUE(wait.has_ended());
      });
      AwaitSleep(wait);
    }
    // The system would wake the other one first, in half of the rounds.
    const int first = round % 2;
    waits[first].End();
    threads[static_cast<size_t>(first)].join();
    EXPECT_FALSE(waits[1 - first].has_ended());
    waits[1 - first].End();
    threads[static_cast<size_t>(1 - first)].join();
  }
}

TEST(EventLoopWorkTest, TasksRunAlthoughTheirWakeUpReachesAnother) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  SharedWork::Wait wait(*work);
  std::thread visitor(
      [&] { EXPECT_TRUE(work->WorkUntil(wait, Deadline::Infinite())); });
  AwaitSleep(wait);
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    absl::Notification ran;
    loop->Post([&, i] {
      order.push_back(i);
      ran.Notify();
    });
    ran.WaitForNotification();
  }
  wait.End();
  visitor.join();
  ASSERT_EQ(order.size(), 1000u);
}

TEST(EventLoopWorkTest, TimersThatAVisitorSetRunAfterItLeft) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  const std::thread::id visitor = std::this_thread::get_id();
  int set_by_visitor = 0;
  for (int attempt = 0; attempt < 1000 && set_by_visitor < 20; ++attempt) {
    SharedWork::Wait wait(*work);
    absl::Notification ran;
    std::thread poster([&] {
      AwaitSleep(wait);
      loop->Post([&] {
        set_by_visitor += std::this_thread::get_id() == visitor ? 1 : 0;
        loop->RunAt(Deadline::Clock::now() + std::chrono::milliseconds(2),
                    [&] { ran.Notify(); });
        wait.End();
      });
    });
    EXPECT_TRUE(work->WorkUntil(wait, Deadline::Infinite()));
    poster.join();
    ran.WaitForNotification();
  }
  EXPECT_EQ(set_by_visitor, 20);
}

TEST(EventLoopWorkTest, ADeadlineEndsAVisitAndMoreThanTwoAreRefused) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  const Deadline deadline = Deadline::After(absl::Milliseconds(20));
  SharedWork::Wait late(*work);
  EXPECT_TRUE(work->WorkUntil(late, deadline));
  EXPECT_TRUE(deadline.HasPassed());
  EXPECT_FALSE(late.has_ended());

  SharedWork::Wait a(*work), b(*work), c(*work);
  std::thread first([&] { work->WorkUntil(a, Deadline::Infinite()); });
  std::thread second([&] { work->WorkUntil(b, Deadline::Infinite()); });
  AwaitSleep(a);
  AwaitSleep(b);
  EXPECT_FALSE(work->WorkUntil(c, Deadline::Infinite()));
  a.End();
  b.End();
  first.join();
  second.join();
}

TEST(EventLoopWorkTest, TheLoopsEndEndsVisits) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  SharedWork::Wait wait(*work);
  std::thread visitor(
      [&] { EXPECT_FALSE(work->WorkUntil(wait, Deadline::Infinite())); });
  AwaitSleep(wait);
  loop.reset();
  visitor.join();
  EXPECT_FALSE(work->WorkUntil(wait, Deadline::Infinite()));
  wait.End();
}

TEST(EventLoopWorkTest, ADeadlineEndsAVisitThatAlwaysFindsWork) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  auto [near, far] = SocketPair();
  ASSERT_EQ(write(far.get(), "x", 1), 1);
  loop->Post([&, fd = near.get()] {
    EXPECT_THAT(loop->Watch(fd, EPOLLIN, [](uint32_t) {}), IsOk());
  });
  for (int round = 0; round < 5; ++round) {
    SharedWork::Wait wait(*work);
    EXPECT_TRUE(work->WorkUntil(wait, Deadline::After(absl::Milliseconds(2))));
  }
}

TEST(EventLoopWorkTest, AFunctionOfALoopDoesNotTakePart) {
  auto loop = StartLoop();
  const std::shared_ptr<SharedWork> work = loop->work();
  absl::Notification ran;
  loop->Post([&] {
    SharedWork::Wait wait(*work);
    EXPECT_FALSE(work->WorkUntil(wait, Deadline::Infinite()));
    ran.Notify();
  });
  ran.WaitForNotification();
}

}  // namespace
}  // namespace sherd
