#ifndef SHERD_CORE_PROCESS_SIGNAL_RECEIVER_H_
#define SHERD_CORE_PROCESS_SIGNAL_RECEIVER_H_

#include <signal.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

// Receives signals of this process as readable events, in place of their
// handlers and defaults, so that a program can wait for signals and for its
// ranks at the same time.
//
// Threads. For a program's main thread while it is the only one: threads that
// it starts later block the same signals, others would still get them.
class SignalReceiver {
 public:
  // Blocks the signals. One that is ignored is still ignored.
  static absl::StatusOr<std::unique_ptr<SignalReceiver>> Create(
      absl::Span<const int> signals);
  // Restores the former mask. Drops signals that were not taken with Next.
  ~SignalReceiver();
  SignalReceiver(const SignalReceiver&) = delete;
  SignalReceiver& operator=(const SignalReceiver&) = delete;

  // Readable while a signal waits.
  int fd() const { return fd_.get(); }

  // The next signal, 0 if none waits. Never blocks.
  int Next();

  // The signals that were blocked before: for programs that are started
  // meanwhile.
  const sigset_t& former_mask() const { return former_mask_; }

 private:
  SignalReceiver() = default;

  UniqueFd fd_;
  sigset_t former_mask_;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_SIGNAL_RECEIVER_H_
