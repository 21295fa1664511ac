// A step whose machine loses power at any operation on files of save and
// pruning: of what no sync has covered any part may be lost, and afterwards the
// former steps or the new one are whole, and the next save leaves nothing
// behind.
//
// SHERD_TEST_CASES sets the number of saves of each test: from that of their
// operations on, every operation is hit.

#include <cstdint>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/store/routed_files.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/power_loss_files.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CaseCount;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::PowerLossFiles;
using sherd::testing::RandomSeed;

// The steps that are there, of which one is pinned and one is kept as a
// multiple, and what is saved then: a new step, or again the last one.
const std::vector<int64_t> kThere = {1, 2, 10, 11, 12};
constexpr int64_t kPinned = 2;
constexpr int kKeepLast = 2;
constexpr int64_t kKeepEvery = 10;
constexpr int kNamedOutcomes = 4, kOutcomes = 10;

struct Scenario {
  int ranks;
  int64_t saved;
};

class SeriesPowerLossTest : public SeriesFixture,
                            public ::testing::WithParamInterface<Scenario> {
 protected:
  SeriesPowerLossTest()
      : before_(root_ + "_before"),
        survived_(root_ + "_survived"),
        random_(RandomSeed()) {
    EXPECT_THAT(SeriesFixture::Save(GetParam().ranks, kThere), IsOk());
    EXPECT_THAT(PinStep(path_, kPinned), IsOk());
    std::filesystem::remove_all(before_);
    std::filesystem::rename(root_, before_);
  }

  static SeriesOptions Options(FileSystem& files) {
    return {.save = {.files = &files},
            .keep_last = kKeepLast,
            .keep_every = kKeepEvery};
  }

  // One step with other samples than SeedOf, so that a replacement shows.
  absl::Status SaveOne(FileSystem& files, const std::string& path,
                       int64_t step) {
    absl::Status error;
    absl::Mutex mutex;
    const int ranks = GetParam().ranks;
    RoutedFiles routed(files);
    testing::RunLocalRanks(ranks, [&](ProcessGroup&) {
      auto series = CheckpointSeries::Open(path, nullptr, Options(routed));
      absl::Status status = series.status();
      if (status.ok()) {
        status = series->Save(step, MakeTensors(ranks, NewSeed(step)));
      }
      absl::MutexLock lock(&mutex);
      error.Update(status);
    });
    return error;
  }

  static int NewSeed(int64_t step) { return 1000 + static_cast<int>(step); }

  void Restore() const {
    std::filesystem::remove_all(root_);
    std::filesystem::copy(before_, root_,
                          std::filesystem::copy_options::recursive);
  }

  template <typename SaveAt>
  void ForEachOperation(SaveAt save) {
    ForEachOperation(
        [this](FileSystem& files, const std::string& path) {
          return SaveOne(files, path, GetParam().saved);
        },
        save);
  }

  // Calls `at` with numbers of the operations of `work`.
  template <typename Work, typename At>
  void ForEachOperation(Work work, At at) {
    Restore();
    int64_t operations = 0;
    {
      PowerLossFiles files(FileSystem::Posix(), root_);
      EXPECT_THAT(work(files, path_), IsOk());
      operations = files.operations() + 1;
    }
    const int64_t cases = CaseCount(GetParam().ranks == 1 ? 40 : 10);
    for (int64_t i = 0; i < cases; ++i) {
      int64_t operation = 1 + i % operations;
      if (cases < operations) {
        const int64_t begin = 1 + i * operations / cases;
        const int64_t end = (i + 1) * operations / cases + 1;
        operation = begin + static_cast<int64_t>(
                                random_() % static_cast<uint64_t>(end - begin));
      }
      SCOPED_TRACE(absl::StrCat("operation ", operation));
      Restore();
      at(operation);
      if (HasFailure()) return;
    }
  }

  static bool IsNamed(const std::string& path) {
    const absl::StatusOr<bool> exists = CheckpointFiles().Exists(path);
    EXPECT_THAT(exists, IsOk());
    return exists.value_or(false);
  }

  // Whether a step is there, whole; one that is there and is not fails.
  bool IsThere(const std::string& path, int64_t step, int seed) {
    const std::string manifest = ManifestOf(path, step);
    return IsNamed(manifest) && Holds(manifest, seed);
  }

  // After the loss: whether the new step is there. Those that are kept anyway
  // are, and the ones that are expired are whole or gone.
  bool ExpectWhole(const std::string& path) {
    const int64_t saved = GetParam().saved;
    const bool replaces = saved == kThere.back();
    const bool is_new = IsThere(path, saved, NewSeed(saved));
    const bool is_old = replaces && IsThere(path, saved, SeedOf(saved));
    EXPECT_TRUE(!replaces || is_new || is_old) << "neither is whole";
    for (const int64_t step : kThere) {
      if (step == saved) continue;
      // Kept beside the new one: the pinned one, the multiple, and the last.
      const bool must = step == kPinned || step == 10 ||
                        step == (replaces ? 11 : 12) || !is_new;
      if (must || IsNamed(ManifestOf(path, step))) {
        EXPECT_TRUE(IsThere(path, step, SeedOf(step))) << "step " << step;
      }
    }
    return is_new;
  }

  void EndHolder(const std::string& path) {
    const std::string lease = JoinPath(path, kLeaseFileName);
    if (!IsNamed(lease)) return;
    const std::string over = EncodeLease(SampleLease());
    const auto bytes = ReadFile(CheckpointFiles(), lease, kMaxLeaseBytes);
    if (!bytes.ok() || !DecodeLease(*bytes, lease).ok()) return;
    EXPECT_THAT(
        WriteFileAtomically(
            CheckpointFiles(), lease,
            absl::MakeSpan(reinterpret_cast<const std::byte*>(over.data()),
                           over.size())),
        IsOk());
  }

  void ExpectNextSaveLeavesNothing(const std::string& path) {
    EndHolder(path);
    constexpr int64_t kNext = 20;
    ASSERT_THAT(SaveOne(FileSystem::Posix(), path, kNext), IsOk());
    EXPECT_TRUE(Holds(ManifestOf(path, kNext), NewSeed(kNext)));
    const std::set<int64_t> steps = StepsIn(path);
    // The pinned, the multiple, the last two.
    EXPECT_EQ(steps.size(), 4u);
    const auto names = CheckpointFiles().List(path);
    ASSERT_THAT(names, IsOk());
    // Beside them a pin and the mark.
    EXPECT_EQ(names->size(),
              2 + steps.size() * static_cast<size_t>(1 + GetParam().ranks))
        << ::testing::PrintToString(*names);
  }

  // `must`: the save has said that the step is there.
  void ExpectSurvivors(const PowerLossFiles& files, bool must, bool may) {
    const int next = static_cast<int>(random_() % kOutcomes);
    for (int i = 0; i < kOutcomes; ++i) {
      const uint64_t outcome = i < kNamedOutcomes ? i : random_();
      SCOPED_TRACE(absl::StrCat("outcome ", outcome));
      ASSERT_THAT(files.WriteSurvivors(outcome, survived_), IsOk());
      const std::string path = CheckpointPlace(JoinPath(survived_, "steps"));
      const bool is_new = ExpectWhole(path);
      EXPECT_TRUE(is_new || !must);
      EXPECT_TRUE(!is_new || may);
      if (i == next) ExpectNextSaveLeavesNothing(path);
      if (HasFailure()) return;
    }
  }

  const std::string before_;
  const std::string survived_;
  std::mt19937_64 random_;
};

