// Calls in flight, in numbers and in any order, and messages between two ranks.

#include <sched.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/work.h"
#include "sherd/testing/conformance/conformance_call.h"
#include "sherd/testing/conformance/conformance_case.h"

namespace sherd::testing::internal {
namespace {

// Calls in flight together. Buffers live until all have ended.
class InFlight {
 public:
  explicit InFlight(ConformanceRank& rank) : rank_(rank) {}

  // All ranks must start calls with data of their own in the same order.
  Work Start(const CallSpec& spec) {
    return StartNumbered(spec, ++rank_.calls);
  }

  Work StartNumbered(const CallSpec& spec, uint64_t number) {
    specs_.push_back(spec);
    calls_.emplace_back(spec, number, rank_.rank(), rank_.size());
    return calls_.back().Start(rank_.group);
  }

  // Call `index`, in the order of Start, ended with `status`.
  absl::Status Check(size_t index, const absl::Status& status) {
    if (!status.ok()) {
      return ExplainFailure(rank_.group, specs_[index], status);
    }
    return calls_[index].Check(RoundingOf(rank_, specs_[index]));
  }

  size_t size() const { return calls_.size(); }

 private:
  ConformanceRank& rank_;
  std::deque<Call> calls_;
  std::deque<CallSpec> specs_;
};

// Polls `work` to its end.
absl::Status Poll(Work& work) {
  const Deadline deadline = Deadline::After(2 * ConformanceTimeout());
  while (!work.Test()) {
    if (deadline.HasPassed()) {
      return Fault("Test() reports for twice the timeout that a call runs");
    }
    sched_yield();
  }
  return work.Wait();
}

absl::Status TestPollsToCompletion(ConformanceRank& rank) {
  for (const size_t count : {size_t{5}, size_t{300'000}}) {
    InFlight calls(rank);
    Work reduce = calls.Start(
        {.op = CollectiveOp::kAllReduce, .count = count, .dtype = kInt32});
    Work gather = calls.Start({.op = CollectiveOp::kAllGather, .count = count});
    SHERD_RETURN_IF_ERROR(calls.Check(0, Poll(reduce)));
    SHERD_RETURN_IF_ERROR(calls.Check(1, Poll(gather)));
    // Again: the same outcome, at once.
    if (!reduce.Test() || !reduce.Wait().ok()) {
      return Fault("a Work that has ended changes its mind");
    }
  }
  return absl::OkStatus();
}

// A thousand calls (fewer where many ranks share the cores), waited for from
// the last to the first.
absl::Status ThousandInFlight(ConformanceRank& rank) {
  const int count = rank.size() <= 4 ? 1'000 : 300;
  const CollectiveOp kinds[] = {CollectiveOp::kAllReduce,
                                CollectiveOp::kAllGather,
                                CollectiveOp::kAllToAllV};
  InFlight calls(rank);
  std::vector<Work> works;
  for (int i = 0; i < count; ++i) {
    const CollectiveOp op = kinds[i % 3];
    works.push_back(calls.Start({.op = op,
                                 .lists = op == CollectiveOp::kAllToAllV,
                                 .count = size_t{1} + i % 4,
                                 .dtype = kInt16}));
  }
  for (size_t i = works.size(); i-- > 0;) {
    SHERD_RETURN_IF_ERROR(calls.Check(i, works[i].Wait()));
  }
  return absl::OkStatus();
}

// No rank waits for these calls, but a synchronous one follows them.
absl::Status DroppedWork(ConformanceRank& rank) {
  InFlight calls(rank);
  for (int i = 0; i < 20; ++i) {
    calls.Start(
        {.op = i % 2 == 0 ? CollectiveOp::kBroadcast : CollectiveOp::kAllReduce,
         .count = 1'003,
         .dtype = kFloat32,
         .root = i % rank.size()});
  }
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  for (size_t i = 0; i < calls.size(); ++i) {
    SHERD_RETURN_IF_ERROR(calls.Check(i, absl::OkStatus()));
  }
  return absl::OkStatus();
}

absl::Status Asynchronous(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(TestPollsToCompletion(rank));
  SHERD_RETURN_IF_ERROR(DroppedWork(rank));
  return ThousandInFlight(rank);
}

bool HasMessages(const ConformanceRank& rank) {
  return rank.group.PathOf(CollectiveOp::kSend) != OperationPath::kUnsupported;
}

// Every rank sends to the next and receives from the previous one, all at the
// same time.
absl::Status Ring(ConformanceRank& rank) {
  const int next = (rank.rank() + 1) % rank.size();
  const int before = (rank.rank() + rank.size() - 1) % rank.size();
  for (const size_t count : {0, 1, 1'003, 1'000'003}) {
    const uint64_t number = ++rank.calls;
    InFlight calls(rank);
    Work sent = calls.StartNumbered(
        {.op = CollectiveOp::kSend, .count = count, .root = next, .tag = 7},
        number);
    Work received = calls.StartNumbered(
        {.op = CollectiveOp::kRecv, .count = count, .root = before, .tag = 7},
        number);
    SHERD_RETURN_IF_ERROR(calls.Check(1, received.Wait()));
    SHERD_RETURN_IF_ERROR(calls.Check(0, sent.Wait()));
  }
  return absl::OkStatus();
}

// Sends, or receives, three messages with one tag, in order.
absl::Status Converse(ConformanceRank& rank, CollectiveOp op, int peer,
                      int64_t tag, uint64_t first) {
  for (int i = 0; i < 3; ++i) {
    const CallSpec spec = {
        .op = op, .count = size_t{40} + i, .root = peer, .tag = tag};
    Call call(spec, first + i, rank.rank(), rank.size());
    if (absl::Status status = call.Run(rank.group); !status.ok()) {
      return ExplainFailure(rank.group, spec, status);
    }
    SHERD_RETURN_IF_ERROR(call.Check(Rounding::kOnce));
  }
  return absl::OkStatus();
}

// Every other rank sends to rank 0 from a thread per tag, and rank 0 takes all
// of one tag before the first of the next.
absl::Status TagsMatch(ConformanceRank& rank) {
  static constexpr int64_t kTags[] = {2'147'483'647, 0, 5};
  const uint64_t first = rank.calls + 1;
  rank.calls += 9;
  absl::Status outcomes[3];
  if (rank.rank() == 0) {
    for (int t = 0; t < 3; ++t) {
      for (int r = 1; r < rank.size(); ++r) {
        SHERD_RETURN_IF_ERROR(
            Converse(rank, CollectiveOp::kRecv, r, kTags[t], first + 3 * t));
      }
    }
    return absl::OkStatus();
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      outcomes[t] =
          Converse(rank, CollectiveOp::kSend, 0, kTags[t], first + 3 * t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) {
    SHERD_RETURN_IF_ERROR(outcome);
  }
  return absl::OkStatus();
}

// A message overtakes the collectives that were started before it.
absl::Status MessagesPassCollectives(ConformanceRank& rank) {
  const int last = rank.size() - 1;
  const uint64_t number = ++rank.calls;
  InFlight calls(rank);
  if (rank.rank() == last) {
    // Goes to the barrier only once the message is there.
    Work received = calls.StartNumbered(
        {.op = CollectiveOp::kRecv, .count = 100, .root = 0}, number);
    SHERD_RETURN_IF_ERROR(calls.Check(0, received.Wait()));
    return CheckCall(rank, {.op = CollectiveOp::kBarrier});
  }
  Work barrier = calls.Start({.op = CollectiveOp::kBarrier});
  if (rank.rank() == 0) {
    Work sent = calls.StartNumbered(
        {.op = CollectiveOp::kSend, .count = 100, .root = last}, number);
    SHERD_RETURN_IF_ERROR(calls.Check(1, sent.Wait()));
  }
  return calls.Check(0, barrier.Wait());
}

absl::Status Messages(ConformanceRank& rank) {
  if (!HasMessages(rank)) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(Ring(rank));
  SHERD_RETURN_IF_ERROR(TagsMatch(rank));
  SHERD_RETURN_IF_ERROR(MessagesPassCollectives(rank));
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

// A group of all ranks whose last handle is dropped in the continuation of one
// of its calls. Half of the ranks, `late` or not, call when the others have
// attached their continuations, which therefore run on a thread of the group.
class DroppedGroup {
 public:
  static absl::StatusOr<DroppedGroup> Make(ConformanceRank& rank, int late,
                                           bool destroys) {
    SHERD_ASSIGN_OR_RETURN(auto group, NewGroupOfAll(rank));
    DroppedGroup made(rank, std::move(group), destroys);
    made.is_late_ = rank.rank() % 2 == late;
    if (made.is_late_) SHERD_RETURN_IF_ERROR(made.Meet());
    return made;
  }

  const std::shared_ptr<ProcessGroup>& handle() const { return group_; }

  // `work`, whose continuation holds the group until Drop, and may destroy the
  // group after the calls made until then.
  Work Hold(Work work) {
    return std::move(work).Then(
        [group = group_, let_go = let_go_, destroys = destroys_,
         caller = std::this_thread::get_id()](absl::Status status) {
          if (std::this_thread::get_id() == caller) return status;
          let_go->WaitForNotification();
          if (destroys) status.Update(group->Destroy());
          return status;
        });
  }

  // Once all continuations are attached: drops the other handle.
  absl::Status Drop() {
    if (!is_late_) SHERD_RETURN_IF_ERROR(Meet());
    group_ = nullptr;
    let_go_->Notify();
    return absl::OkStatus();
  }

  // Once all calls have ended.
  absl::Status ExpectGone() const {
    const Deadline deadline = Deadline::After(ConformanceTimeout());
    while (!dropped_.expired()) {
      if (deadline.HasPassed()) {
        return Fault("a group still exists, though no handle is left");
      }
      sched_yield();
    }
    return absl::OkStatus();
  }

 private:
  DroppedGroup(ConformanceRank& rank, std::shared_ptr<ProcessGroup> group,
               bool destroys)
      : rank_(rank),
        group_(std::move(group)),
        dropped_(group_),
        destroys_(destroys) {}

  absl::Status Meet() {
    return CheckCall(rank_, {.op = CollectiveOp::kBarrier});
  }

  ConformanceRank& rank_;
  std::shared_ptr<ProcessGroup> group_;
  std::weak_ptr<ProcessGroup> dropped_;
  bool destroys_;
  bool is_late_ = false;
  // Shared with continuations.
  std::shared_ptr<absl::Notification> let_go_ =
      std::make_shared<absl::Notification>();
};

absl::Status ExpectOk(Work& work, absl::string_view what) {
  const absl::Status status = work.Wait();
  return status.ok() ? status : Fault(what, ": ", status.ToString());
}

absl::Status LastHandleInThen(ConformanceRank& rank, int late, bool destroys) {
  SHERD_ASSIGN_OR_RETURN(DroppedGroup group,
                         DroppedGroup::Make(rank, late, destroys));
  Work first = group.Hold(group.handle()->BarrierAsync());
  Work behind = group.handle()->BarrierAsync();
  SHERD_RETURN_IF_ERROR(group.Drop());
  SHERD_RETURN_IF_ERROR(
      ExpectOk(first, "a call whose continuation has the last handle"));
  SHERD_RETURN_IF_ERROR(ExpectOk(behind, "the call behind it"));
  return group.ExpectGone();
}

absl::Status LastHandleKept(ConformanceRank& rank, int late) {
  SHERD_ASSIGN_OR_RETURN(DroppedGroup group,
                         DroppedGroup::Make(rank, late, /*destroys=*/false));
  Work first = group.Hold(group.handle()->BarrierAsync());
  Work behind = group.handle()->BarrierAsync();
  behind.Keep(group.handle());
  SHERD_RETURN_IF_ERROR(group.Drop());
  SHERD_RETURN_IF_ERROR(ExpectOk(first, "a call before one that keeps"));
  SHERD_RETURN_IF_ERROR(ExpectOk(behind, "a call that keeps its group"));
  return group.ExpectGone();
}

// Sends and receives have queues of their own; two of them let go.
absl::Status LastHandleInMessages(ConformanceRank& rank, int late,
                                  bool destroys) {
  const int next = (rank.rank() + 1) % rank.size();
  const int before = (rank.rank() + rank.size() - 1) % rank.size();
  SHERD_ASSIGN_OR_RETURN(DroppedGroup group,
                         DroppedGroup::Make(rank, late, destroys));
  const std::byte sent{'x'};
  std::byte received{};
  Work send = group.Hold(
      group.handle()->SendAsync(absl::MakeConstSpan(&sent, 1), next));
  Work recv = group.Hold(
      group.handle()->RecvAsync(absl::MakeSpan(&received, 1), before));
  SHERD_RETURN_IF_ERROR(group.Drop());
  SHERD_RETURN_IF_ERROR(ExpectOk(recv, "a receive that has the last handle"));
  SHERD_RETURN_IF_ERROR(ExpectOk(send, "a send that has the last handle"));
  if (received != sent) return Fault("a message did not arrive");
  return group.ExpectGone();
}

absl::Status LastHandles(ConformanceRank& rank) {
  for (const int late : {0, 1}) {
    for (const bool destroys : {false, true}) {
      SHERD_RETURN_IF_ERROR(LastHandleInThen(rank, late, destroys));
      if (rank.size() > 1 && HasMessages(rank)) {
        SHERD_RETURN_IF_ERROR(LastHandleInMessages(rank, late, destroys));
      }
    }
    SHERD_RETURN_IF_ERROR(LastHandleKept(rank, late));
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

}  // namespace

absl::Span<const ConformanceCase> AsynchronousCases() {
  static constexpr ConformanceCase kCases[] = {
      {"Asynchronous", Asynchronous},
      {"Messages", Messages, 2},
      {"LastHandles", LastHandles},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
