#include "sherd/testing/conformance_case.h"

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"

namespace sherd::testing::internal {

absl::Duration ConformanceTimeout() {
  const absl::StatusOr<std::optional<absl::Duration>> timeout =
      GetDurationKnob(Knob::kTimeout);
  return timeout.ok() && *timeout ? **timeout : absl::Seconds(60);
}

absl::Status ExplainFailure(ProcessGroup& group, const CallSpec& spec,
                            const absl::Status& status) {
  const absl::string_view path =
      Name(group.PathOf(spec.op, spec.dtype, spec.reduction));
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
  const bool native = rank.group.PathOf(spec.op, spec.dtype, spec.reduction) ==
                      OperationPath::kNative;
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

absl::Status ExpectBlame(const absl::Status& status, absl::StatusCode code,
                         CollectiveOp op, int culprit) {
  if (status.ok()) {
    return Fault(Name(op), " returned OK, although rank ", culprit,
                 " took no proper part in it");
  }
  std::string fault;
  if (status.code() != code) {
    absl::StrAppend(&fault, "the code is not ", absl::StatusCodeToString(code),
                    ". ");
  }
  if (BlamedRank(status) != culprit ||
      !absl::StrContains(status.message(), absl::StrCat("rank ", culprit))) {
    absl::StrAppend(&fault, "it does not blame rank ", culprit, ". ");
  }
  if (!absl::StrContains(status.message(), Name(op))) {
    absl::StrAppend(&fault, "it does not name the operation. ");
  }
  if (fault.empty()) return absl::OkStatus();
  return Fault("the error of ", Name(op), " is not as it should be: ", fault,
               "It blames rank ", BlamedRank(status).value_or(-1),
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

}  // namespace sherd::testing::internal
