#include "sherd/core/base/named_thread.h"

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace internal {
namespace {

// How many scopes the calling thread is in.
thread_local int scopes = 0;

}  // namespace

bool IsLibraryThread() { return scopes > 0; }
ScopedLibraryThread::ScopedLibraryThread() { ++scopes; }
ScopedLibraryThread::~ScopedLibraryThread() { --scopes; }

}  // namespace internal

absl::StatusOr<std::thread> StartNamedThread(const std::string& name,
                                             std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP}) {
    sigdelset(&all, own);
  }
  // A thread begins with the mask of the one that makes it.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::StatusOr<std::thread> thread;
  try {
    thread = std::thread([name = name.substr(0, 15), body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      const internal::ScopedLibraryThread scope;
      body();
    });
  } catch (const std::system_error& error) {
    thread = absl::ResourceExhaustedError(
        absl::StrCat("thread ", name, " cannot be started: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace sherd
