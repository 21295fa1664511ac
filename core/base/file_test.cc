#include "sherd/core/base/file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class FileTest : public ::testing::Test {
 protected:
  void TearDown() override { SetFaultHandler(nullptr); }
  void SetUp() override {
    ASSERT_THAT(files_.RemoveAll(directory_), IsOk());
    ASSERT_THAT(files_.CreateDirectories(directory_), IsOk());
  }
  std::string Path(const std::string& name) const {
    return JoinPath(directory_, name);
  }

  // Lets every passage of `point` fail until the end of the test.
  static void FailAt(FaultPoint point) {
    SetFaultHandler([point](const FaultPassage& passage) {
      return passage.point == point ? absl::InternalError("injected fault")
                                    : absl::OkStatus();
    });
  }

  // A name in the file system for a socket.
  void MakeSocket(const std::string& path) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_TRUE(socket.is_open());
    const UniqueFd directory(open(directory_.c_str(), O_PATH | O_CLOEXEC));
    // The path itself may be too long for an address.
    const std::string name =
        absl::StrCat("/proc/self/fd/", directory.get(), "/",
                     path.substr(directory_.size() + 1));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_LT(name.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, name.data(), name.size());
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)),
              0);
  }

  FileSystem& files_ = FileSystem::Posix();
  const std::string directory_ =
      JoinPath(::testing::TempDir(),
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(FileTest, ReadsBytesWrittenAtOffsets) {
  auto file = files_.Create(Path("f"));
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT((*file)->WriteAt(3, AsBytes("def")), IsOk());
  ASSERT_THAT((*file)->WriteAt(0, AsBytes("abc")), IsOk());
  EXPECT_THAT((*file)->Size(), IsOkAndHolds(6));
  EXPECT_THAT((*file)->Sync(), IsOk());
  EXPECT_THAT(ReadFile(files_, Path("f"), 6), IsOkAndHolds("abcdef"));
}

TEST_F(FileTest, ReadingPastTheEndNamesFileAndOffset) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("abc")), IsOk());
  auto file = files_.OpenForRead(Path("f"));
  ASSERT_THAT(file, IsOk());
  std::byte buffer[8];
  EXPECT_THAT((*file)->ReadAt(1, absl::MakeSpan(buffer)),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(Path("f")), HasSubstr("offset 3"))));
}

TEST_F(FileTest, DistinguishesMissingFilesFromDirectories) {
  EXPECT_THAT(files_.OpenForRead(Path("no")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("no"))));
  EXPECT_THAT(files_.OpenForRead(directory_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is a directory")));
  EXPECT_THAT(files_.Remove(Path("no")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FileTest, KindsOfPathsAreDistinguished) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("abc")), IsOk());
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("f", Path("link").c_str()), 0);
  ASSERT_EQ(symlink("no", Path("dangling").c_str()), 0);
  const std::pair<std::string, FileKind> cases[] = {
      {Path("f"), FileKind::kRegular},     {Path("link"), FileKind::kRegular},
      {directory_, FileKind::kDirectory},  {Path("pipe"), FileKind::kOther},
      {"/dev/null", FileKind::kOther},     {Path("no"), FileKind::kNone},
      {Path("dangling"), FileKind::kNone}, {Path("no/f"), FileKind::kNone},
      {Path("f/g"), FileKind::kNone}};
  for (const auto& [path, kind] : cases) {
    EXPECT_THAT(files_.KindOf(path), IsOkAndHolds(kind)) << path;
    EXPECT_THAT(files_.Exists(path), IsOkAndHolds(kind != FileKind::kNone));
    EXPECT_THAT(files_.IsDirectory(path),
                IsOkAndHolds(kind == FileKind::kDirectory));
  }
}

