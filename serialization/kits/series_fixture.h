#ifndef SHERD_SERIALIZATION_KITS_SERIES_FIXTURE_H_
#define SHERD_SERIALIZATION_KITS_SERIES_FIXTURE_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// For tests of series, in directories of the test's own. A step holds samples
// of the seed number + 1, unless it says otherwise.
class SeriesFixture : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, ShardedTensor>;

  static inline const std::map<std::string, Dims> kSizes = {
      {"a", {}}, {"matrix", {400, 3}}, {"row", {7}}};

  SeriesFixture() {
    std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (char& c : name) c = c == '/' ? '_' : c;
    root_ = JoinPath(::testing::TempDir(), "series_" + name);
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    path_ = CheckpointPlace(JoinPath(root_, "steps"));
    second_ = CheckpointPlace(JoinPath(root_, "second"));
  }

  static Tensors MakeTensors(int ranks, int seed) {
    Tensors tensors;
    for (const auto& [name, size] : kSizes) {
      auto tensor = ShardedTensor::Zeros(*SampleSpec(0, size, ranks), size);
      EXPECT_THAT(tensor, testing::IsOk());
      FillSample(*tensor, seed);
      tensors.emplace(name, *std::move(tensor));
    }
    return tensors;
  }

  static int SeedOf(int64_t step) { return static_cast<int>(step) + 1; }

  // Saves the steps with one series; the first error of any rank, after which
  // that rank stops.
  absl::Status Save(int ranks, const std::vector<int64_t>& steps,
                    const SeriesOptions& options = {}) {
    absl::Status error;
    absl::Mutex mutex;
    testing::RunLocalRanks(ranks, [&](ProcessGroup&) {
      absl::Status status;
      auto series = CheckpointSeries::Open(path_, nullptr, options);
      status = series.status();
      for (const int64_t step : steps) {
        if (status.ok()) {
          status = series->Save(step, MakeTensors(ranks, SeedOf(step)));
        }
      }
      if (status.ok()) status = series->Flush();
      absl::MutexLock lock(&mutex);
      error.Update(status);
    });
    return error;
  }

  // The latest step by two ranks; what rank 0 gets.
  absl::StatusOr<LatestStep> Latest(const SeriesOptions& options = {}) {
    std::vector<absl::StatusOr<LatestStep>> found(2, LatestStep());
    testing::RunLocalRanks(2, [&](ProcessGroup& group) {
      auto series = CheckpointSeries::Open(path_, nullptr, options);
      ASSERT_THAT(series, testing::IsOk());
      found[group.rank()] = series->Latest();
    });
    EXPECT_EQ(found[0].status().code(), found[1].status().code());
    if (found[0].ok() && found[1].ok()) {
      EXPECT_EQ(found[0]->step, found[1]->step);
      EXPECT_EQ(found[0]->path, found[1]->path);
    }
    return found[0];
  }

  static std::string ManifestOf(const std::string& directory, int64_t step) {
    return JoinPath(directory, StepManifestName(step));
  }
  std::string ManifestOf(int64_t step) const { return ManifestOf(path_, step); }

  // Whether the checkpoint is sound and holds the samples of a seed.
  static bool Holds(const std::string& path, int seed,
                    FileSystem& files = CheckpointFiles()) {
    if (!VerifyCheckpoint(path, {.files = &files}).ok()) return false;
    const auto reader = CheckpointReader::Open(path, files);
    if (!reader.ok()) return false;
    for (const auto& [name, size] : kSizes) {
      const auto tensor = reader->ReadTensor(name);
      if (!tensor.ok() ||
          CountWrong(*tensor, Dims(size.size(), 0), size, seed) != 0) {
        return false;
      }
    }
    return true;
  }

  // The steps by the names of their manifests.
  static std::set<int64_t> StepsIn(const std::string& directory) {
    std::set<int64_t> steps;
    const auto names = CheckpointFiles().List(directory);
    EXPECT_THAT(names, testing::IsOk());
    for (const std::string& name : *names) {
      if (const auto step = StepOfManifestName(name)) steps.insert(*step);
    }
    return steps;
  }

  // That the directory has these steps, each whole, with a file of each rank,
  // and nothing else but pins and the mark, which is there if steps are.
  static void ExpectExactly(const std::string& directory, int ranks,
                            const std::set<int64_t>& steps) {
    EXPECT_EQ(StepsIn(directory), steps);
    for (const int64_t step : steps) {
      EXPECT_TRUE(Holds(ManifestOf(directory, step), SeedOf(step))) << step;
    }
    size_t others = 0;
    const auto names = CheckpointFiles().List(directory);
    for (const std::string& name : *names) {
      if (name == kCommittedFileName) {
        EXPECT_FALSE(steps.empty());
      } else if (!StepOfPinName(name).has_value()) {
        ++others;
      }
    }
    EXPECT_EQ(others, steps.size() * static_cast<size_t>(1 + ranks))
        << ::testing::PrintToString(*names);
  }

  // The path of one of the data files of a step.
  std::string DataFileOf(int64_t step, int32_t number) const {
    const auto manifest = ReadManifest(CheckpointFiles(), ManifestOf(step));
    EXPECT_THAT(manifest, testing::IsOk());
    return JoinPath(path_, manifest->files[number].name);
  }

  // Of a file in a directory.
  static void FlipBit(const std::string& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    ASSERT_TRUE(file.put(byte)) << path;
  }

  const testing::LeaveOutSyncs no_syncs_;
  std::string root_;
  std::string path_;
  std::string second_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SERIES_FIXTURE_H_
