#include "sherd/serialization/checkpoint_series.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_recover.h"
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
using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class CheckpointSeriesTest : public SeriesFixture {
 protected:
  std::set<std::string> Files() const {
    const auto names = CheckpointFiles().List(path_);
    EXPECT_THAT(names, IsOk());
    return {names->begin(), names->end()};
  }
};

TEST_F(CheckpointSeriesTest, StepsShareADirectoryAndLoadByNumber) {
  ASSERT_THAT(Save(2, {0, 7, 120}), IsOk());
  ExpectExactly(path_, 2, {0, 7, 120});
  const auto steps = ListSteps(path_);
  ASSERT_THAT(steps, IsOkAndHolds(SizeIs(3)));
  EXPECT_EQ((*steps)[2].path,
            JoinPath(path_, "step-00000000000000000120.sherd"));
  for (const SeriesStep& step : *steps) {
    EXPECT_THAT(step.status, IsOk());
    EXPECT_EQ(step.files, 2);
    EXPECT_GT(step.bytes, 400 * 3 * 4);
    EXPECT_TRUE(IsSaveId(step.save_id));
    EXPECT_FALSE(step.pinned);
    EXPECT_THAT(CheckpointExists(step.path), IsOkAndHolds(true));
  }
  EXPECT_THAT(CheckpointExists(path_), IsOkAndHolds(false));
  // By other ranks, in other layouts.
  RunLocalRanks(3, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                               CheckpointSeries::Open(path_));
    Tensors tensors = MakeTensors(3, 1000);
    ASSERT_THAT(series.LoadInto(7, {{"matrix", &tensors.at("matrix")}}),
                IsOk());
    EXPECT_EQ(CountWrong(tensors.at("matrix"), SeedOf(7)), 0);
    const auto loaded =
        series.Load(0, {{"row", *SampleSpec(1, kSizes.at("row"), 3)}});
    ASSERT_THAT(loaded, IsOk());
    EXPECT_EQ(CountWrong(loaded->at("row"), SeedOf(0)), 0);
    EXPECT_THAT(series.LoadInto(8, {}), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(series.LoadInto(-1, {}), StatusIs(absl::StatusCode::kNotFound));
  });
}

TEST_F(CheckpointSeriesTest, RetentionKeepsTheLastAndMultiplesAndPinned) {
  ASSERT_THAT(Save(2, {10, 15, 20}), IsOk());
  ASSERT_THAT(PinStep(path_, 15), IsOk());
  // Another job, which knows nothing of the first.
  const SeriesOptions options = {.keep_last = 2, .keep_every = 20};
  ASSERT_THAT(Save(2, {25, 30, 35}, options), IsOk());
  ExpectExactly(path_, 2, {15, 20, 30, 35});
  SHERD_ASSERT_OK_AND_ASSIGN(const auto steps, ListSteps(path_));
  EXPECT_TRUE(steps[0].pinned);
  EXPECT_FALSE(steps[1].pinned);
  ASSERT_THAT(UnpinStep(path_, 15), IsOk());
  EXPECT_THAT(UnpinStep(path_, 15), IsOk());
  ASSERT_THAT(Save(2, {40}, options), IsOk());
  ExpectExactly(path_, 2, {20, 35, 40});
}

