#ifndef SHERD_BACKENDS_NCCL_SCRIPTED_NCCL_H_
#define SHERD_BACKENDS_NCCL_SCRIPTED_NCCL_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/nccl_library.h"

namespace sherd::internal {

struct ScriptedNcclComm;

// A table of NCCL's functions that move nothing: they note how they were called
// and return what a test told them to. For one process whose threads are the
// ranks; one at a time may exist.
//
// Communicators are called "base 0", "work 0" and so on, after how they were
// made and for which rank. What is made without blocking is ready at the third
// poll.
class ScriptedNccl {
 public:
  ScriptedNccl();
  // What communicators that were not destroyed need goes with it.
  ~ScriptedNccl();
  ScriptedNccl(const ScriptedNccl&) = delete;
  ScriptedNccl& operator=(const ScriptedNccl&) = delete;

  // With all functions, of version 2.28.9, without a driver.
  NcclLibrary Library() const;

  // The call number `call` from now on, 0 being the next, of a function such as
  // "ncclAllReduce" returns `result`.
  void Return(const std::string& function, NcclResult result, int call = 0);
  // What NCCL says about its last error.
  void SetLastError(std::string text);
  // The state of a communicator, whatever it was.
  void SetState(const std::string& comm, NcclResult state);
  // Communicators do not become ready any more.
  void NeverReady();
  // Runs in each call, before anything else happens in it; may wait. The call
  // reads as in calls().
  void OnCall(std::function<void(const std::string& call)> hook);

  // Calls so far but polls, each as "ncclSend(work 0, 5, type 1, to 2)".
  std::vector<std::string> calls() const;
  // Those that begin with `prefix`.
  int Count(absl::string_view prefix) const;
  void ForgetCalls();
  // Those of ncclCommGetAsyncError.
  int polls() const;
  // Different ids that communicators were made with.
  size_t num_ids() const;

 private:
  friend struct ScriptedNcclCalls;

  NcclResult Enter(const std::string& function, const std::string& arguments);
  NcclComm Make(const std::string& name, bool blocking);

  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::map<std::string, std::map<int, NcclResult>> results_;
  std::map<std::string, int> counts_;
  std::function<void(const std::string&)> hook_;
  std::vector<std::unique_ptr<ScriptedNcclComm>> comms_;
  std::map<std::string, int> ids_;
  std::string last_error_;
  int polls_ = 0;
  int next_id_ = 0;
  bool never_ready_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_SCRIPTED_NCCL_H_
