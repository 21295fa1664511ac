#include "sherd/backends/shm/slab_allocator.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/shm/memory_headroom.h"
#include "sherd/testing/kits/sanitized.h"

namespace sherd::internal {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

sherd_error_v0 NoError() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  error.peer = -1;
  return error;
}

// A block, or null and a failed expectation.
unsigned char* Allocate(SlabAllocator& allocator, uint64_t bytes,
                        uint64_t alignment = 64) {
  void* data = nullptr;
  sherd_error_v0 error = NoError();
  EXPECT_EQ(allocator.Allocate(bytes, alignment, &data, &error), SHERD_OK)
      << error.text;
  return static_cast<unsigned char*>(data);
}

sherd_code TryToAllocate(SlabAllocator& allocator, uint64_t bytes,
                         std::string* text = nullptr) {
  void* data = nullptr;
  sherd_error_v0 error = NoError();
  const sherd_code code = allocator.Allocate(bytes, 64, &data, &error);
  if (text != nullptr) *text = error.text;
  return code;
}

// Bytes that the slabs of this process hold from the system.
uint64_t ResidentBytes() {
  uint64_t bytes = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(directory)) {
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    char target[256] = {};
    struct stat status;
    if (readlink(path.c_str(), target, sizeof(target) - 1) > 0 &&
        std::strstr(target, "sherd_slab") != nullptr &&
        stat(path.c_str(), &status) == 0) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  closedir(directory);
  return bytes;
}

TEST(SlabAllocatorTest, BlocksAreAlignedAndApart) {
  SlabAllocator allocator;
  std::vector<std::pair<unsigned char*, uint64_t>> blocks;
  for (const uint64_t alignment : {1, 8, 64, 128, 1024, 4096}) {
    for (const uint64_t bytes : {1, 63, 64, 65, 4096, 16384, 16385, 300'000}) {
      unsigned char* const data = Allocate(allocator, bytes, alignment);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
      blocks.emplace_back(data, bytes);
    }
  }
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_LE(blocks[i - 1].first + blocks[i - 1].second, blocks[i].first);
  }
  for (const auto& [data, bytes] : blocks) {
    EXPECT_TRUE(allocator.Deallocate(data));
  }
  EXPECT_EQ(allocator.Statistics().live_bytes, 0u);
  EXPECT_EQ(allocator.Statistics().live_blocks, 0u);
}

TEST(SlabAllocatorTest, FreedPagesAreTakenAgainAndNotFetchedAnew) {
  SlabAllocator allocator;
  unsigned char* const first = Allocate(allocator, 5 * kMiB);
  const uint64_t resident = ResidentBytes();
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(allocator.Deallocate(first));
    ASSERT_EQ(Allocate(allocator, 5 * kMiB), first);
  }
  EXPECT_EQ(allocator.Statistics().fresh, 1u);
  EXPECT_EQ(allocator.Statistics().reused, 20u);
  EXPECT_EQ(ResidentBytes(), resident);
  allocator.Deallocate(first);
}

TEST(SlabAllocatorTest, NeighboursThatWereFreedMakeALargerBlock) {
  SlabAllocator allocator;
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(Allocate(allocator, kMiB));
  std::sort(blocks.begin(), blocks.end());
  for (const int i : {0, 2, 1}) allocator.Deallocate(blocks[i]);
  EXPECT_EQ(Allocate(allocator, 3 * kMiB), blocks[0]);
  EXPECT_EQ(allocator.Statistics().fresh, 4u);
  allocator.Deallocate(blocks[0]);
  allocator.Deallocate(blocks[3]);
}

TEST(SlabAllocatorTest, AChunkWithoutBlocksBecomesPagesAgain) {
  SlabAllocator allocator;
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(Allocate(allocator, 64));
  EXPECT_EQ(allocator.Statistics().fresh, 1u);
  for (unsigned char* const block : blocks) allocator.Deallocate(block);
  EXPECT_EQ(allocator.Statistics().pooled_bytes, uint64_t{256} << 10);
  unsigned char* const large = Allocate(allocator, 256 << 10);
  EXPECT_EQ(allocator.Statistics().fresh, 1u);
  allocator.Deallocate(large);
}

