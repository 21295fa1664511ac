#ifndef SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_

#include <cstdint>

#include "sherd/core/comm/process_group.h"

namespace sherd {

// What a rank may take of its host, which others share.

// The most ranks of the group that are on one host; the same on all ranks.
int MostRanksOnHost(const ProcessGroup& group);

// How many threads of this rank have a core each, beside those of the other
// ranks of the group on this host, which may be bound to cores: at least 1.
// Ranks may get different numbers.
//
// Cost. A system call for each rank on the host.
int ThreadsPerRank(const ProcessGroup& group);

// A thread that copies, reads or writes is worth its start from so many bytes
// on, and more threads copy or read no faster.
inline constexpr int64_t kMinThreadBytes = int64_t{8} << 20;
inline constexpr int kMostThreads = 16;

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_HOST_SHARE_H_
