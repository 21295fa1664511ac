#ifndef SHERD_TOOLS_BENCH_CASES_DIRECT_IO_H_
#define SHERD_TOOLS_BENCH_CASES_DIRECT_IO_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/io_queue.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

// Whole files past the page cache (O_DIRECT), with 16 requests of 1 MiB in
// flight: what a medium gives to one program. Where file or memory are not
// aligned to 4 KiB, a request goes through memory of its own.
class DirectIo {
 public:
  //   kUnimplemented  There is no io_uring.
  static absl::StatusOr<std::unique_ptr<DirectIo>> Create();

  // Why it cannot be used for files in `directory`, or OK.
  static absl::Status Check(const std::string& directory);

  // Reads `to` from `offset` on.
  absl::Status Read(const std::string& path, int64_t offset,
                    absl::Span<std::byte> to);

  // Creates the file, with `parts` one after another, and makes its contents
  // durable.
  absl::Status Write(const std::string& path,
                     absl::Span<const absl::Span<const std::byte>> parts);

 private:
  // A request in flight.
  struct Slot {
    std::byte* own = nullptr;
    absl::Span<std::byte> buffer;
    int64_t offset = 0;
    // Of a read: where the file has to reach to.
    int64_t end = 0;
    // Of a read through `own`: what it is for.
    absl::Span<std::byte> to;
    int64_t to_offset = 0;
  };

  DirectIo(std::unique_ptr<IoQueue> queue, std::shared_ptr<Storage> memory);

  // Waits until there is a slot that is not in use.
  absl::StatusOr<Slot*> FreeSlot();
  absl::Status Start(int fd, const Slot& slot, bool write);
  // Waits for one request, or for all.
  absl::Status Reap();
  absl::Status ReapAll();

  const std::unique_ptr<IoQueue> queue_;
  const std::shared_ptr<Storage> memory_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_DIRECT_IO_H_