TEST(SlabAllocatorTest, ChunksBecomePagesAgainOneByOneWhereverTheyStand) {
  SlabAllocator allocator;
  // Chunks begin behind it.
  unsigned char* const pages = Allocate(allocator, 20 << 10);
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 128; ++i) blocks.push_back(Allocate(allocator, 4096));
  EXPECT_EQ(allocator.Statistics().fresh, 3u);
  std::sort(blocks.begin(), blocks.end());
  allocator.Deallocate(blocks[64]);
  for (int i = 0; i < 64; ++i) allocator.Deallocate(blocks[i]);
  EXPECT_EQ(allocator.Statistics().pooled_bytes, uint64_t{256} << 10);
  for (int i = 65; i < 128; ++i) allocator.Deallocate(blocks[i]);
  EXPECT_EQ(allocator.Statistics().pooled_bytes, uint64_t{512} << 10);
  allocator.Deallocate(pages);
}

TEST(SlabAllocatorTest, ThePoolIsBoundedAndTheRestIsReturnedToTheSystem) {
  SlabAllocator allocator({.pool_bytes = 10 * kMiB});
  const uint64_t before = ResidentBytes();
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Allocate(allocator, 4 * kMiB));
  EXPECT_GE(ResidentBytes(), before + 32 * kMiB);
  for (unsigned char* const block : blocks) {
    allocator.Deallocate(block);
    EXPECT_LE(allocator.Statistics().pooled_bytes, 10 * kMiB);
  }
  EXPECT_EQ(allocator.Statistics().pooled_bytes, 10 * kMiB);
  EXPECT_LE(ResidentBytes(), before + 11 * kMiB);
}

TEST(SlabAllocatorTest, WithoutAPoolNothingWaits) {
  const uint64_t before = ResidentBytes();
  SlabAllocator allocator({.pool_bytes = 0});
  allocator.Deallocate(Allocate(allocator, 4 * kMiB));
  EXPECT_EQ(allocator.Statistics().pooled_bytes, 0u);
  EXPECT_LT(ResidentBytes(), before + kMiB);
}

TEST(SlabAllocatorTest, ABlockLargerThanAnArenaGetsOneAndEmptyOnesAreFew) {
  SlabAllocator allocator({.arena_bytes = 8 * kMiB, .pool_bytes = 0});
  std::vector<unsigned char*> blocks;
  for (uint64_t i = 1; i <= 12; ++i) {
    blocks.push_back(Allocate(allocator, i * 2 * kMiB));
  }
  EXPECT_GE(allocator.Statistics().arenas, 9u);
  for (unsigned char* const block : blocks) allocator.Deallocate(block);
  EXPECT_LE(allocator.Statistics().arenas, 4u);
}

TEST(SlabAllocatorTest, AbsurdSizesAreRefusedBeforeAnythingIsTouched) {
  const uint64_t before = ResidentBytes();
  SlabAllocator allocator;
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX - 4095, uint64_t{1} << 63,
                               uint64_t{1} << 50, MachineMemory() + 1}) {
    std::string text;
    EXPECT_EQ(TryToAllocate(allocator, bytes, &text), SHERD_RESOURCE);
    EXPECT_THAT(text, HasSubstr("out of memory: cannot provide"));
  }
  EXPECT_EQ(allocator.Statistics().arenas, 0u);
  // Less than there is, more than is left.
  EXPECT_EQ(TryToAllocate(allocator, MachineMemory()), SHERD_RESOURCE);
  EXPECT_LT(ResidentBytes(), before + kMiB);
}

