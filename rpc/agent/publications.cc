#include "sherd/rpc/agent/publications.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sherd::internal {
namespace {

absl::Status ShutDown() {
  return absl::FailedPreconditionError(
      "RPC has been shut down on this worker: its shards cannot be read");
}

}  // namespace

absl::Status Publications::Publish(Publication publication) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return ShutDown();
  const PublicationId id = publication.id;
  auto entry = std::make_shared<const Publication>(std::move(publication));
  if (!published_.emplace(id, std::move(entry)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat(worker_, " has published ", id.ToString(), " already"));
  }
  uint64_t& reached = reached_[id.scope];
  reached = std::max(reached, id.number + 1);
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status Publications::Withdraw(const PublicationId& id) {
  // Its storage is released without the lock.
  std::shared_ptr<const Publication> withdrawn;
  absl::MutexLock lock(&mutex_);
  if (closed_) return ShutDown();
  const auto found = published_.find(id);
  if (found == published_.end()) {
    return absl::NotFoundError(
        absl::StrCat(worker_, " has not published ", id.ToString()));
  }
  withdrawn = std::move(found->second);
  published_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Publication>> Publications::Await(
    const PublicationId& id, Deadline deadline, const CallContext* context) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (closed_) return ShutDown();
    const auto found = published_.find(id);
    if (found != published_.end()) return found->second;
    const auto reached = reached_.find(id.scope);
    if (reached != reached_.end() && id.number < reached->second) {
      return absl::NotFoundError(
          absl::StrCat(worker_, " has withdrawn publication ", id.ToString(),
                       ", or never made it"));
    }
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          worker_, " has not published ", id.ToString(), " in time"));
    }
    if (context != nullptr && context->cancelled()) {
      return absl::CancelledError(absl::StrCat("nobody waits for publication ",
                                               id.ToString(), " any more"));
    }
    changed_.WaitWithTimeout(&mutex_, deadline.Remaining());
  }
}

void Publications::Wake() {
  absl::MutexLock lock(&mutex_);
  changed_.SignalAll();
}

void Publications::Close() {
  std::map<PublicationId, std::shared_ptr<const Publication>> all;
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  all.swap(published_);
  changed_.SignalAll();
}

size_t Publications::size() const {
  absl::MutexLock lock(&mutex_);
  return published_.size();
}

}  // namespace sherd::internal
