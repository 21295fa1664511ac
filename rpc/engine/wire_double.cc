#include "sherd/rpc/engine/wire_double.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"

namespace sherd::internal {

class FakeNetwork::NodeWire : public Wire {
 public:
  NodeWire(FakeNetwork* network, int rank) : network_(network), rank_(rank) {}
  int rank() const override { return rank_; }
  const std::vector<std::string>& names() const override {
    return network_->names_;
  }
  absl::Status Send(int to, WireMessage message) override {
    return network_->Send(rank_, to, std::move(message));
  }
  absl::Status Goodbye(Deadline /*deadline*/) override {
    network_->Leave(rank_);
    return absl::OkStatus();
  }

 private:
  FakeNetwork* const network_;
  const int rank_;
};

FakeNetwork::FakeNetwork(int size, uint64_t seed)
    : size_(size), random_(seed), nodes_(static_cast<size_t>(size)) {
  for (int r = 0; r < size; ++r) {
    names_.push_back(absl::StrCat("worker", r));
    Node& node = nodes_[r];
    node.wire = std::make_shared<NodeWire>(this, r);
    node.inbox.resize(static_cast<size_t>(size));
    node.gone.resize(static_cast<size_t>(size));
  }
  for (int r = 0; r < size; ++r) {
    nodes_[r].thread = std::thread([this, r] { Run(r); });
  }
}

FakeNetwork::~FakeNetwork() { Stop(); }

void FakeNetwork::Stop() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (Node& node : nodes_) {
      if (node.thread.joinable()) threads.push_back(std::move(node.thread));
    }
  }
  for (std::thread& thread : threads) thread.join();
}

std::shared_ptr<Wire> FakeNetwork::wire(int rank) const {
  absl::MutexLock lock(&mutex_);
  return nodes_[rank].wire;
}

void FakeNetwork::Connect(int rank, Wire::Handler* handler) {
  absl::MutexLock lock(&mutex_);
  nodes_[rank].handler = handler;
}

void FakeNetwork::SetFilter(Filter filter) {
  absl::MutexLock lock(&mutex_);
  filter_ = std::move(filter);
}

void FakeNetwork::SetTailHook(std::function<void(int, int)> hook) {
  absl::MutexLock lock(&mutex_);
  tail_hook_ = std::move(hook);
}

void FakeNetwork::ReleaseHeld() {
  std::vector<std::function<void()>> held;
  {
    absl::MutexLock lock(&mutex_);
    held.swap(held_);
  }
  for (const auto& deliver : held) deliver();
}

bool FakeNetwork::IsDead(int rank) {
  absl::MutexLock lock(&mutex_);
  return nodes_[rank].dead;
}

absl::Status FakeNetwork::Send(int from, int to, WireMessage message) {
  SHERD_CHECK(from != to);
  Filter filter;
  {
    absl::MutexLock lock(&mutex_);
    if (!nodes_[from].gone[to].ok()) return nodes_[from].gone[to];
    filter = filter_;
  }
  if (send_hook_ != nullptr) send_hook_(from, message);
  const Fate fate =
      filter == nullptr ? Fate::kDeliver : filter(from, to, message.control);
  if (fate == Fate::kLose) {
    if (message.on_sent != nullptr) message.on_sent(absl::OkStatus());
    return absl::OkStatus();
  }
  if (fate == Fate::kUnsent) {
    if (message.on_sent != nullptr) {
      message.on_sent(
          WithRank(absl::ResourceExhaustedError("no descriptors"), to));
    }
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  // A filter that was removed meanwhile holds nothing: the thread that removed
  // it has released the held messages already.
  if (fate == Fate::kHold && filter_ != nullptr) {
    held_.push_back([this, from, to, message = std::move(message)]() mutable {
      Event event;
      event.message = std::move(message);
      absl::MutexLock relock(&mutex_);
      nodes_[to].inbox[from].push_back(std::move(event));
    });
    return absl::OkStatus();
  }
  Event event;
  event.message = std::move(message);
  nodes_[to].inbox[from].push_back(std::move(event));
  return absl::OkStatus();
}

void FakeNetwork::Run(int rank) {
  for (;;) {
    Event event;
    int from = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        const Node& node = nodes_[rank];
        return stopping_ ||
               (node.handler != nullptr &&
                std::any_of(node.inbox.begin(), node.inbox.end(),
                            [](const auto& queue) { return !queue.empty(); }));
      };
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) return;
      do {
        from = static_cast<int>(random_() % static_cast<uint64_t>(size_));
      } while (nodes_[rank].inbox[from].empty());
      event = std::move(nodes_[rank].inbox[from].front());
      nodes_[rank].inbox[from].pop_front();
    }
    Deliver(from, rank, std::move(event));
  }
}

