#ifndef SHERD_CORE_PROCESS_PROCESS_MEMORY_H_
#define SHERD_CORE_PROCESS_PROCESS_MEMORY_H_

#include <cstdint>
#include <span>

struct iovec;

namespace sherd {

// Copies memory of another process, in one copy and without its help.

// As many parts as one call may have on each side.
inline constexpr int kMaxProcessMemoryParts = 1024;

// Copies the bytes of `from`, addresses in process `pid`, to the memory of
// `to`, in order, until one side is at its end. Returns how many bytes it were,
// which may be fewer: call again with the rest. Returns 0, with errno set, if
// not even the first byte can be copied: ESRCH if the process has ended, EFAULT
// if it does not have that memory (any more), EPERM or ENOSYS if the system
// does not permit it.
//
// Nothing outside `to` is written, whatever the other process does.
uint64_t ReadProcessMemory(int64_t pid, std::span<const iovec> from,
                           std::span<const iovec> to);

// Copies all of [from, from + bytes) to `to`; returns 0, or errno as above.
int ReadProcessMemory(int64_t pid, uint64_t from, void* to, uint64_t bytes);

// Whether other processes can read both ends of [data, data + bytes), bytes
// above 0: not where a device driver has mapped memory of its own, for
// instance. Cost. Two system calls.
bool IsReadableByOthers(const void* data, uint64_t bytes);

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_MEMORY_H_
