#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/kits/convert_to_version_1.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, ShardedTensor>;

std::map<std::string, ShardedTensor*> Pointers(Tensors& tensors) {
  std::map<std::string, ShardedTensor*> pointers;
  for (auto& [name, tensor] : tensors) pointers.emplace(name, &tensor);
  return pointers;
}

// Above those of the CRC tables that the ranks read.
constexpr int64_t kMostTableBytes = 4096;

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    path_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(
            "load_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
  }

  // Saves tensors of this size and type, cut by `spec`, under `names`.
  void Save(int ranks, const std::vector<std::string>& names, const Dims& size,
            DType dtype, const ShardingSpecPtr& spec) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      Tensors tensors;
      int seed = 0;
      for (const std::string& name : names) {
        SHERD_ASSERT_OK_AND_ASSIGN(
            ShardedTensor tensor,
            ShardedTensor::Zeros(spec, size, {.dtype = dtype}));
        FillSample(tensor, ++seed);
        tensors.emplace(name, std::move(tensor));
      }
      ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    });
  }

  // Flips a bit of the byte in the middle of the data of the first shard of a
  // tensor.
  void Damage(const std::string& name) {
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path_));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto tensor, reader.manifest().Find(name));
    const SavedExtent extent = tensor->PlaceOf(0, kChunkBytes).extents[0];
    SHERD_ASSERT_OK_AND_ASSIGN(const ManifestFile* const info,
                               reader.manifest().FileAt(extent.file));
    const ManifestFile& file = *info;
    std::fstream bytes(JoinPath(path_, file.name),
                       std::ios::in | std::ios::out | std::ios::binary);
    const auto offset = file.data_begin + extent.data_offset + extent.bytes / 2;
    bytes.seekg(offset);
    const char byte = static_cast<char>(bytes.get() ^ 4);
    bytes.seekp(offset);
    bytes.put(byte);
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

ShardingSpecPtr Chunks(int dim, int ranks) {
  return *ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks));
}

// Number of shards whose elements are not those of FillSample as `saved`,
// converted.
int64_t CountWrongShards(const ShardedTensor& tensor, DType saved, int seed) {
  int64_t wrong = 0;
  for (const Shard& shard : tensor.local_shards()) {
    const Tensor sample =
        *Tensor::Zeros(shard.tensor.sizes(), {.dtype = saved});
    ForEachElement(sample, shard.metadata.offsets, tensor.size(),
                   [&](std::byte* element, int64_t index) {
                     for (size_t b = 0; b < SizeOf(saved); ++b) {
                       element[b] = SampleByte(seed, index, b, saved);
                     }
                   });
    wrong += sample.To(tensor.dtype())->BitwiseEqual(shard.tensor) ? 0 : 1;
  }
  return wrong;
}

// A case of the test below, the same for all ranks.
struct RandomCase {
  struct Sample {
    std::string name;
    Dims size;
    DType dtype;
    // Of the destination.
    DType as;
    ShardingSpecPtr from;
    ShardingSpecPtr to;
  };
  int save_ranks;
  int load_ranks;
  int64_t min_read_bytes;
  int threads;
  bool is_version_1;
  std::vector<Sample> samples;
};

ShardingSpecPtr AnySpec(const Dims& size, int ranks, std::mt19937_64& random) {
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  return random() % 3 == 0 ? sherd::testing::RandomMesh(size, all, random)
                           : sherd::testing::RandomSpec(size, ranks, random);
}