// Otherwise a disk with a transient error would look empty.
TEST_F(FileTest, AnInaccessiblePathIsNotReportedAsMissing) {
  ASSERT_EQ(symlink("loop", Path("loop").c_str()), 0);
  for (const std::string& path :
       {Path("loop"), Path("loop/f"), Path(std::string(300, 'n'))}) {
    EXPECT_THAT(files_.KindOf(path), StatusIs(absl::StatusCode::kInternal))
        << path;
    EXPECT_THAT(files_.Exists(path), StatusIs(absl::StatusCode::kInternal));
    EXPECT_THAT(files_.IsDirectory(path),
                StatusIs(absl::StatusCode::kInternal));
  }
  FailAt(FaultPoint::kFileKind);
  EXPECT_THAT(files_.KindOf(directory_),
              StatusIs(absl::StatusCode::kInternal, "injected fault"));
  EXPECT_THAT(files_.Exists(Path("no")), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(files_.IsDirectory(Path("no")),
              StatusIs(absl::StatusCode::kInternal));
}

TEST_F(FileTest, PipesSocketsAndDevicesAreRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("pipe", Path("link").c_str()), 0);
  ASSERT_NO_FATAL_FAILURE(MakeSocket(Path("socket")));
  const std::pair<std::string, const char*> cases[] = {
      {Path("pipe"), "it is a pipe"},
      {Path("link"), "it is a pipe"},
      {Path("socket"), "it is a socket"},
      {"/dev/null", "it is a device"},
      {directory_, "it is a directory"}};
  for (const auto& [path, text] : cases) {
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                  AllOf(HasSubstr(path), HasSubstr(text)));
    EXPECT_THAT(files_.OpenForRead(path), refused);
    EXPECT_THAT(files_.Create(path), refused);
    EXPECT_THAT(ReadFile(files_, path, 100), refused);
    for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR | O_CREAT}) {
      EXPECT_THAT(OpenRegularFile(path, flags, 0600, "trying"), refused)
          << flags;
    }
  }
}

TEST_F(FileTest, AnUnreadableFileIsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("abc")), IsOk());
  ASSERT_EQ(chmod(Path("f").c_str(), 0), 0);
  EXPECT_THAT(files_.OpenForRead(Path("f")),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNoTemporaryFile) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("old")), IsOk());
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("new")), IsOk());
  EXPECT_THAT(ReadFile(files_, Path("f"), 100), IsOkAndHolds("new"));
  const auto names = files_.List(directory_);
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ElementsAre("f"));
}

TEST_F(FileTest, AFileThatWasNotClosedDoesNotReplaceAnother) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("old")), IsOk());
  FailAt(FaultPoint::kFileClose);
  EXPECT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("new")),
              StatusIs(absl::StatusCode::kInternal, "injected fault"));
  SetFaultHandler(nullptr);
  EXPECT_THAT(ReadFile(files_, Path("f"), 100), IsOkAndHolds("old"));
  EXPECT_THAT(files_.List(directory_), IsOkAndHolds(ElementsAre("f")));
}

TEST_F(FileTest, ARenameThatMayNotLastIsDistinguishedFromAFailure) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("old")), IsOk());
  FailAt(FaultPoint::kFileSyncDirectory);
  EXPECT_THAT(
      WriteFileAtomically(files_, Path("f"), AsBytes("new")),
      StatusIs(absl::StatusCode::kUnknown,
               AllOf(HasSubstr(Path("f") + " has its new contents"),
                     HasSubstr("a loss of power"), HasSubstr("injected"))));
  SetFaultHandler(nullptr);
  EXPECT_THAT(ReadFile(files_, Path("f"), 100), IsOkAndHolds("new"));
}

TEST_F(FileTest, ClosingReportsErrorsOnceAndAgainDoesNothing) {
  auto file = files_.Create(Path("f"));
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT((*file)->WriteAt(0, AsBytes("abc")), IsOk());
  EXPECT_THAT((*file)->Close(), IsOk());
  EXPECT_THAT((*file)->Close(), IsOk());
  EXPECT_THAT((*file)->WriteAt(0, AsBytes("abc")),
              StatusIs(absl::StatusCode::kInternal, "Bad file descriptor"));
}

class DurableDirectoriesTest : public FileTest {
 protected:
  // Creates `path` durably; returns what was created and synced, by name below
  // the test's directory.
  std::vector<std::string> Create(const std::string& path) {
    std::vector<std::string> calls;
    SetFaultHandler([&](const FaultPassage& passage) {
      std::string name(passage.subject.substr(
          std::min(passage.subject.size(), directory_.size())));
      if (passage.point == FaultPoint::kFileCreateDirectories) {
        calls.push_back("create " + name);
      }
      if (passage.point == FaultPoint::kFileSyncDirectory) {
        calls.push_back("sync " + name);
      }
      return absl::OkStatus();
    });
    EXPECT_THAT(CreateDurableDirectories(files_, path), IsOk());
    SetFaultHandler(nullptr);
    EXPECT_THAT(files_.IsDirectory(path), IsOkAndHolds(true));
    return calls;
  }
};

