#include "sherd/backends/mpi/mpi_library.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "sherd/backends/plugin.h"
#include "sherd/backends/vendor_descriptors.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// Set by the launchers of Open MPI, of PMIx (srun --mpi=pmix, prterun) and of
// PMI (MPICH's mpiexec, srun --mpi=pmi2). Not Sherd's, and only their presence
// counts.
constexpr const char* kLauncherVariables[] = {
    "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "PMI_RANK", "PMI_FD"};

// MPI's own answer needs more than one poll; the larger number takes about 0.1
// ms.
constexpr int kFewPolls = 8;
constexpr int kManyPolls = 1000;

constexpr int64_t kAbandonTime = 100'000'000;
// For MPI_Finalize where no deadline was ever given.
constexpr int64_t kDefaultPatience = 300'000'000'000;

std::chrono::steady_clock::time_point ToTimePoint(int64_t deadline) {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(deadline));
}

// Waits until `done` or the deadline; returns done().
template <typename Done>
bool WaitUntil(std::condition_variable& changed,
               std::unique_lock<std::mutex>& lock, int64_t deadline,
               Done done) {
  if (deadline == SHERD_NO_DEADLINE) {
    changed.wait(lock, done);
    return true;
  }
  return changed.wait_until(lock, ToTimePoint(deadline), done);
}

// The cores on which this process may run; 1 if their number is not known.
int CountCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

// The plugin is opened with RTLD_LOCAL, but MPI opens components of its own
// that expect to see its symbols.
void MakeMpiGlobal() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0 &&
      info.dli_fname != nullptr) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
}

}  // namespace

int64_t MpiClock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

sherd_code FailWithMpi(sherd_error_v0* error, int mpi_error, int peer,
                       const char* what) {
  int kind = MPI_ERR_OTHER;
  MPI_Error_class(mpi_error, &kind);
  sherd_code code = SHERD_SYSTEM;
  if (kind == MPI_ERR_TRUNCATE) code = SHERD_INVALID_ARGUMENT;
  if (kind == MPI_ERR_NO_MEM) code = SHERD_RESOURCE;
  char reason[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (MPI_Error_string(mpi_error, reason, &length) != MPI_SUCCESS) {
    length = 0;
  }
  error->native_code = mpi_error;
  return Fail(error, code, peer,
              (std::string(what) + ": " + std::string(reason, length)).c_str());
}

MpiLibrary& MpiLibrary::Get() {
  static auto* const library = new MpiLibrary;
  return *library;
}

bool MpiLibrary::HasLauncher() {
  for (char** variable = environ; variable != nullptr && *variable != nullptr;
       ++variable) {
    for (const char* name : kLauncherVariables) {
      const size_t length = std::strlen(name);
      if (std::strncmp(*variable, name, length) == 0 &&
          (*variable)[length] == '=') {
        return true;
      }
    }
  }
  int initialized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized;
}

sherd_code MpiLibrary::Start(int64_t deadline, sherd_error_v0* error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (deadline != SHERD_NO_DEADLINE) {
      patience_ = std::max(patience_, deadline - MpiClock());
    }
    if (state_ == State::kNew) {
      MakeMpiGlobal();
      int initialized = 0;
      int finalized = 0;
      MPI_Initialized(&initialized);
      MPI_Finalized(&finalized);
      if (finalized) {
        state_ = State::kFailed;
      } else if (initialized) {
        Adopt();
      }
    }
  }
  const sherd_code code = Initialize(deadline, error);
  if (code != SHERD_OK) return code;
  if (usable()) return SHERD_OK;
  return Fail(error, SHERD_SYSTEM, -1,
              "MPI is no longer usable in this process: it was finalized, "
              "or an earlier operation was given up");
}

// The program has initialised MPI itself and will finalise it.
void MpiLibrary::Adopt() {
  MPI_Query_thread(&provided_);
  state_ = State::kForeign;
  initialized_ = true;
}