RandomCase MakeCase(std::mt19937_64& random) {
  RandomCase made;
  made.save_ranks = 1 + static_cast<int>(random() % 4);
  made.load_ranks = 1 + static_cast<int>(random() % 5);
  made.min_read_bytes = int64_t{1} << random() % 20;
  made.threads = static_cast<int>(random() % 4);
  made.is_version_1 = random() % 2 == 0;
  const uint64_t tensors = 1 + random() % 12;
  for (uint64_t t = 0; t < tensors; ++t) {
    RandomCase::Sample& sample = made.samples.emplace_back();
    sample.name = absl::StrCat("t", t);
    const bool is_large = random() % 8 == 0;
    sample.size =
        sherd::testing::RandomSize(4, is_large ? 300'000 : 2000, random);
    sample.dtype = static_cast<DType>(random() % kNumDTypes);
    sample.as = random() % 2 == 0 || IsCarried(sample.dtype)
                    ? sample.dtype
                    : static_cast<DType>(random() % kNumComputedDTypes);
    sample.from = AnySpec(sample.size, made.save_ranks, random);
    sample.to = AnySpec(sample.size, made.load_ranks, random);
  }
  return made;
}

absl::StatusOr<Tensors> MakeTensors(const RandomCase& from, bool to_save) {
  Tensors tensors;
  int seed = 0;
  for (const RandomCase::Sample& sample : from.samples) {
    absl::StatusOr<ShardedTensor> tensor =
        ShardedTensor::Zeros(to_save ? sample.from : sample.to, sample.size,
                             {.dtype = to_save ? sample.dtype : sample.as});
    if (!tensor.ok()) return tensor.status();
    ++seed;
    if (to_save) FillSample(*tensor, seed);
    tensors.emplace(sample.name, *std::move(tensor));
  }
  return tensors;
}

TEST_F(LoadTest, AnyLayoutsOfOneWorldLoadIntoAnyOthersOfAnother) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  const int64_t cases = sherd::testing::CaseCount(40);
  for (int64_t i = 0; i < cases && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i));
    const RandomCase made = MakeCase(random);
    std::filesystem::remove_all(path_);
    RunLocalRanks(made.save_ranks, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensors tensors,
                                 MakeTensors(made, true));
      ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    });
    if (made.is_version_1) {
      ASSERT_THAT(ConvertToVersion1(path_), IsOk());
    }
    RunLocalRanks(made.load_ranks, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(Tensors tensors, MakeTensors(made, false));
      CheckpointStats stats;
      ASSERT_THAT(LoadCheckpointInto(path_, Pointers(tensors), nullptr,
                                     {.convert = true,
                                      .min_read_bytes = made.min_read_bytes,
                                      .check_elements = i % 2 == 0,
                                      .threads = made.threads,
                                      .stats = &stats}),
                  IsOk());
      int number = 0;
      for (const RandomCase::Sample& sample : made.samples) {
        EXPECT_EQ(
            CountWrongShards(tensors.at(sample.name), sample.dtype, ++number),
            0)
            << sample.name << ": " << sample.dtype << " as " << sample.as;
      }
      EXPECT_EQ(stats.load_phases.size(), static_cast<size_t>(made.load_ranks));
    });
  }
}

TEST_F(LoadTest, ATensorBeyondTheMemoryBudgetIsExchangedInRounds) {
  // 24 MiB, of which the parts of three ranks have 384 KiB each.
  const Dims size = {3072, 1024};
  Save(2, {"t"}, size, kInt64, Chunks(0, 2));
  RunLocalRanks(3, [&](ProcessGroup&) {
    CheckpointStats stats;
    LoadOptions options = {
        .min_read_bytes = 1 << 20, .memory_budget = 1, .stats = &stats};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensors loaded,
        LoadCheckpoint(path_, {{"t", Chunks(1, 3)}}, nullptr, options));
    EXPECT_EQ(CountWrong(loaded.at("t"), 1), 0);
    EXPECT_EQ(stats.exchanges, 22);
    EXPECT_GE(stats.file_bytes, 24 << 20);
    EXPECT_LE(stats.file_bytes, (24 << 20) + kMostTableBytes)
        << "each byte is read once";
    options.memory_budget = int64_t{1} << 30;
    ASSERT_THAT(LoadCheckpoint(path_, {{"t", Chunks(1, 3)}}, nullptr, options),
                IsOk());
    EXPECT_EQ(stats.exchanges, 1);
  });
}

