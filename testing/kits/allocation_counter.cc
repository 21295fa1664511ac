#include "sherd/testing/kits/allocation_counter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t allocations = 0;
thread_local sherd::testing::PeakMemory* peak_memory = nullptr;

// With the word that malloc keeps before it.
int64_t BytesOf(void* memory) {
  return static_cast<int64_t>(malloc_usable_size(memory) + sizeof(size_t));
}

void* Allocate(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (peak_memory != nullptr && memory != nullptr) {
    peak_memory->Add(BytesOf(memory));
  }
  return memory;
}

void* AllocateOrThrow(size_t bytes) {
  if (void* const memory = Allocate(bytes)) return memory;
  throw std::bad_alloc();
}

void Free(void* memory) {
  if (peak_memory != nullptr && memory != nullptr) {
    peak_memory->Add(-BytesOf(memory));
  }
  std::free(memory);
}

}  // namespace

// All forms without alignment: those of a sanitizer do not call one another, as
// those of the standard library do.
void* operator new(size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return Allocate(bytes);
}

void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  Free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  Free(memory);
}

namespace sherd::testing {

int64_t AllocationsOfThisThread() { return allocations; }

UncountedAllocations::UncountedAllocations() : before_(allocations) {}

UncountedAllocations::~UncountedAllocations() { allocations = before_; }

PeakMemory::PeakMemory() { peak_memory = this; }

PeakMemory::~PeakMemory() { peak_memory = nullptr; }

void PeakMemory::Add(int64_t bytes) {
  live_ += bytes;
  peak_ = std::max(peak_, live_);
}

}  // namespace sherd::testing
