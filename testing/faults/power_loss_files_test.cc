#include "sherd/testing/power_loss_files.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Contents = std::map<std::string, std::string>;

constexpr uint64_t kAll = 0, kNothing = 1, kNames = 2, kData = 3;

class PowerLossFilesTest : public ::testing::Test {
 protected:
  PowerLossFilesTest() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Path(const std::string& name) const {
    return JoinPath(directory_, name);
  }

  static absl::Status Write(File& file, int64_t offset,
                            absl::string_view text) {
    return file.WriteAt(
        offset, absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                               text.size()));
  }

  // A file with contents, of which nothing is synced.
  std::unique_ptr<File> MakeFile(PowerLossFiles& files, const std::string& name,
                                 absl::string_view text) const {
    auto file = files.Create(Path(name));
    EXPECT_THAT(file, IsOk());
    EXPECT_THAT(Write(**file, 0, text), IsOk());
    return *std::move(file);
  }

  // Names, and contents of files.
  Contents Survivors(const PowerLossFiles& files, uint64_t seed) const {
    EXPECT_THAT(files.WriteSurvivors(seed, other_), IsOk());
    Contents contents;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(other_)) {
      const std::string path = entry.path().string();
      contents[path.substr(other_.size() + 1)] =
          entry.is_directory()
              ? "/"
              : ReadFile(FileSystem::Posix(), path, 1 << 20).value();
    }
    return contents;
  }

  // All that differs among many random outcomes.
  std::set<Contents> Outcomes(const PowerLossFiles& files) const {
    std::set<Contents> outcomes;
    for (uint64_t seed = 4; seed < 304; ++seed) {
      outcomes.insert(Survivors(files, seed));
    }
    return outcomes;
  }

  const std::string directory_ =
      JoinPath(::testing::TempDir(), "power_loss_files");
  const std::string other_ = directory_ + "_other";
};

TEST_F(PowerLossFilesTest, InitialFilesAreDurable) {
  {
    PowerLossFiles files(FileSystem::Posix(), directory_);
    ASSERT_THAT(files.CreateDirectories(Path("a/b")), IsOk());
    MakeFile(files, "a/file", "text");
    EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
  }
  const PowerLossFiles files(FileSystem::Posix(), directory_);
  EXPECT_THAT(
      Survivors(files, kNothing),
      ElementsAre(Pair("a", "/"), Pair("a/b", "/"), Pair("a/file", "text")));
}

TEST_F(PowerLossFilesTest, NameAndContentsLastBySyncsOfTheirOwn) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "text");
  EXPECT_THAT(Survivors(files, kAll), ElementsAre(Pair("file", "text")));
  EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
  EXPECT_THAT(Survivors(files, kNames), ElementsAre(Pair("file", "")));
  EXPECT_THAT(Survivors(files, kData), IsEmpty());
  ASSERT_THAT(file->Sync(), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
  EXPECT_THAT(Survivors(files, kNames), ElementsAre(Pair("file", "text")));
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), ElementsAre(Pair("file", "text")));
  ASSERT_THAT(Write(*file, 2, "ntative"), IsOk());
  EXPECT_THAT(Outcomes(files), ElementsAre(Contents{{"file", "tentative"}},
                                           Contents{{"file", "text"}}));
}

TEST_F(PowerLossFilesTest, StartingToWriteBackMakesNothingLast) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "text");
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  ASSERT_THAT(file->StartWriteback(0, 4), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), ElementsAre(Pair("file", "")));
}

TEST_F(PowerLossFilesTest, WritesAreLostOneByOneAndTearAtBlocks) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "");
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  const std::string a(4096, 'a'), b(4096, 'b'), hole(4096, '\0');
  ASSERT_THAT(Write(*file, 0, a + a), IsOk());
  ASSERT_THAT(Write(*file, 4096, b), IsOk());
  const std::set<Contents> outcomes = Outcomes(files);
  for (const std::string& text :
       {std::string(), a, a + a, a + b, hole + a, hole + b}) {
    EXPECT_THAT(outcomes, Contains(Contents{{"file", text}})) << text.size();
  }
  EXPECT_EQ(outcomes.size(), 6u);
}

TEST_F(PowerLossFilesTest, ATruncationMayBeLost) {
  {
    PowerLossFiles files(FileSystem::Posix(), directory_);
    MakeFile(files, "file", "longer");
  }
  PowerLossFiles files(FileSystem::Posix(), directory_);
  MakeFile(files, "file", "new");
  EXPECT_THAT(
      Outcomes(files),
      ElementsAre(Contents{{"file", ""}}, Contents{{"file", "longer"}},
                  Contents{{"file", "new"}}, Contents{{"file", "newger"}}));
}

TEST_F(PowerLossFilesTest, ARenameReplacesWhollyAndMayLeaveTheFormerName) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  for (const char* name : {"old", "new"}) {
    ASSERT_THAT(MakeFile(files, name, name)->Sync(), IsOk());
  }
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  ASSERT_THAT(files.Rename(Path("new"), Path("old")), IsOk());
  EXPECT_THAT(Outcomes(files),
              ElementsAre(Contents{{"new", "new"}, {"old", "new"}},
                          Contents{{"new", "new"}, {"old", "old"}},
                          Contents{{"old", "new"}}));
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), ElementsAre(Pair("old", "new")));
}

