#ifndef SHERD_CORE_COMM_BOOTSTRAP_BACKEND_CHOICE_H_
#define SHERD_CORE_COMM_BOOTSTRAP_BACKEND_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// Which backend a group uses for the tensors of each device.
struct BackendChoice {
  // As ranks compare it: in lower case and in one order.
  std::string text;
  // Never empty; "auto" is chosen once all ranks have met.
  std::string cpu;
  // Empty unless a pair names it.
  std::string cuda;

  // Reads one name for all devices ("gloo", "auto", a plugin's), or one per
  // device ("cpu:gloo,cuda:nccl"), of which "nccl" is one:
  // "cpu:auto,cuda:nccl". Case does not matter.
  //   kInvalidArgument  "Invalid device:backend pairing: …" or "Duplicate
  //                     device type …"; or there is no pair for cpu, which
  //                     every group needs.
  static absl::StatusOr<BackendChoice> Parse(absl::string_view text);
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_BACKEND_CHOICE_H_
