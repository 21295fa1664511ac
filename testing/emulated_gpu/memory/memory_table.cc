#include "sherd/testing/emulated_gpu/memory/memory_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace sherd::testing {
namespace {

using Kind = MemoryLocation::Kind;

constexpr uint64_t kPage = AddressSpace::kPageBytes;
// On either side.
constexpr uint64_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xa5;
// The bytes of new and of freed memory: NaNs, and no small numbers.
constexpr unsigned char kNew = 0xcb;
constexpr unsigned char kFreed = 0xdd;
// Above, pages are only given back: they are zeros.
constexpr uint64_t kMaxSpoiled = 64 << 10;
constexpr uint64_t kMaxFilled = 16 << 20;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool IsAll(const void* data, unsigned char value, uint64_t bytes) {
  const auto* const first = static_cast<const unsigned char*>(data);
  return std::all_of(first, first + bytes,
                     [value](unsigned char x) { return x == value; });
}

// For pinned memory, which may begin within a page: where its pages begin, and
// their length.
uint64_t FirstPage(const Allocation& allocation) {
  return allocation.base / kPage * kPage;
}
uint64_t PageBytes(const Allocation& allocation) {
  return RoundUp(allocation.base - FirstPage(allocation) + allocation.bytes);
}

uint64_t GuardBehind(const Allocation& allocation) {
  if (allocation.kind == Kind::kDevice) return kGuardBytes;
  const uint64_t end = FirstPage(allocation) + PageBytes(allocation);
  return std::min(kGuardBytes, end - allocation.base - allocation.bytes);
}

}  // namespace

MemoryTable::MemoryTable(int devices) : space_(devices) {
  for (int window = 0; window <= devices; ++window) {
    next_.push_back(space_.WindowOf(window) + AddressSpace::kTicketBytes +
                    kPage);
  }
}

std::optional<uint64_t> MemoryTable::FindRoom(int window, uint64_t bytes) {
  const uint64_t end = space_.WindowOf(window) + AddressSpace::kWindowBytes;
  // A page between neighbours.
  const uint64_t needed = RoundUp(bytes) + kPage;
  if (needed > end - next_[window]) {
    std::erase_if(allocations_, [&](const auto& entry) {
      return entry.second->is_released && entry.first < end &&
             entry.first >= space_.WindowOf(window);
    });
    uint64_t room =
        space_.WindowOf(window) + AddressSpace::kTicketBytes + kPage;
    for (auto it = allocations_.lower_bound(room);
         it != allocations_.end() && it->first < end; ++it) {
      if (it->first - room >= needed) return room;
      room = it->first + RoundUp(it->second->bytes) + kPage;
    }
    if (room > end || end - room < needed) return std::nullopt;
    next_[window] = room;
  }
  return std::exchange(next_[window], next_[window] + needed);
}

void MemoryTable::Guard(const Allocation& allocation) const {
  auto* const view = static_cast<unsigned char*>(View(allocation.base));
  if (allocation.kind == Kind::kDevice) {
    std::memset(view - kGuardBytes, kGuard, kGuardBytes);
  }
  std::memset(view + allocation.bytes, kGuard, GuardBehind(allocation));
}

bool MemoryTable::IsIntact(const Allocation& allocation) const {
  if (allocation.kind == Kind::kImported) return true;
  const auto* const view =
      static_cast<const unsigned char*>(View(allocation.base));
  return (allocation.kind != Kind::kDevice ||
          IsAll(view - kGuardBytes, kGuard, kGuardBytes)) &&
         IsAll(view + allocation.bytes, kGuard, GuardBehind(allocation));
}

void MemoryTable::Fill(const Allocation& allocation) const {
  std::memset(View(allocation.base), kNew,
              std::min(allocation.bytes, kMaxFilled));
}

AllocationRef MemoryTable::AddDevice(int device, uint64_t bytes) {
  const std::optional<uint64_t> base = FindRoom(device, bytes);
  if (!base) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->device = device;
  allocation->base = *base;
  allocation->bytes = bytes;
  Guard(*allocation);
  allocations_[*base] = allocation;
  return allocation;
}

