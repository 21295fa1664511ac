#include "sherd/core/base/io_engine.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

// Long enough for the full rate of one request; some in flight hide the time of
// each.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
// Of a read that may be one of several in a system call; and so many of them.
constexpr size_t kShortBytes = size_t{64} << 10;
constexpr size_t kMostParts = IOV_MAX;
// What O_DIRECT asks at most, of offsets and lengths. A device that asks more
// answers EINVAL.
constexpr uintptr_t kFileAlignment = 4096;
// Of memory it asks less, but the system copies a page that a fork(2) shares
// when this process writes to it, and a read in flight then fills the child's:
// pages that are read into hold nothing else that might be written meanwhile.
constexpr uintptr_t kMemoryAlignment = 4096;

// Bytes that are still to be filled, of one read or of several that follow one
// another in the file and in memory.
struct Piece {
  // The read that has the first of them.
  size_t read = 0;
  int64_t offset = 0;
  absl::Span<std::byte> buffer;

  void Advance(int64_t bytes) {
    offset += bytes;
    buffer.remove_prefix(static_cast<size_t>(bytes));
  }
  bool IsAligned() const {
    return (static_cast<uintptr_t>(offset) | buffer.size()) % kFileAlignment ==
               0 &&
           reinterpret_cast<uintptr_t>(buffer.data()) % kMemoryAlignment == 0;
  }
};

// Asks what of a file is in the page cache, through a mapping of its range
// whose pages are never touched. (RWF_NOWAIT asks too, but starts reading ahead
// what is not there, so that direct reads would read all of it a second time.)
class PageCache {
 public:
  PageCache(int fd, absl::Span<const FileRead> reads) {
    int64_t end = 0;
    begin_ = std::numeric_limits<int64_t>::max();
    for (const FileRead& read : reads) {
      begin_ = std::min(begin_, read.offset);
      end =
          std::max(end, read.offset + static_cast<int64_t>(read.buffer.size()));
    }
    if (end <= begin_) return;
    begin_ -= begin_ % page_;
    bytes_ = static_cast<size_t>(end - begin_);
    data_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, begin_);
  }
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;
  ~PageCache() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }

  // By its first and its last page; true too if the system does not say.
  bool Holds(const Piece& piece) const {
    const auto bytes = static_cast<int64_t>(piece.buffer.size());
    return HoldsPage(piece.offset) && HoldsPage(piece.offset + bytes - 1);
  }

 private:
  bool HoldsPage(int64_t offset) const {
    if (data_ == MAP_FAILED) return true;
    unsigned char resident = 0;
    std::byte* const page =
        static_cast<std::byte*>(data_) + (offset - begin_) / page_ * page_;
    return mincore(page, static_cast<size_t>(page_), &resident) != 0 ||
           (resident & 1) != 0;
  }

  const int64_t page_ = sysconf(_SC_PAGESIZE);
  int64_t begin_ = 0;
  size_t bytes_ = 0;
  void* data_ = MAP_FAILED;
};

// One call of ReadMany.
class ManyReads {
 public:
  // `borrow` is called once, when something is not in the page cache.
  ManyReads(const std::string& path, int fd, const IoEngineOptions& options,
            absl::Span<const FileRead> reads,
            absl::FunctionRef<absl::Status(size_t)> done,
            absl::FunctionRef<std::unique_ptr<IoQueue>()> borrow)
      : path_(path),
        fd_(fd),
        options_(options),
        reads_(reads),
        done_(done),
        borrow_(borrow),
        missing_(reads.size()) {}

