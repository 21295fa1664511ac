#ifndef SHERD_BACKENDS_SHM_COMMUNICATOR_H_
#define SHERD_BACKENDS_SHM_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/collectives.h"
#include "sherd/backends/shm/point_to_point.h"
#include "sherd/backends/shm/segment.h"
#include "sherd/backends/shm/waiting.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {

// One rank of a group: its view of the shared memory, and the implementations
// of the functions in the plugin's table.
class ShmCommunicator {
 public:
  // Connects to the other ranks through config.kv: rank 0 creates the memory
  // and publishes how to open it, the others open it and publish whether they
  // could, and all receive the outcome from rank 0, so that either all ranks
  // have a group or none has.
  //   SHERD_UNSUPPORTED  Not all ranks are on one host, or one cannot open rank
  //                      0's memory; error.peer names it.
  //   SHERD_RESOURCE     There is no memory or descriptor left.
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<ShmCommunicator>* communicator,
                           sherd_error_v0* error);

  // Notifies the others that this rank left.
  ~ShmCommunicator();

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error);
  void Abort();

  // The processes of all ranks, by rank.
  std::vector<ProcessIdentity> Processes() const;

 private:
  explicit ShmCommunicator(const sherd_comm_config_v0& config);

  sherd_code Connect(const sherd_comm_config_v0& config, sherd_error_v0* error);
  sherd_code ConnectFirst(const sherd_comm_config_v0& config,
                          sherd_error_v0* error);
  sherd_code ConnectOther(const sherd_comm_config_v0& config,
                          sherd_error_v0* error);
  void WriteIdentity();
  // Finds out whether the system lets this process read the others' memory, and
  // notifies them.
  void TryReadingOthers();

  const int rank_;
  const int size_;
  // Random, and the same on all ranks.
  uint64_t nonce_ = 0;
  ShmSegment segment_;
  std::unique_ptr<ShmWaiting> waiting_;
  std::unique_ptr<ShmCollectives> collectives_;
  std::unique_ptr<ShmPointToPoint> messages_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_COMMUNICATOR_H_
