// StoreFiles against the contract of FileSystem, as far as it promises it.

#include "sherd/serialization/store/store_files.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/kits/forwarding_store.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/kits/stepped_stores.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/index_table.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kRoot[] = "memory:a/b";

std::string In(absl::string_view name) {
  return absl::StrCat(kRoot, "/", name);
}

class StoreFilesTest : public ::testing::Test {
 protected:
  absl::Status Write(const std::string& name, absl::string_view bytes) {
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.Create(In(name)));
    SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
    return file->Close();
  }

  absl::StatusOr<std::string> Read(const std::string& name) {
    return ReadFile(files_, In(name), 1 << 20);
  }

  // Puts a file under a name that only a rename gives.
  void Place(const std::string& name, absl::string_view bytes) {
    ASSERT_THAT(Write("placed.tmp", bytes), IsOk());
    ASSERT_THAT(files_.Rename(In("placed.tmp"), In(name)), IsOk());
  }

  MemoryStore store_;
  StoreFiles files_{store_, kRoot};
};

TEST_F(StoreFilesTest, TheRootIsADirectoryAlsoBeforeAnythingIsThere) {
  EXPECT_THAT(files_.KindOf(kRoot), IsOkAndHolds(FileKind::kDirectory));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(files_.CreateDirectories(kRoot), IsOk());
  EXPECT_THAT(CreateDurableDirectories(files_, kRoot), IsOk());
  EXPECT_THAT(files_.SyncDirectory(kRoot), IsOk());
  EXPECT_THAT(files_.FreeBytes(kRoot), IsOkAndHolds(INT64_MAX));
  EXPECT_THAT(store_.List(""), IsOkAndHolds(IsEmpty()));
}

TEST_F(StoreFilesTest, AFileAppearsWhenItIsClosed) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file,
                             files_.Create(In("x.safetensors")));
  EXPECT_THAT(file->Reserve(10), IsOk());
  EXPECT_THAT(file->WriteAt(4, AsBytes("data")), IsOk());
  EXPECT_THAT(file->WriteAt(0, AsBytes("head")), IsOk());
  EXPECT_THAT(file->Size(), IsOkAndHolds(8));
  EXPECT_THAT(file->StartWriteback(0, 8), IsOk());
  EXPECT_THAT(file->Sync(), IsOk());
  EXPECT_THAT(files_.KindOf(In("x.safetensors")),
              IsOkAndHolds(FileKind::kNone));
  EXPECT_THAT(file->Close(), IsOk());
  EXPECT_THAT(Read("x.safetensors"), IsOkAndHolds("headdata"));
  EXPECT_THAT(files_.KindOf(In("x.safetensors")),
              IsOkAndHolds(FileKind::kRegular));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("x.safetensors")));
  EXPECT_THAT(store_.List(""), IsOkAndHolds(ElementsAre("x.safetensors")))
      << "the index has no part in data files";
  EXPECT_THAT(files_.Remove(In("x.safetensors")), IsOk());
  EXPECT_THAT(files_.Remove(In("x.safetensors")),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StoreFilesTest, AFileThatIsNotClosedNeverAppears) {
  {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(In("a.tmp")));
    EXPECT_THAT(file->WriteAt(0, AsBytes("x")), IsOk());
  }
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("a.sherd")),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StoreFilesTest, ARenamePlacesAFileThatIsStillOpen) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(In("a.tmp")));
  EXPECT_THAT(file->WriteAt(0, AsBytes("lease 1")), IsOk());
  EXPECT_THAT(files_.RenameNew(In("a.tmp"), In("lease.sherd")), IsOk());
  EXPECT_THAT(Read("lease.sherd"), IsOkAndHolds("lease 1"));
  EXPECT_THAT(file->WriteAt(6, AsBytes("2")), IsOk());
  EXPECT_THAT(Read("lease.sherd"), IsOkAndHolds("lease 2"));
  Place("lease.sherd", "others");
  Place("lease.sherd", "another");
  EXPECT_THAT(file->WriteAt(6, AsBytes("3")), IsOk());
  EXPECT_THAT(Read("lease.sherd"), IsOkAndHolds("another"));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("lease.sherd")));
  EXPECT_THAT(file->Close(), IsOk());
}

