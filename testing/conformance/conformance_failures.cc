// Calls that contradict each other, deadlines, aborts, and ranks that leave,
// stop or die: every other rank gets an error that names the failed rank, in
// time, and continues.

#include <signal.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/conformance/deviating_calls.h"

namespace sherd::testing::internal {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Groups = std::vector<Group>;

absl::StatusOr<Groups> MakeGroups(ConformanceRank& rank, size_t count) {
  Groups groups;
  for (size_t i = 0; i < count; ++i) {
    SHERD_ASSIGN_OR_RETURN(Group group, NewGroupOfAll(rank));
    groups.push_back(std::move(group));
  }
  return groups;
}

// A call of `spec` on `group` has to fail because of `failed_rank`.
absl::Status ExpectFailure(ConformanceRank& rank, ProcessGroup& group,
                           const CallSpec& spec, absl::StatusCode code,
                           int failed_rank) {
  Call call(spec, ++rank.calls, rank.rank(), rank.size());
  const Stopwatch watch;
  const absl::Status status = call.Run(group);
  SHERD_RETURN_IF_ERROR(
      watch.Expect(*spec.timeout + kPatience,
                   absl::StrCat("the error of ", Describe(spec))));
  SHERD_RETURN_IF_ERROR(ExpectRootCause(status, code, spec.op, failed_rank));
  return ExpectPoisoned(group, failed_rank);
}

// The same for a call on each group, concurrently: each takes as long as its
// deadline.
absl::Status ExpectFailures(ConformanceRank& rank, const Groups& groups,
                            absl::Span<const CallSpec> specs,
                            absl::StatusCode code, int failed_rank) {
  std::vector<absl::Status> outcomes(specs.size());
  std::vector<ConformanceRank> ranks(specs.size(), rank);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < specs.size(); ++i) {
    ranks[i].calls += 100 * i;
    threads.emplace_back([&, i] {
      outcomes[i] =
          ExpectFailure(ranks[i], *groups[i], specs[i], code, failed_rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  rank.calls += 100 * specs.size();
  for (const absl::Status& outcome : outcomes) {
    SHERD_RETURN_IF_ERROR(outcome);
  }
  return absl::OkStatus();
}

// Calls that no rank can complete without `peer`.
std::vector<CallSpec> CallsThatNeed(const ConformanceRank& rank, int peer,
                                    absl::Duration timeout) {
  std::vector<CallSpec> specs;
  for (const CollectiveOp op :
       {CollectiveOp::kBarrier, CollectiveOp::kBroadcast,
        CollectiveOp::kAllGather, CollectiveOp::kAllToAllV,
        CollectiveOp::kAllReduce, CollectiveOp::kReduceScatter,
        CollectiveOp::kAllGatherV, CollectiveOp::kScatter,
        CollectiveOp::kRecv}) {
    if (rank.group.PathOf(op) == OperationPath::kUnsupported) continue;
    specs.push_back({.op = op,
                     .lists = op == CollectiveOp::kAllGatherV ||
                              op == CollectiveOp::kAllToAllV,
                     .count = 1'003,
                     .root = peer,
                     .timeout = timeout});
  }
  return specs;
}

// The rank that fails differs with the size.
int RankToFail(const ConformanceRank& rank) { return rank.size() * 2 / 3; }

absl::Status AKilledRank(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  rank.expect_death(failed_rank, SIGKILL);
  const std::vector<CallSpec> specs =
      CallsThatNeed(rank, failed_rank, LongTimeout());
  SHERD_ASSIGN_OR_RETURN(const Groups groups, MakeGroups(rank, specs.size()));
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  if (rank.rank() == failed_rank) raise(SIGKILL);
  for (size_t i = 0; i < specs.size(); ++i) {
    SHERD_RETURN_IF_ERROR(ExpectFailure(rank, *groups[i], specs[i],
                                        absl::StatusCode::kUnavailable,
                                        failed_rank));
  }
  return SurvivorsGoOn(rank, failed_rank);
}

// It dies while all ranks' messages, far larger than socket buffers, are half
// sent.
absl::Status ARankKilledInATransfer(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  constexpr size_t kBytes = size_t{48} << 20;
  rank.expect_death(failed_rank, SIGKILL);
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  if (rank.rank() == failed_rank) {
    for (int r = 0; r < rank.size(); ++r) {
      if (r == failed_rank) continue;
      SHERD_RETURN_IF_ERROR(
          rank.group.store().Wait({absl::StrCat("conformance/started", r)},
                                  Deadline::After(ConformanceTimeout())));
    }
    raise(SIGKILL);
  }
  std::vector<std::byte> out(kBytes), in(kBytes);
  std::vector<ConstBytes> sends(rank.size());
  std::vector<MutableBytes> recvs(rank.size());
  sends[failed_rank] = out;
  recvs[failed_rank] = absl::MakeSpan(in);
  Work work = group->AllToAllVAsync(sends, recvs, {.timeout = LongTimeout()});
  SHERD_RETURN_IF_ERROR(rank.group.store().Set(
      absl::StrCat("conformance/started", rank.rank()), ""));
  const Stopwatch watch;
  SHERD_RETURN_IF_ERROR(ExpectRootCause(work.Wait(),
                                        absl::StatusCode::kUnavailable,
                                        CollectiveOp::kAllToAllV, failed_rank));
  SHERD_RETURN_IF_ERROR(watch.Expect(LongTimeout() + kPatience,
                                     "the error of a broken transfer"));
  return SurvivorsGoOn(rank, failed_rank);
}

// A stopped process keeps its connections open: only a timeout detects it.
absl::Status AStoppedRank(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  rank.expect_death(failed_rank, SIGKILL);
  std::vector<CallSpec> specs = CallsThatNeed(rank, failed_rank, kShortTimeout);
  specs = {specs[0], specs[4], specs.back()};
  SHERD_ASSIGN_OR_RETURN(const Groups groups, MakeGroups(rank, specs.size()));
  SHERD_RETURN_IF_ERROR(TellOwnProcess(rank.group.store(), rank.rank()));
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  if (rank.rank() == failed_rank) raise(SIGSTOP);
  absl::Status status = ExpectFailures(
      rank, groups, specs, absl::StatusCode::kDeadlineExceeded, failed_rank);
  if (status.ok()) status = SurvivorsGoOn(rank, failed_rank);
  // All have their error before the first one ends the stopped rank.
  if (rank.rank() == (failed_rank == 0 ? 1 : 0)) {
    SHERD_RETURN_IF_ERROR(EndProcess(rank.group.store(), failed_rank));
  }
  return status;
}

absl::Status ARankThatLeaves(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  const std::vector<CallSpec> specs =
      CallsThatNeed(rank, failed_rank, LongTimeout());
  SHERD_ASSIGN_OR_RETURN(const Groups groups, MakeGroups(rank, specs.size()));
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  if (rank.rank() == failed_rank) {
    for (const Group& group : groups) SHERD_RETURN_IF_ERROR(group->Destroy());
  } else {
    for (size_t i = 0; i < specs.size(); ++i) {
      SHERD_RETURN_IF_ERROR(ExpectFailure(rank, *groups[i], specs[i],
                                          absl::StatusCode::kUnavailable,
                                          failed_rank));
    }
    SHERD_RETURN_IF_ERROR(SurvivorsGoOn(rank, failed_rank));
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

absl::Status AnAbsentRank(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  const std::vector<CallSpec> all =
      CallsThatNeed(rank, failed_rank, kShortTimeout);
  const CallSpec specs[] = {all[0], all[4]};
  SHERD_ASSIGN_OR_RETURN(const Groups groups, MakeGroups(rank, 2));
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  if (rank.rank() != failed_rank) {
    SHERD_RETURN_IF_ERROR(ExpectFailures(
        rank, groups, specs, absl::StatusCode::kDeadlineExceeded, failed_rank));
  }
  // The group on which no rank was late is unchanged.
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  if (rank.rank() != failed_rank) return absl::OkStatus();
  // Too late.
  const Stopwatch watch;
  const absl::Status late = groups[0]->Barrier({.timeout = LongTimeout()});
  SHERD_RETURN_IF_ERROR(
      watch.Expect(LongTimeout() + kPatience, "barrier of the late rank"));
  if (late.ok()) return Fault("barrier is OK for the rank that came too late");
  return absl::OkStatus();
}

// One rank makes another call than the others.
struct Contradiction {
  const char* what;
  CallSpec right;
  CallSpec wrong;
};

std::vector<Contradiction> Contradictions(const ConformanceRank& rank) {
  const int last = rank.size() - 1;
  const CallSpec reduce = {
      .op = CollectiveOp::kAllReduce, .count = 12, .dtype = kFloat32};
  const auto change = [](CallSpec spec, auto member, auto value) {
    spec.*member = value;
    return spec;
  };
  const CallSpec gather = {.op = CollectiveOp::kAllGather, .count = 48};
  const CallSpec broadcast = {.op = CollectiveOp::kBroadcast, .count = 48};
  const CallSpec blocks = {
      .op = CollectiveOp::kReduceScatter, .count = 4, .dtype = kFloat32};
  CallSpec doubles = change(reduce, &CallSpec::dtype, kFloat64);
  doubles.count = 6;
  return {
      {"another operation", reduce, gather},
      {"barrier against data", {.op = CollectiveOp::kBarrier}, broadcast},
      {"another size", gather, change(gather, &CallSpec::count, 40)},
      {"another size (reduction)", reduce,
       change(reduce, &CallSpec::count, 24)},
      // A call that moves nothing is compared like any other.
      {"no bytes", broadcast, change(broadcast, &CallSpec::count, 0)},
      {"no bytes (reduction)", reduce, change(reduce, &CallSpec::count, 0)},
      {"no bytes (list)", blocks, change(blocks, &CallSpec::count, 0)},
      {"some bytes", change(gather, &CallSpec::count, 0), gather},
      {"another type", reduce, change(reduce, &CallSpec::dtype, kInt32)},
      {"another type of what is moved",
       change(gather, &CallSpec::type, kFloat32),
       change(gather, &CallSpec::type, kInt32)},
      {"another type of another width", reduce, doubles},
      {"another reduction", reduce,
       change(reduce, &CallSpec::reduction, ReduceOp::kMax)},
      {"another root", broadcast, change(broadcast, &CallSpec::root, last)},
  };
}

// Every rank, including the deviating one, gets an error that names that rank
// and both operations; nothing is written but the result.
absl::Status CheckContradiction(ConformanceRank& rank, ProcessGroup& group,
                                const Contradiction& contradiction,
                                int failed_rank) {
  CallSpec spec =
      rank.rank() == failed_rank ? contradiction.wrong : contradiction.right;
  spec.timeout = LongTimeout();
  Call call(spec, ++rank.calls, rank.rank(), rank.size());
  const Stopwatch watch;
  absl::Status status = call.Run(group);
  if (status.ok() && spec.op == CollectiveOp::kBroadcast) {
    // Ranks that do not need the deviating one may finish before it calls.
    // Their next call returns the error.
    SHERD_RETURN_IF_ERROR(call.Check(Rounding::kOnce));
    status = group.Barrier({.timeout = LongTimeout()});
  }
  const std::string where =
      absl::StrCat(contradiction.what, " on rank ", failed_rank);
  SHERD_RETURN_IF_ERROR(watch.Expect(LongTimeout() / 2, where));
  if (!absl::IsInvalidArgument(status)) {
    return Fault(where, ": expected INVALID_ARGUMENT, got ", status.ToString());
  }
  // Between two ranks neither is right.
  const int failed = FailedRank(status).value_or(-1);
  if (failed != (rank.size() > 2 ? failed_rank : -1)) {
    return Fault(where, ": the failed rank is ", failed, ": ",
                 status.ToString());
  }
  for (const std::string& part : {absl::StrCat("rank ", failed_rank),
                                  std::string(Name(contradiction.right.op)),
                                  std::string(Name(contradiction.wrong.op))}) {
    if (absl::StrContains(status.message(), part)) continue;
    return Fault(where, ": the error does not say \"", part,
                 "\": ", status.ToString());
  }
  if (absl::Status after = call.CheckSurroundings(); !after.ok()) {
    return Fault(where, ": it was refused, and yet ", after.message());
  }
  return ExpectPoisoned(group, failed_rank);
}

absl::Status CallsThatContradict(ConformanceRank& rank) {
  const std::vector<Contradiction> list = Contradictions(rank);
  for (size_t i = 0; i < list.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
    // The deviating rank changes with each contradiction and each world size.
    const int failed_rank = static_cast<int>(i) % rank.size();
    SHERD_RETURN_IF_ERROR(
        CheckContradiction(rank, *group, list[i], failed_rank));
  }
  // The group without these calls is unchanged.
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

// Rank 0 sends rank 1 another number of bytes than rank 1 expects: 8 in a
// collective, or 8 or none in a message. Neither of the two is right.
absl::Status LengthsThatContradict(ConformanceRank& rank, bool collective,
                                   size_t bytes) {
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  GuardedBuffer sent(bytes), received(8);
  std::vector<ConstBytes> sends(rank.size());
  std::vector<MutableBytes> recvs(rank.size());
  absl::Status status;
  const CollectiveOptions options = {.timeout = LongTimeout()};
  if (rank.rank() == 0) {
    sends[1] = sent.bytes();
    status = collective ? group->AllToAllV(sends, recvs, options)
                        : group->Send(sent.bytes(), 1, 0, options);
  } else if (rank.rank() == 1) {
    recvs[0] = received.bytes().subspan(0, 5);
    status = collective ? group->AllToAllV(sends, recvs, options)
                        : group->Recv(recvs[0], 0, 0, options);
    if (!absl::IsInvalidArgument(status) || FailedRank(status) ||
        !absl::StrContains(status.message(), "rank 0")) {
      return Fault(bytes,
                   " bytes sent to a rank that expects 5: expected "
                   "INVALID_ARGUMENT with both ranks and no failed rank, got ",
                   status.ToString());
    }
    SHERD_RETURN_IF_ERROR(received.CheckCanaries());
  } else if (collective) {
    group->AllToAllV(sends, recvs, options).IgnoreError();
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

absl::Status LengthsThatContradict(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(LengthsThatContradict(rank, true, 8));
  if (rank.group.PathOf(CollectiveOp::kSend) == OperationPath::kUnsupported) {
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(LengthsThatContradict(rank, false, 8));
  return LengthsThatContradict(rank, false, 0);
}

// See testing/conformance/deviating_calls.h.
absl::Status DeviatingCalls(ConformanceRank& rank) {
  return TryRandomSequences(rank, 20);
}

absl::Status MismatchedCalls(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(CallsThatContradict(rank));
  return LengthsThatContradict(rank);
}

// A call that no other rank makes ends soon after another thread's Abort.
absl::Status AbortEndsOwnCalls(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  for (const bool asynchronous : {false, true}) {
    SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
    if (rank.rank() == failed_rank) {
      std::thread other;
      absl::Status status;
      const Stopwatch watch;
      if (asynchronous) {
        Work work = group->BarrierAsync({.timeout = LongTimeout()});
        while (work.Test()) return Fault("barrier does not wait for anybody");
        other = std::thread(
            [&group] { group->Abort(absl::CancelledError("enough")); });
        status = work.Wait();
      } else {
        other = std::thread(
            [&group] { group->Abort(absl::CancelledError("enough")); });
        status = group->Barrier({.timeout = LongTimeout()});
      }
      other.join();
      SHERD_RETURN_IF_ERROR(watch.Expect(LongTimeout() / 2,
                                         "abort is ignored: a call in flight"));
      if (status.ok() || !absl::StrContains(status.message(), "enough")) {
        return Fault("a call on a group that was aborted with \"enough\": ",
                     status.ToString());
      }
    }
    SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  }
  return absl::OkStatus();
}

// The ranks that wait for the aborting rank are notified.
absl::Status AbortReachesTheOthers(ConformanceRank& rank) {
  const int failed_rank = RankToFail(rank);
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  if (rank.rank() == failed_rank) {
    group->Abort(absl::CancelledError("enough"));
  } else {
    const Stopwatch watch;
    const absl::Status status = group->Barrier({.timeout = LongTimeout()});
    SHERD_RETURN_IF_ERROR(watch.Expect(
        LongTimeout() / 2, absl::StrCat("abort is ignored: barrier with rank ",
                                        failed_rank, ", which aborted,")));
    if (status.ok() || ErrorRank(status) != failed_rank ||
        !absl::StrContains(status.message(), "enough")) {
      return Fault(
          "barrier with rank ", failed_rank,
          ", which aborted the group with \"enough\": ", status.ToString());
    }
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

// Leaving waits for operations in flight, and these have a deadline.
absl::Status DestroyWithCallsInFlight(ConformanceRank& rank) {
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  if (rank.rank() == 0) {
    const Stopwatch watch;
    Work work = group->BarrierAsync({.timeout = absl::Milliseconds(300)});
    group->BarrierAsync({.timeout = absl::Milliseconds(300)});
    SHERD_RETURN_IF_ERROR(group->Destroy());
    SHERD_RETURN_IF_ERROR(
        watch.Expect(kPatience, "leaving a group with a call in flight"));
    if (work.Wait().ok()) {
      return Fault("barrier was OK, although no other rank called it");
    }
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

absl::Status Aborts(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(AbortEndsOwnCalls(rank));
  SHERD_RETURN_IF_ERROR(AbortReachesTheOthers(rank));
  return DestroyWithCallsInFlight(rank);
}

}  // namespace

absl::Span<const ConformanceCase> FailureCases() {
  static constexpr ConformanceCase kCases[] = {
      {"MismatchedCalls", MismatchedCalls, 2},
      {"DeviatingCalls", DeviatingCalls, 2},
      {"AnAbsentRank", AnAbsentRank, 2},
      {"ARankThatLeaves", ARankThatLeaves, 2},
      {"Aborts", Aborts, 2},
      {"AKilledRank", AKilledRank, 2, true},
      {"ARankKilledInATransfer", ARankKilledInATransfer, 2, true},
      {"AStoppedRank", AStoppedRank, 2, true},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
