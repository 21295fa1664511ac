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

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load/read_units.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
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
    int64_t n = 1;
    for (bool happened = true; happened; ++n) {
      const FailFileOperation fault("read", "*.safetensors",
                                    absl::InternalError("bad sector"),
                                    {.nth = n, .optional = true});
      const absl::Status status = Load(2, dim, 3);
      happened = fault.happened();
      if (happened) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("bad sector")))
            << "read " << n;
      } else {
        EXPECT_THAT(status, IsOk());
      }
    }
    EXPECT_GT(n, 8);
  }
}

}  // namespace
}  // namespace sherd