// Notes which objects were finished without a sync.
class SyncedStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) override {
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<ObjectWriter> writer,
                           ForwardingStore::BeginPut(name));
    return std::make_unique<SyncedWriter>(std::move(writer), name, unsynced);
  }
  absl::Status Put(const std::string& name,
                   absl::Span<const std::byte> data) override {
    std::erase(unsynced, name);
    return ForwardingStore::Put(name, data);
  }

  std::vector<std::string> unsynced;

 private:
  class SyncedWriter final : public ObjectWriter {
   public:
    SyncedWriter(std::unique_ptr<ObjectWriter> writer, std::string name,
                 std::vector<std::string>& unsynced)
        : writer_(std::move(writer)),
          name_(std::move(name)),
          unsynced_(unsynced) {}
    absl::Status WriteAt(int64_t offset,
                         absl::Span<const std::byte> data) override {
      return writer_->WriteAt(offset, data);
    }
    absl::Status Finish() override { return writer_->Finish(); }
    absl::Status FinishUnsynced() override {
      unsynced_.push_back(name_);
      return writer_->Finish();
    }

   private:
    const std::unique_ptr<ObjectWriter> writer_;
    const std::string name_;
    std::vector<std::string>& unsynced_;
  };
};

TEST_F(StoreFilesTest, OnlyAFileThatWasSyncedNeedBeDurable) {
  SyncedStore store(store_);
  StoreFiles files(store, kRoot);
  const auto write = [&](const std::string& name, bool sync_first,
                         bool sync_last) -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(const auto file, files.Create(In(name)));
    if (sync_first) SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes("x")));
    if (sync_last) SHERD_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  };
  EXPECT_THAT(write("never.safetensors", false, false), IsOk());
  EXPECT_THAT(write("before.safetensors", true, false), IsOk());
  EXPECT_THAT(write("after.safetensors", false, true), IsOk());
  EXPECT_THAT(write("both.safetensors", true, true), IsOk());
  EXPECT_THAT(store.unsynced,
              ElementsAre("never.safetensors", "before.safetensors"));
}

// As where a file is renamed before it is synced.
TEST_F(StoreFilesTest, ASyncOfAFileThatIsThereMakesItDurable) {
  SyncedStore store(store_);
  StoreFiles files(store, kRoot);
  for (const size_t bytes : {size_t{1}, StoreFiles::kMaxRewritten + 1}) {
    SCOPED_TRACE(bytes);
    const std::string text(bytes, 'x');
    SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files.Create(In("a.tmp")));
    EXPECT_THAT(file->WriteAt(0, AsBytes(text)), IsOk());
    EXPECT_THAT(files.Rename(In("a.tmp"), In("a.sherd")), IsOk());
    ASSERT_THAT(store.unsynced, SizeIs(1));
    if (bytes == 1) {
      EXPECT_THAT(file->Sync(), IsOk());
      EXPECT_THAT(store.unsynced, IsEmpty());
    } else {
      EXPECT_THAT(file->Sync(),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
    }
    EXPECT_THAT(ReadFile(files, In("a.sherd"), int64_t{1} << 20),
                IsOkAndHolds(text));
  }
}

TEST_F(StoreFilesTest, ALongFileIsNotWrittenOnceItIsThere) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files_.Create(In("a.tmp")));
  const std::string long_one(StoreFiles::kMaxRewritten + 1, 'x');
  EXPECT_THAT(file->WriteAt(0, AsBytes(long_one)), IsOk());
  EXPECT_THAT(file->Close(), IsOk());
  EXPECT_THAT(file->WriteAt(0, AsBytes("y")),
              StatusIs(absl::StatusCode::kFailedPrecondition, "65536"));
  EXPECT_THAT(Read("a.tmp"), IsOkAndHolds(long_one));
}

