#ifndef SHERD_RPC_LINK_MAILBOX_FIXTURE_H_
#define SHERD_RPC_LINK_MAILBOX_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/rpc/link/links.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {

// Keeps what arrives over a wire, for tests.
class LinkMailbox : public Wire::Handler {
 public:
  struct Mail {
    int from = 0;
    std::string control;
    std::string tail;
  };

  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
      int from, absl::string_view control, uint64_t tail_bytes,
      uint64_t* ticket) override;
  void OnTail(int from, uint64_t ticket) override;
  void OnLost(int worker, const absl::Status& why) override;
  void OnLeft(int worker, const absl::Status& why) override;

  // The first `count` messages, in the order of arrival; fewer if they did not
  // arrive within a minute.
  std::vector<Mail> WaitForMail(size_t count);
  // Why `worker` was lost; OK if it was not within a minute.
  absl::Status WaitForLoss(int worker);
  absl::Status WaitForGoodbye(int worker);
  // Each loss, and how often it was reported.
  std::map<int, int> losses() const;
  size_t num_mails() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<Mail> mails_ ABSL_GUARDED_BY(mutex_);
  // By sender and ticket.
  std::map<std::pair<int, uint64_t>, Mail> awaited_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int, absl::Status> lost_ ABSL_GUARDED_BY(mutex_);
  std::map<int, absl::Status> left_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> losses_ ABSL_GUARDED_BY(mutex_);
};

// Options of worker `rank` in the session of group "rpc" on `store`.
LinkOptions OptionsOn(const std::shared_ptr<Store>& store, int rank,
                      int world_size);

struct TestWorker {
  std::unique_ptr<LinkMailbox> mailbox = std::make_unique<LinkMailbox>();
  absl::StatusOr<std::unique_ptr<Links>> links = absl::UnknownError("");

  Links* operator->() { return links->get(); }
};

// Starts workers, each on a thread of its own, and returns when all have
// started or failed to. `edit` may change the options of each.
std::vector<TestWorker> StartWorkers(
    const std::shared_ptr<Store>& store, int world_size,
    const std::function<void(LinkOptions&)>& edit = nullptr);

// Goodbye of all workers at the same time.
std::vector<absl::Status> GoodbyeToAll(std::vector<TestWorker>& workers,
                                       absl::Duration timeout);

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_MAILBOX_FIXTURE_H_