TEST(SlabAllocatorTest, LackOfPagesIsAnErrorAndLeaksNothing) {
  uint64_t left = 10 * kMiB;
  SlabAllocator allocator({.may_populate = [&left](uint64_t bytes) {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  }});
  unsigned char* const block = Allocate(allocator, 6 * kMiB);
  std::string text;
  EXPECT_EQ(TryToAllocate(allocator, 6 * kMiB, &text), SHERD_RESOURCE);
  EXPECT_THAT(text, HasSubstr("6291456"));
  EXPECT_EQ(allocator.Statistics().live_bytes, 6 * kMiB);
  unsigned char* const other = Allocate(allocator, 4 * kMiB);
  EXPECT_EQ(TryToAllocate(allocator, 8), SHERD_RESOURCE);
  std::memset(block, 1, 6 * kMiB);
  std::memset(other, 2, 4 * kMiB);
  EXPECT_EQ(block[6 * kMiB - 1], 1);
  allocator.Deallocate(block);
  allocator.Deallocate(other);
}

TEST(SlabAllocatorTest, ThePoolIsReturnedBeforeAnAllocationFails) {
  bool first_try = true;
  SlabAllocator allocator({.may_populate = [&first_try](uint64_t bytes) {
    if (bytes < 4 * kMiB) return true;
    first_try = !first_try;
    return first_try;
  }});
  allocator.Deallocate(Allocate(allocator, 2 * kMiB));
  EXPECT_EQ(allocator.Statistics().pooled_bytes, 2 * kMiB);
  unsigned char* const block = Allocate(allocator, 4 * kMiB);
  EXPECT_EQ(allocator.Statistics().pooled_bytes, 0u);
  allocator.Deallocate(block);
}

TEST(SlabAllocatorTest, ForeignAndFreedBlocksAreNotTakenBack) {
  SlabAllocator allocator;
  unsigned char* const block = Allocate(allocator, 1000);
  int foreign = 0;
  EXPECT_FALSE(allocator.Deallocate(&foreign));
  EXPECT_FALSE(allocator.Deallocate(block + 64));
  EXPECT_TRUE(allocator.Deallocate(block));
  EXPECT_FALSE(allocator.Deallocate(block));
  EXPECT_EQ(allocator.Statistics().live_bytes, 0u);
}

class HandleTest : public ::testing::Test {
 protected:
  sherd_code Export(const void* data, uint64_t bytes) {
    sherd_memory_handle_v0 packed;
    sherd_error_v0 error = NoError();
    const sherd_code code = allocator_.Export(data, bytes, &packed, &error);
    EXPECT_EQ(code == SHERD_OK && SlabHandle::Unpack(packed, &handle_),
              code == SHERD_OK);
    return code;
  }

  sherd_code Find(const SlabHandle& handle) {
    sherd_error_v0 error = NoError();
    return allocator_.Find(handle, &range_, &error);
  }

  SlabAllocator allocator_;
  SlabHandle handle_;
  sherd_bytes_v0 range_ = {};
};

