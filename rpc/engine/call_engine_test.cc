#include "sherd/rpc/engine/call_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/wire_double.h"
#include "sherd/rpc/ownership/reference_codec.h"
#include "sherd/rpc/ownership/reference_service.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::_;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSignature = 7;
constexpr absl::Duration kSoon = absl::Milliseconds(30);

Deadline InTime() { return Deadline::After(absl::Minutes(2)); }

Tensor Sequence(int64_t count, float first = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return *Tensor::FromSpan<float>(values, {count});
}

Payload Values(absl::string_view text, std::vector<Tensor> tensors = {}) {
  Payload payload;
  payload.values = std::string(text);
  payload.tensors = std::move(tensors);
  return payload;
}

struct Result {
  absl::Mutex mutex;
  bool done ABSL_GUARDED_BY(mutex) = false;
  int times ABSL_GUARDED_BY(mutex) = 0;
  absl::StatusOr<Payload> value ABSL_GUARDED_BY(mutex);
};

// The pending result of a call, as a Future has it.
class Pending {
 public:
  ReplyFunction function() const {
    return [result = result_](absl::StatusOr<Payload> value) {
      absl::MutexLock lock(&result->mutex);
      if (result->times++ == 0) result->value = std::move(value);
      result->done = true;
    };
  }
  absl::StatusOr<Payload> Wait() const {
    const ScopedBlocked blocked;
    absl::MutexLock lock(&result_->mutex);
    result_->mutex.Await(absl::Condition(&result_->done));
    EXPECT_EQ(result_->times, 1);
    return result_->value;
  }
  bool done() const {
    absl::MutexLock lock(&result_->mutex);
    return result_->done;
  }
  // Releases the result.
  void Forget() const {
    absl::StatusOr<Payload> value;
    absl::MutexLock lock(&result_->mutex);
    std::swap(value, result_->value);
  }

 private:
  std::shared_ptr<Result> result_ = std::make_shared<Result>();
};

class CallEngineTest : public ::testing::Test {
 protected:
  using Handler = std::function<void(int self, Payload, ReplyFunction)>;

  CallEngineTest()
      : seed_(static_cast<uint64_t>(
            GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
                .value()
                .value_or(static_cast<int64_t>(std::random_device()())))) {
    std::cout << "SHERD_TEST_SEED=" << seed_ << "\n";
    Handle("echo", [](int, Payload request, ReplyFunction reply) {
      reply(std::move(request));
    });
    Handle("wait", [this](int, Payload request, ReplyFunction reply) {
      ++waiting_;
      const auto context = CallContext::Current();
      const ScopedBlocked blocked;
      while (!go_.WaitForNotificationWithTimeout(absl::Milliseconds(1))) {
        if (context->cancelled()) {
          ++saw_cancel_;
          return reply(absl::CancelledError("nobody waits"));
        }
      }
      reply(std::move(request));
    });
  }

