#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load/read_units.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/kits/failing_reads.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::CountPassages;
using sherd::testing::FailAt;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ShardingSpecPtr Chunks(int dim, int ranks) {
  return *ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks));
}

std::vector<Box> CutsOf(const Box& box, int64_t max_elements) {
  std::vector<Box> cuts;
  CutBox(box, max_elements, [&](const Box& cut) { cuts.push_back(cut); });
  return cuts;
}

TEST(ReadUnitsTest, BoxesAreCutBetweenRowsOrWithinLongOnes) {
  const Box box = {{10, 20}, {4, 3}};
  EXPECT_THAT(CutsOf(box, 12), ElementsAre(box));
  EXPECT_THAT(CutsOf(box, 8),
              ElementsAre(Box{{10, 20}, {2, 3}}, Box{{12, 20}, {2, 3}}));
  EXPECT_THAT(CutsOf({{10, 20}, {2, 3}}, 2),
              ElementsAre(Box{{10, 20}, {1, 2}}, Box{{10, 22}, {1, 1}},
                          Box{{11, 20}, {1, 2}}, Box{{11, 22}, {1, 1}}));
  EXPECT_THAT(CutsOf({{0, 5, 0}, {1, 1, 3}}, 1),
              ElementsAre(Box{{0, 5, 0}, {1, 1, 1}}, Box{{0, 5, 1}, {1, 1, 1}},
                          Box{{0, 5, 2}, {1, 1, 1}}));
  EXPECT_THAT(CutsOf({{}, {}}, 1), ElementsAre(Box{{}, {}}));
}

TEST(ReadUnitsTest, CutsOfAnyBoxFollowOneAnother) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < sherd::testing::CaseCount(300); ++i) {
    Box box;
    for (uint64_t d = 1 + random() % 4; d-- > 0;) {
      box.offsets.push_back(static_cast<int64_t>(random() % 5));
      box.sizes.push_back(1 + static_cast<int64_t>(random() % 5));
    }
    const Dims strides = ContiguousStrides(box.sizes);
    const auto most =
        1 + static_cast<int64_t>(random() % static_cast<uint64_t>(Volume(box)));
    int64_t next = 0;
    for (const Box& cut : CutsOf(box, most)) {
      EXPECT_LE(Volume(cut), most);
      int64_t first = 0, last = 0;
      for (size_t d = 0; d < box.sizes.size(); ++d) {
        first += (cut.offsets[d] - box.offsets[d]) * strides[d];
        last +=
            (cut.offsets[d] + cut.sizes[d] - 1 - box.offsets[d]) * strides[d];
      }
      ASSERT_EQ(first, next) << "seed " << seed << ", case " << i;
      ASSERT_EQ(last + 1 - first, Volume(cut));
      next = last + 1;
    }
    EXPECT_EQ(next, Volume(box));
  }
}

TEST(ReadUnitsTest, ShortReadsShareAUnitAndLongOnesAreDivided) {
  const auto of = [](int64_t elements) {
    return BoxToRead{Box{{0}, {elements}}, 4};
  };
  EXPECT_THAT(DivideReads({}, 40), IsEmpty());
  const std::vector<BoxToRead> reads = {of(4),  of(6), of(0), of(1),
                                        of(25), of(2), of(3)};
  const auto part = [](int64_t from, int64_t elements) {
    return std::optional<Box>(Box{{from}, {elements}});
  };
  EXPECT_THAT(
      DivideReads(reads, 40),
      ElementsAre(ReadUnit{0, 3, {}}, ReadUnit{3, 4, {}},
                  ReadUnit{4, 5, part(0, 10)}, ReadUnit{4, 5, part(10, 10)},
                  ReadUnit{4, 5, part(20, 5)}, ReadUnit{5, 7, {}}));
}

