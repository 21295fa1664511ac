#ifndef SHERD_CORE_BASE_ERROR_INFO_H_
#define SHERD_CORE_BASE_ERROR_INFO_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sherd {

// What a program can learn about a failed operation without reading the
// message. Every error of a collective carries one.
struct ErrorInfo {
  // Name of the process group, empty if none was involved.
  std::string group;
  // Operation as the public interface names it: "all_gather", "reshard", ….
  std::string operation;
  // Position of the call among the collectives of the group, from 1; 0 if the
  // operation is not one.
  uint64_t sequence = 0;
  // Rank (in the group) where it happened: the one that died, timed out,
  // brought the bad input or met the full disk. Unset if unknown, and where
  // several ranks contradict each other with equal right.
  std::optional<int> rank;
  // `rank`, if it failed as a member of the group: it died, was stopped, timed
  // out, left, or called something else than the others. Those who go on go on
  // without it. Unset if every rank can go on, whatever went wrong on one.
  std::optional<int> failed_rank;

  friend bool operator==(const ErrorInfo&, const ErrorInfo&) = default;
};

// Returns `status` with `info` attached; fields already attached are kept
// where `info` leaves them empty. An OK status is returned unchanged.
[[nodiscard]] absl::Status WithErrorInfo(absl::Status status,
                                         const ErrorInfo& info);

// Shorthand for a WithErrorInfo that sets only `rank`: where it happened.
[[nodiscard]] absl::Status WithRank(absl::Status status, int rank);

// The same for a rank that failed: sets `rank` and `failed_rank`.
[[nodiscard]] absl::Status WithFailedRank(absl::Status status, int rank);

// What was attached to `status`; all fields empty if nothing was.
[[nodiscard]] ErrorInfo GetErrorInfo(const absl::Status& status);

// The rank where it happened, if known.
[[nodiscard]] std::optional<int> ErrorRank(const absl::Status& status);

// The rank without which the others can go on, if the error is one's failure.
[[nodiscard]] std::optional<int> FailedRank(const absl::Status& status);

// Whether the error is the failure of a rank, which FailedRank names: what a
// program answers with a smaller group, and other errors with something else.
[[nodiscard]] bool IsRankFailure(const absl::Status& status);

// Returns `status` with "`context`: " before its message. Code and attached
// information stay. An OK status is returned unchanged.
[[nodiscard]] absl::Status Annotate(absl::Status status,
                                    absl::string_view context);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_ERROR_INFO_H_
