// Calls whose tensors are read in the memory of the worker that sends them.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/call_engine.h"
#include "sherd/rpc/engine/wire_double.h"
#include "sherd/rpc/transfer/exposures.h"
#include "sherd/rpc/transfer/tensor_source.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSignature = 7;
constexpr absl::Duration kSoon = absl::Milliseconds(30);
// Floats, more than fit in a message.
constexpr int64_t kLarge = 40000;

Deadline InTime() { return Deadline::After(absl::Minutes(2)); }

Allocator& AllocatorFor(MemoryPath path) {
  if (path != MemoryPath::kShm) return HeapAllocator();
  return *BackendRegistry::Global()
              .Find("shm")
              .value()
              ->peer_memory_allocator();
}

// 0, 1, 2, …
Tensor Sequence(absl::Span<const int64_t> sizes,
                MemoryPath path = MemoryPath::kNone) {
  Tensor tensor = *Tensor::Empty(sizes, {.allocator = &AllocatorFor(path)});
  float* const values = tensor.mutable_data_as<float>();
  std::iota(values, values + tensor.numel(), 0.0f);
  return tensor;
}

Payload Tensors(std::vector<Tensor> tensors) {
  Payload payload;
  payload.tensors = std::move(tensors);
  return payload;
}

class MemoryCallsTest : public ::testing::Test {
 protected:
  using Result = absl::StatusOr<Payload>;
  struct Pending {
    absl::Notification ended;
    Result result;
  };

  ~MemoryCallsTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
    network_->Stop();
    for (const auto& engine : engines_) {
      EXPECT_THAT(engine->Close(InTime()), IsOk());
    }
  }

  // Starts three workers; the handlers: "echo"; "give" answers with `given_`;
  // "hold" keeps its thread, and "later" its call, until go_.
  void StartWorkers(MemoryPathSet paths, CallEngineOptions options = {}) {
    options.world_size = 3;
    options.memory_paths = paths;
    options.find_handler = [this](absl::string_view name, uint64_t,
                                  absl::string_view)
        -> absl::StatusOr<std::shared_ptr<const RawHandler>> {
      auto handler = std::make_shared<RawHandler>();
      handler->run = [this, method = std::string(name)](Payload request,
                                                        ReplyFunction reply) {
        if (method == "hold") {
          holding_.Notify();
          go_.WaitForNotification();
        }
        if (method == "later") {
          later_ = std::move(reply);
          // An earlier call may have held its thread.
          if (!holding_.HasBeenNotified()) holding_.Notify();
          return;
        }
        reply(method == "give" ? Tensors(given_) : std::move(request));
      };
      return handler;
    };
    network_ = std::make_unique<FakeNetwork>(3, /*seed=*/1);
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      engines_.push_back(std::make_unique<CallEngine>(options));
      network_->Connect(options.rank, engines_.back().get());
      engines_.back()->Attach(network_->wire(options.rank));
    }
    // They exchange probes with their first call.
    for (const int to : {1, 2}) ASSERT_THAT(Call(0, to, "echo", {}), IsOk());
    for (const int from : {1, 2}) {
      ASSERT_THAT(Call(from, 0, "echo", {}), IsOk());
    }
  }

  std::shared_ptr<Pending> Start(int from, int to, absl::string_view method,
                                 Payload request, CallOptions options = {}) {
    auto pending = std::make_shared<Pending>();
    call_ = engines_[from]->Start(to, method, kSignature, std::move(request),
                                  options, [pending](Result result) {
                                    pending->result = std::move(result);
                                    pending->ended.Notify();
                                  });
    return pending;
  }
  Result Call(int from, int to, absl::string_view method, Payload request,
              CallOptions options = {}) {
    const auto pending = Start(from, to, method, std::move(request), options);
    pending->ended.WaitForNotification();
    return pending->result;
  }
  // Statistics of worker `at` about worker 1 or 0.
  WorkerStatistics Read(int at) const {
    return engines_[at]->Statistics()[at == 0 ? 1 : 0];
  }

  std::vector<Tensor> given_;
  ReplyFunction later_;
  absl::Notification holding_, go_;
  std::unique_ptr<FakeNetwork> network_;
  std::vector<std::unique_ptr<CallEngine>> engines_;
  std::atomic<uint64_t> call_{0};
};

struct PathCase {
  MemoryPath path;
  MemoryPathSet paths;
};

