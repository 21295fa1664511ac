#include "sherd/serialization/checkpoint/async/staging_ring.h"

#include <algorithm>

#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

int64_t StagingRing::RoomFor(int64_t bytes) {
  return RoundUp(std::max<int64_t>(bytes, 1), kAlignment);
}

absl::Status StagingRing::Reserve(int64_t bytes, int64_t most,
                                  Allocator* pinned_memory) {
  SHERD_CHECK(empty());
  if (bytes <= capacity() && capacity() <= most &&
      (pinned_ || pinned_memory == nullptr)) {
    return absl::OkStatus();
  }
  // Before, so that there never are both.
  Release();
  SHERD_ASSIGN_OR_RETURN(
      storage_, Storage::Allocate(static_cast<size_t>(bytes),
                                  pinned_memory == nullptr ? HeapAllocator()
                                                           : *pinned_memory));
  pinned_ = pinned_memory != nullptr;
  return absl::OkStatus();
}

std::byte* StagingRing::Take(int64_t bytes) {
  const int64_t room = RoomFor(bytes);
  int64_t begin = 0;
  int64_t end = capacity();
  if (!copies_.empty()) {
    begin = copies_.back().end;
    const int64_t oldest = copies_.front().begin;
    if (begin <= oldest) {
      end = oldest;
    } else if (end - begin < room) {
      // Behind the youngest there is too little: go on at the beginning.
      begin = 0;
      end = oldest;
    }
  }
  if (end - begin < room) return nullptr;
  copies_.push_back({begin, begin + room});
  return static_cast<std::byte*>(storage_->data()) + begin;
}

void StagingRing::FreeOldest() {
  SHERD_CHECK(!copies_.empty());
  copies_.pop_front();
}

int64_t StagingRing::capacity() const {
  return storage_ == nullptr ? 0 : static_cast<int64_t>(storage_->size());
}

void StagingRing::Release() {
  SHERD_CHECK(empty());
  storage_ = nullptr;
  pinned_ = false;
}

}  // namespace sherd
