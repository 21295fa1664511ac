#include "sherd/rpc/engine/call_outbox.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {
namespace {

// What is no larger and has no tail passes by the bound: it is copied, and as
// cheap to send as to keep.
constexpr size_t kSmallControl = size_t{64} << 10;

uint64_t BytesOf(const WireMessage& message) {
  uint64_t bytes = message.control.size();
  for (const auto& part : message.tail) bytes += part.size();
  return bytes;
}

bool IsSmall(const WireMessage& message) {
  return message.tail.empty() && message.control.size() <= kSmallControl;
}

}  // namespace

// What waits and what is on its way, by worker.
class CallOutbox::Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  explicit Lanes(uint64_t max_unsent_bytes)
      : max_unsent_bytes_(max_unsent_bytes) {}

  void Open(Wire* wire) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(int to, uint64_t call, WireMessage message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool Withdraw(int to, uint64_t call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    uint64_t call;
    uint64_t bytes;
    WireMessage message;
  };
  struct Lane {
    uint64_t unsent_bytes = 0;
    std::deque<Waiting> waiting;
    // Somebody sends what waits; a wire that reports at once that it sent would
    // begin again within.
    bool pumping = false;
    absl::Status lost;
  };

  bool MaySend(const Lane& lane, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return wire_ != nullptr &&
           (lane.unsent_bytes == 0 ||
            (bytes <= max_unsent_bytes_ &&
             lane.unsent_bytes <= max_unsent_bytes_ - bytes));
  }
  absl::Status SendCounted(int to, uint64_t bytes, WireMessage message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnSent(int to, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends what may go by now.
  void Pump(int to) ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t max_unsent_bytes_;
  absl::Mutex mutex_;
  Wire* wire_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::flat_hash_map<int, Lane> lanes_ ABSL_GUARDED_BY(mutex_);
};

void CallOutbox::Lanes::Open(Wire* wire) {
  std::vector<int> workers;
  {
    absl::MutexLock lock(&mutex_);
    wire_ = wire;
    for (const auto& [worker, lane] : lanes_) workers.push_back(worker);
  }
  for (const int worker : workers) Pump(worker);
}

absl::Status CallOutbox::Lanes::Send(int to, uint64_t call,
                                     WireMessage message) {
  const uint64_t bytes = BytesOf(message);
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = lanes_[to];
    if (!lane.lost.ok()) return lane.lost;
    if (!lane.waiting.empty() || !MaySend(lane, bytes)) {
      lane.waiting.push_back({call, bytes, std::move(message)});
      return absl::OkStatus();
    }
    lane.unsent_bytes += bytes;
  }
  return SendCounted(to, bytes, std::move(message));
}

absl::Status CallOutbox::Lanes::SendCounted(int to, uint64_t bytes,
                                            WireMessage message) {
  Wire* wire;
  {
    absl::MutexLock lock(&mutex_);
    wire = wire_;
  }
  message.on_sent =
      [lanes = shared_from_this(), to, bytes,
       on_sent = std::move(message.on_sent)](const absl::Status& status) {
        if (on_sent != nullptr) on_sent(status);
        lanes->OnSent(to, bytes);
      };
  const absl::Status status = wire->Send(to, std::move(message));
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    lanes_[to].unsent_bytes -= bytes;
  }
  return status;
}

void CallOutbox::Lanes::OnSent(int to, uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = lanes_[to];
    lane.unsent_bytes -= bytes;
    if (lane.waiting.empty()) return;
  }
  Pump(to);
}

void CallOutbox::Lanes::Pump(int to) {
  for (bool first = true;; first = false) {
    Waiting next;
    {
      absl::MutexLock lock(&mutex_);
      Lane& lane = lanes_[to];
      if (first && lane.pumping) return;
      lane.pumping =
          !lane.waiting.empty() && MaySend(lane, lane.waiting.front().bytes);
      if (!lane.pumping) return;
      next = std::move(lane.waiting.front());
      lane.waiting.pop_front();
      lane.unsent_bytes += next.bytes;
    }
    // If the worker is lost, its calls hear of that from the wire.
    SendCounted(to, next.bytes, std::move(next.message)).IgnoreError();
  }
}

bool CallOutbox::Lanes::Withdraw(int to, uint64_t call) {
  // Destroyed without the lock: it may hold the last handle of a tensor.
  Waiting withdrawn;
  absl::MutexLock lock(&mutex_);
  const auto lane = lanes_.find(to);
  if (lane == lanes_.end()) return false;
  std::deque<Waiting>& waiting = lane->second.waiting;
  for (auto it = waiting.begin(); it != waiting.end(); ++it) {
    if (it->call != call) continue;
    withdrawn = std::move(*it);
    waiting.erase(it);
    return true;
  }
  return false;
}

void CallOutbox::Lanes::Drop(int worker, const absl::Status& why) {
  std::deque<Waiting> dropped;
  absl::MutexLock lock(&mutex_);
  Lane& lane = lanes_[worker];
  lane.lost = why;
  dropped.swap(lane.waiting);
}

CallOutbox::CallOutbox(uint64_t max_unsent_bytes)
    : lanes_(std::make_shared<Lanes>(max_unsent_bytes)) {}

CallOutbox::~CallOutbox() = default;

void CallOutbox::Attach(std::shared_ptr<Wire> wire) {
  owned_wire_ = std::move(wire);
  // First what was kept: a later message overtakes none of it that matters.
  lanes_->Open(owned_wire_.get());
  wire_.store(owned_wire_.get(), std::memory_order_release);
}

absl::Status CallOutbox::Send(int to, uint64_t call, WireMessage message) {
  Wire* const wire = this->wire();
  if (wire != nullptr && IsSmall(message)) {
    return wire->Send(to, std::move(message));
  }
  return lanes_->Send(to, call, std::move(message));
}

bool CallOutbox::Withdraw(int to, uint64_t call) {
  return lanes_->Withdraw(to, call);
}

void CallOutbox::Drop(int worker, const absl::Status& why) {
  lanes_->Drop(worker, why);
}

}  // namespace sherd::internal
