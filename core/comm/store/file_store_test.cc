#include "sherd/core/comm/store/file_store.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
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
  void SetUp() override {
    std::remove(path_.c_str());
    std::remove((path_ + ".new").c_str());
  }

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

TEST_F(FileStoreTest, RefusesAFileThatIsNotAStore) {
  Write("#!/bin/sh\necho this is not a store\n");
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

TEST_F(FileStoreTest, HundredsOfGenerationsDoNotGrowTheFile) {
  FileStore a(path_), b(path_);
  ASSERT_THAT(a.Set("keep", "me"), IsOk());
  const std::string address(500, 'x');
  size_t largest = 0;
  for (int session = 0; session < 600; ++session) {
    const std::string prefix = absl::StrCat("session/", session);
    ASSERT_THAT(a.Set(absl::StrCat(prefix, "/a"), address), IsOk());
    ASSERT_THAT(b.Set(absl::StrCat(prefix, "/b"), address), IsOk());
    ASSERT_THAT(a.Get(absl::StrCat(prefix, "/b"), Soon()),
                IsOkAndHolds(address));
    ASSERT_THAT(a.Retire(prefix, 2), IsOk());
    ASSERT_THAT(b.Retire(prefix, 2), IsOk());
    struct stat info;
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    largest = std::max(largest, static_cast<size_t>(info.st_size));
  }
  // They wrote ten times as much.
  EXPECT_LT(largest, 70000u);
  FileStore late(path_);
  EXPECT_THAT(late.Get("keep", Soon()), IsOkAndHolds("me"));
  EXPECT_THAT(b.DeletePrefix("session"), IsOkAndHolds(0));
}

TEST_F(FileStoreTest, CompactionKeepsLiveEntries) {
  FileStore a(path_), reader(path_);
  ASSERT_THAT(reader.Contains("k0"), IsOkAndHolds(false));
  for (int i = 0; i < 50; ++i) {
    ASSERT_THAT(a.Set(absl::StrCat("k", i), absl::StrCat("v", i * 3)), IsOk());
  }
  ASSERT_THAT(a.Set("empty", ""), IsOk());
  ASSERT_THAT(a.Set("gone", "x"), IsOk());
  ASSERT_THAT(a.Delete("gone"), IsOkAndHolds(true));
  const std::string before = Contents().substr(16, 8);
  for (int i = 0; i < 6000; ++i) ASSERT_THAT(a.Add("n", 1), IsOk());
  ASSERT_NE(Contents().substr(16, 8), before) << "it was not compacted";
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(reader.Get(absl::StrCat("k", i), Soon()),
                IsOkAndHolds(absl::StrCat("v", i * 3)));
  }
  EXPECT_THAT(reader.Get("empty", Soon()), IsOkAndHolds(""));
  EXPECT_THAT(reader.Contains("gone"), IsOkAndHolds(false));
  EXPECT_THAT(reader.Get("n", Soon()), IsOkAndHolds("6000"));
}

TEST_F(FileStoreTest, AFileFullOfLiveKeysIsLeftAsItIs) {
  FileStore a(path_);
  ASSERT_THAT(a.Set("first", ""), IsOk());
  const std::string before = Contents().substr(16, 8);
  for (int i = 0; i < 300; ++i) {
    ASSERT_THAT(a.Set(absl::StrCat("k", i), std::string(1000, 'v')), IsOk());
  }
  EXPECT_EQ(Contents().substr(16, 8), before);
}

TEST_F(FileStoreTest, TheFileOfAKilledCompactionIsReplaced) {
  std::ofstream(path_ + ".new", std::ios::binary)
      << "sherd store v1.\n87654321" << std::string(100000, 'x');
  FileStore a(path_);
  for (int i = 0; i < 6000; ++i) ASSERT_THAT(a.Add("n", 1), IsOk());
  EXPECT_LT(Contents().size(), 70000u);
  EXPECT_THAT(FileStore(path_).Get("n", Soon()), IsOkAndHolds("6000"));
}

TEST_F(FileStoreTest, WithoutRoomForACompactionTheFileGrows) {
  // A directory at the path of the new file.
  const std::string next = path_ + ".new";
  ASSERT_EQ(mkdir(next.c_str(), 0700), 0);
  FileStore a(path_);
  for (int i = 0; i < 6000; ++i) ASSERT_THAT(a.Add("n", 1), IsOk());
  EXPECT_GT(Contents().size(), 65536u);
  ASSERT_EQ(rmdir(next.c_str()), 0);
  for (int i = 0; i < 10000; ++i) ASSERT_THAT(a.Add("n", 1), IsOk());
  EXPECT_LT(Contents().size(), 140000u);
  EXPECT_THAT(FileStore(path_).Get("n", Soon()), IsOkAndHolds("16000"));
}

TEST_F(FileStoreTest, APipeAtThePathIsRefused) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  FileStore store(path_);
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, "a pipe");
  EXPECT_THAT(store.Set("k", "v"), refused);
  EXPECT_THAT(store.Contains("k"), refused);
}

// Opened to be written, a pipe would wait for a reader, with the store locked.
TEST_F(FileStoreTest, ACompactionDoesNotWaitForAPipe) {
  ASSERT_EQ(mkfifo((path_ + ".new").c_str(), 0600), 0);
  FileStore store(path_);
  for (int i = 0; i < 6000; ++i) ASSERT_THAT(store.Add("n", 1), IsOk());
  EXPECT_THAT(FileStore(path_).Get("n", Soon()), IsOkAndHolds("6000"));
}

// Writers die at any moment, many of them while they compact.
TEST_F(FileStoreTest, SurvivesWritersThatAreKilled) {
  constexpr int kRounds = 25;
  const std::string filler(2000, 'f');
  FileStore store(path_);
  int64_t last = 0;
  for (int round = 0; round < kRounds; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      FileStore mine(path_);
      for (int i = 0;; ++i) {
        if (!mine.Set(absl::StrCat("filler", i % 3), filler).ok() ||
            !mine.Add("n", 1).ok()) {
          _exit(1);
        }
        // A compaction every 16 rounds; reported once a few are done.
        if (i == 40 && write(ready[1], "x", 1) != 1) _exit(1);
      }
    }
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    // The child continues while this thread adds: it dies somewhere in the
    // middle, each time elsewhere.
    for (int i = 0; i <= round; ++i) ASSERT_THAT(store.Add("own", 1), IsOk());
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed";
    close(ready[0]);
    close(ready[1]);
    FileStore fresh(path_);
    const absl::StatusOr<int64_t> n = fresh.Add("n", 0);
    ASSERT_THAT(n, IsOk());
    EXPECT_GT(*n, last);
    EXPECT_THAT(store.Add("n", 0), IsOkAndHolds(*n));
    EXPECT_THAT(store.Get("filler0", Soon()), IsOkAndHolds(filler));
    last = *n;
  }
  EXPECT_THAT(store.Add("own", 0), IsOkAndHolds(kRounds * (kRounds + 1) / 2));
  EXPECT_LT(Contents().size(), 80000u);
}

}  // namespace
}  // namespace sherd