TEST_F(DurableDirectoriesTest, EachNameIsSyncedBeforeAnythingIsCreatedBelow) {
  EXPECT_THAT(Create(Path("a/b/c")),
              ElementsAre("create /a", "sync /a/..", "create /a/b",
                          "sync /a/b/..", "create /a/b/c", "sync /a/b/c/.."));
  EXPECT_THAT(Create(Path("a/d/")),
              ElementsAre("create /a/d/", "sync /a/d/.."));
}

// The process that created it may have been killed before its sync.
TEST_F(DurableDirectoriesTest, TheNameOfAnExistingDirectoryIsSyncedToo) {
  ASSERT_THAT(files_.CreateDirectories(Path("a")), IsOk());
  EXPECT_THAT(Create(Path("a")), ElementsAre("create /a", "sync /a/.."));
}

TEST_F(DurableDirectoriesTest, FailIfANameCannotBeSynced) {
  FailAt(FaultPoint::kFileSyncDirectory);
  EXPECT_THAT(CreateDurableDirectories(files_, Path("a")),
              StatusIs(absl::StatusCode::kInternal, "injected fault"));
  EXPECT_THAT(CreateDurableDirectories(files_, Path("a")),
              StatusIs(absl::StatusCode::kInternal, "injected fault"));
  FailAt(FaultPoint::kFileKind);
  EXPECT_THAT(CreateDurableDirectories(files_, Path("b")),
              StatusIs(absl::StatusCode::kInternal, "injected fault"));
}

// A directory that an administrator made for this user, in one of his own.
TEST_F(DurableDirectoriesTest, AnExistingOneMayBeInADirectoryThatIsClosed) {
  ASSERT_THAT(files_.CreateDirectories(Path("a")), IsOk());
  SetFaultHandler([](const FaultPassage& passage) {
    return passage.point == FaultPoint::kFileSyncDirectory
               ? absl::PermissionDeniedError("injected fault")
               : absl::OkStatus();
  });
  EXPECT_THAT(CreateDurableDirectories(files_, Path("a")), IsOk());
  EXPECT_THAT(CreateDurableDirectories(files_, Path("b")),
              StatusIs(absl::StatusCode::kPermissionDenied));
}

// "/proc" stands for a file system that has no sync of directories, as the one
// around a mount point may not.
TEST_F(DurableDirectoriesTest, AnExistingOneMayBeInADirectoryWithoutSync) {
  ASSERT_THAT(files_.SyncDirectory("/proc"),
              StatusIs(absl::StatusCode::kUnimplemented, "/proc"));
  EXPECT_THAT(CreateDurableDirectories(files_, "/proc/self"), IsOk());
}

TEST_F(DurableDirectoriesTest, AreNotCreatedInPlaceOfAFile) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("abc")), IsOk());
  EXPECT_THAT(CreateDurableDirectories(files_, Path("f")), Not(IsOk()));
  EXPECT_THAT(CreateDurableDirectories(files_, Path("f/g")), Not(IsOk()));
  EXPECT_THAT(CreateDurableDirectories(files_, ""), Not(IsOk()));
}

TEST_F(FileTest, ANewNameIsGivenOnceAndReplacesNothing) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("a"), AsBytes("a")), IsOk());
  ASSERT_THAT(WriteFileAtomically(files_, Path("b"), AsBytes("b")), IsOk());
  EXPECT_THAT(files_.RenameNew(Path("a"), Path("to")), IsOk());
  EXPECT_THAT(
      files_.RenameNew(Path("b"), Path("to")),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("to"))));
  EXPECT_THAT(ReadFile(files_, Path("to"), 9), IsOkAndHolds("a"));
  EXPECT_THAT(files_.List(directory_), IsOkAndHolds(ElementsAre("b", "to")));
  EXPECT_THAT(files_.RenameNew(Path("absent"), Path("new")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
}

// Lets this thread rename as on NFS, which has no renames that replace nothing,
// and remove nothing, as over a quota that removals count against.
bool LetRemovalsFail() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
#ifdef SYS_unlink
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlink, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EDQUOT),
#endif
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlinkat, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EDQUOT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// That nothing was done would not be true.
TEST_F(FileTest, ANewNameBesideOneThatStaysIsUnknown) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("a"), AsBytes("a")), IsOk());
  std::thread([this] {
    ASSERT_TRUE(LetRemovalsFail()) << std::strerror(errno);
    EXPECT_THAT(files_.RenameNew(Path("a"), Path("to")),
                StatusIs(absl::StatusCode::kUnknown,
                         HasSubstr(Path("to") + " is there")));
  }).join();
  EXPECT_THAT(ReadFile(files_, Path("to"), 9), IsOkAndHolds("a"));
}

