#include "sherd/rpc/handler.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/call_context_control.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/sample_values.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/future.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::internal::CallContextControl;
using ::sherd::internal::FindHandler;
using ::sherd::internal::FindHandlerFor;
using ::sherd::internal::MethodCodec;
using ::sherd::internal::Payload;
using ::sherd::internal::RawHandler;
using ::sherd::internal::SignatureOf;
using ::sherd::internal::TestRef;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

// Methods of one signature, one for each test:
// StatusOr<std::string>(const std::string&, int).
template <int kNumber>
struct Repeat {
  static constexpr char kText[] = {'r', 'e', 'p',           'e',
                                   'a', 't', 'a' + kNumber, 0};
  static constexpr absl::string_view kName = kText;
  using Signature = absl::StatusOr<std::string>(const std::string&, int);
};
struct Check {
  static constexpr absl::string_view kName = "check";
  using Signature = absl::Status(int);
};

// The reply to a request, and how many there were.
struct Reply {
  std::optional<absl::StatusOr<Payload>> outcome;
  int count = 0;
};

std::shared_ptr<Reply> Ask(const RawHandler& handler, Payload request) {
  auto reply = std::make_shared<Reply>();
  handler.run(std::move(request), [reply](absl::StatusOr<Payload> outcome) {
    reply->outcome = std::move(outcome);
    ++reply->count;
  });
  return reply;
}

// Calls M as a worker of the same build would.
template <typename M, typename... Args>
typename MethodCodec<typename M::Signature>::Result Call(Args&&... args) {
  using Codec = MethodCodec<typename M::Signature>;
  absl::StatusOr<Payload> request =
      Codec::Encode(M::kName, std::forward<Args>(args)...);
  if (!request.ok()) return request.status();
  const auto handler =
      FindHandlerFor(M::kName, SignatureOf<M>().hash, "worker1");
  if (!handler.ok()) return handler.status();
  const std::shared_ptr<Reply> reply = Ask(**handler, *std::move(request));
  EXPECT_EQ(reply->count, 1);
  return internal::DecodeResult<typename Codec::Value>(
      M::kName, *std::move(reply->outcome));
}

absl::StatusOr<std::string> Repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

TEST(HandlerTest, RunsRegisteredHandlers) {
  RegisterHandler<Repeat<0>>(Repeated);
  EXPECT_THAT(Call<Repeat<0>>("ab", 3), IsOkAndHolds("ababab"));
  RegisterHandler<Check>([](int code) {
    return code == 0 ? absl::OkStatus() : absl::AbortedError("as asked");
  });
  EXPECT_THAT(Call<Check>(0), IsOk());
  EXPECT_THAT(Call<Check>(1), StatusIs(absl::StatusCode::kAborted, "as asked"));
}

TEST(HandlerTest, NamesTheMissingHandlerAndItsWorker) {
  RegisterHandler<Repeat<0>>(Repeated);
  EXPECT_EQ(FindHandler("nobody"), nullptr);
  EXPECT_THAT(FindHandlerFor("nobody", 1, "worker7"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"nobody\""), HasSubstr("on worker7"),
                             HasSubstr("repeata"))));
  // A name from a peer is printed as one line and not in full.
  const std::string hostile = "\n\x1b[31m" + std::string(100000, 'x');
  EXPECT_THAT(FindHandlerFor(hostile, 1, "worker7"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(Not(HasSubstr("\n")), Not(HasSubstr("\x1b")),
                             ::testing::SizeIs(::testing::Lt(1500)))));
}

TEST(HandlerTest, NamesTheOtherSignatureAndItsWorker) {
  RegisterHandler<Repeat<0>>(Repeated);
  EXPECT_THAT(
      FindHandlerFor("repeata", 0x123, "worker7"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("repeata(string,i32)->string"),
                     HasSubstr("on worker7"), HasSubstr("0000000000000123"))));
}

TEST(HandlerTest, ErrorsOfArgumentsDoNotReachTheFunction) {
  bool ran = false;
  RegisterHandler<Repeat<1>>(
      [&](const std::string& text, int) -> absl::StatusOr<std::string> {
        ran = true;
        return text;
      });
  const std::shared_ptr<Reply> reply =
      Ask(*FindHandler("repeatb"), Payload{.values = "\1\0\0\0"});
  EXPECT_EQ(reply->count, 1);
  EXPECT_THAT(*reply->outcome,
              StatusIs(absl::StatusCode::kDataLoss, "repeatb: argument 1: "));
  EXPECT_FALSE(ran);
}

TEST(HandlerTest, ResultsThatCannotTravelAreErrors) {
  RegisterHandler<Repeat<2>>(Repeated);
  EXPECT_THAT(
      Call<Repeat<2>>(std::string(1 << 20, 'x'), 3),
      StatusIs(absl::StatusCode::kInvalidArgument, "repeatc: result: "));
}