TEST_F(CheckpointSeriesTest, OnlyAStepThatIsThereIsPinned) {
  ASSERT_THAT(Save(1, {1}), IsOk());
  EXPECT_THAT(PinStep(path_, 2), StatusIs(absl::StatusCode::kNotFound,
                                          HasSubstr("there is no step 2")));
  // A save removes it at this moment.
  const CallAt remove("file/create", [this] { RemovePlaced(ManifestOf(1)); },
                      {.subject = "*.pin"});
  EXPECT_THAT(PinStep(path_, 1), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(Files().contains(StepPinName(1)));
}

TEST_F(CheckpointSeriesTest, AStepThatIsPinnedWhileDataIsWrittenStays) {
  ASSERT_THAT(Save(1, {1}), IsOk());
  {
    const CallAt pin("file/create",
                     [this] { EXPECT_THAT(PinStep(path_, 1), IsOk()); },
                     {.subject = "*.safetensors"});
    ASSERT_THAT(Save(1, {2}, {.keep_last = 1}), IsOk());
  }
  ExpectExactly(path_, 1, {1, 2});
}

TEST_F(CheckpointSeriesTest, AStepSavedAgainIsReplaced) {
  ASSERT_THAT(Save(2, {1, 2, 3}), IsOk());
  const std::set<std::string> before = Files();
  ASSERT_THAT(Save(2, {2}), IsOk());
  ExpectExactly(path_, 2, {1, 2, 3});
  EXPECT_NE(Files(), before);
  // By the same series, that has the former one's files in mind.
  ASSERT_THAT(Save(2, {4, 4, 2, 4}), IsOk());
  ExpectExactly(path_, 2, {1, 2, 3, 4});
}

TEST_F(CheckpointSeriesTest, AFailedReplacementLeavesTheFormerStep) {
  ASSERT_THAT(Save(2, {1, 2}), IsOk());
  const std::set<std::string> before = Files();
  for (const char* operation : {"rename", "rename_new"}) {
    const int64_t step = operation == std::string("rename") ? 2 : 3;
    const FailFileOperation fault(operation, "*/step-*.sherd",
                                  absl::InternalError("injected"));
    EXPECT_THAT(Save(2, {step}),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr(absl::StrCat("step ", step)),
                               HasSubstr("injected"))));
    EXPECT_EQ(Files(), before);
  }
  ExpectExactly(path_, 2, {1, 2});
}

TEST_F(CheckpointSeriesTest, AStepMustBeANumberOnWhichRanksAgree) {
  EXPECT_THAT(Save(2, {-1}), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("0 or more, got -1")));
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                               CheckpointSeries::Open(path_));
    EXPECT_THAT(series.Save(5 + group.rank(), MakeTensors(2, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("step 5"), HasSubstr("step 6"))));
    EXPECT_THAT(series.Save(5, MakeTensors(2, SeedOf(5))), IsOk());
  });
  ExpectExactly(path_, 2, {5});
  RunLocalRanks(1, [&](ProcessGroup&) {
    EXPECT_THAT(SaveCheckpoint(ManifestOf(5), MakeTensors(1, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the name of a manifest")));
    for (const auto& [directory, options] :
         std::vector<std::pair<std::string, SeriesOptions>>{
             {"", {}},
             {path_, {.keep_last = -1}},
             {path_, {.keep_every = -1}},
             {path_, {.copy_to = path_}}}) {
      EXPECT_THAT(CheckpointSeries::Open(directory, nullptr, options),
                  StatusIs(absl::StatusCode::kInvalidArgument));
    }
  });
}

// Otherwise some ranks would wait for the others until the timeout.
TEST_F(CheckpointSeriesTest, RanksThatOpenItDifferentlyAllLearnOfIt) {
  struct Case {
    std::string directory;
    SeriesOptions options;
    // What the message has of rank 1 and of the others.
    std::string shown;
    std::string other;
  };
  for (const Case& each : std::vector<Case>{
           {path_ + "x", {}, path_ + "x", "directory " + path_},
           {path_, {.copy_to = second_}, "copy_to " + second_, "copy_to "},
           {path_, {.keep_last = 3}, "keep_last 3", "keep_last 0"},
           {path_, {.keep_every = 4}, "keep_every 4", "keep_every 0"},
           {path_, {.incremental = true}, "incremental true", "false"}}) {
    SCOPED_TRACE(each.shown);
    RunLocalRanks(3, [&](ProcessGroup& group) {
      const bool differs = group.rank() == 1;
      EXPECT_THAT(
          CheckpointSeries::Open(differs ? each.directory : path_, nullptr,
                                 differs ? each.options : SeriesOptions()),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   AllOf(HasSubstr("open series"), HasSubstr(each.shown),
                         HasSubstr(each.other), HasSubstr("rank 1"))));
    });
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(CheckpointSeriesTest, AfterARollbackLaterStepsStayUntilTheyAreRemoved) {
  ASSERT_THAT(Save(2, {10, 20, 30}), IsOk());
  ASSERT_THAT(Save(2, {11, 12}, {.keep_last = 2}), IsOk());
  ExpectExactly(path_, 2, {11, 12, 20, 30});
  EXPECT_EQ(Latest()->step, 30);
  ASSERT_THAT(PinStep(path_, 20), IsOk());
  const auto remove_after = [&](int64_t step) {
    absl::Status status;
    RunLocalRanks(2, [&](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                                 CheckpointSeries::Open(path_));
      const absl::Status removed = series.RemoveAfter(step);
      if (group.rank() == 1) status = removed;
    });
    return status;
  };
  EXPECT_THAT(remove_after(12), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("step 20 is pinned"),
                                               HasSubstr(StepPinName(20)))));
  ExpectExactly(path_, 2, {11, 12, 20, 30});
  ASSERT_THAT(UnpinStep(path_, 20), IsOk());
  ASSERT_THAT(remove_after(12), IsOk());
  ExpectExactly(path_, 2, {11, 12});
  EXPECT_EQ(Latest()->step, 12);
  ASSERT_THAT(remove_after(-1), IsOk());
  ExpectExactly(path_, 2, {});
}