  ~CallEngineTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
    if (network_ != nullptr) network_->Stop();
    for (const auto& engine : engines_) {
      EXPECT_THAT(engine->Close(InTime()), IsOk());
    }
  }

  void Handle(const std::string& name, Handler handler) {
    absl::MutexLock lock(&handlers_mutex_);
    handlers_[name] = std::move(handler);
  }

  void StartWorkers(int size, CallEngineOptions options = {}) {
    network_ = std::make_unique<FakeNetwork>(size, seed_);
    for (int r = 0; r < size; ++r) {
      options.rank = r;
      options.world_size = size;
      options.find_handler = [this, r](absl::string_view name,
                                       uint64_t signature, absl::string_view)
          -> absl::StatusOr<std::shared_ptr<const RawHandler>> {
        absl::MutexLock lock(&handlers_mutex_);
        const auto it = handlers_.find(std::string(name));
        if (it == handlers_.end()) return absl::NotFoundError("no handler");
        if (signature != kSignature) {
          return absl::FailedPreconditionError("another signature");
        }
        auto found = std::make_shared<RawHandler>();
        found->run = [handler = it->second, r](Payload request,
                                               ReplyFunction reply) {
          handler(r, std::move(request), std::move(reply));
        };
        return found;
      };
      engines_.push_back(std::make_unique<CallEngine>(options));
      network_->Connect(r, engines_.back().get());
      engines_.back()->Attach(network_->wire(r));
    }
  }

  Pending Start(int from, int to, absl::string_view method, Payload request,
                CallOptions options = {}) {
    Pending pending;
    last_call_ =
        engines_[from]->Start(to, method, kSignature, std::move(request),
                              options, pending.function());
    return pending;
  }
  absl::StatusOr<Payload> Call(int from, int to, absl::string_view method,
                               Payload request, CallOptions options = {}) {
    return Start(from, to, method, std::move(request), options).Wait();
  }
  void AwaitWaiting(int count) {
    while (waiting_ < count) std::this_thread::yield();
  }
  void ExpectWorks(int from, int to) {
    const absl::StatusOr<Payload> result = Call(from, to, "echo", Values("y"));
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->values, "y");
  }
  // Drain on all of `ranks` at once.
  std::map<int, absl::Status> DrainAll(const std::vector<int>& ranks,
                                       Deadline deadline) {
    std::map<int, absl::Status> outcomes;
    absl::Mutex mutex;
    std::vector<std::thread> threads;
    for (const int r : ranks) {
      threads.emplace_back([&, r] {
        const absl::Status status = engines_[r]->Drain(deadline);
        absl::MutexLock lock(&mutex);
        outcomes[r] = status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  const uint64_t seed_;
  absl::Mutex handlers_mutex_;
  std::map<std::string, Handler> handlers_ ABSL_GUARDED_BY(handlers_mutex_);
  std::unique_ptr<FakeNetwork> network_;
  std::vector<std::unique_ptr<CallEngine>> engines_;
  std::atomic<uint64_t> last_call_{0};
  absl::Notification go_;
  std::atomic<int> waiting_{0};
  std::atomic<int> saw_cancel_{0};
};

TEST_F(CallEngineTest, ValuesAndTensorsOfAnyLayoutArrive) {
  StartWorkers(2);
  const Tensor strided = *Sequence(24).Reshape({4, 6})->Transpose(0, 1);
  const Tensor scalar = *Tensor::Scalar<int64_t>(42);
  const Tensor empty = *Tensor::Zeros({3, 0, 2});
  for (const int to : {1, 0}) {
    const absl::StatusOr<Payload> result =
        Call(0, to, "echo",
             Values("v", {strided, Tensor(), scalar, empty, Sequence(70000)}));
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->values, "v");
    ASSERT_EQ(result->tensors.size(), 5);
    EXPECT_TRUE(result->tensors[0].BitwiseEqual(strided));
    EXPECT_FALSE(result->tensors[1].defined());
    EXPECT_TRUE(result->tensors[2].BitwiseEqual(scalar));
    EXPECT_EQ(result->tensors[3].sizes(), empty.sizes());
    EXPECT_TRUE(result->tensors[4].BitwiseEqual(Sequence(70000)));
    // Only a worker's calls to itself share memory.
    EXPECT_EQ(result->tensors[2].storage() == scalar.storage(), to == 0);
  }
}

TEST_F(CallEngineTest, ErrorsNameCallAndWorker) {
  Handle("fail", [](int, Payload, ReplyFunction reply) {
    reply(WithFailedRank(absl::DataLossError("disk is gone"), 3));
  });
  Handle("fail_in_group", [](int, Payload, ReplyFunction reply) {
    reply(WithErrorInfo(absl::UnavailableError("rank 3 died"),
                        {.group = "data", .rank = 3, .failed_rank = 3}));
  });
  Handle("throw", [](int, Payload, ReplyFunction) {
    throw std::runtime_error("thrown");
  });
  Handle("drop", [](int, Payload, ReplyFunction) {});
  StartWorkers(2);
  for (const int to : {0, 1}) {
    const std::string worker = absl::StrCat(" on worker", to, " (rank ", to);
    const absl::Status failed = Call(0, to, "fail", Values("")).status();
    EXPECT_THAT(
        failed,
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr(absl::StrCat("call ", last_call_.load(),
                                              " of fail", worker)),
                       HasSubstr("disk is gone"))));
    EXPECT_EQ(FailedRank(failed), 3);
    EXPECT_EQ(GetErrorInfo(failed).operation, "fail");
    // Rank 3 of a group is another worker, or none.
    const absl::Status of_group =
        Call(0, to, "fail_in_group", Values("")).status();
    EXPECT_THAT(of_group, StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("rank 3 died")));
    EXPECT_EQ(ErrorRank(of_group), to);
    EXPECT_EQ(FailedRank(of_group), std::nullopt);
    EXPECT_EQ(GetErrorInfo(of_group).group, "");
    const absl::Status thrown = Call(0, to, "throw", Values("")).status();
    EXPECT_THAT(thrown,
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr("thrown"), HasSubstr(worker))));
    EXPECT_EQ(ErrorRank(thrown), to);
    EXPECT_THAT(
        Call(0, to, "drop", Values("")),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("without a reply")));
    EXPECT_THAT(Call(0, to, "none", Values("")),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(worker)));
    Pending other;
    engines_[0]->Start(to, "echo", kSignature + 1, {}, {}, other.function());
    EXPECT_THAT(other.Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("signature")));
    ExpectWorks(0, to);
  }
  EXPECT_THAT(Call(0, 2, "echo", Values("")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks are 0 to 1")));
  EXPECT_THAT(Call(0, -1, "echo", Values("")),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const Tensor meta = *Tensor::Empty({2}, {.device = "meta"});
  EXPECT_THAT(Call(0, 1, "echo", Values("", {meta})),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("meta")));
  EXPECT_THAT(
      Call(0, 1, "echo", Values(std::string(5 << 20, 'x'))),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4194304")));
}

TEST_F(CallEngineTest, HandlersMayAnswerLaterAndOnlyTheFirstAnswerCounts) {
  ReplyFunction kept;
  absl::Notification here;
  Handle("later", [&](int, Payload, ReplyFunction reply) {
    kept = std::move(reply);
    here.Notify();
  });
  StartWorkers(2);
  const Pending pending = Start(0, 1, "later", Values(""));
  here.WaitForNotification();
  EXPECT_FALSE(pending.done());
  kept(Values("first"));
  kept(Values("second"));
  const absl::StatusOr<Payload> result = pending.Wait();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->values, "first");
  ExpectWorks(0, 1);
}

TEST_F(CallEngineTest, AHundredCallsNest) {
  Handle("nest", [this](int self, Payload request, ReplyFunction reply) {
    int depth = 0;
    ASSERT_TRUE(absl::SimpleAtoi(request.values, &depth));
    if (depth == 0) return reply(Values("bottom"));
    reply(Call(self, 1 - self, "nest", Values(absl::StrCat(depth - 1))));
  });
  StartWorkers(2, {.pool = {.concurrency = 1}});
  const absl::StatusOr<Payload> result = Call(0, 1, "nest", Values("100"));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->values, "bottom");
}

TEST_F(CallEngineTest, CallsThatNestTooDeeplyForThePoolFailAndDoNotHang) {
  Handle("nest", [this](int self, Payload, ReplyFunction reply) {
    reply(Call(self, self, "nest", Values("")));
  });
  StartWorkers(1, {.pool = {.concurrency = 1, .max_threads = 5}});
  EXPECT_THAT(Call(0, 0, "nest", Values("")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("5")));
  ExpectWorks(0, 0);
}