sherd_code MpiLibrary::Initialize(int64_t deadline, sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (state_ == State::kFailed) return SHERD_OK;
  if (state_ == State::kNew) {
    state_ = State::kUp;
    process_ = getpid();
    on_exit([](int status, void*) { MpiLibrary::Get().AtExit(status); },
            nullptr);
    try {
      std::thread([this] { RunMainThread(); }).detach();
    } catch (const std::system_error&) {
      state_ = State::kFailed;
      return Fail(error, SHERD_RESOURCE, -1, "no thread for MPI");
    }
  }
  if (!WaitUntil(changed_, lock, deadline, [this] { return initialized_; })) {
    state_ = State::kFailed;
    NoteFailure();
    return Fail(error, SHERD_TIMEOUT, -1,
                "MPI_Init did not return: not all processes came to it");
  }
  if (init_error_ != MPI_SUCCESS) {
    state_ = State::kFailed;
    return FailWithMpi(error, init_error_, -1, "MPI_Init_thread");
  }
  if (provided_ < MPI_THREAD_SERIALIZED) {
    state_ = State::kFailed;
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "MPI runs with a thread level below MPI_THREAD_SERIALIZED: let "
                "the program ask MPI_Init_thread for it");
  }
  if (usable() || failed_.load()) return SHERD_OK;
  concurrent_ = provided_ >= MPI_THREAD_MULTIPLE;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
  int* max_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &max_tag, &found);
  if (found) max_tag_ = *max_tag;
  polls_per_yield_ = world_size_ <= CountCores() ? kManyPolls : kFewPolls;
  usable_.store(true);
  return SHERD_OK;
}

// MPI requires one thread to call both MPI_Init and MPI_Finalize, and neither
// takes a timeout.
void MpiLibrary::RunMainThread() {
  int provided = MPI_THREAD_SINGLE;
  const VendorDescriptors opened;
  const int result =
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  opened.Close();
  if (result == MPI_SUCCESS) {
    // Errors outside of our groups must not end the process either.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  provided_ = provided;
  init_error_ = result;
  initialized_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return must_finalize_; });
  lock.unlock();
  MPI_Finalize();
  lock.lock();
  finalized_ = true;
  changed_.notify_all();
}

void MpiLibrary::AtExit(int status) {
  // A forked child that ends by exit() is not one of MPI's processes.
  if (getpid() != process_) return;
  const bool was_usable = usable_.exchange(false);
  if (!was_usable || failed_.load() || users_.load() > 0) {
    EndWithoutFinalize(status);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  must_finalize_ = true;
  changed_.notify_all();
  const int64_t patience = patience_ > 0 ? patience_ : kDefaultPatience;
  if (WaitUntil(changed_, lock, MpiClock() + patience,
                [this] { return finalized_; })) {
    return;
  }
  std::fprintf(stderr,
               "sherd: backend mpi: MPI_Finalize did not return within %.1f s: "
               "another process has not come to its end\n",
               static_cast<double>(patience) * 1e-9);
  EndWithoutFinalize(status != 0 ? status : 1);
}

void MpiLibrary::EndWithoutFinalize(int status) {
  std::fflush(nullptr);
  _exit(status);
}

sherd_code MpiLibrary::CallWithin(int64_t deadline, std::function<int()> body,
                                  const char* what, sherd_error_v0* error) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    int result = MPI_SUCCESS;
  };
  const auto state = std::make_shared<State>();
  std::thread([this, state, body = std::move(body)] {
    const int result = Call(body);
    std::lock_guard<std::mutex> lock(state->mutex);
    state->result = result;
    state->done = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(state->mutex);
  if (!WaitUntil(state->changed, lock, deadline,
                 [&state] { return state->done; })) {
    Abandon();
    return Fail(error, SHERD_TIMEOUT, -1,
                (std::string(what) + " did not return in time").c_str());
  }
  if (state->result == MPI_SUCCESS) return SHERD_OK;
  return FailWithMpi(error, state->result, -1, what);
}

void MpiLibrary::Abandon() {
  NoteFailure();
  usable_.store(false);
  const int64_t end = MpiClock() + kAbandonTime;
  while (users_.load() > 1 && MpiClock() < end) sched_yield();
}

}  // namespace sherd::internal
