#ifndef SHERD_CORE_COMM_BOOTSTRAP_BACKEND_AGREEMENT_H_
#define SHERD_CORE_COMM_BOOTSTRAP_BACKEND_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/bootstrap/host_address.h"

namespace sherd::internal {

// What a rank requests of a group that it is about to join, and where it is.
struct BackendRequest {
  // As in BackendChoice::cpu and BackendChoice::cuda.
  std::string backend;
  std::string device_backend;
  // The backend cannot connect hosts.
  bool one_host_only = false;
  // With the backend "auto": why this rank cannot use shared memory. Empty if
  // it can.
  std::string shm_obstacle;
  HostIdentity host;

  // As text, for AgreeOnBackend.
  std::string ToText() const;
};

// What the requests of all ranks result in, the same on all ranks.
struct BackendAgreement {
  // As requested; "auto" is replaced by "shm" or "gloo".
  std::string backend;
  // The reason why "auto" is not shared memory; empty otherwise.
  std::string reason;
  // All ranks have equal HostIdentity::network.
  bool one_network = false;
  // All ranks also have equal HostIdentity::machine.
  bool one_host() const { return elsewhere < 0; }
  // The first rank that is not on the host of rank 0; -1 if all are.
  int elsewhere = -1;

  // The inverse of AgreeOnBackend's text.
  //   kInvalidArgument  It is malformed.
  static absl::StatusOr<BackendAgreement> Parse(absl::string_view text);
};

// The agreement, as text, of ranks whose requests are `requests`, by rank.
//   kInvalidArgument     Ranks differ in the backend; the message lists what
//                        each requested, and who deviates. Or a request is
//                        malformed.
//   kFailedPrecondition  The backend is for one host and ranks are on several.
absl::StatusOr<std::string> AgreeOnBackend(
    const std::vector<std::string>& requests);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_BOOTSTRAP_BACKEND_AGREEMENT_H_