TEST_F(LoadTest, ManyTensorsShareAnExchange) {
  std::vector<std::string> names;
  std::map<std::string, ShardingSpecPtr> columns, replicas;
  for (int i = 0; i < 300; ++i) {
    names.push_back(absl::StrCat("t", i));
    columns.emplace(names.back(), Chunks(1, 3));
    replicas.emplace(names.back(), *SampleSpec(7, {20, 7}, 3));
  }
  Save(2, names, {20, 7}, kFloat32, Chunks(0, 2));
  RunLocalRanks(3, [&](ProcessGroup&) {
    for (const auto& specs : {columns, replicas}) {
      CheckpointStats stats;
      testing::CountPassages reads("file/read", {.this_thread = true});
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensors loaded,
          LoadCheckpoint(path_, specs, nullptr, {.stats = &stats}));
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(CountWrong(loaded.at(names[i]), static_cast<int>(i) + 1), 0);
      }
      // Pieces up to some number, then rounds of all the rest.
      EXPECT_EQ(stats.exchanges, 1);
      if (specs != columns) continue;
      EXPECT_LT(stats.file_bytes, stats.tensor_bytes * 3 / 2);
      // Of neighbours in a file together, of which each tensor is in two.
      EXPECT_LT(reads.count(), 100);
    }
  });
}

TEST_F(LoadTest, LayoutsOfOneSizeTakeTurnsInAnExchange) {
  // Columns in 2 to 7 chunks, of more tensors than short reads are made for.
  std::vector<std::string> names;
  std::map<std::string, ShardingSpecPtr> specs;
  for (int i = 100; i < 400; ++i) {
    std::vector<Placement> placements;
    for (int chunk = 0; chunk < 2 + i % 6; ++chunk) {
      placements.push_back(Placement::OnRank(chunk % 3));
    }
    names.push_back(absl::StrCat("t", i));
    specs.emplace(names.back(), *ChunkShardingSpec::Create(1, placements));
  }
  Save(2, names, {20, 7}, kFloat32, Chunks(0, 2));
  RunLocalRanks(3, [&](ProcessGroup&) {
    CheckpointStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensors loaded,
        LoadCheckpoint(path_, specs, nullptr, {.stats = &stats}));
    EXPECT_EQ(stats.exchanges, 1);
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(CountWrong(loaded.at(names[i]), static_cast<int>(i) + 1), 0)
          << names[i];
    }
  });
}

TEST_F(LoadTest, UnneededPagesAreNotRead) {
  std::vector<std::string> names;
  for (int i = 10; i < 90; ++i) names.push_back(absl::StrCat("t", i));
  Save(1, names, {1024}, kInt32, Chunks(0, 1));
  RunLocalRanks(2, [&](ProcessGroup&) {
    // Every fourth page, then neighbours.
    for (const int step : {4, 1}) {
      std::map<std::string, ShardingSpecPtr> specs;
      for (size_t i = 0; i < names.size(); i += step) {
        specs.emplace(names[i], Chunks(0, 2));
      }
      CheckpointStats stats;
      ASSERT_THAT(LoadCheckpoint(path_, specs, nullptr, {.stats = &stats}),
                  IsOk());
      // Each rank wants half of each page, and reads all pages between two.
      EXPECT_LE(stats.file_bytes,
                (step == 4 ? 1 : 2) * stats.tensor_bytes + kMostTableBytes);
    }
  });
}

TEST_F(LoadTest, ChunksThatManyRanksReadPartsOfAreCheckedByShares) {
  // Three ranks read a column each of 3000 tensors, each of one chunk: too many
  // partial chunks for every rank to check them all.
  std::vector<std::string> names;
  std::map<std::string, ShardingSpecPtr> specs;
  for (int i = 0; i < 3000; ++i) {
    names.push_back(absl::StrCat("t", i));
    specs.emplace(names.back(), Chunks(1, 3));
  }
  Save(1, names, {1, 3}, kInt32, Chunks(0, 1));
  const LoadOptions options = {.min_read_bytes = 1};
  RunLocalRanks(3, [&](ProcessGroup&) {
    EXPECT_THAT(LoadCheckpoint(path_, specs, nullptr, options), IsOk());
  });
  Damage("t1234");
  RunLocalRanks(3, [&](ProcessGroup&) {
    EXPECT_THAT(LoadCheckpoint(path_, specs, nullptr, options),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("\"t1234\""), HasSubstr("rank "))));
  });
}

