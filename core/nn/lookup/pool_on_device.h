#ifndef SHERD_CORE_NN_LOOKUP_POOL_ON_DEVICE_H_
#define SHERD_CORE_NN_LOOKUP_POOL_ON_DEVICE_H_

#include "absl/status/status.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// Pools a batch whose rows and result are in the memory of `device`, or in
// pinned memory: PoolRows, or CopyRows for kNone, without ends and with equal
// types. Everything else of the batch is in host memory. The same bits on all
// devices, but for those of a computed NaN.
//
// Completion. On the CPU when it returns. On a device it is queued on the
// current stream; the batch may change, but not the rows.
//
// Errors. On a device those of DeviceRuntime.
//
// Cost. On a device 8 bytes per row and bag go there, and weights, in one copy
// from pinned memory; then there is one launch. Memory for that comes from the
// device's pools.
absl::Status PoolOn(const Device& device, DType in, DType out, BagMode mode,
                    const PoolBatch& batch);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_POOL_ON_DEVICE_H_
