#ifndef SHERD_BACKENDS_HOST_PLUGIN_CALL_H_
#define SHERD_BACKENDS_HOST_PLUGIN_CALL_H_

#include <exception>

#include "absl/status/status.h"
#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// How the host calls a plugin, such that its mistakes become errors.

// An empty error for a plugin's function to fill.
sherd_error_v0 NoError();

// Records in `error` that the plugin threw, with `what` if it is known.
sherd_code ReportThrow(sherd_error_v0* error, const char* what);

// Calls a plugin. It must not throw; if it does, returns an error.
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

// Calls a function of a plugin that cannot report errors.
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

// The result of a plugin's function as a Status, in a group of `size` ranks.
absl::Status ToStatus(sherd_code code, const sherd_error_v0& error, int size);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_CALL_H_
