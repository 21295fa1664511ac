#ifndef SHERD_BACKENDS_LOCAL_PLUGIN_RANKS_H_
#define SHERD_BACKENDS_LOCAL_PLUGIN_RANKS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/backends/backend_abi.h"

namespace sherd::testing {

// The result of a call of a plugin.
struct PluginOutcome {
  sherd_code code = SHERD_OK;
  int peer = -1;
  std::string text;
};

// One rank of the plugin that is linked into the test, called through the C
// table alone, without the host's checks and additions.
//
// Threads. As for the plugin ABI.
class PluginRank {
 public:
  PluginRank(const sherd_plugin_v0& plugin, sherd_comm_v0* comm, int rank,
             int size)
      : plugin_(plugin), comm_(comm), rank_(rank), size_(size) {}
  PluginRank(const PluginRank&) = delete;
  PluginRank& operator=(const PluginRank&) = delete;
  ~PluginRank() { Leave(); }

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Posts `op`, with sizes and sequence filled in, and waits for its end.
  PluginOutcome Run(sherd_op_v0 op, absl::Duration timeout = absl::Seconds(60));

  void Abort() { plugin_.abort(comm_); }

  // Destroys the communicator.
  void Leave();

 private:
  const sherd_plugin_v0& plugin_;
  sherd_comm_v0* comm_;
  const int rank_;
  const int size_;
  std::atomic<uint64_t> sequence_ = 0;
};

// The table of the one plugin that is linked into this test.
const sherd_plugin_v0& LinkedPlugin();

// Runs `body` on `n` ranks, each a thread, and returns when all have ended.
// Failed expectations are reported with the rank. `on_publish` is called
// whenever a rank writes to the store, before others can read the value.
void RunPluginRanks(
    int n, absl::FunctionRef<void(PluginRank&)> body,
    absl::string_view address = "127.0.0.1",
    const std::function<void()>& on_publish = [] {});

}  // namespace sherd::testing

#endif  // SHERD_BACKENDS_LOCAL_PLUGIN_RANKS_H_
