#ifndef SHERD_CORE_COMM_COLLECTIVE_CALL_COMPARISON_H_
#define SHERD_CORE_COMM_COLLECTIVE_CALL_COMPARISON_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective/call_signature.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::internal {

// Detects that ranks made different calls before any of them moves data. In a
// vendor's library such a mismatch leads to a hang, wrong results or a crash.
//
// On a board, for ranks of one host: memory that all ranks of the group map.
// Each rank records its call and compares it with the first one recorded; for v
// operations it also records how much it sends to whom, and checks the ranks
// that came before. Of two ranks that differ at least one sees the other's
// record, fails before it sends anything, and notifies the rest. No rank waits
// for another, except that no rank may run more than some hundred calls (some v
// operations) ahead.
//
// By messages, elsewhere: each call is preceded by an exchange of one line with
// every rank. Calls on devices are not compared then.
//
// call_signature.h defines what is compared, and which rank deviates. The rank
// that sees a difference waits until it knows the calls of all ranks: until all
// have made theirs, one of them failed, or its deadline is near.
//
// Cost. On a board, one cache line written and one compared; v operations, one
// line per rank. By messages, one all_to_all of 48 bytes.
//
// Threads. Compare by one thread at a time for calls on the host, and by one
// for those on devices; the rest from any.
class CallComparison {
 public:
  // One all_to_all_v of the group.
  using Exchange =
      absl::FunctionRef<absl::Status(absl::Span<const ConstBytes> sends,
                                     absl::Span<const MutableBytes> recvs)>;

  // Collective over the ranks of `store`, which run on one host as one user.
  // Rank 0's object must live until all others have returned: the caller's next
  // step waits for them.
  //   kFailedPrecondition  The board of rank 0 cannot be mapped.
  //   kUnavailable         Rank 0 has given up, or ended.
  static absl::StatusOr<std::unique_ptr<CallComparison>> OnBoard(
      Store& store, int rank, int size, Deadline deadline);

  static std::unique_ptr<CallComparison> ByMessages(int rank, int size);

  // From now on there may be calls on devices too.
  void ExpectDeviceCalls() { has_device_calls_ = true; }

  // Polled while a difference is being resolved: whether a rank died or failed,
  // and so will not record its call.
  void WatchRanks(std::function<bool()> has_failed_rank) {
    has_failed_rank_ = std::move(has_failed_rank);
  }

  CallComparison(const CallComparison&) = delete;
  CallComparison& operator=(const CallComparison&) = delete;

  // OK if no difference is known. `exchange` is used by messages only.
  //   kInvalidArgument   The ranks made different calls; the message lists each
  //                      rank's call. FailedRank() is the one that deviates, if
  //                      one does.
  //   kDeadlineExceeded  A rank is too far behind.
  absl::Status Compare(const Collective& desc, Exchange exchange);

  // Records that this rank's group failed; the board keeps which rank recorded
  // it first. On a board only: no effect otherwise.
  void Fail();
  std::optional<int> FailedRank() const;

  // Leave records that this rank makes no more calls; RankThatLeft returns a
  // rank that left before it made call number `sequence`. On a board only.
  void Leave();
  std::optional<int> RankThatLeft(uint64_t sequence) const;

  // The ranks that have not made call number `sequence` yet, as far as known.
  std::vector<int> RanksBehind(uint64_t sequence) const;

 private:
  // A rank's call, as ranks exchange it.
  struct Call {
    uint64_t sequence = 0;
    CallSignature signature;
  };
  // The message form of a call, with the bytes that this rank sends to the
  // reader and expects from it.
  struct Line {
    Call call;
    uint64_t sent = 0;
    uint64_t wanted = 0;
  };
  using Word = std::atomic<uint64_t>;

  CallComparison(int rank, int size) : rank_(rank), size_(size) {}

  // Bytes from this rank to `peer`, and from it, in a v operation.
  Line LineFor(const Collective& desc, int peer) const;

  absl::Status CompareByMessages(const Collective& desc, Exchange exchange);
  absl::Status CompareOnBoard(const Collective& desc);
  absl::Status CompareLengths(const Collective& desc);
  absl::Status KeepPace(int word, uint64_t least, Deadline deadline);
  void Publish(const Call& call);
  bool IsFirstOrEqual(const Call& call);
  // The calls of all ranks, as far as they are known in time.
  std::vector<std::optional<Call>> AwaitCalls(uint64_t sequence,
                                              Deadline deadline) const;
  std::optional<Call> Published(int rank, uint64_t sequence) const;
  // Shared words: one per call, then an area per rank.
  Word& Slot(uint64_t sequence) const;
  Word* Area(int rank) const;
  Word* Lengths(bool on_device, int rank, uint64_t count) const;
  void MarkDone(Word& word, uint64_t sequence);

  // The error of a difference between the known calls[r], or OK.
  absl::Status Judge(const std::vector<std::optional<Call>>& calls);
  absl::Status DifferAboutLength(const Collective& desc, int from,
                                 uint64_t sent, int to, uint64_t wanted);
  // The error of a difference. On a board all ranks use the first one recorded.
  absl::Status Differ(CallDifference difference);

  const int rank_;
  const int size_;
  // Of calls on the host, and on devices.
  std::array<uint64_t, 2> with_lengths_ = {};
  bool has_device_calls_ = false;
  std::function<bool()> has_failed_rank_;
  // The board, in memory of `shared_`; null by messages.
  Word* board_ = nullptr;
  SharedSegment shared_;
  std::vector<Line> outgoing_, incoming_;
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_CALL_COMPARISON_H_
