#include "sherd/core/comm/work.h"

#include "sherd/core/comm/work_state.h"

namespace sherd {

Work::Work(std::shared_ptr<internal::WorkState> state)
    : state_(std::move(state)) {}

Work::~Work() = default;

absl::Status Work::Wait() {
  if (state_ != nullptr) {
    status_ = state_->Await();
    state_.reset();
  }
  return status_;
}

bool Work::Test() { return state_ == nullptr || state_->IsDone(); }

}  // namespace sherd
