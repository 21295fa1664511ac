// Calls in flight, in numbers and in any order, and messages between two ranks.

#include <sched.h>

#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/work.h"
#include "sherd/testing/conformance_call.h"
#include "sherd/testing/conformance_case.h"

namespace sherd::testing::internal {
namespace {

// Calls in flight together. Buffers live until all have ended.
class InFlight {
 public:
  explicit InFlight(ConformanceRank& rank) : rank_(rank) {}

  // Calls with data of their own must be started alike on all ranks.
  Work Start(const CallSpec& spec) {
    return StartNumbered(spec, ++rank_.calls);
  }

  Work StartNumbered(const CallSpec& spec, uint64_t number) {
    specs_.push_back(spec);
    calls_.emplace_back(spec, number, rank_.rank(), rank_.size());
    return calls_.back().Start(rank_.group);
  }

  // Call `index`, in the order of Start, whose outcome is `status`.
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
      return Fault("Test() says for twice the timeout that a call runs");
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

// Nobody waits for these calls, but a synchronous one comes behind them.
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

// Every rank sends to the next and receives from the one before, while
// everybody does.
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

// What a rank sends, or receives, with one tag: three messages, in order.
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

}  // namespace

absl::Span<const ConformanceCase> AsynchronousCases() {
  static constexpr ConformanceCase kCases[] = {
      {"Asynchronous", Asynchronous},
      {"Messages", Messages, 2},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
