#include "sherd/core/comm/file_store.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Milliseconds(20)); }

class FileStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { std::remove(path_.c_str()); }

  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  bool FileExists() const {
    struct stat info;
    return stat(path_.c_str(), &info) == 0;
  }

  const std::string path_ = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(),
      ".store");
};

TEST_F(FileStoreTest, FileHasTheDocumentedBytes) {
  FileStore store(path_);
  ASSERT_THAT(store.Set("ab", "xyz"), IsOk());
  ASSERT_THAT(store.Delete("ab"), IsOkAndHolds(true));
  const std::string expected = std::string("sherd store v1.\n") +
                               std::string("\2\0\0\0\3\0\0\0abxyz", 13) +
                               std::string(
                                   "\2\0\0\0\xff\xff\xff\xff"
                                   "ab",
                                   10);
  std::string contents = Contents();
  ASSERT_GT(contents.size(), 24u);
  contents.erase(16, 8);  // the file's own random number
  EXPECT_EQ(contents, expected);
}

TEST_F(FileStoreTest, TwoStoresOnOneFileSeeEachOther) {
  FileStore a(path_), b(path_);
  ASSERT_THAT(a.Set("k", "1"), IsOk());
  EXPECT_THAT(b.Get("k", Soon()), IsOkAndHolds("1"));
  ASSERT_THAT(b.Set("k", "2"), IsOk());
  EXPECT_THAT(a.Get("k", Soon()), IsOkAndHolds("2"));
}

TEST_F(FileStoreTest, CutsOffTheRecordOfAKilledWriter) {
  FileStore a(path_);
  ASSERT_THAT(a.Set("k", "value"), IsOk());
  const std::string whole = Contents();
  for (size_t extra = 1; extra < 13; ++extra) {
    Write(whole + std::string("\2\0\0\0\3\0\0\0abxyz", 13).substr(0, extra));
    FileStore b(path_);
    EXPECT_THAT(b.Get("k", Soon()), IsOkAndHolds("value"));
    ASSERT_THAT(b.Set("l", "w"), IsOk());
    FileStore c(path_);
    EXPECT_THAT(c.Get("l", Soon()), IsOkAndHolds("w"));
  }
}

TEST_F(FileStoreTest, RefusesAFileThatIsNoStore) {
  Write("#!/bin/sh\necho this is no store\n");
  FileStore store(path_);
  EXPECT_THAT(store.Set("k", "v"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(FileStoreTest, RefusesARecordWithAbsurdLengths) {
  Write("sherd store v1.\n12345678" +
        std::string("\xff\xff\xff\x7f\1\0\0\0", 8));
  FileStore store(path_);
  EXPECT_THAT(store.Contains("k"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("offset 24")));
}

TEST_F(FileStoreTest, ReportsADirectoryThatIsNotThere) {
  FileStore store("/nonexistent/dir/store");
  EXPECT_THAT(store.Set("k", "v"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent")));
}

TEST_F(FileStoreTest, WaitingDoesNotGrowTheFile) {
  FileStore store(path_);
  ASSERT_THAT(store.Set("k", "v"), IsOk());
  const size_t before = Contents().size();
  EXPECT_THAT(store.Wait({"absent"}, Soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(Contents().size(), before);
}

TEST_F(FileStoreTest, TheLastToRetireRemovesKeysAndFile) {
  FileStore a(path_), b(path_);
  ASSERT_THAT(a.Set("g/1", "v"), IsOk());
  ASSERT_THAT(a.Retire("g", 2), IsOk());
  EXPECT_THAT(b.Contains("g/1"), IsOkAndHolds(true));
  ASSERT_THAT(b.Retire("g", 2), IsOk());
  EXPECT_FALSE(FileExists());
}

TEST_F(FileStoreTest, RetiringKeepsTheKeysOfOthers) {
  FileStore a(path_), b(path_);
  ASSERT_THAT(a.Set("g/1", "v"), IsOk());
  ASSERT_THAT(b.Set("h/1", "w"), IsOk());
  ASSERT_THAT(a.Retire("g", 1), IsOk());
  EXPECT_TRUE(FileExists());
  EXPECT_THAT(b.Contains("g/1"), IsOkAndHolds(false));
  EXPECT_THAT(b.Get("h/1", Soon()), IsOkAndHolds("w"));
}

TEST_F(FileStoreTest, AStoreWhoseFileWasRemovedStartsAfresh) {
  FileStore a(path_), b(path_);
  ASSERT_THAT(a.Set("g/1", "v"), IsOk());
  EXPECT_THAT(b.Contains("g/1"), IsOkAndHolds(true));
  ASSERT_THAT(a.Retire("g", 1), IsOk());
  ASSERT_THAT(a.Set("h/1", "w"), IsOk());
  EXPECT_THAT(b.Contains("g/1"), IsOkAndHolds(false));
  EXPECT_THAT(b.Contains("h/1"), IsOkAndHolds(true));
}

}  // namespace
}  // namespace sherd