TEST(HandlerTest, AnExceptionOfAHandlerIsAnError) {
  RegisterHandler<Repeat<3>>(
      [](const std::string& text, int what) -> absl::StatusOr<std::string> {
        if (what == 0) throw std::runtime_error(text);
        if (what == 1) throw 7;
        return text;
      });
  EXPECT_THAT(Call<Repeat<3>>("broken\n", 0),
              StatusIs(kInternal, AllOf(HasSubstr("repeatd: "),
                                        HasSubstr("\"broken\\n\""))));
  EXPECT_THAT(Call<Repeat<3>>("", 1),
              StatusIs(kInternal, "repeatd: the handler threw an object"));
  EXPECT_THAT(Call<Repeat<3>>("fine", 2), IsOkAndHolds("fine"));
}

// Which function of the type throws.
enum class Throws { kNone, kMaking, kWriting, kReading };
struct Thrower {
  static Throws& when() {
    static Throws when = Throws::kNone;
    return when;
  }
  static auto Fields(const Thrower& self) {
    if (when() == Throws::kWriting) throw std::runtime_error("writing");
    return std::tie(self.number);
  }
  static auto Fields(Thrower& self) {
    if (when() == Throws::kReading) throw std::runtime_error("reading");
    return std::tie(self.number);
  }
  Thrower() {
    if (when() == Throws::kMaking) throw std::runtime_error("making");
  }
  int number = 0;
};
struct Pass {
  static constexpr absl::string_view kName = "pass";
  using Signature = absl::StatusOr<Thrower>(const Thrower&);
};

TEST(HandlerTest, AnExceptionOfATypeNamesItsArgument) {
  using Codec = MethodCodec<Pass::Signature>;
  Throws then = Throws::kNone;
  RegisterHandler<Pass>([&](const Thrower& thrower) {
    Thrower result = thrower;
    Thrower::when() = then;
    return Future<Thrower>(result);
  });
  const auto handler = FindHandler("pass");
  const Payload good = Codec::Encode("pass", Thrower()).value();
  Thrower::when() = Throws::kReading;
  EXPECT_THAT(*Ask(*handler, good)->outcome,
              StatusIs(kInternal,
                       "pass: argument 1: its type threw "
                       "\"reading\""));
  Thrower::when() = Throws::kNone;
  then = Throws::kWriting;
  EXPECT_THAT(*Ask(*handler, good)->outcome,
              StatusIs(kInternal,
                       "pass: result: its type threw "
                       "\"writing\""));
  Thrower::when() = Throws::kNone;
  const Thrower argument;
  Thrower::when() = Throws::kWriting;
  EXPECT_THAT(Codec::Encode("pass", argument),
              StatusIs(kInternal, "pass: argument 1: its type threw"));
  for (const Throws when : {Throws::kMaking, Throws::kReading}) {
    Thrower::when() = when;
    EXPECT_THAT(internal::DecodeResult<Thrower>("pass", good),
                StatusIs(kInternal, "pass: result: its type threw"));
  }
  Thrower::when() = Throws::kNone;
  UnregisterHandler<Pass>();
}

TEST(HandlerTest, AFutureRepliesWhenItIsReady) {
  Promise<std::string> promise;
  const std::string* seen = nullptr;
  RegisterHandler<Repeat<4>>([&](const std::string& text, int what) {
    if (what == 1) throw std::runtime_error("before there is a future");
    seen = &text;
    return promise.future();
  });
  const auto handler = FindHandler("repeate");
  using Codec = MethodCodec<Repeat<4>::Signature>;
  const std::string text(100, 'x');
  const std::shared_ptr<Reply> reply =
      Ask(*handler, Codec::Encode("repeate", text, 0).value());
  EXPECT_EQ(reply->count, 0);
  ASSERT_NE(seen, nullptr);
  // Arguments are there as long as the result is not.
  EXPECT_EQ(*seen, text);
  std::thread([&] { promise.Set(*seen + "y"); }).join();
  EXPECT_EQ(reply->count, 1);
  EXPECT_THAT(internal::DecodeResult<std::string>("repeate", *reply->outcome),
              IsOkAndHolds(text + "y"));
  EXPECT_THAT(Call<Repeat<4>>("", 1), StatusIs(kInternal, "before there is"));
  // A promise that is never set.
  promise = Promise<std::string>();
  const std::shared_ptr<Reply> broken =
      Ask(*handler, Codec::Encode("repeate", text, 0).value());
  promise = Promise<std::string>();
  EXPECT_EQ(broken->count, 1);
  EXPECT_THAT(*broken->outcome, StatusIs(kInternal, "Promise"));
}