AllocationRef MemoryTable::AddPinned(uint64_t bytes, uint64_t offset) {
  const uint64_t pages = RoundUp(offset + bytes);
  // A page behind it that ends the program which touches it.
  void* const data = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->kind = Kind::kPinned;
  allocation->device = -1;
  allocation->base = reinterpret_cast<uint64_t>(data) + offset;
  allocation->bytes = bytes;
  mprotect(static_cast<char*>(data) + pages, kPage, PROT_NONE);
  Guard(*allocation);
  Fill(*allocation);
  allocations_[allocation->base] = allocation;
  return allocation;
}

AllocationRef MemoryTable::AddImport(const AddressSpace::Handle& handle) {
  const uint64_t bytes = AddressSpace::BytesOf(handle);
  if (bytes == 0) return nullptr;
  const uint64_t window = space_.ImportWindow();
  for (auto it = allocations_.lower_bound(window);
       it != allocations_.end() &&
       it->first < window + AddressSpace::kWindowBytes;
       ++it) {
    Allocation& other = *it->second;
    if (other.freed == nullptr && other.handle.words == handle.words) {
      ++other.opened;
      return it->second;
    }
  }
  const std::optional<uint64_t> base =
      FindRoom(static_cast<int>(next_.size()) - 1, bytes);
  if (!base) return nullptr;
  const int device = space_.Import(handle, *base);
  if (device < 0) return nullptr;
  auto allocation = std::make_shared<Allocation>();
  allocation->kind = Kind::kImported;
  allocation->device = device;
  allocation->base = *base;
  allocation->bytes = bytes;
  allocation->handle = handle;
  allocation->opened = 1;
  allocations_[*base] = allocation;
  return allocation;
}

AllocationRef MemoryTable::FindBelow(uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  return it == allocations_.begin() ? nullptr : std::prev(it)->second;
}

AllocationRef MemoryTable::Find(uint64_t address) const {
  AllocationRef found = FindBelow(address);
  if (found == nullptr || address - found->base >= found->bytes) return nullptr;
  return found;
}

void MemoryTable::DropDevice(int device, const OperationRef& by) {
  for (auto& [base, allocation] : allocations_) {
    if (allocation->kind != Kind::kDevice || allocation->device != device ||
        allocation->freed != nullptr) {
      continue;
    }
    allocation->freed = by;
    Release(*allocation);
  }
}

void MemoryTable::DropAll(const OperationRef& by) {
  for (auto& [base, allocation] : allocations_) {
    if (allocation->freed != nullptr) continue;
    allocation->freed = by;
    Release(*allocation);
  }
}

std::vector<MemoryLocation> MemoryTable::Live(MemoryLocation::Kind kind) const {
  std::vector<MemoryLocation> live;
  for (const auto& [base, allocation] : allocations_) {
    if (allocation->kind != kind || allocation->freed != nullptr) continue;
    live.push_back({kind, std::max(allocation->device, 0),
                    reinterpret_cast<const void*>(base), allocation->bytes});
  }
  return live;
}

void MemoryTable::Forget(const Clock& known) {
  for (auto& [base, allocation] : allocations_) {
    allocation->history.Forget(known);
  }
}

void MemoryTable::Release(Allocation& allocation) {
  if (allocation.ticket) space_.Withdraw(allocation.device, *allocation.ticket);
  switch (allocation.kind) {
    case Kind::kDevice:
      if (allocation.bytes <= kMaxSpoiled) {
        std::memset(View(allocation.base), kFreed, allocation.bytes);
      } else {
        space_.Discard(allocation.device, allocation.base, allocation.bytes);
      }
      break;
    case Kind::kImported:
      space_.Close(allocation.base, RoundUp(allocation.bytes));
      break;
    case Kind::kPinned:
      // Stays reserved: who touches it ends.
      mmap(reinterpret_cast<void*>(FirstPage(allocation)),
           PageBytes(allocation), PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
      break;
  }
  allocation.is_released = true;
}

}  // namespace sherd::testing
