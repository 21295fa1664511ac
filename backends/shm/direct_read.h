#ifndef SHERD_BACKENDS_SHM_DIRECT_READ_H_
#define SHERD_BACKENDS_SHM_DIRECT_READ_H_

#include <atomic>
#include <cstdint>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Reports that memory of `peer` could not be read, with the errno `number`.
sherd_code FailToRead(sherd_error_v0* error, int peer, int number);

// Determines which of this process's buffers others can read: not those that a
// device driver has mapped, for instance.
//
// Threads. Safe from any thread.
class ReadableMemory {
 public:
  // Tests the two ends of [data, data + bytes). Cost. Two system calls, none
  // for a recently tested buffer.
  bool Contains(const void* data, uint64_t bytes);

 private:
  static constexpr int kRemembered = 16;

  std::atomic<uint64_t> known_[kRemembered] = {};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_DIRECT_READ_H_