struct Hold {
  static constexpr absl::string_view kName = "hold";
  using Signature = absl::Status(const TestRef<int>&);
};

TEST(HandlerTest, AFutureReleasesItsArgumentsInTheEnd) {
  Promise<void> promise;
  RegisterHandler<Hold>([&](const TestRef<int>&) { return promise.future(); });
  auto handle = std::make_shared<int>(0);
  Payload request = MethodCodec<Hold::Signature>::Encode(
                        "hold", TestRef<int>{{1, 1, 1}, handle})
                        .value();
  const std::shared_ptr<Reply> reply =
      Ask(*FindHandler("hold"), std::move(request));
  EXPECT_EQ(handle.use_count(), 2);
  promise.Set(absl::OkStatus());
  EXPECT_EQ(reply->count, 1);
  EXPECT_EQ(handle.use_count(), 1);
  UnregisterHandler<Hold>();
}

TEST(HandlerTest, ACancelledCallIsDroppedThoughItsFutureStays) {
  // Others wait for it too.
  Promise<void> promise;
  const TestRef<int>* seen = nullptr;
  RegisterHandler<Hold>([&](const TestRef<int>& ref) {
    seen = &ref;
    return promise.future();
  });
  auto handle = std::make_shared<int>(0);
  const auto ask = [&](std::shared_ptr<CallContext> context) {
    const ScopedCallContext scope(std::move(context));
    return Ask(*FindHandler("hold"),
               MethodCodec<Hold::Signature>::Encode(
                   "hold", TestRef<int>{{1, 1, 1}, handle})
                   .value());
  };
  const auto context = [] {
    return std::make_shared<CallContext>(0, 1, "hold", Deadline::Infinite());
  };
  std::shared_ptr<CallContext> cancelled = context();
  const std::shared_ptr<Reply> first = ask(cancelled);
  EXPECT_EQ(handle.use_count(), 2);
  CallContextControl::Cancel(*cancelled);
  // Code that continues elsewhere holds the context.
  EXPECT_EQ(handle.use_count(), 2);
  EXPECT_EQ(seen->keep, handle);
  cancelled.reset();
  EXPECT_EQ(handle.use_count(), 1);
  const std::shared_ptr<Reply> second = ask(context());
  EXPECT_EQ(handle.use_count(), 2);
  const std::shared_ptr<CallContext> before = context();
  CallContextControl::Cancel(*before);
  const std::shared_ptr<Reply> third = ask(before);
  // Once there is an answer, the context keeps no arguments.
  const std::shared_ptr<CallContext> answered = context();
  const std::weak_ptr<int> held = [&] {
    auto own = std::make_shared<int>(0);
    const ScopedCallContext scope(answered);
    Ask(*FindHandler("hold"), MethodCodec<Hold::Signature>::Encode(
                                  "hold", TestRef<int>{{1, 1, 1}, own})
                                  .value());
    return std::weak_ptr<int>(own);
  }();
  EXPECT_FALSE(promise.future().Ready());
  promise.Set(absl::OkStatus());
  EXPECT_EQ(first->count, 0);
  EXPECT_EQ(second->count, 1);
  EXPECT_EQ(third->count, 0);
  EXPECT_FALSE(held.expired());
  CallContextControl::MarkAnswered(*answered);
  EXPECT_TRUE(held.expired());
  UnregisterHandler<Hold>();
}

TEST(HandlerTest, RegisteringAgainReplacesAndRunningCallsFinish) {
  const auto answer = [](std::string text) {
    return [text](const std::string&, int) -> absl::StatusOr<std::string> {
      return text;
    };
  };
  const auto captured = std::make_shared<int>(0);
  RegisterHandler<Repeat<5>>(
      [captured](const std::string&, int) -> absl::StatusOr<std::string> {
        return "old";
      });
  std::shared_ptr<const RawHandler> running = FindHandler("repeatf");
  RegisterHandler<Repeat<5>>(answer("new"));
  EXPECT_THAT(Call<Repeat<5>>("", 0), IsOkAndHolds("new"));
  const std::shared_ptr<Reply> reply = Ask(
      *running, MethodCodec<Repeat<5>::Signature>::Encode("f", "", 0).value());
  EXPECT_THAT(internal::DecodeResult<std::string>("f", *reply->outcome),
              IsOkAndHolds("old"));
  EXPECT_EQ(captured.use_count(), 2);
  running.reset();
  EXPECT_EQ(captured.use_count(), 1);
  EXPECT_TRUE(UnregisterHandler<Repeat<5>>());
  EXPECT_FALSE(UnregisterHandler<Repeat<5>>());
  EXPECT_THAT(Call<Repeat<5>>("", 0), StatusIs(absl::StatusCode::kNotFound));
}

