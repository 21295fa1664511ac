// Device plugins that a host must refuse, one per value of BAD_DEVICE.

#include <stdexcept>

#include "sherd/backends/device_abi.h"

#if BAD_DEVICE == 6
extern "C" int sherd_a_function_that_nobody_has();
#endif

namespace {

sherd_device_v0 table;

const sherd_device_v0* Bad() {
  table.struct_size = sizeof(table);
  table.major = SHERD_ABI_MAJOR;
  table.minor = SHERD_ABI_MINOR;
  table.name = "bad";
#if BAD_DEVICE == 1
  table.major = SHERD_ABI_MAJOR + 1;
#elif BAD_DEVICE == 2
  // The size of something else.
  table.struct_size = 32;
#elif BAD_DEVICE == 3
  return nullptr;
#elif BAD_DEVICE == 5
  throw std::runtime_error("no licence");
#elif BAD_DEVICE == 6
  table.device_type = sherd_a_function_that_nobody_has();
#elif BAD_DEVICE == 7
  table.minor = SHERD_ABI_MINOR - 1;
#elif BAD_DEVICE == 8
  table.minor = SHERD_ABI_MINOR + 1;
#endif
  return &table;
}

}  // namespace

extern "C" const sherd_device_v0* sherd_get_device_v0(const sherd_host_v0*) {
  return Bad();
}