TEST_F(LoadTest, UnlessStrictMismatchedTensorsAreSkippedAndReported) {
  Save(2, {"a", "b", "c"}, {6, 4}, kInt32, Chunks(0, 2));
  RunLocalRanks(2, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor a,
        ShardedTensor::Zeros(Chunks(1, 2), {6, 4}, {.dtype = kInt32}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor other_size,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 5}, {.dtype = kInt32}));
    FillSample(other_size, 50);
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor added,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 4}, {.dtype = kInt32}));
    FillSample(added, 60);
    const std::map<std::string, ShardedTensor*> destinations = {
        {"a", &a}, {"added", &added}, {"b", &other_size}};
    EXPECT_THAT(LoadCheckpointInto(path_, destinations),
                StatusIs(absl::StatusCode::kInvalidArgument, "\"added\""));
    LoadReport report;
    ASSERT_THAT(LoadCheckpointInto(path_, destinations, nullptr,
                                   {.strict = false, .report = &report}),
                IsOk());
    EXPECT_EQ(CountWrong(a, 1), 0);
    EXPECT_EQ(CountWrong(other_size, 50), 0) << "unchanged";
    EXPECT_EQ(CountWrong(added, 60), 0) << "unchanged";
    EXPECT_THAT(report.missing, ElementsAre("added"));
    EXPECT_THAT(report.unexpected, ElementsAre("c"));
    ASSERT_EQ(report.mismatched.size(), 1u);
    EXPECT_EQ(report.mismatched[0].name, "b");
    EXPECT_THAT(report.mismatched[0].reason,
                AllOf(HasSubstr("[6, 4]"), HasSubstr("[6, 5]")));
    // New tensors: what is missing is left out.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensors loaded,
        LoadCheckpoint(path_, {{"c", Chunks(1, 2)}, {"d", Chunks(1, 2)}},
                       nullptr, {.strict = false}));
    EXPECT_EQ(loaded.size(), 1u);
    EXPECT_EQ(CountWrong(loaded.at("c"), 3), 0);
  });
}

TEST_F(LoadTest, AnotherDTypeIsConvertedIfItMayBe) {
  Save(2, {"a", "b"}, {6, 4}, kInt32, Chunks(0, 2));
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor a,
        ShardedTensor::Zeros(Chunks(1, 2), {6, 4}, {.dtype = kInt32}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor b,
        ShardedTensor::Zeros(Chunks(1, 2), {6, 4}, {.dtype = kFloat64}));
    FillSample(b, 50);
    const std::map<std::string, ShardedTensor*> destinations = {{"a", &a},
                                                                {"b", &b}};
    EXPECT_THAT(
        LoadCheckpointInto(path_, destinations),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"b\" as int32"), HasSubstr("float64"),
                       HasSubstr("LoadOptions::convert"))));
    LoadReport report;
    ASSERT_THAT(LoadCheckpointInto(path_, destinations, nullptr,
                                   {.strict = false, .report = &report}),
                IsOk());
    ASSERT_EQ(report.mismatched.size(), 1u);
    EXPECT_TRUE(report.converted.empty());
    EXPECT_EQ(CountWrong(b, 50), 0) << "unchanged";
    ASSERT_THAT(LoadCheckpointInto(path_, destinations, nullptr,
                                   {.convert = true, .report = &report}),
                IsOk());
    EXPECT_THAT(report.converted, ElementsAre("b"));
    EXPECT_TRUE(report.mismatched.empty());
    EXPECT_EQ(CountWrongShards(b, kInt32, 2), 0);
    // Other sizes are not converted, and ranks convert alike.
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor flat,
        ShardedTensor::Zeros(Chunks(0, 2), {24}, {.dtype = kFloat64}));
    EXPECT_THAT(
        LoadCheckpointInto(path_, {{"b", &flat}}, nullptr, {.convert = true}),
        StatusIs(absl::StatusCode::kInvalidArgument, "[24]"));
    EXPECT_THAT(LoadCheckpointInto(path_, {{"a", &a}}, nullptr,
                                   {.convert = group.rank() == 0}),
                StatusIs(absl::StatusCode::kInvalidArgument, "convert"));
  });
  Damage("b");
  RunLocalRanks(2, [&](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor b,
        ShardedTensor::Zeros(Chunks(1, 2), {6, 4}, {.dtype = kBool}));
    EXPECT_THAT(
        LoadCheckpointInto(path_, {{"b", &b}}, nullptr, {.convert = true}),
        StatusIs(absl::StatusCode::kDataLoss, "\"b\""));
  });
}

