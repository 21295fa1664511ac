#ifndef SHERD_TESTING_FAULTS_H_
#define SHERD_TESTING_FAULTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/fault_point.h"

namespace sherd::testing {

// Faults that a test injects into the code under test while they are in scope:
//
//   ExpectRankDies(2, SIGKILL);
//   KillRankAt fault("comm/after_post", 2, {.nth = 3});
//
//   DropStoreMessage fault("*/member/1");
//   FailFileOperation fault("rename", "*/manifest*", absl::DataLossError("x"));
//
// All ranks may create the same faults: one that names a rank happens on that
// rank alone. Points have the names of AllFaultPoints() (fault_point.h); '*'
// matches any text. A name that matches no point fails the test and lists them
// all.
//
// A fault that has not happened when its scope ends, on its rank, fails the
// test and reports how often its point was passed.
//
// Threads. Armed for all threads of this process. Calls that are in flight when
// the scope ends may still be delayed.

// Selects the passages of a point at which a fault happens.
struct FaultOptions {
  // Matching passages are counted from 1. The fault happens at the nth
  int64_t nth = 1;
  // and at so many in all.
  int64_t times = 1;
  // The rank of the job whose thread passes. A thread has no rank if neither
  // the library nor Init has set one.
  std::optional<int> rank = {};
  // The collective ("all_reduce"), store key, path or group; '*' matches any
  // text.
  std::string subject = "*";
  // Only allocations, reads and writes of at least this many bytes.
  uint64_t min_bytes = 0;
  // Only on the thread that created the fault.
  bool this_thread = false;
  // The fault may also not happen.
  bool optional = false;
};

namespace internal {

struct FaultState;

// Requirements of a kind of fault on its points, or on the ranks.
enum class FaultNeeds { kNothing, kErrors, kLosses, kProcesses };

// Where a fault was created.
struct FaultLocation {
  static constexpr FaultLocation Here(const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    return {file, line};
  }
  const char* file;
  int line;
};

}  // namespace internal

class Fault {
 public:
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  // Matching passages so far, and their bytes.
  int64_t count() const;
  uint64_t bytes() const;
  bool happened() const;

 protected:
  using Location = internal::FaultLocation;

  // `what` is for messages: "killing the rank".
  Fault(absl::string_view what, absl::string_view point,
        const FaultOptions& options, const Location& location,
        internal::FaultNeeds needs,
        std::function<absl::Status(const FaultPassage&)> action);
  ~Fault();

 private:
  // Null if it could not be armed.
  std::shared_ptr<internal::FaultState> state_;
};

// Ends the process of `rank` by SIGKILL. Only for ranks that are processes.
class KillRankAt final : public Fault {
 public:
  KillRankAt(absl::string_view point, int rank, FaultOptions options = {},
             Location location = Location::Here());
};

// Stops the process of `rank` by SIGSTOP: its threads stop, and its connections
// stay open. SIGCONT continues it; the harness ends it with the test at the
// latest.
class StopRankAt final : public Fault {
 public:
  StopRankAt(absl::string_view point, int rank, FaultOptions options = {},
             Location location = Location::Here());
};

// Delays the thread of `rank`.
class SlowRankAt final : public Fault {
 public:
  SlowRankAt(absl::string_view point, int rank, absl::Duration duration,
             FaultOptions options = {}, Location location = Location::Here());
};

// Makes the operation fail with `error`.
class FailAt final : public Fault {
 public:
  FailAt(absl::string_view point, absl::Status error, FaultOptions options = {},
         Location location = Location::Here());
};

// Drops what is to be sent: the operation returns OK and does nothing.
class DropAt final : public Fault {
 public:
  explicit DropAt(absl::string_view point, FaultOptions options = {},
                  Location location = Location::Here());
};

// Drops a value that is to be set in a store: Set returns OK and does nothing.
// `key` is the whole key, with '*'; groups and generations have prefixes of
// their own.
class DropStoreMessage final : public Fault {
 public:
  explicit DropStoreMessage(absl::string_view key, FaultOptions options = {},
                            Location location = Location::Here());
};

// Delays the value instead of dropping it.
class DelayStoreMessage final : public Fault {
 public:
  DelayStoreMessage(absl::string_view key, absl::Duration duration,
                    FaultOptions options = {},
                    Location location = Location::Here());
};

// Makes an allocation of tensor memory fail with kResourceExhausted.
class FailAllocationAt final : public Fault {
 public:
  explicit FailAllocationAt(FaultOptions options = {},
                            Location location = Location::Here());
};

// Makes an operation of FileSystem::Posix() or one of its files fail:
// "open_for_read", "create", "read", "write", "size", "reserve",
// "start_writeback", "sync", "close", "create_directories", "rename",
// "rename_new", "remove", "remove_all", "list", "sync_directory", "kind" (also
// Exists and IsDirectory), "free_bytes", or several with '*'. A failing write
// writes half of its data.
class FailFileOperation final : public Fault {
 public:
  FailFileOperation(absl::string_view operation, absl::string_view path,
                    absl::Status error, FaultOptions options = {},
                    Location location = Location::Here());
};

// Skips every sync of a file or directory of this machine, by its absolute
// path, for tests that cut no power. Files of object stores, whose paths begin
// with a scheme, are synced: the store decides by that what must be durable.
class LeaveOutSyncs final : public Fault {
 public:
  explicit LeaveOutSyncs(Location location = Location::Here());
};

// Runs `call` on the passing thread, so that a test orders ranks at a point, or
// inspects the state there.
class CallAt final : public Fault {
 public:
  CallAt(absl::string_view point, std::function<void()> call,
         FaultOptions options = {}, Location location = Location::Here());
};

// Only counts passages.
class CountPassages final : public Fault {
 public:
  explicit CountPassages(absl::string_view point, FaultOptions options = {},
                         Location location = Location::Here());
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_FAULTS_H_
