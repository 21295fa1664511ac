#include "sherd/core/base/io_engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kDepth = 3;

// Ends reads out of order, and as it is told; reads by pread.
struct FakeSystem {
  // How the reads that are started end, in order; then all well. A positive
  // number: so many bytes at most.
  std::deque<int64_t> results;
  // Reads past the page cache end with EINVAL.
  bool refuses_direct = false;
  // Starts, counted from 1, from which on none is taken.
  int refuse_from = 1 << 30;
  int started = 0;
  int in_flight = 0;
  int most_in_flight = 0;
  std::vector<IoQueue::Request> reads;
};

class FakeQueue final : public IoQueue {
 public:
  explicit FakeQueue(FakeSystem& system) : system_(system) {}
  ~FakeQueue() override { EXPECT_TRUE(reads_.empty()); }

  int depth() const override { return kDepth; }

  absl::Status Start(const Request& read) override {
    if (++system_.started >= system_.refuse_from) {
      return absl::ResourceExhaustedError("refused");
    }
    EXPECT_LT(reads_.size(), size_t{kDepth});
    int64_t result = 1 << 30;
    if (!system_.results.empty()) {
      result = system_.results.front();
      system_.results.pop_front();
    }
    if (system_.refuses_direct && read.fd != system_fd) result = -EINVAL;
    reads_.push_back({read, result});
    system_.reads.push_back(read);
    system_.in_flight = static_cast<int>(reads_.size());
    system_.most_in_flight =
        std::max(system_.most_in_flight, system_.in_flight);
    return absl::OkStatus();
  }

  Ended Wait() override {
    EXPECT_FALSE(reads_.empty());
    newest_first_ = !newest_first_;
    const auto it = newest_first_ ? reads_.end() - 1 : reads_.begin();
    const auto [read, result] = *it;
    reads_.erase(it);
    system_.in_flight = static_cast<int>(reads_.size());
    if (result <= 0) return {read.tag, result};
    const size_t bytes =
        std::min(read.buffer.size(), static_cast<size_t>(result));
    // Through the page cache: a file system of memory has no direct reads.
    return {read.tag, pread(system_fd, read.buffer.data(), bytes, read.offset)};
  }

  static int system_fd;

 private:
  FakeSystem& system_;
  bool newest_first_ = false;
  std::vector<std::pair<Request, int64_t>> reads_;
};

int FakeQueue::system_fd = -1;

class IoEngineTest : public ::testing::Test {
 protected:
  IoEngineTest() {
    uint64_t x = 1;
    for (std::byte& byte : contents_) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(x >> 56);
    }
    fd_ = UniqueFd(
        open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_EQ(pwrite(fd_.get(), contents_.data(), contents_.size(), 0),
              static_cast<ssize_t>(contents_.size()));
    FakeQueue::system_fd = fd_.get();
  }
  ~IoEngineTest() override { unlink(path_.c_str()); }

  // An engine for which nothing is in the page cache.
  IoEngine MakeFake() {
    return IoEngine(
        {.make_queue = [this] { return std::make_unique<FakeQueue>(fake_); },
         .ask_cache = false});
  }

  // Ranges of all kinds: aligned, across pieces, empty, short, the tail.
  std::vector<std::pair<int64_t, int64_t>> Ranges() const {
    const auto size = static_cast<int64_t>(contents_.size());
    return {{0, kMiB},          {4096, 3 * kMiB},
            {kMiB - 1, 2},      {17, 0},
            {5 * kMiB + 1, 9},  {3 * kMiB + 7, kMiB + 4099},
            {size - 5001, 5001}};
  }

