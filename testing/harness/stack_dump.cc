#include "sherd/testing/harness/stack_dump.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/debugging/symbolize.h"

namespace sherd::testing::internal {
namespace {

constexpr int kMaxDepth = 64;
constexpr int kFatalSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// Threads that do not answer in this time are given up.
constexpr int kAnswerMilliseconds = 300;

std::atomic<int> output_fd{-1};
std::atomic<int> answers{0};
std::atomic<bool> dumping{false};
alignas(16) std::byte crash_stack[64 * 1024];

// Text in a fixed buffer, written at once so that lines stay whole.
class Line {
 public:
  Line& operator<<(absl::string_view text) {
    for (char c : text) {
      if (size_ < sizeof(buffer_) - 1) buffer_[size_++] = c;
    }
    return *this;
  }
  Line& operator<<(int64_t number) {
    if (number < 0) return *this << "-" << -number;
    if (number >= 10) *this << number / 10;
    return *this << absl::string_view(&"0123456789"[number % 10], 1);
  }
  Line& Hex(uintptr_t number) {
    if (number >= 16) Hex(number / 16);
    return *this << absl::string_view(&"0123456789abcdef"[number % 16], 1);
  }
  void Write() {
    buffer_[size_++] = '\n';
    // A test that closes all files that it does not know has closed ours, too.
    if (write(output_fd.load(), buffer_, size_) < 0) {
      [[maybe_unused]] const ssize_t written =
          write(STDERR_FILENO, buffer_, size_);
    }
    size_ = 0;
  }

 private:
  char buffer_[512];
  size_t size_ = 0;
};

void WriteOwnStack() {
  void* frames[kMaxDepth];
  const int depth = backtrace(frames, kMaxDepth);
  // Skipped: this function, the handler and the signal frame.
  for (int i = 3; i < depth; ++i) {
    char symbol[256];
    Line line;
    (line << "    0x").Hex(reinterpret_cast<uintptr_t>(frames[i]));
    // The address is that of the next instruction, maybe of the next function.
    auto* const call = static_cast<char*>(frames[i]) - 1;
    line << "  "
         << (absl::Symbolize(call, symbol, sizeof(symbol)) ? symbol : "?");
    line.Write();
  }
}

int OwnThread() { return static_cast<int>(syscall(SYS_gettid)); }

// "/proc/self/task/THREAD", and `file`.
const char* PathOf(int thread, absl::string_view file, char (&path)[64]) {
  constexpr absl::string_view kTasks = "/proc/self/task/";
  size_t end = kTasks.copy(path, kTasks.size());
  char digits[16];
  size_t count = 0;
  for (int rest = thread; rest > 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  while (count > 0) path[end++] = digits[--count];
  end += file.copy(path + end, file.size());
  path[end] = '\0';
  return path;
}

// As much of the file as one read returns; empty if it cannot be read.
template <size_t kSize>
absl::string_view ReadFile(const char* path, char (&buffer)[kSize]) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t size = read(fd, buffer, kSize);
  close(fd);
  return size > 0 ? absl::string_view(buffer, size) : "";
}

absl::string_view ThreadName(int thread, char (&buffer)[32]) {
  char path[64];
  const absl::string_view name =
      ReadFile(PathOf(thread, "/comm", path), buffer);
  // Without the newline.
  return name.empty() ? "ended" : name.substr(0, name.size() - 1);
}

void WriteThreadTitle(int thread) {
  char name[32];
  Line line;
  line << "  thread " << int64_t{thread} << " (" << ThreadName(thread, name)
       << ")";
  line.Write();
}

// Whether the thread would not get the signal.
bool BlocksDumpSignal(int thread) {
  char path[64];
  char status[4096];
  const absl::string_view text =
      ReadFile(PathOf(thread, "/status", path), status);
  constexpr absl::string_view kField = "SigBlk:\t";
  const size_t field = text.find(kField);
  if (field == absl::string_view::npos) return false;
  uint64_t blocked = 0;
  for (char c : text.substr(field + kField.size(), 16)) {
    blocked =
        blocked * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return (blocked >> (StackDumpSignal() - 1) & 1) != 0;
}

// Has `thread` write its stack, and waits for it, so that stacks do not mix.
void AskThread(int thread) {
  WriteThreadTitle(thread);
  if (BlocksDumpSignal(thread)) {
    Line line;
    line << "    (it blocks the signal)";
    line.Write();
    return;
  }
  const int before = answers.load();
  if (syscall(SYS_tgkill, getpid(), thread, StackDumpSignal()) != 0) return;
  for (int i = 0; i < kAnswerMilliseconds && answers.load() == before; ++i) {
    const timespec pause = {0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  if (answers.load() == before) {
    Line line;
    line << "    (does not answer)";
    line.Write();
  }
}

// Calls `visit` for each thread. opendir() would allocate.
void ForEachThread(void (*visit)(int thread)) {
  struct Entry {
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[1];
  };
  const int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  alignas(Entry) char buffer[4096];
  for (;;) {
    const long size = syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
    if (size <= 0) break;
    for (long position = 0; position < size;) {
      const auto* const entry =
          reinterpret_cast<const Entry*>(buffer + position);
      int thread = 0;
      for (const char* c = entry->name; *c >= '0' && *c <= '9'; ++c) {
        thread = thread * 10 + (*c - '0');
      }
      if (thread != 0) visit(thread);
      position += entry->length;
    }
  }
  close(fd);
}

void OnDumpSignal(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  if (info->si_code == SI_TKILL) {
    WriteOwnStack();
    ++answers;
  } else if (!dumping.exchange(true)) {
    Line line;
    line << "[stacks of all threads]";
    line.Write();
    WriteThreadTitle(OwnThread());
    WriteOwnStack();
    ForEachThread([](int thread) {
      if (thread != OwnThread()) AskThread(thread);
    });
    line << kStackDumpEnd;
    line.Write();
    dumping = false;
  }
  errno = saved_errno;
}

void OnCrash(int signal, siginfo_t*, void*) {
  const char* const description = sigdescr_np(signal);
  Line line;
  line << kCrashBegin << int64_t{signal} << " ("
       << (description != nullptr ? description : "?") << ")";
  line.Write();
  WriteThreadTitle(OwnThread());
  WriteOwnStack();
  // SA_RESETHAND has restored the default action, which ends the process.
  raise(signal);
}

}  // namespace

int StackDumpSignal() { return SIGRTMAX - 3; }

void InstallStackDump(int fd) {
  output_fd = fd;
  absl::InitializeSymbolizer("/proc/self/exe");
  // The first call loads the unwinder, which a handler must not do.
  void* frame;
  backtrace(&frame, 1);

  struct sigaction dump = {};
  dump.sa_sigaction = OnDumpSignal;
  dump.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(StackDumpSignal(), &dump, nullptr);

  // For a crash because the stack is full.
  stack_t stack = {};
  stack.ss_sp = crash_stack;
  stack.ss_size = sizeof(crash_stack);
  sigaltstack(&stack, nullptr);
  for (int signal : kFatalSignals) {
    struct sigaction current;
    sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_DFL) continue;
    struct sigaction crash = {};
    crash.sa_sigaction = OnCrash;
    crash.sa_flags =
        static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER);
    sigaction(signal, &crash, nullptr);
  }
}

}  // namespace sherd::testing::internal
