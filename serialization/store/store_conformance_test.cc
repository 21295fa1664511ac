// What every CheckpointStore must do, on those that are built in and on one
// that a program registers; and what stores in directories do besides.

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/directory_store.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/power_loss_files.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::PowerLossFiles;
using sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<std::string> Read(CheckpointStore& store,
                                 const std::string& name) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         store.OpenForRead(name));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  std::string bytes(static_cast<size_t>(size), '\0');
  SHERD_RETURN_IF_ERROR(
      file->ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()),
                                     bytes.size())));
  return bytes;
}

void RegisterMemoryStore() {
  static const absl::Status registered = RegisterCheckpointStore(
      "conformance-memory",
      [](const std::string&)
          -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
        return std::make_unique<MemoryStore>();
      });
  EXPECT_THAT(registered, IsOk());
}

class StoreConformanceTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    RegisterMemoryStore();
    std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    directory_ = JoinPath(::testing::TempDir(), "store_" + name);
    std::filesystem::remove_all(directory_);
    // Not there yet.
    store_ = Open();
    ASSERT_NE(store_, nullptr);
  }

  bool IsInMemory() const {
    return absl::string_view(GetParam()) == "conformance-memory";
  }

  std::unique_ptr<CheckpointStore> Open() const {
    auto store = OpenCheckpointStore(absl::StrCat(GetParam(), ":", directory_));
    EXPECT_THAT(store, IsOk());
    return store.ok() ? *std::move(store) : nullptr;
  }

  std::string directory_;
  std::unique_ptr<CheckpointStore> store_;
  const LeaveOutSyncs no_syncs_;
};