TEST_P(SeriesPowerLossTest, WheneverItComesFormerStepsOrTheNewOneAreWhole) {
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    files.CutPowerAt(operation);
    const absl::Status saved = SaveOne(files, path_, GetParam().saved);
    ExpectSurvivors(files, /*must=*/saved.ok(), /*may=*/true);
  });
}

TEST_P(SeriesPowerLossTest, AfterAFailedOperationItLeavesWhatTheErrorSays) {
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    absl::Status saved;
    {
      const FailFileOperation fault("*", absl::StrCat(root_, "*"),
                                    absl::InternalError("injected fault"),
                                    {.nth = operation, .optional = true});
      saved = SaveOne(files, path_, GetParam().saved);
    }
    ExpectSurvivors(files, /*must=*/saved.ok(),
                    /*may=*/saved.ok() || absl::IsUnknown(saved));
  });
}

// Nor is a directory left that looks as if it had lost its manifests.
TEST_P(SeriesPowerLossTest, WhileAllStepsAreRemovedTheRestIsWhole) {
  ASSERT_THAT(UnpinStep(CheckpointPlace(JoinPath(before_, "steps")), kPinned),
              IsOk());
  const auto remove_all = [](FileSystem& files, const std::string& path) {
    absl::Status status;
    RoutedFiles routed(files);
    testing::RunLocalRanks(1, [&](ProcessGroup&) {
      auto series = CheckpointSeries::Open(path, nullptr, Options(routed));
      ASSERT_THAT(series, IsOk());
      status = series->RemoveAfter(-1);
    });
    return status;
  };
  ForEachOperation(remove_all, [&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    files.CutPowerAt(operation);
    const bool removed = remove_all(files, path_).ok();
    for (int i = 0; i < kOutcomes; ++i) {
      const uint64_t outcome = i < kNamedOutcomes ? i : random_();
      SCOPED_TRACE(absl::StrCat("outcome ", outcome));
      ASSERT_THAT(files.WriteSurvivors(outcome, survived_), IsOk());
      const std::string path = CheckpointPlace(JoinPath(survived_, "steps"));
      const std::set<int64_t> steps = StepsIn(path);
      EXPECT_TRUE(steps.empty() || !removed);
      for (const int64_t step : steps) {
        EXPECT_TRUE(IsThere(path, step, SeedOf(step))) << "step " << step;
      }
      EXPECT_THAT(CheckpointExists(path), IsOkAndHolds(false));
      if (!steps.empty()) {
        EndHolder(path);
        EXPECT_THAT(remove_all(FileSystem::Posix(), path), IsOk());
        ExpectExactly(path, GetParam().ranks, {});
      }
      if (HasFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Saves, SeriesPowerLossTest,
                         ::testing::Values(Scenario{1, 13}, Scenario{3, 13},
                                           Scenario{1, 12}, Scenario{3, 12}),
                         [](const ::testing::TestParamInfo<Scenario>& info) {
                           return absl::StrCat(
                               info.param.saved == 12 ? "Replacing" : "New",
                               "By", info.param.ranks, "Ranks");
                         });

}  // namespace
}  // namespace sherd
