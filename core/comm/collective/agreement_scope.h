#ifndef SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_SCOPE_H_
#define SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_SCOPE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"

namespace sherd::internal {

// Code that may fail on one rank while the others are in an agreement of a call
// that the failed rank will never make: code of users between agreements. The
// failed rank brings its error to the others' next agreement, whichever that
// is.
//
//     AgreementScope scope(group);
//     const absl::Status status = CodeOfTheUser();  // with collective calls
//     return scope.Agree("work", status);           // that of all ranks
//
// How. While a thread has a scope of a group, every agreement over the group
// begins with a vote of one size: notes travel in a second round. An error in
// the vote of AgreementScope::Agree is the last word of its rank. The ranks
// that receive it keep the error; until the outermost scope of the thread ends,
// their agreements over this group return it without communication. Scopes
// within scopes have one failure, the first: over another group, whose ranks
// still wait, their next Agree brings it along, with the ranks' numbers there;
// the error is the same on all ranks of a group.
//
// Collective. All ranks of the group have a scope of it around the same code.
//
// Limits. A collective of the user that is not an agreement, such as AllReduce,
// is another call than the failed rank's vote: the group fails, with an error
// that names the rank but not its cause, which only that rank reports.
//
// Threads. A scope and what it covers are on one thread of each rank.
class AgreementScope {
 public:
  // `group` has this process.
  explicit AgreementScope(std::shared_ptr<ProcessGroup> group);
  AgreementScope(const AgreementScope&) = delete;
  AgreementScope& operator=(const AgreementScope&) = delete;
  ~AgreementScope();

  // As sherd::Agree. An error is the failure of the scope.
  absl::Status Agree(const OperationLabel& what, absl::Status local,
                     const AgreedValue& value = {});
  // The same; returns the largest `number` of a rank.
  absl::StatusOr<uint64_t> AgreeOnMaximum(const OperationLabel& what,
                                          absl::Status local,
                                          const AgreedValue& value,
                                          uint64_t number);

  // Records an error that all ranks of the group have. Returns the failure.
  absl::Status Fail(absl::Status status);

  // That of the thread's scopes, as this group has it if its ranks know of it;
  // or OK.
  absl::Status failure() const;

  // For agreements. Whether the thread has a scope of the group; its failure,
  // if the group's ranks know of it; and an error that they all have received.
  static bool Covers(const ProcessGroup& group);
  static absl::Status FailureOf(const ProcessGroup& group);
  static void Record(const ProcessGroup& group, const absl::Status& status);

 private:
  struct Shared;

  // Of the outermost scope of this thread, which owns it.
  static thread_local Shared* shared_;

  std::unique_ptr<Shared> own_;
  const std::shared_ptr<ProcessGroup> group_;
};

// As AgreeOnMaximum, but an error is the last word of this rank: see
// AgreementScope.
absl::StatusOr<uint64_t> AgreeLast(ProcessGroup& group,
                                   const OperationLabel& what,
                                   const absl::Status& local,
                                   const AgreedValue& value, uint64_t number);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_SCOPE_H_
