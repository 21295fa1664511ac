#include "sherd/serialization/store/routed_files.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status Write(FileSystem& files, const std::string& path,
                   absl::string_view bytes) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
  return file->Close();
}

class RoutedFilesTest : public ::testing::Test {
 protected:
  RoutedFilesTest()
      : root_(
            JoinPath(::testing::TempDir(),
                     absl::StrCat("routed_", ::testing::UnitTest::GetInstance()
                                                 ->current_test_info()
                                                 ->name()))) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }

  const LeaveOutSyncs no_syncs_;
  const std::string root_;
  RoutedFiles files_{FileSystem::Posix()};
};

TEST_F(RoutedFilesTest, PlainPathsAndThoseOfFileAreThoseOfTheBase) {
  const std::string path = JoinPath(root_, "a");
  ASSERT_THAT(Write(files_, "file:" + path, "x"), IsOk());
  EXPECT_THAT(ReadFile(files_, path, 10), IsOkAndHolds("x"));
  EXPECT_THAT(ReadFile(FileSystem::Posix(), path, 10), IsOkAndHolds("x"));
  EXPECT_THAT(files_.Rename(path, "file:" + path + "b"), IsOk());
  EXPECT_THAT(files_.List("file:" + root_), IsOkAndHolds(ElementsAre("ab")));
  EXPECT_THAT(files_.KindOf("file:" + root_),
              IsOkAndHolds(FileKind::kDirectory));
  EXPECT_THAT(files_.FreeBytes("file:" + root_), IsOk());
  EXPECT_THAT(CreateDurableDirectories(files_, "file:" + root_ + "/c/d"),
              IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(JoinPath(root_, "c/d")));
}

