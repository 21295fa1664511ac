// A step whose machine loses power at any operation on files of save, pruning
// and copying: of what no sync has covered any part may be lost, and afterwards
// the former steps or the new one are whole, and the next save leaves nothing
// behind.
//
// SHERD_TEST_CASES sets the number of saves of each test: from that of their
// operations on, every operation is hit.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"
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
  // By SaveAsync; or the save refers to the files of the step before it, whose
  // elements it has; or each step is copied to a second directory.
  enum Kind { kPlain, kAsync, kIncremental, kCopied };
  Kind kind = kPlain;
};

std::string NameOf(const ::testing::TestParamInfo<Scenario>& info) {
  static constexpr const char* kKinds[] = {"", "Async", "Incremental",
                                           "Copied"};
  return absl::StrCat(kKinds[info.param.kind],
                      info.param.saved == kThere.back() ? "Replacing" : "New",
                      "By", info.param.ranks, "Ranks");
}

class SeriesPowerLossTest : public SeriesFixture,
                            public ::testing::WithParamInterface<Scenario> {
 protected:
  SeriesPowerLossTest()
      : before_(root_ + "_before"),
        survived_(root_ + "_survived"),
        random_(RandomSeed()) {
    EXPECT_THAT(
        SeriesFixture::Save(GetParam().ranks, kThere,
                            {.copy_to = is(Scenario::kCopied) ? second_ : ""}),
        IsOk());
    EXPECT_THAT(PinStep(path_, kPinned), IsOk());
    if (is(Scenario::kIncremental)) {
      // Once more, for what is remembered of it.
      bases_.resize(static_cast<size_t>(GetParam().ranks));
      EXPECT_THAT(SaveOne(FileSystem::Posix(), root_, kThere.back(), &bases_),
                  IsOk());
    }
    std::filesystem::remove_all(before_);
    std::filesystem::rename(root_, before_);
  }

  static bool is(Scenario::Kind kind) { return GetParam().kind == kind; }

  static std::string StepsOf(const std::string& root) {
    return CheckpointPlace(JoinPath(root, "steps"));
  }
  static std::string CopiesOf(const std::string& root) {
    return CheckpointPlace(JoinPath(root, "second"));
  }

  static SeriesOptions Options(FileSystem& files, const std::string& root) {
    SeriesOptions options = {.save = {.files = &files},
                             .keep_last = kKeepLast,
                             .keep_every = kKeepEvery};
    if (is(Scenario::kCopied)) options.copy_to = CopiesOf(root);
    return options;
  }

  // One step with the samples of NewSeed; the error of all ranks, or that of
  // one of them. With `remember`, removes no step, and sets the bases of later
  // saves to that directory.
  absl::Status SaveOne(FileSystem& files, const std::string& root, int64_t step,
                       std::vector<SaveBase>* remember = nullptr) {
    absl::Status error;
    absl::Mutex mutex;
    RoutedFiles routed(files);
    testing::RunLocalRanks(GetParam().ranks, [&](ProcessGroup& group) {
      const auto rank = static_cast<size_t>(group.rank());
      SeriesOptions options = Options(routed, root);
      if (remember != nullptr) options.keep_last = 0;
      std::shared_ptr<SaveBase> base;
      absl::Status status;
      if (is(Scenario::kIncremental)) {
        base = std::make_shared<SaveBase>(bases_[rank]);
        status = SaveIncrement(root, step, options, base);
      } else {
        status = SaveInSeries(root, step, options);
      }
      absl::MutexLock lock(&mutex);
      error.Update(status);
      if (remember != nullptr) (*remember)[rank] = *base;
    });
    return error;
  }

  static absl::Status SaveInSeries(const std::string& root, int64_t step,
                                   const SeriesOptions& options) {
    SHERD_ASSIGN_OR_RETURN(
        CheckpointSeries series,
        CheckpointSeries::Open(StepsOf(root), nullptr, options));
    const Tensors tensors = MakeTensors(GetParam().ranks, NewSeed(step));
    if (is(Scenario::kAsync)) {
      SHERD_ASSIGN_OR_RETURN(SaveHandle save, series.SaveAsync(step, tensors));
      return save.Durable();
    }
    SHERD_RETURN_IF_ERROR(series.Save(step, tensors));
    return series.Flush();
  }

  // As a series that has saved the step before does.
  static absl::Status SaveIncrement(const std::string& root, int64_t step,
                                    const SeriesOptions& options,
                                    std::shared_ptr<SaveBase> base) {
    Saver saver(
        {.path = StepsOf(root),
         .tensors = std::make_shared<const Tensors>(
             MakeTensors(GetParam().ranks, NewSeed(step))),
         .group = *DefaultGroup(),
         .options = options.save,
         .base = std::move(base),
         .target = {.step = step,
                    .retention = {options.keep_last, options.keep_every}}});
    return saver.Run();
  }

  // Others than SeedOf, so that a replacement shows; but an increment has what
  // it refers to.
  static int NewSeed(int64_t step) {
    if (is(Scenario::kIncremental)) return SeedOf(kThere.back());
    return 1000 + static_cast<int>(step);
  }

  void Restore() const {
    std::filesystem::remove_all(root_);
    std::filesystem::copy(before_, root_,
                          std::filesystem::copy_options::recursive);
  }

  template <typename SaveAt>
  void ForEachOperation(SaveAt save) {
    ForEachOperation(
        [this](FileSystem& files) {
          return SaveOne(files, root_, GetParam().saved);
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
      EXPECT_THAT(work(files), IsOk());
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

  // That each step in the second directory is whole, and those that are kept
  // are there; `must`: the new one too.
  void ExpectCopiesWhole(const std::string& path, bool must) {
    const std::set<int64_t> steps = StepsIn(path);
    for (const int64_t step : steps) {
      EXPECT_TRUE(IsThere(path, step, SeedOf(step)) ||
                  IsThere(path, step, NewSeed(step)))
          << "step " << step;
    }
    EXPECT_TRUE(steps.contains(10) && steps.contains(12));
    EXPECT_TRUE(steps.contains(GetParam().saved) || !must);
  }

  void ExpectNextSaveLeavesNothing() {
    EndHolder(StepsOf(survived_));
    if (is(Scenario::kCopied)) EndHolder(CopiesOf(survived_));
    constexpr int64_t kNext = 20;
    ASSERT_THAT(SaveOne(FileSystem::Posix(), survived_, kNext), IsOk());
    // The pinned, the multiple, the last two.
    ExpectOnlySteps(StepsOf(survived_), kNext, 4);
    if (is(Scenario::kCopied)) ExpectOnlySteps(CopiesOf(survived_), kNext, 3);
  }

  // So many steps, of which one is `last`, their files, and nothing else but
  // the mark and pins.
  void ExpectOnlySteps(const std::string& path, int64_t last, size_t count) {
    EXPECT_TRUE(Holds(ManifestOf(path, last), NewSeed(last)));
    const std::set<int64_t> steps = StepsIn(path);
    EXPECT_EQ(steps.size(), count);
    std::set<std::string> expected = {kCommittedFileName};
    for (const int64_t step : steps) {
      expected.insert(StepManifestName(step));
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Manifest manifest,
          ReadManifest(CheckpointFiles(), ManifestOf(path, step)));
      EXPECT_GE(manifest.files.size(), static_cast<size_t>(GetParam().ranks));
      for (const ManifestFile& file : manifest.files) {
        expected.insert(file.name);
      }
    }
    std::set<std::string> names;
    SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> listed,
                               CheckpointFiles().List(path));
    for (const std::string& name : listed) {
      if (!StepOfPinName(name).has_value()) names.insert(name);
    }
    EXPECT_EQ(names, expected);
  }

  // `must`: the save has said that the step is there.
  void ExpectSurvivors(const PowerLossFiles& files, bool must, bool may) {
    const int next = static_cast<int>(random_() % kOutcomes);
    for (int i = 0; i < kOutcomes; ++i) {
      const uint64_t outcome = i < kNamedOutcomes ? i : random_();
      SCOPED_TRACE(absl::StrCat("outcome ", outcome));
      ASSERT_THAT(files.WriteSurvivors(outcome, survived_), IsOk());
      const bool is_new = ExpectWhole(StepsOf(survived_));
      EXPECT_TRUE(is_new || !must);
      EXPECT_TRUE(!is_new || may);
      if (is(Scenario::kCopied)) ExpectCopiesWhole(CopiesOf(survived_), must);
      if (i == next) ExpectNextSaveLeavesNothing();
      if (HasFailure()) return;
    }
  }

  const std::string before_;
  const std::string survived_;
  // Of each rank, of saves to root_.
  std::vector<SaveBase> bases_;
  std::mt19937_64 random_;
};

TEST_P(SeriesPowerLossTest, WheneverItComesFormerStepsOrTheNewOneAreWhole) {
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    files.CutPowerAt(operation);
    const absl::Status saved = SaveOne(files, root_, GetParam().saved);
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
      saved = SaveOne(files, root_, GetParam().saved);
    }
    // The error may be that of the copy.
    ExpectSurvivors(
        files, /*must=*/saved.ok(),
        /*may=*/saved.ok() || absl::IsUnknown(saved) || is(Scenario::kCopied));
  });
}