TEST_F(StoreFilesTest, ARenameReplacesAndRemovesTheFormerObject) {
  Place("m.sherd", "old");
  Place("m.sherd", "new");
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("new"));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("m.sherd")));
  EXPECT_THAT(store_.List("placed.tmp-"), IsOkAndHolds(SizeIs(1)));
  EXPECT_THAT(files_.Remove(In("m.sherd")), IsOk());
  EXPECT_THAT(files_.Remove(In("m.sherd")),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(files_.KindOf(In("m.sherd")), IsOkAndHolds(FileKind::kNone));
  EXPECT_THAT(store_.List("placed.tmp-"), IsOkAndHolds(IsEmpty()));
}

TEST_F(StoreFilesTest, RenameNewReplacesNothing) {
  Place("m.sherd", "old");
  ASSERT_THAT(Write("b.tmp", "new"), IsOk());
  EXPECT_THAT(files_.RenameNew(In("b.tmp"), In("m.sherd")),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(files_.List(kRoot),
              IsOkAndHolds(ElementsAre("b.tmp", "m.sherd")));
  EXPECT_THAT(files_.Remove(In("m.sherd")), IsOk());
  EXPECT_THAT(files_.RenameNew(In("b.tmp"), In("m.sherd")), IsOk());
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("new"));
}

TEST_F(StoreFilesTest, AFileThatIsRenamedOrRemovedIsGone) {
  ASSERT_THAT(Write("a.tmp", "1"), IsOk());
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("a.sherd")), IsOk());
  const auto gone = StatusIs(absl::StatusCode::kNotFound);
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("b.sherd")), gone);
  EXPECT_THAT(files_.Remove(In("a.tmp")), gone);
  EXPECT_THAT(Read("a.tmp"), gone);
  // The same name again is another file.
  ASSERT_THAT(Write("a.tmp", "2"), IsOk());
  EXPECT_THAT(Read("a.tmp"), IsOkAndHolds("2"));
  EXPECT_THAT(files_.Remove(In("a.tmp")), IsOk());
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("b.sherd")), gone);
  EXPECT_THAT(Read("a.sherd"), IsOkAndHolds("1"));
  ASSERT_THAT(Write("a.tmp", "3"), IsOk());
  ASSERT_THAT(Write("a.tmp", "4"), IsOk());
  EXPECT_THAT(files_.List(kRoot),
              IsOkAndHolds(ElementsAre("a.sherd", "a.tmp")));
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("b.sherd")), IsOk());
  EXPECT_THAT(Read("b.sherd"), IsOkAndHolds("4"));
  EXPECT_THAT(files_.List(kRoot),
              IsOkAndHolds(ElementsAre("a.sherd", "b.sherd")));
}

TEST_F(StoreFilesTest, AnObjectThatCannotBeRemovedNowIsHidden) {
  bool fails = true;
  WatchedStore view(store_, [&](absl::string_view operation) -> absl::Status {
    return fails && operation == "remove" ? absl::UnavailableError("injected")
                                          : absl::OkStatus();
  });
  StoreFiles files(view, kRoot);
  ASSERT_THAT(Write("a.tmp", "1"), IsOk());
  EXPECT_THAT(files.Remove(In("a.tmp")), IsOk());
  const auto gone = StatusIs(absl::StatusCode::kNotFound);
  EXPECT_THAT(files.Rename(In("a.tmp"), In("a.sherd")), gone);
  EXPECT_THAT(files.OpenForRead(In("a.tmp")), gone);
  EXPECT_THAT(files.Remove(In("a.tmp")), gone);
  EXPECT_THAT(files.List(kRoot), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store_.List("a.tmp-"), IsOkAndHolds(SizeIs(1)));
  fails = false;
  Place("b.sherd", "x");
  EXPECT_THAT(store_.List("a.tmp-"), IsOkAndHolds(IsEmpty()));
}

