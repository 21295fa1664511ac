#ifndef SHERD_BACKENDS_LOCAL_PLUGIN_CHECKS_H_
#define SHERD_BACKENDS_LOCAL_PLUGIN_CHECKS_H_

#include "sherd/backends/local/plugin_ranks.h"

namespace sherd::testing {

// Checks of a plugin with all operations, as GoogleTest expectations. Every
// rank of a healthy group of at least 2 calls each; the group stays healthy.

// Sizes around those where an implementation is likely to cut the data, up to
// `max_bytes`; in place and not.
void CheckAllReduce(PluginRank& self, uint64_t max_bytes);
void CheckReduce(PluginRank& self, uint64_t max_bytes);
void CheckReduceScatter(PluginRank& self, uint64_t max_bytes);

// Lengths differ by rank; some are 0.
void CheckAllGatherV(PluginRank& self);
void CheckGather(PluginRank& self);
void CheckScatter(PluginRank& self);

// Uses 16-bit floats whose sum depends on where it is rounded.
void CheckRoundsOnce(PluginRank& self);

// Tags that are received in another order than sent, and equal tags in order,
// from short to long.
void CheckMessages(PluginRank& self);

// Threads that send and receive while collectives run.
void CheckMessagesBesideCollectives(PluginRank& self);

}  // namespace sherd::testing

#endif  // SHERD_BACKENDS_LOCAL_PLUGIN_CHECKS_H_
