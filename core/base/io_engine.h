#ifndef SHERD_CORE_BASE_IO_ENGINE_H_
#define SHERD_CORE_BASE_IO_ENGINE_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/io_queue.h"

namespace sherd {

struct IoEngineOptions {
  std::function<absl::StatusOr<std::unique_ptr<IoQueue>>()> make_queue = [] {
    return CreateIoUring(8);
  };
  // Copies what the page cache has; otherwise all counts as cold.
  bool ask_cache = true;
  // preadv(2).
  ssize_t (*read_parts)(int fd, const iovec* parts, int count,
                        off_t offset) = ::preadv;
};

// Reads files of the machine, behind File::ReadMany, at the speed of the
// medium: what the page cache has is copied from there (asked by mincore; where
// this process may not ask, as of a file that it may not write, all counts as
// being there), the rest is cut into pieces of 1 MiB, of which 8 are in flight,
// by io_uring; reads that follow one another in the file and in memory share
// pieces. They pass the page cache by (O_DIRECT) where their place in the
// file, their length and their memory are aligned and the file system can,
// which takes a third of the processor time of reading through it.
//
// Short reads that follow one another in the file, but not in memory, are one
// system call for up to 1 MiB (preadv), of which the page cache is not asked:
// as requests of their own they would cost more than they wait.
//
// Without io_uring (CreateIoUring), pread reads one piece after another, and
// the kernel's read-ahead is what is in flight; that is not an error.
//
// Threads. Any, at the same time; each call has a queue of its own.
class IoEngine {
 public:
  // That of the process, which lives for ever.
  static IoEngine& Global();

  explicit IoEngine(IoEngineOptions options = {});
  ~IoEngine();

  // See File::ReadMany. `fd` is that of the file `path`, of which errors speak;
  // it and all buffers are borrowed until the call returns.
  //
  // Cost. What is cached: one mapping of the file's range per call, and two
  // lookups of a page per piece, beside the copy. Otherwise a system call to
  // begin a piece and one to wait for it; a queue is made once and used again.
  absl::Status ReadMany(const std::string& path, int fd,
                        absl::Span<const FileRead> reads,
                        absl::FunctionRef<absl::Status(size_t)> done);

  // How data is read that the page cache does not have, and why not better:
  // "io_uring, 8 reads in flight", "pread: io_uring_setup: Operation not
  // permitted".
  std::string Describe();

 private:
  // Null where there is none.
  std::unique_ptr<IoQueue> Borrow();
  void Return(std::unique_ptr<IoQueue> queue);

  const IoEngineOptions options_;
  absl::Mutex mutex_;
  // Why there is none.
  absl::Status no_queue_ ABSL_GUARDED_BY(mutex_);
  // The idle ones, of this process.
  std::vector<std::unique_ptr<IoQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  pid_t process_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Whether files in `directory` can be read past the page cache: "direct";
// "through the page cache: …", with the reason; or "unknown: …", where neither
// a file could be created to try nor one that is there be opened.
std::string DescribeDirectReads(const std::string& directory);

namespace internal {

// The same by `open_direct`, which opens a file with O_DIRECT, a new one in
// `directory` if `path` is null, and returns as open(2) does.
std::string DescribeDirectReads(
    const std::string& directory,
    absl::FunctionRef<int(const std::string* path)> open_direct);

}  // namespace internal

}  // namespace sherd

#endif  // SHERD_CORE_BASE_IO_ENGINE_H_
