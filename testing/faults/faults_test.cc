#include "sherd/testing/faults.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

TEST(FaultsTest, TheChosenAllocationFails) {
  FailAllocationAt fault({.nth = 2, .min_bytes = 100});
  EXPECT_THAT(Storage::Allocate(100), IsOk());
  EXPECT_THAT(Storage::Allocate(99), IsOk());
  EXPECT_FALSE(fault.happened());
  EXPECT_THAT(Storage::Allocate(1000),
              StatusIs(absl::StatusCode::kResourceExhausted, "1000 bytes"));
  EXPECT_THAT(Storage::Allocate(1000), IsOk());
  EXPECT_TRUE(fault.happened());
  EXPECT_EQ(fault.count(), 3);
  EXPECT_EQ(fault.bytes(), 2100u);
}

TEST(FaultsTest, NothingHappensOutsideOfTheScope) {
  {
    FailAllocationAt fault({.times = 1000});
    EXPECT_FALSE(Storage::Allocate(1).ok());
  }
  EXPECT_FALSE(FaultPointsAreArmed());
  EXPECT_THAT(Storage::Allocate(1), IsOk());
}

TEST(FaultsTest, ADroppedMessageIsSentAndNeverArrives) {
  const auto store = std::make_shared<HashStore>();
  PrefixStore group("groups/1", store);
  DropStoreMessage fault("*/member/1", {.nth = 2});
  EXPECT_THAT(group.Set("member/1", "a"), IsOk());
  EXPECT_THAT(group.Set("member/1", "b"), IsOk());
  EXPECT_THAT(group.Set("member/11", "c"), IsOk());
  // No directory above it: another key.
  EXPECT_THAT(store->Set("member/1", "d"), IsOk());
  EXPECT_THAT(group.Get("member/1", Now()), IsOkAndHolds("a"));
  EXPECT_THAT(group.Get("member/11", Now()), IsOkAndHolds("c"));
  EXPECT_EQ(fault.count(), 2) << "a view of a store counts a message twice";
}

TEST(FaultsTest, ADelayedMessageArrivesLate) {
  HashStore store;
  DelayStoreMessage fault("key", absl::Milliseconds(30));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(store.Set("key", "a"), IsOk());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(29));
  EXPECT_THAT(store.Get("key", Now()), IsOkAndHolds("a"));
}

TEST(FaultsTest, EachOperationOfAStoreCanFail) {
  HashStore store;
  FailAt fault("store/*", absl::UnavailableError("cut off"), {.times = 10});
  const std::string keys[] = {"key"};
  for (const absl::Status& status : std::vector<absl::Status>{
           store.Set("key", ""), store.Get("key", Now()).status(),
           store.Add("key", 1).status(), store.Delete("key").status(),
           store.CompareSet("key", "", "a").status(),
           store.DeletePrefix("key").status(), store.Retire("key", 1),
           store.Wait(keys, Now()), store.MultiGet(keys, Now()).status(),
           store.Contains("key").status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "cut off"));
  }
  EXPECT_EQ(fault.count(), 10);
  EXPECT_THAT(store.Contains("key"), IsOkAndHolds(false));
}

class FaultyFilesTest : public ::testing::Test {
 protected:
  FileSystem& files_ = FileSystem::Posix();
  const std::string path_ =
      JoinPath(::testing::TempDir(),
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(FaultyFilesTest, AFailingWriteIsTorn) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(path_));
  const std::string text = "abcdefgh";
  const absl::Span<const std::byte> data(
      reinterpret_cast<const std::byte*>(text.data()), text.size());
  FailFileOperation fault(
      "write", path_, absl::ResourceExhaustedError("disk full"), {.nth = 2});
  EXPECT_THAT(file->WriteAt(0, data), IsOk());
  EXPECT_THAT(file->WriteAt(8, data),
              StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  EXPECT_THAT(ReadFile(files_, path_, 100), IsOkAndHolds("abcdefghabcd"));
}

TEST_F(FaultyFilesTest, EachOfManyReadsIsCounted) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(path_));
  std::byte bytes[3] = {};
  ASSERT_THAT(file->WriteAt(0, bytes), IsOk());
  std::vector<FileRead> reads;
  for (int64_t i = 0; i < 3; ++i) reads.push_back({i, {&bytes[i], 1}});
  FailFileOperation fault("read", path_, absl::InternalError("no"), {.nth = 2});
  std::vector<size_t> ended;
  const auto done = [&](size_t i) {
    ended.push_back(i);
    return absl::OkStatus();
  };
  EXPECT_THAT(file->ReadMany(reads, done),
              StatusIs(absl::StatusCode::kInternal, "no"));
  EXPECT_THAT(ended, ::testing::ElementsAre(0u));
  EXPECT_EQ(fault.count(), 2);
}

