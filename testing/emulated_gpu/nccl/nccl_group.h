#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_

#include <functional>
#include <string>

#include "sherd/testing/emulated_gpu/nccl/nccl_communicator.h"

namespace sherd::testing {

// The calling thread's group, as with ncclGroupStart and ncclGroupEnd. Each
// call of the API is at least a group of its own.
class NcclGroup {
 public:
  static void Start();
  // Runs the added calls if this ends the outermost group, and returns the
  // first failure. `from_user`: the program ends the group.
  static NcclResult End(bool from_user);

  // Makes the group fail with `result`, unless it is success; returns it.
  static NcclResult Check(NcclResult result);

  static void AddTask(const NcclCommunicatorPtr& communicator,
                      const NcclTask& task);
  // `job` waits for other ranks. The communicator decides whether it runs on a
  // thread of its own, with `communicator` in progress meanwhile.
  static void AddJob(const NcclCommunicatorPtr& communicator,
                     std::function<NcclResult()> job);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_GROUP_H_
