#ifndef SHERD_BACKENDS_LOCAL_MAILBOX_H_
#define SHERD_BACKENDS_LOCAL_MAILBOX_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Sends and receives between the ranks of one group, matched by sender,
// receiver and tag, in the order of the calls. Whoever comes second copies.
//
// Threads. Everything from any thread.
class Mailbox {
 public:
  explicit Mailbox(int size) : ranks_(size, Member::kThere) {}

  // SEND or RECV of rank `rank`; returns once it ended.
  sherd_code Run(int rank, const sherd_op_v0& op, sherd_error_v0* error);

  // Ends the waits of `rank`, and those for it; so do later calls.
  void Abort(int rank);

  // The same for a rank that has no calls any more.
  void Leave(int rank);

 private:
  // Sender, receiver, tag.
  using Key = std::tuple<int, int, int64_t>;

  enum class Member { kThere, kAborted, kLeft };
  enum class State { kWaiting, kCopying, kEnded };

  // Half of a message, on the stack of the thread that waits for the other.
  struct Half {
    const sherd_op_v0& op;
    int peer;
    State state = State::kWaiting;
    sherd_code code = SHERD_OK;
    // Of the error.
    std::string text;
    std::condition_variable changed;
  };
  // All of one kind: sends that wait for a receive, or the reverse.
  using Queue = std::deque<Half*>;

  sherd_code Wait(std::unique_lock<std::mutex>& lock, const Key& key, Half& own,
                  sherd_error_v0* error);
  sherd_code Copy(std::unique_lock<std::mutex>& lock, Half& own, Half& other,
                  sherd_error_v0* error);
  void EndAll(int rank, Member state);
  static const char* Farewell(Member state);
  static void End(Half& half, sherd_code code, std::string text);

  std::mutex mutex_;
  std::map<Key, Queue> queues_;
  std::vector<Member> ranks_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_MAILBOX_H_
