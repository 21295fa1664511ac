// Mistakes of callers, handlers and strangers: an error names the call and the
// worker, and the other workers continue.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/socket.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kProtocol[] = "sherd-rpc 1";

struct Echo {
  static constexpr absl::string_view kName = "echo";
  using Signature = absl::StatusOr<Tensor>(const Tensor&);
};
// The signature in an older build.
struct OldEcho {
  static constexpr absl::string_view kName = "echo";
  using Signature = absl::StatusOr<Tensor>(const Tensor&, int64_t);
};
struct Unknown {
  static constexpr absl::string_view kName = "unknown";
  using Signature = absl::Status();
};
struct Fail {
  static constexpr absl::string_view kName = "fail";
  using Signature = absl::Status();
};
struct Throw {
  static constexpr absl::string_view kName = "throw";
  using Signature = absl::Status();
};
struct Forget {
  static constexpr absl::string_view kName = "forget";
  using Signature = absl::StatusOr<int64_t>();
};
struct Hang {
  static constexpr absl::string_view kName = "hang";
  using Signature = absl::Status();
};
struct Grow {
  static constexpr absl::string_view kName = "grow";
  using Signature = absl::StatusOr<Tensor>(int64_t);
};

class BadInputTest : public ::testing::Test {
 protected:
  BadInputTest() {
    RegisterHandler<Echo>(
        [](const Tensor& x) -> absl::StatusOr<Tensor> { return x; });
    RegisterHandler<Fail>(
        [] { return absl::Status(absl::DataLossError("broken disk")); });
    RegisterHandler<Throw>(
        []() -> absl::Status { throw std::runtime_error("thrown"); });
    RegisterHandler<Forget>([] { return Promise<int64_t>().future(); });
    RegisterHandler<Hang>([this] {
      hangs_.Notify();
      go_on_.WaitForNotification();
      saw_cancellation_ = CallContext::Current()->cancelled();
      return absl::OkStatus();
    });
    RegisterHandler<Grow>([](int64_t size) { return Tensor::Zeros({size}); });
  }

  RpcOptions Options(int rank, int size) {
    RpcOptions options;
    options.rank = rank;
    options.world_size = size;
    options.store = store_;
    options.workers_are_threads = true;
    options.transports = {"unix"};
    return options;
  }

  // Workers on threads; `body` is worker 0's. Afterwards all workers still
  // reach one another, and none is lost.
  void Run(const std::function<void(RpcAgent&)>& body,
           const std::function<void(RpcOptions&)>& edit = nullptr) {
    constexpr int kWorkers = 3;
    std::atomic<int> losses{0};
    absl::Notification done;
    RunRankThreads(kWorkers, [&](int rank) {
      RpcOptions options = Options(rank, kWorkers);
      if (edit) edit(options);
      const auto agent = InitRpc(options);
      ASSERT_THAT(agent, IsOk());
      (*agent)->OnWorkerLost([&](int, const absl::Status&) { ++losses; });
      if (rank == 0) {
        body(**agent);
        done.Notify();
      }
      done.WaitForNotification();
      for (int r = 0; r < kWorkers; ++r) {
        EXPECT_THAT((*agent)->Call<Echo>(r, x_), IsOkAndHolds(TensorEq(x_)));
      }
      for (const WorkerStatistics& worker : (*agent)->Statistics()) {
        EXPECT_EQ(worker.outstanding, 0) << worker.name;
      }
      EXPECT_THAT((*agent)->Shutdown(), IsOk());
    });
    EXPECT_EQ(losses, 0);
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  const std::shared_ptr<Store> twins_ = std::make_shared<HashStore>();
  const Tensor x_ = *Tensor::FromSpan<float>({1, 2, 3}, {3});
  absl::Notification hangs_;
  absl::Notification go_on_;
  std::atomic<bool> saw_cancellation_{false};
};

TEST_F(BadInputTest, ErrorsNameTheCallAndTheWorker) {
  Run([&](RpcAgent& agent) {
    const absl::string_view on1 = "on worker1 (rank 1): ";
    const auto ends = [&](const absl::Status& status, absl::StatusCode code,
                          const std::string& call, absl::string_view why) {
      EXPECT_THAT(
          status,
          StatusIs(code, AllOf(HasSubstr(absl::StrCat("of ", call, " ", on1)),
                               HasSubstr(std::string(why)))));
      EXPECT_EQ(ErrorRank(status), 1) << status;
    };
    ends(agent.Call<Unknown>(1), absl::StatusCode::kNotFound, "unknown",
         "call RegisterHandler there (it has: echo, ");
    ends(agent.Call<OldEcho>(1, x_, 1).status(),
         absl::StatusCode::kFailedPrecondition, "echo",
         "expected the signature echo(tensor)->tensor");
    ends(agent.Call<Fail>(1), absl::StatusCode::kDataLoss, "fail",
         "broken disk");
    ends(agent.Call<Throw>(1), absl::StatusCode::kInternal, "throw", "thrown");
    ends(agent.Call<Forget>(1).status(), absl::StatusCode::kInternal, "forget",
         "");
    Tensor out = *Tensor::Zeros({4}, {});
    ends(agent.Call<Echo>(To{.worker = 1, .out = {out}}, x_).status(),
         absl::StatusCode::kInvalidArgument, "echo", "[4]");
    EXPECT_THAT(out, TensorEq(*Tensor::Zeros({4}, {})));
    for (const absl::string_view name : {"worker3", "", "WORKER1"}) {
      EXPECT_THAT(agent.Call<Fail>(std::string(name)),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           absl::StrCat("call of fail: Invalid worker name '",
                                        name, "'")));
    }
    for (const int rank : {-1, 3}) {
      EXPECT_THAT(agent.Call<Fail>(rank),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           absl::StrCat("call of fail: worker ", rank,
                                        " does not exist")));
    }
  });
}

