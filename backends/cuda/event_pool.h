#ifndef SHERD_BACKENDS_CUDA_EVENT_POOL_H_
#define SHERD_BACKENDS_CUDA_EVENT_POOL_H_

#include <mutex>

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

// Events of one device that are not in use. They do not take the time, which
// makes them cheap. None is ever destroyed.
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
  PooledEvent* top_ = nullptr;  // guarded by mutex_
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_EVENT_POOL_H_
