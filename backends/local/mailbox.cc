#include "sherd/backends/local/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sherd/backends/local/wait_limit.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr char kAborted[] = "the rank aborted the group";
constexpr char kLeft[] = "the rank left the group";

}  // namespace

sherd_code Mailbox::Run(int rank, const sherd_op_v0& op,
                        sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int peer = op.root;
  if (ranks_[rank] == Member::kAborted) {
    return Fail(error, SHERD_ABORTED, -1, kAborted);
  }
  if (ranks_[peer] != Member::kThere) {
    return Fail(error, SHERD_PEER_LOST, peer, Farewell(ranks_[peer]));
  }
  const bool sends = op.op == SHERD_SEND;
  const Key key = {sends ? rank : peer, sends ? peer : rank, op.tag};
  Half own = {op, peer};
  Queue& queue = queues_[key];
  if (queue.empty() || queue.front()->op.op == op.op) {
    queue.push_back(&own);
    return Wait(lock, key, own, error);
  }
  Half& other = *queue.front();
  queue.pop_front();
  if (queue.empty()) queues_.erase(key);
  return Copy(lock, own, other, error);
}

void Mailbox::Abort(int rank) { EndAll(rank, Member::kAborted); }

void Mailbox::Leave(int rank) { EndAll(rank, Member::kLeft); }

void Mailbox::EndAll(int rank, Member state) {
  std::lock_guard<std::mutex> lock(mutex_);
  ranks_[rank] = state;
  for (auto it = queues_.begin(); it != queues_.end();) {
    auto& [key, queue] = *it;
    if (std::get<0>(key) != rank && std::get<1>(key) != rank) {
      ++it;
      continue;
    }
    for (Half* half : queue) {
      if (half->peer == rank) {
        End(*half, SHERD_PEER_LOST, Farewell(state));
      } else {
        half->peer = -1;
        End(*half, SHERD_ABORTED, Farewell(state));
      }
    }
    it = queues_.erase(it);
  }
}

const char* Mailbox::Farewell(Member state) {
  return state == Member::kAborted ? kAborted : kLeft;
}

sherd_code Mailbox::Wait(std::unique_lock<std::mutex>& lock, const Key& key,
                         Half& own, sherd_error_v0* error) {
  const auto begun = [&] { return own.state != State::kWaiting; };
  if (!WaitUntil(own.changed, lock, own.op.deadline, begun)) {
    const auto it = queues_.find(key);
    it->second.erase(std::find(it->second.begin(), it->second.end(), &own));
    if (it->second.empty()) queues_.erase(it);
    return Fail(error, SHERD_TIMEOUT, own.peer, "did not come in time");
  }
  // Not bounded: the other side only copies, and returning now would let the
  // caller free what it uses.
  own.changed.wait(lock, [&] { return own.state == State::kEnded; });
  if (own.code == SHERD_OK) return SHERD_OK;
  return Fail(error, own.code, own.peer, own.text.c_str());
}

sherd_code Mailbox::Copy(std::unique_lock<std::mutex>& lock, Half& own,
                         Half& other, sherd_error_v0* error) {
  const bool sends = own.op.op == SHERD_SEND;
  const Half& from = sends ? own : other;
  const Half& to = sends ? other : own;
  if (from.op.bytes != to.op.bytes) {
    const std::string tag = " bytes with tag " + std::to_string(own.op.tag);
    const std::string sent = std::to_string(from.op.bytes);
    const std::string expected = std::to_string(to.op.bytes);
    const std::string for_sender =
        "expects " + expected + tag + ", this rank sends " + sent;
    const std::string for_receiver =
        "sends " + sent + tag + ", this rank expects " + expected;
    End(other, SHERD_INVALID_ARGUMENT, sends ? for_receiver : for_sender);
    return Fail(error, SHERD_INVALID_ARGUMENT, own.peer,
                (sends ? for_sender : for_receiver).c_str());
  }
  other.state = State::kCopying;
  lock.unlock();
  if (own.op.bytes > 0) std::memcpy(to.op.out, from.op.in, own.op.bytes);
  lock.lock();
  End(other, SHERD_OK, "");
  return SHERD_OK;
}

// Called under the lock: `half` is destroyed once its thread sees the result.
void Mailbox::End(Half& half, sherd_code code, std::string text) {
  half.code = code;
  half.text = std::move(text);
  half.state = State::kEnded;
  half.changed.notify_one();
}

}  // namespace sherd::internal