// Loads by several threads of a rank.
class LoadThreadsTest : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, ShardedTensor>;

  LoadThreadsTest() {
    path_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(
            "load_threads_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
  }

  // Tensors of several chunks, of less than one, and with long rows.
  static const std::map<std::string, Dims>& Sizes() {
    static const auto& sizes = *new std::map<std::string, Dims>{
        {"a", {300, 600}}, {"b", {2, 100'001}}, {"c", {5}}, {"d", {70, 9}}};
    return sizes;
  }

  void Save(int ranks) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      Tensors tensors;
      int seed = 0;
      for (const auto& [name, size] : Sizes()) {
        SHERD_ASSERT_OK_AND_ASSIGN(
            ShardedTensor tensor,
            ShardedTensor::Zeros(Chunks(0, ranks), size, {.dtype = kFloat32}));
        FillSample(tensor, ++seed);
        tensors.emplace(name, std::move(tensor));
      }
      ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    });
  }

  // The status of loading all, cut along `dim` where there is one, by so many
  // threads; checks what was loaded.
  absl::Status Load(int ranks, int dim, int threads) {
    std::map<std::string, ShardingSpecPtr> specs;
    for (const auto& [name, size] : Sizes()) {
      specs.emplace(
          name,
          Chunks(std::min(dim, static_cast<int>(size.size()) - 1), ranks));
    }
    absl::Status status;
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      const auto loaded = LoadCheckpoint(
          path_, specs, nullptr, {.min_read_bytes = 1, .threads = threads});
      if (group.rank() == 0) status = loaded.status();
      if (!loaded.ok()) return;
      int seed = 0;
      for (const auto& [name, tensor] : *loaded) {
        EXPECT_EQ(CountWrong(tensor, ++seed), 0) << name;
      }
    });
    return status;
  }

  // Flips a bit of the byte at `part`, from 0 to 1, of the first shard.
  void Damage(const std::string& name, double part) {
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path_));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto tensor, reader.manifest().Find(name));
    const SavedExtent extent = tensor->PlaceOf(0, kChunkBytes).extents[0];
    SHERD_ASSERT_OK_AND_ASSIGN(const ManifestFile* const file,
                               reader.manifest().FileAt(extent.file));
    std::fstream bytes(JoinPath(path_, file->name),
                       std::ios::in | std::ios::out | std::ios::binary);
    const auto offset =
        file->data_begin + extent.data_offset +
        static_cast<int64_t>(part * static_cast<double>(extent.bytes - 1));
    bytes.seekg(offset);
    const char byte = static_cast<char>(bytes.get() ^ 4);
    bytes.seekp(offset);
    bytes.put(byte);
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

TEST_F(LoadThreadsTest, LoadTheSame) {
  Save(2);
  for (const int threads : {1, 2, 3, 8}) {
    for (const int ranks : {1, 2, 3}) {
      for (const int dim : {0, 1}) {
        EXPECT_THAT(Load(ranks, dim, threads), IsOk())
            << threads << " threads, " << ranks << " ranks, by " << dim;
      }
    }
  }
}

TEST_F(LoadThreadsTest, SeveralThreadsReadWithTheirRank) {
  Save(2);
  const CountPassages all("file/read", {.subject = "*.safetensors"});
  const CountPassages first("file/read",
                            {.rank = 0, .subject = "*.safetensors"});
  const CountPassages second("file/read",
                             {.rank = 1, .subject = "*.safetensors"});
  EXPECT_THAT(Load(2, 1, 4), IsOk());
  EXPECT_GT(first.count(), 0);
  EXPECT_GT(second.count(), 0);
  EXPECT_EQ(all.count(), first.count() + second.count());
}

TEST_F(LoadThreadsTest, FindDamageAndNameItAlike) {
  Save(2);
  for (const auto& [name, size] : Sizes()) {
    for (const double part : {0.0, 0.3, 1.0}) {
      Damage(name, part);
      // Chunks of which one rank reads all, and of which several read parts.
      for (const int dim : {0, 1}) {
        const absl::Status expected = Load(2, dim, 1);
        EXPECT_THAT(expected,
                    StatusIs(absl::StatusCode::kDataLoss,
                             HasSubstr(absl::StrCat("\"", name, "\""))));
        for (const int threads : {3, 4}) {
          EXPECT_EQ(Load(2, dim, threads), expected)
              << name << " at " << part << ", by " << dim;
        }
      }
      // As before.
      Damage(name, part);
    }
  }
}

