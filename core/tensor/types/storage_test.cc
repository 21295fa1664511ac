#include "sherd/core/tensor/storage.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

// Leaves the pool as it was found, and empty in between.
class HeapPoolTest : public ::testing::Test {
 protected:
  HeapPoolTest() : capacity_(GetHeapStatistics().capacity_bytes) {
    SetHeapPoolCapacity(0);
    SetHeapPoolCapacity(64 * kMiB);
  }
  ~HeapPoolTest() override {
    SetHeapPoolCapacity(0);
    SetHeapPoolCapacity(capacity_);
  }

 private:
  const size_t capacity_;
};

std::shared_ptr<Storage> AllocateOrDie(size_t bytes) {
  return Storage::Allocate(bytes).value();
}

TEST(StorageTest, AllocatesAlignedWritableMemoryOfEverySize) {
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{4097},
                       kMiB - 1, kMiB, kMiB + 1, 3 * kMiB, 33 * kMiB}) {
    const std::shared_ptr<Storage> storage = AllocateOrDie(bytes);
    ASSERT_NE(storage->data(), nullptr);
    EXPECT_EQ(storage->size(), bytes);
    EXPECT_TRUE(storage->writable());
    EXPECT_TRUE(storage->device().is_cpu());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(storage->data()) % 64, 0u) << bytes;
    char* const data = static_cast<char*>(storage->data());
    data[0] = 1;
    data[bytes - 1] = 2;
  }
}

TEST(StorageTest, LargeBlocksBeginAtAHugePage) {
  const std::shared_ptr<Storage> storage = AllocateOrDie(5 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(storage->data()) % (2 * kMiB), 0u);
}

TEST(StorageTest, ZeroBytesNeedNoMemory) {
  const std::shared_ptr<Storage> storage = AllocateOrDie(0);
  EXPECT_EQ(storage->size(), 0u);
  EXPECT_TRUE(storage->writable());
}

TEST(StorageTest, ImpossibleSizesAreAnErrorAndNotACrash) {
  for (size_t bytes : {size_t{1} << 48, size_t{1} << 60, SIZE_MAX / 2,
                       SIZE_MAX - 4096, SIZE_MAX}) {
    EXPECT_THAT(Storage::Allocate(bytes),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         absl::StrCat(bytes, " bytes")));
  }
}

class CountingAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    if (bytes > 100) return absl::ResourceExhaustedError("more than 100");
    last_alignment = alignment;
    ++live;
    return HeapAllocator().Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes) override {
    freed_bytes += bytes;
    --live;
    HeapAllocator().Deallocate(data, bytes);
  }
  absl::string_view name() const override { return "counting"; }
  Device device() const override { return {DeviceType::kCuda, 3}; }

  int live = 0;
  size_t freed_bytes = 0;
  size_t last_alignment = 0;
};

TEST(StorageTest, MemoryGoesBackToItsAllocatorWithTheLastReference) {
  CountingAllocator allocator;
  std::shared_ptr<Storage> storage = Storage::Allocate(77, allocator).value();
  EXPECT_EQ(storage->device(), (Device{DeviceType::kCuda, 3}));
  EXPECT_EQ(allocator.last_alignment, Storage::kAlignment);
  std::shared_ptr<Storage> second = storage;
  storage.reset();
  EXPECT_EQ(allocator.live, 1);
  second.reset();
  EXPECT_EQ(allocator.live, 0);
  EXPECT_EQ(allocator.freed_bytes, 77u);
}

TEST(StorageTest, AnAllocatorsErrorIsPassedOn) {
  CountingAllocator allocator;
  EXPECT_THAT(Storage::Allocate(101, allocator),
              StatusIs(absl::StatusCode::kResourceExhausted, "more than 100"));
  EXPECT_EQ(Storage::Allocate(0, allocator).value()->size(), 0u);
  EXPECT_EQ(allocator.live, 0);
}