TEST_F(FaultyFilesTest, OnlyMatchingPathsFail) {
  FailFileOperation fault("rename", "*/new", absl::InternalError("no"),
                          {.times = 9});
  ASSERT_THAT(files_.Create(path_), IsOk());
  EXPECT_THAT(files_.Rename(path_, path_ + "2"), IsOk());
  EXPECT_THAT(files_.Rename(path_ + "2", "/tmp/new"),
              StatusIs(absl::StatusCode::kInternal, "no"));
  EXPECT_THAT(files_.Exists(path_ + "2"), IsOkAndHolds(true));
}

TEST_F(FaultyFilesTest, EachOperationCanFail) {
  ASSERT_THAT(files_.CreateDirectories(path_), IsOk());
  const std::string path = JoinPath(path_, "file");
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(path));
  std::byte byte{};
  FailFileOperation fault("*", "*", absl::InternalError("no"), {.times = 17});
  for (const absl::Status& status : std::vector<absl::Status>{
           files_.OpenForRead(path).status(), files_.Create(path).status(),
           file->ReadAt(0, {&byte, 0}), file->WriteAt(0, {&byte, 1}),
           file->Size().status(), file->Reserve(1), file->StartWriteback(0, 1),
           file->Sync(), file->Close(), files_.KindOf(path).status(),
           files_.CreateDirectories(path_), files_.Rename(path, path_),
           files_.Remove(path), files_.RemoveAll(path_),
           files_.List(path_).status(), files_.SyncDirectory(path_),
           files_.FreeBytes(path_).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "no"));
  }
  EXPECT_THAT(files_.Exists(path), IsOkAndHolds(true));
}

TEST_F(FaultyFilesTest, SyncsCanBeLeftOut) {
  // A file that cannot be synced, since it is closed, shows whether a sync was
  // tried.
  const std::string nowhere = path_ + "/missing";
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> closed,
                             files_.Create(path_));
  ASSERT_THAT(closed->Close(), IsOk());
  EXPECT_THAT(closed->Sync(), Not(IsOk()));
  EXPECT_THAT(files_.SyncDirectory(nowhere),
              StatusIs(absl::StatusCode::kNotFound));
  LeaveOutSyncs no_syncs;
  EXPECT_THAT(closed->Sync(), IsOk());
  EXPECT_THAT(files_.SyncDirectory(nowhere), IsOk());
  EXPECT_EQ(no_syncs.count(), 2);
}

TEST_F(FaultyFilesTest, PassagesAndTheirBytesAreCounted) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                             files_.Create(path_));
  CountPassages writes("file/write");
  CountPassages reads("file/read");
  std::byte data[17] = {};
  ASSERT_THAT(file->WriteAt(0, data), IsOk());
  ASSERT_THAT(file->WriteAt(17, data), IsOk());
  ASSERT_THAT(file->ReadAt(4, absl::MakeSpan(data)), IsOk());
  EXPECT_EQ(writes.count(), 2);
  EXPECT_EQ(writes.bytes(), 34u);
  EXPECT_EQ(reads.bytes(), 17u);
}

TEST(FaultsTest, ThreadsAreDistinguished) {
  FailAllocationAt fault({.this_thread = true});
  std::thread other([] { EXPECT_THAT(Storage::Allocate(1), IsOk()); });
  other.join();
  EXPECT_FALSE(Storage::Allocate(1).ok());
  EXPECT_EQ(fault.count(), 1);
}

