#ifndef SHERD_CORE_BASE_IO_QUEUE_H_
#define SHERD_CORE_BASE_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sherd {

// Reads and writes in flight, which the system ends in any order.
//
// Buffers. Borrowed from Start() until Wait() returned the end of the request.
// A write only reads its buffer.
//
// Threads. One at a time.
class IoQueue {
 public:
  struct Request {
    int fd = -1;
    int64_t offset = 0;
    absl::Span<std::byte> buffer;
    // The caller's.
    uint64_t tag = 0;
    bool write = false;
  };
  struct Ended {
    uint64_t tag = 0;
    // Bytes done, fewer than asked for too; or an errno, negative.
    int64_t result = 0;
  };

  // Waits for all requests in flight.
  virtual ~IoQueue() = default;

  // How many requests may be in flight.
  virtual int depth() const = 0;

  // Begins a request, of less than 2 GiB; fewer than depth() are in flight.
  // Errors. The system refuses requests; this one does not begin.
  virtual absl::Status Start(const Request& request) = 0;

  // Waits for the end of one of those in flight; there is one.
  virtual Ended Wait() = 0;
};

// A queue of Linux's io_uring, by its system calls: with liburing there would
// be one more library to install and to find for each build, for three calls.
//
// A child of fork(2) without exec must not use it.
//
//   kUnimplemented  The kernel has none, or forbids it (containers often do, by
//                   seccomp; also sysctl kernel.io_uring_disabled).
//   others          From the system: no descriptors or memory.
absl::StatusOr<std::unique_ptr<IoQueue>> CreateIoUring(int depth);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_IO_QUEUE_H_
