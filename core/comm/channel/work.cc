#include "sherd/core/comm/work.h"

#include <atomic>
#include <utility>

#include "sherd/core/comm/channel/work_state.h"

namespace sherd {
namespace {

using internal::WorkState;
using Sources = std::vector<std::shared_ptr<WorkState>>;

// Ends some time after `sources` did; who waits for it drives them.
class LaterState final : public WorkState {
 public:
  // `on_stream`: nothing remains to be done on the host once they have ended;
  // `ended` is the status of the first of them that had ended before.
  LaterState(Sources sources, bool on_stream, absl::Status ended)
      : sources_(std::move(sources)),
        on_stream_(on_stream),
        ended_(std::move(ended)) {}

  bool IsDone() override {
    for (const auto& source : sources_) {
      if (!source->IsDone()) return false;
    }
    return WorkState::IsDone();
  }
  const absl::Status& Await() override {
    for (const auto& source : sources_) source->Await();
    return WorkState::Await();
  }
  absl::Status AwaitOnStream() override {
    if (!on_stream_) return Await();
    absl::Status first = ended_;
    for (const auto& source : sources_) first.Update(source->AwaitOnStream());
    return first;
  }

 private:
  const Sources sources_;
  const bool on_stream_;
  const absl::Status ended_;
};

}  // namespace

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

absl::Status Work::WaitOnStream() {
  return state_ == nullptr ? status_ : state_->AwaitOnStream();
}

void Work::Keep(std::shared_ptr<const void> kept) {
  if (state_ != nullptr) state_->Keep(std::move(kept));
}

bool Work::Test() { return state_ == nullptr || state_->IsDone(); }

Work Work::Then(std::function<absl::Status(absl::Status)> next) && {
  if (state_ == nullptr) return Work(next(std::move(status_)));
  auto result = std::make_shared<LaterState>(
      Sources{state_}, /*on_stream=*/false, absl::OkStatus());
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
  Sources sources;
  absl::Status ended;
  for (const Work& work : works) {
    if (work.state_ != nullptr) {
      sources.push_back(work.state_);
    } else {
      ended.Update(work.status_);
    }
  }
  auto result = std::make_shared<LaterState>(
      std::move(sources), /*on_stream=*/true, std::move(ended));
  for (size_t i = 0; i < works.size(); ++i) {
    // The returned Work is dropped: `result` reports the end.
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
