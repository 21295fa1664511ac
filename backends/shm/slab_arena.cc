#include "sherd/backends/shm/slab_arena.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>
#include <new>

#include "sherd/backends/plugin.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::FailErrno;

// Growing a file beyond the limit would be a signal and not an error.
bool FilesMayBe(uint64_t bytes) {
  rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur;
}

// For kernels that cannot do it in one call.
int PopulateByTouch(int fd, unsigned char* memory, SlabRange range) {
  while (fallocate(fd, 0, static_cast<off_t>(range.begin),
                   static_cast<off_t>(range.size)) != 0) {
    if (errno != EINTR) return -1;
  }
  for (uint64_t at = 0; at < range.size; at += kSlabPage) {
    *static_cast<volatile unsigned char*>(memory + range.begin + at) = 0;
  }
  return 0;
}

}  // namespace

sherd_code SlabArena::Create(uint64_t bytes, uint64_t owner, uint32_t serial,
                             std::unique_ptr<SlabArena>* arena,
                             sherd_error_v0* error) {
  const uint64_t size = kSlabDataBegin + bytes;
  if (!FilesMayBe(size)) {
    return Fail(error, SHERD_RESOURCE, -1,
                "shared memory of that size is above the limit for files "
                "(ulimit -f)");
  }
  SharedSegment shared;
  switch (shared.Create("sherd_slab", size)) {
    case SharedSegment::Failure::kNone:
      break;
    case SharedSegment::Failure::kMake:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot make shared memory");
    case SharedSegment::Failure::kSize:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot size shared memory");
    default:
      return FailErrno(error, SHERD_RESOURCE, -1,
                       "no addresses for shared memory");
  }
  // Where the system gives shared memory huge pages.
  (void)madvise(shared.memory(), size, MADV_HUGEPAGE);
  std::unique_ptr<SlabArena> made(new SlabArena(std::move(shared), serial));
  const sherd_code code = made->Populate({0, kSlabPage}, error);
  if (code != SHERD_OK) return code;
  SlabHeader& header = made->view_.header();
  header.owner = owner;
  header.serial = serial;
  header.magic = kSlabMagic;
  *arena = std::move(made);
  return SHERD_OK;
}

SlabArena::~SlabArena() { GiveBack({0, view_.size}); }

sherd_code SlabArena::Populate(SlabRange range, sherd_error_v0* error) {
  int outcome;
  do {
    outcome = madvise(at(range.begin), range.size, MADV_POPULATE_WRITE);
  } while (outcome != 0 && (errno == EINTR || errno == EAGAIN));
  if (outcome != 0 && errno == EINVAL) {
    outcome = PopulateByTouch(fd(), view_.memory, range);
  }
  if (outcome == 0) return SHERD_OK;
  // A page fault would have raised SIGBUS.
  if (errno == EFAULT) errno = ENOSPC;
  const sherd_code code =
      FailErrno(error, SHERD_RESOURCE, -1, "no pages for shared memory");
  GiveBack(range);
  return code;
}

void SlabArena::GiveBack(SlabRange range) {
  while (fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(range.begin),
                   static_cast<off_t>(range.size)) != 0 &&
         errno == EINTR) {
  }
  if (range.begin == 0) return;
  view_.header().holes.fetch_add(1, std::memory_order_release);
}

std::optional<uint32_t> SlabArena::Publish(SlabRange block,
                                           uint64_t block_serial) {
  uint32_t index;
  if (!free_slots_.empty()) {
    index = free_slots_.back();
    free_slots_.pop_back();
  } else {
    if (fresh_slot_ == kSlabSlots) return std::nullopt;
    index = fresh_slot_;
    const auto offset = static_cast<uint64_t>(
        reinterpret_cast<unsigned char*>(&view_.slot(index)) - view_.memory);
    sherd_error_v0 ignored;
    if (offset % kSlabPage == 0 &&
        Populate({offset, kSlabPage}, &ignored) != SHERD_OK) {
      return std::nullopt;
    }
    ++fresh_slot_;
  }
  SlabSlot& slot = view_.slot(index);
  slot.begin.store(block.begin, std::memory_order_relaxed);
  slot.size.store(block.size, std::memory_order_relaxed);
  slot.serial.store(block_serial, std::memory_order_release);
  return index;
}

void SlabArena::Retract(uint32_t slot) {
  view_.slot(slot).serial.store(0, std::memory_order_release);
  free_slots_.push_back(slot);
}

}  // namespace sherd::internal