void FakeNetwork::Deliver(int from, int to, Event event) {
  Wire::Handler* handler;
  {
    absl::MutexLock lock(&mutex_);
    handler = nodes_[to].handler;
  }
  if (!event.gone.ok()) {
    if (event.left) {
      handler->OnLeft(from, event.gone);
    } else {
      handler->OnLost(from, event.gone);
    }
    return;
  }
  uint64_t tail_bytes = event.announced_bytes;
  for (const auto& part : event.message.tail) tail_bytes += part.size();
  const absl::Status status =
      DeliverMessage(from, to, event.message, tail_bytes);
  if (event.message.on_sent != nullptr) event.message.on_sent(status);
  // The memory of the tail may be freed before this function is.
  event.message.on_sent = nullptr;
  if (!status.ok() && !IsDead(from) && !IsDead(to)) {
    absl::MutexLock lock(&mutex_);
    MarkGone(to, from, status, /*left=*/false);
    MarkGone(from, to,
             absl::UnavailableError(absl::StrCat("worker", to, " hung up")),
             /*left=*/false);
  }
  if (event.injected != nullptr) event.injected(status);
}

absl::Status FakeNetwork::DeliverMessage(int from, int to,
                                         const WireMessage& message,
                                         uint64_t tail_bytes) {
  if (IsDead(from) || IsDead(to)) {
    return absl::UnavailableError("one end of the connection is gone");
  }
  Wire::Handler* handler;
  std::function<void(int, int)> hook;
  {
    absl::MutexLock lock(&mutex_);
    handler = nodes_[to].handler;
    hook = tail_hook_;
  }
  uint64_t ticket = 0;
  absl::StatusOr<std::vector<absl::Span<std::byte>>> destinations =
      handler->OnControl(from, message.control, tail_bytes, &ticket);
  if (!destinations.ok()) return destinations.status();
  if (tail_bytes == 0 || message.tail.empty()) return absl::OkStatus();
  std::vector<std::byte> bytes;
  for (const auto& part : message.tail) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  size_t at = 0;
  const size_t half = bytes.size() / 2;
  const auto copy_until = [&](size_t end) {
    size_t begin = 0;
    for (const absl::Span<std::byte> part : *destinations) {
      const size_t from_byte = std::max(at, begin);
      const size_t to_byte = std::min(end, begin + part.size());
      if (from_byte < to_byte) {
        std::memcpy(part.data() + (from_byte - begin), &bytes[from_byte],
                    to_byte - from_byte);
      }
      begin += part.size();
    }
    SHERD_CHECK(destinations->empty() || begin == bytes.size());
    at = end;
  };
  copy_until(half);
  if (hook != nullptr) hook(from, to);
  if (IsDead(from) || IsDead(to)) {
    return absl::UnavailableError("the connection ended in a tail");
  }
  copy_until(bytes.size());
  handler->OnTail(from, ticket);
  return absl::OkStatus();
}

void FakeNetwork::MarkGone(int at, int who, const absl::Status& why,
                           bool left) {
  Node& node = nodes_[at];
  if (!node.gone[who].ok()) return;
  const absl::Status named =
      absl::UnavailableError(absl::StrCat(names_[who], ": ", why.message()));
  node.gone[who] = left ? WithRank(named, who) : WithFailedRank(named, who);
  Event event;
  event.gone = node.gone[who];
  event.left = left;
  node.inbox[who].push_back(std::move(event));
}

void FakeNetwork::End(int rank, const absl::Status& why, bool left) {
  std::vector<Event> dropped;
  {
    absl::MutexLock lock(&mutex_);
    nodes_[rank].dead = !left;
    for (int r = 0; r < size_; ++r) {
      if (r == rank) continue;
      // Messages that it sent before a goodbye arrive.
      for (auto* queue :
           {&nodes_[rank].inbox[r], left ? nullptr : &nodes_[r].inbox[rank]}) {
        if (queue == nullptr) continue;
        for (Event& event : *queue) dropped.push_back(std::move(event));
        queue->clear();
      }
      if (nodes_[r].dead) continue;
      MarkGone(r, rank, why, left);
      nodes_[rank].gone[r] = absl::UnavailableError("this worker has ended");
    }
  }
  for (Event& event : dropped) {
    if (event.message.on_sent != nullptr) event.message.on_sent(why);
  }
}

void FakeNetwork::Kill(int rank) {
  End(rank, absl::UnavailableError("its process ended"), /*left=*/false);
}

void FakeNetwork::Leave(int rank) {
  End(rank, absl::UnavailableError("it said goodbye"), /*left=*/true);
}

absl::Status FakeNetwork::Inject(int from, int to, std::string control,
                                 uint64_t tail_bytes) {
  absl::Status result;
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    Event event;
    event.message.control = std::move(control);
    event.announced_bytes = tail_bytes;
    event.injected = [&](const absl::Status& status) {
      result = status;
      done.Notify();
    };
    nodes_[to].inbox[from].push_back(std::move(event));
  }
  done.WaitForNotification();
  return result;
}

}  // namespace sherd::internal