TEST_F(CheckpointSeriesTest, RanksAgreeBeforeStepsAreRemoved) {
  ASSERT_THAT(Save(2, {1, 2, 3}), IsOk());
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                               CheckpointSeries::Open(path_));
    EXPECT_THAT(series.RemoveAfter(1 + group.rank()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("step 1"), HasSubstr("step 2"))));
  });
  ExpectExactly(path_, 2, {1, 2, 3});
}

TEST_F(CheckpointSeriesTest, StepsAreRemovedWhereDirectoriesHaveNoSync) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  const FailFileOperation fault("sync_directory", path_,
                                absl::UnimplementedError("injected"),
                                {.times = 100});
  RunLocalRanks(1, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        CheckpointSeries series,
        CheckpointSeries::Open(path_, nullptr, {.save = {.sync = false}}));
    EXPECT_THAT(series.RemoveAfter(1), IsOk());
  });
  ExpectExactly(path_, 1, {1});
}

TEST_F(CheckpointSeriesTest, ManifestsOfOtherStepsAreReadOnce) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2, 3}), IsOk());
  RunLocalRanks(1, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        CheckpointSeries series,
        CheckpointSeries::Open(path_, nullptr, {.keep_last = 2}));
    const auto reads = [&](int64_t step) {
      const CountPassages count(
          "file/open_for_read",
          {.subject = JoinPath(path_, "step-*"), .optional = true});
      EXPECT_THAT(series.Save(step, MakeTensors(1, SeedOf(step))), IsOk());
      return count.count();
    };
    EXPECT_EQ(reads(4), 3);
    EXPECT_EQ(reads(5), 0);
    EXPECT_EQ(reads(6), 0);
    // After another job's save, all that are there.
    ASSERT_THAT(PinStep(path_, 6), IsOk());
    EXPECT_EQ(reads(7), 0);
    std::filesystem::copy_file(ManifestOf(6), ManifestOf(60));
    EXPECT_GT(reads(8), 0);
    EXPECT_EQ(reads(9), 0);
  });
}

// One that lives on beside its restart, whose steps are smaller.
TEST_F(CheckpointSeriesTest, AJobThatFindsTheStepOfAnotherSavesNoMore) {
  ASSERT_THAT(Save(1, {0, 8}), IsOk());
  RunLocalRanks(1, [&](ProcessGroup&) {
    const SeriesOptions keep_two = {.keep_last = 2};
    SHERD_ASSERT_OK_AND_ASSIGN(
        CheckpointSeries former,
        CheckpointSeries::Open(path_, nullptr, keep_two));
    SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries restart,
                               CheckpointSeries::Open(path_));
    const auto save = [](CheckpointSeries& series, int64_t step) {
      return series.Save(step, MakeTensors(1, SeedOf(step)));
    };
    ASSERT_THAT(save(former, 9), IsOk());
    ASSERT_THAT(save(restart, 5), IsOk());
    const auto is_refused =
        StatusIs(absl::StatusCode::kAborted, HasSubstr(StepManifestName(5)));
    EXPECT_THAT(save(former, 10), is_refused);
    SHERD_ASSERT_OK_AND_ASSIGN(
        SaveHandle handle, former.SaveAsync(10, MakeTensors(1, SeedOf(10))));
    EXPECT_THAT(handle.Durable(), is_refused);
    EXPECT_THAT(former.Flush(), is_refused);
    // It replaces a step of the other one, too.
    EXPECT_THAT(save(restart, 9), IsOk());
    EXPECT_THAT(save(restart, 10), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        former, CheckpointSeries::Open(path_, nullptr, keep_two));
    EXPECT_THAT(save(former, 11), IsOk());
    EXPECT_THAT(save(restart, 12), StatusIs(absl::StatusCode::kAborted));
  });
  ExpectExactly(path_, 1, {10, 11});
}

