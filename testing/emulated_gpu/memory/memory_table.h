#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_MEMORY_TABLE_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_MEMORY_TABLE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/memory/access_history.h"
#include "sherd/testing/emulated_gpu/memory/address_space.h"

namespace sherd::testing {

struct Allocation {
  MemoryLocation::Kind kind = MemoryLocation::Kind::kDevice;
  // Of pinned memory: -1.
  int device = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
  // Number of its pool; 0: none.
  uint64_t pool = 0;
  // Allocated while a stream captured: lives as long as the graph.
  bool is_of_graph = false;

  AccessHistory history;
  // The operation that freed it; the entry stays so that later uses are found.
  OperationRef freed;
  // No access to its bytes is allowed any more.
  std::atomic<bool> is_released{false};
  // The bytes around it were overwritten, and this was reported.
  std::atomic<bool> is_damaged{false};

  // For other processes, or from one; imports count how often.
  std::optional<uint32_t> ticket;
  AddressSpace::Handle handle;
  int opened = 0;
};
using AllocationRef = std::shared_ptr<Allocation>;

// All memory: of emulated devices, imported, and pinned. Each piece is
// surrounded by bytes that nothing may change. Addresses are not reused before
// those of the device have been used up.
//
// Threads. The caller locks, except for View and the functions that take one
// allocation.
class MemoryTable {
 public:
  explicit MemoryTable(int devices);

  AddressSpace& space() { return space_; }

  // Null if no addresses are left. The bytes are kPoison.
  AllocationRef AddDevice(int device, uint64_t bytes);
  // Null if there is no memory. Begins `offset` bytes after the start of a
  // page.
  AllocationRef AddPinned(uint64_t bytes, uint64_t offset = 0);
  // The import of the handle, opened once more. Null if nothing can be opened
  // with it.
  AllocationRef AddImport(const AddressSpace::Handle& handle);

  // The allocation around an address, also if it was freed; otherwise null.
  AllocationRef Find(uint64_t address) const;
  // The allocation that begins before an address, for messages; or null.
  AllocationRef FindBelow(uint64_t address) const;
  // Drops all memory of a device.
  void DropDevice(int device, const OperationRef& by);
  // Drops everything.
  void DropAll(const OperationRef& by);
  // The allocations that were not freed.
  std::vector<MemoryLocation> Live(MemoryLocation::Kind kind) const;
  // Forgets the users of memory whose release is known to all threads.
  void Forget(const Clock& known);

  // Whether the bytes next to the allocation are unchanged.
  bool IsIntact(const Allocation& allocation) const;
  // Called when no work may use it any more: overwrites the bytes.
  void Release(Allocation& allocation);
  void Fill(const Allocation& allocation) const;

  void* View(uint64_t address) const {
    return space_.Contains(address) ? space_.View(address)
                                    : reinterpret_cast<void*>(address);
  }

 private:
  std::optional<uint64_t> FindRoom(int window, uint64_t bytes);
  void Guard(const Allocation& allocation) const;

  AddressSpace space_;
  std::map<uint64_t, AllocationRef> allocations_;
  // Of each window: the first address that was never used.
  std::vector<uint64_t> next_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_MEMORY_MEMORY_TABLE_H_