TEST_F(HandleTest, NamesAPartOfABlockUntilThatIsFreed) {
  unsigned char* const block = Allocate(allocator_, 100'000);
  ASSERT_EQ(Export(block + 5000, 60'000), SHERD_OK);
  const SlabHandle part = handle_;
  ASSERT_EQ(Find(part), SHERD_OK);
  EXPECT_EQ(range_.data, block + 5000);
  EXPECT_EQ(range_.size, 60'000u);
  allocator_.Deallocate(block);
  EXPECT_EQ(Find(part), SHERD_INVALID_ARGUMENT);
  // The same bytes, another block.
  ASSERT_EQ(Allocate(allocator_, 100'000), block);
  EXPECT_EQ(Find(part), SHERD_INVALID_ARGUMENT);
  ASSERT_EQ(Export(block + 5000, 60'000), SHERD_OK);
  EXPECT_EQ(handle_.slot, part.slot);
  EXPECT_EQ(Find(part), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(Find(handle_), SHERD_OK);
  allocator_.Deallocate(block);
}

TEST_F(HandleTest, IsRefusedForMemoryOutsideOfOneBlock) {
  unsigned char* const block = Allocate(allocator_, 8192);
  unsigned char* const next = Allocate(allocator_, 8192);
  int foreign = 0;
  EXPECT_EQ(Export(&foreign, 4), SHERD_UNSUPPORTED);
  EXPECT_EQ(Export(block, 8193), SHERD_UNSUPPORTED);
  EXPECT_EQ(Export(block + 1, UINT64_MAX), SHERD_UNSUPPORTED);
  EXPECT_EQ(Export(block + 8192 + 8192, 1), SHERD_UNSUPPORTED);
  EXPECT_EQ(Export(block + 8191, 1), SHERD_OK);
  allocator_.Deallocate(block);
  allocator_.Deallocate(next);
  EXPECT_EQ(Export(block, 1), SHERD_UNSUPPORTED);
}

TEST_F(HandleTest, OfAnotherUserIsAnError) {
  unsigned char* const block = Allocate(allocator_, 8192);
  ASSERT_EQ(Export(block, 8192), SHERD_OK);
  const SlabHandle good = handle_;
  const auto expect_refused = [&](auto change) {
    SlabHandle bad = good;
    change(bad);
    EXPECT_EQ(Find(bad), SHERD_INVALID_ARGUMENT);
  };
  expect_refused([](SlabHandle& h) { ++h.owner; });
  expect_refused([](SlabHandle& h) { ++h.arena; });
  expect_refused([](SlabHandle& h) { ++h.block; });
  expect_refused([](SlabHandle& h) { ++h.slot; });
  expect_refused([](SlabHandle& h) { h.slot = kSlabSlots - 1; });
  expect_refused([](SlabHandle& h) { h.range.begin -= 1; });
  expect_refused([](SlabHandle& h) { h.range.begin = 0; });
  expect_refused([](SlabHandle& h) { h.range.begin = UINT64_MAX; });
  expect_refused([](SlabHandle& h) { h.range.size += 1; });
  expect_refused([](SlabHandle& h) { h.range.size = UINT64_MAX; });
  expect_refused([](SlabHandle& h) { h.range = {UINT64_MAX - 4096, 8192}; });
  EXPECT_EQ(Find(good), SHERD_OK);
  allocator_.Deallocate(block);
}

TEST_F(HandleTest, WhenAllSlotsAreTakenABlockCannotBeExported) {
  std::vector<unsigned char*> blocks;
  for (uint32_t i = 0; i <= kSlabSlots; ++i) {
    blocks.push_back(Allocate(allocator_, 64));
  }
  for (uint32_t i = 0; i < kSlabSlots; ++i) {
    ASSERT_EQ(Export(blocks[i], 64), SHERD_OK);
  }
  EXPECT_EQ(Export(blocks.back(), 64), SHERD_UNSUPPORTED);
  allocator_.Deallocate(blocks[7]);
  EXPECT_EQ(Export(blocks.back(), 64), SHERD_OK);
}

// Blocks of all sizes, each filled with its own number, are allocated and
// freed.
void LiveARandomLife(SlabAllocator& allocator, uint32_t seed, int steps) {
  std::mt19937 random(seed);
  struct Held {
    unsigned char* data;
    uint64_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  const auto drop = [&](size_t index) {
    const Held block = held[index];
    ASSERT_EQ(block.data[0], block.mark);
    ASSERT_EQ(block.data[block.bytes / 2], block.mark);
    ASSERT_EQ(block.data[block.bytes - 1], block.mark);
    ASSERT_TRUE(allocator.Deallocate(block.data));
    held[index] = held.back();
    held.pop_back();
  };
  for (int step = 0; step < steps; ++step) {
    if (held.size() < 10 || random() % 2 == 0) {
      const uint64_t bytes = 1 + random() % (uint64_t{1} << random() % 20);
      const uint64_t alignment = uint64_t{1} << random() % 13;
      const auto mark = static_cast<unsigned char>(random());
      unsigned char* const data = Allocate(allocator, bytes, alignment);
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u);
      std::memset(data, mark, bytes);
      held.push_back({data, bytes, mark});
    } else {
      ASSERT_NO_FATAL_FAILURE(drop(random() % held.size()));
    }
  }
  while (!held.empty()) ASSERT_NO_FATAL_FAILURE(drop(held.size() - 1));
}

TEST(SlabAllocatorTest, BlocksKeepTheirContentsThroughRandomCalls) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  SlabAllocator allocator({.arena_bytes = 16 * kMiB, .pool_bytes = 2 * kMiB});
  LiveARandomLife(allocator, seed, 4000);
  EXPECT_EQ(allocator.Statistics().live_bytes, 0u);
  EXPECT_LE(allocator.Statistics().arenas, 4u);
}

TEST(SlabAllocatorTest, ThreadsAllocateAndFreeAtOnce) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  SlabAllocator allocator({.arena_bytes = 16 * kMiB, .pool_bytes = 2 * kMiB});
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] { LiveARandomLife(allocator, seed + t, 700); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.Statistics().live_bytes, 0u);
}

// The exit code of a forked child that runs `body`: 0 if all is well.
int RunInChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(SlabForkTest, AChildHasMemoryOfItsOwnAndLeavesTheParents) {
  SlabAllocator& allocator = SlabAllocator::OfProcess();
  unsigned char* const block = Allocate(allocator, 3 * kMiB);
  unsigned char* const waiting = Allocate(allocator, kMiB);
  std::memset(block, 7, 3 * kMiB);
  allocator.Deallocate(waiting);
  EXPECT_EQ(
      RunInChild([&] {
        if (block[12345] != 7) return 1;
        unsigned char* const own = Allocate(allocator, kMiB);
        if (own == nullptr || own == waiting) return 2;
        std::memset(own, 8, kMiB);
        // The parent's: nothing happens to it.
        if (!allocator.Deallocate(block)) return 3;
        if (!allocator.Deallocate(own)) return 4;
        sherd_memory_handle_v0 handle;
        sherd_error_v0 error = NoError();
        if (allocator.Export(block, 8, &handle, &error) != SHERD_UNSUPPORTED) {
          return 5;
        }
        return 0;
      }),
      0);
  EXPECT_EQ(block[12345], 7);
  EXPECT_EQ(block[3 * kMiB - 1], 7);
  EXPECT_EQ(Allocate(allocator, kMiB), waiting);
  EXPECT_TRUE(allocator.Deallocate(block));
  EXPECT_TRUE(allocator.Deallocate(waiting));
}

void Limit(int resource, uint64_t most) {
  const rlimit limit = {most, most};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

TEST(SlabLimitTest, AFileThatMayNotBeSoLargeIsAnErrorAndNoSignal) {
  EXPECT_EQ(RunInChild([] {
              Limit(RLIMIT_FSIZE, 64 * kMiB);
              SlabAllocator allocator;
              unsigned char* const block = Allocate(allocator, 4 * kMiB);
              if (block == nullptr) return 1;
              std::memset(block, 1, 4 * kMiB);
              return TryToAllocate(allocator, 100 * kMiB) == SHERD_RESOURCE ? 0
                                                                            : 2;
            }),
            0);
}

TEST(SlabLimitTest, NoMoreDescriptorsIsAnError) {
  EXPECT_EQ(RunInChild([] {
              Limit(RLIMIT_NOFILE, 3);
              SlabAllocator allocator;
              return TryToAllocate(allocator, kMiB) == SHERD_RESOURCE ? 0 : 1;
            }),
            0);
}

uint64_t AddressesInUse() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST(SlabLimitTest, WhereAddressesAreFewArenasAreSmaller) {
  if (sherd::testing::kIsSanitized)
    GTEST_SKIP() << "a sanitizer takes all addresses";
  EXPECT_EQ(RunInChild([] {
              Limit(RLIMIT_AS, AddressesInUse() + (uint64_t{1} << 30));
              SlabAllocator allocator;
              unsigned char* const block = Allocate(allocator, 4 * kMiB);
              if (block == nullptr) return 1;
              std::memset(block, 1, 4 * kMiB);
              return TryToAllocate(allocator, uint64_t{2} << 30) ==
                             SHERD_RESOURCE
                         ? 0
                         : 2;
            }),
            0);
}

TEST(MemoryHeadroomTest, IsBetweenZeroAndTheMemoryOfTheMachine) {
  EXPECT_GT(MemoryHeadroom(), 0u);
  EXPECT_LT(MemoryHeadroom(), MachineMemory());
}

}  // namespace
}  // namespace sherd::internal