  // Reads them, and checks each when it has ended, once.
  absl::Status ReadRanges(IoEngine& engine) {
    const auto ranges = Ranges();
    ended_.assign(ranges.size(), 0);
    std::vector<std::vector<std::byte>> buffers;
    std::vector<FileRead> reads;
    for (const auto& [offset, bytes] : ranges) {
      // Its memory is aligned as its place in the file is.
      auto& buffer = buffers.emplace_back(bytes + 8192);
      const size_t skip = (static_cast<size_t>(offset) + 4096 -
                           reinterpret_cast<uintptr_t>(buffer.data()) % 4096) %
                          4096;
      reads.push_back({offset, absl::MakeSpan(buffer).subspan(skip, bytes)});
    }
    return engine.ReadMany(path_, fd_.get(), reads, [&](size_t i) {
      ++ended_[i];
      EXPECT_TRUE(std::equal(reads[i].buffer.begin(), reads[i].buffer.end(),
                             contents_.begin() + reads[i].offset))
          << i;
      return done_error_;
    });
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/io_engine");
  std::vector<std::byte> contents_ =
      std::vector<std::byte>(6 * kMiB + 5000 + 4096);
  UniqueFd fd_;
  FakeSystem fake_;
  std::vector<int> ended_;
  absl::Status done_error_;
};

TEST_F(IoEngineTest, ReadsCachedAndUncachedPages) {
  for (const bool ask_cache : {true, false}) {
    IoEngine engine({.ask_cache = ask_cache});
    const int64_t before = MediumBytesRead();
    EXPECT_THAT(ReadRanges(engine), IsOk());
    EXPECT_THAT(ended_, Each(1));
    EXPECT_TRUE(!ask_cache || MediumBytesRead() == before);
  }
}

TEST_F(IoEngineTest, ReadsPagesThatAreNotCached) {
  ASSERT_EQ(fsync(fd_.get()), 0);
  ASSERT_EQ(posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  IoEngine engine;
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
}

TEST_F(IoEngineTest, DirectReadsDoNotFillThePageCache) {
  ASSERT_EQ(fsync(fd_.get()), 0);
  ASSERT_EQ(posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto is_cached = [&] {
    unsigned char pages[256] = {};
    void* const data =
        mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, fd_.get(), kMiB);
    EXPECT_EQ(mincore(data, kMiB, pages), 0);
    munmap(data, kMiB);
    return std::any_of(std::begin(pages), std::end(pages),
                       [](unsigned char page) { return page != 0; });
  };
  IoEngine engine;
  if (is_cached() || !absl::StartsWith(engine.Describe(), "io_uring") ||
      DescribeDirectReads(::testing::TempDir()) != "direct") {
    GTEST_SKIP() << "no direct reads here";
  }
  std::vector<std::byte> buffer(2 * kMiB);
  const auto whole = absl::MakeSpan(buffer).subspan(
      kMiB - reinterpret_cast<uintptr_t>(buffer.data()) % kMiB, kMiB);
  for (int i = 0; i < 2; ++i) {
    const int64_t before = MediumBytesRead();
    ASSERT_THAT(engine.ReadMany(path_, fd_.get(), {{kMiB, whole}},
                                [](size_t) { return absl::OkStatus(); }),
                IsOk());
    EXPECT_FALSE(is_cached());
    EXPECT_GE(MediumBytesRead() - before, kMiB);
  }
}

TEST_F(IoEngineTest, CachedReadsNeedNoQueue) {
  IoEngine engine(
      {.make_queue = [this] { return std::make_unique<FakeQueue>(fake_); }});
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_EQ(fake_.started, 0);
}

TEST_F(IoEngineTest, SeveralPiecesAreInFlightAndEndInAnyOrder) {
  IoEngine engine = MakeFake();
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_EQ(fake_.most_in_flight, kDepth);
  EXPECT_EQ(fake_.in_flight, 0);
  for (const IoQueue::Request& read : fake_.reads) {
    EXPECT_LE(read.buffer.size(), size_t{kMiB});
  }
}

TEST_F(IoEngineTest, ReadsThatFollowOneAnotherSharePieces) {
  constexpr int64_t kBlock = 200'000;
  std::vector<std::byte> buffer(5 * kMiB);
  // Blocks that continue one another; then a gap in memory, one in the file,
  // and a read of nothing.
  std::vector<FileRead> reads;
  int64_t offset = 4096, at = 0;
  for (int i = 0; i < 20; ++i) {
    if (i == 11) at += 64;
    if (i == 14) offset += 64;
    const int64_t bytes = i == 17 ? 0 : kBlock;
    reads.push_back(
        {offset, absl::MakeSpan(buffer).subspan(static_cast<size_t>(at),
                                                static_cast<size_t>(bytes))});
    offset += bytes;
    at += bytes;
  }
  const auto pieces = [](int64_t begin, int64_t end) {
    return static_cast<size_t>((end - 1) / kMiB - begin / kMiB + 1);
  };
  for (const bool is_cached : {false, true}) {
    for (const int64_t result : {int64_t{1} << 30, kBlock / 2, kBlock}) {
      fake_ = FakeSystem();
      fake_.results = {result, result};
      std::fill(buffer.begin(), buffer.end(), std::byte{0});
      ended_.assign(reads.size(), 0);
      IoEngine engine(
          {.make_queue = [this] { return std::make_unique<FakeQueue>(fake_); },
           .ask_cache = is_cached});
      size_t last = 0;
      EXPECT_THAT(
          engine.ReadMany(path_, fd_.get(), reads,
                          [&](size_t i) {
                            ++ended_[i];
                            // What is cached is seen while it is hot.
                            if (is_cached) {
                              EXPECT_EQ(i, last++);
                            }
                            EXPECT_TRUE(std::equal(
                                reads[i].buffer.begin(), reads[i].buffer.end(),
                                contents_.begin() + reads[i].offset))
                                << i;
                            return absl::OkStatus();
                          }),
          IsOk());
      EXPECT_THAT(ended_, Each(1));
      if (is_cached || result < kMiB) continue;
      EXPECT_EQ(fake_.reads.size(),
                pieces(reads[0].offset, reads[11].offset) +
                    pieces(reads[11].offset, reads[13].offset + kBlock) +
                    pieces(reads[14].offset, reads[17].offset) +
                    pieces(reads[18].offset, reads[19].offset + kBlock));
    }
  }
}

TEST_F(IoEngineTest, AlignedPiecesAloneGoPastThePageCache) {
  IoEngine engine = MakeFake();
  EXPECT_THAT(ReadRanges(engine), IsOk());
  int direct = 0;
  for (const IoQueue::Request& read : fake_.reads) {
    if (read.fd == fd_.get()) continue;
    ++direct;
    EXPECT_EQ(read.offset % 4096, 0);
    EXPECT_EQ(read.buffer.size() % 4096, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.buffer.data()) % 4096, 0u);
  }
  // {0, 1 MiB} whole; {4096, 3 MiB} in four; the page of the last tensor.
  if (DescribeDirectReads(::testing::TempDir()) == "direct") {
    EXPECT_GE(direct, 5);
  }
}

// A page that other data shares may be copied by a fork while it is read into.
TEST_F(IoEngineTest, PartsOfPagesOfMemoryAreReadThroughTheCache) {
  IoEngine engine = MakeFake();
  std::vector<std::byte> memory(kMiB + 2 * 4096);
  const size_t skip =
      4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096 + 512;
  const auto buffer = absl::MakeSpan(memory).subspan(skip, kMiB);
  ASSERT_THAT(engine.ReadMany(path_, fd_.get(), {{0, buffer}},
                              [](size_t) { return absl::OkStatus(); }),
              IsOk());
  ASSERT_EQ(fake_.reads.size(), 1u);
  EXPECT_EQ(fake_.reads[0].fd, fd_.get());
}

TEST_F(IoEngineTest, ShortReadsGoOn) {
  IoEngine engine = MakeFake();
  fake_.results = {1, 4096, 4095, 1 << 19, 3, 5000};
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
}

TEST_F(IoEngineTest, InterruptedAndRefusedReadsAreRetriedOnAnotherPath) {
  for (const int64_t result :
       {-EINTR, -EAGAIN, -EINVAL, -EOPNOTSUPP, -ENOTBLK, -EIO}) {
    IoEngine engine = MakeFake();
    fake_.results = {result, 1 << 30, result};
    EXPECT_THAT(ReadRanges(engine), IsOk());
    EXPECT_THAT(ended_, Each(1));
  }
  IoEngine engine = MakeFake();
  fake_.started = 0;
  fake_.refuse_from = 4;
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
}

TEST_F(IoEngineTest, ADeviceThatAsksForMoreAlignmentIsReadThroughTheCache) {
  if (DescribeDirectReads(::testing::TempDir()) != "direct") {
    GTEST_SKIP() << "no direct reads in " << ::testing::TempDir();
  }
  IoEngine engine = MakeFake();
  fake_.refuses_direct = true;
  fake_.refuse_from = 100;
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_THAT(ended_, Each(1));
  // Those that were in flight with the first.
  const auto direct = std::count_if(
      fake_.reads.begin(), fake_.reads.end(),
      [&](const IoQueue::Request& read) { return read.fd != fd_.get(); });
  EXPECT_GE(direct, 1);
  EXPECT_LE(direct, kDepth);
}

// The file can no longer be read: after `nth` reads, all come back with EBADF,
// from the queue and from pread.
TEST_F(IoEngineTest, AnErrorAmongManyIsNamedAndNothingStaysInFlight) {
  const UniqueFd unreadable(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(unreadable.is_open());
  std::vector<std::byte> buffer(6 * kMiB);
  for (int nth = 0; nth < 4; ++nth) {
    SCOPED_TRACE(nth);
    fake_ = FakeSystem();
    IoEngine engine = MakeFake();
    fake_.results.assign(nth, 1 << 30);
    fake_.results.push_back(-EIO);
    EXPECT_THAT(
        engine.ReadMany(path_, unreadable.get(), {{5, absl::MakeSpan(buffer)}},
                        [](size_t) { return absl::OkStatus(); }),
        StatusIs(absl::StatusCode::kInternal,
                 absl::StrCat("reading ", path_, ": Bad file descriptor")));
    EXPECT_EQ(fake_.in_flight, 0);
    EXPECT_LE(fake_.started, nth + 2 * kDepth) << "read on after the error";
    EXPECT_THAT(ReadRanges(engine), IsOk()) << "the queue is usable";
  }
}

TEST_F(IoEngineTest, TheOffsetOfAnErrorIsThatOfItsPiece) {
  const UniqueFd unreadable(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
  IoEngine engine = MakeFake();
  std::vector<std::byte> buffer(2 * kMiB);
  fake_.results = {-EIO};
  EXPECT_THAT(engine.ReadMany(path_, unreadable.get(),
                              {{kMiB + 5, absl::MakeSpan(buffer)}},
                              [](size_t) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kInternal,
                       absl::StrCat("at offset ", kMiB + 5)));
}

TEST_F(IoEngineTest, TheEndOfTheFileIsDataLossOnEveryPath) {
  std::vector<std::byte> buffer(kMiB);
  const auto read_past = [&](IoEngine& engine) {
    return engine.ReadMany(path_, fd_.get(),
                           {{6 * kMiB, absl::MakeSpan(buffer)}},
                           [](size_t) { return absl::OkStatus(); });
  };
  const auto none = []() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    return absl::UnimplementedError("none");
  };
  IoEngine real, cold({.ask_cache = false}),
      fake = MakeFake(), plain({.make_queue = none, .ask_cache = false});
  for (IoEngine* engine : {&real, &cold, &fake, &plain}) {
    EXPECT_THAT(
        read_past(*engine),
        StatusIs(absl::StatusCode::kDataLoss,
                 absl::StrCat(path_, " ends at offset ", contents_.size())));
  }
}

TEST_F(IoEngineTest, AnErrorOfTheCallerEndsIt) {
  IoEngine engine = MakeFake();
  done_error_ = absl::AbortedError("enough");
  EXPECT_THAT(ReadRanges(engine),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(std::count(ended_.begin(), ended_.end(), 1), 1);
  EXPECT_EQ(fake_.in_flight, 0);
}

TEST_F(IoEngineTest, WithoutAQueueItReadsOneByOneAndReportsWhy) {
  int asked = 0;
  IoEngine engine(
      {.make_queue = [&]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
         ++asked;
         return absl::UnimplementedError(
             "io_uring_setup: Operation not permitted");
       },
       .ask_cache = false});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ReadRanges(engine), IsOk());
    EXPECT_THAT(ended_, Each(1));
  }
  EXPECT_EQ(asked, 1) << "a kernel does not change its mind";
  EXPECT_EQ(engine.Describe(),
            "pread: io_uring_setup: Operation not permitted");
}

