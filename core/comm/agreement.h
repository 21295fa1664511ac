#ifndef SHERD_CORE_COMM_AGREEMENT_H_
#define SHERD_CORE_COMM_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// Makes an error on one rank the same error on all, before any data moves.
//
// Returns OK on every rank if every rank passed an OK `local` and the same
// `fingerprint`. Otherwise every rank returns the same status: code and text
// of the lowest rank that failed, "rank R: …", with that rank to blame; or,
// if all were OK, kInvalidArgument naming the first rank whose fingerprint
// differs from rank 0's. `what` names the operation in messages and is the
// same everywhere.
//
// Collective. All ranks call it in the same order as other collectives. The
// group stays usable, unless the collective itself fails: then that error is
// returned.
//
// Cost. One all_gather of 40 bytes per rank; after a failure also a broadcast
// of the text.
absl::Status Agree(ProcessGroup& group, absl::string_view what,
                   const absl::Status& local, uint64_t fingerprint = 0);

// The same, and on success returns the largest `value` that a rank passed.
absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        absl::string_view what,
                                        const absl::Status& local,
                                        uint64_t fingerprint, uint64_t value);

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
