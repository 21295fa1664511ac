#include "sherd/core/comm/process_group.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The backend's behavior as set by a test; shared with the communicators it
// creates.
struct Script {
  std::function<absl::Status(const Collective&)> post = [](const Collective&) {
    return absl::OkStatus();
  };
  bool completes_in_post = true;
  // Calls of Test that return false before the operation ends; -1: it never
  // does.
  std::atomic<int> tests_left{0};
  std::atomic<int> aborts{0};
};

class ScriptedCommunicator final : public Communicator {
 public:
  explicit ScriptedCommunicator(Script& script) : script_(script) {}
  absl::StatusOr<bool> Post(const Collective& desc,
                            CollectiveRequest&) override {
    SHERD_RETURN_IF_ERROR(script_.post(desc));
    return script_.completes_in_post;
  }
  absl::StatusOr<bool> Test(CollectiveRequest&) override {
    return script_.tests_left != -1 && script_.tests_left-- == 0;
  }
  void Abort() override { ++script_.aborts; }

 private:
  Script& script_;
};

class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(Script& script, bool compares = true)
      : script_(script) {
    info_.name = "scripted";
    info_.compares_calls = compares;
    info_.native.operations = (1u << kNumCollectiveOps) - 1;
    info_.native.reductions.fill(~0u);
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions&) const override {
    return std::unique_ptr<Communicator>(
        std::make_unique<ScriptedCommunicator>(script_));
  }

 private:
  Script& script_;
  BackendInfo info_;
};

std::vector<std::byte> Bytes(size_t n) { return std::vector<std::byte>(n); }

// Rank 0 of 2. The other rank only joins.
class ProcessGroupTest : public ::testing::Test {
 protected:
  ProcessGroupTest() {
    std::thread other([this] { other_ = Create(1, store_); });
    // The group keeps the store that it was given.
    group_ = Create(
        0, {store_.get(), [this, keep = store_](Store*) { gone_.Notify(); }});
    other.join();
  }

  std::shared_ptr<ProcessGroup> Create(int rank, std::shared_ptr<Store> store) {
    auto group = ProcessGroup::Create(backend_,
                                      {.name = "g",
                                       .rank = rank,
                                       .size = 2,
                                       .store = std::move(store),
                                       .timeout = absl::Seconds(30),
                                       .on_destroy = [this] { ++destroyed_; }});
    EXPECT_THAT(group, IsOk());
    return *std::move(group);
  }

  Script script_;
  std::atomic<int> destroyed_{0};
  // The group of rank 0 has been destroyed, and its handles are gone.
  absl::Notification gone_;
  const ScriptedBackend backend_{script_};
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  std::shared_ptr<ProcessGroup> group_, other_;
};

TEST_F(ProcessGroupTest, NumbersCallsAndCopiesTheOwnBlock) {
  std::vector<uint64_t> sequences;
  script_.post = [&](const Collective& desc) {
    sequences.push_back(desc.sequence);
    return absl::OkStatus();
  };
  EXPECT_THAT(group_->Barrier(), IsOk());
  const std::vector<std::byte> send = {std::byte{1}, std::byte{2}};
  std::vector<std::byte> recv = Bytes(4);
  EXPECT_THAT(group_->AllGather(send, absl::MakeSpan(recv)), IsOk());
  EXPECT_THAT(sequences, ElementsAre(1, 2));
  EXPECT_THAT(recv, ElementsAre(std::byte{1}, std::byte{2}, std::byte{0},
                                std::byte{0}));
}

