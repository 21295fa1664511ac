// A series that copies its steps to a second directory.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/series/step_copier.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/series_fixture.h"
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
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Files of a disk that has so much space below a directory.
class FilesWithSpace final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  void SetFree(const std::string& directory, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    free_[directory] = bytes;
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    {
      absl::MutexLock lock(&mutex_);
      const auto it = free_.find(path);
      if (it != free_.end()) return it->second;
    }
    return ForwardingFiles::FreeBytes(path);
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, int64_t> free_ ABSL_GUARDED_BY(mutex_);
};

class SeriesTiersTest : public SeriesFixture {
 protected:
  SeriesOptions Options() const { return {.copy_to = second_}; }

  // Calls `body` with a series on each of two ranks.
  template <typename Body>
  void WithSeries(const SeriesOptions& options, Body body) {
    RunLocalRanks(2, [&](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          CheckpointSeries series,
          CheckpointSeries::Open(path_, nullptr, options));
      body(series, group);
    });
  }

  absl::Status SaveStep(CheckpointSeries& series, int64_t step) {
    return series.Save(step, MakeTensors(2, SeedOf(step)));
  }
};

TEST_F(SeriesTiersTest, EachStepIsInBothWithOneRetention) {
  SeriesOptions options = Options();
  options.keep_last = 2;
  options.keep_every = 4;
  ASSERT_THAT(Save(2, {4, 5, 6, 7}, options), IsOk());
  ExpectExactly(path_, 2, {4, 6, 7});
  ExpectExactly(second_, 2, {4, 6, 7});
}

TEST_F(SeriesTiersTest, AStepThatTheFirstHasLostIsLoadedFromTheSecond) {
  ASSERT_THAT(Save(2, {1, 2, 3}, Options()), IsOk());
  RemovePlaced(ManifestOf(3));
  RemovePlaced(DataFileOf(2, 1));
  const auto expect_latest = [&](CheckpointSeries& series, int64_t step,
                                 const std::string& directory) {
    SHERD_ASSERT_OK_AND_ASSIGN(const LatestStep latest, series.Latest());
    EXPECT_EQ(latest.step, step);
    EXPECT_EQ(latest.path, ManifestOf(directory, step));
    EXPECT_THAT(latest.passed_over, IsEmpty());
    Tensors tensors = MakeTensors(2, 1000);
    ASSERT_THAT(series.LoadInto(step, {{"matrix", &tensors.at("matrix")}}),
                IsOk());
    EXPECT_EQ(CountWrong(tensors.at("matrix"), SeedOf(step)), 0);
  };
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    expect_latest(series, 3, second_);
    Tensors tensors = MakeTensors(2, 1000);
    ASSERT_THAT(series.LoadInto(2, {{"row", &tensors.at("row")}}), IsOk());
    EXPECT_EQ(CountWrong(tensors.at("row"), SeedOf(2)), 0);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto steps, series.List());
    ASSERT_THAT(steps, SizeIs(3));
    EXPECT_EQ(steps[0].path, ManifestOf(1));
    EXPECT_EQ(steps[1].path, ManifestOf(second_, 2));
    EXPECT_EQ(steps[2].path, ManifestOf(second_, 3));
    EXPECT_THAT(series.LoadInto(9, {}), StatusIs(absl::StatusCode::kNotFound));
  });
  // As on a new machine.
  RemoveAllPlaced(path_);
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    expect_latest(series, 3, second_);
    EXPECT_THAT(SaveStep(series, 4), IsOk());
    EXPECT_THAT(series.Flush(), IsOk());
    expect_latest(series, 4, path_);
  });
  ExpectExactly(path_, 2, {4});
  ExpectExactly(second_, 2, {1, 2, 3, 4});
}

TEST_F(SeriesTiersTest, DataThatIsDamagedIsLoadedFromTheSecond) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1, 2}, Options()), IsOk());
  const std::string damaged = DataFileOf(2, 1);
  FlipBit(damaged, 4096);
  const auto load = [&](CheckpointSeries& series) {
    Tensors tensors = MakeTensors(2, 1000);
    SHERD_RETURN_IF_ERROR(
        series.LoadInto(2, {{"matrix", &tensors.at("matrix")}}));
    EXPECT_EQ(CountWrong(tensors.at("matrix"), SeedOf(2)), 0);
    return series.Load(2, {{"matrix", tensors.at("matrix").spec()}}).status();
  };
  WithSeries({}, [&](CheckpointSeries& series, ProcessGroup&) {
    EXPECT_THAT(load(series), StatusIs(absl::StatusCode::kDataLoss));
  });
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    EXPECT_THAT(load(series), IsOk());
  });
  FlipBit(JoinPath(second_, damaged.substr(damaged.rfind('/') + 1)), 4096);
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    // Of the first one.
    EXPECT_THAT(load(series),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(damaged)));
  });
}

