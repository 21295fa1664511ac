#include "sherd/core/comm/work.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using internal::CollectiveQueue;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

// An operation that ends on request.
class HeldOperation {
 public:
  Work Start(absl::Status outcome) {
    return Work(queue_.Push([this, outcome] {
      release_.WaitForNotification();
      return outcome;
    }));
  }
  void Release() { release_.Notify(); }

 private:
  absl::Notification release_;
  CollectiveQueue queue_;
};

TEST(WorkTest, ThenTurnsTheOutcomeIntoAnother) {
  HeldOperation operation;
  Work work =
      operation.Start(absl::UnavailableError("gone")).Then([](absl::Status s) {
        return absl::InternalError(std::string("after ") +
                                   std::string(s.message()));
      });
  EXPECT_FALSE(work.Test());
  operation.Release();
  EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInternal, "after gone"));
  EXPECT_THAT(work.Wait(), StatusIs(absl::StatusCode::kInternal, "after gone"));
  EXPECT_TRUE(work.Test());
}

TEST(WorkTest, ThenOfAnEndedWorkRunsAtOnce) {
  int calls = 0;
  Work work = Work(absl::OkStatus()).Then([&](absl::Status status) {
    ++calls;
    return status;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(work.Test());
  EXPECT_THAT(work.Wait(), IsOk());

  HeldOperation operation;
  Work ended = operation.Start(absl::OkStatus());
  operation.Release();
  while (!ended.Test()) std::this_thread::yield();
  Work next = std::move(ended).Then([&](absl::Status) {
    ++calls;
    return absl::AbortedError("no");
  });
  EXPECT_EQ(calls, 2);
  EXPECT_THAT(next.Wait(), StatusIs(absl::StatusCode::kAborted));
}

TEST(WorkTest, CapturesOfThenLiveUntilTheOperationEndsAndNoLonger) {
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = captured;
  HeldOperation operation;
  Work work = operation.Start(absl::OkStatus())
                  .Then([captured = std::move(captured)](absl::Status status) {
                    return status;
                  });
  EXPECT_FALSE(alive.expired());
  operation.Release();
  ASSERT_THAT(work.Wait(), IsOk());
  EXPECT_TRUE(alive.expired());
}

TEST(WorkTest, ThenRunsThoughAllWorksWereDropped) {
  absl::Notification ran;
  HeldOperation operation;
  {
    Work dropped =
        operation.Start(absl::OkStatus()).Then([&](absl::Status status) {
          ran.Notify();
          return status;
        });
  }
  operation.Release();
  ran.WaitForNotification();
}

TEST(WorkTest, TheLastHandleOfTheQueueMayGoInAContinuation) {
  auto queue = std::make_shared<CollectiveQueue>();
  const std::weak_ptr<CollectiveQueue> alive = queue;
  absl::Notification dropped;
  Work first = Work(queue->Push([&] {
                 dropped.WaitForNotification();
                 return absl::OkStatus();
               })).Then([queue](absl::Status status) { return status; });
  bool ran = false;
  Work behind = Work(queue->Push([&] {
    ran = true;
    return absl::OkStatus();
  }));
  queue = nullptr;
  dropped.Notify();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_TRUE(alive.expired());
  EXPECT_TRUE(behind.Test()) << "the destructor runs what is queued";
  EXPECT_TRUE(ran);
}

TEST(WorkTest, TheLastHandleOfTheQueueMayBeKept) {
  auto queue = std::make_shared<CollectiveQueue>();
  const std::weak_ptr<CollectiveQueue> alive = queue;
  absl::Notification dropped;
  Work work = Work(queue->Push([&] {
    dropped.WaitForNotification();
    return absl::OkStatus();
  }));
  work.Keep(std::exchange(queue, nullptr));
  dropped.Notify();
  EXPECT_THAT(work.Wait(), IsOk());
  while (!alive.expired()) std::this_thread::yield();
}

TEST(WorkTest, AContinuationMayWaitForItsQueue) {
  CollectiveQueue queue;
  absl::Notification pushed;
  bool ran = false;
  Work first = Work(queue.Push([&] {
                 pushed.WaitForNotification();
                 return absl::OkStatus();
               })).Then([&](absl::Status status) {
    queue.WaitIdle();
    return ran ? status : absl::InternalError("it was not run");
  });
  Work behind = Work(queue.Push([&] {
    ran = true;
    // One within the other.
    queue.WaitIdle();
    return absl::OkStatus();
  }));
  pushed.Notify();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(behind.Wait(), IsOk());
  // The queue still knows which operations have ended.
  ran = false;
  Work last = Work(queue.Push([&] {
    ran = true;
    return absl::OkStatus();
  }));
  queue.WaitIdle();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(last.Test());
}

TEST(WorkTest, ContinuationsOfTwoQueuesMayWaitForEachOther) {
  absl::Notification attached, begun[2];
  CollectiveQueue queues[2];
  std::vector<Work> works;
  for (int i = 0; i < 2; ++i) {
    works.push_back(Work(queues[i].Push([&] {
                      attached.WaitForNotification();
                      return absl::OkStatus();
                    })).Then([&queues, &begun, i](absl::Status status) {
      begun[i].Notify();
      begun[1 - i].WaitForNotification();
      queues[i].WaitIdle();
      queues[1 - i].WaitIdle();
      return status;
    }));
  }
  attached.Notify();
  for (Work& work : works) EXPECT_THAT(work.Wait(), IsOk());
}

TEST(WorkTest, WhenAllEndsWithTheLastAndReportsTheFirstErrorInOrder) {
  HeldOperation first, second;
  std::vector<Work> works;
  works.push_back(first.Start(absl::UnavailableError("first")));
  works.push_back(Work(absl::OkStatus()));
  works.push_back(second.Start(absl::AbortedError("second")));
  Work all = WhenAll(std::move(works));
  EXPECT_FALSE(all.Test());
  second.Release();
  first.Release();
  EXPECT_THAT(all.Wait(), StatusIs(absl::StatusCode::kUnavailable, "first"));
}

TEST(WorkTest, WhenAllOfNoWorksHasEnded) {
  Work all = WhenAll({});
  EXPECT_TRUE(all.Test());
  EXPECT_THAT(all.Wait(), IsOk());
}

}  // namespace
}  // namespace sherd
