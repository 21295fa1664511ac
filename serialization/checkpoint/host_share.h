#ifndef SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_

#include "sherd/core/comm/process_group.h"

namespace sherd {

// What a rank may take of its host, which others share.

// The most ranks of the group that are on one host; the same on all ranks.
int MostRanksOnHost(const ProcessGroup& group);

// How many threads of this rank have a core each, if all ranks of the group on
// this host have as many: at least 1.
int ThreadsPerRank(const ProcessGroup& group);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_
