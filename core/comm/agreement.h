#ifndef SHERD_CORE_COMM_AGREEMENT_H_
#define SHERD_CORE_COMM_AGREEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// Makes an error on one rank the same error on all, before any data moves.
//
// Returns OK on every rank if every rank passed an OK `local` and the same
// `fingerprint`. Otherwise every rank returns the same status: code and text
// of the lowest rank that failed, "rank R: …", with that rank to blame; or,
// if all were OK, kInvalidArgument naming the first rank whose fingerprint
// differs from what most ranks have. `what` names the operation in messages
// and ErrorInfo and is the same everywhere.
//
// Collective. All ranks call it in the same order as other collectives. The
// group stays usable, unless the collective itself fails: then that error is
// returned, as one of `what`.
//
// Cost. One all_gather of 40 bytes per rank; after a failure also a broadcast
// of the text. That is the least: no rank may go on before it has heard of
// every other, and a message of data says something of its sender alone.
absl::Status Agree(ProcessGroup& group, absl::string_view what,
                   const absl::Status& local, uint64_t fingerprint = 0,
                   const CollectiveOptions& options = {});

// The same, and on success returns the largest `value` that a rank passed.
absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        absl::string_view what,
                                        const absl::Status& local,
                                        uint64_t fingerprint, uint64_t value,
                                        const CollectiveOptions& options = {});

// The same, and on success every rank has the notes of all.
//
// Layout. With n = note.size(), the same on all ranks, and notes.size() ==
// P * n:  notes[r * n + i] == (note of rank r)[i], whatever rank r's status.
// After an error notes are unspecified.
//
// Cost. The note travels with the status: one all_gather of 40 + n bytes.
absl::Status AgreeAndTell(ProcessGroup& group, absl::string_view what,
                          const absl::Status& local, uint64_t fingerprint,
                          ConstBytes note, MutableBytes notes,
                          const CollectiveOptions& options = {});

// For notes of one type, which all ranks lay out alike: they run the same
// build. Entry r of the result is rank r's.
template <typename Note>
absl::StatusOr<std::vector<Note>> AgreeAndTell(
    ProcessGroup& group, absl::string_view what, const absl::Status& local,
    uint64_t fingerprint, const Note& note,
    const CollectiveOptions& options = {}) {
  static_assert(std::is_trivially_copyable_v<Note>);
  std::vector<Note> notes(static_cast<size_t>(group.size()));
  absl::Status status = AgreeAndTell(
      group, what, local, fingerprint,
      ConstBytes(reinterpret_cast<const std::byte*>(&note), sizeof(Note)),
      MutableBytes(reinterpret_cast<std::byte*>(notes.data()),
                   notes.size() * sizeof(Note)),
      options);
  if (!status.ok()) return status;
  return notes;
}

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

#endif  // SHERD_CORE_COMM_AGREEMENT_H_