  absl::Status Run() {
    for (size_t i = 0; i < reads_.size(); ++i) {
      missing_[i] = reads_[i].buffer.size();
    }
    for (size_t i = 0; i < reads_.size() && status_.ok();) {
      if (missing_[i] == 0) {
        status_ = done_(i++);
        continue;
      }
      if (const size_t end = EndOfParts(i); end > i + 1) {
        ReadParts(i, end);
        i = end;
        continue;
      }
      Piece rest = JoinedFrom(i);
      i = ReadAt(rest.buffer.data() + rest.buffer.size() - 1, i) + 1;
      while (!rest.buffer.empty() && status_.ok()) {
        // Pieces end at multiples of their length: all but the first and the
        // last are aligned.
        const int64_t length = kPieceBytes - rest.offset % kPieceBytes;
        Piece piece = rest;
        piece.buffer = rest.buffer.first(
            std::min(rest.buffer.size(), static_cast<size_t>(length)));
        rest.Advance(static_cast<int64_t>(piece.buffer.size()));
        if (!rest.buffer.empty()) {
          rest.read = ReadAt(rest.buffer.data(), rest.read);
        }
        Read(piece);
      }
    }
    while (in_flight_ > 0) Reap();
    return status_;
  }

  // After Run().
  std::unique_ptr<IoQueue> TakeQueue() { return std::move(queue_); }

 private:
  // Read `first` and those that continue it.
  Piece JoinedFrom(size_t first) const {
    Piece joined{first, reads_[first].offset, reads_[first].buffer};
    for (size_t i = first + 1; i < reads_.size(); ++i) {
      const absl::Span<std::byte> next = reads_[i].buffer;
      const auto bytes = static_cast<int64_t>(joined.buffer.size());
      if (next.empty() || reads_[i].offset != joined.offset + bytes ||
          next.data() != joined.buffer.data() + bytes) {
        break;
      }
      joined.buffer = absl::MakeSpan(joined.buffer.data(),
                                     joined.buffer.size() + next.size());
    }
    return joined;
  }

  // Of short reads, from `first` on, that follow one another in the file, and
  // each elsewhere in memory, the one after the last. `first` if there is none.
  size_t EndOfParts(size_t first) const {
    int64_t bytes = 0;
    size_t end = first;
    for (; end < reads_.size() && end - first < kMostParts; ++end) {
      const absl::Span<std::byte> part = reads_[end].buffer;
      if (part.empty() || part.size() > kShortBytes ||
          reads_[end].offset != reads_[first].offset + bytes) {
        break;
      }
      const bool goes_on =
          end + 1 < reads_.size() &&
          reads_[end + 1].buffer.data() == part.data() + part.size();
      bytes += static_cast<int64_t>(part.size());
      if (goes_on || bytes > kPieceBytes) break;
    }
    return end;
  }

  // Reads [first, end) and waits.
  void ReadParts(size_t first, size_t end) {
    parts_.clear();
    for (size_t i = first; i < end; ++i) {
      parts_.push_back({reads_[i].buffer.data(), reads_[i].buffer.size()});
    }
    int64_t offset = reads_[first].offset;
    size_t next = 0;
    while (next < parts_.size() && status_.ok()) {
      const ssize_t n = options_.read_parts(
          fd_, &parts_[next], static_cast<int>(parts_.size() - next), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        const int error = n < 0 ? errno : 0;
        const iovec& part = parts_[next];
        return Fail({first + next, offset,
                     absl::MakeSpan(static_cast<std::byte*>(part.iov_base),
                                    part.iov_len)},
                    error);
      }
      offset += n;
      // A short count may end within a part.
      for (size_t left = static_cast<size_t>(n); left > 0 && status_.ok();) {
        iovec& part = parts_[next];
        const size_t filled = std::min(left, part.iov_len);
        part.iov_base = static_cast<std::byte*>(part.iov_base) + filled;
        part.iov_len -= filled;
        left -= filled;
        if (part.iov_len == 0) status_ = done_(first + next++);
      }
    }
  }

  // Which of joined reads, from `read` on, has a byte.
  size_t ReadAt(const std::byte* byte, size_t read) const {
    while (byte >= reads_[read].buffer.data() + reads_[read].buffer.size()) {
      ++read;
    }
    return read;
  }

  // The bytes of a piece that are of its first read.
  size_t BytesOfFirst(const Piece& piece) const {
    const absl::Span<std::byte> first = reads_[piece.read].buffer;
    return std::min(
        piece.buffer.size(),
        static_cast<size_t>(first.data() + first.size() - piece.buffer.data()));
  }

