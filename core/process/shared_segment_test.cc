#include "sherd/core/process/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

using Failure = SharedSegment::Failure;

SharedSegment Made(uint64_t bytes) {
  SharedSegment segment;
  EXPECT_EQ(segment.Create("sherd_test", bytes), Failure::kNone);
  return segment;
}

UniqueFd Opened(const SharedSegment& segment) {
  return SharedSegment::Open(SharedSegment::PathOf(getpid(), segment.fd()));
}

TEST(SharedSegmentTest, IsZeroAndSharedWithEveryProcessThatOpensIt) {
  const SharedSegment made = Made(3 * 4096);
  EXPECT_EQ(made.bytes(), 3u * 4096);
  EXPECT_EQ(made.memory()[4096], 0);
  SharedSegment adopted;
  ASSERT_EQ(adopted.Adopt(Opened(made), 1), Failure::kNone);
  EXPECT_EQ(adopted.bytes(), made.bytes());
  EXPECT_NE(adopted.memory(), made.memory());
  made.memory()[4096] = 17;
  EXPECT_EQ(adopted.memory()[4096], 17);
}

TEST(SharedSegmentTest, OutlivesItsMakerAndTheDescriptor) {
  SharedSegment adopted;
  {
    const SharedSegment made = Made(4096);
    made.memory()[5] = 6;
    ASSERT_EQ(adopted.Adopt(Opened(made), 1), Failure::kNone);
  }
  const std::string path = SharedSegment::PathOf(getpid(), adopted.fd());
  adopted.CloseDescriptor();
  EXPECT_EQ(adopted.fd(), -1);
  EXPECT_EQ(adopted.memory()[5], 6);
  EXPECT_FALSE(SharedSegment::Open(path).is_open());
  EXPECT_EQ(errno, ENOENT);
}

TEST(SharedSegmentTest, IsMovedWithItsMemory) {
  SharedSegment first = Made(4096);
  unsigned char* const memory = first.memory();
  SharedSegment second = std::move(first);
  EXPECT_EQ(second.memory(), memory);
  SharedSegment third = Made(8192);
  third = std::move(second);
  EXPECT_EQ(third.memory(), memory);
  EXPECT_EQ(third.bytes(), 4096u);
  memory[0] = 1;
}

TEST(SharedSegmentTest, NoProcessCanChangeItsSize) {
  const SharedSegment made = Made(4096);
  const UniqueFd other = Opened(made);
  EXPECT_NE(ftruncate(other.get(), 0), 0);
  EXPECT_NE(ftruncate(other.get(), 8192), 0);
}

TEST(SharedSegmentTest, OnlyASegmentOfTheSizeIsAdopted) {
  const SharedSegment made = Made(8192);
  SharedSegment adopted;
  EXPECT_EQ(adopted.Adopt(Opened(made), 8193), Failure::kForeign);
  EXPECT_EQ(adopted.Adopt(Opened(made), 4096, 8191), Failure::kForeign);
  EXPECT_EQ(adopted.Adopt(UniqueFd(), 1), Failure::kForeign);
  EXPECT_EQ(adopted.Adopt(UniqueFd(open("/proc/self/exe", O_RDONLY)), 1),
            Failure::kForeign);
  UniqueFd unsealed(memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(adopted.Adopt(std::move(unsealed), 1), Failure::kForeign);
  EXPECT_EQ(adopted.memory(), nullptr);
  EXPECT_EQ(adopted.Adopt(Opened(made), 8192, 8192), Failure::kNone);
}

TEST(SharedSegmentTest, OnlyFilesAreOpened) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd first(sockets[0]);
  const UniqueFd second(sockets[1]);
  EXPECT_FALSE(SharedSegment::Open(SharedSegment::PathOf(getpid(), first.get()))
                   .is_open());
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(SharedSegment::Open("/dev/null").is_open());
  EXPECT_EQ(errno, ENOENT);
}

TEST(SharedSegmentTest, AnImpossibleSizeIsAnError) {
  SharedSegment segment;
  EXPECT_EQ(segment.Create("sherd_test", uint64_t{1} << 63), Failure::kSize);
  // Fits into a file, but into no address space.
  EXPECT_EQ(segment.Create("sherd_test", uint64_t{1} << 60), Failure::kMap);
  EXPECT_EQ(segment.memory(), nullptr);
}

TEST(SharedSegmentTest, AChildInheritsIt) {
  const SharedSegment made = Made(4096);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    made.memory()[0] = 9;
    _exit(0);
  }
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(made.memory()[0], 9);
}

}  // namespace
}  // namespace sherd
