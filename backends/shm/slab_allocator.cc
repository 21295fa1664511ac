#include "sherd/backends/shm/slab_allocator.h"

#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/memory_headroom.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr uint64_t kSmallUnit = 64;
constexpr uint64_t kSmallBytes = 16 << 10;
constexpr uint64_t kChunkBytes = 256 << 10;
// From this size on it pays to check whether the memory exists.
constexpr uint64_t kCheckedBytes = 4 << 20;
// How much is fetched between two looks.
constexpr uint64_t kStepBytes = 64 << 20;
// Empty arenas that are kept for the next large block.
constexpr int kEmptyArenas = 4;

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

uint64_t RandomOwner() {
  uint64_t owner = 0;
  if (getrandom(&owner, sizeof(owner), 0) !=
      static_cast<ssize_t>(sizeof(owner))) {
    owner = static_cast<uint64_t>(getpid());
  }
  return owner;
}

sherd_code FailFor(sherd_error_v0* error, uint64_t bytes, const char* why) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "out of memory: cannot provide %llu shared bytes: %s",
                static_cast<unsigned long long>(bytes), why);
  return Fail(error, SHERD_RESOURCE, -1, text);
}

}  // namespace

SlabAllocator::Arena::Arena(std::unique_ptr<SlabArena> arena)
    : memory(std::move(arena)), small(&chunks) {
  cold.Add(memory->data());
}

SlabAllocator::Arena::~Arena() {
  ASAN_UNPOISON_MEMORY_REGION(memory->begin(), memory->view().size);
}

SlabAllocator::SlabAllocator(SlabOptions options)
    : options_(std::move(options)),
      pool_bytes_(options_.pool_bytes.value_or(
          std::min(MachineMemory() / 8, uint64_t{2} << 30))),
      pid_(static_cast<uint32_t>(getpid())),
      owner_(RandomOwner()) {}

SlabAllocator::~SlabAllocator() = default;

SlabAllocator& SlabAllocator::OfProcess() {
  static SlabAllocator& allocator = []() -> SlabAllocator& {
    RegisterForkHandlers();
    return *new SlabAllocator;
  }();
  return allocator;
}

void SlabAllocator::RegisterForkHandlers() {
  pthread_atfork([] { OfProcess().mutex_.lock(); },
                 [] { OfProcess().mutex_.unlock(); },
                 [] {
                   OfProcess().BecomeChild();
                   OfProcess().mutex_.unlock();
                 });
}

// The parent continues to use its arenas: the child neither allocates from them
// nor returns them.
void SlabAllocator::BecomeChild() {
  for (auto& [begin, arena] : arenas_) {
    inherited_.push_back(arena->memory->view());
    arena.release();
  }
  arenas_.clear();
  pid_ = static_cast<uint32_t>(getpid());
  owner_ = RandomOwner();
  pooled_bytes_ = 0;
  counted_ = {};
}

sherd_code SlabAllocator::Allocate(uint64_t bytes, uint64_t alignment,
                                   void** data, sherd_error_v0* error) {
  // Before anything is rounded.
  if (bytes > MachineMemory()) {
    return FailFor(error, bytes, "the machine has less");
  }
  const bool in_chunk = bytes <= kSmallBytes && alignment <= kSmallUnit;
  Lock lock(mutex_);
  Pages block;
  const sherd_code code =
      in_chunk ? TakeSmall(lock, RoundUp(bytes, kSmallUnit), &block, error)
               : TakePages(lock, RoundUp(bytes, kSlabPage), &block, error);
  if (code != SHERD_OK) return code;
  block.arena->blocks.emplace(
      block.range.begin, Block{block.range.size, in_chunk, std::nullopt, 0});
  counted_.live_bytes += block.range.size;
  ++counted_.live_blocks;
  *data = block.arena->memory->at(block.range.begin);
  ASAN_UNPOISON_MEMORY_REGION(*data, bytes);
  return SHERD_OK;
}

bool SlabAllocator::Deallocate(void* data) {
  Lock lock(mutex_);
  Arena* const arena = FindArena(data);
  const auto* const at = static_cast<const unsigned char*>(data);
  if (arena == nullptr) {
    return std::any_of(
        inherited_.begin(), inherited_.end(), [at](const SlabView& view) {
          return at >= view.memory && at < view.memory + view.size;
        });
  }
  const auto offset = static_cast<uint64_t>(at - arena->memory->begin());
  const auto found = arena->blocks.find(offset);
  if (found == arena->blocks.end()) return false;
  const Block block = found->second;
  arena->blocks.erase(found);
  if (block.slot) arena->memory->Retract(*block.slot);
  counted_.live_bytes -= block.size;
  --counted_.live_blocks;
  SlabRange range = {offset, block.size};
  ASAN_POISON_MEMORY_REGION(data, range.size);
  if (block.in_chunk) {
    range = arena->small.Add(range);
    if (range.size < kChunkBytes) return true;
    arena->small.TakeAt(range.begin);
    arena->chunks.erase(range.begin);
  }
  ReturnPages(lock, {arena, range});
  return true;
}

