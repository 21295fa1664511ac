#ifndef SHERD_BACKENDS_CUDA_EVENT_POOL_H_
#define SHERD_BACKENDS_CUDA_EVENT_POOL_H_

#include <memory>
#include <mutex>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// An event of a pool.
struct PooledEvent {
  CUevent event = nullptr;
  CUcontext context = nullptr;
  // In the pool: the one below.
  PooledEvent* next = nullptr;
};

// Events of one device. They do not take the time, which makes them cheap. None
// is ever destroyed; one that a failure left in a stream's future stays out.
//
// Threads. Safe.
class EventPool {
 public:
  explicit EventPool(const CudaFunctions& cuda) : cuda_(cuda) {}

  // Creates one in `context`, which is current, if there is none.
  sherd_code Take(CUcontext context, PooledEvent** event,
                  sherd_error_v0* error);
  void Return(PooledEvent* event);

 private:
  const CudaFunctions& cuda_;
  std::mutex mutex_;
  // Of those that are not in use. Both guarded by mutex_.
  PooledEvent* top_ = nullptr;
  std::vector<std::unique_ptr<PooledEvent>> all_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_EVENT_POOL_H_