// As after the files of a checkpoint were copied into the store.
TEST_F(StoreFilesTest, AnObjectOfAPlacedNameIsItsFileUntilItIsReplaced) {
  ASSERT_THAT(store_.Put("m.sherd", AsBytes("copied")), IsOk());
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("copied"));
  EXPECT_THAT(files_.KindOf(In("m.sherd")), IsOkAndHolds(FileKind::kRegular));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("m.sherd")));
  ASSERT_THAT(Write("b.tmp", "new"), IsOk());
  EXPECT_THAT(files_.RenameNew(In("b.tmp"), In("m.sherd")),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(files_.Rename(In("b.tmp"), In("m.sherd")), IsOk());
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("new"));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("m.sherd")));
  EXPECT_THAT(store_.Stat("m.sherd"), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(store_.Put("n.sherd", AsBytes("copied")), IsOk());
  EXPECT_THAT(files_.Remove(In("n.sherd")), IsOk());
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(ElementsAre("m.sherd")));
}

TEST_F(StoreFilesTest, ANameWhoseObjectIsMissingIsDataLossAndNotNotFound) {
  Place("m.sherd", "x");
  SHERD_ASSERT_OK_AND_ASSIGN(const auto objects, store_.List("placed.tmp-"));
  ASSERT_THAT(store_.Remove(objects.at(0)), IsOk());
  EXPECT_THAT(Read("m.sherd"), StatusIs(absl::StatusCode::kDataLoss,
                                        HasSubstr("which is not there")));
  EXPECT_THAT(files_.KindOf(In("m.sherd")), IsOkAndHolds(FileKind::kRegular));
}

TEST_F(StoreFilesTest, ADamagedIndexIsNotAnEmptyDirectory) {
  Place("m.sherd", "x");
  ASSERT_THAT(store_.Put(IndexObjectName(2), AsBytes("garbage")), IsOk());
  const auto damaged = StatusIs(absl::StatusCode::kDataLoss,
                                HasSubstr("index-00000000000000000002.sherd"));
  EXPECT_THAT(files_.List(kRoot), damaged);
  EXPECT_THAT(files_.KindOf(In("m.sherd")), damaged);
  EXPECT_THAT(Read("m.sherd"), damaged);
  EXPECT_THAT(files_.Remove(In("m.sherd")), damaged);
  // The one before is still there.
  ASSERT_THAT(store_.Remove(IndexObjectName(2)), IsOk());
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("x"));
}

