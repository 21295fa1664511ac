// A save whose machine loses power, or that meets an error before it does, at
// any operation on files: of what no sync has covered any part may be lost, and
// afterwards the old or the new checkpoint is whole, and the next save leaves
// nothing behind.
//
// SHERD_TEST_CASES sets the number of saves of each test: from that of their
// operations on, every operation is hit.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/kits/sample_tensors.h"
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
using sherd::testing::LeaveOutSyncs;
using sherd::testing::PowerLossFiles;
using sherd::testing::RandomSeed;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::SizeIs;

using Tensors = std::map<std::string, ShardedTensor>;

// Some blocks of a file for each rank, so that writes tear. Of each rank's file
// more than a quarter is "kept", which never changes.
const std::map<std::string, Dims> kSizes = {
    {"a", {}}, {"kept", {2000, 3}}, {"matrix", {4000, 3}}, {"row", {7}}};
constexpr int kOld = 100, kNew = 200, kNext = 300;
// Outcomes of each loss of power: those that PowerLossFiles names, and random
// ones.
constexpr int kNamedOutcomes = 4, kOutcomes = 12;

int SeedOfTensor(const std::string& name, int seed) {
  return name == "kept" ? kOld : seed;
}

Tensors MakeTensors(int ranks, int seed) {
  Tensors tensors;
  for (const auto& [name, size] : kSizes) {
    const auto spec = SampleSpec(0, size, ranks);
    EXPECT_THAT(spec, IsOk());
    auto tensor = ShardedTensor::Zeros(*spec, size);
    EXPECT_THAT(tensor, IsOk());
    FillSample(*tensor, SeedOfTensor(name, seed));
    tensors.emplace(name, *std::move(tensor));
  }
  return tensors;
}

bool Holds(const CheckpointReader& reader, int seed) {
  for (const auto& [name, size] : kSizes) {
    const auto tensor = reader.ReadTensor(name);
    if (!tensor.ok()) return false;
    if (CountWrong(*tensor, Dims(size.size(), 0), size,
                   SeedOfTensor(name, seed)) != 0) {
      return false;
    }
  }
  return true;
}

// The seed of what the checkpoint holds, whole; nullopt if there is none, 0 if
// it is damaged.
std::optional<int> SeedOf(const std::string& path) {
  const auto exists = CheckpointExists(path);
  EXPECT_THAT(exists, IsOk());
  if (!exists.value_or(false)) return std::nullopt;
  EXPECT_THAT(VerifyCheckpoint(path), IsOk());
  const auto reader = CheckpointReader::Open(path);
  if (!reader.ok()) return 0;
  for (const int seed : {kOld, kNew, kNext}) {
    if (Holds(*reader, seed)) return seed;
  }
  return 0;
}

// Where the lease survives, the process that held it does not.
void EndHolder(const std::string& path) {
  const std::string lease = JoinPath(path, kLeaseFileName);
  FileSystem& files = CheckpointFiles();
  const auto bytes = ReadFile(files, lease, kMaxLeaseBytes);
  if (!bytes.ok() || !DecodeLease(*bytes, lease).ok()) return;
  const std::string over = EncodeLease(SampleLease());
  EXPECT_THAT(
      WriteFileAtomically(
          files, lease,
          absl::MakeSpan(reinterpret_cast<const std::byte*>(over.data()),
                         over.size())),
      IsOk());
}

struct Scenario {
  int ranks;
  // Otherwise the first save to a directory that is not there.
  bool replaces;
  enum Kind { kPlain, kAsync, kIncremental };
  // By SaveCheckpointAsync; or the save writes only what differs from the
  // checkpoint that it replaces.
  Kind kind = kPlain;
};

std::string NameOf(const ::testing::TestParamInfo<Scenario>& info) {
  static constexpr const char* kKinds[] = {"", "Async", "Incremental"};
  return absl::StrCat(kKinds[info.param.kind],
                      info.param.replaces ? "Replacing" : "First", "SaveOf",
                      info.param.ranks, "Ranks");
}

