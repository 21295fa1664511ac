#ifndef SHERD_BACKENDS_STATIC_PLUGIN_H_
#define SHERD_BACKENDS_STATIC_PLUGIN_H_

#include "sherd/backends/backend_abi.h"

// SHERD_BACKEND_PLUGIN(GetPlugin), once in a backend's source file, makes
// GetPlugin the entry of the shared object, or lists it for the loader where
// the same file is linked statically (with alwayslink).

namespace sherd::internal {

// Plugins that are linked into this program, newest first. Filled before main,
// constant afterwards.
struct StaticPlugin {
  explicit StaticPlugin(sherd_get_plugin_v0_fn entry)
      : entry(entry), next(Head()) {
    Head() = this;
  }

  static StaticPlugin*& Head() {
    static StaticPlugin* head = nullptr;
    return head;
  }

  const sherd_get_plugin_v0_fn entry;
  StaticPlugin* const next;
};

}  // namespace sherd::internal

#ifdef SHERD_PLUGIN_BUILD
#define SHERD_BACKEND_PLUGIN(get_plugin)                                   \
  extern "C" __attribute__((visibility("default"))) const sherd_plugin_v0* \
  sherd_get_plugin_v0(const sherd_host_v0* host) {                         \
    return get_plugin(host);                                               \
  }
#else
#define SHERD_BACKEND_PLUGIN(get_plugin) \
  static ::sherd::internal::StaticPlugin sherd_static_plugin(get_plugin);
#endif

#endif  // SHERD_BACKENDS_STATIC_PLUGIN_H_