TEST_F(SeriesTiersTest, OneDirectoryUnderTwoNamesIsNoCopy) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "has links and relative paths";
  const std::string own = std::filesystem::path(path_).filename().string();
  for (const std::string& same :
       {path_, path_ + "/", root_ + "/./" + own, root_ + "/x/../" + own,
        "file:" + path_, std::filesystem::relative(path_).string()}) {
    EXPECT_THAT(Save(2, {1}, {.copy_to = same}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("copy_to is the same directory")))
        << same;
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  // A link looks like any other path.
  std::filesystem::create_directory_symlink(path_, second_);
  EXPECT_THAT(Save(2, {1}, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is the same directory as")));
  ExpectExactly(path_, 2, {1});
}

TEST_F(SeriesTiersTest, ACopyThatHasNoSpaceIsNotBegun) {
  FilesWithSpace files(CheckpointFiles());
  SeriesOptions options = Options();
  options.save.files = &files;
  WithSeries(options, [&](CheckpointSeries& series, ProcessGroup& group) {
    ASSERT_THAT(SaveStep(series, 1), IsOk());
    ASSERT_THAT(series.Flush(), IsOk());
    files.SetFree(second_, 1000);
    ASSERT_THAT(group.Barrier(), IsOk());
    ASSERT_THAT(SaveStep(series, 2), IsOk());
    EXPECT_THAT(series.Flush(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("copy \""), HasSubstr("only 1000"))));
  });
  ExpectExactly(path_, 2, {1, 2});
  ExpectExactly(second_, 2, {1});
}

TEST_F(SeriesTiersTest, AnErrorOfACopyComesWithTheNextSaveAndFlush) {
  const FailFileOperation full("write", JoinPath(second_, "shard-*"),
                               absl::ResourceExhaustedError("disk full"),
                               {.times = 2, .rank = 1});
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    ASSERT_THAT(SaveStep(series, 1), IsOk());
    const auto failed = [&](int64_t step) {
      return StatusIs(
          absl::StatusCode::kResourceExhausted,
          AllOf(HasSubstr(absl::StrCat("copy \"", second_, "\" step ", step)),
                HasSubstr("rank 1"), HasSubstr("disk full")));
    };
    EXPECT_THAT(SaveStep(series, 2), failed(1));
    EXPECT_THAT(series.Flush(), failed(2));
    EXPECT_THAT(series.Flush(), IsOk());
    EXPECT_THAT(SaveStep(series, 3), IsOk());
    EXPECT_THAT(series.Flush(), IsOk());
  });
  ExpectExactly(path_, 2, {1, 2, 3});
  // Also of what the failed copies have left.
  ExpectExactly(second_, 2, {3});
}

// By then another save may hold the lease, and name what it removes.
TEST_F(SeriesTiersTest, ACopyThatFailsRemovesOnlyWhatHasItsOwnName) {
  ASSERT_THAT(Save(2, {1}), IsOk());
  const std::string copies = JoinPath(second_, "shard-*");
  const FailFileOperation full(
      "write", copies, absl::ResourceExhaustedError("disk full"), {.rank = 1});
  const CountPassages removals(
      "file/remove", {.subject = copies + ".safetensors", .optional = true});
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto copier,
        StepCopier::Create(group, {.from = path_, .to = second_}));
    copier->Run(1);
    EXPECT_THAT(copier->TakeError(),
                StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  });
  EXPECT_EQ(removals.count(), 0);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto names, CheckpointFiles().List(second_));
  EXPECT_THAT(names, Not(Contains(EndsWith(".tmp"))));
}

