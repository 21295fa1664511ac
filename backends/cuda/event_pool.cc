#include "sherd/backends/cuda/event_pool.h"

#include <memory>
#include <mutex>
#include <utility>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"

namespace sherd::internal {

sherd_code EventPool::Take(CUcontext context, PooledEvent** event,
                           sherd_error_v0* error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (top_ != nullptr) {
      *event = top_;
      top_ = top_->next;
      return SHERD_OK;
    }
  }
  auto created = std::make_unique<PooledEvent>();
  created->context = context;
  const RelaxedCaptureScope relaxed(cuda_);
  if (const CUresult result =
          cuda_.EventCreate(&created->event, kCudaEventDisableTiming);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuEventCreate", result);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  all_.push_back(std::move(created));
  *event = all_.back().get();
  return SHERD_OK;
}

void EventPool::Return(PooledEvent* event) {
  std::lock_guard<std::mutex> lock(mutex_);
  event->next = top_;
  top_ = event;
}

}  // namespace sherd::internal
