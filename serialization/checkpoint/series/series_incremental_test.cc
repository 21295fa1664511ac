// A series whose saves write only what has changed.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr int kRanks = 3;
constexpr int64_t kChunksOfTensor = 12;
constexpr int64_t kAllChunks = 2 * kChunksOfTensor;
// Of the files of one save: headers, and the CRCs of a few chunks.
constexpr int64_t kOverhead = kRanks * (16 << 10);
// All chunks differ from those of other contents.
constexpr int kOtherContents = 1000;

// Of a save that writes so many chunks.
auto IsAbout(int64_t chunks) {
  return AllOf(Ge(chunks * kChunkBytes), Le(chunks * kChunkBytes + kOverhead));
}

// Two tensors of 12 chunks each, of which each rank has 4 of either, and a
// number. Contents number n have n chunks that contents 0 do not have.
class SeriesIncrementalTest : public SeriesFixture {
 protected:
  static inline const std::map<std::string, Dims> kTensors = {
      {"first", {kChunksOfTensor * kChunkBytes}},
      {"number", {}},
      {"second", {kChunksOfTensor * kChunkBytes}}};

  // Of each chunk of "first", then of "second".
  static std::array<int, kAllChunks> SeedsOf(int contents) {
    std::array<int, kAllChunks> seeds = {};
    if (contents == kOtherContents) seeds.fill(contents);
    for (int n = 1; n <= contents && contents != kOtherContents; ++n) {
      seeds[static_cast<size_t>(5 * n) % seeds.size()] = n;
    }
    return seeds;
  }

  // Calls visit(bytes, length, expected byte) for each chunk of a part, which
  // begins at one.
  static void ForEachChunk(
      const std::string& name, int contents, const Tensor& part,
      const Dims& offsets,
      const std::function<void(std::byte*, size_t, std::byte)>& visit) {
    Tensor shared = part;
    auto* const data = static_cast<std::byte*>(shared.data());
    if (name == "number") {
      if (part.numel() > 0) visit(data, 1, static_cast<std::byte>(contents));
      return;
    }
    const auto seeds = SeedsOf(contents);
    const int64_t first =
        offsets[0] / kChunkBytes + (name == "second" ? kChunksOfTensor : 0);
    for (int64_t i = 0; i < part.nbytes() / kChunkBytes; ++i) {
      const int64_t chunk = first + i;
      visit(data + i * kChunkBytes, kChunkBytes,
            static_cast<std::byte>(10 * chunk +
                                   seeds[static_cast<size_t>(chunk)]));
    }
  }

  static void Fill(Tensors& tensors, int contents) {
    for (auto& [name, tensor] : tensors) {
      for (const Shard& shard : tensor.local_shards()) {
        ForEachChunk(name, contents, shard.tensor, shard.metadata.offsets,
                     [](std::byte* bytes, size_t length, std::byte value) {
                       std::memset(bytes, static_cast<int>(value), length);
                     });
      }
    }
  }

  static Tensors Make(int contents) {
    Tensors tensors;
    for (const auto& [name, size] : kTensors) {
      auto tensor = ShardedTensor::Zeros(*SampleSpec(0, size, kRanks), size,
                                         {.dtype = kUInt8});
      EXPECT_THAT(tensor, IsOk());
      tensors.emplace(name, *std::move(tensor));
    }
    Fill(tensors, contents);
    return tensors;
  }

  // How many chunks do not have those contents.
  static int64_t CountDifferent(const std::string& name, int contents,
                                const Tensor& part, const Dims& offsets) {
    int64_t different = 0;
    ForEachChunk(name, contents, part, offsets,
                 [&](std::byte* bytes, size_t length, std::byte value) {
                   const bool same =
                       bytes[0] == value &&
                       std::memcmp(bytes, bytes + 1, length - 1) == 0;
                   different += same ? 0 : 1;
                 });
    return different;
  }

