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
// receiver and tag, in the order of the calls. The second of the two calls
// copies.
//
// Threads. All functions from any thread.
class Mailbox {
 public:
  explicit Mailbox(int size) : ranks_(size, Member::kThere) {}

  // Runs SEND or RECV of rank `rank`; returns once it has ended.
  sherd_code Run(int rank, const sherd_op_v0& op, sherd_error_v0* error);

  // Ends the waits of `rank`, and those for it; later calls end at once.
  void Abort(int rank);

  // The same for a rank that will make no more calls.
  void Leave(int rank);

 private:
  // Sender, receiver, tag.
  using Key = std::tuple<int, int, int64_t>;

  enum class Member { kThere, kAborted, kLeft };
  enum class State { kWaiting, kCopying, kEnded };

  // One end of a message, on the stack of the thread that waits for the other
  // end.
  struct Half {
    const sherd_op_v0& op;
    int peer;
    State state = State::kWaiting;
    sherd_code code = SHERD_OK;
    // Text of the error.
    std::string text;
    std::condition_variable changed;
  };
  // All entries are sends that wait for a receive, or all are receives.
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