class StepsRemovedPowerLossTest : public SeriesPowerLossTest {};

// Nor is a directory left that looks as if it had lost its manifests. Of many
// steps it would be rare that only these are lost: two are there.
TEST_P(StepsRemovedPowerLossTest, WhateverIsLostTheRestIsWhole) {
  const auto remove_after = [](int64_t step, FileSystem& files,
                               const std::string& root) {
    absl::Status status;
    RoutedFiles routed(files);
    testing::RunLocalRanks(1, [&](ProcessGroup&) {
      auto series =
          CheckpointSeries::Open(StepsOf(root), nullptr, Options(routed, root));
      ASSERT_THAT(series, IsOk());
      status = series->RemoveAfter(step);
    });
    return status;
  };
  const auto remove_all = [&](FileSystem& files) {
    return remove_after(-1, files, root_);
  };
  ASSERT_THAT(UnpinStep(StepsOf(before_), kPinned), IsOk());
  ASSERT_THAT(remove_after(2, FileSystem::Posix(), before_), IsOk());
  ForEachOperation(remove_all, [&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    files.CutPowerAt(operation);
    const bool removed = remove_all(files).ok();
    for (int i = 0; i < kOutcomes; ++i) {
      const uint64_t outcome = i < kNamedOutcomes ? i : random_();
      SCOPED_TRACE(absl::StrCat("outcome ", outcome));
      ASSERT_THAT(files.WriteSurvivors(outcome, survived_), IsOk());
      const std::string path = StepsOf(survived_);
      const std::set<int64_t> steps = StepsIn(path);
      EXPECT_TRUE(steps.empty() || !removed);
      for (const int64_t step : steps) {
        EXPECT_TRUE(IsThere(path, step, SeedOf(step))) << "step " << step;
      }
      EXPECT_THAT(CheckpointExists(path), IsOkAndHolds(false));
      if (!steps.empty()) {
        EndHolder(path);
        EXPECT_THAT(remove_after(-1, FileSystem::Posix(), survived_), IsOk());
        ExpectExactly(path, GetParam().ranks, {});
      }
      if (HasFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Saves, SeriesPowerLossTest,
    ::testing::Values(Scenario{1, 13}, Scenario{3, 13}, Scenario{1, 12},
                      Scenario{3, 12}, Scenario{1, 13, Scenario::kAsync},
                      Scenario{1, 13, Scenario::kIncremental},
                      Scenario{3, 13, Scenario::kIncremental},
                      Scenario{1, 13, Scenario::kCopied},
                      Scenario{3, 13, Scenario::kCopied}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(Saves, StepsRemovedPowerLossTest,
                         ::testing::Values(Scenario{1, 13}), NameOf);

}  // namespace
}  // namespace sherd
