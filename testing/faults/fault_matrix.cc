#include "sherd/testing/faults/fault_matrix.h"

#include <signal.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr absl::string_view kInjected = "an injected error";
// Chooses the data of all calls that may fail.
constexpr uint64_t kNumber = 50;
constexpr absl::Duration kSlowness = absl::Milliseconds(50);

// The first call that failed.
struct Failure {
  CollectiveOp op;
  absl::Status status;
};

// Makes the calls, and checks what they do, until one fails.
absl::StatusOr<std::optional<Failure>> CallUntilFailure(
    ConformanceRank& rank, ProcessGroup& group,
    absl::Span<const CallSpec> specs) {
  for (const CallSpec& spec : specs) {
    // One number for all: both ends of a message need the same.
    Call call(spec, kNumber, rank.rank(), rank.size());
    const Stopwatch watch;
    absl::Status status = call.Run(group);
    SHERD_RETURN_IF_ERROR(
        watch.Expect(*spec.timeout + kPatience, Describe(spec)));
    if (!status.ok()) return Failure{spec.op, std::move(status)};
    SHERD_RETURN_IF_ERROR(call.Check(RoundingOf(rank, spec)));
  }
  return std::nullopt;
}

absl::Status ExpectRootCause(const FaultCase& fault, const Failure& failure,
                             int failed_rank) {
  SHERD_RETURN_IF_ERROR(internal::ExpectRootCause(failure.status, CodeOf(fault),
                                                  failure.op, failed_rank));
  return fault.kind == FaultKind::kError ? ExpectInjected(failure.status)
                                         : absl::OkStatus();
}

void AnnounceDeath(ConformanceRank& rank, const FaultCase& fault) {
  if (fault.kind == FaultKind::kKill || fault.kind == FaultKind::kStop) {
    rank.expect_death(RankToFail(fault, rank.size()), SIGKILL);
  }
}

