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
  // While in the pool: the next event of the list.
  PooledEvent* next = nullptr;
};

// Events of one device, without timing, which makes them cheap. No event is
// ever destroyed; an event that a failure left pending in a stream does not
// return to the pool.
//
// Threads. Safe.
class EventPool {
 public:
  explicit EventPool(const CudaFunctions& cuda) : cuda_(cuda) {}

  // Takes an event, or creates one in `context`, which must be current.
  sherd_code Take(CUcontext context, PooledEvent** event,
                  sherd_error_v0* error);
  void Return(PooledEvent* event);

 private:
  const CudaFunctions& cuda_;
  std::mutex mutex_;
  // The list of unused events. Both members are guarded by mutex_.
  PooledEvent* top_ = nullptr;
  std::vector<std::unique_ptr<PooledEvent>> all_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_EVENT_POOL_H_