class PowerLossTest : public ::testing::TestWithParam<Scenario> {
 protected:
  PowerLossTest()
      : root_(JoinPath(
            ::testing::TempDir(),
            absl::StrReplaceAll(
                ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                {{"/", "_"}}))),
        before_(root_ + "_before"),
        survived_(root_ + "_survived"),
        random_(RandomSeed()) {
    std::filesystem::remove_all(before_);
    std::filesystem::create_directories(before_);
    if (!GetParam().replaces) return;
    Restore();
    // In the directory that the base is to be for.
    if (GetParam().kind == Scenario::kIncremental)
      bases_.resize(GetParam().ranks);
    EXPECT_THAT(Save(FileSystem::Posix(), root_, kOld, &bases_), IsOk());
    std::filesystem::remove_all(before_);
    std::filesystem::rename(root_, before_);
  }

  static std::string Checkpoint(const std::string& root) {
    return CheckpointPlace(JoinPath(root, "runs/checkpoint"));
  }

  // The error of all ranks, or that of one of them. With `remember`, sets the
  // bases of later saves to that directory, if saves are incremental.
  absl::Status Save(FileSystem& base_files, const std::string& root, int seed,
                    std::vector<SaveBase>* remember = nullptr) {
    absl::Status error;
    absl::Mutex mutex;
    RoutedFiles files(base_files);
    const int ranks = GetParam().ranks;
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      std::shared_ptr<SaveBase> base;
      if (GetParam().kind == Scenario::kIncremental) {
        base = std::make_shared<SaveBase>(bases_[group.rank()]);
      }
      const absl::Status status =
          SaveTensors(Checkpoint(root), MakeTensors(ranks, seed), files, base);
      absl::MutexLock lock(&mutex);
      error.Update(status);
      if (remember != nullptr && base != nullptr) {
        (*remember)[group.rank()] = *base;
      }
    });
    return error;
  }

  static absl::Status SaveTensors(const std::string& path, Tensors tensors,
                                  FileSystem& files,
                                  std::shared_ptr<SaveBase> base) {
    if (GetParam().kind != Scenario::kAsync) {
      Saver saver(
          {.path = path,
           .tensors = std::make_shared<const Tensors>(std::move(tensors)),
           .group = *DefaultGroup(),
           .options = {.files = &files},
           .base = std::move(base)});
      return saver.Run();
    }
    // "matrix" is larger than that, and written from where it is.
    auto save = SaveCheckpointAsync(
        path, tensors, nullptr,
        {.save = {.files = &files}, .staging_budget = 10000});
    EXPECT_THAT(save, IsOk());
    save->Copied().IgnoreError();
    for (auto& [name, tensor] : tensors) FillSample(tensor, 0);
    return save->Durable();
  }

  void Restore() const {
    std::filesystem::remove_all(root_);
    std::filesystem::copy(before_, root_,
                          std::filesystem::copy_options::recursive);
  }

  // The operations on files of a save that nothing disturbs.
  int64_t CountOperations() {
    Restore();
    PowerLossFiles files(FileSystem::Posix(), root_);
    EXPECT_THAT(Save(files, root_, kNew), IsOk());
    // Manifest and mark, a file of each rank, and those that an increment
    // refers to.
    EXPECT_THAT(
        CheckpointFiles().List(Checkpoint(root_)),
        IsOkAndHolds(SizeIs(
            2 + GetParam().ranks *
                    (GetParam().kind == Scenario::kIncremental ? 2 : 1))));
    return files.operations();
  }

  // Calls `save` for operations 1 to one behind the last, or, if the cases are
  // fewer, for as many as there are cases.
  template <typename SaveAt>
  void ForEachOperation(SaveAt save) {
    const int64_t operations = CountOperations() + 1;
    const int64_t cases =
        CaseCount(GetParam().ranks == 1 && GetParam().replaces ? 50 : 10);
    for (int64_t i = 0; i < cases; ++i) {
      int64_t operation = 1 + i % operations;
      if (cases < operations) {
        operation = 1 + i * operations / cases;
        operation += static_cast<int64_t>(
            random_() % ((i + 1) * operations / cases + 1 - operation));
      }
      SCOPED_TRACE(absl::StrCat("operation ", operation));
      Restore();
      save(operation);
      if (HasFailure()) return;
    }
  }

  // `expected` holds the seeds of the checkpoints that may be found, and 0 if
  // there may be none. The next save follows on one of the outcomes.
  void ExpectSurvivors(const PowerLossFiles& files,
                       const std::set<int>& expected) {
    const int next = static_cast<int>(random_() % kOutcomes);
    for (int i = 0; i < kOutcomes; ++i) {
      const uint64_t outcome = i < kNamedOutcomes ? i : random_();
      SCOPED_TRACE(absl::StrCat("outcome ", outcome));
      ASSERT_THAT(files.WriteSurvivors(outcome, survived_), IsOk());
      const std::string checkpoint = Checkpoint(survived_);
      const std::optional<int> seed = SeedOf(checkpoint);
      EXPECT_NE(seed, 0) << "neither checkpoint is whole";
      EXPECT_TRUE(expected.contains(seed.value_or(0))) << seed.value_or(0);
      if (i == next) ExpectNextSaveLeavesNothing(checkpoint);
      if (HasFailure()) return;
    }
  }

  void ExpectNextSaveLeavesNothing(const std::string& checkpoint) {
    EndHolder(checkpoint);
    EXPECT_THAT(Save(FileSystem::Posix(), survived_, kNext), IsOk());
    EXPECT_EQ(SeedOf(checkpoint), kNext);
    // Manifest and mark, and a data file of each rank.
    EXPECT_THAT(CheckpointFiles().List(checkpoint),
                IsOkAndHolds(SizeIs(GetParam().ranks + 2)));
  }

  // The former checkpoint, or none.
  int old() const { return GetParam().replaces ? kOld : 0; }

  // The file system of this machine keeps its power.
  const LeaveOutSyncs no_syncs_;
  const std::string root_;
  // What root_ holds before each save.
  const std::string before_;
  const std::string survived_;
  // Of each rank, of saves to root_.
  std::vector<SaveBase> bases_;
  std::mt19937_64 random_;
};

