#ifndef SHERD_RPC_ENGINE_DRAIN_AGREEMENT_H_
#define SHERD_RPC_ENGINE_DRAIN_AGREEMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/rpc/engine/call_codec.h"

namespace sherd::internal {

// The activity of a worker at one moment.
struct DrainCounts {
  // No call is outstanding or running here.
  bool idle = false;
  // All requests that it sent to and received from the workers that count.
  uint64_t sent = 0;
  uint64_t received = 0;
};

// How workers determine that no call is outstanding or running on any of them:
// Mattern's four-counter method. The coordinator, the lowest remaining rank,
// asks all in waves. A worker answers once it has joined and is idle. Two
// successive waves in which as many requests were received as sent, the same
// number in both, prove that nothing was under way between them. Then the
// coordinator notifies all (AGREED), and when each has acknowledged it, that
// they may leave (LEAVE): so if a coordinator is lost, either all remaining
// workers answer the next one's waves, or one of them knows of the agreement.
//
// A lost worker is excluded, and so are requests to and from it.
//
// Workers are linked with rank 0 from the start, and with others from the first
// message. So a worker sends each other coordinator one, and is notified if
// that is lost too, even before its first wave.
//
// A pure state machine: no threads, no clock. Calls one at a time.
class DrainAgreement {
 public:
  struct Message {
    int to;
    DrainHeader header;
  };
  using Messages = std::vector<Message>;
  // Counts of requests without those to and from `excluded`.
  using Look = std::function<DrainCounts(const std::set<int>& excluded)>;

  DrainAgreement(int rank, int world_size);

  // Each returns the messages to send.

  Messages OnMessage(int from, const DrainHeader& header);
  // `worker` no longer takes part. `why`: it died, or gave up; empty: it left.
  void OnGone(int worker, absl::string_view why);
  // This worker waits for the agreement from now on.
  void Join() { joined_ = true; }
  // After anything above, and when this worker may have become idle. The next
  // wave begins only if `new_wave`.
  Messages Advance(const Look& look, bool new_wave);
  // This worker no longer waits. Not after agreed().
  Messages GiveUp();

  // No call is left: further messages only notify the others.
  bool agreed() const { return phase_ != Phase::kCounting; }
  // This worker may leave.
  bool over() const { return phase_ == Phase::kOver; }
  // The last wave found requests under way; another wave is due, after a short
  // wait.
  bool wave_is_due() const { return wave_is_due_; }

  // Workers that died or gave up before the agreement, as seen by this worker
  // or the coordinator, and why.
  std::map<int, std::string> lost() const;
  // The workers that this one waits for.
  std::vector<int> Missing() const;

 private:
  enum class Phase { kCounting, kAgreed, kOver };
  struct Wave {
    uint64_t number = 0;
    std::set<int> excluded;
  };

  int Coordinator() const;
  Messages ToOthers(const DrainHeader& header) const;
  // This worker's message after the agreement.
  DrainHeader Agreed() const;
  // `lost`: reported by others; this worker may not know yet.
  void Agree(const std::vector<int>& lost);
  std::set<int> Gone() const;
  // Sends a new coordinator a report of no wave.
  void Greet(Messages& messages);
  void AdvanceCount(const Look& look, bool new_wave, Messages& messages);

  const int rank_;
  const int size_;
  bool joined_ = false;
  bool wave_is_due_ = false;
  Phase phase_ = Phase::kCounting;
  // Workers that no longer take part, and why.
  std::map<int, std::string> gone_;
  // Waves that this worker has not answered, by coordinator: a late wave of a
  // lost coordinator must not replace that of the next one.
  std::map<int, Wave> asked_;
  // The last coordinator with which this worker is linked.
  int greeted_ = 0;

  // Of the coordinator.
  uint64_t wave_ = 0;
  // Reports of the wave under way; unset: none is.
  std::optional<std::map<int, DrainCounts>> reports_;
  // How many requests the last wave saw both sent and received.
  std::optional<uint64_t> balance_;
  // The others were notified of the agreement.
  bool told_ = false;
  std::set<int> acknowledged_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_DRAIN_AGREEMENT_H_
