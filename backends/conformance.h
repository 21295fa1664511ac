#ifndef SHERD_BACKENDS_CONFORMANCE_H_
#define SHERD_BACKENDS_CONFORMANCE_H_

#include "sherd/core/comm/process_group.h"

namespace sherd {

// What every backend must do, as GoogleTest expectations. Every rank calls each
// function with a fresh or still healthy group; world sizes 1, 2, 3 and 5 are
// worth trying. Data differs per rank and byte, so a wrong offset shows.

// Nobody leaves a barrier before everybody came.
void CheckBarrier(ProcessGroup& group);

// Every root; 1, 7, 1025 and 1,000,003 bytes.
void CheckBroadcast(ProcessGroup& group);

// The same sizes, in place and not, synchronous and not.
void CheckAllGather(ProcessGroup& group);

// Every pair has a message of another length, some have none; entries are not
// adjacent in memory.
void CheckAllToAllV(ProcessGroup& group);

// One rank sends to all, then all to one, without anybody else's help.
void CheckOneSidedAllToAllV(ProcessGroup& group);

// Many calls in flight, finished in another order.
void CheckManyInFlight(ProcessGroup& group);

// A deadline that passes is an error that names the last rank, which stays
// away; then the group fails at once. Leaves the group poisoned. Returns on the
// rank that stayed away too.
void CheckDeadline(ProcessGroup& group);

}  // namespace sherd

#endif  // SHERD_BACKENDS_CONFORMANCE_H_