std::string NameOf(const ::testing::TestParamInfo<PathCase>& info) {
  constexpr const char* kNames[] = {"Socket", "Thread", "Shm", "Cma"};
  return kNames[static_cast<int>(info.param.path)];
}

class EachPathTest : public MemoryCallsTest,
                     public ::testing::WithParamInterface<PathCase> {
 protected:
  MemoryPath path() const { return GetParam().path; }
  uint64_t ReadByPath(int at) const {
    const WorkerStatistics read = Read(at);
    const uint64_t all =
        read.bytes_by_thread + read.bytes_by_shm + read.bytes_by_cma;
    const uint64_t bytes = path() == MemoryPath::kThread ? read.bytes_by_thread
                           : path() == MemoryPath::kShm  ? read.bytes_by_shm
                           : path() == MemoryPath::kCma  ? read.bytes_by_cma
                                                         : 0;
    EXPECT_EQ(bytes, all);
    return bytes;
  }
};

INSTANTIATE_TEST_SUITE_P(
    All, EachPathTest,
    ::testing::Values(PathCase{MemoryPath::kNone, {}},
                      PathCase{MemoryPath::kThread, {.thread = true}},
                      PathCase{MemoryPath::kShm, {.shm = true}},
                      PathCase{MemoryPath::kCma, {.cma = true}}),
    NameOf);

TEST_P(EachPathTest, TensorsOfAnyLayoutArriveBothWays) {
  StartWorkers(GetParam().paths);
  const Tensor whole = Sequence({300, 200}, path());
  const Tensor grid = Sequence({40, 50, 60}, path());
  const std::vector<Tensor> tensors = {
      whole,
      *whole.Transpose(0, 1),
      *whole.Narrow({7, 20}, {290, 150}),
      *grid.Narrow({1, 2, 3}, {30, 40, 50}),
      *grid.Select(2, 5),
      Tensor(),
      *Tensor::Scalar<int64_t>(42),
      *Tensor::Zeros({3, 0, 2}),
  };
  // The scalar is not in shared memory; then nothing is read there.
  const bool is_read = path() != MemoryPath::kNone;
  std::vector<Tensor> sent = tensors;
  if (path() == MemoryPath::kShm) sent[6] = Sequence({}, path());
  const Result result = Call(0, 1, "echo", Tensors(sent));
  ASSERT_THAT(result, IsOk());
  ASSERT_EQ(result->tensors.size(), sent.size());
  uint64_t bytes = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(result->tensors[i].defined(), sent[i].defined());
    if (!sent[i].defined()) continue;
    bytes += static_cast<uint64_t>(sent[i].nbytes());
    EXPECT_EQ(result->tensors[i].sizes(), sent[i].sizes());
    if (sent[i].numel() == 0) continue;
    EXPECT_TRUE(result->tensors[i].BitwiseEqual(sent[i])) << i;
    EXPECT_NE(result->tensors[i].storage(), sent[i].storage());
  }
  EXPECT_EQ(ReadByPath(1), is_read ? bytes : 0);
  // The tensor that the callee received is in its heap, which shm does not
  // reach.
  EXPECT_EQ(ReadByPath(0), is_read && path() != MemoryPath::kShm ? bytes : 0);
}

