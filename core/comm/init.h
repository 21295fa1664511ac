#ifndef SHERD_CORE_COMM_INIT_H_
#define SHERD_CORE_COMM_INIT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store.h"

namespace sherd {

struct InitOptions {
  // "gloo", "local", "auto", or any name for which a plugin
  // libsherd_backend_NAME.so is found. Empty: SHERD_BACKEND, otherwise "auto".
  std::string backend;
  // Unset: RANK and WORLD_SIZE.
  std::optional<int> rank;
  std::optional<int> world_size;
  // Where ranks meet: "file:///PATH", a file that does not exist before the
  // run, in a directory that all ranks share. Empty: SHERD_INIT_METHOD.
  std::string init_method;
  // Instead of init_method: a store that all ranks share.
  std::shared_ptr<Store> store;
  // For Init itself and for each collective. Unset: SHERD_TIMEOUT, otherwise
  // five minutes.
  std::optional<absl::Duration> timeout;
  std::string group_name = "default";
};

// Connects this rank to the others and makes the result the default group of
// this process — or of this thread, with the backend "local", whose ranks are
// threads.
//
// Collective. Every rank calls it, with the same options but for the rank.
//
// Errors.
//   kInvalidArgument     An option or variable is malformed, missing (the
//                        message says what sets it) or contradicts another
//                        rank's; or the file is left over from another run.
//   kFailedPrecondition  There is a default group already: destroy it first.
//   kNotFound            "Backend NAME not supported!" and what was searched.
//   kDeadlineExceeded    Some ranks did not come; named.
absl::StatusOr<std::shared_ptr<ProcessGroup>> Init(
    const InitOptions& options = {});

// The group that Init made and nobody has destroyed.
//   kFailedPrecondition  "Default process group has not been initialized": call
//                        Init first.
absl::StatusOr<std::shared_ptr<ProcessGroup>> DefaultGroup();

}  // namespace sherd

#endif  // SHERD_CORE_COMM_INIT_H_