  static void ExpectHolds(const std::string& path, int contents) {
    EXPECT_THAT(VerifyCheckpoint(path), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path));
    for (const auto& [name, size] : kTensors) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader.ReadTensor(name));
      EXPECT_EQ(CountDifferent(name, contents, tensor, Dims(size.size(), 0)), 0)
          << path << " " << name;
    }
  }

  // That the directory has these steps, with these contents, and the files that
  // they name, and no others; returns the bytes of the files.
  static int64_t ExpectExactlySteps(const std::string& directory,
                                    const std::map<int64_t, int>& steps) {
    std::set<std::string> expected = {kCommittedFileName};
    for (const auto& [step, contents] : steps) {
      const std::string path = ManifestOf(directory, step);
      ExpectHolds(path, contents);
      const auto manifest = ReadManifest(CheckpointFiles(), path);
      EXPECT_THAT(manifest, IsOk());
      if (!manifest.ok()) continue;
      expected.insert(StepManifestName(step));
      for (const ManifestFile& file : manifest->files) {
        expected.insert(file.name);
      }
    }
    const auto names = CheckpointFiles().List(directory);
    EXPECT_THAT(names, IsOk());
    EXPECT_EQ(std::set<std::string>(names->begin(), names->end()), expected);
    int64_t bytes = 0;
    for (const std::string& name : *names) {
      const auto file =
          CheckpointFiles().OpenForRead(JoinPath(directory, name));
      EXPECT_THAT(file, IsOk());
      bytes += (*file)->Size().value_or(0);
    }
    return bytes;
  }

  // Runs `body` on each rank, with a series and the bytes of its last save.
  void WithSeries(
      SeriesOptions options,
      const std::function<void(CheckpointSeries&, const int64_t&)>& body) {
    options.incremental = true;
    RunLocalRanks(kRanks, [&](ProcessGroup&) {
      CheckpointStats stats;
      SeriesOptions own = options;
      own.save.stats = &stats;
      SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                                 CheckpointSeries::Open(path_, nullptr, own));
      body(series, stats.file_bytes);
      EXPECT_THAT(series.Flush(), IsOk());
      EXPECT_THAT(FlushSaves(), IsOk());
    });
  }

  // Saves, at once or beside the program, and changes the tensors as soon as
  // that is allowed. The handle is none if the save has ended.
  static absl::StatusOr<SaveHandle> Begin(CheckpointSeries& series, bool async,
                                          int64_t step, Tensors& tensors) {
    if (!async) {
      SHERD_RETURN_IF_ERROR(series.Save(step, tensors));
      return SaveHandle();
    }
    SHERD_ASSIGN_OR_RETURN(SaveHandle save, series.SaveAsync(step, tensors));
    save.Copied().IgnoreError();
    Fill(tensors, kOtherContents);
    return save;
  }

  static absl::Status SaveStep(CheckpointSeries& series, bool async,
                               int64_t step, int contents) {
    Tensors tensors = Make(contents);
    SHERD_ASSIGN_OR_RETURN(SaveHandle save,
                           Begin(series, async, step, tensors));
    return async ? save.Durable() : absl::OkStatus();
  }
};

TEST_F(SeriesIncrementalTest, StepsHoldTheirBitsAndWriteWhatHasChanged) {
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async ? "async" : "sync");
    RemoveAllPlaced(path_);
    WithSeries({}, [&](CheckpointSeries& series, const int64_t& bytes) {
      for (int step = 0; step < 6; ++step) {
        ASSERT_THAT(SaveStep(series, async, step, step), IsOk());
        EXPECT_THAT(bytes, IsAbout(step == 0 ? kAllChunks : 1)) << step;
      }
      for (int step = 0; step < 6; ++step) {
        Tensors loaded = Make(kOtherContents);
        std::map<std::string, ShardedTensor*> into;
        for (auto& [name, tensor] : loaded) into[name] = &tensor;
        ASSERT_THAT(series.LoadInto(step, into), IsOk());
        for (const auto& [name, tensor] : loaded) {
          for (const Shard& shard : tensor.local_shards()) {
            EXPECT_EQ(CountDifferent(name, step, shard.tensor,
                                     shard.metadata.offsets),
                      0)
                << step << " " << name;
          }
        }
      }
    });
    ExpectExactlySteps(path_, {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}});
    // Another object has nothing to compare with.
    WithSeries({}, [&](CheckpointSeries& series, const int64_t& bytes) {
      ASSERT_THAT(SaveStep(series, async, 6, 6), IsOk());
      EXPECT_THAT(bytes, IsAbout(kAllChunks));
    });
  }
}

TEST_F(SeriesIncrementalTest, FilesStayAsLongAsAStepNamesThem) {
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async ? "async" : "sync");
    RemoveAllPlaced(path_);
    RemoveAllPlaced(second_);
    WithSeries({.keep_last = 2, .copy_to = second_},
               [&](CheckpointSeries& series, const int64_t&) {
                 // Saves beside the program wait for one another.
                 Tensors tensors = Make(0);
                 for (int step = 0; step < 6; ++step) {
                   Fill(tensors, step);
                   ASSERT_THAT(Begin(series, async, step, tensors), IsOk());
                 }
               });
    for (const std::string& directory : {path_, second_}) {
      // All of step 0, and a chunk of each other one.
      EXPECT_LE(ExpectExactlySteps(directory, {{4, 4}, {5, 5}}),
                (kAllChunks + 5) * kChunkBytes + 6 * kOverhead);
    }
  }
}

