#ifndef SHERD_TOOLS_BENCH_PEERS_NULL_PLUGIN_H_
#define SHERD_TOOLS_BENCH_PEERS_NULL_PLUGIN_H_

#include "sherd/backends/backend_abi.h"

namespace sherd {

// A plugin whose operations end at once and move nothing.
const sherd_plugin_v0& NullPlugin();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_NULL_PLUGIN_H_
