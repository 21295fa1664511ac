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

bool IncomingCalls::Admit(const IncomingCall& call,
                          std::vector<std::shared_ptr<void>>& handles) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find({call.from, call.id});
  if (it == calls_.end() || it->second.get() != &call) return false;
  it->second->payload.references_keep = std::move(handles);
  return true;
}

std::shared_ptr<IncomingCall> IncomingCalls::Take(int from, uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find({from, id});
  if (it == calls_.end()) return nullptr;
  std::shared_ptr<IncomingCall> call = std::move(it->second);
  calls_.erase(it);
  return call;
}

std::vector<std::shared_ptr<IncomingCall>> IncomingCalls::TakeIf(
    const std::function<bool(const IncomingCall&)>& chosen) {
  std::vector<std::shared_ptr<IncomingCall>> taken;
  absl::MutexLock lock(&mutex_);
  absl::erase_if(calls_, [&](auto& entry) {
    if (!chosen(*entry.second)) return false;
    taken.push_back(std::move(entry.second));
    return true;
  });
  return taken;
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

}  // namespace sherd::internal