TEST_F(StoreFilesTest, OtherPathsAndNamesAreRefused) {
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  for (const std::string& path :
       {std::string("memory:a"), std::string("x"), In("a/b"), In(".hidden"),
        In(""), In(".."), In("a b")}) {
    EXPECT_THAT(files_.Create(path), refused) << path;
    EXPECT_THAT(files_.OpenForRead(path), refused) << path;
    EXPECT_THAT(files_.Remove(path), refused) << path;
  }
  EXPECT_THAT(files_.Create(In("m.sherd")), refused);
  EXPECT_THAT(files_.Create(In(IndexObjectName(1))), refused);
  EXPECT_THAT(files_.Create(kRoot), refused);
  ASSERT_THAT(Write("a.tmp", "1"), IsOk());
  ASSERT_THAT(Write("a.safetensors", "1"), IsOk());
  EXPECT_THAT(files_.Rename(In("a.tmp"), In("a.pin")), refused);
  EXPECT_THAT(files_.Rename(In("a.safetensors"), In("a.sherd")), refused);
  EXPECT_THAT(files_.Rename(In("a.tmp"), In(IndexObjectName(9))), refused);
  EXPECT_THAT(files_.List(In("a.tmp")), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(StoreFilesTest, RemoveAllLeavesNothing) {
  Place("m.sherd", "x");
  ASSERT_THAT(Write("a.tmp", "1"), IsOk());
  ASSERT_THAT(Write("a.safetensors", "1"), IsOk());
  EXPECT_THAT(files_.RemoveAll(In("none.sherd")), IsOk());
  EXPECT_THAT(files_.RemoveAll(kRoot), IsOk());
  EXPECT_THAT(store_.List(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(files_.List(kRoot), IsOkAndHolds(IsEmpty()));
}

TEST_F(StoreFilesTest, OldTablesGo) {
  for (int i = 0; i < 50; ++i) Place("m.sherd", absl::StrCat(i));
  EXPECT_THAT(store_.List("index-"),
              IsOkAndHolds(SizeIs(DirectoryIndex::kKeptTables)));
  EXPECT_THAT(store_.List(""),
              IsOkAndHolds(SizeIs(DirectoryIndex::kKeptTables + 1)));
  EXPECT_THAT(Read("m.sherd"), IsOkAndHolds("49"));
}

// Whichever operation of the store fails, once, or however long the store is
// full, from any operation on: an operation on files that returned OK was done,
// and one that returned an error was not.
TEST_F(StoreFilesTest, AnErrorReportsThatNothingWasDone) {
  // Until neither an error nor a full store meets an operation.
  int runs_without = 0;
  for (int i = 0; runs_without < 2; ++i) {
    SCOPED_TRACE(i);
    const int at = i / 2;
    const bool is_full = i % 2 == 1;
    MemoryStore store;
    int step = 0;
    bool failed = false;
    bool armed = false;
    WatchedStore view(store, [&](absl::string_view operation) -> absl::Status {
      if (!armed) return absl::OkStatus();
      ++step;
      if (is_full) {
        if (step <= at || !(operation == "put" || operation == "finish" ||
                            operation == "put_if_absent")) {
          return absl::OkStatus();
        }
        failed = true;
        return absl::ResourceExhaustedError("disk full");
      }
      if (step != at + 1) return absl::OkStatus();
      failed = true;
      return absl::UnavailableError("injected");
    });
    StoreFiles files(view, kRoot);
    const auto write = [&](const std::string& name, absl::string_view bytes) {
      const auto file = files.Create(In(name));
      SHERD_RETURN_IF_ERROR(file.status());
      SHERD_RETURN_IF_ERROR((*file)->WriteAt(0, AsBytes(bytes)));
      return (*file)->Close();
    };
    ASSERT_THAT(write("1.tmp", "old"), IsOk());
    ASSERT_THAT(files.Rename(In("1.tmp"), In("m.sherd")), IsOk());
    armed = true;
    // What is there after the last of them that returned OK.
    std::string expected = "old";
    const absl::Status status = [&]() -> absl::Status {
      SHERD_RETURN_IF_ERROR(write("2.tmp", "new"));
      SHERD_RETURN_IF_ERROR(files.Rename(In("2.tmp"), In("m.sherd")));
      expected = "new";
      SHERD_RETURN_IF_ERROR(files.Remove(In("m.sherd")));
      expected = "";
      return absl::OkStatus();
    }();
    armed = false;
    runs_without = failed ? 0 : runs_without + 1;
    EXPECT_FALSE(absl::IsUnknown(status)) << status;
    EXPECT_EQ(absl::IsResourceExhausted(status), failed && is_full) << status;
    const auto now = ReadFile(files, In("m.sherd"), 100);
    EXPECT_EQ(now.value_or(""), expected) << status;
    files.Remove(In("2.tmp")).IgnoreError();
    ASSERT_THAT(write("3.tmp", "last"), IsOk());
    ASSERT_THAT(files.Rename(In("3.tmp"), In("m.sherd")), IsOk());
    EXPECT_THAT(files.List(kRoot), IsOkAndHolds(ElementsAre("m.sherd")));
  }
}

}  // namespace
}  // namespace sherd
