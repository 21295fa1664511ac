#ifndef SHERD_CORE_BASE_KEEP_FOREVER_H_
#define SHERD_CORE_BASE_KEEP_FOREVER_H_

#include <memory>

namespace sherd::internal {

// Keeps the objects of `owner` until the process ends, for memory that a stream
// or another rank may still use: it was requested to stop, but its end cannot
// be observed. Never destroyed, not even at exit, and not reported by a leak
// checker. Null is ignored.
//
// Threads. Safe from any thread.
// Cost. A lock and an entry of a list, which only grows: for failures.
void KeepForever(std::shared_ptr<const void> owner);

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_KEEP_FOREVER_H_