// Two methods of one name, as two libraries might have.
namespace one {
struct Method {
  static constexpr absl::string_view kName = "method";
  using Signature = absl::Status();
};
}  // namespace one
namespace two {
struct Method {
  static constexpr absl::string_view kName = "method";
  using Signature = absl::Status();
};
}  // namespace two
TEST(HandlerDeathTest, ANameBelongsToOneMethod) {
  const auto ok = [] { return absl::OkStatus(); };
  RegisterHandler<one::Method>(ok);
  EXPECT_FALSE(UnregisterHandler<two::Method>());
  EXPECT_THAT(Call<one::Method>(), IsOk());
  EXPECT_DEATH(RegisterHandler<two::Method>(ok), "two methods are named");
  EXPECT_TRUE(UnregisterHandler<one::Method>());
  RegisterHandler<two::Method>(ok);
  EXPECT_THAT(Call<two::Method>(), IsOk());
  UnregisterHandler<two::Method>();
}

TEST(HandlerTest, MayBeUsedByManyThreads) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  const auto answer = [](std::string text) {
    return [text](const std::string&, int) -> absl::StatusOr<std::string> {
      return text;
    };
  };
  RegisterHandler<Repeat<6>>(answer("first"));
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        if (t == 0) RegisterHandler<Repeat<6>>(answer(i % 2 ? "a" : "first"));
        if (t == 1) RegisterHandler<Repeat<7>>(answer("other"));
        if (t == 1) UnregisterHandler<Repeat<7>>();
        const absl::StatusOr<std::string> got = Call<Repeat<6>>("", 0);
        if (!got.ok() || (*got != "first" && *got != "a")) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Errors that the reference finds when it calls, the compiler finds here.
using Text = absl::StatusOr<std::string>;
template <typename F>
concept IsHandler = RpcHandler<F, Repeat<0>>;
static_assert(IsHandler<Text (*)(const std::string&, int)>);
static_assert(IsHandler<Text (*)(std::string, const int&)>);
static_assert(IsHandler<Future<std::string> (*)(const std::string&, int)>);
static_assert(IsHandler<std::function<Text(const std::string&, int)>>);
// Too few, too many, others, converted ones.
static_assert(!IsHandler<Text (*)(const std::string&)>);
static_assert(!IsHandler<Text (*)(const std::string&, int, int)>);
static_assert(!IsHandler<Text (*)(int, const std::string&)>);
static_assert(!IsHandler<Text (*)(const std::string&, double)>);
static_assert(!IsHandler<Text (*)(absl::string_view, int)>);
static_assert(!IsHandler<Text (*)(std::string&, int)>);
// Another result.
static_assert(!IsHandler<std::string (*)(const std::string&, int)>);
static_assert(!IsHandler<absl::Status (*)(const std::string&, int)>);
static_assert(!IsHandler<Future<int> (*)(const std::string&, int)>);
static_assert(!IsHandler<Future<void> (*)(const std::string&, int)>);
static_assert(!IsHandler<void (*)(const std::string&, int)>);
static_assert(!IsHandler<int>);
static_assert(RpcHandler<Future<void> (*)(int), Check>);
static_assert(!RpcHandler<absl::StatusOr<int> (*)(int), Check>);

struct WithoutStatus {
  static constexpr absl::string_view kName = "without_status";
  using Signature = int(int);
};
struct WithPointer {
  static constexpr absl::string_view kName = "with_pointer";
  using Signature = absl::Status(const int*);
};
struct WithoutName {
  using Signature = absl::Status(int);
};
struct LongName {
  static constexpr char kText[] =
      "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
      "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn";
  static constexpr absl::string_view kName = kText;
  using Signature = absl::Status();
};
struct NoName {
  static constexpr absl::string_view kName = "";
  using Signature = absl::Status();
};
struct NoConstant {
  static inline const std::string kName = "no_constant";
  using Signature = absl::Status();
};
static_assert(LongName::kName.size() == 129 && !RpcMethod<LongName>);
static_assert(!RpcMethod<NoName> && !RpcMethod<NoConstant>);
static_assert(RpcMethod<Check> && RpcMethod<Repeat<0>>);
static_assert(!RpcMethod<WithoutStatus> && !WithoutStatus::kName.empty());
static_assert(!RpcMethod<WithPointer> && !WithPointer::kName.empty());
static_assert(!RpcMethod<WithoutName> && !RpcMethod<int>);

template <typename M, typename F>
concept CanRegister = requires(F f) {
  RegisterHandler<M>(f);
};
static_assert(CanRegister<Check, absl::Status (*)(int)>);
static_assert(!CanRegister<Check, absl::Status (*)(double)>);
static_assert(!CanRegister<WithPointer, absl::Status (*)(const int*)>);

}  // namespace
}  // namespace sherd
