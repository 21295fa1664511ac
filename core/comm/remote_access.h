#ifndef SHERD_CORE_COMM_REMOTE_ACCESS_H_
#define SHERD_CORE_COMM_REMOTE_ACCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// For each worker by name: on which of its devices a tensor in a call from a
// device of this worker arrives; results come back the opposite way. One to
// one. Devices have an index ("cuda:0"). An entry for a device that the worker
// does not have fails only transfers to that device.
using DeviceMaps = std::map<std::string, std::map<Device, Device>>;

// Adds entries to maps[worker].
//   kInvalidArgument  Two devices would go to one, or one to two: "only
//                     supports 1-to-1 mapping". Then nothing was added.
absl::Status AddDeviceMap(DeviceMaps& maps, const std::string& worker,
                          const std::map<Device, Device>& devices);

struct RemoteAccessOptions {
  int rank = 0;
  int world_size = 1;
  // Where workers find each other: a separate part of what the ranks share, so
  // that a process group on the same file or address is not disturbed.
  std::shared_ptr<Store> store;
  // This worker's name, unique among them. Empty: "worker<rank>".
  std::string name;
  // Of the start, and of each call without a timeout of its own.
  absl::Duration timeout = absl::Seconds(60);
  // The workers are threads of one process: each thread has a default agent of
  // its own.
  bool workers_are_threads = false;
  // Built by AddDeviceMap.
  DeviceMaps device_maps = {};
};

// Identifies a tensor whose shards are published: the same on all workers.
struct PublicationId {
  // The group over which the tensor is spread.
  std::string scope;
  // Counts the published tensors of the scope, from 0.
  uint64_t number = 0;

  // "default #3"
  std::string ToString() const;

  friend bool operator==(const PublicationId&, const PublicationId&) = default;
  friend auto operator<=>(const PublicationId&, const PublicationId&) = default;
};

// The shards of one tensor that one worker lets the others read.
struct Publication {
  PublicationId id;
  // A fingerprint of the tensor's size, boxes and dtype.
  uint64_t fingerprint = 0;
  // They share and keep the storage of the tensor's shards.
  std::vector<Tensor> shards;
};

// What a worker reads from another worker's publication.
struct FetchRequest {
  PublicationId publication;
  // Must be the publication's: a reader that expects another tensor gets an
  // error.
  uint64_t fingerprint = 0;
  // Index in Publication::shards.
  int shard = 0;
  // A box of the shard: offsets count from its first element. Unset: all of it.
  std::optional<Box> box = std::nullopt;
  // Receives the elements: a tensor of the box's sizes and the shard's dtype,
  // on any device, which the caller owns. Undefined: a new tensor.
  Tensor out = {};
  // Unset: the timeout of RemoteAccessOptions or RpcOptions.
  std::optional<absl::Duration> timeout = std::nullopt;
};

struct ShutdownOptions {
  // Returns once every worker has called it, so that no worker's fetch fails.
  // Otherwise at once.
  bool graceful = true;
  // Of a graceful shutdown; if it passes, the call takes up to a second more,
  // or RpcOptions::parting_timeout, to notify the others that this worker
  // leaves. Unset: the timeout of RemoteAccessOptions or RpcOptions.
  std::optional<absl::Duration> timeout = std::nullopt;
};

// Access to shards of other processes by worker name: the part of RPC that
// ShardedTensor::remote_shards() and test fixtures need, so that they need not
// link it. rpc/ implements it.
//
// Threads. Safe from any thread.
class RemoteAccess {
 public:
  virtual ~RemoteAccess() = default;

  virtual int rank() const = 0;
  // Names by rank.
  virtual const std::vector<std::string>& workers() const = 0;
  // False once it has been shut down.
  virtual bool is_running() const = 0;

