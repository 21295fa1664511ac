#include "sherd/tools/bench/harness/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {

thread_local int64_t count = 0;

}  // namespace

// The forms without alignment; the others call the default ones.
void* operator new(size_t size) {
  ++count;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

// A sanitizer's own form of it does not call the one above.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(size == 0 ? 1 : size);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace sherd {

int64_t AllocationsOfThisThread() { return count; }

}  // namespace sherd
