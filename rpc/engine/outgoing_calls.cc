#include "sherd/rpc/engine/outgoing_calls.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

void OutgoingCalls::Add(std::shared_ptr<OutgoingCall> call) {
  Shard& shard = ShardOf(call->id);
  absl::MutexLock lock(&shard.mutex);
  const uint64_t id = call->id;
  shard.calls[id].call = std::move(call);
}

std::shared_ptr<OutgoingCall> OutgoingCalls::Take(uint64_t id,
                                                  const absl::Status& status,
                                                  int to) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.calls.find(id);
  if (it == shard.calls.end()) return nullptr;
  if (to != -1 && it->second.call->to != to) return nullptr;
  if (it->second.claimed) {
    it->second.end.Update(status);
    return nullptr;
  }
  std::shared_ptr<OutgoingCall> call = std::move(it->second.call);
  shard.calls.erase(it);
  return call;
}

std::vector<std::shared_ptr<OutgoingCall>> OutgoingCalls::TakeIf(
    const std::function<bool(const OutgoingCall&)>& chosen,
    const absl::Status& status) {
  std::vector<std::shared_ptr<OutgoingCall>> taken;
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    absl::erase_if(shard.calls, [&](auto& entry) {
      if (!chosen(*entry.second.call)) return false;
      if (entry.second.claimed) {
        entry.second.end.Update(status);
        return false;
      }
      taken.push_back(std::move(entry.second.call));
      return true;
    });
  }
  return taken;
}

std::optional<std::vector<Tensor>> OutgoingCalls::Claim(uint64_t id, int from) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.calls.find(id);
  if (it == shard.calls.end() || it->second.call->to != from ||
      it->second.claimed) {
    return std::nullopt;
  }
  it->second.claimed = !it->second.call->out.empty();
  return it->second.call->out;
}

std::shared_ptr<OutgoingCall> OutgoingCalls::Release(uint64_t id,
                                                     absl::Status& end) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.calls.find(id);
  if (it == shard.calls.end()) return nullptr;
  std::shared_ptr<OutgoingCall> call = std::move(it->second.call);
  end = std::move(it->second.end);
  shard.calls.erase(it);
  return call;
}

void OutgoingCalls::MarkSent(uint64_t id) {
  Shard& shard = ShardOf(id);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.calls.find(id);
  if (it != shard.calls.end()) it->second.sent = true;
}

std::vector<CallUnderWay> OutgoingCalls::UnderWay() const {
  std::vector<CallUnderWay> calls;
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    for (const auto& [id, entry] : shard.calls) {
      const OutgoingCall& call = *entry.call;
      calls.push_back({.peer = call.to,
                       .id = id,
                       .method = call.method,
                       .state = entry.claimed ? "landing"
                                : entry.sent  ? "sent"
                                              : "queued",
                       .started = call.started,
                       .deadline = call.deadline});
    }
  }
  return calls;
}

Deadline OutgoingCalls::EarliestDeadline() const {
  Deadline earliest = Deadline::Infinite();
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    for (const auto& [id, entry] : shard.calls) {
      if (!entry.end.ok()) continue;
      earliest = Deadline::Earlier(earliest, entry.call->deadline);
    }
  }
  return earliest;
}

}  // namespace sherd::internal