TEST_P(PowerLossTest, WheneverItComesTheOldOrTheNewCheckpointIsWhole) {
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    files.CutPowerAt(operation);
    const absl::Status saved = Save(files, root_, kNew);
    ExpectSurvivors(
        files, saved.ok() ? std::set<int>{kNew} : std::set<int>{old(), kNew});
  });
}

TEST_P(PowerLossTest, AfterAFailedSaveItLeavesWhatTheErrorSays) {
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    absl::Status saved;
    {
      // A write that fails is short.
      const FailFileOperation fault("*", absl::StrCat(root_, "*"),
                                    absl::InternalError("injected fault"),
                                    {.nth = operation, .optional = true});
      saved = Save(files, root_, kNew);
    }
    ExpectSurvivors(files, saved.ok()               ? std::set<int>{kNew}
                           : absl::IsUnknown(saved) ? std::set<int>{old(), kNew}
                                                    : std::set<int>{old()});
  });
}

TEST_P(PowerLossTest, ASaveThatFollowsAnUncertainSwitchKeepsWhatMayBeLoaded) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "each put is durable at once";
  ForEachOperation([&](int64_t operation) {
    PowerLossFiles files(FileSystem::Posix(), root_);
    {
      // Each rank syncs the directory once before the switch.
      const FailFileOperation fault("sync_directory", "*/checkpoint",
                                    absl::InternalError("injected"),
                                    {.nth = GetParam().ranks + 1});
      EXPECT_THAT(Save(files, root_, kNew),
                  StatusIs(absl::StatusCode::kUnknown));
    }
    files.CutPowerAt(files.operations() + operation);
    const absl::Status saved = Save(files, root_, kNext);
    ExpectSurvivors(files, saved.ok() ? std::set<int>{kNext}
                                      : std::set<int>{old(), kNew, kNext});
  });
}

INSTANTIATE_TEST_SUITE_P(
    Saves, PowerLossTest,
    ::testing::Values(Scenario{1, true}, Scenario{3, true}, Scenario{1, false},
                      Scenario{3, false}, Scenario{1, true, Scenario::kAsync},
                      Scenario{3, true, Scenario::kAsync},
                      Scenario{1, true, Scenario::kIncremental},
                      Scenario{3, true, Scenario::kIncremental}),
    NameOf);

}  // namespace
}  // namespace sherd