  void Read(Piece piece) {
    if (options_.ask_cache && !cache_.has_value()) cache_.emplace(fd_, reads_);
    if (cache_.has_value() && cache_->Holds(piece)) return ReadNow(piece);
    PrepareQueue();
    if (queue_ == nullptr) return ReadNow(piece);
    while (free_.empty()) Reap();
    if (status_.ok()) Start(piece);
  }

  // Reads and waits: one read after another, so that each is in the cache of
  // the processor when done_ looks at it.
  void ReadNow(Piece piece) {
    while (!piece.buffer.empty() && status_.ok()) {
      const ssize_t n =
          pread(fd_, piece.buffer.data(), BytesOfFirst(piece), piece.offset);
      if (n < 0 && errno == EINTR) continue;
      if (n > 0) {
        Filled(piece, n);
      } else {
        Fail(piece, n < 0 ? errno : 0);
      }
    }
  }

  void PrepareQueue() {
    if (prepared_) return;
    prepared_ = true;
    queue_ = borrow_();
    if (queue_ == nullptr) return;
    slots_.resize(queue_->depth());
    for (size_t slot = 0; slot < slots_.size(); ++slot) free_.push_back(slot);
    // Opened anew, since the flag would be that of all who use the other.
    direct_fd_ = UniqueFd(open(absl::StrCat("/proc/self/fd/", fd_).c_str(),
                               O_RDONLY | O_DIRECT | O_CLOEXEC));
  }

  void Start(const Piece& piece) {
    const bool direct = direct_fd_.is_open() && piece.IsAligned();
    const size_t slot = free_.back();
    const absl::Status started =
        queue_->Start({.fd = direct ? direct_fd_.get() : fd_,
                       .offset = piece.offset,
                       .buffer = piece.buffer,
                       .tag = slot});
    if (!started.ok()) return ReadNow(piece);
    free_.pop_back();
    slots_[slot] = {piece, direct};
    ++in_flight_;
  }

  // Waits for the end of one piece.
  void Reap() {
    const IoQueue::Ended ended = queue_->Wait();
    auto [piece, direct] = slots_[ended.tag];
    free_.push_back(ended.tag);
    --in_flight_;
    if (!status_.ok()) return;
    if (ended.result > 0) {
      Filled(piece, ended.result);
      if (!piece.buffer.empty() && status_.ok()) Start(piece);
      return;
    }
    if (ended.result == 0) return Fail(piece, 0);
    // The alignment was not enough; through the page cache from here on.
    if (ended.result == -EINVAL && direct) direct_fd_.Reset();
    // What a queue or a direct read cannot do, pread may; an error of the
    // medium comes again from there.
    ReadNow(piece);
  }

  void Filled(Piece& piece, int64_t bytes) {
    while (bytes > 0 && status_.ok()) {
      const auto n = std::min(bytes, static_cast<int64_t>(BytesOfFirst(piece)));
      const size_t read = piece.read;
      piece.Advance(n);
      bytes -= n;
      if (!piece.buffer.empty()) {
        piece.read = ReadAt(piece.buffer.data(), read);
      }
      missing_[read] -= static_cast<size_t>(n);
      if (missing_[read] == 0) status_ = done_(read);
    }
  }

  // `error` 0: the end of the file.
  void Fail(const Piece& piece, int error) {
    if (error == 0) {
      status_ = absl::DataLossError(
          absl::StrCat(path_, " ends at offset ", piece.offset, ", expected ",
                       piece.buffer.size(), " more bytes"));
      return;
    }
    status_ = Annotate(ErrnoStatus(error, "reading", path_),
                       absl::StrCat("at offset ", piece.offset));
  }

  struct Slot {
    Piece piece;
    bool direct = false;
  };