TEST_F(PowerLossFilesTest, NamesAreLostInAnyOrder) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  MakeFile(files, "first", "");
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  ASSERT_THAT(files.Remove(Path("first")), IsOk());
  MakeFile(files, "second", "");
  EXPECT_THAT(Outcomes(files),
              ElementsAre(Contents{}, Contents{{"first", ""}},
                          Contents{{"first", ""}, {"second", ""}},
                          Contents{{"second", ""}}));
}

TEST_F(PowerLossFilesTest, ADirectoryTakesWithItWhatIsInIt) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  ASSERT_THAT(files.CreateDirectories(Path("a/b")), IsOk());
  ASSERT_THAT(MakeFile(files, "a/b/file", "text")->Sync(), IsOk());
  ASSERT_THAT(files.SyncDirectory(Path("a/b")), IsOk());
  ASSERT_THAT(files.SyncDirectory(Path("a")), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
  // As code does that knows the directory alone.
  ASSERT_THAT(files.SyncDirectory(Path("a/..")), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), Contains(Pair("a/b/file", "text")));
  ASSERT_THAT(files.RemoveAll(Path("a")), IsOk());
  EXPECT_THAT(Survivors(files, kAll), IsEmpty());
  EXPECT_THAT(Survivors(files, kNothing), Contains(Pair("a/b/file", "text")));
}

TEST_F(PowerLossFilesTest, AWriteThatFailedStaysInDoubt) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "");
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  {
    FailFileOperation fault("write", "*", absl::InternalError("no"));
    EXPECT_FALSE(Write(*file, 0, "text").ok());
  }
  ASSERT_THAT(file->Sync(), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), ElementsAre(Pair("file", "")));
  EXPECT_THAT(Survivors(files, kAll), ElementsAre(Pair("file", "text")));
}

TEST_F(PowerLossFilesTest, ASyncDoesNotCoverConcurrentWrites) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "text");
  ASSERT_THAT(files.SyncDirectory(directory_), IsOk());
  const CallAt meanwhile("file/sync",
                         [&] { EXPECT_THAT(Write(*file, 0, "late"), IsOk()); });
  ASSERT_THAT(file->Sync(), IsOk());
  EXPECT_THAT(Survivors(files, kNothing), ElementsAre(Pair("file", "text")));
  EXPECT_THAT(Survivors(files, kAll), ElementsAre(Pair("file", "late")));
}

TEST_F(PowerLossFilesTest, ASyncThatFailedKeepsNothing) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const auto file = MakeFile(files, "file", "text");
  FailFileOperation fault("sync*", "*", absl::InternalError("no"),
                          {.times = 2});
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(files.SyncDirectory(directory_).ok());
  EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
  EXPECT_THAT(Survivors(files, kNames), ElementsAre(Pair("file", "")));
}

TEST_F(PowerLossFilesTest, FromTheCutOnNothingIsDone) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  files.CutPowerAt(4);
  const auto file = MakeFile(files, "file", "text");
  ASSERT_THAT(file->Size(), IsOkAndHolds(4));
  std::byte byte;
  for (const absl::Status& status :
       {file->Sync(), file->WriteAt(0, {}), file->ReadAt(0, {&byte, 1}),
        file->Size().status(), file->Reserve(1), file->StartWriteback(0, 1),
        file->Close(), files.OpenForRead(Path("file")).status(),
        files.Create(Path("b")).status(), files.CreateDirectories(Path("c")),
        files.Rename(Path("file"), Path("d")),
        files.RenameNew(Path("file"), Path("d")), files.Remove(Path("file")),
        files.RemoveAll(directory_), files.List(directory_).status(),
        files.SyncDirectory(directory_), files.KindOf(directory_).status(),
        files.FreeBytes(directory_).status()}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "the power is off"));
  }
  EXPECT_EQ(files.operations(), 21);
  EXPECT_THAT(Survivors(files, kAll), ElementsAre(Pair("file", "text")));
  EXPECT_THAT(Survivors(files, kNothing), IsEmpty());
}

TEST_F(PowerLossFilesTest, OtherDirectoriesAreNotRecorded) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  const std::string elsewhere = directory_ + "_elsewhere";
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files.Create(elsewhere));
  ASSERT_THAT(Write(*file, 0, "text"), IsOk());
  ASSERT_THAT(files.Remove(elsewhere), IsOk());
  EXPECT_THAT(Survivors(files, kAll), IsEmpty());
}

TEST_F(PowerLossFilesTest, ARenameThatCannotBeRecordedIsRefused) {
  PowerLossFiles files(FileSystem::Posix(), directory_);
  ASSERT_THAT(files.CreateDirectories(Path("a")), IsOk());
  MakeFile(files, "file", "");
  EXPECT_THAT(files.Rename(Path("a"), Path("b")),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(
      files.Rename(Path("file"), Path("b/file")),
      StatusIs(absl::StatusCode::kUnimplemented, "only files are recorded"));
}

}  // namespace
}  // namespace sherd::testing
