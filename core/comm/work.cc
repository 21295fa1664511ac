#include "sherd/core/comm/work.h"

#include <atomic>
#include <utility>

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

Work Work::Then(std::function<absl::Status(absl::Status)> next) && {
  if (state_ == nullptr) return Work(next(std::move(status_)));
  auto result = std::make_shared<internal::WorkState>();
  state_->OnFinish(
      [result, next = std::move(next)](const absl::Status& status) mutable {
        absl::Status outcome = next(status);
        next = nullptr;
        result->Finish(std::move(outcome));
      });
  state_.reset();
  return Work(std::move(result));
}

Work WhenAll(std::vector<Work> works) {
  if (works.empty()) return Work(absl::OkStatus());
  // Each entry is written by one thread; the counter orders the writes.
  struct Outcomes {
    explicit Outcomes(size_t count) : statuses(count), unfinished(count) {}
    std::vector<absl::Status> statuses;
    std::atomic<size_t> unfinished;
  };
  auto outcomes = std::make_shared<Outcomes>(works.size());
  auto result = std::make_shared<internal::WorkState>();
  for (size_t i = 0; i < works.size(); ++i) {
    // The Work that comes back is dropped: `result` tells of the end.
    (void)std::move(works[i]).Then([outcomes, result, i](absl::Status status) {
      outcomes->statuses[i] = std::move(status);
      if (outcomes->unfinished.fetch_sub(1) > 1) return absl::OkStatus();
      for (absl::Status& outcome : outcomes->statuses) {
        if (outcome.ok()) continue;
        result->Finish(std::move(outcome));
        return absl::OkStatus();
      }
      result->Finish(absl::OkStatus());
      return absl::OkStatus();
    });
  }
  return Work(std::move(result));
}

}  // namespace sherd