TEST_F(IoEngineTest, AQueueThatCouldNotBeMadeNowIsTriedAgain) {
  int asked = 0;
  IoEngine engine(
      {.make_queue = [&]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
         if (++asked == 1) {
           return absl::ResourceExhaustedError("descriptors");
         }
         return std::make_unique<FakeQueue>(fake_);
       },
       .ask_cache = false});
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_EQ(fake_.started, 0);
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_GT(fake_.started, 0);
  EXPECT_THAT(ReadRanges(engine), IsOk());
  EXPECT_EQ(asked, 2) << "a queue is used again";
  EXPECT_EQ(engine.Describe(), "io_uring, 3 reads in flight");
}

TEST_F(IoEngineTest, AChildMakesAQueueOfItsOwn) {
  IoEngine engine({.ask_cache = false});
  ASSERT_THAT(ReadRanges(engine), IsOk());
  const pid_t child = fork();
  if (child == 0) _exit(ReadRanges(engine).ok() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(ReadRanges(engine), IsOk());
}

TEST(IoUringTest, EndsRequestsInFlightBeforeItIsDestroyed) {
  auto queue = CreateIoUring(4);
  if (absl::IsUnimplemented(queue.status())) {
    GTEST_SKIP() << queue.status().message();
  }
  ASSERT_THAT(queue, IsOk());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  std::byte buffer[3] = {};
  // In flight until there is something in the pipe.
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_THAT(
        (*queue)->Start({.fd = out.get(), .buffer = {&buffer[i], 1}, .tag = i}),
        IsOk());
  }
  absl::Notification begun;
  std::thread writer([&] {
    begun.WaitForNotification();
    EXPECT_EQ(write(in.get(), "xxx", 3), 3);
  });
  begun.Notify();
  queue->reset();
  EXPECT_THAT(buffer, Each(std::byte{'x'}));
  writer.join();
}

