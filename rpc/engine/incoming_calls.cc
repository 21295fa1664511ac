#include "sherd/rpc/engine/incoming_calls.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"

namespace sherd::internal {

bool IncomingCalls::Add(std::shared_ptr<IncomingCall> call) {
  absl::MutexLock lock(&mutex_);
  const Key key(call->from, call->id);
  return calls_.emplace(key, std::move(call)).second;
}

std::optional<Payload> IncomingCalls::Begin(const IncomingCall& call) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find({call.from, call.id});
  if (it == calls_.end() || it->second.get() != &call) return std::nullopt;
  return std::exchange(it->second->payload, {});
}

bool IncomingCalls::PutBack(const IncomingCall& call, Payload payload) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find({call.from, call.id});
  if (it == calls_.end() || it->second.get() != &call) return false;
  it->second->payload = std::move(payload);
  return true;
}

std::shared_ptr<IncomingCall> IncomingCalls::Remove(int from, uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find({from, id});
  if (it == calls_.end()) return nullptr;
  std::shared_ptr<IncomingCall> call = std::move(it->second);
  calls_.erase(it);
  return call;
}

std::shared_ptr<CallContext> IncomingCalls::Cancel(int from, uint64_t id) {
  // Both are destroyed without the lock, as below.
  std::shared_ptr<IncomingCall> call;
  Payload payload;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = calls_.find({from, id});
    if (it == calls_.end()) return nullptr;
    it->second->context->Cancel();
    payload = std::exchange(it->second->payload, {});
    call = std::move(it->second);
    calls_.erase(it);
  }
  return call->context;
}

std::vector<std::shared_ptr<CallContext>> IncomingCalls::CancelIf(
    const std::function<bool(const IncomingCall&)>& chosen) {
  // Destroyed without the lock: they may hold the last handle of anything. The
  // pool may hold a call for longer, but not what it brought.
  std::vector<std::pair<std::shared_ptr<IncomingCall>, Payload>> dropped;
  std::vector<std::shared_ptr<CallContext>> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    absl::erase_if(calls_, [&](auto& entry) {
      if (!chosen(*entry.second)) return false;
      entry.second->context->Cancel();
      cancelled.push_back(entry.second->context);
      Payload payload = std::exchange(entry.second->payload, {});
      dropped.emplace_back(std::move(entry.second), std::move(payload));
      return true;
    });
  }
  return cancelled;
}

std::vector<CallUnderWay> IncomingCalls::UnderWay() const {
  std::vector<CallUnderWay> calls;
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, call] : calls_) {
    calls.push_back({.incoming = true,
                     .peer = call->from,
                     .id = call->id,
                     .method = std::string(call->context->method()),
                     .state = call->state.load(std::memory_order_relaxed),
                     .started = call->started,
                     .deadline = call->context->deadline()});
  }
  return calls;
}

Deadline IncomingCalls::EarliestDeadline() const {
  Deadline earliest = Deadline::Infinite();
  absl::MutexLock lock(&mutex_);
  for (const auto& [key, call] : calls_) {
    earliest = Deadline::Earlier(earliest, call->context->deadline());
  }
  return earliest;
}

void IncomingCalls::KeepReferences(
    int from, uint64_t id, std::vector<std::shared_ptr<void>> references) {
  absl::MutexLock lock(&mutex_);
  references_[{from, id}] = std::move(references);
}

void IncomingCalls::ReleaseReferences(int from, uint64_t id) {
  References released;
  absl::MutexLock lock(&mutex_);
  const auto it = references_.find({from, id});
  if (it == references_.end()) return;
  released = std::move(it->second);
  references_.erase(it);
}

void IncomingCalls::ReleaseAllReferences(int from) {
  std::vector<References> released;
  absl::MutexLock lock(&mutex_);
  absl::erase_if(references_, [&](auto& entry) {
    if (entry.first.first != from) return false;
    released.push_back(std::move(entry.second));
    return true;
  });
}

}  // namespace sherd::internal
