#ifndef SHERD_CORE_COMM_BOOTSTRAP_MEETING_H_
#define SHERD_CORE_COMM_BOOTSTRAP_MEETING_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/bootstrap/init_method.h"
#include "sherd/core/comm/bootstrap/launch_environment.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// What a program passes to Init or InitRpc; see InitOptions.
struct MeetingOptions {
  std::optional<int> rank;
  std::optional<int> world_size;
  // Empty: SHERD_INIT_METHOD.
  std::string init_method;
  std::shared_ptr<Store> store;
};

// This process's place among the ranks, and where these meet: for Meet().
struct MeetingPlace {
  // Unset: at the store, or wherever the launcher offers.
  std::optional<InitMethod> method;
  LaunchEnvironment place;
};

// What the options leave open comes from the init method or the launcher. A
// process without a launcher is a world of one rank, which a warning in the
// log reports. `function`, whose options are `options_type`: for errors.
//   kInvalidArgument  Options, method and variables are malformed, incomplete,
//                     or contradict each other.
absl::StatusOr<MeetingPlace> FindMeeting(const MeetingOptions& options,
                                         absl::string_view function,
                                         absl::string_view options_type);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_BOOTSTRAP_MEETING_H_