TEST(StorageTest, BorrowedMemoryIsKeptAliveAndNotFreed) {
  auto owner = std::make_shared<std::vector<int>>(10, 7);
  const std::weak_ptr<std::vector<int>> watch = owner;
  int* const data = owner->data();
  std::shared_ptr<Storage> storage =
      Storage::Borrow(data, 40, std::move(owner)).value();
  EXPECT_EQ(storage->data(), data);
  EXPECT_TRUE(storage->writable());
  EXPECT_FALSE(watch.expired());
  storage.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(StorageTest, ReadOnlyBorrowedMemoryIsMarked) {
  static constexpr int kData[4] = {1, 2, 3, 4};
  const std::shared_ptr<Storage> storage =
      Storage::BorrowReadOnly(kData, sizeof(kData)).value();
  EXPECT_EQ(storage->data(), kData);
  EXPECT_FALSE(storage->writable());
}

TEST(StorageTest, ANullPointerIsBorrowedOnlyWithoutBytes) {
  EXPECT_TRUE(Storage::Borrow(nullptr, 0).ok());
  EXPECT_THAT(Storage::Borrow(nullptr, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, "null pointer"));
  EXPECT_THAT(Storage::BorrowReadOnly(nullptr, 8),
              StatusIs(absl::StatusCode::kInvalidArgument, "null pointer"));
}

TEST_F(HeapPoolTest, AFreedLargeBlockServesTheNextRequestOfAboutItsSize) {
  const HeapStatistics before = GetHeapStatistics();
  std::shared_ptr<Storage> storage = AllocateOrDie(5 * kMiB);
  void* const data = storage->data();
  EXPECT_EQ(GetHeapStatistics().live_bytes, before.live_bytes + 6 * kMiB);
  storage.reset();
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 6 * kMiB);
  storage = AllocateOrDie(5 * kMiB + 123);
  EXPECT_EQ(storage->data(), data);
  const HeapStatistics after = GetHeapStatistics();
  EXPECT_EQ(after.fresh_blocks, before.fresh_blocks + 1);
  EXPECT_EQ(after.reused_blocks, before.reused_blocks + 1);
  EXPECT_EQ(after.cached_bytes, 0u);
}

TEST_F(HeapPoolTest, ABlockThatIsMuchTooLargeIsNotTaken) {
  void* const data = AllocateOrDie(20 * kMiB)->data();
  const std::shared_ptr<Storage> small = AllocateOrDie(4 * kMiB);
  EXPECT_NE(small->data(), data);
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 20 * kMiB);
}

TEST_F(HeapPoolTest, TheSmallestFittingBlockIsTaken) {
  std::shared_ptr<Storage> large = AllocateOrDie(18 * kMiB);
  std::shared_ptr<Storage> fitting = AllocateOrDie(16 * kMiB);
  void* const expected = fitting->data();
  large.reset();
  fitting.reset();
  EXPECT_EQ(AllocateOrDie(15 * kMiB)->data(), expected);
}

TEST_F(HeapPoolTest, ThePoolStaysBelowItsCapacityAndDropsTheOldest) {
  SetHeapPoolCapacity(10 * kMiB);
  std::shared_ptr<Storage> a = AllocateOrDie(4 * kMiB);
  std::shared_ptr<Storage> b = AllocateOrDie(4 * kMiB);
  std::shared_ptr<Storage> c = AllocateOrDie(4 * kMiB);
  void* const b_data = b->data();
  void* const c_data = c->data();
  a.reset();
  b.reset();
  c.reset();
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 8 * kMiB);
  const HeapStatistics before = GetHeapStatistics();
  a = AllocateOrDie(4 * kMiB);
  b = AllocateOrDie(4 * kMiB);
  EXPECT_EQ(GetHeapStatistics().reused_blocks, before.reused_blocks + 2);
  EXPECT_THAT((std::vector<void*>{a->data(), b->data()}),
              ::testing::UnorderedElementsAre(b_data, c_data));
}

TEST_F(HeapPoolTest, ABlockAboveTheCapacityIsNotKept) {
  SetHeapPoolCapacity(8 * kMiB);
  std::shared_ptr<Storage> kept = AllocateOrDie(4 * kMiB);
  kept.reset();
  AllocateOrDie(32 * kMiB).reset();
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 4 * kMiB);
  SetHeapPoolCapacity(0);
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 0u);
  AllocateOrDie(4 * kMiB).reset();
  EXPECT_EQ(GetHeapStatistics().cached_bytes, 0u);
}