TEST(IoUringTest, WritesTheBytesOfTheBuffer) {
  auto queue = CreateIoUring(2);
  if (!queue.ok()) GTEST_SKIP() << queue.status().message();
  const std::string path = ::testing::TempDir() + "/written";
  const UniqueFd fd(
      open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  std::byte front[] = {std::byte{'a'}, std::byte{'b'}};
  std::byte back[] = {std::byte{'c'}};
  ASSERT_THAT((*queue)->Start({.fd = fd.get(),
                               .offset = 2,
                               .buffer = absl::MakeSpan(back),
                               .tag = 1,
                               .write = true}),
              IsOk());
  ASSERT_THAT((*queue)->Start({.fd = fd.get(),
                               .buffer = absl::MakeSpan(front),
                               .tag = 2,
                               .write = true}),
              IsOk());
  for (int i = 0; i < 2; ++i) {
    const IoQueue::Ended ended = (*queue)->Wait();
    EXPECT_EQ(ended.result, static_cast<int64_t>(ended.tag));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                             ReadFile(FileSystem::Posix(), path, 100));
  EXPECT_EQ(bytes, "abc");
}

TEST(IoUringTest, AnErrorOfAReadIsItsResult) {
  auto queue = CreateIoUring(1);
  if (!queue.ok()) GTEST_SKIP() << queue.status().message();
  std::byte byte;
  ASSERT_THAT((*queue)->Start({.fd = -1, .buffer = {&byte, 1}, .tag = 7}),
              IsOk());
  const IoQueue::Ended ended = (*queue)->Wait();
  EXPECT_EQ(ended.tag, 7u);
  EXPECT_EQ(ended.result, -EBADF);
}

TEST(IoUringTest, AQueueThatCannotBeCreatedIsReported) {
  const auto queue = CreateIoUring(0);
  EXPECT_THAT(queue.status(), StatusIs(absl::StatusCode::kUnimplemented,
                                       StartsWith("io_uring_setup: ")));
}

TEST(DirectReadsTest, AreDescribedWithTheReason) {
  EXPECT_THAT(DescribeDirectReads(::testing::TempDir()),
              AnyOf("direct", StartsWith("through the page cache: ")));
  EXPECT_THAT(DescribeDirectReads("/nowhere"),
              HasSubstr("No such file or directory"));
}

// How the opening of a new file and that of one that is there end.
struct DirectCase {
  int creating;
  int reading;
  const char* expected;
};

TEST(DirectReadsTest, AnExistingFileIsTriedWhereNoneCanBeCreated) {
  const std::string folder =
      absl::StrCat(::testing::TempDir(), "/direct_reads");
  const std::string path = absl::StrCat(folder, "/file");
  mkdir(folder.c_str(), 0700);
  const auto describe = [&](const DirectCase& c) {
    return internal::DescribeDirectReads(folder, [&](const std::string* tried) {
      if (tried != nullptr) {
        EXPECT_EQ(*tried, path);
      }
      errno = tried == nullptr ? c.creating : c.reading;
      return errno == 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    });
  };
  constexpr char kUnknown[] = "unknown: no file could be created there to try";
  constexpr char kNo[] = "through the page cache: ";
  EXPECT_EQ(describe({EROFS, 0, ""}), kUnknown) << "the directory is empty";
  const UniqueFd created(
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const DirectCase cases[] = {{0, 0, "direct"},          {EINVAL, 0, kNo},
                              {EROFS, 0, "direct"},      {EACCES, 0, "direct"},
                              {EPERM, 0, "direct"},      {EISDIR, 0, "direct"},
                              {EOPNOTSUPP, 0, "direct"}, {EROFS, EINVAL, kNo},
                              {EROFS, EACCES, kUnknown}, {EMFILE, 0, kUnknown}};
  for (const DirectCase& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.creating, " ", c.reading));
    EXPECT_THAT(describe(c), StartsWith(c.expected));
  }
  unlink(path.c_str());
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace sherd