TEST_F(CallEngineTest, ManyThreadsCallAtOnce) {
  constexpr int kWorkers = 4, kThreads = 6, kCalls = 60;
  // Small enough that calls wait for one another's bytes.
  StartWorkers(kWorkers, {.max_unsent_bytes = 4096});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed_ + static_cast<uint64_t>(t));
      for (int c = 0; c < kCalls; ++c) {
        const int from = static_cast<int>(random() % kWorkers);
        const int to = static_cast<int>(random() % kWorkers);
        const int64_t count = static_cast<int64_t>(random() % 2000);
        const auto first = static_cast<float>(random() % 1000);
        const std::string text = absl::StrCat(t, ":", c);
        const absl::StatusOr<Payload> result =
            Call(from, to, "echo",
                 Values(text, {Sequence(count, first), Sequence(3, first)}));
        ASSERT_THAT(result, IsOk());
        ASSERT_EQ(result->values, text);
        ASSERT_TRUE(result->tensors[0].BitwiseEqual(Sequence(count, first)));
        ASSERT_TRUE(result->tensors[1].BitwiseEqual(Sequence(3, first)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t calls = 0, served = 0, sent = 0, received = 0;
  for (const auto& engine : engines_) {
    for (const WorkerStatistics& each : engine->Statistics()) {
      calls += each.calls;
      served += each.served;
      sent += each.bytes_sent;
      received += each.bytes_received;
      EXPECT_EQ(each.errors, 0);
      EXPECT_EQ(each.outstanding, 0);
      EXPECT_LE(each.p50, each.p99);
    }
  }
  EXPECT_EQ(calls, kThreads * kCalls);
  EXPECT_LE(served, calls);
  EXPECT_EQ(sent, received);
}

TEST_F(CallEngineTest, NestedCallsInheritTheDeadline) {
  std::atomic<bool> earlier{false};
  absl::Notification ended;
  absl::StatusOr<Payload> inner;
  Handle("outer", [&](int self, Payload, ReplyFunction reply) {
    earlier = CallContext::Current()->deadline().Remaining() < absl::Hours(1);
    inner = Call(self, 0, "wait", Values(""), {.timeout = absl::Hours(2)});
    reply(Values(""));
    ended.Notify();
  });
  StartWorkers(2);
  EXPECT_THAT(Call(0, 1, "outer", Values(""), {.timeout = kSoon}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("of outer on worker1 (rank 1)"),
                             HasSubstr("30ms"))));
  ended.WaitForNotification();
  EXPECT_TRUE(earlier);
  // It ends by its own deadline, or by the cancellation of "outer".
  EXPECT_THAT(inner.status().code(), AnyOf(absl::StatusCode::kDeadlineExceeded,
                                           absl::StatusCode::kCancelled));
  EXPECT_THAT(inner.status().message(),
              HasSubstr("of wait on worker0 (rank 0)"));
  // A context that has expired starts nothing.
  const ScopedCallContext expired(std::make_shared<CallContext>(
      0, 1, "gone", Deadline::After(absl::ZeroDuration())));
  EXPECT_THAT(Call(0, 1, "echo", Values("")),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CallEngineTest, ALostRequestOrReplyEndsAtTheDeadlineAndFreesItsTensors) {
  StartWorkers(2);
  for (const int loser : {0, 1}) {
    SCOPED_TRACE(loser == 0 ? "request" : "reply");
    network_->SetFilter([loser](int from, int, absl::string_view control) {
      const absl::StatusOr<CallHeader> header =
          DecodeCallMessage(control, 40, {});
      return from == loser && header.ok() ? FakeNetwork::Fate::kLose
                                          : FakeNetwork::Fate::kDeliver;
    });
    std::weak_ptr<Storage> storage;
    {
      const Tensor tensor = Sequence(10);
      storage = tensor.storage();
      EXPECT_THAT(Call(0, 1, "echo", Values("", {tensor}), {.timeout = kSoon}),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("of echo on worker1 (rank 1)")));
    }
    network_->SetFilter(nullptr);
    EXPECT_TRUE(storage.expired());
    ExpectWorks(0, 1);
  }
  EXPECT_EQ(engines_[0]->Statistics()[1].errors, 2);
  EXPECT_EQ(engines_[0]->Statistics()[1].outstanding, 0);
}

TEST_F(CallEngineTest, ARequestThatArrivesAfterItsDeadlineDoesNotRun) {
  std::atomic<int> runs{0};
  Handle("count", [&](int, Payload, ReplyFunction reply) {
    ++runs;
    reply(Values(""));
  });
  StartWorkers(2);
  network_->SetFilter(
      [](int, int, absl::string_view) { return FakeNetwork::Fate::kHold; });
  EXPECT_THAT(Call(0, 1, "count", Values(""), {.timeout = kSoon}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  network_->SetFilter(nullptr);
  // Request and cancellation, one right behind the other: either the handler
  // had begun by then, or it never does.
  network_->ReleaseHeld();
  ExpectWorks(0, 1);
  EXPECT_THAT(DrainAll({0, 1}, InTime())[0], IsOk());
  EXPECT_LE(runs, 1);
}

TEST_F(CallEngineTest, LateAndUnknownRepliesAreDropped) {
  StartWorkers(2);
  network_->SetFilter([](int from, int, absl::string_view) {
    return from == 1 ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  });
  Tensor out = Sequence(5, 100);
  const Pending late = Start(0, 1, "echo", Values("", {Sequence(5)}),
                             {.timeout = kSoon, .out = {out}});
  EXPECT_THAT(late.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  network_->SetFilter(nullptr);
  network_->ReleaseHeld();
  ExpectWorks(0, 1);
  // Its caller may have reused `out` by now.
  EXPECT_TRUE(out.BitwiseEqual(Sequence(5, 100)));
  EXPECT_THAT(late.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  Payload payload = Values("x");
  EXPECT_THAT(
      network_->Inject(1, 0, *EncodeReply(999, payload, 0, nullptr, {}), 0),
      IsOk());
  EXPECT_THAT(network_->Inject(1, 0, EncodeCancel(999), 0), IsOk());
  ExpectWorks(0, 1);
}

TEST_F(CallEngineTest, CancelReachesTheHandlerAndWhatItCalled) {
  absl::Notification ended;
  absl::StatusOr<Payload> inner;
  Handle("outer", [&](int self, Payload, ReplyFunction reply) {
    inner = Call(self, 2, "wait", Values(""));
    reply(Values(""));
    ended.Notify();
  });
  StartWorkers(3);
  const Pending pending = Start(0, 1, "outer", Values(""));
  const uint64_t call = last_call_;
  AwaitWaiting(1);
  // The inner call set last_call_, on worker1.
  engines_[0]->Cancel(1);
  EXPECT_THAT(pending.Wait(), StatusIs(absl::StatusCode::kCancelled,
                                       HasSubstr("of outer on worker1")));
  ended.WaitForNotification();
  EXPECT_THAT(inner, StatusIs(absl::StatusCode::kCancelled));
  while (saw_cancel_ == 0) std::this_thread::yield();
  engines_[0]->Cancel(call);
  // To itself too.
  const Pending own = Start(0, 0, "wait", Values(""));
  AwaitWaiting(2);
  engines_[0]->Cancel(last_call_);
  EXPECT_THAT(own.Wait(), StatusIs(absl::StatusCode::kCancelled));
  while (saw_cancel_ < 2) std::this_thread::yield();
  Handle("outer", [&](int self, Payload, ReplyFunction reply) {
    Call(self, 2, "wait", Values("")).IgnoreError();
    reply(Values(""));
  });
  const Pending nested = Start(0, 0, "outer", Values(""));
  const uint64_t outer = last_call_;
  AwaitWaiting(3);
  engines_[0]->Cancel(outer);
  while (saw_cancel_ < 3) std::this_thread::yield();
}

TEST_F(CallEngineTest, HandlersAreNotifiedOnceOfACancellation) {
  struct Told {
    std::shared_ptr<CallContext> context;
    ReplyFunction reply;
    std::atomic<int> times{0};
    absl::Notification begun;
    absl::Notification told;
  };
  // By the text of the request.
  std::map<std::string, Told> all;
  for (const char* text : {"cancel", "dies", "answered"}) all[text];
  constexpr int kTries = 12;
  for (int i = 0; i < kTries; ++i) all[absl::StrCat("late", i)];
  Handle("told", [&](int, Payload request, ReplyFunction reply) {
    Told& told = all.at(request.values);
    told.context = CallContext::Current();
    told.reply = std::move(reply);
    told.context->OnCancelled([&told] {
      if (++told.times == 1) told.told.Notify();
    });
    told.begun.Notify();
  });
  StartWorkers(3);
  const auto begin = [&](int from, const std::string& text) {
    const Pending pending = Start(from, 1, "told", Values(text));
    all.at(text).begun.WaitForNotification();
    return pending;
  };
  // A handler that would begin after its deadline does not: the next call has
  // twice the time.
  const auto begin_late = [&]() -> Told& {
    for (int i = 0;; ++i) {
      const std::string text = absl::StrCat("late", i);
      Told& told = all.at(text);
      const Pending pending =
          Start(1, 1, "told", Values(text), {.timeout = kSoon * (1 << i)});
      while (!told.begun.HasBeenNotified() && !pending.done()) {
        std::this_thread::yield();
      }
      if (told.begun.HasBeenNotified()) return told;
    }
  };
  const Pending cancelled = begin(0, "cancel");
  EXPECT_EQ(all.at("cancel").times, 0);
  engines_[0]->Cancel(last_call_);
  all.at("cancel").told.WaitForNotification();
  EXPECT_TRUE(all.at("cancel").context->cancelled());
  const Told& late = begin_late();
  late.told.WaitForNotification();
  begin(2, "dies");
  network_->Kill(2);
  all.at("dies").told.WaitForNotification();
  // A function that is added later is called at once.
  all.at("dies").context->OnCancelled([&] { ++all.at("dies").times; });
  EXPECT_EQ(all.at("dies").times, 2);
  // An answered call is over; its functions are released.
  const auto held = std::make_shared<int>(0);
  const Pending answered = begin(0, "answered");
  Told& last = all.at("answered");
  last.context->OnCancelled([held] {});
  last.reply(Values("done"));
  EXPECT_THAT(answered.Wait(), IsOk());
  EXPECT_EQ(held.use_count(), 1);
  last.context->OnCancelled([held] {});
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_THAT(engines_[1]->Close(InTime()), IsOk());
  EXPECT_EQ(last.times, 0);
  EXPECT_EQ(all.at("cancel").times, 1);
  EXPECT_EQ(late.times, 1);
}

TEST_F(CallEngineTest, MessagesMayWaitWhereOthersFollow) {
  // So that the calls before wait for a thread.
  const auto last_waits = [this] {
    const std::vector<CallUnderWay> calls = engines_[1]->CallsUnderWay();
    return std::any_of(
        calls.begin(), calls.end(), [this](const CallUnderWay& call) {
          return call.id == last_call_ && call.state == std::string("waiting");
        });
  };
  std::atomic<bool> all_sent{false};
  Handle("queue", [&](int, Payload request, ReplyFunction reply) {
    while (request.values == "first" && !(all_sent && last_waits())) {
      std::this_thread::yield();
    }
    // Longer than a handler whose reply may wait.
    if (request.values == "first") absl::SleepFor(absl::Milliseconds(1));
    reply(std::move(request));
  });
  StartWorkers(2, {.pool = {.concurrency = 1, .stall = absl::Minutes(10)}});
  struct Log {
    absl::Mutex mutex;
    std::vector<bool> requests ABSL_GUARDED_BY(mutex);
    std::vector<bool> replies ABSL_GUARDED_BY(mutex);
  };
  const auto log = std::make_shared<Log>();
  network_->SetSendHook([log](int from, const WireMessage& message) {
    absl::MutexLock lock(&log->mutex);
    (from == 0 ? log->requests : log->replies).push_back(message.may_wait);
  });
  bool waited = false;
  // Short handlers may have to wait for a core, too.
  for (int attempt = 0; attempt < 1000 && !waited; ++attempt) {
    all_sent = false;
    const Pending calls[] = {
        Start(0, 1, "queue", Values("first")),
        Start(0, 1, "queue", Values("second"), {.may_wait = true}),
        Start(0, 1, "queue", Values("third"))};
    all_sent = true;
    for (const Pending& call : calls) EXPECT_THAT(call.Wait(), IsOk());
    absl::MutexLock lock(&log->mutex);
    EXPECT_THAT(std::exchange(log->requests, {}),
                ElementsAre(false, true, false));
    const std::vector<bool> replies = std::exchange(log->replies, {});
    ASSERT_THAT(replies, ElementsAre(false, _, false));
    waited = replies[1];
  }
  EXPECT_TRUE(waited);
}

TEST_F(CallEngineTest, ACancellationComesAfterItsRequest) {
  StartWorkers(2);
  // The call ends while its request is being sent.
  std::atomic<bool> first{true};
  network_->SetFilter([&](int from, int, absl::string_view) {
    if (from == 0 && first.exchange(false)) engines_[0]->Cancel(1);
    return FakeNetwork::Fate::kDeliver;
  });
  EXPECT_THAT(Call(0, 1, "wait", Values("")),
              StatusIs(absl::StatusCode::kCancelled));
  for (const auto& [rank, status] : DrainAll({0, 1}, InTime())) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(CallEngineTest, ACancellationComesAfterARequestThatHasWaited) {
  StartWorkers(2, {.max_unsent_bytes = 64});
  std::atomic<int> requests{0};
  network_->SetFilter([&](int from, int, absl::string_view control) {
    if (from != 0 || control.size() < 64) return FakeNetwork::Fate::kDeliver;
    if (++requests == 1) return FakeNetwork::Fate::kHold;
    engines_[0]->Cancel(2);
    return FakeNetwork::Fate::kDeliver;
  });
  const std::string text(64, 'x');
  const Pending first = Start(0, 1, "echo", Values(text, {Sequence(9)}));
  const Pending second = Start(0, 1, "wait", Values(text, {Sequence(9)}),
                               {.timeout = absl::InfiniteDuration()});
  EXPECT_EQ(requests, 1);
  network_->ReleaseHeld();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(second.Wait(), StatusIs(absl::StatusCode::kCancelled));
  for (const auto& [rank, status] : DrainAll({0, 1}, InTime())) {
    EXPECT_THAT(status, IsOk());
  }
  EXPECT_EQ(requests, 2);
}

TEST_F(CallEngineTest, AKilledWorkerIsNamedInEachPhase) {
  Handle("big", [](int, Payload, ReplyFunction reply) {
    reply(Values("", {Sequence(9)}));
  });
  StartWorkers(5);
  const auto expect_lost = [&](const absl::StatusOr<Payload>& result,
                               int worker) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr(absl::StrCat(" on worker", worker,
                                                        " (rank ", worker))));
    EXPECT_EQ(FailedRank(result.status()), worker);
    ExpectWorks(0, (worker + 1) % 5);
  };
  network_->SetTailHook([&](int from, int to) {
    // In the tail of a request to 1, and of a reply of 2.
    if (to == 1 || from == 2) network_->Kill(to == 1 ? 1 : 2);
  });
  expect_lost(Call(0, 1, "echo", Values("", {Sequence(9)})), 1);
  // `out` is no longer written to by then.
  expect_lost(Call(0, 2, "big", Values(""), {.out = {Sequence(9)}}), 2);
  network_->SetTailHook(nullptr);
  const Pending running = Start(0, 3, "wait", Values(""));
  AwaitWaiting(1);
  network_->Kill(3);
  expect_lost(running.Wait(), 3);
  // Before it is sent.
  expect_lost(Call(0, 3, "echo", Values("")), 3);
  // The calls of a lost caller are cancelled.
  const Pending lost_caller = Start(4, 0, "wait", Values(""));
  AwaitWaiting(2);
  const int before = saw_cancel_;
  network_->Kill(4);
  while (saw_cancel_ == before) std::this_thread::yield();
  engines_[4]->FailAll(absl::CancelledError("killed"));
  EXPECT_THAT(lost_caller.Wait(), Not(IsOk()));
}

TEST_F(CallEngineTest, ResultsLandInOut) {
  StartWorkers(2);
  for (const int to : {1, 0}) {
    Tensor dense = Sequence(6, 50);
    Tensor around = Sequence(12, 50);
    const Tensor strided =
        *around.Reshape({6, 2})->Select(/*dim=*/1, /*index=*/1);
    const absl::StatusOr<Payload> result = Call(
        0, to, "echo", Values("", {Sequence(6), Sequence(6, 10), Sequence(2)}),
        {.out = {dense, strided, Tensor()}});
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->tensors[0].data(), dense.data());
    EXPECT_EQ(result->tensors[1].data(), strided.data());
    EXPECT_TRUE(dense.BitwiseEqual(Sequence(6)));
    EXPECT_TRUE(strided.BitwiseEqual(Sequence(6, 10)));
    EXPECT_EQ(around.data_as<float>()[2], 52);
    EXPECT_TRUE(result->tensors[2].BitwiseEqual(Sequence(2)));

    const Tensor other = *Tensor::Zeros({6}, {.dtype = kInt32});
    EXPECT_THAT(
        Call(0, to, "echo", Values("", {Sequence(6)}), {.out = {other}}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("float32 [6]"), HasSubstr("int32 [6]"))));
    EXPECT_THAT(Call(0, to, "echo", Values("", {Sequence(6)}),
                     {.out = {Sequence(7, 1)}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("[6]"), HasSubstr("[7]"))));
    EXPECT_THAT(Call(0, to, "echo", Values("", {Sequence(6)}),
                     {.out = {Sequence(6), Sequence(6)}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("1 tensors"), HasSubstr("2"))));
  }
}

TEST_F(CallEngineTest, ACallDoesNotEndWhileItsReplyIsWrittenToOut) {
  StartWorkers(2);
  Pending pending;
  absl::Notification in_tail, proceed;
  network_->SetTailHook([&](int from, int) {
    if (from != 1) return;
    in_tail.Notify();
    proceed.WaitForNotification();
  });
  Tensor out = Sequence(8, 100);
  pending = Start(0, 1, "echo", Values("", {Sequence(8)}),
                  {.timeout = absl::Hours(1), .out = {out}});
  in_tail.WaitForNotification();
  engines_[0]->Cancel(last_call_);
  EXPECT_FALSE(pending.done());
  proceed.Notify();
  EXPECT_THAT(pending.Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(out.BitwiseEqual(Sequence(8)));
}

TEST_F(CallEngineTest, HostileMessagesCloseTheirConnectionOnly) {
  StartWorkers(6);
  Payload payload = Values("", {Sequence(4)});
  const std::string request =
      *EncodeRequest({.call = 5, .method = "echo", .signature = kSignature},
                     payload, 0, nullptr, {});
  EXPECT_THAT(network_->Inject(1, 0, request, uint64_t{1} << 60),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1152921504606846976")));
  EXPECT_THAT(network_->Inject(2, 0, "\x12\xff\xff", 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(network_->Inject(3, 0, EncodeCancel(1), 8),
              StatusIs(absl::StatusCode::kInvalidArgument));
  Payload plain = Values("");
  const std::string wait =
      *EncodeRequest({.call = 5, .method = "wait", .signature = kSignature},
                     plain, 0, nullptr, {});
  EXPECT_THAT(network_->Inject(4, 0, wait, 0), IsOk());
  EXPECT_THAT(network_->Inject(4, 0, wait, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("began call 5 again")));
  for (const int r : {1, 2, 3, 4}) {
    EXPECT_THAT(Call(0, r, "echo", Values("")),
                StatusIs(absl::StatusCode::kUnavailable));
  }
  ExpectWorks(0, 5);
  ExpectWorks(5, 0);
}

TEST_F(CallEngineTest, TensorsOfRunningCallsAreBounded) {
  StartWorkers(2, {.max_held_bytes = 4000});
  const Pending first = Start(0, 1, "wait", Values("", {Sequence(600)}));
  AwaitWaiting(1);
  EXPECT_THAT(
      Call(0, 1, "echo", Values("", {Sequence(600)})),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("4800")));
  ExpectWorks(0, 1);
  go_.Notify();
  EXPECT_THAT(first.Wait(), IsOk());
}

class ReferenceCallTest : public CallEngineTest {
 protected:
  using Service = ReferenceService;
  using Kind = ReferenceMessage::Kind;

  // A reference to the result of `method` on `owner`.
  Service::Handle Remote(int from, int owner, absl::string_view method,
                         CallOptions options = {}) {
    absl::StatusOr<Service::Created> created =
        engines_[from]->references().Create(owner);
    EXPECT_THAT(created, IsOk());
    options.creation = created->message;
    engines_[from]->Start(owner, method, kSignature, Values("made"), options,
                          [](const absl::StatusOr<Payload>&) {});
    return std::move(created->handle);
  }
  static Payload With(const Service::Handle& handle) {
    Payload payload = Values("");
    payload.references = {handle->id()};
    payload.references_keep = {handle};
    return payload;
  }
  // Holds messages about references of this kind.
  void HoldBack(Kind kind, int from,
                FakeNetwork::Fate fate = FakeNetwork::Fate::kHold) {
    network_->SetFilter([=](int sender, int, absl::string_view control) {
      const auto header = DecodeCallMessage(control, 0, {});
      const auto* words =
          header.ok() ? std::get_if<ReferenceMessages>(&*header) : nullptr;
      const bool held =
          sender == from && words != nullptr && words->front().kind == kind;
      return held ? fate : FakeNetwork::Fate::kDeliver;
    });
  }
  void LetGo() {
    network_->SetFilter(nullptr);
    network_->ReleaseHeld();
  }
  absl::StatusOr<std::string> Value(const Service::Handle& handle) {
    const absl::StatusOr<Payload> value =
        handle->service().Fetch(handle, absl::Seconds(60));
    if (!value.ok()) return value.status();
    return value->values;
  }
  void ExpectNoTransfer(int rank) {
    const Deadline deadline = InTime();
    const ReferenceService& references = engines_[rank]->references();
    while (references.ToString().find("transfer") != std::string::npos &&
           !deadline.HasPassed()) {
      std::this_thread::yield();
    }
    EXPECT_THAT(references.ToString(), Not(HasSubstr("transfer")));
  }
  void ExpectNothingLeft(const std::vector<int>& ranks) {
    for (const int r : ranks) {
      const Deadline deadline = InTime();
      while (!engines_[r]->references().ToString().empty() &&
             !deadline.HasPassed()) {
        std::this_thread::yield();
      }
      EXPECT_EQ(engines_[r]->references().ToString(), "") << r;
    }
  }
};

TEST_F(ReferenceCallTest, HandlersAndCallersSeeConfirmedReferencesOnly) {
  std::atomic<bool> seen{false};
  Handle("give", [&](int, Payload request, ReplyFunction reply) {
    seen = true;
    EXPECT_EQ(request.references_keep.size(), 1);
    reply(std::move(request));
  });
  StartWorkers(3);
  Service::Handle handle = Remote(0, 1, "echo");
  HoldBack(Kind::kRegister, 2);
  const Pending call = Start(0, 2, "give", With(handle));
  handle.reset();
  ExpectWorks(0, 2);
  EXPECT_FALSE(seen);
  LetGo();
  const absl::StatusOr<Payload> result = call.Wait();
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(result->references_keep.size(), 1);
  EXPECT_THAT(Value(std::static_pointer_cast<ReferenceHandle>(
                  result->references_keep[0])),
              IsOkAndHolds("made"));
}

// It is about to leave, which to others is its end.
TEST_F(ReferenceCallTest, AWorkerThatHasEndedItsReferencesIsUnavailable) {
  StartWorkers(2);
  const Service::Handle handle = Remote(0, 0, "echo");
  engines_[1]->references().ReleaseAll();
  EXPECT_THAT(Start(0, 1, "echo", With(handle)).Wait(),
              StatusIs(absl::StatusCode::kUnavailable, "on worker1 (rank 1)"));
}

TEST_F(ReferenceCallTest, ACallThatWaitsToPassThemOnIsNeverSent) {
  StartWorkers(3);
  HoldBack(Kind::kRegistered, 1);
  Service::Handle handle = Remote(0, 1, "echo");
  const Pending call = Start(0, 2, "echo", With(handle));
  engines_[0]->Cancel(last_call_);
  EXPECT_THAT(call.Wait(), StatusIs(absl::StatusCode::kCancelled));
  Service::Handle made = Remote(0, 2, "echo", {.timeout = kSoon});
  const Pending late = Start(0, 2, "echo", With(handle), {.timeout = kSoon});
  EXPECT_THAT(late.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpectNoTransfer(0);
  LetGo();
  handle.reset();
  made.reset();
  ExpectNothingLeft({0, 1, 2});
  EXPECT_EQ(engines_[2]->Statistics()[0].served, 1);
  for (const auto& [rank, status] : DrainAll({0, 1, 2}, InTime())) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(ReferenceCallTest, LateRepliesAndCancelledRequestsAreDeclined) {
  std::atomic<int> made{0};
  Handle("make", [&](int self, Payload, ReplyFunction reply) {
    reply(With(Remote(self, 2, "echo")));
    ++made;
  });
  StartWorkers(3);
  HoldBack(Kind::kRegistered, 2);
  // The reply waits for the confirmation of its reference.
  const Pending reply = Start(0, 1, "make", Values(""));
  while (made == 0) std::this_thread::yield();
  ExpectWorks(0, 1);
  EXPECT_EQ(engines_[0]->references().ToString(), "");
  const Pending late = Start(0, 1, "make", Values(""), {.timeout = kSoon});
  EXPECT_THAT(late.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  // The request waits at its receiver.
  Service::Handle handle = Remote(0, 0, "echo");
  LetGo();
  HoldBack(Kind::kRegistered, 0);
  const Pending call = Start(0, 1, "echo", With(handle), {.timeout = kSoon});
  EXPECT_THAT(call.Wait(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpectNoTransfer(0);
  handle.reset();
  LetGo();
  EXPECT_THAT(reply.Wait(), IsOk());
  reply.Forget();
  ExpectNothingLeft({0, 1, 2});
}

TEST_F(ReferenceCallTest, ASenderThatDiesBeforeTheReceiverIsListed) {
  StartWorkers(3);
  Service::Handle handle = Remote(0, 1, "echo");
  HoldBack(Kind::kRegister, 2);
  std::atomic<int> runs{0};
  Handle("give", [&](int, Payload, ReplyFunction reply) {
    ++runs;
    reply(Values(""));
  });
  const Pending call = Start(0, 2, "give", With(handle));
  ExpectWorks(0, 2);
  network_->Kill(0);
  // The owner has released it when the receiver asks.
  ExpectNothingLeft({1});
  LetGo();
  ExpectNothingLeft({2});
  EXPECT_EQ(runs, 0);
  engines_[0]->FailAll(absl::CancelledError("killed"));
  EXPECT_THAT(call.Wait(), Not(IsOk()));
}

TEST_F(ReferenceCallTest, ACreationOutlivesItsCreatorAndFailsWithItsOwner) {
  ReplyFunction later;
  absl::Notification begun;
  Handle("later", [&](int, Payload, ReplyFunction reply) {
    later = std::move(reply);
    begun.Notify();
  });
  StartWorkers(4);
  Service::Handle handle = Remote(0, 1, "later");
  Handle("give",
         [&](int, Payload, ReplyFunction reply) { reply(With(handle)); });
  const absl::StatusOr<Payload> given = Call(2, 0, "give", Values(""));
  ASSERT_THAT(given, IsOk());
  const auto held =
      std::static_pointer_cast<ReferenceHandle>(given->references_keep[0]);
  begun.WaitForNotification();
  network_->Kill(0);
  while (engines_[1]->references().Create(0).ok()) std::this_thread::yield();
  later(Values("still here"));
  EXPECT_THAT(Value(held), IsOkAndHolds("still here"));
  network_->Kill(1);
  absl::Status gone = absl::OkStatus();
  while (gone.ok()) gone = Value(held).status();
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(FailedRank(gone), 1);
  absl::Status lost = absl::OkStatus();
  while (lost.ok()) lost = engines_[2]->references().Create(1).status();
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(FailedRank(lost), 1);
}

TEST_F(ReferenceCallTest, AnInvalidMessageClosesItsConnectionOnly) {
  StartWorkers(5);
  Payload payload = Values("");
  payload.references = {{.owner = 77, .creator = 1, .number = 1}};
  const RequestHeader header = {
      .call = 5, .method = "echo", .signature = kSignature};
  EXPECT_THAT(network_->Inject(
                  1, 0, *EncodeRequest(header, payload, 1, nullptr, {}), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected workers from 0 to 4")));
  const auto say = [&](int from, const ReferenceMessage& message) {
    return network_->Inject(from, 0, EncodeReferenceMessages({message}), 0);
  };
  EXPECT_THAT(say(2, {Kind::kCreate, {0, 2, 1}, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("created without a call")));
  EXPECT_THAT(say(3, {Kind::kRegister, {1, 2, 1}, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(say(4, {Kind::kAccepted, {}, 12}), IsOk());
  ExpectWorks(0, 4);
  ExpectNothingLeft({0});
}

TEST_F(ReferenceCallTest, AnUnsentMessageIsAnErrorAndTheNextCallRetries) {
  StartWorkers(3);
  Service::Handle handle = Remote(0, 1, "echo");
  EXPECT_THAT(Value(handle), IsOkAndHolds("made"));
  const auto unsent = StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("no descriptors"));
  // The receiver cannot ask the owner.
  HoldBack(Kind::kRegister, 2, FakeNetwork::Fate::kUnsent);
  EXPECT_THAT(Call(0, 2, "echo", With(handle)), unsent);
  LetGo();
  EXPECT_THAT(Call(0, 2, "echo", With(handle)), IsOk());
  // The call itself, and a creation.
  network_->SetFilter([](int from, int to, absl::string_view) {
    return from == 0 && to == 2 ? FakeNetwork::Fate::kUnsent
                                : FakeNetwork::Fate::kDeliver;
  });
  EXPECT_THAT(Call(0, 2, "echo", With(handle)), unsent);
  EXPECT_THAT(Call(0, 2, "echo", Values("", {Sequence(9)})), unsent);
  Service::Handle made = Remote(0, 2, "echo");
  EXPECT_THAT(Value(made), unsent);
  network_->SetFilter(nullptr);
  made.reset();
  handle.reset();
  ExpectNothingLeft({0, 1, 2});
  for (const auto& [rank, status] : DrainAll({0, 1, 2}, InTime())) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(ReferenceCallTest, ACreationWhoseDeadlinePassesWhileItIsSentIsLate) {
  ReplyFunction later;
  Handle("later",
         [&](int, Payload, ReplyFunction reply) { later = std::move(reply); });
  StartWorkers(2);
  network_->SetFilter([&](int from, int, absl::string_view) {
    while (from == 0 && !engines_[0]->CallsUnderWay().empty()) {
      std::this_thread::yield();
    }
    return FakeNetwork::Fate::kDeliver;
  });
  const Service::Handle handle = Remote(0, 1, "later", {.timeout = kSoon});
  network_->SetFilter(nullptr);
  EXPECT_THAT(Value(handle), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReferenceCallTest, AnAbandonedFetchOfAValueNeverSetLeavesNothing) {
  ReplyFunction later;
  absl::Notification begun;
  Handle("later", [&](int, Payload, ReplyFunction reply) {
    later = std::move(reply);
    begun.Notify();
  });
  StartWorkers(2);
  Service::Handle handle = Remote(0, 1, "later");
  begun.WaitForNotification();
  const auto fetch = [&](CallOptions options = {}) {
    Pending pending;
    last_call_ = engines_[0]->Start(1, kFetchMethod, kFetchSignature,
                                    With(handle), options, pending.function());
    return pending;
  };
  // As the owner counts: each reader is a handle there.
  const ReferenceService& owner = engines_[1]->references();
  const auto await_readers = [&](int count) {
    const std::string text = absl::StrCat("held by ", count, " handles");
    const Deadline deadline = InTime();
    const auto there = [&] {
      const std::string all = owner.ToString();
      return absl::StrContains(all, text) ||
             (count == 0 && !absl::StrContains(all, " held by "));
    };
    while (!there() && !deadline.HasPassed()) std::this_thread::yield();
    EXPECT_TRUE(there()) << owner.ToString();
  };
  const Pending first = fetch();
  await_readers(1);
  const Pending cancelled = fetch();
  await_readers(2);
  engines_[0]->Cancel(last_call_);
  await_readers(1);
  EXPECT_THAT(fetch({.timeout = kSoon}).Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  await_readers(1);
  EXPECT_FALSE(first.done());
  later(Values("made"));
  EXPECT_THAT(first.Wait(), IsOk());
  await_readers(0);
  handle.reset();
  ExpectNothingLeft({0, 1});
  // The owner itself, which keeps a handle of its own.
  handle = Remote(1, 1, "wait");
  EXPECT_THAT(handle->service().Fetch(handle, kSoon),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  await_readers(1);
}

TEST_F(ReferenceCallTest, CloseReleasesValuesThatOthersHold) {
  StartWorkers(2);
  const Service::Handle handle = Remote(0, 1, "echo");
  EXPECT_THAT(Value(handle), IsOkAndHolds("made"));
  EXPECT_NE(engines_[1]->references().ToString(), "");
  EXPECT_THAT(engines_[1]->Close(InTime()), IsOk());
  EXPECT_EQ(engines_[1]->references().ToString(), "");
}

TEST_F(ReferenceCallTest, AfterReleaseAllEachUseIsAnErrorThatNamesIt) {
  StartWorkers(2);
  const Service::Handle handle = Remote(0, 1, "echo");
  EXPECT_THAT(Value(handle), IsOkAndHolds("made"));
  engines_[0]->references().ReleaseAll();
  EXPECT_THAT(Value(handle), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("reference 1:0:1")));
  EXPECT_THAT(Call(0, 1, "echo", With(handle)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("reference 1:0:1")));
  EXPECT_THAT(engines_[0]->references().Create(1),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ExpectNothingLeft({0, 1});
}

TEST_F(CallEngineTest, DrainWaitsForNestedCallsThatBeginMeanwhile) {
  std::atomic<int> steps{0};
  Handle("chain", [&](int self, Payload request, ReplyFunction reply) {
    int depth = 0;
    ASSERT_TRUE(absl::SimpleAtoi(request.values, &depth));
    go_.WaitForNotification();
    ++steps;
    if (depth > 0) {
      // Only the drain waits for it.
      engines_[self]->Start((self + 1) % 3, "chain", kSignature,
                            Values(absl::StrCat(depth - 1)), {},
                            [](const absl::StatusOr<Payload>&) {});
    }
    reply(Values(""));
  });
  StartWorkers(3);
  const Pending first = Start(0, 1, "chain", Values("40"));
  std::thread release([&] { go_.Notify(); });
  const std::map<int, absl::Status> outcomes = DrainAll({0, 1, 2}, InTime());
  EXPECT_EQ(steps, 41);
  for (const auto& [rank, status] : outcomes) EXPECT_THAT(status, IsOk());
  release.join();
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(engines_[2]->Drain(InTime()), IsOk());
}

TEST_F(CallEngineTest, DrainNamesTheDeadAndItsDeadlineTheMissing) {
  StartWorkers(4);
  ExpectWorks(0, 2);
  const std::map<int, absl::Status> late =
      DrainAll({0, 1, 2}, Deadline::After(kSoon));
  EXPECT_THAT(late.at(0), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                   HasSubstr("worker3 (rank 3)")));
  for (const int r : {1, 2}) EXPECT_THAT(late.at(r), Not(IsOk()));
}

TEST_F(CallEngineTest, DrainEndsWithoutTheDead) {
  StartWorkers(4);
  const Pending running = Start(3, 0, "wait", Values(""));
  const Pending other = Start(1, 3, "wait", Values(""));
  AwaitWaiting(2);
  std::thread killer([&] { network_->Kill(0); });
  std::thread second([&] { network_->Kill(3); });
  const std::map<int, absl::Status> outcomes = DrainAll({1, 2}, InTime());
  killer.join();
  second.join();
  for (const auto& [rank, status] : outcomes) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr("worker0 (rank 0)"),
                                       HasSubstr("worker3 (rank 3)"))));
  }
  EXPECT_THAT(other.Wait(), Not(IsOk()));
  go_.Notify();
  engines_[3]->FailAll(absl::CancelledError("killed"));
  EXPECT_THAT(running.Wait(), Not(IsOk()));
}

TEST_F(CallEngineTest, CloseFailsWhatIsUnderWayAndRefusesMore) {
  StartWorkers(2);
  const Pending pending = Start(0, 1, "wait", Values(""));
  const Pending own = Start(0, 0, "wait", Values(""));
  AwaitWaiting(2);
  EXPECT_THAT(engines_[0]->Close(InTime()), IsOk());
  EXPECT_THAT(pending.Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(own.Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Call(0, 1, "echo", Values("")),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace sherd::internal