// Shards that are longer than what is converted at once, as they are in the
// file, in columns, exchanged, and on every rank.
TEST_F(LoadTest, LongShardsAreConverted) {
  const Dims size = {700, 1100};
  Save(2, {"t"}, size, kInt16, Chunks(0, 2));
  for (const DType as : {kFloat32, kComplex128, kUInt8}) {
    RunLocalRanks(2, [&](ProcessGroup&) {
      for (const ShardingSpecPtr& spec :
           {Chunks(0, 2), Chunks(1, 2), *SampleSpec(7, size, 2)}) {
        for (const int64_t min_read_bytes : {1, 1 << 20}) {
          SHERD_ASSERT_OK_AND_ASSIGN(
              ShardedTensor t, ShardedTensor::Zeros(spec, size, {.dtype = as}));
          ASSERT_THAT(LoadCheckpointInto(
                          path_, {{"t", &t}}, nullptr,
                          {.convert = true, .min_read_bytes = min_read_bytes}),
                      IsOk());
          EXPECT_EQ(CountWrongShards(t, kInt16, 1), 0) << as;
        }
      }
    });
  }
}

TEST_F(LoadTest, CarriedElementsAreNotConverted) {
  const Dims size = {6, 4};
  const struct {
    DType saved, as, carried;
  } cases[] = {{kFloat8E8M0, kFloat32, kFloat8E8M0},
               {kFloat32, kComplex32, kComplex32}};
  for (const auto& c : cases) {
    Save(2, {"t"}, size, c.saved, Chunks(0, 2));
    RunLocalRanks(2, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor t,
          ShardedTensor::Zeros(Chunks(1, 2), size, {.dtype = c.as}));
      EXPECT_THAT(
          LoadCheckpointInto(path_, {{"t", &t}}, nullptr, {.convert = true}),
          StatusIs(
              absl::StatusCode::kInvalidArgument,
              absl::StrCat(Name(c.carried), " is carried, not computed with")));
      LoadReport report;
      ASSERT_THAT(LoadCheckpointInto(
                      path_, {{"t", &t}}, nullptr,
                      {.strict = false, .convert = true, .report = &report}),
                  IsOk());
      EXPECT_EQ(report.mismatched.size(), 1u);
    });
  }
}

TEST_F(LoadTest, RulesRenameTheDestinations) {
  Save(2, {"module.x", "module.y", "z"}, {6, 4}, kInt32, Chunks(0, 2));
  RunLocalRanks(2, [&](ProcessGroup& group) {
    LoadReport report;
    // The first rule that fits counts.
    const LoadOptions options = {
        .rename = {{"z", "z"}, {"twin", "module.x"}, {"", "module."}},
        .report = &report};
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensors loaded,
        LoadCheckpoint(
            path_,
            {{"x", Chunks(1, 2)}, {"z", Chunks(0, 2)}, {"twin", Chunks(1, 2)}},
            nullptr, options));
    EXPECT_EQ(CountWrong(loaded.at("x"), 1), 0);
    EXPECT_EQ(CountWrong(loaded.at("twin"), 1), 0);
    EXPECT_EQ(CountWrong(loaded.at("z"), 3), 0);
    EXPECT_THAT(report.unexpected, ElementsAre("module.y"));
    // Ranks have the same rules.
    const std::string saved = group.rank() == 0 ? "module." : "module.x";
    EXPECT_THAT(LoadCheckpoint(path_, {{"x", Chunks(1, 2)}}, nullptr,
                               {.strict = false, .rename = {{"", saved}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "rename"));
  });
}

}  // namespace
}  // namespace sherd
