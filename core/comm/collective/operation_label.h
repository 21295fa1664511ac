#ifndef SHERD_CORE_COMM_COLLECTIVE_OPERATION_LABEL_H_
#define SHERD_CORE_COMM_COLLECTIVE_OPERATION_LABEL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// A public operation as errors name it. Holds references to its arguments.
struct OperationLabel {
  // NOLINTNEXTLINE(google-explicit-constructor)
  OperationLabel(absl::string_view name) : name(name), text(name) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  OperationLabel(const char* name) : name(name), text(name) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  OperationLabel(const std::string& name) : name(name), text(name) {}
  OperationLabel(absl::string_view name, absl::string_view text)
      : name(name), text(text) {}

  // In ErrorInfo: "load_checkpoint".
  absl::string_view name;
  // The beginning of messages: "load "ckpt": tensor "wte.weight"".
  absl::string_view text;
};

// Returns `status` as an error of `operation`, which the program called: the
// message begins with its text, unless it does already, and the ErrorInfo has
// its name, whatever inner call failed. That call and its sequence number stay
// in the message as a detail. `group`: where the operation ran, for an error
// that does not name its group. An OK status is returned unchanged.
[[nodiscard]] absl::Status InOperation(const OperationLabel& operation,
                                       absl::Status status,
                                       absl::string_view group = {});

template <typename T>
[[nodiscard]] absl::StatusOr<T> InOperation(const OperationLabel& operation,
                                            absl::StatusOr<T> result,
                                            absl::string_view group = {}) {
  if (result.ok()) return result;
  return InOperation(operation, result.status(), group);
}

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_OPERATION_LABEL_H_
