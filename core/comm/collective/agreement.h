#ifndef SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_
#define SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {
namespace internal {
struct Ballots;
}  // namespace internal

// A value that all ranks of a collective must pass alike. Holds references:
// write it where it is used, `{fingerprint, [&] { … }}`.
struct AgreedValue {
  static std::string NoText() { return ""; }

  uint64_t fingerprint = 0;
  // Returns the value as text, one property per line; an error shows the first
  // line that differs. Called only if ranks differ.
  absl::FunctionRef<std::string()> describe = NoText;
};

// Makes an error on one rank the same error on all, before any data moves.
//
// Returns OK on every rank if every rank passed an OK `local` and the same
// `value`. Otherwise every rank returns the same status: code and text of the
// lowest rank that failed, "rank R: …", with the ranks of its ErrorInfo, or R
// if it has none; or, if all were OK, kInvalidArgument with the values and the
// ranks that passed them, the minority being the failed rank (see deviation.h).
// `what` names the operation in messages and ErrorInfo and is the same on all
// ranks.
//
// Collective. All ranks call it in the same order as other collectives. The
// group stays usable, unless the collective itself fails: then that error is
// returned, as one of `what`.
//
// Cost. One all_gather of 32 bytes per rank; after a failure also broadcasts
// of the texts. This is the minimum: no rank may proceed before it knows the
// status of every other, and a data message carries only its sender's status.
absl::Status Agree(ProcessGroup& group, const OperationLabel& what,
                   const absl::Status& local, const AgreedValue& value = {},
                   const CollectiveOptions& options = {});

// As Agree; on success returns the largest `number` that a rank passed.
absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        const OperationLabel& what,
                                        const absl::Status& local,
                                        const AgreedValue& value,
                                        uint64_t number,
                                        const CollectiveOptions& options = {});

struct LongStepOptions {
  // How long a rank may make no progress. Unset: the group's timeout.
  std::optional<absl::Duration> timeout;
  // A rank reports its progress at most this often. Unset: every second, in
  // groups above 1000 ranks after a millisecond per rank, but at least eight
  // times per timeout. The same on all ranks.
  std::optional<absl::Duration> interval;
  // Length of the note that each rank passes to AgreeAndGather. The same on all
  // ranks.
  size_t note_bytes = 0;
};

// A step of a collective operation that may take some ranks longer than the
// timeout of a collective, such as writing a file: its end is an agreement, for
// which ranks wait as long as those that are not there yet make progress.
//
//   LongStep step(group, what);
//   absl::Status status;
//   while (status.ok() && …) {
//     status = WriteBlock(…);
//     status.Update(step.MadeProgress());
//   }
//   status = step.Agree(status);  // That of all ranks.
//
// Collective. All ranks create one, call MadeProgress any number of times, then
// one Agree, and no other collective of the group in between.
//
// How. The agreement is repeated until no rank's vote says that it is still in
// the step. A rank in the step votes without waiting for the others, when
// MadeProgress finds that the interval is over; so each vote that all ranks
// wait for renews their deadline, and tells those in the step who has failed:
// they learn of it within two intervals.
//
// Errors. kDeadlineExceeded if a rank makes no progress for the timeout; the
// message names the rank. A rank that dies is named as soon as the backend
// notices, also by ranks in the step.
//
// Cost. Steps shorter than the interval: that of Agree alone. MadeProgress
// reads the clock; once per interval it starts an all_gather of 32 bytes and
// LongStepOptions::note_bytes per rank.
//
// Threads. Not thread-safe.
class LongStep {
 public:
  // `group` and `what` outlive it.
  LongStep(ProcessGroup& group, const OperationLabel& what,
           const LongStepOptions& options = {});
  LongStep(const LongStep&) = delete;
  LongStep& operator=(const LongStep&) = delete;
  ~LongStep();

