#include "sherd/tools/bench/null_plugin.h"

#include "sherd/backends/static_plugin.h"

namespace sherd {
namespace {

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

sherd_code Create(const sherd_comm_config_v0*, sherd_comm_v0** comm,
                  sherd_error_v0*) {
  static int something;
  *comm = reinterpret_cast<sherd_comm_v0*>(&something);
  return SHERD_OK;
}

void Destroy(sherd_comm_v0*) {}

sherd_code Post(sherd_comm_v0*, const sherd_op_v0*, sherd_request_v0*,
                sherd_error_v0*) {
  return SHERD_OK;
}

void Abort(sherd_comm_v0*) {}

sherd_plugin_v0 MakePlugin() {
  sherd_plugin_v0 plugin = {};
  plugin.struct_size = sizeof(plugin);
  plugin.major = SHERD_ABI_MAJOR;
  plugin.minor = SHERD_ABI_MINOR;
  plugin.name = "null";
  plugin.operations = (uint64_t{1} << SHERD_NUM_OPERATIONS) - 1;
  // As shm does: the cost of the host's own comparison is another figure.
  plugin.flags = SHERD_COMPLETES_IN_POST | SHERD_COMPARES_CALLS;
  plugin.probe = Probe;
  plugin.create = Create;
  plugin.destroy = Destroy;
  plugin.post = Post;
  plugin.abort = Abort;
  for (uint32_t& reductions : plugin.reductions) {
    reductions = (1u << SHERD_NUM_REDUCTIONS) - 1;
  }
  return plugin;
}

const sherd_plugin_v0* GetPlugin(const sherd_host_v0*) { return &NullPlugin(); }

}  // namespace

const sherd_plugin_v0& NullPlugin() {
  static const sherd_plugin_v0 plugin = MakePlugin();
  return plugin;
}

}  // namespace sherd

SHERD_BACKEND_PLUGIN(sherd::GetPlugin)
