#ifndef SHERD_RPC_TRANSFER_TENSOR_SOURCE_H_
#define SHERD_RPC_TRANSFER_TENSOR_SOURCE_H_

#include <array>
#include <cstdint>
#include <string>

#include "sherd/core/tensor/shape.h"

namespace sherd::internal {

// The paths by which a worker reads a tensor in another worker's memory, best
// first. The numbers are part of messages.
enum class MemoryPath : uint8_t {
  kNone = 0,
  // Both are threads of one process.
  kThread = 1,
  // Mapped: memory of backend shm's allocator (OpenPeerMemory).
  kShm = 2,
  // Cross-memory attach: process_vm_readv.
  kCma = 3,
};
inline constexpr int kNumMemoryPaths = 4;

struct MemoryPathSet {
  bool thread = false;
  bool shm = false;
  bool cma = false;

  bool any() const { return thread || shm || cma; }
  bool Has(MemoryPath path) const {
    return (path == MemoryPath::kThread && thread) ||
           (path == MemoryPath::kShm && shm) ||
           (path == MemoryPath::kCma && cma);
  }

  friend bool operator==(const MemoryPathSet&, const MemoryPathSet&) = default;
};

// The place of a tensor in its sender's memory.
struct TensorSource {
  // kNone: it has no elements.
  MemoryPath path = MemoryPath::kNone;
  // kShm: a MemoryHandle that begins with the first element; kCma: the address
  // of the first element.
  std::array<uint64_t, 6> place = {};
  // In elements; none negative.
  Dims strides;
};

// The data from which a worker determines by which paths it can read another
// one's memory.
struct MemoryProbe {
  // As DescribeOwnProcess.
  std::string process;
  // Random bytes, and their place.
  std::string nonce;
  uint64_t nonce_address = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_TRANSFER_TENSOR_SOURCE_H_
