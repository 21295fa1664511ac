#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_

#include <functional>
#include <string>

#include "sherd/testing/emulated_gpu/nccl/nccl_communicator.h"

namespace sherd::testing {

// The calling thread's group, as ncclGroupStart and ncclGroupEnd have it. Each
// call of the API is a group of its own at least.
class NcclGroup {
 public:
  static void Start();
  // Runs what was added, if it is the end of the outermost; what the first
  // failure was, otherwise. `from_user`: the end of a group of the program.
  static NcclResult End(bool from_user);

  // Makes the group fail with `result`, unless it is a success; returns it.
  static NcclResult Check(NcclResult result);

  static void AddTask(const NcclCommunicatorPtr& communicator,
                      const NcclTask& task);
  // `job` waits for other ranks. Whether that happens on a thread of its own,
  // with `communicator` in progress meanwhile, is for the communicator to say.
  static void AddJob(const NcclCommunicatorPtr& communicator,
                     std::function<NcclResult()> job);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_
