#ifndef SHERD_RPC_LINK_DIALER_H_
#define SHERD_RPC_LINK_DIALER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/dial.h"

namespace sherd::internal {

// Makes connections in the background, on at most kThreads threads, which exist
// only while a connection is made. An attempt without an answer yields to the
// others: its next attempt comes later, and may take longer.
//
// Threads. Safe from any thread.
class Dialer {
 public:
  static constexpr int kThreads = 8;

  struct Request {
    // The deadline bounds all attempts together.
    DialOptions where;
    // Called after each attempt that failed; an error ends the dialing with it.
    // On a thread of the dialer, maybe after the dialer's end; it may block.
    std::function<absl::Status()> check;
    // Called once with the outcome, unless the dialer is destroyed before. On
    // any thread. Must not block, nor call the dialer. Errors: those of Dial
    // and of `check`.
    std::function<void(absl::StatusOr<UniqueFd>)> done;
  };

  Dialer();
  // Does not wait for running attempts, which end by themselves.
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  void Start(Request request);

 private:
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_DIALER_H_