// Each has the other's steps not in mind.
TEST_F(CheckpointSeriesTest, JobsThatTakeTurnsKeepEachOthersFiles) {
  for (int64_t step = 0; step < 6; ++step) {
    ASSERT_THAT(Save(1, {step}), IsOk());
  }
  // One that is there, with new files.
  ASSERT_THAT(Save(1, {1, 6}), IsOk());
  ExpectExactly(path_, 1, {0, 1, 2, 3, 4, 5, 6});
}

TEST_F(CheckpointSeriesTest, AFileInPlaceOfTheDirectoryIsNotAnEmptySeries) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  std::ofstream(path_) << "a file";
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("expected the directory of steps")));
  RemovePlaced(path_);
  EXPECT_THAT(Latest(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CheckpointSeriesTest, APlainCheckpointLivesBesideTheSteps) {
  ASSERT_THAT(Save(2, {1, 2}), IsOk());
  const auto save_plain = [&](int seed) {
    RunLocalRanks(2, [&](ProcessGroup&) {
      ASSERT_THAT(SaveCheckpoint(path_, MakeTensors(2, seed)), IsOk());
    });
    EXPECT_TRUE(Holds(path_, seed));
  };
  save_plain(50);
  save_plain(51);
  // Its manifest and two files, those of the steps, and the mark.
  EXPECT_THAT(Files(), SizeIs(3 + 2 * 3 + 1));
  ASSERT_THAT(Save(2, {3}, {.keep_last = 1}), IsOk());
  EXPECT_TRUE(Holds(path_, 51));
  EXPECT_TRUE(Holds(ManifestOf(3), SeedOf(3)));
  EXPECT_THAT(Files(), SizeIs(3 + 3 + 1));
}

// With one that cannot be read, any file may be in use.
TEST_F(CheckpointSeriesTest, AManifestThatCannotBeReadNowKeepsAllFiles) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2}), IsOk());
  const std::string leftover =
      "shard-00000-of-00004.0123456789abcdef.safetensors";
  std::ofstream(JoinPath(path_, leftover)) << "x";
  {
    const FailFileOperation fault("open_for_read", ManifestOf(1),
                                  absl::InternalError("Stale file handle"),
                                  {.times = 1000});
    ASSERT_THAT(Save(1, {3}, {.keep_last = 1}), IsOk());
  }
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{1, 3}));
  EXPECT_TRUE(Holds(ManifestOf(1), SeedOf(1)));
  EXPECT_TRUE(Files().contains(leftover));
  ASSERT_THAT(Save(1, {4}, {.keep_last = 1}), IsOk());
  ExpectExactly(path_, 1, {4});
}

// As of a network, with a list of names that is some seconds old.
class FilesWithoutSteps final : public ForwardingFiles {
 public:
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    auto names = ForwardingFiles::List(path);
    if (!names.ok()) return names;
    std::erase_if(*names, [](const std::string& name) {
      return StepOfManifestName(name).has_value();
    });
    return names;
  }
};

