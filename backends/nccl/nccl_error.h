#ifndef SHERD_BACKENDS_NCCL_NCCL_ERROR_H_
#define SHERD_BACKENDS_NCCL_NCCL_ERROR_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::internal {

// Fills `error` with NCCL's text for `result`, and returns the code of the
// plugin ABI for it. `what` names the function.
sherd_code FailWithNccl(const NcclApi& api, NcclResult result, const char* what,
                        sherd_error_v0* error);

// Whether a communicator is unusable after `result`. Unknown values count as
// such.
constexpr bool EndsNcclComm(NcclResult result) {
  return result != kNcclSuccess && result != kNcclInProgress &&
         result != kNcclInvalidArgument;
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_ERROR_H_
