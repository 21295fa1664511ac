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

// What a worker does at a moment.
struct DrainCounts {
  // It has no call outstanding and runs none.
  bool idle = false;
  // Requests that it ever sent to and received from those that count.
  uint64_t sent = 0;
  uint64_t received = 0;
};

// How workers find out that no call is outstanding or running on any of them:
// Mattern's four-counter method. The coordinator, the lowest rank that is left,
// asks all in waves. A worker answers once it has joined and is idle. Two
// successive waves in which as many requests were received as sent, the same
// number in both, prove that nothing was on its way between them. Then the
// coordinator tells all (AGREED), and when each has acknowledged it, that they
// may go (LEAVE): so if a coordinator is lost, either all that are left answer
// the next one's waves, or one of them knows that there is agreement.
//
// A worker that is lost is left out, and so are requests to and from it.
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

  // Each returns what is to be sent.

  Messages OnMessage(int from, const DrainHeader& header);
  // `worker` takes no part any more. `why`: it died, or gave up; empty: it
  // left.
  void OnGone(int worker, absl::string_view why);
  // This worker waits for the agreement from now on.
  void Join() { joined_ = true; }
  // After anything above, and when this worker may have become idle. The next
  // wave begins only if `new_wave`.
  Messages Advance(const Look& look, bool new_wave);
  // This worker no longer waits. Not after agreed().
  Messages GiveUp();

  // No call is left: what follows only lets the others know.
  bool agreed() const { return phase_ != Phase::kCounting; }
  // This worker may go.
  bool over() const { return phase_ == Phase::kOver; }
  // The last wave found requests on their way; another one is due, which should
  // wait a little.
  bool wave_is_due() const { return wave_is_due_; }

  // Those that died or gave up before there was agreement, as this worker or
  // the coordinator saw it, and why.
  std::map<int, std::string> lost() const;
  // Those that this worker waits for.
  std::vector<int> Missing() const;

 private:
  enum class Phase { kCounting, kAgreed, kOver };
  struct Wave {
    uint64_t number = 0;
    std::set<int> excluded;
  };

  int Coordinator() const;
  Messages ToOthers(const DrainHeader& header) const;
  // What this worker says once there is agreement.
  DrainHeader Agreed() const;
  // `lost`: by others; this worker may not know yet.
  void Agree(const std::vector<int>& lost);
  std::set<int> Gone() const;
  void AdvanceCount(const Look& look, bool new_wave, Messages& messages);

  const int rank_;
  const int size_;
  bool joined_ = false;
  bool wave_is_due_ = false;
  Phase phase_ = Phase::kCounting;
  // Those that take no part any more, and why.
  std::map<int, std::string> gone_;
  // Asked of this worker and not answered, by coordinator: a late wave of one
  // that is gone must not replace that of the next one.
  std::map<int, Wave> asked_;

  // Of the coordinator.
  uint64_t wave_ = 0;
  // Reports of the wave under way; none are expected where it is empty.
  std::optional<std::map<int, DrainCounts>> reports_;
  // How many requests the last wave saw both sent and received.
  std::optional<uint64_t> balance_;
  // It has told the others that there is agreement.
  bool told_ = false;
  std::set<int> acknowledged_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_DRAIN_AGREEMENT_H_
