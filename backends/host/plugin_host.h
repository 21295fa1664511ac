#ifndef SHERD_BACKENDS_HOST_PLUGIN_HOST_H_
#define SHERD_BACKENDS_HOST_PLUGIN_HOST_H_

#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// The services that this program offers to plugins of every kind. Lives
// forever.
const sherd_host_v0& PluginHost();

// Converts deadlines to those of the plugin ABI.
int64_t ToNanoseconds(Deadline deadline);
Deadline FromNanoseconds(int64_t deadline);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_HOST_H_