TEST(FaultsTest, AFaultOfARankThatIsAThreadHitsThatRankAlone) {
  FailAt fault("comm/before_post", absl::InternalError("injected"),
               {.nth = 2, .rank = 1, .subject = "all_reduce"});
  FailAllocationAt allocation({.rank = 2});
  RunLocalRanks(3, [](ProcessGroup& group) {
    EXPECT_EQ(Storage::Allocate(1).ok(), group.rank() != 2);
    float value = 1;
    const auto values = absl::MakeSpan(&value, 1);
    EXPECT_THAT(group.AllReduce(values, ReduceOp::kSum), IsOk());
    EXPECT_THAT(group.Barrier(), IsOk());
    const absl::Status status = group.AllReduce(values, ReduceOp::kSum);
    EXPECT_THAT(status, ::testing::Not(IsOk()));
    EXPECT_THAT(status.message(), HasSubstr("injected"));
  });
  EXPECT_EQ(fault.count(), 2);
}

TEST(FaultsTest, ASlowRankOnlyTakesLonger) {
  SlowRankAt fault("comm/after_post", 1, absl::Milliseconds(20));
  RunLocalRanks(
      2, [](ProcessGroup& group) { EXPECT_THAT(group.Barrier(), IsOk()); });
  EXPECT_TRUE(fault.happened());
}

TEST(FaultsTest, ATestCanInspectTheStateAtAPoint) {
  HashStore store;
  ASSERT_THAT(store.Set("key", "before"), IsOk());
  std::string seen;
  CallAt look("store/set",
              [&] { seen = store.Get("key", Now()).value_or("none"); });
  ASSERT_THAT(store.Set("key", "after"), IsOk());
  EXPECT_EQ(seen, "before");
}

TEST(FaultsTest, SeveralFaultsHappenAtOnePassage) {
  HashStore store;
  DropStoreMessage lost("key");
  CountPassages all("store/set");
  {
    FailAt error("store/set", absl::InternalError("first"));
    EXPECT_THAT(store.Set("key", "a"),
                StatusIs(absl::StatusCode::kInternal, "first"));
  }
  EXPECT_THAT(store.Set("key", "b"), IsOk());
  EXPECT_THAT(store.Get("key", Now()), IsOkAndHolds("b"));
  EXPECT_EQ(all.count(), 2);
}

// Mistakes of a test.

TEST(FaultsTest, AFaultThatDidNotHappenFailsTheTestAndListsPassages) {
  EXPECT_NONFATAL_FAILURE(
      { FailAllocationAt fault; },
      "a failed allocation at passage 1 of tensor/allocate. It was passed 0 "
      "times in this way");
  EXPECT_NONFATAL_FAILURE(
      {
        HashStore store;
        DropStoreMessage fault("a/*", {.nth = 3});
        EXPECT_THAT(store.Set("a/1", ""), IsOk());
        EXPECT_THAT(store.Set("a/2", ""), IsOk());
        EXPECT_THAT(store.Set("b/3", ""), IsOk());
      },
      "losing a message at passage 3 of store/set for a/*. It was passed 2 "
      "times in this way, and 1 times otherwise, the last time for \"b/3\"");
  { FailAllocationAt fault({.optional = true}); }
}

TEST(FaultsTest, AnUnknownPointIsRefusedWithTheKnownOnes) {
  EXPECT_NONFATAL_FAILURE(
      { FailAt fault("comm/after_pots", absl::InternalError("")); },
      "there is no fault point comm/after_pots; there are: "
      "comm/before_meeting, ");
}

TEST(FaultsTest, EffectsThatAPointDoesNotHaveAreRefused) {
  EXPECT_NONFATAL_FAILURE(
      { FailAt fault("comm/destroy", absl::InternalError("")); },
      "a failure is not possible at comm/destroy (Destroy, before the other "
      "ranks are notified), which cannot fail");
}

TEST(FaultsTest, AThreadCannotBeKilledOrStopped) {
  EXPECT_NONFATAL_FAILURE({ KillRankAt fault("comm/before_post", 0); },
                          "killing a rank needs ranks that are processes");
  EXPECT_NONFATAL_FAILURE({ StopRankAt fault("comm/before_post", 0); },
                          "stopping a rank needs ranks that are processes");
}

TEST(FaultsTest, CountsBelowOneAreRefused) {
  EXPECT_NONFATAL_FAILURE({ FailAllocationAt fault({.nth = 0}); },
                          "nth is 0 and times 1, expected 1 or more");
}

}  // namespace
}  // namespace sherd::testing
