#include "sherd/testing/conformance/conformance_case.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {

namespace {

// Where calls are made.
DeviceType DeviceOf(const ProcessGroup& group) {
  return group.device() ? group.device()->type : DeviceType::kCpu;
}

}  // namespace

absl::Duration ConformanceTimeout() {
  const absl::StatusOr<std::optional<absl::Duration>> timeout =
      GetDurationKnob(Knob::kTimeout);
  return timeout.ok() && *timeout ? **timeout : absl::Seconds(60);
}

absl::Status ExplainFailure(ProcessGroup& group, const CallSpec& spec,
                            const absl::Status& status) {
  const absl::string_view path =
      Name(group.PathOf(spec.op, spec.dtype, spec.reduction, DeviceOf(group)));
  absl::string_view fault = "a valid call failed";
  if (absl::IsUnimplemented(status)) {
    fault = "PathOf lies: the operation is refused";
  } else if (absl::IsDeadlineExceeded(status)) {
    fault = "the call did not end: a message or a completion was lost";
  } else if (absl::StrContains(status.message(), "exception")) {
    fault = "the plugin throws";
  }
  return Fault(Describe(spec), " (PathOf: ", path, "): ", fault, ": ",
               status.ToString());
}

Rounding RoundingOf(const ConformanceRank& rank, const CallSpec& spec) {
  const bool native =
      rank.group.PathOf(spec.op, spec.dtype, spec.reduction,
                        DeviceOf(rank.group)) == OperationPath::kNative;
  return native && !rank.small_floats_rounded_once ? Rounding::kEachStep
                                                   : Rounding::kOnce;
}

absl::Status CheckCall(ConformanceRank& rank, const CallSpec& spec) {
  Call call(spec, ++rank.calls, rank.rank(), rank.size());
  if (absl::Status status = call.Run(rank.group); !status.ok()) {
    return ExplainFailure(rank.group, spec, status);
  }
  return call.Check(RoundingOf(rank, spec));
}

absl::Status ExpectRootCause(const absl::Status& status, absl::StatusCode code,
                             CollectiveOp op, int failed_rank) {
  if (status.ok()) {
    return Fault(Name(op), " returned OK, although rank ", failed_rank,
                 " took no proper part in it");
  }
  std::string fault;
  if (status.code() != code) {
    absl::StrAppend(&fault, "the code is not ", absl::StatusCodeToString(code),
                    ". ");
  }
  if (ErrorRank(status) != failed_rank ||
      !absl::StrContains(status.message(),
                         absl::StrCat("rank ", failed_rank))) {
    absl::StrAppend(&fault, "it does not name rank ", failed_rank, ". ");
  }
  if (!absl::StrContains(status.message(), Name(op))) {
    absl::StrAppend(&fault, "it does not name the operation. ");
  }
  if (fault.empty()) return absl::OkStatus();
  return Fault("the error of ", Name(op), " is not as it should be: ", fault,
               "It names rank ", ErrorRank(status).value_or(-1),
               " and reads: ", status.ToString());
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroupOfAll(
    ConformanceRank& rank) {
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
      rank.group.NewGroup(rank.AllRanks());
  if (!group.ok()) {
    return Fault("a new group of all ranks: ", group.status().ToString());
  }
  return group;
}

absl::Duration LongTimeout() {
  return std::min(absl::Seconds(20), ConformanceTimeout());
}

absl::Status ExpectPoisoned(ProcessGroup& group, int failed_rank) {
  if (group.health().ok()) {
    return Fault("after an error that rank ", failed_rank,
                 " caused the group calls itself healthy");
  }
  const Stopwatch watch;
  const absl::Status later = group.Barrier();
  SHERD_RETURN_IF_ERROR(
      watch.Expect(absl::Seconds(2), "a call on a poisoned group"));
  if (!absl::IsFailedPrecondition(later) ||
      !absl::StrContains(later.message(), absl::StrCat("rank ", failed_rank))) {
    return Fault("a call on a group that rank ", failed_rank,
                 " broke: expected FAILED_PRECONDITION with the cause, got ",
                 later.ToString());
  }
  return absl::OkStatus();
}

absl::Status SurvivorsGoOn(ConformanceRank& rank, int failed_rank) {
  std::vector<int> survivors = rank.AllRanks();
  survivors.erase(survivors.begin() + failed_rank);
  const auto group = rank.group.NewGroup(survivors);
  if (!group.ok()) {
    return Fault("a new group of the survivors: ", group.status().ToString());
  }
  ConformanceRank survivor = {.group = **group};
  survivor.calls = rank.calls + 1'000;
  SHERD_RETURN_IF_ERROR(CheckCall(
      survivor,
      {.op = CollectiveOp::kAllReduce, .count = 1'003, .dtype = kFloat32}));
  SHERD_RETURN_IF_ERROR(
      CheckCall(survivor, {.op = CollectiveOp::kAllGather, .count = 100}));
  // No rank leaves while another one still calls.
  return CheckCall(survivor, {.op = CollectiveOp::kBarrier});
}

absl::Status TellOwnProcess(Store& store, int rank) {
  return store.Set(absl::StrCat("conformance/pid", rank),
                   absl::StrCat(getpid()));
}

absl::Status EndProcess(Store& store, int rank) {
  SHERD_ASSIGN_OR_RETURN(const std::string pid,
                         store.Get(absl::StrCat("conformance/pid", rank),
                                   Deadline::After(kPatience)));
  kill(std::stoi(pid), SIGKILL);
  return absl::OkStatus();
}

}  // namespace sherd::testing::internal