TEST_F(MemoryCallsTest, AProbeThatCannotBeSentIsSentAgain) {
  StartWorkers({.thread = true});
  network_->SetFilter([](int from, int to, absl::string_view) {
    return from == 1 && to == 2 ? FakeNetwork::Fate::kUnsent
                                : FakeNetwork::Fate::kDeliver;
  });
  EXPECT_THAT(Call(1, 2, "echo", {}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  network_->SetFilter(nullptr);
  EXPECT_THAT(Call(1, 2, "echo", {}), IsOk());
  const Tensor tensor = Sequence({300, 200}, MemoryPath::kThread);
  EXPECT_THAT(Call(1, 2, "echo", Tensors({tensor})), IsOk());
  EXPECT_EQ(engines_[2]->Statistics()[1].bytes_by_thread,
            static_cast<uint64_t>(tensor.nbytes()));
}

TEST_P(EachPathTest, SmallTensorsAreInTheMessage) {
  StartWorkers(GetParam().paths);
  given_ = {Sequence({100}, path()), Sequence({16000}, path())};
  const Result result = Call(0, 1, "give", {});
  ASSERT_THAT(result, IsOk());
  EXPECT_TRUE(result->tensors[1].BitwiseEqual(given_[1]));
  EXPECT_EQ(ReadByPath(0), 0);
}

TEST_P(EachPathTest, ResultsLandInOut) {
  StartWorkers(GetParam().paths);
  const Tensor source = Sequence({100, 600}, path());
  given_ = {source, *source.Narrow({0, 100}, {100, 400}),
            *source.Narrow(1, 0, 2), source};
  Tensor dense = *Tensor::Zeros({100, 600});
  Tensor rows = *Tensor::Zeros({200, 400});
  Tensor columns = *Tensor::Zeros({100, 8});
  const Tensor every_second = *rows.Reshape({100, 2, 400})->Select(1, 1);
  const Tensor two_columns = *columns.Narrow(1, 3, 2);
  const Result result = Call(
      0, 1, "give", {}, {.out = {dense, every_second, two_columns, Tensor()}});
  ASSERT_THAT(result, IsOk());
  for (const size_t i : {0, 1, 2, 3}) {
    EXPECT_TRUE(result->tensors[i].BitwiseEqual(given_[i])) << i;
  }
  EXPECT_EQ(result->tensors[0].data(), dense.data());
  EXPECT_TRUE(every_second.BitwiseEqual(given_[1]));
  EXPECT_TRUE(two_columns.BitwiseEqual(given_[2]));
  // Nothing is written around the requested elements.
  EXPECT_TRUE(rows.Reshape({100, 2, 400})
                  ->Select(1, 0)
                  ->BitwiseEqual(*Tensor::Zeros({100, 400})));
  EXPECT_TRUE(columns.Narrow(1, 5, 3)->BitwiseEqual(*Tensor::Zeros({100, 3})));
  EXPECT_TRUE(columns.Narrow(1, 0, 3)->BitwiseEqual(*Tensor::Zeros({100, 3})));
}

TEST_P(EachPathTest, ManyAtOnceStayWithinTheBoundAndLeaveNothing) {
  StartWorkers(GetParam().paths, {.max_unsent_bytes = 500000});
  std::vector<std::weak_ptr<Storage>> storages;
  {
    std::vector<std::shared_ptr<Pending>> calls;
    for (int i = 0; i < 40; ++i) {
      const Tensor tensor = Sequence({kLarge + i}, path());
      storages.push_back(tensor.storage());
      calls.push_back(Start(i % 2, 1 - i % 2, "echo", Tensors({tensor})));
    }
    for (int i = 0; i < 40; ++i) {
      calls[i]->ended.WaitForNotification();
      ASSERT_THAT(calls[i]->result, IsOk());
      EXPECT_TRUE(
          calls[i]->result->tensors[0].BitwiseEqual(Sequence({kLarge + i})));
    }
  }
  for (const auto& storage : storages) {
    while (!storage.expired()) std::this_thread::yield();
  }
}

TEST_P(EachPathTest, ALostReceiverReadsNoMore) {
  StartWorkers(GetParam().paths);
  network_->SetFilter([&](int, int to, absl::string_view) {
    return to == 2 ? FakeNetwork::Fate::kLose : FakeNetwork::Fate::kDeliver;
  });
  std::weak_ptr<Storage> storage;
  std::shared_ptr<Pending> call;
  {
    const Tensor tensor = Sequence({kLarge}, path());
    storage = tensor.storage();
    call = Start(0, 2, "echo", Tensors({tensor}));
  }
  EXPECT_EQ(storage.expired(), path() == MemoryPath::kNone);
  network_->Kill(2);
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("worker2 (rank 2)")));
  while (!storage.expired()) std::this_thread::yield();
  EXPECT_THAT(Call(0, 1, "echo", Tensors({Sequence({kLarge})})), IsOk());
}

// Of the paths of memory alone.
class UnreadTest : public EachPathTest {
 protected:
  // A call to worker 1 whose result has arrived, but is not read: worker 0 has
  // no thread to read with until go_.
  std::shared_ptr<Pending> StartUnread(CallOptions options) {
    StartWorkers(GetParam().paths, {.pool = {.concurrency = 1,
                                             .max_threads = 1,
                                             .stall = absl::Hours(1)}});
    Start(0, 0, "hold", {});
    holding_.WaitForNotification();
    given_ = {Sequence({kLarge}, path())};
    storage_ = given_[0].storage();
    auto call = Start(0, 1, "give", {}, std::move(options));
    const uint64_t id = call_;
    // Its reply arrives after the other one.
    EXPECT_THAT(Call(0, 1, "echo", {}), IsOk());
    given_.clear();
    call_ = id;
    return call;
  }

