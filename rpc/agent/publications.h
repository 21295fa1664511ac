#ifndef SHERD_RPC_AGENT_PUBLICATIONS_H_
#define SHERD_RPC_AGENT_PUBLICATIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/rpc/call_context.h"

namespace sherd::internal {

// The publications of a worker.
//
// Threads. Safe from any thread.
class Publications {
 public:
  // `worker`: its name, for errors.
  explicit Publications(std::string worker) : worker_(std::move(worker)) {}

  // As RemoteAccess::Publish.
  absl::Status Publish(Publication publication) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Withdraw(const PublicationId& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the publication, once it exists.
  //   kNotFound            It has been withdrawn, or was never made although a
  //                        later one of its scope was.
  //   kDeadlineExceeded    It does not exist at the deadline.
  //   kFailedPrecondition  Close() was called.
  //   kCancelled           `context`, which may be null, was cancelled; who
  //                        cancels it calls Wake.
  absl::StatusOr<std::shared_ptr<const Publication>> Await(
      const PublicationId& id, Deadline deadline,
      const CallContext* context = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets the threads that wait check their contexts.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

  // Withdraws all, and fails the threads that wait. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string worker_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<PublicationId, std::shared_ptr<const Publication>> published_
      ABSL_GUARDED_BY(mutex_);
  // By scope: one more than the highest number published so far.
  std::map<std::string, uint64_t> reached_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_AGENT_PUBLICATIONS_H_
