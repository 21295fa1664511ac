#ifndef SHERD_BACKENDS_MPI_MPI_LIBRARY_H_
#define SHERD_BACKENDS_MPI_MPI_LIBRARY_H_

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "sherd/backends/backend_abi.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace sherd::internal {

// Nanoseconds of CLOCK_MONOTONIC, the clock of deadlines.
int64_t MpiClock();

// Fills `error` with MPI's text for `mpi_error` and returns the code of the
// plugin ABI for it.
sherd_code FailWithMpi(sherd_error_v0* error, int mpi_error, int peer,
                       const char* what);

// While it exists, ThreadSanitizer does not check the accesses of this thread.
// MPI is not instrumented: one thread's call may receive for the requests of
// another one, which is ordered by what only MPI sees.
class UncheckedAccesses {
 public:
#ifdef __SANITIZE_THREAD__
  UncheckedAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~UncheckedAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  UncheckedAccesses() {}
#endif
  UncheckedAccesses(const UncheckedAccesses&) = delete;
  UncheckedAccesses& operator=(const UncheckedAccesses&) = delete;
};

// MPI as this process uses it: started once, shared by all groups, finalized at
// exit.
//
// MPI_Finalize waits for all processes, so it is called only if no operation
// has failed. Otherwise the process ends with its own exit code but without
// MPI_Finalize, whereupon the launcher ends the other processes.
//
// Abandoned requests. MPI cannot cancel a send or a collective that has begun:
// any call that progresses MPI would continue to use the caller's buffers. So
// once a request has been given up, MPI is not called again in this process.
//
// Threads. Safe from any thread.
class MpiLibrary {
 public:
  // Lives forever.
  static MpiLibrary& Get();

  // Whether a launcher started this process and lets MPI find the other
  // processes. Without one, MPI would make it a world of its own.
  static bool HasLauncher();

  // Initialises MPI unless it is already initialised. Returns once all
  // processes have arrived, or at the deadline.
  sherd_code Start(int64_t deadline, sherd_error_v0* error);

  // Valid after Start.
  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  // How many polls between two yields of the processor: many if each process
  // can have a core of its own.
  int polls_per_yield() const { return polls_per_yield_; }
  // The largest tag of a message.
  int max_tag() const { return max_tag_; }

  // While one exists, this thread may call MPI if ok().
  class Scope {
   public:
    explicit Scope(MpiLibrary& library) : library_(library) {
      library_.users_.fetch_add(1);
    }
    ~Scope() { library_.users_.fetch_sub(1); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    bool ok() const { return library_.usable(); }

   private:
    MpiLibrary& library_;
  };

  bool usable() const { return usable_.load(std::memory_order_relaxed); }

  // Runs one short call of MPI and returns its result; one call at a time where
  // MPI requires that.
  template <typename Body>
  int Call(Body body) {
    const UncheckedAccesses unchecked;
    if (concurrent_) return body();
    std::lock_guard<std::mutex> lock(call_mutex_);
    return body();
  }

  // Runs a call that waits for other processes, and takes no timeout, on a
  // thread of its own. If it does not return before the deadline, MPI is
  // abandoned. `body` owns everything that it uses.
  sherd_code CallWithin(int64_t deadline, std::function<int()> body,
                        const char* what, sherd_error_v0* error);

  // MPI_Finalize will not be called from now on.
  void NoteFailure() { failed_.store(true); }

  // MPI is not called from now on. Call it within a Scope; returns once the
  // other threads have left MPI, or 100 ms later.
  void Abandon();

 private:
  enum class State { kNew, kUp, kForeign, kFailed };

  void Adopt();
  sherd_code Initialize(int64_t deadline, sherd_error_v0* error);
  void RunMainThread();
  void AtExit(int status);
  [[noreturn]] static void EndWithoutFinalize(int status);

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kNew;     // guarded by mutex_
  bool initialized_ = false;      // guarded by mutex_
  bool must_finalize_ = false;    // guarded by mutex_
  bool finalized_ = false;        // guarded by mutex_
  int init_error_ = MPI_SUCCESS;  // guarded by mutex_
  // The longest timeout that a caller gave to Start.
  int64_t patience_ = 0;  // guarded by mutex_

  std::mutex call_mutex_;
  std::atomic<bool> usable_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> users_{0};

  // Constant once MPI is usable.
  bool concurrent_ = true;
  int provided_ = MPI_THREAD_SINGLE;
  int world_rank_ = 0;
  int world_size_ = 1;
  int max_tag_ = 32767;
  int polls_per_yield_ = 1;
  int process_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_MPI_MPI_LIBRARY_H_
