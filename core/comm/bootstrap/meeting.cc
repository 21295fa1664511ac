#include "sherd/core/comm/bootstrap/meeting.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

absl::StatusOr<std::optional<InitMethod>> FindMethod(
    const MeetingOptions& options, absl::string_view function,
    absl::string_view options_type) {
  if (options.store != nullptr) {
    if (!options.init_method.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          function, ": store and init_method are mutually exclusive"));
    }
    return std::nullopt;
  }
  const std::string url = options.init_method.empty()
                              ? GetKnobOr(Knob::kInitMethod, "")
                              : options.init_method;
  if (url.empty()) return std::nullopt;
  SHERD_ASSIGN_OR_RETURN(InitMethod method, InitMethod::Parse(url));
  for (const auto& [option, parameter, name] :
       {std::tuple(options.rank, method.rank, "rank"),
        {options.world_size, method.world_size, "world_size"}}) {
    if (option && parameter && *option != *parameter) {
      return absl::InvalidArgumentError(
          absl::StrCat(function, ": ", options_type, "::", name, " is ",
                       *option, ", but \"", url, "\" has ", *parameter));
    }
  }
  return method;
}

}  // namespace

absl::StatusOr<MeetingPlace> FindMeeting(const MeetingOptions& options,
                                         absl::string_view function,
                                         absl::string_view options_type) {
  MeetingPlace meeting;
  SHERD_ASSIGN_OR_RETURN(meeting.method,
                         FindMethod(options, function, options_type));
  GivenPlace given = {.rank = options.rank,
                      .world_size = options.world_size,
                      .function = function,
                      .options_type = options_type};
  if (meeting.method) {
    if (meeting.method->rank) given.rank = meeting.method->rank;
    if (meeting.method->world_size) {
      given.world_size = meeting.method->world_size;
    }
  }
  given.meeting_place = meeting.method.has_value() || options.store != nullptr;
  SHERD_ASSIGN_OR_RETURN(meeting.place, ReadLaunchEnvironment(given));
  if (meeting.place.launcher == kNoLauncher) {
    SHERD_LOG(kWarning)
        << "no variable of a launcher is set: this process is a world of one "
           "rank; \"sherd run -n N PROGRAM\" starts several";
  }
  return meeting;
}

}  // namespace sherd::internal
