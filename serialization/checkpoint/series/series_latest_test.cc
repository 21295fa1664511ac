// Which step of a series is the latest that is whole, whatever happened to the
// others.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SeriesLatestTest : public SeriesFixture {};

TEST_F(SeriesLatestTest, WithoutStepsThereIsNoLatestOne) {
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ListSteps(path_), IsOkAndHolds(IsEmpty()));
  // Another checkpoint is none.
  RunLocalRanks(1, [&](ProcessGroup&) {
    ASSERT_THAT(SaveCheckpoint(path_, MakeTensors(1, 1)), IsOk());
  });
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SeriesLatestTest, TheLatestIsTheNewestThatIsWhole) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1, 2, 3, 4, 5}), IsOk());
  auto latest = Latest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->step, 5);
  EXPECT_EQ(latest->path, ManifestOf(5));
  EXPECT_THAT(latest->passed_over, IsEmpty());
  // Missing, truncated, damaged, and foreign.
  const std::string missing = DataFileOf(5, 1);
  RemovePlaced(missing);
  const std::string truncated = DataFileOf(4, 0);
  std::filesystem::resize_file(truncated,
                               std::filesystem::file_size(truncated) - 1);
  std::filesystem::resize_file(ManifestOf(3), 40);
  std::ofstream(ManifestOf(900)) << "not a manifest";
  std::filesystem::create_directory(ManifestOf(901));
  latest = Latest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->step, 2);
  EXPECT_THAT(
      latest->passed_over,
      ElementsAre(AllOf(HasSubstr("step 901"), HasSubstr("directory")),
                  AllOf(HasSubstr("step 900"), HasSubstr("manifest")),
                  AllOf(HasSubstr("step 5"), HasSubstr(missing)),
                  AllOf(HasSubstr("step 4"), HasSubstr(truncated)),
                  AllOf(HasSubstr("step 3"), HasSubstr(ManifestOf(3)))));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto steps, ListSteps(path_));
  std::map<int64_t, absl::StatusCode> codes;
  for (const SeriesStep& step : steps) {
    codes[step.step] = step.status.code();
  }
  EXPECT_EQ(codes, (std::map<int64_t, absl::StatusCode>{
                       {1, absl::StatusCode::kOk},
                       {2, absl::StatusCode::kOk},
                       {3, absl::StatusCode::kDataLoss},
                       {4, absl::StatusCode::kDataLoss},
                       {5, absl::StatusCode::kDataLoss},
                       {900, absl::StatusCode::kDataLoss},
                       {901, absl::StatusCode::kInvalidArgument}}));
}

// Also where a list of steps or files does not look.
TEST_F(SeriesLatestTest, AManifestThatIsDamagedAnywhereIsPassedOver) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  const auto size =
      static_cast<int64_t>(std::filesystem::file_size(ManifestOf(2)));
  for (int64_t at = 0; at < size; ++at) {
    const auto flip = [&] {
      std::fstream bytes(ManifestOf(2),
                         std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(at);
      const char byte = static_cast<char>(bytes.get() ^ 1);
      bytes.seekp(at);
      bytes.put(byte);
    };
    flip();
    SHERD_ASSERT_OK_AND_ASSIGN(const auto steps, ListSteps(path_));
    ASSERT_THAT(steps, SizeIs(2));
    EXPECT_FALSE(steps[1].status.ok()) << "byte " << at;
    flip();
  }
  EXPECT_EQ(Latest()->step, 2);
}

TEST_F(SeriesLatestTest, WhereNoStepIsWholeLatestIsDataLossAndNotNotFound) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  std::filesystem::resize_file(ManifestOf(1), 40);
  RemovePlaced(DataFileOf(2, 0));
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr("none of 2 steps is whole"),
                                       HasSubstr("step 2"))));
}

TEST_F(SeriesLatestTest, LostManifestsAreDataLossAndNotNotFound) {
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  RemovePlaced(ManifestOf(1));
  EXPECT_EQ(Latest()->step, 2);
  RemovePlaced(ManifestOf(2));
  const auto lost =
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr(path_), HasSubstr("manifest is missing")));
  EXPECT_THAT(Latest(), lost);
  EXPECT_THAT(CheckpointExists(ManifestOf(2)), IsOkAndHolds(true));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto found, FindLostManifests(path_));
  for (const std::string& manifest : found) {
    ASSERT_THAT(RecoverManifest(manifest), IsOk());
  }
  ExpectExactly(path_, 1, {1, 2});
}