  const std::string& path_;
  const int fd_;
  const IoEngineOptions& options_;
  const absl::Span<const FileRead> reads_;
  const absl::FunctionRef<absl::Status(size_t)> done_;
  const absl::FunctionRef<std::unique_ptr<IoQueue>()> borrow_;
  std::optional<PageCache> cache_;
  // Bytes of each read that are not filled.
  std::vector<size_t> missing_;
  std::vector<iovec> parts_;
  // The first error.
  absl::Status status_;
  bool prepared_ = false;
  std::unique_ptr<IoQueue> queue_;
  UniqueFd direct_fd_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  int in_flight_ = 0;
};

// Any regular file there, or none.
std::optional<std::string> FirstFileIn(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    if (entry->is_regular_file(error) && !error) return entry->path().string();
    entry.increment(error);
  }
  return std::nullopt;
}

// Whether no file could be created, which does not tell whether reading works.
bool CannotCreate(int error) {
  return error == EROFS || error == EACCES || error == EPERM ||
         error == EISDIR || error == EOPNOTSUPP;
}

}  // namespace

namespace internal {

std::string DescribeDirectReads(
    const std::string& directory,
    absl::FunctionRef<int(const std::string* path)> open_direct) {
  UniqueFd file(open_direct(nullptr));
  int error = errno;
  if (!file.is_open() && CannotCreate(error)) {
    const std::optional<std::string> path = FirstFileIn(directory);
    if (path) file = UniqueFd(open_direct(&*path));
    error = path ? errno : 0;
  }
  if (file.is_open()) return "direct";
  if (error == EINVAL) {
    return absl::StrCat(
        "through the page cache: opening a file with O_DIRECT: ",
        std::strerror(error));
  }
  return absl::StrCat(
      "unknown: no file could be created there to try",
      error == 0 || CannotCreate(error) ? "" : ": ",
      error == 0 || CannotCreate(error) ? "" : std::strerror(error));
}

}  // namespace internal

IoEngine& IoEngine::Global() {
  static IoEngine* const engine = new IoEngine;
  return *engine;
}

IoEngine::IoEngine(IoEngineOptions options) : options_(std::move(options)) {}

IoEngine::~IoEngine() = default;

std::unique_ptr<IoQueue> IoEngine::Borrow() {
  absl::MutexLock lock(&mutex_);
  if (process_ != getpid()) {
    // A child shares its parent's rings, and must not touch them.
    for (auto& queue : queues_) (void)queue.release();
    queues_.clear();
    process_ = getpid();
  }
  if (!queues_.empty()) {
    std::unique_ptr<IoQueue> queue = std::move(queues_.back());
    queues_.pop_back();
    return queue;
  }
  if (absl::IsUnimplemented(no_queue_)) return nullptr;
  absl::StatusOr<std::unique_ptr<IoQueue>> queue = options_.make_queue();
  no_queue_ = queue.status();
  return queue.ok() ? *std::move(queue) : nullptr;
}

void IoEngine::Return(std::unique_ptr<IoQueue> queue) {
  absl::MutexLock lock(&mutex_);
  queues_.push_back(std::move(queue));
}

absl::Status IoEngine::ReadMany(const std::string& path, int fd,
                                absl::Span<const FileRead> reads,
                                absl::FunctionRef<absl::Status(size_t)> done) {
  const auto borrow = [this] { return Borrow(); };
  ManyReads many(path, fd, options_, reads, done, borrow);
  const absl::Status status = many.Run();
  if (auto queue = many.TakeQueue(); queue != nullptr) Return(std::move(queue));
  return status;
}

std::string IoEngine::Describe() {
  std::unique_ptr<IoQueue> queue = Borrow();
  if (queue == nullptr) {
    absl::MutexLock lock(&mutex_);
    return absl::StrCat("pread: ", no_queue_.message());
  }
  const int depth = queue->depth();
  Return(std::move(queue));
  return absl::StrCat("io_uring, ", depth, " reads in flight");
}

std::string DescribeDirectReads(const std::string& directory) {
  return internal::DescribeDirectReads(
      directory, [&directory](const std::string* path) {
        return path == nullptr
                   ? open(directory.c_str(),
                          O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600)
                   : open(path->c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
      });
}

}  // namespace sherd