TEST_F(ProcessGroupTest, AJoinThatFailsOnceConnectedAbortsItsCommunicator) {
  const testing::FailAt fault("comm/after_connecting",
                              absl::InternalError("the reason"), {.rank = 0});
  const auto store = std::make_shared<HashStore>();
  std::thread other([&] { Create(1, store); });
  EXPECT_THAT(ProcessGroup::Create(backend_, {.name = "h",
                                              .rank = 0,
                                              .size = 2,
                                              .store = store,
                                              .timeout = absl::Seconds(30)})
                  .status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the reason")));
  other.join();
  EXPECT_EQ(script_.aborts, 1);
}

TEST_F(ProcessGroupTest, CountsMessagesApartFromCollectives) {
  std::vector<uint64_t> messages;
  script_.post = [&](const Collective& desc) {
    if (IsPointToPoint(desc.op)) messages.push_back(desc.sequence);
    return absl::OkStatus();
  };
  const std::vector<std::byte> bytes = Bytes(2);
  EXPECT_THAT(group_->Send(bytes, 1), IsOk());
  EXPECT_THAT(group_->Barrier(), IsOk());
  EXPECT_THAT(group_->SendAsync(bytes, 1).Wait(), IsOk());
  EXPECT_THAT(messages, ElementsAre(1, 2));
  // Ranks need not send equally often for their collectives to agree.
  script_.post = [](const Collective&) { return absl::InternalError("x"); };
  EXPECT_EQ(GetErrorInfo(group_->Barrier()).sequence, 2u);
}

TEST_F(ProcessGroupTest, RejectsBadArgumentsAndStaysUsable) {
  int posts = 0;
  script_.post = [&](const Collective&) {
    ++posts;
    return absl::OkStatus();
  };
  std::vector<std::byte> buffer = Bytes(8);
  const absl::Span<std::byte> span = absl::MakeSpan(buffer);
  EXPECT_THAT(group_->AllGather(span.subspan(0, 3), span.subspan(0, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("7 bytes, expected 2 ranks times the 3")));
  EXPECT_THAT(
      group_->AllGather(span.subspan(1, 4), span),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlaps")));
  EXPECT_THAT(group_->Broadcast(span, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("root is 2, expected 0 to 1")));
  EXPECT_THAT(group_->Broadcast(span, -1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(group_->AllToAllV({}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected 2 of each")));
  const std::vector<ConstBytes> sends = {span.subspan(0, 2), {}};
  const std::vector<MutableBytes> recvs = {span.subspan(4, 1), {}};
  EXPECT_THAT(group_->AllToAllV(sends, recvs),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("own send entry has 2 bytes")));
  EXPECT_EQ(posts, 0);
  EXPECT_THAT(group_->Barrier(), IsOk());
  EXPECT_EQ(posts, 1);
}

TEST_F(ProcessGroupTest, ErrorCarriesGroupOperationSequenceAndRank) {
  script_.post = [](const Collective&) {
    return WithRank(absl::UnavailableError("connection closed"), 1);
  };
  other_->Destroy().IgnoreError();
  const absl::Status status = group_->Barrier();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 1: left the group")));
  const ErrorInfo info = GetErrorInfo(status);
  EXPECT_EQ(info.group, "g");
  EXPECT_EQ(info.operation, "barrier");
  EXPECT_EQ(info.sequence, 1u);
  EXPECT_EQ(info.rank, 1);
}

TEST_F(ProcessGroupTest, AFailurePoisonsTheGroupWithItsCause) {
  script_.post = [](const Collective&) {
    return absl::InternalError("cable cut");
  };
  EXPECT_THAT(group_->Barrier(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("cable cut")));
  EXPECT_EQ(script_.aborts, 1);
  EXPECT_THAT(group_->health(), StatusIs(absl::StatusCode::kInternal));
  script_.post = [](const Collective&) { return absl::OkStatus(); };
  EXPECT_THAT(group_->Barrier(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("cable cut")));
  EXPECT_THAT(group_->Destroy(), IsOk());
}

TEST_F(ProcessGroupTest, AsynchronousCallsRunInOrderAndBeforeLaterOnes) {
  absl::Notification go;
  std::vector<uint64_t> sizes;
  script_.post = [&](const Collective& desc) {
    if (desc.op != CollectiveOp::kBarrier) go.WaitForNotification();
    sizes.push_back(desc.bytes);
    return absl::OkStatus();
  };
  std::vector<std::byte> recv = Bytes(4);
  const absl::Span<std::byte> out = absl::MakeSpan(recv);
  Work first = group_->AllGatherAsync(out.subspan(0, 1), out.subspan(0, 2));
  Work second = group_->AllGatherAsync(out.subspan(0, 2), out);
  EXPECT_FALSE(first.Test());
  EXPECT_FALSE(second.Test());
  go.Notify();
  EXPECT_THAT(group_->Barrier(), IsOk());
  EXPECT_TRUE(second.Test());
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk()) << "waiting again returns at once";
  EXPECT_THAT(second.Wait(), IsOk());
  EXPECT_THAT(sizes, ElementsAre(1, 2, 0));
}

TEST_F(ProcessGroupTest, ADroppedWorkIsFinishedByDestroy) {
  std::atomic<bool> ran = false;
  script_.post = [&](const Collective&) {
    ran = true;
    return absl::OkStatus();
  };
  std::vector<std::byte> recv = Bytes(2);
  {
    Work dropped = group_->AllGatherAsync(
        absl::MakeConstSpan(recv).subspan(0, 1), absl::MakeSpan(recv));
  }
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_TRUE(ran);
}

TEST_F(ProcessGroupTest, PollsABackendWhoseRequestsNeedIt) {
  script_.completes_in_post = false;
  script_.tests_left = 300;
  EXPECT_THAT(group_->Barrier(), IsOk());
  EXPECT_EQ(script_.tests_left, -1);
}

TEST_F(ProcessGroupTest, AnOperationThatDoesNotEndMeetsItsDeadline) {
  script_.completes_in_post = false;
  script_.tests_left = -1;
  EXPECT_THAT(group_->Barrier({.timeout = absl::Milliseconds(5)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GE(script_.aborts, 1);
}

TEST_F(ProcessGroupTest, AbortIsTheCauseOfLaterFailures) {
  group_->Abort(absl::CancelledError("operator pressed stop"));
  EXPECT_EQ(script_.aborts, 1);
  EXPECT_THAT(group_->Barrier(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("operator pressed stop")));
}

TEST_F(ProcessGroupTest, CallsAfterDestroyFailAndDestroyAgainIsOk) {
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_EQ(destroyed_, 1);
  EXPECT_THAT(group_->Barrier(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("was destroyed")));
}

// Other ranks may pass data to a call that one rank makes with 0 bytes.
TEST_F(ProcessGroupTest, PostsCallsOfNoBytesToABackendThatComparesCalls) {
  std::vector<CollectiveOp> posts;
  script_.post = [&](const Collective& desc) {
    posts.push_back(desc.op);
    return absl::OkStatus();
  };
  EXPECT_THAT(group_->AllGather({}, {}), IsOk());
  EXPECT_THAT(group_->ReduceScatter({}, {}, kFloat32, ReduceOp::kSum), IsOk());
  EXPECT_THAT(group_->Send({}, 1), IsOk());
  EXPECT_THAT(group_->Recv({}, 1), IsOk());
  EXPECT_THAT(
      posts, ElementsAre(CollectiveOp::kAllGather, CollectiveOp::kReduceScatter,
                         CollectiveOp::kSend, CollectiveOp::kRecv));
}

TEST_F(ProcessGroupTest, PassesTheTypeOfMovedElements) {
  std::vector<std::pair<bool, DType>> types;
  script_.post = [&](const Collective& desc) {
    types.emplace_back(desc.typed, desc.dtype);
    return absl::OkStatus();
  };
  std::vector<std::byte> buffer = Bytes(8);
  const MutableBytes bytes = absl::MakeSpan(buffer);
  EXPECT_THAT(group_->Broadcast(bytes, 1), IsOk());
  EXPECT_THAT(group_->Broadcast(bytes, 1, {.dtype = kFloat32}), IsOk());
  EXPECT_THAT(group_->AllReduce(bytes, bytes, kInt32, ReduceOp::kSum,
                                {.dtype = kFloat32}),
              IsOk());
  EXPECT_THAT(types,
              ElementsAre(std::pair(false, kUInt8), std::pair(true, kFloat32),
                          std::pair(false, kInt32)));
}

// A backend of which `info` is all that matters.
class NoBytesTest : public ::testing::Test {
 protected:
  // The operations that rank 0 of 2 posts in calls of 0 bytes.
  std::vector<CollectiveOp> PostsOf(bool compares) {
    std::vector<CollectiveOp> posts;
    Script script;
    script.post = [&](const Collective& desc) {
      posts.push_back(desc.op);
      return absl::OkStatus();
    };
    const ScriptedBackend backend(script, compares);
    const auto store = std::make_shared<HashStore>();
    const auto create = [&](int rank) {
      return ProcessGroup::Create(backend,
                                  {.rank = rank, .size = 2, .store = store});
    };
    absl::StatusOr<std::shared_ptr<ProcessGroup>> other;
    std::thread thread([&] { other = create(1); });
    const auto group = create(0);
    thread.join();
    EXPECT_THAT(group, IsOk());
    EXPECT_THAT((*group)->AllReduce({}, {}, kFloat32, ReduceOp::kSum), IsOk());
    EXPECT_THAT((*group)->AllGatherV({}, std::vector<MutableBytes>(2)), IsOk());
    EXPECT_THAT((*group)->Send({}, 1), IsOk());
    return posts;
  }
};

TEST_F(NoBytesTest, AreABarrierWhereTheBackendDoesNotCompare) {
  EXPECT_THAT(PostsOf(/*compares=*/false),
              ElementsAre(CollectiveOp::kBarrier, CollectiveOp::kBarrier,
                          CollectiveOp::kSend));
}

TEST_F(NoBytesTest, ArePostedAsTheyAreToABackendThatCompares) {
  EXPECT_THAT(PostsOf(/*compares=*/true),
              ElementsAre(CollectiveOp::kAllReduce, CollectiveOp::kAllGatherV,
                          CollectiveOp::kSend));
}

TEST_F(ProcessGroupTest, OnDestroyIsCalledOnceWhileTheGroupIsUsable) {
  std::vector<std::string> calls;
  ASSERT_THAT(group_->OnDestroy([&](const absl::Status& health) {
    EXPECT_THAT(health, IsOk());
    EXPECT_EQ(destroyed_, 0);
    EXPECT_THAT(group_->Barrier(), IsOk());
    calls.push_back("first");
  }),
              IsOk());
  ASSERT_THAT(group_->OnDestroy(
                  [&](const absl::Status&) { calls.push_back("second"); }),
              IsOk());
  EXPECT_THAT(calls, ElementsAre());
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_THAT(group_->Destroy(), IsOk());
  EXPECT_THAT(calls, ElementsAre("first", "second"));
  EXPECT_THAT(group_->OnDestroy([](const absl::Status&) { FAIL(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the group was destroyed")));
}

TEST_F(ProcessGroupTest, OnDestroyIsCalledByTheDestructorOfAFailedGroup) {
  absl::Status found;
  ASSERT_THAT(
      group_->OnDestroy([&](const absl::Status& health) { found = health; }),
      IsOk());
  group_->Abort(absl::AbortedError("the cause"));
  group_ = nullptr;
  EXPECT_THAT(found, StatusIs(absl::StatusCode::kAborted, HasSubstr("cause")));
}

// Operations may log before they end.
TEST_F(ProcessGroupTest, TheLastHandleMayGoInALogSinkWhileAnOperationRuns) {
  constexpr absl::Duration kLong = absl::Seconds(20);
  absl::Notification sink_returned;
  std::atomic<bool> in_time = false;
  script_.post = [&](const Collective&) {
    in_time = sink_returned.WaitForNotificationWithTimeout(kLong);
    SHERD_LOG(kError) << "from the operation";
    return absl::OkStatus();
  };
  std::vector<std::byte> out = Bytes(2);
  Work work = group_->AllGatherAsync(absl::MakeSpan(out).subspan(0, 1),
                                     absl::MakeSpan(out));
  SetLogSink([this](const LogEntry&) { group_ = nullptr; });
  SHERD_LOG(kError) << "from the test";
  sink_returned.Notify();
  EXPECT_THAT(work.Wait(), IsOk());
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kLong));
  SetLogSink(nullptr);
  EXPECT_TRUE(in_time);
}

TEST_F(ProcessGroupTest, ASecondProcessWithTheSameRankDoesNotDisturbTheGroup) {
  const auto impostor =
      ProcessGroup::Create(backend_, {.name = "g",
                                      .rank = 1,
                                      .size = 2,
                                      .store = store_,
                                      .on_destroy = [this] { ++destroyed_; }});
  EXPECT_THAT(impostor, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("rank 1 has joined already")));
  EXPECT_EQ(destroyed_, 0);
  EXPECT_THAT(store_->Contains("left/1"), IsOkAndHolds(false));
}

TEST(ProcessGroupCreateTest, RejectsARankOutsideTheWorld) {
  Script script;
  const ScriptedBackend backend(script);
  for (const auto& [rank, size] : {std::pair(2, 2), {-1, 2}, {0, 0}}) {
    EXPECT_THAT(
        ProcessGroup::Create(backend, {.rank = rank,
                                       .size = size,
                                       .store = std::make_shared<HashStore>()}),
        StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace sherd
