// One of two plugins that bring different functions of the same name, as
// plugins that link different releases of one library do.

#include <memory>

#include "sherd/backends/plugin.h"

extern "C" __attribute__((visibility("default"), noinline)) const char*
sherd_clashing_version() {
  return "of plugin " CLASHING_PLUGIN;
}

namespace {

// Never made.
class Communicator {
 public:
  static sherd_code Create(const sherd_comm_config_v0&,
                           std::unique_ptr<Communicator>*, sherd_error_v0*) {
    return SHERD_UNSUPPORTED;
  }
  sherd_code Run(const sherd_op_v0&, sherd_error_v0*) {
    return SHERD_UNSUPPORTED;
  }
  void Abort() {}
};

// Through the dynamic linker, like every call of an exported function.
constexpr sherd_plugin_v0 kPlugin = sherd::plugin::BackendTable<Communicator>(
    {.name = "clashing_" CLASHING_PLUGIN,
     .library_version = sherd_clashing_version});

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