// Stopped for so long that another holder of the lease has copied the step.
TEST_F(SeriesTiersTest, ACopierThatWakesLateLeavesTheFilesOfTheNextHolder) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1}), IsOk());
  const std::string name =
      std::filesystem::path(DataFileOf(1, 1)).filename().string();
  for (const char* operation : {"", "write", "close", "rename"}) {
    SCOPED_TRACE(operation);
    RemoveAllPlaced(second_);
    const std::string subject = JoinPath(second_, "shard-00001*");
    const CallAt asleep("file/create",
                        [&] {
                          std::filesystem::copy_file(JoinPath(path_, name),
                                                     JoinPath(second_, name));
                        },
                        {.rank = 1, .subject = subject});
    std::optional<FailFileOperation> fault;
    if (*operation != 0) {
      fault.emplace(operation, subject, absl::InternalError("Stale file"),
                    sherd::testing::FaultOptions{.rank = 1});
    }
    RunLocalRanks(2, [&](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto copier,
          StepCopier::Create(group, {.from = path_, .to = second_}));
      copier->Run(1);
      EXPECT_EQ(copier->TakeError().ok(), *operation == 0);
    });
    EXPECT_THAT(VerifyDataFile(JoinPath(second_, name)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const auto names,
                               CheckpointFiles().List(second_));
    EXPECT_THAT(names, Not(Contains(EndsWith(".tmp"))));
  }
}

TEST_F(SeriesTiersTest, ASecondDirectoryThatCannotBeMadeIsNamed) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  std::ofstream(second_) << "a file";
  EXPECT_THAT(Save(2, {1}, Options()), ::testing::Not(IsOk()));
  ExpectExactly(path_, 2, {1});
  // Loads do not depend on it.
  const SeriesOptions options = {.copy_to = JoinPath(root_, "nowhere")};
  WithSeries(options, [&](CheckpointSeries& series, ProcessGroup&) {
    EXPECT_EQ(series.Latest()->step, 1);
  });
}

// A bit that turned after the save, or on its way.
TEST_F(SeriesTiersTest, ACopyIsComparedWithTheChecksums) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  const auto flip = [&](const std::string& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const std::string file = entry.path().string();
      if (file.find("shard-00001") == std::string::npos) continue;
      const auto size = std::filesystem::file_size(file);
      if (size >= 5000) return FlipBit(file, 4096 + 5);
    }
    FAIL() << "no file to damage in " << directory;
  };
  for (const std::string& damaged : {path_, second_}) {
    SCOPED_TRACE(damaged);
    RemoveAllPlaced(path_);
    RemoveAllPlaced(second_);
    const bool at_source = damaged == path_;
    const CallAt damage(at_source ? "file/create" : "file/close",
                        [&] { flip(damaged); },
                        {.rank = 1, .subject = JoinPath(second_, "shard-*")});
    EXPECT_THAT(Save(2, {1}, Options()),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("copy \""), HasSubstr("rank 1"),
                               HasSubstr("shard-00001"), HasSubstr("matrix"))));
    EXPECT_THAT(StepsIn(second_), IsEmpty());
  }
}

TEST_F(SeriesTiersTest, APinHoldsInBoth) {
  SeriesOptions options = Options();
  options.keep_last = 1;
  WithSeries(options, [&](CheckpointSeries& series, ProcessGroup& group) {
    ASSERT_THAT(SaveStep(series, 1), IsOk());
    // While it is copied, or before, or after.
    if (group.rank() == 0) {
      EXPECT_THAT(series.Pin(1), IsOk());
      EXPECT_THAT(series.Pin(5), StatusIs(absl::StatusCode::kNotFound));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    ASSERT_THAT(SaveStep(series, 2), IsOk());
    ASSERT_THAT(SaveStep(series, 3), IsOk());
    ASSERT_THAT(series.Flush(), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const auto steps, series.List());
    EXPECT_TRUE(steps[0].pinned);
    EXPECT_FALSE(steps[1].pinned);
  });
  ExpectExactly(path_, 2, {1, 3});
  ExpectExactly(second_, 2, {1, 3});
  WithSeries(options, [&](CheckpointSeries& series, ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_THAT(series.Unpin(1), IsOk());
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    ASSERT_THAT(SaveStep(series, 4), IsOk());
    ASSERT_THAT(series.Flush(), IsOk());
  });
  ExpectExactly(path_, 2, {4});
  ExpectExactly(second_, 2, {4});
}

// The copy finds the pin after it has placed the manifest, or who pins finds
// the manifest.
TEST_F(SeriesTiersTest, APinBeforeTheCopyIsCopied) {
  const CallAt pin("file/create",
                   [&] { EXPECT_THAT(PinStep(path_, 1), IsOk()); },
                   {.rank = 0, .subject = JoinPath(second_, "shard-*")});
  ASSERT_THAT(Save(2, {1}, Options()), IsOk());
  EXPECT_THAT(ListSteps(second_), IsOk());
  EXPECT_TRUE((*ListSteps(second_))[0].pinned);
}

TEST_F(SeriesTiersTest, StepsAreRemovedFromBoth) {
  ASSERT_THAT(Save(2, {1, 2, 3}, Options()), IsOk());
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    EXPECT_THAT(series.RemoveAfter(1), IsOk());
  });
  ExpectExactly(path_, 2, {1});
  ExpectExactly(second_, 2, {1});
}

