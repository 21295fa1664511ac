#ifndef SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_
#define SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// What all ranks of a collective must pass alike. Refers to what it was made
// from: it is written where it is used, `{fingerprint, [&] { … }}`.
struct AgreedValue {
  static std::string NoText() { return ""; }

  uint64_t fingerprint = 0;
  // The value as text, a property per line, of which an error shows the first
  // that differs. Called only if ranks differ.
  absl::FunctionRef<std::string()> describe = NoText;
};

// Makes an error on one rank the same error on all, before any data moves.
//
// Returns OK on every rank if every rank passed an OK `local` and the same
// `value`. Otherwise every rank returns the same status: code and text of the
// lowest rank that failed, "rank R: …", with what its ErrorInfo says of ranks,
// or R as the one where it happened; or, if all were OK, kInvalidArgument with
// the values and the ranks that passed them, the minority being the one that
// failed (see deviation.h). `what` names the operation in messages and
// ErrorInfo and is the same everywhere.
//
// Collective. All ranks call it in the same order as other collectives. The
// group stays usable, unless the collective itself fails: then that error is
// returned, as one of `what`.
//
// Cost. One all_gather of 32 bytes per rank; after a failure also broadcasts
// of the texts. That is the least: no rank may go on before it has heard of
// every other, and a message of data says something of its sender alone.
absl::Status Agree(ProcessGroup& group, const OperationLabel& what,
                   const absl::Status& local, const AgreedValue& value = {},
                   const CollectiveOptions& options = {});

// The same, and on success returns the largest `number` that a rank passed.
absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        const OperationLabel& what,
                                        const absl::Status& local,
                                        const AgreedValue& value,
                                        uint64_t number,
                                        const CollectiveOptions& options = {});

// The same, and on success every rank has the notes of all.
//
// Layout. With n = note.size(), the same on all ranks, and notes.size() ==
// P * n:  notes[r * n + i] == (note of rank r)[i], whatever rank r's status.
// After an error notes are unspecified.
//
// Cost. The note travels with the status: one all_gather of 32 + n bytes.
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

// What Agree says of values that every rank knows already: OK if those that are
// set are equal. `complaint` follows the rank that deviates: "has another
// layout". `describe`: as in AgreedValue, called on ranks whose value is set.
//
// Collective if they differ; all ranks pass the same `values`.
absl::Status CompareValues(ProcessGroup& group, const OperationLabel& what,
                           absl::string_view complaint,
                           const std::vector<std::optional<uint64_t>>& values,
                           absl::FunctionRef<std::string()> describe,
                           const CollectiveOptions& options = {});

// Leaves every rank's string, which may differ in length, on every rank.
//
// Errors. kResourceExhausted on all ranks if the strings exceed
// `max_total_bytes` together; otherwise those of AllGather.
//
// Cost. One all_gather of 8 bytes per rank and one all_to_all_v.
absl::StatusOr<std::vector<std::string>> AllGatherStrings(
    ProcessGroup& group, absl::string_view local,
    int64_t max_total_bytes = int64_t{1} << 30);

// A 64-bit FNV-1a hash: the same for equal bytes on every rank and in every
// build, unlike absl::Hash. For fingerprints; no protection against malice.
class Fingerprint {
 public:
  Fingerprint& Add(absl::string_view bytes);
  Fingerprint& Add(int64_t number);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_AGREEMENT_H_