TEST_F(RoutedFilesTest, AStoreOfObjectsIsADirectoryOfItsOwn) {
  const std::string store = "objects:" + JoinPath(root_, "x/y");
  EXPECT_THAT(CreateDurableDirectories(files_, store), IsOk());
  EXPECT_THAT(files_.List(store), IsOkAndHolds(IsEmpty()));
  ASSERT_THAT(Write(files_, store + "/m.tmp", "1"), IsOk());
  EXPECT_THAT(files_.Rename(store + "/m.tmp", store + "/m.sherd"), IsOk());
  EXPECT_THAT(ReadFile(files_, store + "/m.sherd", 10), IsOkAndHolds("1"));
  EXPECT_THAT(files_.List(store), IsOkAndHolds(ElementsAre("m.sherd")));
  EXPECT_THAT(files_.List(store + "//"), IsOkAndHolds(ElementsAre("m.sherd")));
  EXPECT_THAT(FileSystem::Posix().List(JoinPath(root_, "x/y")),
              IsOkAndHolds(Contains("index-00000000000000000001.sherd")));
  EXPECT_THAT(files_.KindOf(store + "/m.sherd"),
              IsOkAndHolds(FileKind::kRegular));
  EXPECT_THAT(files_.KindOf(store + "/n.sherd"), IsOkAndHolds(FileKind::kNone));
  EXPECT_THAT(SyncRenamed(files_, store + "/m.sherd"), IsOk());
  EXPECT_THAT(files_.Rename(store + "/m.tmp", root_ + "/m.sherd"),
              StatusIs(absl::StatusCode::kInvalidArgument, "in one store"));
  EXPECT_THAT(files_.RemoveAll(store), IsOk());
  EXPECT_THAT(files_.List(store), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(files_.KindOf("objects:run.sherd"),
              IsOkAndHolds(FileKind::kDirectory))
      << "what is in no store is one";
}

TEST_F(RoutedFilesTest, APlainDirectoryOfSuchANameIsReachedByDot) {
  const std::filesystem::path former = std::filesystem::current_path();
  std::filesystem::current_path(root_);
  EXPECT_THAT(files_.CreateDirectories("./objects:x"), IsOk());
  EXPECT_THAT(Write(files_, "./objects:x/m.sherd", "1"), IsOk());
  EXPECT_THAT(Write(files_, "unknown:y", "1"), IsOk()) << "is a plain name";
  EXPECT_TRUE(std::filesystem::is_directory("objects:x"));
  EXPECT_THAT(files_.List("objects:x"), IsOkAndHolds(IsEmpty()))
      << "of the directory x, which is not there";
  std::filesystem::current_path(former);
}

TEST_F(RoutedFilesTest, PathsThatLeadNowhereAreRefused) {
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(files_.List("s3://bucket/x"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("RegisterCheckpointStore")));
  for (const char* path : {"objects:", "file:", "objects:x"}) {
    EXPECT_THAT(files_.Create(path), refused) << path;
    EXPECT_THAT(files_.OpenForRead(path), refused) << path;
  }
  EXPECT_THAT(files_.List("objects:"), refused);
  EXPECT_THAT(files_.SyncDirectory("objects:"), refused);
  EXPECT_THAT(files_.KindOf("objects:"), refused);
}

TEST_F(RoutedFilesTest, OpensARegisteredStoreOncePerPlace) {
  static int opened = 0;
  ASSERT_THAT(RegisterCheckpointStore(
                  "routed-memory",
                  [](const std::string& location)
                      -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
                    if (location == "//bucket/away" && opened++ == 0) {
                      return absl::UnavailableError("not now");
                    }
                    return std::make_unique<MemoryStore>();
                  }),
              IsOk());
  const std::string store = "routed-memory://bucket/away";
  EXPECT_THAT(files_.List(store), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CreateDurableDirectories(files_, store), IsOk());
  ASSERT_THAT(Write(files_, store + "/a.pin", ""), IsOk());
  EXPECT_THAT(files_.List(store), IsOkAndHolds(ElementsAre("a.pin")));
  EXPECT_THAT(files_.List("routed-memory://bucket/b"), IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(opened, 2);
}

// Such as one that reads how to reach its service from another store.
TEST_F(RoutedFilesTest, AFactoryMayUseOtherStores) {
  static RoutedFiles* files = nullptr;
  static std::string settings;
  files = &files_;
  settings = "objects:" + root_;
  ASSERT_THAT(Write(files_, settings + "/settings.pin", "x"), IsOk());
  ASSERT_THAT(RegisterCheckpointStore(
                  "routed-nested",
                  [](const std::string& location)
                      -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
                    SHERD_RETURN_IF_ERROR(
                        location == "itself"
                            ? files->List("routed-nested:itself").status()
                            : ReadFile(*files, settings + "/settings.pin", 10)
                                  .status());
                    return std::make_unique<MemoryStore>();
                  }),
              IsOk());
  EXPECT_THAT(files_.List("routed-nested:other"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(files_.List("routed-nested:itself"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected other paths")));
}

TEST_F(RoutedFilesTest, FactoriesThatUseOneAnotherOnTwoThreadsAreRefused) {
  static RoutedFiles* files = nullptr;
  files = &files_;
  // Both threads run a factory before either uses the other's store.
  static std::atomic<int> begun = 0;
  const auto factory = [](const std::string& location)
      -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    SHERD_RETURN_IF_ERROR(
        files->List(location == "a" ? "routed-mutual:b" : "routed-mutual:a")
            .status());
    return std::make_unique<MemoryStore>();
  };
  ASSERT_THAT(RegisterCheckpointStore("routed-mutual", factory), IsOk());
  std::vector<std::thread> threads;
  for (const char* path : {"routed-mutual:a", "routed-mutual:b"}) {
    threads.emplace_back([&, path] {
      EXPECT_THAT(files_.List(path),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("expected other paths")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RoutedFilesTest, ThreadsThatOpenOneStoreTogetherOpenItOnce) {
  static std::atomic<int> opened = 0;
  ASSERT_THAT(RegisterCheckpointStore(
                  "routed-together",
                  [](const std::string&)
                      -> absl::StatusOr<std::unique_ptr<CheckpointStore>> {
                    ++opened;
                    std::this_thread::yield();
                    return std::make_unique<MemoryStore>();
                  }),
              IsOk());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      EXPECT_THAT(
          Write(files_, absl::StrCat("routed-together:x/", i, ".pin"), "x"),
          IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened, 1);
  EXPECT_THAT(files_.List("routed-together:x"), IsOkAndHolds(SizeIs(8)));
}

TEST_F(RoutedFilesTest, StoresPassTheFaultPointsOfFiles) {
  const std::string store = "objects:" + root_;
  const FailFileOperation fault("create", store + "/a.pin",
                                absl::InternalError("injected"));
  EXPECT_THAT(Write(CheckpointFiles(), store + "/a.pin", "x"),
              StatusIs(absl::StatusCode::kInternal, "injected"));
}

}  // namespace
}  // namespace sherd
