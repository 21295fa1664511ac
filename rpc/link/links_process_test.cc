// Workers that are processes, and how the others see their end.

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/core/comm/store/store_session.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/rpc/link/mailbox_fixture.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;

constexpr char kWorker[] = "links_process_test worker";

// Prints each loss on a line.
class Printer final : public LinkMailbox {
 public:
  void OnLost(int, const absl::Status& why) override {
    printf("%s\n", std::string(why.message()).c_str());
    fflush(stdout);
  }
};

// A worker until it is killed: rank, world size, file, patience in seconds.
int RunWorker(char** arguments) {
  LinkOptions options;
  int patience;
  if (!absl::SimpleAtoi(arguments[1], &options.rank) ||
      !absl::SimpleAtoi(arguments[2], &options.world_size) ||
      !absl::SimpleAtoi(arguments[4], &patience)) {
    return 2;
  }
  options.session = *EnterFileSession(std::make_shared<FileStore>(arguments[3]),
                                      "rpc", options.rank, options.world_size);
  options.heartbeat = absl::Milliseconds(100);
  options.patience = absl::Seconds(patience);
  options.deadline = Deadline::After(absl::Seconds(60));
  Printer printer;
  const absl::StatusOr<std::unique_ptr<Links>> links =
      Links::Start(options, &printer);
  // Rank 1 is connected with all, the others with rank 0 and 1.
  for (int to = 0; links.ok() && to < options.world_size; ++to) {
    if (options.rank != 1 || to == 1) continue;
    (*links)->Send(to, {.control = "hello"}).IgnoreError();
  }
  if (links.ok() && options.rank != 1) printer.WaitForMail(1);
  printf("%s\n", links.status().ToString().c_str());
  fflush(stdout);
  for (;;) pause();
}

struct Process {
  Subprocess process;
  UniqueFd output;

  std::string ReadLine() {
    std::string line;
    char c;
    while (read(output.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
};

// Workers that are connected.
std::vector<Process> StartProcesses(int world_size, int patience) {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/links-", getpid(), "-",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::vector<Process> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    absl::StatusOr<Pipe> pipe = MakePipe();
    EXPECT_THAT(pipe, IsOk());
    absl::StatusOr<Subprocess> process = Subprocess::Start(
        {.program = "/proc/self/exe",
         .arguments = {kWorker, absl::StrCat(rank), absl::StrCat(world_size),
                       path, absl::StrCat(patience)},
         .environment = OwnEnvironment(),
         .output_fd = pipe->write.get()});
    EXPECT_THAT(process, IsOk());
    processes.push_back({*std::move(process), std::move(pipe->read)});
  }
  for (Process& process : processes) EXPECT_EQ(process.ReadLine(), "OK");
  unlink(path.c_str());
  return processes;
}

TEST(LinksProcessTest, AKilledProcessIsLostByNameForAll) {
  std::vector<Process> workers = StartProcesses(4, 30);
  const std::string died =
      absl::StrCat("worker2 (rank 2) is lost: died (process ",
                   workers[2].process.pid(), " has ended)");
  workers[2].process.Signal(SIGKILL);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(workers[rank].ReadLine(), died) << rank;
  }
  // A worker that is connected with the next one relies on its own connection.
  workers[0].process.Signal(SIGKILL);
  for (const int rank : {1, 3}) {
    EXPECT_EQ(workers[rank].ReadLine(),
              absl::StrCat("worker0 (rank 0) is lost: died (process ",
                           workers[0].process.pid(), " has ended)"))
        << rank;
  }
  workers[1].process.Signal(SIGKILL);
  EXPECT_EQ(workers[3].ReadLine(),
            absl::StrCat("worker1 (rank 1) is lost: died (process ",
                         workers[1].process.pid(), " has ended)"));
}

TEST(LinksProcessTest, AStoppedProcessIsLostByNameForAll) {
  std::vector<Process> workers = StartProcesses(4, 3);
  workers[2].process.Signal(SIGSTOP);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(
        workers[rank].ReadLine(),
        absl::StrCat("worker2 (rank 2) is lost: it is stopped (process ",
                     workers[2].process.pid(), "): it sent nothing for 3s"))
        << rank;
  }
  workers[2].process.Signal(SIGCONT);
  // It finds out that the others gave it up.
  EXPECT_THAT(workers[2].ReadLine(),
              ::testing::HasSubstr("is lost: the other end closed"));
}

}  // namespace
}  // namespace sherd::internal

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[0]) == sherd::internal::kWorker) {
    return sherd::internal::RunWorker(argv);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