TEST_F(CheckpointSeriesTest, AHostThatDoesNotSeeTheStepsYetRemovesNoneOfThem) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "all hosts see the same objects";
  ASSERT_THAT(Save(2, {1, 2, 3, 4, 5, 6}), IsOk());
  FilesWithoutSteps stale;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    EXPECT_THAT(SaveCheckpoint(path_, MakeTensors(2, 5), nullptr,
                               {.files = group.rank() == 0 ? nullptr : &stale}),
                IsOk());
  });
  EXPECT_TRUE(Holds(path_, 5));
  for (int64_t step = 1; step <= 6; ++step) {
    EXPECT_TRUE(Holds(ManifestOf(step), SeedOf(step))) << step;
  }
}

// Otherwise a full disk would follow.
TEST_F(CheckpointSeriesTest, ADamagedStepGoesWhenItIsOld) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1, 2, 3}), IsOk());
  std::filesystem::resize_file(ManifestOf(3), 40);
  ASSERT_THAT(Save(1, {4}, {.keep_last = 2}), IsOk());
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{2, 3, 4}));
  ASSERT_THAT(Save(1, {5}, {.keep_last = 2}), IsOk());
  ExpectExactly(path_, 1, {4, 5});
}

TEST_F(CheckpointSeriesTest, FilesStayIfTheRemovalOfTheirStepMayNotLast) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1}), IsOk());
  const std::string file = DataFileOf(1, 0);
  {
    // Those for the data file and the switch come first.
    const FailFileOperation fault("sync_directory", path_,
                                  absl::InternalError("Input/output error"),
                                  {.nth = 3});
    ASSERT_THAT(Save(1, {2}, {.keep_last = 1}), IsOk());
  }
  EXPECT_EQ(StepsIn(path_), (std::set<int64_t>{2}));
  EXPECT_TRUE(std::filesystem::exists(file));
  ASSERT_THAT(Save(1, {3}), IsOk());
  ExpectExactly(path_, 1, {2, 3});
}

TEST_F(CheckpointSeriesTest, AStepThatMayNotLastIsReportedAndRemovesNothing) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(1, {1}), IsOk());
  {
    const FailFileOperation fault("sync_directory", path_,
                                  absl::InternalError("Input/output error"),
                                  {.nth = 2});
    EXPECT_THAT(Save(1, {2}, {.keep_last = 1}),
                StatusIs(absl::StatusCode::kUnknown,
                         AllOf(HasSubstr("the step is there"),
                               HasSubstr("loss of power"))));
  }
  ExpectExactly(path_, 1, {1, 2});
}

TEST_F(CheckpointSeriesTest, LostManifestsOfStepsAreRebuilt) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1, 2, 30}), IsOk());
  EXPECT_THAT(FindLostManifests(path_),
              StatusIs(absl::StatusCode::kAlreadyExists));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string before,
      ReadFile(CheckpointFiles(), ManifestOf(30), int64_t{1} << 20));
  RemovePlaced(ManifestOf(30));
  std::filesystem::resize_file(ManifestOf(1), 40);
  EXPECT_THAT(FindLostManifests(path_),
              IsOkAndHolds(ElementsAre(ManifestOf(1), ManifestOf(30))));
  // The files of a step are of no other one.
  EXPECT_THAT(RecoverManifest(ManifestOf(5)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(RecoverManifest(path_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(RecoverManifest(ManifestOf(2)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  for (const int64_t step : {1, 30}) {
    const auto report = RecoverManifest(ManifestOf(step));
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->path, ManifestOf(step));
    EXPECT_EQ(report->files, 2);
  }
  ExpectExactly(path_, 2, {1, 2, 30});
  EXPECT_THAT(ReadFile(CheckpointFiles(), ManifestOf(30), int64_t{1} << 20),
              IsOkAndHolds(before));
}

// As of incremental saves: a later step refers to the files of one that the
// retention has removed.
TEST_F(CheckpointSeriesTest, AStepWhoseFilesOthersNeedIsNotLost) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1}), IsOk());
  std::filesystem::rename(ManifestOf(1), ManifestOf(7));
  EXPECT_THAT(FindLostManifests(path_),
              StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(RecoverManifest(ManifestOf(1)), IsOk());
  EXPECT_TRUE(Holds(ManifestOf(1), SeedOf(1)));
  EXPECT_TRUE(Holds(ManifestOf(7), SeedOf(1)));
}

}  // namespace
}  // namespace sherd