TEST_F(BadInputTest, OversizedValuesAreRefusedAtBothEnds) {
  Run(
      [&](RpcAgent& agent) {
        const Tensor large = *Tensor::Zeros({1025}, {});
        EXPECT_THAT(agent.Call<Echo>(1, large),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr("of echo on worker1 (rank 1): "),
                                   HasSubstr("4096"))));
        const absl::Status result = agent.Call<Grow>(1, 1025).status();
        EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                     "of grow on worker1 (rank 1): "));
        EXPECT_EQ(ErrorRank(result), 1);
        EXPECT_THAT(agent.Call<Grow>(1, 1024), IsOk());
      },
      [](RpcOptions& options) { options.max_message_bytes = 4096; });
}

TEST_F(BadInputTest, AHandlerThatNeverReturnsCostsItsCallerTheDeadlineOnly) {
  Run([&](RpcAgent& agent) {
    const absl::Status status =
        agent.Call<Hang>(To{.worker = 1, .timeout = absl::Milliseconds(200)});
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         "of hang on worker1 (rank 1): no reply within 200ms"));
    EXPECT_EQ(ErrorRank(status), 1);
    EXPECT_THAT(agent.Call<Echo>(1, x_), IsOk());
    hangs_.WaitForNotification();
    go_on_.Notify();
  });
  EXPECT_TRUE(saw_cancellation_);
}

TEST_F(BadInputTest, AShutdownDoesNotWaitForAHandlerThatNeverReturns) {
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2));
    ASSERT_THAT(agent, IsOk());
    Future<void> hanging(absl::OkStatus());
    if (rank == 0) hanging = (*agent)->CallAsync<Hang>(1);
    hangs_.WaitForNotification();
    const absl::Status status =
        (*agent)->Shutdown({.timeout = absl::Milliseconds(300)});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                StartsWith("RPC shutdown: drain: "));
    if (rank == 0) {
      EXPECT_THAT(hanging.Wait(), ::testing::Not(IsOk()));
      go_on_.Notify();
    }
  });
}

TEST_F(BadInputTest, WithoutDescriptorsCallsFailByNameAndRecover) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  absl::Notification called;
  // The limit is the process's.
  absl::BlockingCounter starting(3);
  RunRankThreads(3, [&](int rank) {
    RpcOptions options = Options(rank, 3);
    // Connecting is tried again for so long.
    options.heartbeat_interval = absl::Milliseconds(100);
    options.heartbeat_timeout = absl::Seconds(2);
    const auto agent = InitRpc(options);
    starting.DecrementCount();
    ASSERT_THAT(agent, IsOk());
    if (rank == 1) {
      starting.Wait();
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
      const absl::Status status = (*agent)->Call<Echo>(2, x_).status();
      // Over an existing connection.
      EXPECT_THAT((*agent)->Call<Echo>(0, x_), IsOk());
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   "of echo on worker2 (rank 2): "));
      EXPECT_EQ(ErrorRank(status), 2);
      EXPECT_THAT((*agent)->Call<Echo>(2, x_), IsOkAndHolds(TensorEq(x_)));
      called.Notify();
    }
    called.WaitForNotification();
    EXPECT_THAT((*agent)->Shutdown(), IsOk());
  });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto agent = InitRpc(Options(0, 1));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(agent, StatusIs(absl::StatusCode::kResourceExhausted,
                              "RPC worker of rank 0: "));
}

TEST_F(BadInputTest, MissingWorkersAndDuplicateNamesAreNamed) {
  RpcOptions alone = Options(0, 3);
  alone.timeout = absl::Milliseconds(50);
  EXPECT_THAT(InitRpc(alone), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                       AllOf(HasSubstr("RPC worker of rank 0"),
                                             HasSubstr("1"), HasSubstr("2"))));
  RunRankThreads(2, [&](int rank) {
    RpcOptions options = Options(rank, 2);
    options.store = twins_;
    options.name = "twin";
    EXPECT_THAT(
        InitRpc(options),
        StatusIs(absl::StatusCode::kAlreadyExists,
                 "RPC worker name twin is not unique: ranks 0 and 1 have it"));
  });
}

