#include "sherd/core/process/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "absl/memory/memory.h"
#include "sherd/core/base/file.h"
#include "sherd/core/process/marked_processes.h"

namespace sherd {
namespace {

// Message for a regular end; no process group has this number.
constexpr pid_t kDone = 0;

bool ReadMessage(int fd, pid_t& message) {
  while (true) {
    const ssize_t n = read(fd, &message, sizeof(message));
    if (n < 0 && errno == EINTR) continue;
    return n == sizeof(message);
  }
}

[[noreturn]] void Guard(int fd, const std::string& directory,
                        const std::string& mark) {
  // Signals that are meant for the run must not end its guardian. Its own
  // process group keeps those of the terminal away too.
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_NAME, "sherd-guardian");
  // A reader of the run's output waits for the run's end, not for the
  // guardian's.
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) dup2(null, i);
  // The same holds for a reader that waits for the end of another pipe.
  fd = dup2(fd, 3);
  closefrom(4);
  std::set<pid_t> groups;
  pid_t message;
  while (ReadMessage(fd, message)) {
    if (message == kDone) _exit(0);
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (pid_t group : groups) kill(-group, SIGKILL);
  KillMarkedProcesses(mark);
  FileSystem::Posix().RemoveAll(directory).IgnoreError();
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Guardian>> Guardian::Start(
    const std::string& directory, const std::string& mark) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "sockets for", "run");
  }
  UniqueFd its_end(ends[0]);
  UniqueFd own_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork for", "run");
  if (pid == 0) {
    own_end.Reset();
    Guard(its_end.get(), directory, mark);
  }
  return absl::WrapUnique(new Guardian(pid, std::move(own_end)));
}

Guardian::~Guardian() {
  Send(kDone);
  socket_.Reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::Watch(pid_t group) { Send(group); }
void Guardian::Forget(pid_t group) { Send(-group); }

// A killed guardian is not a reason to fail: what remains is a run without one.
void Guardian::Send(pid_t message) {
  ssize_t n;
  do {
    n = send(socket_.get(), &message, sizeof(message), MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
}

}  // namespace sherd
