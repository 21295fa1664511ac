#include "sherd/core/process/signal_receiver.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "sherd/core/base/file.h"

namespace sherd {

absl::StatusOr<std::unique_ptr<SignalReceiver>> SignalReceiver::Create(
    absl::Span<const int> signals) {
  std::unique_ptr<SignalReceiver> receiver(new SignalReceiver);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &receiver->former_mask_);
  receiver->fd_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!receiver->fd_.is_open()) {
    return ErrnoStatus(errno, "signalfd for", "this process");
  }
  return receiver;
}

SignalReceiver::~SignalReceiver() {
  while (fd_.is_open() && Next() != 0) {
  }
  pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
}

int SignalReceiver::Next() {
  signalfd_siginfo info;
  const ssize_t size = read(fd_.get(), &info, sizeof(info));
  return size == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace sherd
