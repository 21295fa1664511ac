#include "sherd/rpc/engine/call_outbox.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/transfer/exposures.h"

namespace sherd::internal {
namespace {

// A message that is no larger and has no tail is exempt from the bound: it is
// copied, and as cheap to send as to keep.
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

// The messages that wait and those under way, by worker.
class CallOutbox::Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  using ExposurePtr = std::shared_ptr<const Exposure>;
  struct Waiting {
    uint64_t call;
    // Of the message without what it exposes.
    uint64_t bytes;
    WireMessage message;
    ExposurePtr exposure;

    uint64_t all_bytes() const {
      return bytes + (exposure == nullptr ? 0 : exposure->bytes);
    }
  };

  explicit Lanes(uint64_t max_unsent_bytes)
      : max_unsent_bytes_(max_unsent_bytes) {}

  void Open(Wire* wire) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(int to, Waiting message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnRead(int worker, uint64_t transfer) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Withdraw(int to, uint64_t call, std::optional<WireMessage> recall)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Lane {
    // Including those that the worker has not read.
    uint64_t unsent_bytes = 0;
    std::deque<Waiting> waiting;
    // The exposures that were sent and not read yet, by transfer.
    absl::flat_hash_map<uint64_t, ExposurePtr> exposed;
    // A thread sends the queue; without this, a wire that reports at once that
    // a message was sent would start over within that call.
    bool pumping = false;
    // The call whose message is being sent, and the message that follows it.
    uint64_t leaving = 0;
    std::optional<WireMessage> recall;
    absl::Status lost;
  };

  bool MaySend(const Lane& lane, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return wire_ != nullptr &&
           (lane.unsent_bytes == 0 ||
            (bytes <= max_unsent_bytes_ &&
             lane.unsent_bytes <= max_unsent_bytes_ - bytes));
  }
  static void Count(Lane& lane, const Waiting& message);
  absl::Status SendCounted(int to, Waiting message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnSent(int to, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the messages that the bound allows now.
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

void CallOutbox::Lanes::Count(Lane& lane, const Waiting& message) {
  lane.unsent_bytes += message.all_bytes();
  if (message.exposure != nullptr) {
    lane.exposed.emplace(message.exposure->transfer, message.exposure);
  }
}

absl::Status CallOutbox::Lanes::Send(int to, Waiting message) {
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = lanes_[to];
    if (!lane.lost.ok()) return lane.lost;
    if (!lane.waiting.empty() || !MaySend(lane, message.all_bytes())) {
      lane.waiting.push_back(std::move(message));
      return absl::OkStatus();
    }
    Count(lane, message);
  }
  return SendCounted(to, std::move(message));
}

absl::Status CallOutbox::Lanes::SendCounted(int to, Waiting message) {
  Wire* wire;
  {
    absl::MutexLock lock(&mutex_);
    wire = wire_;
  }
  message.message.on_sent =
      [lanes = shared_from_this(), to, bytes = message.bytes,
       transfer = message.exposure == nullptr ? 0 : message.exposure->transfer,
       on_sent =
           std::move(message.message.on_sent)](const absl::Status& status) {
        if (on_sent != nullptr) on_sent(status);
        // It was not sent, and the worker, which is not lost, will not read it.
        if (WireMessage::IsUnsent(status)) lanes->OnRead(to, transfer);
        lanes->OnSent(to, bytes);
      };
  const absl::Status status = wire->Send(to, std::move(message.message));
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    Lane& lane = lanes_[to];
    lane.unsent_bytes -= message.bytes;
    if (message.exposure != nullptr &&
        lane.exposed.erase(message.exposure->transfer) > 0) {
      lane.unsent_bytes -= message.exposure->bytes;
    }
  }
  return status;
}

void CallOutbox::Lanes::OnRead(int worker, uint64_t transfer) {
  // Destroyed without the lock, as in Withdraw.
  ExposurePtr read;
  {
    absl::MutexLock lock(&mutex_);
    const auto lane = lanes_.find(worker);
    if (lane == lanes_.end()) return;
    const auto it = lane->second.exposed.find(transfer);
    if (it == lane->second.exposed.end()) return;
    read = std::move(it->second);
    lane->second.exposed.erase(it);
    lane->second.unsent_bytes -= read->bytes;
  }
  Pump(worker);
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
      lane.pumping = !lane.waiting.empty() &&
                     MaySend(lane, lane.waiting.front().all_bytes());
      if (!lane.pumping) return;
      next = std::move(lane.waiting.front());
      lane.waiting.pop_front();
      lane.leaving = next.call;
      Count(lane, next);
    }
    // If the worker is lost, the wire notifies its calls.
    SendCounted(to, std::move(next)).IgnoreError();
    std::optional<WireMessage> recall;
    Wire* wire;
    {
      absl::MutexLock lock(&mutex_);
      lanes_[to].leaving = 0;
      recall.swap(lanes_[to].recall);
      wire = wire_;
    }
    if (recall.has_value()) wire->Send(to, *std::move(recall)).IgnoreError();
  }
}

bool CallOutbox::Lanes::Withdraw(int to, uint64_t call,
                                 std::optional<WireMessage> recall) {
  // Destroyed without the lock: it may hold the last handle of a tensor.
  Waiting withdrawn;
  Wire* wire;
  {
    absl::MutexLock lock(&mutex_);
    Lane& lane = lanes_[to];
    for (auto it = lane.waiting.begin(); it != lane.waiting.end(); ++it) {
      if (it->call != call) continue;
      withdrawn = std::move(*it);
      lane.waiting.erase(it);
      return true;
    }
    if (lane.leaving == call) {
      lane.recall = std::move(recall);
      return false;
    }
    wire = wire_;
  }
  if (recall.has_value()) wire->Send(to, *std::move(recall)).IgnoreError();
  return false;
}

void CallOutbox::Lanes::Drop(int worker, const absl::Status& why) {
  std::deque<Waiting> dropped;
  absl::flat_hash_map<uint64_t, ExposurePtr> unread;
  absl::MutexLock lock(&mutex_);
  Lane& lane = lanes_[worker];
  lane.lost = why;
  dropped.swap(lane.waiting);
  unread.swap(lane.exposed);
  for (const auto& [transfer, exposure] : unread) {
    lane.unsent_bytes -= exposure->bytes;
  }
}

CallOutbox::CallOutbox(uint64_t max_unsent_bytes)
    : lanes_(std::make_shared<Lanes>(max_unsent_bytes)) {}

CallOutbox::~CallOutbox() = default;

void CallOutbox::Attach(std::shared_ptr<Wire> wire) {
  owned_wire_ = std::move(wire);
  // First the queued messages: none of them is overtaken by a later one.
  lanes_->Open(owned_wire_.get());
  wire_.store(owned_wire_.get(), std::memory_order_release);
}

absl::Status CallOutbox::Send(int to, uint64_t call, WireMessage message,
                              std::shared_ptr<const Exposure> exposure) {
  Wire* const wire = this->wire();
  if (wire != nullptr && exposure == nullptr && IsSmall(message)) {
    return wire->Send(to, std::move(message));
  }
  const uint64_t bytes = BytesOf(message);
  return lanes_->Send(to,
                      {call, bytes, std::move(message), std::move(exposure)});
}

void CallOutbox::OnRead(int worker, uint64_t transfer) {
  lanes_->OnRead(worker, transfer);
}

bool CallOutbox::Withdraw(int to, uint64_t call,
                          std::optional<WireMessage> recall) {
  return lanes_->Withdraw(to, call, std::move(recall));
}

void CallOutbox::Drop(int worker, const absl::Status& why) {
  lanes_->Drop(worker, why);
}

}  // namespace sherd::internal