TEST_F(SeriesTiersTest, APinInEitherKeepsTheStepsOfBoth) {
  ASSERT_THAT(Save(2, {1, 2, 3}, Options()), IsOk());
  ASSERT_THAT(PinStep(second_, 2), IsOk());
  WithSeries(Options(), [&](CheckpointSeries& series, ProcessGroup&) {
    EXPECT_THAT(
        series.RemoveAfter(1),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("step 2 is pinned"), HasSubstr(second_))));
  });
  ExpectExactly(path_, 2, {1, 2, 3});
  ExpectExactly(second_, 2, {1, 2, 3});
}

// As of an incremental save: the second directory has the file already.
TEST_F(SeriesTiersTest, AFileOfAnEarlierStepIsNotCopiedAgain) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1}, Options()), IsOk());
  const CountPassages creations(
      "file/create",
      {.subject = JoinPath(second_, "shard-*"), .optional = true});
  // A step with the files of another.
  std::filesystem::copy_file(ManifestOf(1), ManifestOf(second_, 7));
  RemovePlaced(ManifestOf(second_, 1));
  ASSERT_THAT(Save(2, {2}, Options()), IsOk());
  EXPECT_EQ(creations.count(), 2);
  EXPECT_TRUE(Holds(ManifestOf(second_, 7), SeedOf(1)));
}

// The copy that wrote it may have ended before it was durable.
TEST_F(SeriesTiersTest, AFileThatAFailedCopyLeftIsMadeDurable) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1}, Options()), IsOk());
  RemovePlaced(ManifestOf(second_, 1));
  // So that nothing is removed.
  std::ofstream(ManifestOf(second_, 900)) << "cannot be read";
  const FailFileOperation fault("open_for_read", ManifestOf(second_, 900),
                                absl::InternalError("Stale file handle"),
                                {.times = 1000});
  const std::string copies = JoinPath(second_, "shard-*");
  const CountPassages creations("file/create",
                                {.subject = copies, .optional = true});
  const CountPassages syncs("file/sync", {.subject = copies});
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto copier,
        StepCopier::Create(group, {.from = path_, .to = second_}));
    copier->Run(1);
    EXPECT_THAT(copier->TakeError(), IsOk());
  });
  EXPECT_EQ(creations.count(), 0);
  EXPECT_EQ(syncs.count(), 2);
  EXPECT_TRUE(Holds(ManifestOf(second_, 1), SeedOf(1)));
}

TEST_F(SeriesTiersTest, AFileOfAnEarlierStepThatIsCutOffIsCopiedAgain) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  ASSERT_THAT(Save(2, {1}, Options()), IsOk());
  const std::string name =
      std::filesystem::path(DataFileOf(1, 0)).filename().string();
  std::filesystem::resize_file(JoinPath(second_, name), 5000);
  EXPECT_FALSE(Holds(ManifestOf(second_, 1), SeedOf(1)));
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto copier,
        StepCopier::Create(group, {.from = path_, .to = second_}));
    copier->Run(1);
    EXPECT_THAT(copier->TakeError(), IsOk());
  });
  ExpectExactly(second_, 2, {1});
}

TEST_F(SeriesTiersTest, AnotherWriterOfTheSecondDirectoryIsNamed) {
  std::filesystem::create_directories(second_);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto lease,
      CheckpointLease::Take(CheckpointFiles(), second_, "0123456789abcdef"));
  EXPECT_THAT(Save(2, {1}, Options()),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("copy \"")));
  ExpectExactly(path_, 2, {1});
}

}  // namespace
}  // namespace sherd
