#ifndef SHERD_BACKENDS_STATIC_DEVICE_PLUGIN_H_
#define SHERD_BACKENDS_STATIC_DEVICE_PLUGIN_H_

#include "sherd/backends/device_abi.h"

// SHERD_DEVICE_PLUGIN(GetDevice), once in a device plugin's source file, makes
// GetDevice the entry of the shared object, or lists it for the loader where
// the same file is linked statically (with alwayslink).

namespace sherd::internal {

// Device plugins that are linked into this program, newest first. Filled before
// main, constant afterwards.
struct StaticDevicePlugin {
  explicit StaticDevicePlugin(sherd_get_device_v0_fn entry)
      : entry(entry), next(Head()) {
    Head() = this;
  }

  static StaticDevicePlugin*& Head() {
    static StaticDevicePlugin* head = nullptr;
    return head;
  }

  const sherd_get_device_v0_fn entry;
  StaticDevicePlugin* const next;
};

}  // namespace sherd::internal

#ifdef SHERD_PLUGIN_BUILD
#define SHERD_DEVICE_PLUGIN(get_device)                                    \
  extern "C" __attribute__((visibility("default"))) const sherd_device_v0* \
  sherd_get_device_v0(const sherd_host_v0* host) {                         \
    return get_device(host);                                               \
  }
#else
#define SHERD_DEVICE_PLUGIN(get_device)                                    \
  static ::sherd::internal::StaticDevicePlugin sherd_static_device_plugin( \
      get_device);
#endif

#endif  // SHERD_BACKENDS_STATIC_DEVICE_PLUGIN_H_