// All ranks meet here before the fault, on a group that it does not affect.
absl::Status Meet(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(TellOwnProcess(rank.group.store(), rank.rank()));
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

// Runs on the surviving ranks after the failure was checked.
absl::Status GoOn(ConformanceRank& rank, const FaultCase& fault) {
  const int failed_rank = RankToFail(fault, rank.size());
  // The library's abandoned operation may have broken it for the whole process.
  if (rank.dies_together) return absl::OkStatus();
  // The same on all ranks, wherever the failure was.
  rank.calls = 100;
  SHERD_RETURN_IF_ERROR(SurvivorsGoOn(rank, failed_rank));
  if (fault.kind == FaultKind::kStop &&
      rank.rank() == (failed_rank == 0 ? 1 : 0)) {
    return EndProcess(rank.group.store(), failed_rank);
  }
  return absl::OkStatus();
}

// All ranks live, and `rank.group` is unaffected.
absl::Status Part(ConformanceRank& rank) {
  if (rank.dies_together) return absl::OkStatus();
  rank.calls = 200;
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

// The calls of this rank on a fresh group, in which RankToFail() fails.
absl::Status FaultInCalls(ConformanceRank& rank, const FaultCase& fault,
                          absl::Span<const CallSpec> specs) {
  const int failed_rank = RankToFail(fault, rank.size());
  AnnounceDeath(rank, fault);
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  SHERD_RETURN_IF_ERROR(Meet(rank));
  std::optional<Failure> failure;
  {
    const ArmedFault armed(fault, rank.rank(), rank.size());
    SHERD_ASSIGN_OR_RETURN(failure, CallUntilFailure(rank, *group, specs));
  }
  if (fault.kind == FaultKind::kSlow) {
    if (failure) {
      return Fault(sherd::Name(failure->op),
                   " with a slow rank failed: ", failure->status.ToString());
    }
    return Part(rank);
  }
  if (!failure)
    return Fault("no call failed, although rank ", failed_rank, " did");
  if (rank.rank() == failed_rank) {
    SHERD_RETURN_IF_ERROR(ExpectInjected(failure->status));
    SHERD_RETURN_IF_ERROR(ExpectInjected(group->health()));
    SHERD_RETURN_IF_ERROR(group->Destroy());
    return Part(rank);
  }
  SHERD_RETURN_IF_ERROR(ExpectRootCause(fault, *failure, failed_rank));
  SHERD_RETURN_IF_ERROR(ExpectPoisoned(*group, failed_rank));
  SHERD_RETURN_IF_ERROR(GoOn(rank, fault));
  return fault.kind == FaultKind::kError ? Part(rank) : absl::OkStatus();
}

CallSpec Barrier(const FaultCase& fault) {
  return {.op = CollectiveOp::kBarrier, .timeout = TimeoutOf(fault)};
}

}  // namespace

std::string Name(const FaultCase& fault) {
  static constexpr absl::string_view kKinds[] = {"kill", "stop", "slow",
                                                 "error"};
  const size_t slash = fault.point.rfind('/');
  const absl::string_view folder = absl::StartsWith(fault.point, "comm/")
                                       ? ""
                                       : fault.point.substr(0, slash);
  return absl::StrCat(folder, folder.empty() ? "" : "_",
                      fault.point.substr(slash + 1), "_",
                      kKinds[static_cast<int>(fault.kind)]);
}

void PrintTo(const FaultCase& fault, std::ostream* out) { *out << Name(fault); }

int RankToFail(const FaultCase& fault, int size) {
  for (const FaultPointInfo& info : AllFaultPoints()) {
    if (info.name == fault.point) return static_cast<int>(info.point) % size;
  }
  return 0;
}

absl::Duration TimeoutOf(const FaultCase& fault) {
  return fault.kind == FaultKind::kStop ? kShortTimeout : LongTimeout();
}

absl::StatusCode CodeOf(const FaultCase& fault) {
  return fault.kind == FaultKind::kStop ? absl::StatusCode::kDeadlineExceeded
                                        : absl::StatusCode::kUnavailable;
}

ArmedFault::ArmedFault(const FaultCase& fault, int rank, int size) {
  if (rank != RankToFail(fault, size)) return;
  switch (fault.kind) {
    case FaultKind::kKill:
      kill_.emplace(fault.point, rank);
      return;
    case FaultKind::kStop:
      stop_.emplace(fault.point, rank);
      return;
    case FaultKind::kSlow:
      slow_.emplace(fault.point, rank, kSlowness);
      return;
    case FaultKind::kError:
      error_.emplace(fault.point, absl::InternalError(kInjected),
                     FaultOptions{.rank = rank});
      return;
  }
}

absl::Status ExpectInjected(const absl::Status& status) {
  if (absl::StrContains(status.message(), kInjected)) return absl::OkStatus();
  return Fault("the error does not say \"", kInjected,
               "\", with which it began: ", status.ToString());
}

absl::Status FaultInACollective(ConformanceRank& rank, const FaultCase& fault) {
  // A rank that has all its data may finish before the failed rank fails, but
  // never its next call.
  const CallSpec specs[] = {{.op = CollectiveOp::kAllReduce,
                             .count = 1'003,
                             .dtype = kFloat32,
                             .timeout = TimeoutOf(fault)},
                            Barrier(fault)};
  return FaultInCalls(rank, fault, specs);
}

absl::Status FaultInAMessage(ConformanceRank& rank, const FaultCase& fault) {
  const int failed_rank = RankToFail(fault, rank.size());
  std::vector<CallSpec> specs;
  for (int peer = 0; peer < rank.size(); ++peer) {
    if (rank.rank() == failed_rank ? peer == failed_rank : peer != failed_rank)
      continue;
    specs.push_back({.op = rank.rank() == failed_rank ? CollectiveOp::kSend
                                                      : CollectiveOp::kRecv,
                     .count = 1'003,
                     .root = peer,
                     .timeout = TimeoutOf(fault)});
  }
  specs.push_back(Barrier(fault));
  return FaultInCalls(rank, fault, specs);
}

absl::Status FaultInANewGroup(ConformanceRank& rank, const FaultCase& fault) {
  const int failed_rank = RankToFail(fault, rank.size());
  AnnounceDeath(rank, fault);
  SHERD_RETURN_IF_ERROR(Meet(rank));
  // Only a timeout detects a member that lives and does not arrive.
  const absl::Duration timeout =
      fault.kind == FaultKind::kSlow ? LongTimeout() : kShortTimeout;
  const Stopwatch watch;
  absl::Status status;
  {
    const ArmedFault armed(fault, rank.rank(), rank.size());
    const auto group =
        rank.group.NewGroup(rank.AllRanks(), {.timeout = timeout});
    status = group.ok() ? (*group)->Barrier() : group.status();
  }
  SHERD_RETURN_IF_ERROR(watch.Expect(2 * timeout + kPatience, "new_group"));
  if (fault.kind == FaultKind::kSlow) {
    if (!status.ok()) return Fault("with a slow rank: ", status.ToString());
    return Part(rank);
  }
  if (rank.rank() == failed_rank) {
    SHERD_RETURN_IF_ERROR(ExpectInjected(status));
    return Part(rank);
  }
  if (FailedRank(status) != failed_rank ||
      !absl::StrContains(status.message(),
                         absl::StrCat("rank ", failed_rank)) ||
      !(absl::StrContains(status.message(), "new_group") ||
        absl::StrContains(status.message(), "barrier"))) {
    return Fault("expected an error that names rank ", failed_rank,
                 " and the operation, got ", status.ToString());
  }
  SHERD_RETURN_IF_ERROR(GoOn(rank, fault));
  return fault.kind == FaultKind::kError ? Part(rank) : absl::OkStatus();
}

absl::Status FaultAtTheEnd(ConformanceRank& rank, const FaultCase& fault) {
  const int failed_rank = RankToFail(fault, rank.size());
  AnnounceDeath(rank, fault);
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  SHERD_RETURN_IF_ERROR(Meet(rank));
  if (rank.rank() == failed_rank) {
    const ArmedFault armed(fault, rank.rank(), rank.size());
    if (fault.point == "comm/abort") {
      group->Abort(absl::CancelledError(kInjected));
    } else {
      SHERD_RETURN_IF_ERROR(group->Destroy());
    }
    return Part(rank);
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<Failure> failure,
                         CallUntilFailure(rank, *group, {Barrier(fault)}));
  if (!failure)
    return Fault("no call failed, although rank ", failed_rank, " left");
  SHERD_RETURN_IF_ERROR(ExpectRootCause(fault, *failure, failed_rank));
  SHERD_RETURN_IF_ERROR(ExpectPoisoned(*group, failed_rank));
  SHERD_RETURN_IF_ERROR(GoOn(rank, fault));
  return fault.kind == FaultKind::kSlow ? Part(rank) : absl::OkStatus();
}

}  // namespace sherd::testing::internal