TEST_F(FileTest, ADeviceOrPipeIsNotReplaced) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(WriteFileAtomically(files_, Path("pipe"), AsBytes("text")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("pipe is not a regular file")));
  struct stat status;
  ASSERT_EQ(stat(Path("pipe").c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  EXPECT_THAT(files_.List(directory_), IsOkAndHolds(ElementsAre("pipe")));
}

TEST_F(FileTest, AFileOverTheLimitIsNotRead) {
  ASSERT_THAT(WriteFileAtomically(files_, Path("f"), AsBytes("abc")), IsOk());
  EXPECT_THAT(ReadFile(files_, Path("f"), 2),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("3 bytes, expected at most 2")));
}

TEST_F(FileTest, ReserveDoesNotChangeTheSize) {
  auto file = files_.Create(Path("f"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Reserve(1 << 20), IsOk());
  EXPECT_THAT((*file)->Size(), IsOkAndHolds(0));
  EXPECT_THAT((*file)->Reserve(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(FileTest, WritebackChangesNothingAndItsErrorsAreReported) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(Path("file")));
  ASSERT_THAT(file->WriteAt(0, AsBytes("abc")), IsOk());
  EXPECT_THAT(file->StartWriteback(1, 1), IsOk());
  EXPECT_THAT(file->StartWriteback(0, 0), IsOk());
  EXPECT_THAT(file->StartWriteback(100, 5), IsOk());
  EXPECT_THAT(ReadFile(files_, Path("file"), 10), IsOkAndHolds("abc"));
  ASSERT_THAT(file->Close(), IsOk());
  EXPECT_THAT(file->StartWriteback(2, 1),
              StatusIs(absl::StatusCode::kInternal,
                       absl::StrCat("starting to write back ", Path("file"))));
}

TEST_F(FileTest, ManyReadsFillTheirBuffersAndEndOnceEach) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(Path("file")));
  ASSERT_THAT(file->WriteAt(0, AsBytes("0123456789")), IsOk());
  std::string first(3, '.'), second(4, '.');
  const auto span = [](std::string& text) {
    return absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()),
                          text.size());
  };
  std::vector<int> ended(3);
  EXPECT_THAT(file->ReadMany({{5, span(first)}, {10, {}}, {2, span(second)}},
                             [&](size_t i) {
                               ++ended[i];
                               return absl::OkStatus();
                             }),
              IsOk());
  EXPECT_EQ(first, "567");
  EXPECT_EQ(second, "2345");
  EXPECT_THAT(ended, ElementsAre(1, 1, 1));
  EXPECT_THAT(file->ReadMany({{8, span(first)}},
                             [](size_t) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kDataLoss, "ends at offset 10"));
}

TEST_F(FileTest, ErrnoDecidesTheCode) {
  const std::pair<int, absl::StatusCode> cases[] = {
      {ENOENT, absl::StatusCode::kNotFound},
      {EACCES, absl::StatusCode::kPermissionDenied},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EEXIST, absl::StatusCode::kAlreadyExists},
      {EIO, absl::StatusCode::kInternal}};
  for (const auto& [error, code] : cases) {
    EXPECT_THAT(ErrnoStatus(error, "reading", "/f"),
                StatusIs(code, HasSubstr("reading /f: ")));
  }
}

TEST_F(FileTest, FreeBytesOfAMissingPathFails) {
  EXPECT_THAT(files_.FreeBytes(Path("no")),
              StatusIs(absl::StatusCode::kNotFound));
  const auto free = files_.FreeBytes(directory_);
  ASSERT_THAT(free, IsOk());
  EXPECT_GT(*free, 0);
}

TEST(ParentDirectoryTest, IsTheDirectoryOfTheName) {
  EXPECT_EQ(ParentDirectory("a/b"), "a");
  EXPECT_EQ(ParentDirectory("a/b//"), "a");
  EXPECT_EQ(ParentDirectory("/a"), "/");
  EXPECT_EQ(ParentDirectory("/"), "/");
  EXPECT_EQ(ParentDirectory("b"), ".");
}

TEST(JoinPathTest, KeepsAbsoluteNames) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
}

}  // namespace
}  // namespace sherd
