#ifndef SHERD_TESTING_HARNESS_STACK_DUMP_H_
#define SHERD_TESTING_HARNESS_STACK_DUMP_H_

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// The signal on which a process that called InstallStackDump writes the stacks
// of all its threads.
int StackDumpSignal();

// The last line of such a dump.
inline constexpr absl::string_view kStackDumpEnd = "[end of stacks]";

// The beginning of the first line that is written at a crash.
inline constexpr absl::string_view kCrashBegin = "[crash] signal ";

// From now on writes to `fd`, which must stay open,
//   - the stacks of all threads on StackDumpSignal(); the process continues;
//   - the stack of the thread that crashed on SIGSEGV, SIGBUS, SIGFPE, SIGILL
//     and SIGABRT, before the process dies of it; only if nothing else (a
//     sanitizer) handles the signal.
//
// The handlers neither allocate nor lock, so that they work at any point of the
// program. A thread that blocks the signal is reported as such.
void InstallStackDump(int fd);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_STACK_DUMP_H_
