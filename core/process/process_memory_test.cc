#include "sherd/core/process/process_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace sherd {
namespace {

uint64_t AddressOf(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

TEST(ProcessMemoryTest, CopiesPartsOfOneShapeIntoPartsOfAnother) {
  std::vector<uint8_t> source(100);
  std::iota(source.begin(), source.end(), uint8_t{0});
  std::vector<uint8_t> target(100, 255);
  const iovec from[] = {{source.data() + 10, 3}, {source.data() + 50, 4}};
  const iovec to[] = {{target.data(), 5}, {target.data() + 20, 9}};
  EXPECT_EQ(ReadProcessMemory(getpid(), from, to), 7u);
  EXPECT_EQ(target[2], 12);
  EXPECT_EQ(target[4], 51);
  EXPECT_EQ(target[5], 255);
  EXPECT_EQ(target[20], 52);
  EXPECT_EQ(target[21], 53);
  EXPECT_EQ(target[22], 255);
}

TEST(ProcessMemoryTest, AMissingPageIsAnErrorAndNotASignal) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const data =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(data, MAP_FAILED);
  data[page - 1] = 'x';
  EXPECT_TRUE(IsReadableByOthers(data, 2 * page));
  ASSERT_EQ(munmap(data + page, page), 0);
  std::vector<char> target(page + 16, 'o');
  EXPECT_EQ(ReadProcessMemory(getpid(), AddressOf(data + page - 8),
                              target.data(), 16),
            EFAULT);
  EXPECT_EQ(target[7], 'x');
  EXPECT_EQ(target[8], 'o');
  EXPECT_EQ(ReadProcessMemory(getpid(), 8, target.data(), 1), EFAULT);
  EXPECT_FALSE(IsReadableByOthers(data, page + 1));
  EXPECT_FALSE(IsReadableByOthers(data + page, 1));
  munmap(data, page);
}

TEST(ProcessMemoryTest, AProcessThatHasEndedHasNoMemory) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  char target = 0;
  EXPECT_EQ(ReadProcessMemory(child, AddressOf(&target), &target, 1), ESRCH);
}

}  // namespace
}  // namespace sherd