TEST_F(SeriesLatestTest, LostManifestsAreNotAListWithoutSteps) {
  ASSERT_THAT(Save(1, {1, 2}, {.copy_to = second_}), IsOk());
  RemovePlaced(ManifestOf(1));
  RemovePlaced(ManifestOf(2));
  const auto lost =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest is missing"));
  EXPECT_THAT(ListSteps(path_), lost);
  const auto listed = [&](const SeriesOptions& options) {
    absl::StatusOr<std::vector<SeriesStep>> steps;
    RunLocalRanks(1, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto series, CheckpointSeries::Open(path_, nullptr, options));
      steps = series.List();
    });
    return steps;
  };
  EXPECT_THAT(listed({}), lost);
  EXPECT_THAT(listed({.copy_to = second_}), IsOkAndHolds(SizeIs(2)));
}

// Hides the manifests in so many listings, as a file system may while one is
// replaced by another.
class HidesManifests : public ForwardingFiles {
 public:
  explicit HidesManifests(int listings)
      : ForwardingFiles(CheckpointFiles()), left_(listings) {}

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    auto names = ForwardingFiles::List(path);
    if (names.ok() && left_-- > 0) {
      names->erase(std::remove_if(names->begin(), names->end(), IsManifestName),
                   names->end());
    }
    return names;
  }

 private:
  int left_;
};

TEST_F(SeriesLatestTest, OneListingWithoutStepsIsNotBelieved) {
  ASSERT_THAT(Save(1, {1}), IsOk());
  for (const int hidden : {1, 2}) {
    HidesManifests files(hidden);
    EXPECT_EQ(Latest({.save = {.files = &files}})->step, 1);
    HidesManifests others(hidden);
    EXPECT_THAT(ListSteps(path_, others), IsOkAndHolds(SizeIs(1)));
  }
  HidesManifests files(100);
  EXPECT_THAT(ListSteps(path_, files), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(SeriesLatestTest, TheSecondDirectoryServesWhereTheFirstHasLostAll) {
  ASSERT_THAT(Save(1, {1, 2}, {.copy_to = second_}), IsOk());
  RemovePlaced(ManifestOf(1));
  RemovePlaced(ManifestOf(2));
  const auto latest = Latest({.copy_to = second_});
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->path, ManifestOf(second_, 2));
  EXPECT_THAT(
      latest->passed_over,
      ElementsAre(AllOf(HasSubstr(path_), HasSubstr("manifest is missing"))));
}

// It may be whole, and a job that goes on from an older one repeats its work.
TEST_F(SeriesLatestTest, AnErrorOfTheFileSystemIsNotAStepThatIsNotWhole) {
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  const FailFileOperation fault("open_for_read", ManifestOf(2),
                                absl::InternalError("Stale file handle"));
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kInternal,
                                 HasSubstr("Stale file handle")));
}

// Nor is a process that is short of descriptors or memory for a moment.
TEST_F(SeriesLatestTest, AShortageIsNotAStepThatIsNotWhole) {
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  for (const int error : {EMFILE, ENOMEM}) {
    const FailFileOperation fault("open_for_read", ManifestOf(2),
                                  ErrnoStatus(error, "opening", "it"));
    EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(Latest()->step, 2);
}

TEST_F(SeriesLatestTest, DataIsReadIfThatIsAskedFor) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  const SeriesOptions options = {.copy_to = second_};
  ASSERT_THAT(Save(2, {1, 2}, options), IsOk());
  const std::string damaged = DataFileOf(2, 1);
  FlipBit(damaged, 4096);
  const auto latest = [&](bool read_data) {
    absl::StatusOr<LatestStep> found;
    RunLocalRanks(2, [&](ProcessGroup& group) {
      auto series = CheckpointSeries::Open(path_, nullptr, options);
      ASSERT_THAT(series, IsOk());
      auto own = series->Latest({.read_data = read_data});
      if (group.rank() == 0) found = std::move(own);
    });
    return found;
  };
  EXPECT_EQ(latest(false)->path, ManifestOf(2));
  EXPECT_EQ(latest(true)->path, ManifestOf(second_, 2));
  FlipBit(JoinPath(second_, damaged.substr(damaged.rfind('/') + 1)), 4096);
  const auto found = latest(true);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->path, ManifestOf(1));
  EXPECT_THAT(found->passed_over,
              ElementsAre(AllOf(HasSubstr("step 2"), HasSubstr("matrix"))));
}

TEST_F(SeriesLatestTest, StepsThatGoMeanwhileAreNotMissed) {
  ASSERT_THAT(Save(1, {1}), IsOk());
  const CallAt save(
      "file/open_for_read",
      [this] { EXPECT_THAT(Save(1, {2}, {.keep_last = 1}), IsOk()); },
      {.subject = "*/step-*1.sherd"});
  const auto latest = Latest();
  ASSERT_THAT(latest, IsOk());
  EXPECT_EQ(latest->step, 2);
}

}  // namespace
}  // namespace sherd
