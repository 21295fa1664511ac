#ifndef SHERD_CORE_TENSOR_STORAGE_H_
#define SHERD_CORE_TENSOR_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/tensor/device.h"

namespace sherd {

// A source of memory. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // At least `bytes` > 0 bytes, aligned to `alignment`, a power of two up to
  // 4096. Contents are unspecified.
  //   kResourceExhausted  There is not that much memory.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) = 0;

  // Takes back what Allocate returned for `bytes`.
  virtual void Deallocate(void* data, size_t bytes) = 0;

  // For messages: "heap", ….
  virtual absl::string_view name() const = 0;

  // Where the memory is.
  virtual Device device() const { return Device(); }

  // Work queued on `stream` so far uses `data`, which Allocate returned:
  // Deallocate lets it run first. No effect for memory that devices do not use.
  virtual void UsedOn(void* data, const DeviceStream& stream) {
    (void)data;
    (void)stream;
  }
};

// Ordinary memory. Lives forever.
//
// Cost. Blocks of 1 MiB and more are whole 2 MiB pages that ask for huge pages
// and, once freed, are kept in a pool for the next request of about their size:
// touching a fresh 4 KiB page costs as much as copying five. A block taken from
// the pool is at most a quarter larger than asked, after rounding. When the
// pool would grow beyond its capacity, the blocks that waited longest go back
// to the system; all of them do before an allocation fails.
Allocator& HeapAllocator();

struct HeapStatistics {
  // Large blocks in use and in the pool, in bytes as mapped.
  size_t live_bytes = 0;
  size_t cached_bytes = 0;
  // Upper bound of cached_bytes. At the start an eighth of the machine's
  // memory, 2 GiB at most.
  size_t capacity_bytes = 0;
  // Large requests that took fresh memory, and that the pool served.
  uint64_t fresh_blocks = 0;
  uint64_t reused_blocks = 0;
};

// Thread-safe.
HeapStatistics GetHeapStatistics();

// Sets the pool's capacity and returns what exceeds it to the system. 0 turns
// the pool off. Thread-safe.
void SetHeapPoolCapacity(size_t bytes);

// A block of memory that tensors share by std::shared_ptr. Immutable but for
// the bytes themselves.
//
// Threads. Safe; concurrent access to the bytes is ordered by the callers.
class Storage {
 public:
  // Alignment of allocated storage: one cache line, and any vector register.
  static constexpr size_t kAlignment = 64;

  // Memory from `allocator`, which must outlive the storage. Contents are
  // unspecified. Zero bytes are allowed and allocate nothing.
  //   kResourceExhausted  The allocator has not that much.
  static absl::StatusOr<std::shared_ptr<Storage>> Allocate(
      size_t bytes, Allocator& allocator = HeapAllocator());

  // Memory that is owned elsewhere. It must stay valid while the storage lives;
  // `keep_alive` is released when the storage is. Memory of a device must also
  // stay valid until queued work has run: the owner frees it in the order of
  // the stream, or after a wait. `device` has an index, and is not verified.
  //   kInvalidArgument  `data` is null and `bytes` is not 0, or `device` has no
  //                     memory or no index.
  static absl::StatusOr<std::shared_ptr<Storage>> Borrow(
      void* data, size_t bytes,
      std::shared_ptr<const void> keep_alive = nullptr,
      const Device& device = {});

  // As Borrow, but tensors on it are read-only.
  static absl::StatusOr<std::shared_ptr<Storage>> BorrowReadOnly(
      const void* data, size_t bytes,
      std::shared_ptr<const void> keep_alive = nullptr,
      const Device& device = {});

  // Maps `length` bytes of a file from `offset`, which need not be a multiple
  // of the page size. Pages are read when they are touched. Without
  // `read_only`, writes go to the file.
  //
  // Lifetime. The file may be renamed or removed while mapped. If it is
  // truncated, an access past the new end raises SIGBUS: read files that others
  // may shorten instead of mapping them.
  //
  // Errors. All name the path.
  //   kNotFound           There is no such file.
  //   kPermissionDenied   The file may not be opened in this mode.
  //   kDataLoss           The file ends before offset + length.
  //   kInvalidArgument    offset + length overflows, or `path` is not a file.
  //   kResourceExhausted  There is not enough address space.
  static absl::StatusOr<std::shared_ptr<Storage>> MapFile(
      const std::string& path, uint64_t offset, uint64_t length,
      bool read_only = true);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // First byte; may be null if size() is 0. Do not write unless writable().
  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool writable() const { return writable_; }
  Device device() const { return device_; }

  // Allocator::UsedOn: code that queues work on the memory on another stream
  // than the one that was current when it was allocated calls this afterwards,
  // or keeps the storage until the work has run. Tensor's functions do it.
  void UsedOn(const DeviceStream& stream) const {
    if (allocator_ != nullptr && data_ != nullptr) {
      allocator_->UsedOn(data_, stream);
    }
  }

 private:
  enum class Kind { kAllocated, kBorrowed, kMapped };

  Storage(Kind kind, void* data, size_t size, bool writable, Device device)
      : kind_(kind),
        writable_(writable),
        device_(device),
        data_(data),
        size_(size) {}

  const Kind kind_;
  const bool writable_;
  const Device device_;
  void* const data_;
  const size_t size_;
  Allocator* allocator_ = nullptr;
  // The mapping around data_, which begins at a page.
  void* mapping_ = nullptr;
  size_t mapping_size_ = 0;
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_STORAGE_H_
