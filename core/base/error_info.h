#ifndef SHERD_CORE_BASE_ERROR_INFO_H_
#define SHERD_CORE_BASE_ERROR_INFO_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sherd {

// Machine-readable information about a failed operation. Every error of a
// collective carries one.
struct ErrorInfo {
  // Name of the process group, empty if none was involved.
  std::string group;
  // Operation as the public interface names it: "all_gather", "reshard", ….
  std::string operation;
  // Position of the call among the collectives of the group, from 1; 0 if the
  // operation is not one.
  uint64_t sequence = 0;
  // Rank (in the group) where the error occurred: the one that died, timed out,
  // passed the bad input or had the full disk. Unset if unknown, and where
  // several ranks contradict each other without a majority.
  std::optional<int> rank;
  // `rank`, if it failed as a member of the group: it died, was stopped, timed
  // out, exited, or made a different call than the others. The others can
  // continue only without it. Unset if every rank can continue, even if one had
  // an error.
  std::optional<int> failed_rank;

  friend bool operator==(const ErrorInfo&, const ErrorInfo&) = default;
};

// Returns `status` with `info` attached; fields already attached are kept
// where `info` leaves them empty. An OK status is returned unchanged.
[[nodiscard]] absl::Status WithErrorInfo(absl::Status status,
                                         const ErrorInfo& info);

// Shorthand for a WithErrorInfo that sets only `rank`: where the error
// occurred.
[[nodiscard]] absl::Status WithRank(absl::Status status, int rank);

// As WithRank, for a failed rank: sets `rank` and `failed_rank`.
[[nodiscard]] absl::Status WithFailedRank(absl::Status status, int rank);

// The information attached to `status`; all fields are empty if none is
// attached.
[[nodiscard]] ErrorInfo GetErrorInfo(const absl::Status& status);

// Returns `status` without the information attached to it.
[[nodiscard]] absl::Status WithoutErrorInfo(absl::Status status);

// The rank where the error occurred, if known.
[[nodiscard]] std::optional<int> ErrorRank(const absl::Status& status);

// The failed rank, without which the others can continue; unset if the error is
// not the failure of a rank.
[[nodiscard]] std::optional<int> FailedRank(const absl::Status& status);

// Whether the error is the failure of a rank, so that the program can continue
// with a smaller group. FailedRank names the rank.
[[nodiscard]] bool IsRankFailure(const absl::Status& status);

// Returns `status` with "`context`: " before its message. Code and attached
// information stay. An OK status is returned unchanged.
[[nodiscard]] absl::Status Annotate(absl::Status status,
                                    absl::string_view context);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_ERROR_INFO_H_