TEST_F(HeapPoolTest, ConcurrentUsersNeverShareABlock) {
  const HeapStatistics before = GetHeapStatistics();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = kMiB * static_cast<size_t>(1 + (t + i) % 5);
        const std::shared_ptr<Storage> storage = AllocateOrDie(bytes);
        const int mark = t * 1000 + i;
        char* const end = static_cast<char*>(storage->data()) + bytes;
        std::memcpy(storage->data(), &mark, sizeof(mark));
        std::memcpy(end - sizeof(mark), &mark, sizeof(mark));
        std::this_thread::yield();
        EXPECT_EQ(std::memcmp(storage->data(), &mark, sizeof(mark)), 0);
        EXPECT_EQ(std::memcmp(end - sizeof(mark), &mark, sizeof(mark)), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const HeapStatistics after = GetHeapStatistics();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_LE(after.cached_bytes, after.capacity_bytes);
  EXPECT_EQ(after.fresh_blocks + after.reused_blocks - before.fresh_blocks -
                before.reused_blocks,
            800u);
}

class MapFileTest : public ::testing::Test {
 protected:
  MapFileTest()
      : path_(absl::StrCat(::testing::TempDir(), "/map_file_test_", getpid())) {
    for (int i = 0; i < 10000; ++i) {
      contents_.push_back(static_cast<char>(i * 7 + i / 256));
    }
    std::ofstream(path_, std::ios::binary) << contents_;
  }
  ~MapFileTest() override { unlink(path_.c_str()); }

  const std::string path_;
  std::string contents_;
};

TEST_F(MapFileTest, ShowsTheBytesOfTheFileFromAnyOffset) {
  for (const auto& [offset, length] :
       std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 10000}, {1, 9999}, {4095, 2}, {4096, 100}, {9999, 1}}) {
    const absl::StatusOr<std::shared_ptr<Storage>> storage =
        Storage::MapFile(path_, offset, length);
    ASSERT_TRUE(storage.ok()) << storage.status();
    EXPECT_EQ((*storage)->size(), length);
    EXPECT_FALSE((*storage)->writable());
    EXPECT_EQ(std::string(static_cast<char*>((*storage)->data()), length),
              contents_.substr(offset, length));
  }
}

TEST_F(MapFileTest, WritesGoToTheFileUnlessItIsReadOnly) {
  {
    const std::shared_ptr<Storage> storage =
        Storage::MapFile(path_, 5000, 10, /*read_only=*/false).value();
    EXPECT_TRUE(storage->writable());
    std::memcpy(storage->data(), "0123456789", 10);
  }
  std::ifstream file(path_, std::ios::binary);
  const std::string now((std::istreambuf_iterator<char>(file)), {});
  contents_.replace(5000, 10, "0123456789");
  EXPECT_EQ(now, contents_);
}

TEST_F(MapFileTest, TheMappingOutlivesTheName) {
  const std::shared_ptr<Storage> storage =
      Storage::MapFile(path_, 0, 10000).value();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  EXPECT_EQ(std::memcmp(storage->data(), contents_.data(), 10000), 0);
}

TEST_F(MapFileTest, NoBytesAreMappedButCheckedAllTheSame) {
  EXPECT_EQ(Storage::MapFile(path_, 10000, 0).value()->size(), 0u);
  EXPECT_THAT(Storage::MapFile(path_, 10001, 0),
              StatusIs(absl::StatusCode::kDataLoss, path_));
}

TEST_F(MapFileTest, EveryRefusalNamesTheFile) {
  const std::string directory = ::testing::TempDir();
  const std::string pipe = path_ + ".pipe";
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const struct {
    std::string path;
    uint64_t offset;
    uint64_t length;
    absl::StatusCode code;
  } kCases[] = {
      {path_ + ".missing", 0, 1, absl::StatusCode::kNotFound},
      {directory, 0, 1, absl::StatusCode::kInvalidArgument},
      {pipe, 0, 1, absl::StatusCode::kInvalidArgument},
      {path_, 0, 10001, absl::StatusCode::kDataLoss},
      {path_, 9999, 2, absl::StatusCode::kDataLoss},
      {path_, UINT64_MAX, 2, absl::StatusCode::kInvalidArgument},
      {path_, UINT64_MAX / 2, 2, absl::StatusCode::kInvalidArgument},
      {path_, 1, UINT64_MAX / 2, absl::StatusCode::kInvalidArgument},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Storage::MapFile(c.path, c.offset, c.length),
                StatusIs(c.code, c.path));
  }
  EXPECT_THAT(
      std::string(Storage::MapFile(path_, 9000, 2000).status().message()),
      HasSubstr("expected 2000 bytes at offset 9000, but it ends at "
                "10000"));
}

TEST_F(MapFileTest, AFileThatMayNotBeReadIsDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  ASSERT_EQ(chmod(path_.c_str(), 0), 0);
  EXPECT_THAT(Storage::MapFile(path_, 0, 1),
              StatusIs(absl::StatusCode::kPermissionDenied, path_));
}

}  // namespace
}  // namespace sherd