// A program that found an address.
class StrangersTest : public BadInputTest,
                      public ::testing::WithParamInterface<std::string> {
 protected:
  static DialOptions Address(const RpcAgent& agent, const std::string& secret) {
    const std::string address = agent.Addresses().at(0);
    DialOptions where = {.host = address,
                         .protocol = kProtocol,
                         .secret = secret,
                         .deadline = Deadline::After(absl::Seconds(60))};
    if (address[0] == '@') return where;
    const absl::StatusOr<HostPort> tcp = ParseHostPort(address);
    EXPECT_THAT(tcp, IsOk());
    where.host = tcp->host;
    where.port = tcp->port;
    return where;
  }

  // After the handshake.
  static UniqueFd Connect(const RpcAgent& agent) {
    absl::StatusOr<UniqueFd> socket = Dial(Address(agent, ""));
    EXPECT_THAT(socket, IsOk());
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }

  // Before the handshake.
  static UniqueFd ConnectRaw(const RpcAgent& agent) {
    const DialOptions where = Address(agent, "");
    const auto addresses = SocketAddress::Resolve(where.host, where.port);
    EXPECT_THAT(addresses, IsOk());
    absl::StatusOr<UniqueFd> socket =
        ConnectSocket(addresses->front(), where.deadline);
    EXPECT_THAT(socket, IsOk());
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }

  // The other end closes, whatever it sends before.
  static bool IsClosed(const UniqueFd& socket) {
    char byte;
    absl::Status status;
    while (status.ok()) {
      status = ReceiveFully(socket.get(), &byte, 1,
                            Deadline::After(absl::Seconds(60)));
    }
    return !absl::IsDeadlineExceeded(status);
  }

  void RunOver(const std::function<void(RpcAgent&)>& body) {
    Run(body, [](RpcOptions& options) { options.transports = {GetParam()}; });
  }
};

TEST_P(StrangersTest, AnAnnouncementOverTheLimitClosesTheConnection) {
  RunOver([](RpcAgent& agent) {
    const Deadline deadline = Deadline::After(absl::Seconds(60));
    constexpr uint64_t kHuge = uint64_t{1} << 60;
    for (const std::string& header :
         {TailFrameHeader(16, kHuge), TailFrameHeader(0xfffffff0, 0),
          TailFrameHeader(0xfffffff0, kHuge)}) {
      const UniqueFd behind = Connect(agent);
      EXPECT_THAT(SendFully(behind.get(), header, deadline), IsOk());
      EXPECT_TRUE(IsClosed(behind));
      const UniqueFd before = ConnectRaw(agent);
      // As long as the expected frame.
      EXPECT_THAT(
          SendFully(before.get(), absl::StrCat(header, std::string(500, '\0')),
                    deadline),
          IsOk());
      EXPECT_TRUE(IsClosed(before));
    }
  });
}

TEST_P(StrangersTest, RandomBytesAndSilentConnectionsDisturbNoWorker) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  RunOver([&](RpcAgent& agent) {
    std::mt19937 random(seed);
    std::vector<UniqueFd> kept;
    for (int i = 0; i < 40; ++i) {
      UniqueFd socket = i % 2 == 0 ? Connect(agent) : ConnectRaw(agent);
      std::string noise(i % 4 < 2 ? 0 : 1 + random() % 600, '\0');
      for (char& c : noise) c = static_cast<char>(random());
      SendFully(socket.get(), noise, Deadline::After(absl::Seconds(60)))
          .IgnoreError();
      // Some stay, and some close in the middle of a frame.
      if (i % 3 != 0) kept.push_back(std::move(socket));
    }
    EXPECT_THAT(agent.Call<Echo>(1, *Tensor::Zeros({3})), IsOk());
  });
}

TEST_P(StrangersTest, AnotherSecretIsRefusedWithTheReason) {
  RunOver([](RpcAgent& agent) {
    const absl::Status status = Dial(Address(agent, "a guess")).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kPermissionDenied,
                         "the client has a shared secret and the server "
                         "has none"));
  });
}

TEST_P(StrangersTest, AnotherUsersProcessIsRefusedAtAUnixSocket) {
  if (GetParam() != "unix") GTEST_SKIP() << "TCP has no users, but a secret";
  bool may = false;
  RunOver([&](RpcAgent& agent) {
    absl::Status status;
    std::thread([&] {
      // The system call changes this thread only. Where root has no other
      // users, as in most sandboxes, it fails.
      may = geteuid() == 0 && syscall(SYS_setresuid, -1, 65534, -1) == 0;
      if (may) status = Dial(Address(agent, "")).status();
    }).join();
    if (!may) return;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied,
                                 agent.Addresses().at(0)));
  });
  if (!may) GTEST_SKIP() << "only root of all users can act as another user";
}

INSTANTIATE_TEST_SUITE_P(Transports, StrangersTest,
                         ::testing::Values("unix", "tcp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sherd
