#ifndef SHERD_BACKENDS_HOST_PLUGIN_CALL_H_
#define SHERD_BACKENDS_HOST_PLUGIN_CALL_H_

#include <exception>

#include "absl/status/status.h"
#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// How the host calls a plugin: its mistakes are errors and not the end.

// What a plugin's function gets to report in.
sherd_error_v0 NoError();

// Writes that the plugin threw, and `what` if it is known, into `error`.
sherd_code ReportThrow(sherd_error_v0* error, const char* what);

// Calls a plugin, which must not throw and yet may.
template <typename Call>
sherd_code Guarded(sherd_error_v0* error, Call call) {
  try {
    return call();
  } catch (const std::exception& e) {
    return ReportThrow(error, e.what());
  } catch (...) {
    return ReportThrow(error, nullptr);
  }
}

void LogThrow(const sherd_error_v0& error);

// Calls a function of a plugin that has no way to report.
template <typename Call>
void GuardedQuietly(Call call) {
  sherd_error_v0 error = NoError();
  if (Guarded(&error, [&] {
        call();
        return SHERD_OK;
      }) != SHERD_OK) {
    LogThrow(error);
  }
}

// What a plugin's function returned, in a group of `size` ranks.
absl::Status ToStatus(sherd_code code, const sherd_error_v0& error, int size);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_CALL_H_
