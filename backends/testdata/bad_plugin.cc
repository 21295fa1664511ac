// Plugins that a host must refuse, one per value of BAD_PLUGIN.

#include <stdexcept>

#include "sherd/backends/backend_abi.h"

#if BAD_PLUGIN == 7
extern "C" int sherd_a_function_that_nobody_has();
#endif

namespace {

sherd_plugin_v0 table;

const sherd_plugin_v0* Bad() {
  table.struct_size = sizeof(table);
  table.major = SHERD_ABI_MAJOR;
  table.minor = SHERD_ABI_MINOR;
  table.name = "bad";
#if BAD_PLUGIN == 1
  table.major = SHERD_ABI_MAJOR + 1;
#elif BAD_PLUGIN == 2
  // The size of something else.
  table.struct_size = 32;
#elif BAD_PLUGIN == 3
  return nullptr;
#elif BAD_PLUGIN == 6
  throw std::runtime_error("no licence");
#elif BAD_PLUGIN == 7
  table.flags = static_cast<uint32_t>(sherd_a_function_that_nobody_has());
#elif BAD_PLUGIN == 8
  table.minor = SHERD_ABI_MINOR - 1;
#elif BAD_PLUGIN == 9
  table.minor = SHERD_ABI_MINOR + 1;
#endif
  return &table;
}

}  // namespace

#if BAD_PLUGIN == 4
extern "C" int sherd_some_other_symbol() { return Bad() != nullptr; }
#else
extern "C" const sherd_plugin_v0* sherd_get_plugin_v0(const sherd_host_v0*) {
  return Bad();
}
#endif
