// One of two plugins that bring different functions of the same name, as
// plugins that link different releases of one library do.

#include "sherd/backends/backend_abi.h"

extern "C" __attribute__((visibility("default"), noinline)) const char*
sherd_clashing_version() {
  return "of plugin " CLASHING_PLUGIN;
}

namespace {

// Never called.
sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }
sherd_code Create(const sherd_comm_config_v0*, sherd_comm_v0**,
                  sherd_error_v0*) {
  return SHERD_UNSUPPORTED;
}
void Destroy(sherd_comm_v0*) {}
sherd_code Post(sherd_comm_v0*, const sherd_op_v0*, sherd_request_v0*,
                sherd_error_v0*) {
  return SHERD_UNSUPPORTED;
}
void Abort(sherd_comm_v0*) {}

// Through the dynamic linker, like every call of an exported function.
const sherd_plugin_v0 kPlugin = {.struct_size = sizeof(sherd_plugin_v0),
                                 .major = SHERD_ABI_MAJOR,
                                 .minor = SHERD_ABI_MINOR,
                                 .name = "clashing_" CLASHING_PLUGIN,
                                 .flags = SHERD_COMPLETES_IN_POST,
                                 .library_version = sherd_clashing_version,
                                 .probe = Probe,
                                 .create = Create,
                                 .destroy = Destroy,
                                 .post = Post,
                                 .abort = Abort};

}  // namespace

extern "C" __attribute__((visibility("default"))) const sherd_plugin_v0*
sherd_get_plugin_v0(const sherd_host_v0*) {
  return &kPlugin;
}