TEST_F(SeriesIncrementalTest, StepsAreReplacedAndRemoved) {
  std::map<int64_t, int> steps;
  const auto run =
      [&](const std::function<void(CheckpointSeries&, const int64_t&)>& body) {
        WithSeries({}, body);
        ExpectExactlySteps(path_, steps);
      };
  steps = {{0, 3}, {1, 2}};
  run([&](CheckpointSeries& series, const int64_t& bytes) {
    ASSERT_THAT(SaveStep(series, false, 0, 0), IsOk());
    ASSERT_THAT(SaveStep(series, false, 1, 1), IsOk());
    ASSERT_THAT(SaveStep(series, false, 1, 2), IsOk());
    EXPECT_THAT(bytes, IsAbout(1));
    ASSERT_THAT(SaveStep(series, false, 0, 3), IsOk());
    EXPECT_THAT(bytes, IsAbout(1));
  });
  steps = {{0, 3}, {1, 5}, {2, 6}};
  run([&](CheckpointSeries& series, const int64_t& bytes) {
    ASSERT_THAT(series.RemoveAfter(0), IsOk());
    ASSERT_THAT(SaveStep(series, false, 1, 4), IsOk());
    ASSERT_THAT(series.RemoveAfter(0), IsOk());
    // What it would refer to is gone.
    ASSERT_THAT(SaveStep(series, false, 1, 5), IsOk());
    EXPECT_THAT(bytes, IsAbout(kAllChunks));
    // What it refers to is not removed.
    ASSERT_THAT(series.RemoveAfter(1), IsOk());
    ASSERT_THAT(SaveStep(series, false, 2, 6), IsOk());
    EXPECT_THAT(bytes, IsAbout(1));
  });
}

TEST_F(SeriesIncrementalTest, ASaveAfterOneThatFailedIsCompared) {
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async ? "async" : "sync");
    RemoveAllPlaced(path_);
    const FailFileOperation fault("rename_new", "*/step-*",
                                  absl::InternalError("injected"), {.nth = 2});
    WithSeries({}, [&](CheckpointSeries& series, const int64_t& bytes) {
      ASSERT_THAT(SaveStep(series, async, 0, 0), IsOk());
      EXPECT_THAT(SaveStep(series, async, 1, 1),
                  StatusIs(absl::StatusCode::kInternal, "injected"));
      // With what the one that failed would have written.
      ASSERT_THAT(SaveStep(series, async, 2, 2), IsOk());
      EXPECT_THAT(bytes, IsAbout(2));
    });
    ExpectExactlySteps(path_, {{0, 0}, {2, 2}});
  }
}

// The copies of a save are there until it has ended, though the next one waits
// for their room.
TEST_F(SeriesIncrementalTest, CopiesStayUntilTheSaveHasEnded) {
  absl::Notification open;
  const CallAt gate("file/create", [&open] { open.WaitForNotification(); },
                    {.rank = 0, .subject = "*/lease*"});
  WithSeries({}, [&](CheckpointSeries& series, const int64_t&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group,
                               DefaultGroup());
    Tensors tensors = Make(0);
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle first, series.SaveAsync(0, tensors));
    EXPECT_THAT(first.Copied(), IsOk());
    // Differs in all chunks.
    Fill(tensors, kOtherContents);
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle second, series.SaveAsync(1, tensors));
    ASSERT_THAT(group->Barrier(), IsOk());
    if (group->rank() == 0) open.Notify();
    EXPECT_THAT(second.Copied(), IsOk());
    Fill(tensors, 0);
    EXPECT_THAT(second.Durable(), IsOk());
  });
  ExpectExactlySteps(path_, {{0, 0}, {1, kOtherContents}});
}

TEST_F(SeriesIncrementalTest, ARankWithoutRoomForItsCopiesWritesAll) {
  // Less than a shard, and than all of them.
  for (const int64_t budget : {3 * kChunkBytes, 5 * kChunkBytes}) {
    SCOPED_TRACE(budget);
    RemoveAllPlaced(path_);
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      CheckpointStats stats;
      SHERD_ASSERT_OK_AND_ASSIGN(
          CheckpointSeries series,
          CheckpointSeries::Open(
              path_, nullptr,
              {.save = {.stats = &stats},
               .staging_budget = group.rank() == 1 ? budget : 0,
               .incremental = true}));
      for (int step = 0; step < 6; ++step) {
        ASSERT_THAT(SaveStep(series, /*async=*/true, step, step), IsOk());
        // Step 1 changes a chunk of rank 1.
        const int64_t others = step == 1 ? 0 : 1;
        EXPECT_THAT(
            stats.file_bytes,
            IsAbout(step == 0 ? kAllChunks : kAllChunks / kRanks + others))
            << step;
      }
      EXPECT_THAT(FlushSaves(), IsOk());
    });
    ExpectExactlySteps(path_, {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}});
  }
}

