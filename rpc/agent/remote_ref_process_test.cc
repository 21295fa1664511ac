// References between workers that are processes, some of which are killed.

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;

constexpr char kWorker[] = "remote_ref_process_test worker";
constexpr int kWorkers = 3;
constexpr absl::Duration kLong = absl::Seconds(60);

using Ref = RemoteRef<Tensor>;

// The callee keeps the reference, or releases it.
struct Hold {
  static constexpr absl::string_view kName = "hold";
  using Signature = absl::Status(const Ref&);
};
struct ReadHeld {
  static constexpr absl::string_view kName = "read_held";
  using Signature = absl::StatusOr<Tensor>();
};
// The callee has worker `owner` make a value, and returns the reference.
struct Make {
  static constexpr absl::string_view kName = "make";
  using Signature = absl::StatusOr<Ref>(int32_t owner);
};
struct Ones {
  static constexpr absl::string_view kName = "ones";
  using Signature = absl::StatusOr<Tensor>();
};

void RegisterHandlers() {
  static absl::Mutex& mutex = *new absl::Mutex();
  static Ref& held = *new Ref();
  RegisterHandler<Hold>([](const Ref& ref) {
    // The previous one is released without the lock.
    const Ref before = [&] {
      absl::MutexLock lock(&mutex);
      return std::exchange(held, ref);
    }();
    return absl::OkStatus();
  });
  RegisterHandler<ReadHeld>([]() -> absl::StatusOr<Tensor> {
    const Ref ref = [] {
      absl::MutexLock lock(&mutex);
      return held;
    }();
    return ref.ToHere();
  });
  RegisterHandler<Make>([](int32_t owner) -> absl::StatusOr<Ref> {
    const auto agent = DefaultRpcAgent();
    if (!agent.ok()) return agent.status();
    return (*agent)->Remote<Ones>(owner);
  });
  RegisterHandler<Ones>([] { return Tensor::Ones({5}, {}); });
}

absl::StatusOr<std::shared_ptr<RpcAgent>> Start(int rank,
                                                const std::string& path) {
  RegisterHandlers();
  RpcOptions options;
  options.rank = rank;
  options.world_size = kWorkers;
  options.init_method = absl::StrCat("file://", path);
  return InitRpc(options);
}

// This process is worker 0, the others run in processes of their own.
class RemoteRefProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A worker that was killed while it met the others leaves its part of the
    // file: no two tests, nor two runs of one, have the same.
    static int number = 0;
    path_ = absl::StrCat(::testing::TempDir(), "/references-", getpid(), "-",
                         ++number);
    for (int rank = 1; rank < kWorkers; ++rank) {
      absl::StatusOr<Subprocess> process =
          Subprocess::Start({.program = "/proc/self/exe",
                             .arguments = {kWorker, absl::StrCat(rank), path_},
                             .environment = OwnEnvironment()});
      ASSERT_THAT(process, IsOk());
      workers_.push_back(*std::move(process));
    }
    absl::StatusOr<std::shared_ptr<RpcAgent>> agent = Start(0, path_);
    ASSERT_THAT(agent, IsOk());
    agent_ = *std::move(agent);
  }
  void TearDown() override {
    for (Subprocess& worker : workers_) worker.Signal(SIGKILL);
    if (agent_ != nullptr) {
      EXPECT_THAT(agent_->Shutdown({.graceful = false}), IsOk());
    }
    // Not before: another worker may still be reading it.
    unlink(path_.c_str());
  }

  void Kill(int rank) { workers_[rank - 1].Signal(SIGKILL); }
  void AwaitNothing() {
    const absl::Time end = absl::Now() + kLong;
    while (!agent_->DescribeReferences().empty() && absl::Now() < end) {
      std::this_thread::yield();
    }
    EXPECT_EQ(agent_->DescribeReferences(), "");
  }

  std::string path_;
  std::vector<Subprocess> workers_;
  std::shared_ptr<RpcAgent> agent_;
};

TEST_F(RemoteRefProcessTest, AValueIsReleasedWithItsLastHolderEvenIfThatDies) {
  Tensor value = *Tensor::Ones({100}, {});
  const std::weak_ptr<Storage> watched = value.storage();
  {
    const absl::StatusOr<Ref> ref = agent_->Share(value);
    ASSERT_THAT(ref, IsOk());
    ASSERT_THAT(agent_->Call<Hold>(1, *ref), IsOk());
    ASSERT_THAT(agent_->Call<Hold>(2, *ref), IsOk());
  }
  value = Tensor();
  ASSERT_THAT(agent_->Call<Hold>(1, Ref()), IsOk());
  EXPECT_THAT(agent_->Call<ReadHeld>(2),
              IsOkAndHolds(TensorEq(Tensor::Ones({100}, {}))));
  EXPECT_FALSE(watched.expired());
  Kill(2);
  AwaitNothing();
  EXPECT_TRUE(watched.expired());
}

TEST_F(RemoteRefProcessTest, AValueIsLostWithItsOwnerForAllHolders) {
  const absl::StatusOr<Ref> ref = agent_->Call<Make>(2, 1);
  ASSERT_THAT(ref, IsOk());
  ASSERT_THAT(agent_->Call<Hold>(2, *ref), IsOk());
  EXPECT_THAT(ref->ToHere(), IsOk());
  Kill(1);
  absl::Status gone = absl::OkStatus();
  while (gone.ok()) gone = ref->ToHere().status();
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
  EXPECT_EQ(FailedRank(gone), 1);
  // Now it is known.
  EXPECT_THAT(ref->ToHere(),
              StatusIs(absl::StatusCode::kUnavailable, "worker1"));
  absl::Status there = absl::OkStatus();
  while (there.ok()) there = agent_->Call<ReadHeld>(2).status();
  EXPECT_THAT(there, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
  EXPECT_EQ(FailedRank(there), 1);
  EXPECT_THAT(agent_->Call<Hold>(2, *ref),
              StatusIs(absl::StatusCode::kUnavailable, "worker1"));
}

TEST_F(RemoteRefProcessTest, AValueOutlivesItsCreator) {
  const absl::StatusOr<Ref> ref = agent_->Call<Make>(1, 2);
  ASSERT_THAT(ref, IsOk());
  EXPECT_EQ(ref->owner_name(), "worker2");
  // TearDown kills worker 2, which is reported after the end of this body.
  const auto lost = std::make_shared<absl::Notification>();
  agent_->OnWorkerLost([lost](int worker, const absl::Status&) {
    if (worker == 1) lost->Notify();
  });
  Kill(1);
  lost->WaitForNotification();
  EXPECT_THAT(ref->ToHere(), IsOkAndHolds(TensorEq(Tensor::Ones({5}, {}))));
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  int rank;
  if (argc == 3 && absl::string_view(argv[0]) == sherd::kWorker &&
      absl::SimpleAtoi(argv[1], &rank)) {
    const auto agent = sherd::Start(rank, argv[2]);
    if (!agent.ok()) {
      fprintf(stderr, "%s\n", agent.status().ToString().c_str());
      return 1;
    }
    for (;;) pause();
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