  std::weak_ptr<Storage> storage_;
};

INSTANTIATE_TEST_SUITE_P(
    All, UnreadTest,
    ::testing::Values(PathCase{MemoryPath::kThread, {.thread = true}},
                      PathCase{MemoryPath::kShm, {.shm = true}},
                      PathCase{MemoryPath::kCma, {.cma = true}}),
    NameOf);

// Tensors count until their reader has reported that it read them.
TEST_P(UnreadTest, UnreadTensorsDelayLaterMessages) {
  StartWorkers(GetParam().paths, {.max_unsent_bytes = 200000});
  std::atomic<int> requests{0};
  network_->SetFilter([&](int from, int, absl::string_view control) {
    const absl::StatusOr<CallHeader> header = DecodeCallMessage(control, 0, {});
    if (header.ok() && from == 0 &&
        std::holds_alternative<RequestHeader>(*header)) {
      ++requests;
    }
    return header.ok() && std::holds_alternative<TransferReadHeader>(*header)
               ? FakeNetwork::Fate::kHold
               : FakeNetwork::Fate::kDeliver;
  });
  std::weak_ptr<Storage> storage;
  {
    const Tensor tensor = Sequence({kLarge}, path());
    storage = tensor.storage();
    ASSERT_THAT(Call(0, 1, "give", Tensors({tensor})), IsOk());
  }
  EXPECT_FALSE(storage.expired());
  const auto second =
      Start(0, 1, "give", Tensors({Sequence({kLarge}, path())}));
  EXPECT_EQ(requests, 1);
  EXPECT_THAT(Call(0, 1, "give", {}), IsOk());
  EXPECT_EQ(requests, 2);
  network_->SetFilter(nullptr);
  network_->ReleaseHeld();
  second->ended.WaitForNotification();
  EXPECT_THAT(second->result, IsOk());
  while (!storage.expired()) std::this_thread::yield();
}

TEST_P(UnreadTest, ACancelledCallEndsOnceOutIsAtRest) {
  const Tensor out = *Tensor::Zeros({kLarge});
  const auto call = StartUnread({.timeout = absl::Hours(1), .out = {out}});
  engines_[0]->Cancel(call_);
  EXPECT_FALSE(call->ended.HasBeenNotified());
  EXPECT_FALSE(storage_.expired());
  go_.Notify();
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(out.BitwiseEqual(Sequence({kLarge})));
  while (!storage_.expired()) std::this_thread::yield();
}

TEST_P(UnreadTest, ACallWithoutOutEndsAtItsDeadlineAndItsResultIsReleased) {
  const auto call = StartUnread({.timeout = kSoon});
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, StatusIs(absl::StatusCode::kDeadlineExceeded));
  go_.Notify();
  while (!storage_.expired()) std::this_thread::yield();
}

TEST_P(UnreadTest, TensorsOfALostWorkerAreNotTakenForAResult) {
  const Tensor out = *Tensor::Zeros({kLarge});
  const auto call = StartUnread({.timeout = absl::Hours(1), .out = {out}});
  const auto other = Start(0, 1, "later", {}, {.timeout = absl::Hours(1)});
  network_->Kill(1);
  other->ended.WaitForNotification();
  // A dead worker sends nothing, but as a worker of this process it still runs.
  EXPECT_THAT(engines_[1]->Close(InTime()), IsOk());
  while (!storage_.expired()) std::this_thread::yield();
  go_.Notify();
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("worker1 (rank 1)")));
}

TEST_P(UnreadTest, AWithdrawnTensorIsAnError) {
  const auto call = StartUnread({.timeout = absl::Hours(1)});
  // Worker 0 is not notified.
  EXPECT_THAT(engines_[1]->Close(InTime()), IsOk());
  while (!storage_.expired()) std::this_thread::yield();
  go_.Notify();
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, StatusIs(absl::StatusCode::kInvalidArgument));
}