  // The number of this worker's next publication in `scope`. Workers that
  // publish or read a tensor each take one for it, in the same order.
  uint64_t TakeNumber(absl::string_view scope) ABSL_LOCKS_EXCLUDED(mutex_);
  // Later numbers are above `number`.
  void SkipNumbers(absl::string_view scope, uint64_t number)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes shards readable for the other workers, until they are withdrawn or
  // until the shutdown. What is on a device must be complete.
  //   kAlreadyExists       The id is taken.
  //   kFailedPrecondition  It has been shut down.
  virtual absl::Status Publish(Publication publication) = 0;
  // A fetch that is reading the shards may still succeed; the storage is
  // released once it has ended.
  //   kNotFound  This worker has not published that.
  virtual absl::Status Withdraw(const PublicationId& id) = 0;

  // Returns a copy of a box of a shard of worker `rank`, which may be this one.
  // Waits for a publication whose number the worker has not reached yet. A
  // tensor from a device of another worker goes to the device that device_maps
  // has for it, unless `out` is set.
  //   kInvalidArgument     There is no such rank; the publication has no such
  //                        shard, or the shard no such box; `out` has other
  //                        sizes or another dtype.
  //   kNotFound            The worker has withdrawn it.
  //   kFailedPrecondition  The publication has another fingerprint; the shard
  //                        has no data, or is on a device that no device map
  //                        names; or this worker has shut down.
  //   kUnavailable         The worker has shut down, or died; named.
  //   kDeadlineExceeded    It did not answer, or has not published that, by
  //                        the end of the timeout.
  // After an error the contents of `out` are unspecified.
  virtual absl::StatusOr<Tensor> Fetch(int rank,
                                       const FetchRequest& request) = 0;

  // Ends the service, also after an error. Idempotent; while another thread is
  // in it, this one cuts it short if it has less time, or waits for its
  // outcome.
  //   kDeadlineExceeded  A worker has not called it by then; named.
  //   kUnavailable       A worker died; named.
  virtual absl::Status Shutdown(const ShutdownOptions& options = {}) = 0;

 private:
  absl::Mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> next_numbers_
      ABSL_GUARDED_BY(mutex_);
};

using RemoteAccessStarter =
    std::function<absl::StatusOr<std::shared_ptr<RemoteAccess>>(
        const RemoteAccessOptions&)>;

// Installs the implementation; what links one calls it before main(). The last
// one wins, null is none.
void RegisterRemoteAccess(RemoteAccessStarter starter);

// Whether there is one.
bool HasRemoteAccess();

// Joins the other workers, and makes the result the default of this process or,
// where workers are threads, of this thread. Collective: returns once all have
// started.
//   kInvalidArgument     Rank, world size or timeout are out of range, or there
//                        is no store.
//   kFailedPrecondition  "RPC is already initialized": shut down the default
//                        before.
//   kUnimplemented       No implementation is linked; names the dependency.
//   kAlreadyExists       Two workers have one name.
//   kDeadlineExceeded    Some workers did not come; named.
absl::StatusOr<std::shared_ptr<RemoteAccess>> StartRemoteAccess(
    const RemoteAccessOptions& options);

// The one that was started by this thread or, if there is none, by this
// process, and still runs; null if there is none. The caller of
// StartRemoteAccess owns it, and ends it by Shutdown.
std::shared_ptr<RemoteAccess> DefaultRemoteAccess();

// Makes `access` the default, for an implementation that is started otherwise.
void SetDefaultRemoteAccess(const std::shared_ptr<RemoteAccess>& access,
                            bool workers_are_threads);

namespace internal {

//   kFailedPrecondition  "RPC is already initialized".
absl::Status CheckNoDefaultRemoteAccess(bool workers_are_threads);

// For implementations: the elements that `request` asks for, as a view of the
// shard.
//   kInvalidArgument, kFailedPrecondition  As RemoteAccess::Fetch.
absl::StatusOr<Tensor> SelectPublished(const Publication& publication,
                                       const FetchRequest& request);

// `elements`, or a copy of them in request.out.
//   kInvalidArgument  As RemoteAccess::Fetch.
absl::StatusOr<Tensor> DeliverFetched(Tensor elements,
                                      const FetchRequest& request);

}  // namespace internal

}  // namespace sherd

#endif  // SHERD_CORE_COMM_REMOTE_ACCESS_H_
