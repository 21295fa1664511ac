#ifndef SHERD_SERIALIZATION_KITS_STEPPED_STORES_H_
#define SHERD_SERIALIZATION_KITS_STEPPED_STORES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/store.h"

namespace sherd {

// For tests: a store that calls `before` ahead of each operation of another
// one, with its name; an error of that is the operation's. Finish of a writer
// is one, what precedes it is none.
class WatchedStore final : public CheckpointStore {
 public:
  using Before = std::function<absl::Status(absl::string_view operation)>;

  // `store` is borrowed.
  WatchedStore(CheckpointStore& store, Before before)
      : store_(store), before_(std::move(before)) {}

  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) override {
    SHERD_RETURN_IF_ERROR(before_("list"));
    return store_.List(prefix);
  }
  absl::StatusOr<int64_t> Stat(const std::string& name) override {
    SHERD_RETURN_IF_ERROR(before_("stat"));
    return store_.Stat(name);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& name) override {
    SHERD_RETURN_IF_ERROR(before_("open"));
    return store_.OpenForRead(name);
  }
  absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) override {
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer,
                           store_.BeginPut(name));
    return std::make_unique<WatchedWriter>(*this, std::move(writer));
  }
  absl::Status Put(const std::string& name,
                   absl::Span<const std::byte> data) override {
    SHERD_RETURN_IF_ERROR(before_("put"));
    return store_.Put(name, data);
  }
  absl::Status PutIfAbsent(const std::string& name,
                           absl::Span<const std::byte> data) override {
    SHERD_RETURN_IF_ERROR(before_("put_if_absent"));
    return store_.PutIfAbsent(name, data);
  }
  absl::Status Remove(const std::string& name) override {
    SHERD_RETURN_IF_ERROR(before_("remove"));
    return store_.Remove(name);
  }

 private:
  class WatchedWriter final : public ObjectWriter {
   public:
    WatchedWriter(WatchedStore& store, std::unique_ptr<ObjectWriter> writer)
        : store_(store), writer_(std::move(writer)) {}
    absl::Status WriteAt(int64_t offset,
                         absl::Span<const std::byte> data) override {
      return writer_->WriteAt(offset, data);
    }
    absl::Status Finish() override {
      SHERD_RETURN_IF_ERROR(store_.before_("finish"));
      return writer_->Finish();
    }

   private:
    WatchedStore& store_;
    const std::unique_ptr<ObjectWriter> writer_;
  };

  CheckpointStore& store_;
  const Before before_;
};

// Runs actors, each on a thread with a view of one store, such that one takes a
// step at a time: an operation of the store and all that follows up to the next
// one.
class SteppedActors {
 public:
  using Actor = std::function<void(CheckpointStore&)>;
  // The place in `ready`, which has the numbers of the actors that have not
  // ended, of the one that takes the next step.
  using Choose = absl::FunctionRef<size_t(const std::vector<size_t>& ready)>;

  static void Run(CheckpointStore& store, const std::vector<Actor>& actors,
                  Choose choose) {
    SteppedActors run(actors.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < actors.size(); ++i) {
      threads.emplace_back([&, i] {
        WatchedStore view(store, [&run, i](absl::string_view) {
          run.WaitForTurn(i);
          return absl::OkStatus();
        });
        actors[i](view);
        run.End(i);
      });
    }
    run.Steer(choose);
    for (std::thread& thread : threads) thread.join();
  }

  // Runs what `make` returns, with a new store each, in every order of steps
  // in which an actor that could go on makes way for another one at most
  // `max_switches` times, and calls `check` after each. Returns how many.
  static int64_t RunAll(
      const std::function<std::unique_ptr<CheckpointStore>()>& new_store,
      const std::function<std::vector<Actor>(CheckpointStore&)>& make,
      const std::function<void(CheckpointStore&)>& check, int max_switches) {
    // What was chosen at each step, and from how many.
    struct Step {
      size_t chosen;
      size_t choices;
    };
    std::vector<Step> steps;
    int64_t runs = 0;
    do {
      const std::unique_ptr<CheckpointStore> store = new_store();
      const std::vector<Actor> actors = make(*store);
      size_t at = 0;
      int switches = 0;
      std::optional<size_t> last;
      Run(*store, actors, [&](const std::vector<size_t>& ready) {
        // The one that took the last step comes first.
        std::vector<size_t> order;
        for (size_t i = 0; i < ready.size(); ++i) {
          order.insert(ready[i] == last ? order.begin() : order.end(), i);
        }
        const bool goes_on = last.has_value() && ready[order[0]] == *last;
        const bool may_switch = !goes_on || switches < max_switches;
        if (at == steps.size())
          steps.push_back({0, may_switch ? order.size() : 1});
        const size_t chosen = steps[at++].chosen;
        if (goes_on && chosen > 0) ++switches;
        last = ready[order[chosen]];
        return order[chosen];
      });
      check(*store);
      ++runs;
      while (!steps.empty() &&
             steps.back().chosen + 1 == steps.back().choices) {
        steps.pop_back();
      }
      if (!steps.empty()) ++steps.back().chosen;
    } while (!steps.empty());
    return runs;
  }

 private:
  enum class State { kRuns, kWaits, kEnded };

  explicit SteppedActors(size_t actors) : states_(actors, State::kRuns) {}

  void WaitForTurn(size_t actor) {
    absl::MutexLock lock(&mutex_);
    states_[actor] = State::kWaits;
    const auto runs = [this, actor]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return states_[actor] == State::kRuns;
    };
    mutex_.Await(absl::Condition(&runs));
  }

  void End(size_t actor) {
    absl::MutexLock lock(&mutex_);
    states_[actor] = State::kEnded;
  }

  void Steer(Choose choose) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const auto none_runs = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        for (const State state : states_) {
          if (state == State::kRuns) return false;
        }
        return true;
      };
      mutex_.Await(absl::Condition(&none_runs));
      std::vector<size_t> ready;
      for (size_t i = 0; i < states_.size(); ++i) {
        if (states_[i] == State::kWaits) ready.push_back(i);
      }
      if (ready.empty()) return;
      states_[ready[choose(ready)]] = State::kRuns;
    }
  }

  absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_STEPPED_STORES_H_