TEST_F(LoadThreadsTest, AnErrorOfAnyReadEndsTheLoadOnAllRanks) {
  Save(2);
  for (const int dim : {0, 1}) {
    // How many reads there are depends on which thread takes which pieces.
    EXPECT_GT(ExpectErrorOfEachReadOnAllRanks(
                  [&] { return std::vector<absl::Status>{Load(2, dim, 3)}; }),
              7);
  }
}

// Ranks that trade what they read, in rounds of 384 KiB each, as short pieces
// make them.
class LoadRoundsTest : public LoadThreadsTest {
 protected:
  static constexpr int kRanks = 2;

  void SetUp() override {
    RunLocalRanks(kRanks, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(Chunks(0, kRanks), {1400, 1500},
                               {.dtype = kInt32}));
      FillSample(tensor, 1);
      ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
    });
  }

  // The status of each rank.
  std::vector<absl::Status> Load(int threads) {
    std::vector<absl::Status> statuses(kRanks);
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      CheckpointStats stats;
      const auto loaded =
          LoadCheckpoint(path_, {{"t", Chunks(1, kRanks)}}, nullptr,
                         {.min_read_bytes = 1 << 20,
                          .memory_budget = int64_t{4} << 20,
                          .threads = threads,
                          .stats = &stats});
      statuses[group.rank()] = loaded.status();
      if (!loaded.ok()) return;
      EXPECT_EQ(CountWrong(loaded->at("t"), 1), 0);
      EXPECT_GT(stats.exchanges, 4);
    });
    return statuses;
  }
};

// Returns whether the page cache has nothing of the data files any more.
bool DropFromPageCache(const std::string& checkpoint) {
  bool is_cold = true;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    const UniqueFd fd(open(entry.path().c_str(), O_RDONLY));
    EXPECT_EQ(fsync(fd.get()), 0);
    EXPECT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    unsigned char page = 0;
    void* const data = mmap(nullptr, 1, PROT_READ, MAP_SHARED, fd.get(), 0);
    is_cold &= mincore(data, 1, &page) == 0 && (page & 1) == 0;
    munmap(data, 1);
  }
  return is_cold;
}

// By a second thread, or if it will wait for the medium.
TEST_F(LoadRoundsTest, TheNextOneIsReadWhileDataMoves) {
  int64_t reads_of_first_round = 0;
  for (const int threads : {1, 2, 0}) {
    if (threads == 0 && !DropFromPageCache(path_)) continue;
    const CountPassages reads("file/read",
                              {.rank = 0, .subject = "*.safetensors"});
    const CallAt move("sharding/before_copy",
                      [&] {
                        if (threads == 1) {
                          reads_of_first_round = reads.count();
                          return;
                        }
                        const Deadline deadline =
                            Deadline::After(absl::Minutes(1));
                        while (reads.count() <= reads_of_first_round &&
                               !deadline.HasPassed()) {
                          absl::SleepFor(absl::Milliseconds(1));
                        }
                        EXPECT_GT(reads.count(), reads_of_first_round);
                      },
                      {.rank = 0});
    EXPECT_THAT(Load(threads), Each(IsOk()));
  }
}

TEST_F(LoadRoundsTest, AnErrorOfAnyReadEndsTheLoadOnAllRanks) {
  EXPECT_GT(ExpectErrorOfEachReadOnAllRanks([&] { return Load(2); }), 9);
}

// What is read then is for nothing, and ends before the memory goes.
TEST_F(LoadRoundsTest, OneThatFailsToMoveEndsTheRead) {
  for (const int rank : {0, 1}) {
    const FailAt fault("sharding/before_copy",
                       absl::InternalError("injected fault"),
                       {.nth = 2, .rank = rank});
    EXPECT_THAT(Load(2), Each(StatusIs(absl::StatusCode::kInternal,
                                       HasSubstr("injected fault"))));
  }
}

}  // namespace
}  // namespace sherd
