// Checkpoints in stores, in all that has to do with more than one place.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/store.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::HasSubstr;

class CheckpointStoresTest : public SeriesFixture {
 protected:
  CheckpointStoresTest() {
    static const absl::Status registered =
        RegisterCheckpointStore("stores-memory", [](const std::string&) {
          return absl::StatusOr<std::unique_ptr<CheckpointStore>>(
              std::make_unique<MemoryStore>());
        });
    EXPECT_THAT(registered, IsOk());
    memory_ = absl::StrCat("stores-memory://", root_);
    objects_ = absl::StrCat("objects:", JoinPath(root_, "objects"));
  }

  // The error of any of two ranks.
  absl::Status SaveTo(const std::string& path, int seed,
                      const SaveOptions& options = {}) {
    absl::Status error;
    absl::Mutex mutex;
    RunLocalRanks(2, [&](ProcessGroup&) {
      const absl::Status status =
          SaveCheckpoint(path, MakeTensors(2, seed), nullptr, options);
      absl::MutexLock lock(&mutex);
      error.Update(status);
    });
    return error;
  }

  std::string memory_;
  std::string objects_;
};

TEST_F(CheckpointStoresTest, ARegisteredStoreHoldsACheckpoint) {
  for (const std::string& path : {memory_, objects_}) {
    EXPECT_THAT(CheckpointExists(path), IsOkAndHolds(false));
    ASSERT_THAT(SaveTo(path, 1), IsOk());
    EXPECT_THAT(CheckpointExists(path), IsOkAndHolds(true));
    EXPECT_TRUE(Holds(path, 1));
    ASSERT_THAT(SaveTo(path, 2), IsOk());
    EXPECT_TRUE(Holds(path, 2));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto names, CheckpointFiles().List(path));
    EXPECT_EQ(names.size(), 4u) << ::testing::PrintToString(names);
    RunLocalRanks(2, [&](ProcessGroup&) {
      Tensors tensors = MakeTensors(2, 0);
      std::map<std::string, ShardedTensor*> into;
      for (auto& [name, tensor] : tensors) into[name] = &tensor;
      EXPECT_THAT(LoadCheckpointInto(path, into), IsOk());
    });
  }
}

// An object whose file was not synced need not be durable: see StoreFiles.
TEST_F(CheckpointStoresTest, ASaveWithoutSyncSyncsNoDataFile) {
  for (const bool sync : {true, false}) {
    const CountPassages syncs(
        "file/sync", {.subject = "objects:*.safetensors", .optional = true});
    ASSERT_THAT(SaveTo(objects_, 1, {.sync = sync}), IsOk());
    EXPECT_EQ(syncs.count(), sync ? 2 : 0) << "of a file of each rank";
    EXPECT_TRUE(Holds(objects_, 1));
  }
}

TEST_F(CheckpointStoresTest, AnotherSaveIsRefusedByName) {
  for (const std::string& path : {memory_, objects_}) {
    ASSERT_THAT(SaveTo(path, 1), IsOk());
    {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto lease,
          CheckpointLease::Take(CheckpointFiles(), path, "0123456789abcdef"));
      EXPECT_THAT(SaveTo(path, 2),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("lease.sherd is held by process")));
      EXPECT_THAT(lease->Check(), IsOk());
    }
    EXPECT_TRUE(Holds(path, 1));
    EXPECT_THAT(SaveTo(path, 2), IsOk());
    EXPECT_TRUE(Holds(path, 2));
  }
}

TEST_F(CheckpointStoresTest, AFormerHolderLearnsThatItsLeaseIsGone) {
  for (const std::string& path : {memory_, objects_}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto lease,
        CheckpointLease::Take(CheckpointFiles(), path, "0123456789abcdef",
                              {.duration = absl::Milliseconds(4)}));
    ASSERT_THAT(CheckpointFiles().Remove(JoinPath(path, kLeaseFileName)),
                IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto other,
        CheckpointLease::Take(CheckpointFiles(), path, "00000000000000ff"));
    EXPECT_THAT(lease->Check(), StatusIs(absl::StatusCode::kAborted,
                                         HasSubstr("00000000000000ff")));
    EXPECT_THAT(other->Check(), IsOk());
  }
}

TEST_F(CheckpointStoresTest, StepsAreCopiedFromOneKindOfPlaceToAnother) {
  const std::vector<std::string> places = {path_, memory_, objects_};
  for (const std::string& from : places) {
    for (const std::string& to : places) {
      if (from == to) continue;
      SCOPED_TRACE(absl::StrCat(from, " to ", to));
      for (const std::string& place : places) {
        ASSERT_THAT(CheckpointFiles().RemoveAll(place), IsOk());
      }
      path_ = from;
      ASSERT_THAT(Save(2, {1, 2, 3},
                       {.keep_last = 2, .incremental = true, .copy_to = to}),
                  IsOk());
      EXPECT_EQ(StepsIn(from), (std::set<int64_t>{2, 3}));
      EXPECT_EQ(StepsIn(to), (std::set<int64_t>{2, 3}));
      for (const int64_t step : {2, 3}) {
        EXPECT_TRUE(Holds(ManifestOf(from, step), SeedOf(step)));
        EXPECT_TRUE(Holds(ManifestOf(to, step), SeedOf(step)));
      }
    }
  }
}

// As by another program, which knows nothing of the index.
TEST_F(CheckpointStoresTest, FilesThatWereCopiedIntoAStoreAreACheckpoint) {
  ASSERT_THAT(SaveTo(path_, 1), IsOk());
  std::filesystem::copy(path_, JoinPath(root_, "objects"));
  EXPECT_TRUE(Holds(objects_, 1));
  ASSERT_THAT(SaveTo(objects_, 2), IsOk());
  EXPECT_TRUE(Holds(objects_, 2));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto names,
                             CheckpointFiles().List(objects_));
  EXPECT_EQ(names.size(), 4u) << ::testing::PrintToString(names);
}

TEST_F(CheckpointStoresTest, ALostManifestIsRebuilt) {
  for (const std::string& path : {memory_, objects_}) {
    ASSERT_THAT(SaveTo(path, 1), IsOk());
    ASSERT_THAT(CheckpointFiles().Remove(JoinPath(path, "manifest.sherd")),
                IsOk());
    EXPECT_THAT(CheckpointExists(path), IsOkAndHolds(true));
    EXPECT_FALSE(Holds(path, 1));
    EXPECT_THAT(RecoverManifest(path), IsOk());
    EXPECT_TRUE(Holds(path, 1));
  }
}

}  // namespace
}  // namespace sherd