// The best fit among the ranges of all arenas.
std::optional<SlabAllocator::Pages> SlabAllocator::TakeFrom(
    FreeRanges Arena::*ranges, uint64_t bytes) {
  Arena* best = nullptr;
  uint64_t best_size = UINT64_MAX;
  for (const auto& [begin, arena] : arenas_) {
    const std::optional<uint64_t> size = ((*arena).*ranges).FindFit(bytes);
    if (!size || *size >= best_size) continue;
    best = arena.get();
    best_size = *size;
  }
  if (best == nullptr) return std::nullopt;
  return Pages{best, *(best->*ranges).Take(bytes)};
}

sherd_code SlabAllocator::TakeSmall(Lock& lock, uint64_t bytes, Pages* pages,
                                    sherd_error_v0* error) {
  std::optional<Pages> found = TakeFrom(&Arena::small, bytes);
  if (!found) {
    const sherd_code code = TakePages(lock, kChunkBytes, pages, error);
    if (code != SHERD_OK) return code;
    pages->arena->chunks.insert(pages->range.begin);
    pages->arena->small.Add(pages->range);
    found = TakeFrom(&Arena::small, bytes);
  }
  *pages = *found;
  return SHERD_OK;
}

sherd_code SlabAllocator::TakePages(Lock& lock, uint64_t bytes, Pages* pages,
                                    sherd_error_v0* error) {
  if (const std::optional<Pages> warm = TakeFrom(&Arena::warm, bytes)) {
    *pages = *warm;
    pooled_bytes_ -= bytes;
    ++counted_.reused;
    return SHERD_OK;
  }
  for (;;) {
    sherd_code code = TakeCold(bytes, pages, error);
    if (code == SHERD_OK) {
      lock.unlock();
      code = Populate(*pages, error);
      lock.lock();
      if (code == SHERD_OK) {
        ++counted_.fresh;
        return SHERD_OK;
      }
      pages->arena->cold.Add(pages->range);
    }
    if (pooled_bytes_ == 0) {
      DropEmptyArenas();
      return code;
    }
    Trim(lock, 0);
  }
}

sherd_code SlabAllocator::TakeCold(uint64_t bytes, Pages* pages,
                                   sherd_error_v0* error) {
  std::optional<Pages> cold = TakeFrom(&Arena::cold, bytes);
  if (!cold) {
    const sherd_code code = AddArena(bytes, error);
    if (code != SHERD_OK) return code;
    cold = TakeFrom(&Arena::cold, bytes);
  }
  *pages = *cold;
  return SHERD_OK;
}

sherd_code SlabAllocator::Populate(const Pages& pages, sherd_error_v0* error) {
  SlabArena& memory = *pages.arena->memory;
  const SlabRange& all = pages.range;
  if (options_.may_populate != nullptr && !options_.may_populate(all.size)) {
    return FailFor(error, all.size, "a test injected the failure");
  }
  for (uint64_t done = 0; done < all.size;) {
    // A system that has no page left for a process may end one. Others take
    // pages at the same time, so that one look is not enough.
    if (all.size >= kCheckedBytes && all.size - done > MemoryHeadroom()) {
      if (done > 0) memory.GiveBack({all.begin, done});
      return FailFor(error, all.size,
                     "the machine, or this process's control group, has not "
                     "so much left");
    }
    const uint64_t step = std::min(kStepBytes, all.size - done);
    const sherd_code code = memory.Populate({all.begin + done, step}, error);
    if (code != SHERD_OK) {
      if (done > 0) memory.GiveBack({all.begin, done});
      return code;
    }
    done += step;
  }
  return SHERD_OK;
}

sherd_code SlabAllocator::AddArena(uint64_t bytes, sherd_error_v0* error) {
  // Less, where addresses or the size of files are limited.
  for (uint64_t size = RoundUp(bytes, options_.arena_bytes);;
       size = std::max(RoundUp(size / 2, kChunkBytes), bytes)) {
    std::unique_ptr<SlabArena> memory;
    const sherd_code code =
        SlabArena::Create(size, owner_, ++arena_serial_, &memory, error);
    if (code == SHERD_OK) {
      auto arena = std::make_unique<Arena>(std::move(memory));
      const unsigned char* const begin = arena->memory->begin();
      arenas_.emplace(begin, std::move(arena));
      return SHERD_OK;
    }
    if (size <= std::max(bytes, kChunkBytes)) return code;
  }
}