  // Called after every part of the step that takes a while; blocks only to
  // receive the failure of an AgreementScope. Returns an error once the rest of
  // the step is in vain: the group or the scope has failed, and Agree returns
  // the same error; or another rank ended the step with an error (kCancelled),
  // and Agree returns that one, whatever this rank passes. Of the latter,
  // nothing that outlives the step should keep the status.
  absl::Status MadeProgress();

  // As the functions of these names.
  absl::Status Agree(const absl::Status& local, const AgreedValue& value = {});
  absl::StatusOr<uint64_t> AgreeOnMaximum(const absl::Status& local,
                                          const AgreedValue& value,
                                          uint64_t number);
  // As the function of this name, for notes of LongStepOptions::note_bytes.
  absl::Status AgreeAndGather(const absl::Status& local,
                              const AgreedValue& value, ConstBytes note,
                              MutableBytes notes);

 private:
  struct Round;

  void BeginRound();
  absl::Status EndRound();
  // What this rank votes: not the error by which it learned of another one's.
  absl::Status OwnStatus(const absl::Status& local) const;
  // Repeats the vote until no rank is in the step any more. `ballots` receives
  // the last ones; those of this rank are set.
  absl::Status VoteUntilAllEnd(internal::Ballots& ballots);

  ProcessGroup& group_;
  const OperationLabel what_;
  // Of each round.
  CollectiveOptions options_;
  absl::Duration interval_;
  const size_t note_bytes_;
  Deadline next_round_;
  // Null, or the round that was begun in the step and may still run.
  std::unique_ptr<Round> round_;
  absl::Status failure_;
  // A rank that ended the step with an error while this one was in it.
  std::optional<int> failed_;
};

// As Agree; on success every rank has the notes of all ranks.
//
// Layout. With n = note.size(), the same on all ranks, and notes.size() ==
// P * n: notes[r * n + i] == (note of rank r)[i], for any status of rank r.
// After an error notes are unspecified.
//
// Cost. The note travels with the status: one all_gather of 32 + n bytes. In an
// AgreementScope it follows in one of n bytes.
absl::Status AgreeAndGather(ProcessGroup& group, const OperationLabel& what,
                            const absl::Status& local, const AgreedValue& value,
                            ConstBytes note, MutableBytes notes,
                            const CollectiveOptions& options = {});

// For notes of one type, which all ranks lay out alike: they run the same
// build. Entry r of the result is rank r's.
template <typename Note>
absl::StatusOr<std::vector<Note>> AgreeAndGather(
    ProcessGroup& group, const OperationLabel& what, const absl::Status& local,
    const AgreedValue& value, const Note& note,
    const CollectiveOptions& options = {}) {
  static_assert(std::is_trivially_copyable_v<Note>);
  std::vector<Note> notes(static_cast<size_t>(group.size()));
  absl::Status status = AgreeAndGather(
      group, what, local, value,
      ConstBytes(reinterpret_cast<const std::byte*>(&note), sizeof(Note)),
      MutableBytes(reinterpret_cast<std::byte*>(notes.data()),
                   notes.size() * sizeof(Note)),
      options);
  if (!status.ok()) return status;
  return notes;
}

// As Agree for values that every rank knows already: OK if those that are set
// are equal. `complaint` follows the rank that deviates: "has another layout".
// `describe`: as in AgreedValue, called on ranks whose value is set.
//
// Collective if they differ; all ranks pass the same `values`.
absl::Status CompareValues(ProcessGroup& group, const OperationLabel& what,
                           absl::string_view complaint,
                           const std::vector<std::optional<uint64_t>>& values,
                           absl::FunctionRef<std::string()> describe,
                           const CollectiveOptions& options = {});

// Gathers every rank's string on every rank; lengths may differ.
//
// Errors. kResourceExhausted on all ranks if the strings exceed
// `max_total_bytes` together; otherwise those of AllGather.
//
// Cost. One all_gather of 8 bytes per rank and one all_to_all_v.
absl::StatusOr<std::vector<std::string>> AllGatherStrings(
    ProcessGroup& group, absl::string_view local,
    const CollectiveOptions& options = {},
    int64_t max_total_bytes = int64_t{1} << 30);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_
