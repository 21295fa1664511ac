#ifndef SHERD_BACKENDS_TESTDATA_OLD_HOST_H_
#define SHERD_BACKENDS_TESTDATA_OLD_HOST_H_

#include <string>

namespace sherd::testing {

// Runs a plugin as a host of line 0.1 does, with that line's header: `ranks`
// threads connect, meet at barriers and exchange data. Structs are as short as
// they were then, and what lies behind them cannot be read: a plugin that takes
// a newer host for granted ends the process.
//
// `entry` is the plugin's sherd_get_plugin_v0. Returns what went wrong, "no" if
// the plugin says that it cannot work with such a host, or nothing.
std::string RunInOldHost(void* entry, int ranks);

}  // namespace sherd::testing

#endif  // SHERD_BACKENDS_TESTDATA_OLD_HOST_H_
