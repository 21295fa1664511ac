// Short reads of IoEngine that are neighbours in the file, and lie apart in
// memory.

#include <fcntl.h>
#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/io_engine.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// preadv, of which some calls end as they are told.
struct FakeParts {
  // Of the calls, in order, a positive number so many bytes at most; 0 is the
  // end of the file.
  static inline std::deque<int64_t> results;
  static inline int calls = 0;
  static inline int64_t most_bytes = 0;

  static ssize_t Read(int fd, const iovec* parts, int count, off_t offset) {
    ++calls;
    std::vector<iovec> taken(parts, parts + count);
    int64_t bytes = 0;
    for (const iovec& part : taken) {
      bytes += static_cast<int64_t>(part.iov_len);
    }
    most_bytes = std::max(most_bytes, bytes);
    if (results.empty()) return preadv(fd, parts, count, offset);
    int64_t left = results.front();
    results.pop_front();
    if (left < 0) {
      errno = static_cast<int>(-left);
      return -1;
    }
    for (iovec& part : taken) {
      part.iov_len = std::min(part.iov_len, static_cast<size_t>(left));
      left -= static_cast<int64_t>(part.iov_len);
    }
    return preadv(fd, taken.data(), count, offset);
  }
};

class ScatteredReadsTest : public ::testing::Test {
 protected:
  ScatteredReadsTest() {
    FakeParts::results.clear();
    FakeParts::calls = 0;
    FakeParts::most_bytes = 0;
    uint64_t x = 1;
    for (std::byte& byte : contents_) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(x >> 56);
    }
    fd_ = UniqueFd(
        open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_EQ(pwrite(fd_.get(), contents_.data(), contents_.size(), 0),
              static_cast<ssize_t>(contents_.size()));
  }
  ~ScatteredReadsTest() override { unlink(path_.c_str()); }

  // Reads `count` parts of `bytes`, from the byte 4097 on, to places in memory
  // that lie the other way round.
  absl::Status Read(int64_t bytes, int64_t count) {
    ended_.assign(static_cast<size_t>(count), 0);
    buffer_.assign(static_cast<size_t>((bytes + 8) * count), std::byte{0});
    std::vector<FileRead> reads;
    for (int64_t i = 0; i < count; ++i) {
      reads.push_back({4097 + i * bytes,
                       absl::MakeSpan(buffer_).subspan(
                           static_cast<size_t>((count - 1 - i) * (bytes + 8)),
                           static_cast<size_t>(bytes))});
    }
    return engine_.ReadMany(path_, fd_.get(), reads, [&](size_t i) {
      ++ended_[i];
      EXPECT_EQ(std::count(ended_.begin(), ended_.end(), 1),
                static_cast<int64_t>(i) + 1)
          << "in their order";
      EXPECT_TRUE(std::equal(reads[i].buffer.begin(), reads[i].buffer.end(),
                             contents_.begin() + reads[i].offset))
          << i;
      return i == fail_at_ ? done_error_ : absl::OkStatus();
    });
  }

  const std::string path_ =
      absl::StrCat(::testing::TempDir(), "/scattered_reads");
  std::vector<std::byte> contents_ =
      std::vector<std::byte>(6 * kMiB + 5000 + 4096);
  UniqueFd fd_;
  // How often a queue was asked for.
  int queues_ = 0;
  IoEngine engine_ = IoEngine(
      {.make_queue = [this]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
         ++queues_;
         return absl::UnimplementedError("none");
       },
       .ask_cache = false,
       .read_parts = FakeParts::Read});
  std::vector<int> ended_;
  absl::Status done_error_;
  std::vector<std::byte> buffer_;
  size_t fail_at_ = size_t{1} << 40;
};

TEST_F(ScatteredReadsTest, NeighboursInTheFileAreOneCall) {
  EXPECT_THAT(Read(12'800, 80), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_EQ(FakeParts::calls, 1);
  // More than a call takes, of bytes and of parts.
  EXPECT_THAT(Read(60'000, 90), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_LE(FakeParts::most_bytes, kMiB);
  EXPECT_EQ(FakeParts::calls, 1 + 6);
  EXPECT_THAT(Read(3, 3 * IOV_MAX), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_EQ(FakeParts::calls, 1 + 6 + 3);
  EXPECT_EQ(queues_, 0);
  // Long ones are requests of their own, if there is a queue.
  EXPECT_THAT(Read(100'000, 3), IsOk());
  EXPECT_THAT(ended_, Each(1));
  EXPECT_EQ(FakeParts::calls, 1 + 6 + 3);
  EXPECT_EQ(queues_, 1);
}

TEST_F(ScatteredReadsTest, ShortCountsAndInterruptionsGoOn) {
  // Within a part, at its end, and across several.
  for (const int64_t count : {1, 999, 1000, 1001, 2500, 19'999}) {
    SCOPED_TRACE(count);
    FakeParts::results = {-EINTR, count, -EINTR, -EINTR, count, 1};
    EXPECT_THAT(Read(1000, 20), IsOk());
    EXPECT_THAT(ended_, Each(1));
  }
}

TEST_F(ScatteredReadsTest, AnErrorOfAPartIsNamedWithItsOffset) {
  FakeParts::results = {1500, -EIO};
  EXPECT_THAT(Read(1000, 20),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr(absl::StrCat("reading ", path_)),
                             HasSubstr(absl::StrCat("at offset ", 5597)))));
  EXPECT_EQ(std::count(ended_.begin(), ended_.end(), 1), 1);
  FakeParts::results = {1500, 0};
  EXPECT_THAT(Read(1000, 20),
              StatusIs(absl::StatusCode::kDataLoss,
                       absl::StrCat(path_, " ends at offset ", 5597,
                                    ", expected 500 more bytes")));
  done_error_ = absl::AbortedError("enough");
  fail_at_ = 7;
  EXPECT_THAT(Read(1000, 20), StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(std::count(ended_.begin(), ended_.end(), 1), 8);
}

}  // namespace
}  // namespace sherd
