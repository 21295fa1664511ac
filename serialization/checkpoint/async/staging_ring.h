#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_STAGING_RING_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

// Memory for copies that are freed in the order in which they were made. It is
// kept while it is empty, so that later copies find pages that exist.
//
// Threads. Not thread-safe.
class StagingRing {
 public:
  // Every copy begins at a multiple of this.
  static constexpr int64_t kAlignment = 64;

  // The room that a copy of `bytes` takes.
  static int64_t RoomFor(int64_t bytes);

  // Only while it is empty: makes room for `bytes` in all, pinned for devices
  // if `pinned_memory` is not null, unless there is as much already, and no
  // more than `most`. An error leaves none.
  //   kResourceExhausted  There is no memory.
  absl::Status Reserve(int64_t bytes, int64_t most, Allocator* pinned_memory);

  // Memory for a copy, or null if there is no room in one piece.
  std::byte* Take(int64_t bytes);
  // Frees the oldest copy.
  void FreeOldest();

  bool empty() const { return copies_.empty(); }
  bool pinned() const { return pinned_; }
  int64_t capacity() const;

  // Only while it is empty: gives the memory back. `storage()` lives on while
  // it is referenced.
  void Release();
  const std::shared_ptr<Storage>& storage() const { return storage_; }

 private:
  struct Extent {
    int64_t begin = 0;
    int64_t end = 0;
  };

  std::shared_ptr<Storage> storage_;
  bool pinned_ = false;
  // The oldest first.
  std::deque<Extent> copies_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_STAGING_RING_H_