void SlabAllocator::ReturnPages(Lock& lock, const Pages& pages) {
  pages.arena->warm.Add(pages.range, ++age_);
  pooled_bytes_ += pages.range.size;
  Trim(lock, pool_bytes_);
}

void SlabAllocator::Trim(Lock& lock, uint64_t keep) {
  if (pooled_bytes_ <= keep) return;
  while (pooled_bytes_ > keep) {
    Arena* oldest = nullptr;
    FreeRanges::Aged place = {UINT64_MAX, 0};
    for (const auto& [begin, arena] : arenas_) {
      const std::optional<FreeRanges::Aged> found = arena->warm.FindOldest();
      if (!found || found->age >= place.age) continue;
      oldest = arena.get();
      place = *found;
    }
    SlabRange range = oldest->warm.TakeAt(place.begin);
    const uint64_t excess = RoundUp(pooled_bytes_ - keep, kSlabPage);
    if (range.size > excess) {
      oldest->warm.Add({range.begin, range.size - excess}, place.age);
      range = {range.end() - excess, excess};
    }
    pooled_bytes_ -= range.size;
    // The range is in no list meanwhile, so that the arena stays.
    lock.unlock();
    oldest->memory->GiveBack(range);
    lock.lock();
    oldest->cold.Add(range);
  }
  DropEmptyArenas();
}

void SlabAllocator::DropEmptyArenas() {
  int empty = 0;
  for (auto it = arenas_.begin(); it != arenas_.end();) {
    const bool drop = it->second->IsEmpty() && ++empty > kEmptyArenas;
    it = drop ? arenas_.erase(it) : std::next(it);
  }
}

SlabAllocator::Arena* SlabAllocator::FindArena(const void* data) {
  const auto* const at = static_cast<const unsigned char*>(data);
  auto it = arenas_.upper_bound(at);
  if (it == arenas_.begin()) return nullptr;
  Arena& arena = *std::prev(it)->second;
  return at < arena.memory->begin() + arena.memory->view().size ? &arena
                                                                : nullptr;
}

sherd_code SlabAllocator::Export(const void* data, uint64_t bytes,
                                 sherd_memory_handle_v0* handle,
                                 sherd_error_v0* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Arena* const arena = FindArena(data);
  if (arena == nullptr) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "not shared memory");
  }
  const auto offset = static_cast<uint64_t>(
      static_cast<const unsigned char*>(data) - arena->memory->begin());
  auto found = arena->blocks.upper_bound(offset);
  if (found == arena->blocks.begin()) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "not allocated");
  }
  const uint64_t begin = (--found)->first;
  Block& block = found->second;
  if (offset - begin > block.size || bytes > block.size - (offset - begin)) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "not within one block");
  }
  if (!block.slot) {
    block.serial = ++block_serial_;
    block.slot = arena->memory->Publish({begin, block.size}, block.serial);
    if (!block.slot) {
      return Fail(error, SHERD_UNSUPPORTED, -1, "too many blocks exported");
    }
  }
  *handle = SlabHandle{.fd = arena->memory->fd(),
                       .pid = pid_,
                       .slot = *block.slot,
                       .arena = arena->memory->serial(),
                       .owner = owner_,
                       .block = block.serial,
                       .range = {offset, bytes}}
                .Pack();
  return SHERD_OK;
}

sherd_code SlabAllocator::Find(const SlabHandle& handle, sherd_bytes_v0* range,
                               sherd_error_v0* error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(arenas_.begin(), arenas_.end(), [&](const auto& entry) {
        return entry.second->memory->serial() == handle.arena;
      });
  if (handle.owner != owner_ || found == arenas_.end() ||
      !Holds(found->second->memory->view(), handle)) {
    return Fail(error, SHERD_INVALID_ARGUMENT, -1,
                "names memory of this rank that is not there (any more)");
  }
  *range = {found->second->memory->at(handle.range.begin), handle.range.size};
  return SHERD_OK;
}

SlabStatistics SlabAllocator::Statistics() {
  const std::lock_guard<std::mutex> lock(mutex_);
  SlabStatistics statistics = counted_;
  statistics.pooled_bytes = pooled_bytes_;
  statistics.arenas = arenas_.size();
  return statistics;
}

}  // namespace sherd::internal