TEST_F(SeriesIncrementalTest, SharedChunksAreCheckedOnce) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "changes files in place";
  WithSeries({}, [&](CheckpointSeries& series, const int64_t&) {
    for (int step = 0; step < 4; ++step) {
      ASSERT_THAT(SaveStep(series, false, step, step), IsOk());
    }
  });
  SoundChunks known;
  for (int64_t step = 0; step < 4; ++step) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const VerifyReport report,
        VerifyCheckpoint(ManifestOf(step), {.known = &known}));
    // Headers and tables of all files of the step are read.
    EXPECT_GE(report.bytes, (step == 0 ? kAllChunks : 1) * kChunkBytes);
    EXPECT_LE(report.bytes, (step == 0 ? kAllChunks : 1) * kChunkBytes +
                                (1 + step) * kOverhead);
  }
  // What is damaged is never known.
  const std::string file = DataFileOf(0, 1);
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(4096 + 10);
    stream.put('\xff');
  }
  SoundChunks fresh;
  for (int64_t step = 0; step < 4; ++step) {
    EXPECT_THAT(VerifyCheckpoint(ManifestOf(step), {.known = &fresh}),
                StatusIs(absl::StatusCode::kDataLoss, "CRC"))
        << step;
  }
}

TEST(SoundChunksTest, AreKnownByTheirPlaceToo) {
  SoundChunks known;
  known.Add("file", 2, 512, 100);
  EXPECT_TRUE(known.Contains("file", 2, 512, 100));
  EXPECT_FALSE(known.Contains("other", 2, 512, 100));
  EXPECT_FALSE(known.Contains("file", 1, 512, 100));
  EXPECT_FALSE(known.Contains("file", 3, 512, 100));
  EXPECT_FALSE(known.Contains("file", 2, 256, 100));
  EXPECT_FALSE(known.Contains("file", 2, 512, 99));
}

// Has as much room as a test says.
class FilesWithRoom final : public ForwardingFiles {
 public:
  absl::StatusOr<int64_t> FreeBytes(const std::string&) override {
    return free_bytes;
  }
  std::atomic<int64_t> free_bytes = int64_t{1} << 40;
};

TEST_F(SeriesIncrementalTest, ThereMustBeRoomForWhatEachRankWrites) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "brings files of its own";
  FilesWithRoom files;
  WithSeries({.save = {.files = &files}},
             [&](CheckpointSeries& series, const int64_t& bytes) {
               ASSERT_THAT(SaveStep(series, false, 0, 0), IsOk());
               files.free_bytes = 3 * kChunkBytes;
               ASSERT_THAT(SaveStep(series, false, 1, 1), IsOk());
               EXPECT_THAT(bytes, IsAbout(1));
               // Each rank writes 8 chunks, and rank 0 a byte more.
               EXPECT_THAT(SaveStep(series, false, 2, kOtherContents),
                           StatusIs(absl::StatusCode::kResourceExhausted,
                                    AllOf(HasSubstr(" needs 2097153 bytes"),
                                          HasSubstr("only 786432 are free"))));
             });
  ExpectExactlySteps(path_, {{0, 0}, {1, 1}});
}

// Of the others it is not known whether they write all.
TEST_F(SeriesIncrementalTest, RankZeroNeedsNoRoomForTheOthers) {
  if (!PlacesAreDirectories()) GTEST_SKIP() << "brings files of its own";
  FilesWithRoom files;
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        CheckpointSeries series,
        CheckpointSeries::Open(
            path_, nullptr,
            {.save = {.files = &files},
             .staging_budget = group.rank() == 0 ? 3 * kChunkBytes : 0,
             .incremental = true}));
    ASSERT_THAT(SaveStep(series, /*async=*/true, 0, 0), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    files.free_bytes = kAllChunks / 2 * kChunkBytes;
    ASSERT_THAT(SaveStep(series, /*async=*/true, 1, 1), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectExactlySteps(path_, {{0, 0}, {1, 1}});
}

// Rows of values have room, so that layouts stay.
TEST_F(SeriesIncrementalTest, StatesAreComparedThoughTheirNumbersGetLonger) {
  WithSeries({}, [&](CheckpointSeries& series, const int64_t& bytes) {
    const auto make_state = [](int64_t step) {
      StateDict state;
      EXPECT_THAT(state.Set("step", step), IsOk());
      EXPECT_THAT(state.Set("first", Make(0).at("first")), IsOk());
      return state;
    };
    for (const int64_t step : {9, 1000, 1000000}) {
      ASSERT_THAT(series.Save(step, make_state(step)), IsOk());
      EXPECT_THAT(bytes, step == 9 ? IsAbout(kChunksOfTensor) : IsAbout(0));
      StateDict loaded = make_state(0);
      ASSERT_THAT(series.LoadInto(step, loaded), IsOk());
      EXPECT_THAT(loaded.Get<int64_t>("step"), testing::IsOkAndHolds(step));
    }
  });
}

}  // namespace
}  // namespace sherd
