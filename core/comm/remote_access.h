#ifndef SHERD_CORE_COMM_REMOTE_ACCESS_H_
#define SHERD_CORE_COMM_REMOTE_ACCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

struct RemoteAccessOptions {
  int rank = 0;
  int world_size = 1;
  // Where workers find each other; a part of its own of what the ranks share,
  // so that a process group on the same file or address is not disturbed.
  std::shared_ptr<Store> store;
  // This worker's name, unique among them. Empty: "worker<rank>".
  std::string name;
  // For the start, and for each call that is not given another one.
  absl::Duration timeout = absl::Seconds(60);
};

// Shards of other processes, by name: what ShardedTensor::remote_shards() and
// test fixtures need of RPC, so that neither has to link it. rpc/ implements
// it.
//
// Threads. Safe from any thread.
class RemoteAccess {
 public:
  virtual ~RemoteAccess() = default;

  virtual int rank() const = 0;
  // Names by rank.
  virtual const std::vector<std::string>& workers() const = 0;

  // Makes `shard` readable for the others under `key`, until it is withdrawn
  // or the shutdown. It shares the tensor's storage.
  //   kAlreadyExists  The key is taken.
  virtual absl::Status Publish(absl::string_view key, Tensor shard) = 0;
  //   kNotFound  There is no such key.
  virtual absl::Status Withdraw(absl::string_view key) = 0;

  // A copy of what worker `rank` published under `key`.
  //   kNotFound          It has not published that.
  //   kUnavailable       It is gone.
  //   kDeadlineExceeded  It did not answer.
  virtual absl::StatusOr<Tensor> Fetch(int rank, absl::string_view key,
                                       absl::Duration timeout) = 0;

  // Ends the service. Graceful: returns once every worker has called it, so
  // that nobody's fetch fails. Otherwise at once. Idempotent.
  virtual absl::Status Shutdown(bool graceful) = 0;
};

using RemoteAccessStarter =
    std::function<absl::StatusOr<std::unique_ptr<RemoteAccess>>(
        const RemoteAccessOptions&)>;

// Installs the implementation; what links one calls it before main(). The last
// one wins, null is none.
void RegisterRemoteAccess(RemoteAccessStarter starter);

// Whether there is one.
bool HasRemoteAccess();

// Joins the other workers. Collective: returns once all have started.
//   kInvalidArgument  Rank, world size or timeout are out of range, or there is
//                     no store.
//   kUnimplemented    No implementation is linked; says what to depend on.
//   kAlreadyExists    Two workers have one name.
//   kDeadlineExceeded Some workers did not come; named.
absl::StatusOr<std::unique_ptr<RemoteAccess>> StartRemoteAccess(
    const RemoteAccessOptions& options);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_REMOTE_ACCESS_H_