TEST_P(StoreConformanceTest, ANewStoreIsEmpty) {
  EXPECT_THAT(store_->List(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store_->Stat("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->OpenForRead("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->Remove("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->RemoveUnfinished(), IsOk());
}

TEST_P(StoreConformanceTest, PutsReplacesReadsAndRemovesWholeObjects) {
  EXPECT_THAT(store_->Put("a", AsBytes("first one")), IsOk());
  EXPECT_THAT(store_->Put("b-1.x_Y", AsBytes("")), IsOk());
  EXPECT_THAT(Read(*store_, "a"), IsOkAndHolds("first one"));
  EXPECT_THAT(store_->Stat("a"), IsOkAndHolds(9));
  EXPECT_THAT(store_->Stat("b-1.x_Y"), IsOkAndHolds(0));
  EXPECT_THAT(store_->Put("a", AsBytes("other")), IsOk());
  EXPECT_THAT(Read(*store_, "a"), IsOkAndHolds("other"));
  EXPECT_THAT(store_->List(""), IsOkAndHolds(ElementsAre("a", "b-1.x_Y")));
  EXPECT_THAT(store_->Remove("a"), IsOk());
  EXPECT_THAT(Read(*store_, "a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->List(""), IsOkAndHolds(ElementsAre("b-1.x_Y")));
}

TEST_P(StoreConformanceTest, ListsByPrefixSorted) {
  for (const char* name : {"index-3", "index-10", "inde", "x", "index-"}) {
    EXPECT_THAT(store_->Put(name, AsBytes("1")), IsOk());
  }
  EXPECT_THAT(store_->List("index-"),
              IsOkAndHolds(ElementsAre("index-", "index-10", "index-3")));
  EXPECT_THAT(store_->List("y"), IsOkAndHolds(IsEmpty()));
}

TEST_P(StoreConformanceTest, ReadsRanges) {
  EXPECT_THAT(store_->Put("a", AsBytes("0123456789")), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, store_->OpenForRead("a"));
  std::string some(4, '\0');
  const auto buffer =
      absl::MakeSpan(reinterpret_cast<std::byte*>(some.data()), some.size());
  EXPECT_THAT(file->ReadAt(3, buffer), IsOk());
  EXPECT_EQ(some, "3456");
  EXPECT_THAT(file->ReadAt(7, buffer), StatusIs(absl::StatusCode::kDataLoss));
  const std::vector<FileRead> reads = {{.offset = 6, .buffer = buffer}};
  size_t done = 7;
  EXPECT_THAT(file->ReadMany(reads,
                             [&](size_t i) {
                               done = i;
                               return absl::OkStatus();
                             }),
              IsOk());
  EXPECT_EQ(done, 0u);
  EXPECT_EQ(some, "6789");
}

TEST_P(StoreConformanceTest, AnOpenObjectIsNeverAMixOfTwo) {
  EXPECT_THAT(store_->Put("a", AsBytes("old old old")), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, store_->OpenForRead("a"));
  EXPECT_THAT(store_->Put("a", AsBytes("NEW")), IsOk());
  std::string bytes(11, '\0');
  const absl::Status read = file->ReadAt(
      0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), 11));
  EXPECT_TRUE(!read.ok() || bytes == "old old old") << bytes;
}

TEST_P(StoreConformanceTest, AnObjectThatIsWrittenIsSeenOnceItIsWhole) {
  EXPECT_THAT(store_->Put("a", AsBytes("former")), IsOk());
  for (const char* name : {"a", "b"}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto writer, store_->BeginPut(name));
    EXPECT_THAT(writer->Reserve(100), IsOk());
    // Beginning and end, by several threads.
    std::vector<std::thread> threads;
    for (int i = 3; i >= 0; --i) {
      threads.emplace_back([&, i] {
        EXPECT_THAT(writer->WriteAt(5 * i, AsBytes(absl::StrCat("part", i))),
                    IsOk());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(writer->StartWriteback(0, 20), IsOk());
    EXPECT_THAT(writer->Sync(), IsOk());
    const auto other = IsInMemory() ? nullptr : Open();
    CheckpointStore& seen = other != nullptr ? *other : *store_;
    EXPECT_THAT(seen.List(""), IsOkAndHolds(ElementsAre("a")));
    if (std::string(name) == "a") {
      EXPECT_THAT(Read(seen, "a"), IsOkAndHolds("former"));
    } else {
      EXPECT_THAT(seen.Stat("b"), StatusIs(absl::StatusCode::kNotFound));
    }
    EXPECT_THAT(writer->Finish(), IsOk());
    EXPECT_THAT(Read(seen, name), IsOkAndHolds("part0part1part2part3"));
    if (std::string(name) == "a") continue;
    EXPECT_THAT(seen.List(""), IsOkAndHolds(ElementsAre("a", "b")));
  }
}

TEST_P(StoreConformanceTest, GapsOfAnObjectAreZeros) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto writer, store_->BeginPut("a"));
  EXPECT_THAT(writer->WriteAt(3, AsBytes("x")), IsOk());
  EXPECT_THAT(writer->Finish(), IsOk());
  EXPECT_THAT(Read(*store_, "a"), IsOkAndHolds(std::string("\0\0\0x", 4)));
}

TEST_P(StoreConformanceTest, OneThatIsNotFinishedNeverAppears) {
  {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto writer, store_->BeginPut("a"));
    EXPECT_THAT(writer->WriteAt(0, AsBytes("half")), IsOk());
  }
  EXPECT_THAT(store_->List(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store_->Stat("a"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(StoreConformanceTest, OfManyThatPutIfAbsentOneSucceeds) {
  for (int round = 0; round < 20; ++round) {
    const std::string name = absl::StrCat("a", round);
    std::vector<absl::Status> put(8);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < put.size(); ++i) {
      threads.emplace_back([&, i] {
        put[i] = store_->PutIfAbsent(name, AsBytes(absl::StrCat("of ", i)));
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto winner = std::find_if(
        put.begin(), put.end(), [](const absl::Status& s) { return s.ok(); });
    ASSERT_NE(winner, put.end());
    EXPECT_THAT(Read(*store_, name),
                IsOkAndHolds(absl::StrCat("of ", winner - put.begin())));
    for (auto it = put.begin(); it != put.end(); ++it) {
      if (it == winner) continue;
      EXPECT_THAT(*it, StatusIs(absl::StatusCode::kAlreadyExists));
    }
    EXPECT_THAT(store_->Remove(name), IsOk());
    EXPECT_THAT(store_->PutIfAbsent(name, AsBytes("again")), IsOk());
  }
}

TEST_P(StoreConformanceTest, OtherNamesAreRefused) {
  for (const std::string& name :
       {std::string(), std::string(".a"), std::string("a/b"), std::string(".."),
        std::string("a b"), std::string("a\n"), std::string("a\0b", 3),
        std::string("\xc3\xa4"), std::string(201, 'a')}) {
    SCOPED_TRACE(name);
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(store_->Put(name, AsBytes("x")), refused);
    EXPECT_THAT(store_->PutIfAbsent(name, AsBytes("x")), refused);
    EXPECT_THAT(store_->BeginPut(name), refused);
    EXPECT_THAT(store_->OpenForRead(name), refused);
    EXPECT_THAT(store_->Stat(name), refused);
    EXPECT_THAT(store_->Remove(name), refused);
  }
  EXPECT_THAT(store_->Put(std::string(200, 'a'), AsBytes("x")), IsOk());
}

INSTANTIATE_TEST_SUITE_P(All, StoreConformanceTest,
                         ::testing::Values("file", "objects",
                                           "conformance-memory"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// What is not of every store.
class DirectoryStoreTest : public StoreConformanceTest {
 protected:
  // Runs `body` in a process of its own; its exit code.
  static int InChild(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_P(DirectoryStoreTest, OfManyProcessesThatPutIfAbsentOneSucceeds) {
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int won = 0;
      for (int round = 0; round < 40; ++round) {
        const absl::Status put = store_->PutIfAbsent(
            absl::StrCat("a", round), AsBytes(absl::StrCat("process ", i)));
        if (!put.ok() && !absl::IsAlreadyExists(put)) _exit(255);
        won += put.ok() ? 1 : 0;
      }
      _exit(won);
    }
    children.push_back(child);
  }
  int won = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_NE(WEXITSTATUS(status), 255);
    won += WEXITSTATUS(status);
  }
  EXPECT_EQ(won, 40);
  EXPECT_THAT(store_->List(""), IsOkAndHolds(::testing::SizeIs(40)));
}

TEST_P(DirectoryStoreTest, UploadsOfDeadProcessesAreRemoved) {
  ASSERT_EQ(InChild([this] {
              auto writer = store_->BeginPut("a");
              // Its process ends, and not its destructor.
              return writer.ok() && writer->release() != nullptr ? 0 : 1;
            }),
            0);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto own, store_->BeginPut("b"));
  SHERD_ASSERT_OK_AND_ASSIGN(std::vector<std::string> names,
                             FileSystem::Posix().List(directory_));
  EXPECT_THAT(names,
              ElementsAre(StartsWith(".upload."), StartsWith(".upload.")));
  EXPECT_THAT(store_->List(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store_->RemoveUnfinished(), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(names, FileSystem::Posix().List(directory_));
  EXPECT_EQ(names.size(), 1u) << "of a process that lives nothing is removed";
  EXPECT_THAT(own->WriteAt(0, AsBytes("x")), IsOk());
  EXPECT_THAT(own->Finish(), IsOk());
  EXPECT_THAT(FileSystem::Posix().List(directory_),
              IsOkAndHolds(ElementsAre("b")));
}

TEST_P(DirectoryStoreTest, UploadsOfAnotherLivingProcessStay) {
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto writer = store_->BeginPut("a");
    char byte = writer.ok() ? 1 : 0;
    if (write(ready[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 1) _exit(1);
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 1);
  EXPECT_THAT(store_->RemoveUnfinished(), IsOk());
  EXPECT_THAT(FileSystem::Posix().List(directory_),
              IsOkAndHolds(ElementsAre(StartsWith(".upload."))));
  EXPECT_EQ(write(end[1], &byte, 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(store_->RemoveUnfinished(), IsOk());
  EXPECT_THAT(FileSystem::Posix().List(directory_), IsOkAndHolds(IsEmpty()));
  for (const int fd : {ready[0], ready[1], end[0], end[1]}) close(fd);
}

TEST_P(DirectoryStoreTest, UploadsOfProcessesOutOfSightStayForADay) {
  EXPECT_THAT(store_->Put("a", AsBytes("x")), IsOk());
  const int64_t now = absl::ToUnixMillis(absl::Now());
  constexpr char kForeign[] = ".upload.5b0dc2a4-19d3_pid:[4026531836]_4711_98.";
  const std::string young = absl::StrCat(kForeign, now - 23 * 3600000, ".0");
  const std::string old = absl::StrCat(kForeign, now - 25 * 3600000, ".1");
  const std::string strange = ".upload.strange";
  for (const std::string& name : {young, old, strange}) {
    std::ofstream(JoinPath(directory_, name)) << "x";
  }
  EXPECT_THAT(store_->RemoveUnfinished(), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names,
                             FileSystem::Posix().List(directory_));
  EXPECT_THAT(names, ElementsAre(young, strange, "a"));
}

TEST_P(DirectoryStoreTest, OnlyRegularFilesWithNamesOfObjectsAreSeen) {
  std::filesystem::create_directories(JoinPath(directory_, "sub"));
  std::ofstream(JoinPath(directory_, "with space")) << "x";
  ASSERT_EQ(mkfifo(JoinPath(directory_, "pipe").c_str(), 0600), 0);
  EXPECT_THAT(store_->Put("a", AsBytes("x")), IsOk());
  EXPECT_THAT(store_->List(""), IsOkAndHolds(ElementsAre("a")));
  for (const char* name : {"sub", "pipe"}) {
    EXPECT_THAT(store_->Stat(name), StatusIs(absl::StatusCode::kNotFound));
  }
  std::ofstream(JoinPath(::testing::TempDir(), "plain")) << "x";
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto no_directory,
      OpenCheckpointStore(absl::StrCat(
          GetParam(), ":", JoinPath(::testing::TempDir(), "plain"))));
  EXPECT_THAT(no_directory->List(""),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Whichever operation on files fails, the object is the old or the new one, or
// absent, and nothing else is left.
TEST_P(DirectoryStoreTest, AnErrorLeavesNothingBehind) {
  bool hit = true;
  for (int64_t call = 1; hit; ++call) {
    SCOPED_TRACE(call);
    const std::string name = absl::StrCat("a", call);
    EXPECT_THAT(store_->Put("b", AsBytes("old")), IsOk());
    {
      const FailFileOperation fault("*", "*", absl::InternalError("injected"),
                                    {.nth = call, .optional = true});
      const absl::Status absent = store_->PutIfAbsent(name, AsBytes("new"));
      const absl::Status put = store_->Put("b", AsBytes("new"));
      EXPECT_TRUE(absent.ok() || put.ok());
      hit = fault.happened();
      EXPECT_EQ(hit, !absent.ok() || !put.ok());
    }
    const auto now = Read(*store_, name);
    EXPECT_TRUE(absl::IsNotFound(now.status()) || now.value_or("") == "new");
    EXPECT_THAT(Read(*store_, "b"),
                IsOkAndHolds(::testing::AnyOf("old", "new")));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names,
                               FileSystem::Posix().List(directory_));
    EXPECT_THAT(names, Not(Contains(StartsWith("."))));
  }
}

TEST_P(DirectoryStoreTest, AnObjectWhoseNameMayNotLastIsAnErrorOfItsOwn) {
  EXPECT_THAT(store_->Put("b", AsBytes("old")), IsOk());
  const FailFileOperation fault("sync_directory", "*",
                                absl::InternalError("injected"));
  EXPECT_THAT(store_->Put("b", AsBytes("new")),
              StatusIs(absl::StatusCode::kUnknown, "loss of power"));
  EXPECT_THAT(Read(*store_, "b"), IsOkAndHolds("new"));
}

TEST_P(DirectoryStoreTest, OneThatIsRemovedMeanwhileIsCreatedAgain) {
  EXPECT_THAT(store_->Put("a", AsBytes("x")), IsOk());
  std::filesystem::remove_all(directory_);
  EXPECT_THAT(store_->Put("b", AsBytes("x")), IsOk());
  EXPECT_THAT(store_->List(""), IsOkAndHolds(ElementsAre("b")));
  EXPECT_THAT(store_->FreeBytes(), IsOkAndHolds(::testing::Gt(0)));
}

TEST_P(DirectoryStoreTest, ObjectsSurviveALossOfPower) {
  const std::string survived = directory_ + "_survived";
  std::filesystem::create_directories(directory_);
  PowerLossFiles files(FileSystem::Posix(), directory_);
  DirectoryStore store(files, JoinPath(directory_, "new/one"));
  EXPECT_THAT(store.Put("a", AsBytes("whole")), IsOk());
  EXPECT_THAT(store.PutIfAbsent("b", AsBytes("whole")), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto writer, store.BeginPut("c"));
  EXPECT_THAT(writer->WriteAt(0, AsBytes("whole")), IsOk());
  EXPECT_THAT(writer->Finish(), IsOk());
  for (uint64_t seed = 0; seed < 4; ++seed) {
    ASSERT_THAT(files.WriteSurvivors(seed, survived), IsOk());
    DirectoryStore after(FileSystem::Posix(), JoinPath(survived, "new/one"));
    for (const char* name : {"a", "b", "c"}) {
      EXPECT_THAT(Read(after, name), IsOkAndHolds("whole")) << seed << name;
    }
  }
}

// A write to the disk that nobody needs takes as long as the data is large.
TEST_P(DirectoryStoreTest, WhatNeedNotBeDurableIsNotSynced) {
  for (const bool durable : {false, true}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto writer, store_->BeginPut("a"));
    EXPECT_THAT(writer->WriteAt(0, AsBytes("whole")), IsOk());
    const CountPassages syncs("file/sync*", {.optional = true});
    EXPECT_THAT(durable ? writer->Finish() : writer->FinishUnsynced(), IsOk());
    EXPECT_EQ(syncs.count(), durable ? 2 : 0) << "the file and its directory";
    EXPECT_THAT(Read(*store_, "a"), IsOkAndHolds("whole"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DirectoryStoreTest,
                         ::testing::Values("file", "objects"),
                         [](const auto& info) { return info.param; });

TEST(StoreAddressTest, OtherSchemesAndPlacesAreRefused) {
  for (const std::string& address :
       {std::string("nowhere:x"), std::string("plain"), std::string("objects:"),
        std::string(), std::string("s3://bucket/x")}) {
    EXPECT_THAT(OpenCheckpointStore(address),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << address;
  }
  const auto factory = [](const std::string&)
      -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
    return absl::UnavailableError("asked");
  };
  for (const char* scheme : {"", "x", "S3", "3s", "a:b", "a/b"}) {
    EXPECT_THAT(RegisterCheckpointStore(scheme, factory),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << scheme;
  }
  EXPECT_THAT(RegisterCheckpointStore("null", nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* scheme : {"file", "objects"}) {
    EXPECT_THAT(RegisterCheckpointStore(scheme, factory),
                StatusIs(absl::StatusCode::kAlreadyExists));
  }
  EXPECT_THAT(RegisterCheckpointStore("asked", factory), IsOk());
  EXPECT_THAT(RegisterCheckpointStore("asked", factory),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(OpenCheckpointStore("asked:x"),
              StatusIs(absl::StatusCode::kUnavailable, "asked"));
}

}  // namespace
}  // namespace sherd