// Falsified replies of worker 1.
class HostileMemoryTest : public MemoryCallsTest {
 protected:
  Result Answer(const Exposure& exposure, absl::Span<const int64_t> sizes) {
    const auto call = Start(0, 1, "later", {}, {.timeout = absl::Hours(1)});
    const uint64_t id = call_;
    holding_.WaitForNotification();
    Payload reply = Tensors({*Tensor::Empty(sizes, {.device = "meta"})});
    injected_ =
        network_->Inject(1, 0, *EncodeReply(id, reply, 0, &exposure, {}),
                         /*tail_bytes=*/0);
    call->ended.WaitForNotification();
    return call->result;
  }
  static Exposure At(MemoryPath path, uint64_t place, Dims strides = {1}) {
    Exposure exposure;
    exposure.transfer = 77;
    exposure.sources = {
        {.path = path, .place = {place}, .strides = std::move(strides)}};
    return exposure;
  }

  absl::Status injected_;
};

TEST_F(HostileMemoryTest, AnUnmappedAddressIsAnErrorOfTheCall) {
  StartWorkers({.cma = true});
  EXPECT_THAT(Answer(At(MemoryPath::kCma, 8), {kLarge}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("of later on worker1 (rank 1)"),
                             HasSubstr("in the memory of worker1 (rank 1)"),
                             HasSubstr("not in its memory"))));
  EXPECT_THAT(injected_, IsOk());
  EXPECT_THAT(Call(0, 1, "echo", {}), IsOk());
}

TEST_F(HostileMemoryTest, StridesThatLeadElsewhereAreAnErrorOfTheCall) {
  StartWorkers({.cma = true});
  const Tensor tensor = Sequence({2, 100});
  EXPECT_THAT(
      Answer(At(MemoryPath::kCma,
                reinterpret_cast<uintptr_t>(std::as_const(tensor).data()),
                {int64_t{1} << 61, 1}),
             {2, 100}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HostileMemoryTest, ScatteredElementsAreRefused) {
  StartWorkers({.cma = true});
  const Tensor tensor = Sequence({200});
  EXPECT_THAT(
      Answer(At(MemoryPath::kCma,
                reinterpret_cast<uintptr_t>(std::as_const(tensor).data()), {2}),
             {100}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HostileMemoryTest, AnInventedHandleIsAnErrorOfTheCall) {
  StartWorkers({.shm = true});
  EXPECT_THAT(Answer(At(MemoryPath::kShm, 8), {kLarge}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HostileMemoryTest, AnUnknownTransferIsAnErrorOfTheCall) {
  StartWorkers({.thread = true});
  EXPECT_THAT(Answer(At(MemoryPath::kThread, 0), {kLarge}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HostileMemoryTest, APathThatWasNotAgreedOnIsAnErrorOfTheCall) {
  StartWorkers({.shm = true});
  const Tensor tensor = Sequence({kLarge});
  EXPECT_THAT(Answer(At(MemoryPath::kCma, reinterpret_cast<uintptr_t>(
                                              std::as_const(tensor).data())),
                     {kLarge}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HostileMemoryTest, TooManyBytesCloseTheConnection) {
  StartWorkers({.cma = true});
  EXPECT_THAT(Answer(At(MemoryPath::kCma, 8), {int64_t{1} << 58}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(injected_, StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("17179869184")));
  EXPECT_THAT(Call(0, 2, "echo", {}), IsOk());
}

TEST_F(HostileMemoryTest, ASecondIntroductionClosesTheConnection) {
  StartWorkers({.cma = true});
  EXPECT_THAT(network_->Inject(1, 0, EncodeMemoryProbe({}), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("for a second time")));
}

// The end of a transfer that never began, or that is another worker's.
TEST_F(HostileMemoryTest, ATransferOfAnotherWorkerCannotBeReleased) {
  StartWorkers({.cma = true});
  network_->SetFilter([](int, int to, absl::string_view) {
    return to == 2 ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  });
  const Tensor tensor = Sequence({kLarge});
  const std::weak_ptr<Storage> storage = tensor.storage();
  const auto call = Start(0, 2, "echo", Tensors({tensor}));
  for (uint64_t transfer = 0; transfer < 10; ++transfer) {
    EXPECT_THAT(network_->Inject(1, 0, EncodeTransferRead(transfer), 0),
                IsOk());
  }
  EXPECT_FALSE(storage.expired());
  network_->SetFilter(nullptr);
  network_->ReleaseHeld();
  call->ended.WaitForNotification();
  EXPECT_THAT(call->result, IsOk());
}

}  // namespace
}  // namespace sherd::internal
