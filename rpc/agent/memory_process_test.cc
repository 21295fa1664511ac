// Workers that are processes, and read tensors in each other's memory.

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kWorker[] = "memory_process_test worker";
constexpr int64_t kRows = 1000;
constexpr int64_t kColumns = 3000;

// 0, 1, 2, … in shared memory if `transports` has it.
Tensor Grid(absl::string_view transports) {
  Allocator* allocator = &HeapAllocator();
  if (absl::StrContains(transports, "shm")) {
    allocator =
        BackendRegistry::Global().Find("shm").value()->peer_memory_allocator();
  }
  Tensor tensor = *Tensor::Empty({kRows, kColumns}, {.allocator = allocator});
  float* const values = tensor.mutable_data_as<float>();
  std::iota(values, values + tensor.numel(), 0.0f);
  return tensor;
}

FetchRequest Request(std::optional<Box> box = std::nullopt, Tensor out = {}) {
  return {.publication = {"test", 0},
          .fingerprint = 1,
          .box = std::move(box),
          .out = std::move(out)};
}

absl::StatusOr<std::shared_ptr<RpcAgent>> Join(int rank,
                                               const std::string& file,
                                               absl::string_view transports,
                                               const Tensor& grid) {
  auto agent = InitRpc({.rank = rank,
                        .world_size = 2,
                        .init_method = absl::StrCat("file://", file),
                        .transports = absl::StrSplit(transports, ',')});
  if (!agent.ok()) return agent;
  const absl::Status status = (*agent)->Publish(
      {.id = {"test", 0}, .fingerprint = 1, .shards = {grid}});
  if (!status.ok()) return status;
  return agent;
}

// Publishes a grid, reads that of rank 0 if asked to, and runs until it is
// killed.
int RunWorker(char** arguments) {
  const auto agent = Join(1, arguments[1], arguments[2], Grid(arguments[2]));
  printf("%s\n", agent.status().ToString().c_str());
  fflush(stdout);
  while (agent.ok() && absl::string_view(arguments[3]) == "reads") {
    const auto fetched = (*agent)->Fetch(0, Request());
    printf("%s\n", fetched.status().ToString().c_str());
    fflush(stdout);
  }
  for (;;) pause();
}

class MemoryProcessTest : public ::testing::Test {
 protected:
  ~MemoryProcessTest() override {
    // The other worker never says goodbye.
    if (agent_ != nullptr) {
      agent_->Shutdown({.graceful = false}).IgnoreError();
    }
  }

  // In another process and here; the other one "waits" or "reads", as `does`
  // says.
  void StartWorkers(const std::string& transports, const std::string& does) {
    static int next_file = 0;
    const std::string file = absl::StrCat(::testing::TempDir(), "/memory-",
                                          getpid(), "-", next_file++);
    absl::StatusOr<Pipe> pipe = MakePipe();
    ASSERT_THAT(pipe, IsOk());
    absl::StatusOr<Subprocess> process =
        Subprocess::Start({.program = "/proc/self/exe",
                           .arguments = {kWorker, file, transports, does},
                           .environment = OwnEnvironment(),
                           .output_fd = pipe->write.get()});
    ASSERT_THAT(process, IsOk());
    process_ = std::make_unique<Subprocess>(*std::move(process));
    output_ = std::move(pipe->read);
    const Tensor grid = Grid(transports);
    published_ = grid.storage();
    auto agent = Join(0, file, transports, grid);
    ASSERT_THAT(agent, IsOk());
    agent_ = *std::move(agent);
    ASSERT_EQ(ReadLine(), "OK");
    unlink(file.c_str());
  }

  std::string ReadLine() {
    std::string line;
    char c;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }

  // The workers exchange probes with the first call.
  void Introduce() {
    ASSERT_THAT(agent_->Fetch(1, Request(Box{{0, 0}, {1, 1}})), IsOk());
  }

  std::unique_ptr<Subprocess> process_;
  UniqueFd output_;
  std::shared_ptr<RpcAgent> agent_;
  // The storage of this worker's publication.
  std::weak_ptr<Storage> published_;
};

class FetchByPathTest : public MemoryProcessTest,
                        public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, FetchByPathTest,
                         ::testing::Values("unix", "unix,shm", "unix,cma",
                                           "tcp,cma", "tcp,shm", "unix,thread"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{",", "_"}});
                         });

TEST_P(FetchByPathTest, BoxesLandWhereTheyAreWanted) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(GetParam(), "waits"));
  Introduce();
  const Tensor grid = Grid("");
  uint64_t bytes = 0;
  for (const Box& box :
       {Box{{0, 0}, {kRows, kColumns}}, Box{{500, 100}, {300, 2000}},
        Box{{0, 2000}, {kRows, 20}}, Box{{0, 7}, {kRows, 100}}}) {
    const Tensor expected = *grid.Narrow(box.offsets, box.sizes);
    const auto fetched = agent_->Fetch(1, Request(box));
    ASSERT_THAT(fetched, IsOk());
    EXPECT_TRUE(fetched->BitwiseEqual(expected));
    Tensor around = *Tensor::Zeros({box.sizes[0], 2, box.sizes[1]});
    const Tensor out = *around.Select(1, 1);
    ASSERT_THAT(agent_->Fetch(1, Request(box, out)), IsOk());
    EXPECT_TRUE(out.BitwiseEqual(expected));
    EXPECT_TRUE(around.Select(1, 0)->BitwiseEqual(*Tensor::Zeros(box.sizes)));
    bytes += 2 * static_cast<uint64_t>(expected.nbytes());
  }
  const WorkerStatistics statistics = agent_->Statistics()[1];
  const absl::string_view path = GetParam();
  EXPECT_EQ(statistics.bytes_by_shm,
            absl::StrContains(path, "shm") ? bytes : 0);
  EXPECT_EQ(statistics.bytes_by_cma,
            absl::StrContains(path, "cma") ? bytes : 0);
  EXPECT_EQ(statistics.bytes_by_thread, 0);
  EXPECT_GE(statistics.bytes_received, bytes);
}

// At whichever point it dies, the fetch ends with the right elements or with an
// error that names it.
TEST_P(FetchByPathTest, AnOwnerThatIsKilledIsNamed) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(GetParam(), "waits"));
  Introduce();
  const Tensor grid = Grid("");
  Tensor out = *Tensor::Zeros({kRows, kColumns});
  absl::Status status = agent_->Fetch(1, Request(std::nullopt, out)).status();
  ASSERT_THAT(status, IsOk());
  std::thread killer([&] { process_->Signal(SIGKILL); });
  while (status.ok()) {
    status = agent_->Fetch(1, Request(std::nullopt, out)).status();
    if (status.ok()) {
      EXPECT_TRUE(out.BitwiseEqual(grid));
    }
  }
  killer.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("worker1 (rank 1)")));
  EXPECT_EQ(FailedRank(status), 1);
}

TEST_P(FetchByPathTest, AReaderThatIsKilledHoldsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(GetParam(), "reads"));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ReadLine(), "OK");
  process_->Signal(SIGKILL);
  ASSERT_THAT(agent_->Withdraw({"test", 0}), IsOk());
  while (!published_.expired()) std::this_thread::yield();
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[0]) == sherd::kWorker) {
    return sherd::RunWorker(argv);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
