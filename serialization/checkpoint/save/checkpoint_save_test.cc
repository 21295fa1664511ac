// What a save costs, what it plans, and that any layouts come back; for
// failures and damage see checkpoint_test.cc.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_workers.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::CaseCount;
using sherd::testing::FailFileOperation;
using sherd::testing::FaultOptions;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RandomMesh;
using sherd::testing::RandomSize;
using sherd::testing::RandomSpec;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Tensors = std::map<std::string, ShardedTensor>;

// A checkpoint as its files have it, read in the plainest way that there is.
class Saved {
 public:
  explicit Saved(const std::string& path) : path_(path) {
    auto manifest = ReadManifest(FileSystem::Posix(), path);
    EXPECT_THAT(manifest, IsOk());
    if (manifest.ok()) manifest_ = *std::move(manifest);
    for (const ManifestFile& file : manifest_.files) {
      auto bytes = ReadFile(FileSystem::Posix(), JoinPath(path, file.name),
                            int64_t{1} << 30);
      EXPECT_THAT(bytes, IsOk());
      contents_.push_back(bytes.value_or(""));
      const auto opened =
          FileSystem::Posix().OpenForRead(JoinPath(path, file.name));
      EXPECT_THAT(opened, IsOk());
      auto crcs = ReadCrcTable(**opened, file);
      EXPECT_THAT(crcs, IsOk());
      crcs_.push_back(crcs.value_or(std::vector<uint32_t>(1)));
      EXPECT_EQ(crcs_.back()[0], CrcOf(contents_.back().substr(
                                     0, static_cast<size_t>(file.data_begin))));
    }
  }

  const Manifest& manifest() const { return manifest_; }

  // The elements of a tensor, row-major.
  std::string Elements(const ManifestTensor& tensor) const {
    const Dims strides = ContiguousStrides(tensor.sizes());
    const size_t element = SizeOf(tensor.dtype);
    std::string result(static_cast<size_t>(tensor.bytes()), '\0');
    for (int64_t i = 0; i < tensor.num_shards(); ++i) {
      const Box box = tensor.layout.BoxAt(i);
      const std::string bytes = BytesOf(tensor, i);
      EXPECT_EQ(bytes.size(), static_cast<size_t>(Volume(box)) * element);
      for (int64_t k = 0; k < Volume(box); ++k) {
        int64_t rest = k, index = 0;
        for (size_t d = box.sizes.size(); d-- > 0;) {
          index += (box.offsets[d] + rest % box.sizes[d]) * strides[d];
          rest /= box.sizes[d];
        }
        result.replace(static_cast<size_t>(index) * element, element, bytes,
                       static_cast<size_t>(k) * element, element);
      }
    }
    return result;
  }

  // Whether a tensor has the elements of FillSample, and their fingerprint.
  bool Holds(const std::string& name, int seed) const {
    const auto tensor = manifest_.Find(name);
    if (!tensor.ok()) return false;
    const std::string bytes = Elements(**tensor);
    const size_t element = SizeOf((*tensor)->dtype);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const std::byte expected =
          SampleByte(seed, static_cast<int64_t>(i / element),
                     static_cast<int64_t>(i % element), (*tensor)->dtype);
      if (static_cast<std::byte>(bytes[i]) != expected) return false;
    }
    return (*tensor)->fingerprint == CrcOf(bytes);
  }

  static uint32_t CrcOf(const std::string& bytes) {
    return Crc32c(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
  }

 private:
  // Of a shard, each chunk checked.
  std::string BytesOf(const ManifestTensor& tensor, int64_t shard) const {
    std::string bytes;
    const int64_t length = manifest_.chunk_bytes;
    for (const SavedExtent& extent : tensor.PlaceOf(shard, length).extents) {
      const ManifestFile& file = manifest_.files[extent.file];
      for (int64_t done = 0; done < extent.bytes; done += length) {
        const std::string chunk = contents_[extent.file].substr(
            static_cast<size_t>(file.data_begin + extent.data_offset + done),
            static_cast<size_t>(std::min(length, extent.bytes - done)));
        EXPECT_EQ(CrcOf(chunk),
                  crcs_[extent.file][extent.first_chunk + done / length])
            << tensor.name << " shard " << shard;
        bytes += chunk;
      }
    }
    return bytes;
  }

  const std::string path_;
  Manifest manifest_;
  // Of each file: all bytes, and its table.
  std::vector<std::string> contents_;
  std::vector<std::vector<uint32_t>> crcs_;
};

class CheckpointSaveTest : public ::testing::Test {
 protected:
  CheckpointSaveTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = JoinPath(::testing::TempDir(),
                     absl::StrCat("checkpoint_save_", info->name()));
    std::filesystem::remove_all(path_);
  }

  // Every sample tensor in a layout that `layout` determines.
  static Tensors Samples(int layout, int ranks, int seed) {
    Tensors tensors;
    int i = 0;
    for (const SampleTensor& sample : SampleTensors()) {
      auto tensor =
          ShardedTensor::Zeros(*SampleSpec(layout + i, sample.size, ranks),
                               sample.size, {.dtype = sample.dtype});
      EXPECT_THAT(tensor, IsOk());
      FillSample(*tensor, seed + i++);
      tensors.emplace(sample.name, *std::move(tensor));
    }
    return tensors;
  }

  // Collective.
  absl::Status RecoverOnRank0() {
    SHERD_ASSIGN_OR_RETURN(const auto group, DefaultGroup());
    absl::Status status;
    if (group->rank() == 0) {
      std::filesystem::remove(JoinPath(path_, kManifestFileName));
      status = RecoverManifest(path_).status();
    }
    const absl::Status all = group->Barrier();
    return status.ok() ? all : status;
  }

  void ExpectHolds(int seed) {
    const Saved saved(path_);
    int i = 0;
    for (const SampleTensor& sample : SampleTensors()) {
      EXPECT_TRUE(saved.Holds(sample.name, seed + i++)) << sample.name;
    }
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

// A save, and how many collectives it took on this rank.
absl::Status CountedSave(const std::string& path, const Tensors& tensors,
                         ProcessGroup& group, uint64_t expected,
                         const SaveOptions& options = {}) {
  const absl::Time begin = absl::Now();
  const uint64_t before = group.counters().Total().calls;
  absl::Status status = SaveCheckpoint(path, tensors, nullptr, options);
  // A rank that writes for longer votes once a second.
  if (absl::Now() - begin < absl::Seconds(1)) {
    EXPECT_EQ(group.counters().Total().calls - before, expected);
  }
  return status;
}

TEST_F(CheckpointSaveTest, ASecondSaveOfTheSameLayoutsPlansNothing) {
  constexpr int kRanks = 3;
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    const auto plans_after = [&](const Tensors& tensors) {
      EXPECT_THAT(CountedSave(path_, tensors, group, 3), IsOk());
      EXPECT_THAT(group.Barrier(), IsOk());
      const int64_t plans = KeptPlans::Get().plans_made();
      EXPECT_THAT(group.Barrier(), IsOk());
      return plans;
    };
    const int64_t first = plans_after(Samples(0, kRanks, 1));
    EXPECT_EQ(plans_after(Samples(0, kRanks, 2)), first);
    if (group.rank() == 0) {
      ExpectHolds(2);
      EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    // Another layout, other names, or another property.
    Tensors changed = Samples(1, kRanks, 3);
    EXPECT_EQ(plans_after(changed), first + kRanks);
    changed.erase("large");
    EXPECT_EQ(plans_after(changed), first + 2 * kRanks);
    changed.at("weight").SetRequiresGrad(true);
    EXPECT_EQ(plans_after(changed), first + 3 * kRanks);
    // All of them are kept.
    EXPECT_EQ(plans_after(Samples(0, kRanks, 4)), first + 3 * kRanks);
    EXPECT_EQ(plans_after(Samples(1, kRanks, 4)), first + 3 * kRanks);
    // Those of other groups are others.
    SHERD_ASSERT_OK_AND_ASSIGN(const auto again, group.NewGroup({0, 1, 2}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               Samples(0, kRanks, 4).at("weight").To(again));
    ASSERT_THAT(SaveCheckpoint(path_, {{"weight", tensor}}, again), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_EQ(KeptPlans::Get().plans_made(), first + 4 * kRanks);
  });
}

TEST_F(CheckpointSaveTest, ManyTensorsCostOneMoreCollective) {
  constexpr int kRanks = 3;
  constexpr int kTensors = 6000;
  const auto name = [](int i) { return absl::StrCat("scalar.", i); };
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    Tensors tensors;
    for (int i = 0; i < kTensors; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr spec,
                                 SampleSpec(i, {}, kRanks));
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor scalar,
          ShardedTensor::Zeros(spec, {}, {.dtype = kFloat64}));
      FillSample(scalar, i);
      tensors.emplace(name(i), std::move(scalar));
    }
    EXPECT_THAT(CountedSave(path_, tensors, group, 4), IsOk());
  });
  const Saved saved(path_);
  ASSERT_EQ(saved.manifest().tensors.size(), static_cast<size_t>(kTensors));
  for (int i = 0; i < kTensors; ++i) {
    EXPECT_TRUE(saved.Holds(name(i), i)) << i;
  }
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointSaveTest, EveryLayoutHasTheFingerprintsOfItsElements) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    // Each tensor has another of the layouts.
    for (int layout = 0; layout < kSampleSpecs; layout += 3) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, layout ", layout));
      RunLocalRanks(ranks, [&](ProcessGroup&) {
        EXPECT_THAT(SaveCheckpoint(path_, Samples(layout, ranks, 5)), IsOk());
      });
      ExpectHolds(5);
    }
  }
}

TEST_F(CheckpointSaveTest, RandomLayoutsComeBack) {
  std::mt19937_64 random(11);
  const int64_t cases = CaseCount(60);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const int ranks = 1 + static_cast<int>(random() % 5);
    std::vector<int> members(ranks);
    for (int r = 0; r < ranks; ++r) members[r] = r;
    struct Case {
      Dims size;
      DType dtype;
      ShardingSpecPtr spec;
    };
    std::map<std::string, Case> drawn;
    for (uint64_t t = random() % 6; t > 0; --t) {
      Case one;
      one.size = RandomSize(4, 20'000, random);
      one.dtype = static_cast<DType>(random() % kNumDTypes);
      one.spec = random() % 2 == 0 ? RandomSpec(one.size, ranks, random)
                                   : RandomMesh(one.size, members, random);
      // Names whose order is not that of their keys.
      drawn.emplace(absl::StrCat("t", t % 2 == 0 ? ".x" : "@1", t), one);
    }
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      Tensors tensors;
      for (const auto& [name, one] : drawn) {
        SHERD_ASSERT_OK_AND_ASSIGN(
            ShardedTensor tensor,
            ShardedTensor::Zeros(one.spec, one.size, {.dtype = one.dtype}));
        FillSample(tensor, static_cast<int>(name.back()));
        tensors.emplace(name, std::move(tensor));
      }
      EXPECT_THAT(SaveCheckpoint(path_, tensors, nullptr,
                                 {.check_replicas = i % 2 == 0}),
                  IsOk());
    });
    ASSERT_THAT(VerifyCheckpoint(path_), IsOk());
    const Saved saved(path_);
    for (const auto& [name, one] : drawn) {
      EXPECT_TRUE(saved.Holds(name, static_cast<int>(name.back()))) << name;
    }
  }
}

TEST_F(CheckpointSaveTest, TheNameOfTheChecksumsIsRefused) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows = *ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Zeros(rows, {4}));
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(SaveCheckpoint(path_, {{"sherd.crc32c", tensor}}),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("rank 0: "),
                                 HasSubstr("\"sherd.crc32c\""))));
    }
    EXPECT_THAT(SaveCheckpoint(path_, {{"sherd.crc32c.", tensor}}), IsOk());
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(CheckpointSaveTest, RanksThatDifferInWhatFilesSayOfATensorAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows = *ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Zeros(rows, {4, 2}));
    // The same shards, listed.
    const auto listed =
        *EnumerableShardingSpec::Create(tensor.metadata().shards);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor same,
                               ShardedTensor::Zeros(listed, {4, 2}));
    EXPECT_THAT(
        SaveCheckpoint(path_, {{"t", group.rank() == 0 ? tensor : same}}),
        StatusIs(kInvalid, HasSubstr("in chunks of dimension 0")));
    tensor.SetRequiresGrad(group.rank() == 1);
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}),
                StatusIs(kInvalid, HasSubstr("requires_grad true")));
    tensor.SetRequiresGrad(true);
    EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointSaveTest, RecoveryFindsTensorsWithoutElementsOfAnyRank) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    const std::map<std::string, ShardingSpecPtr> specs = {
        {"empty", *ChunkShardingSpec::Create(0, PlacementsOn({1}))},
        {"full", *ChunkShardingSpec::Create(0, PlacementsOn({0}))}};
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor empty,
                               ShardedTensor::Zeros(specs.at("empty"), {0, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor full,
                               ShardedTensor::Zeros(specs.at("full"), {5, 3}));
    FillSample(full, 1);
    const Tensors tensors = {{"empty", empty}, {"full", full}};
    ASSERT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    const absl::Status recovered = RecoverOnRank0();
    ASSERT_THAT(recovered, IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensors loaded,
                               LoadCheckpoint(path_, specs));
    EXPECT_EQ(CountWrong(loaded.at("full"), 1), 0);
    EXPECT_EQ(loaded.at("empty").size()[1], 3);
  });
}

TEST_F(CheckpointSaveTest, ATensorThatNoFileCanHoldIsRefused) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const auto whole = *ChunkShardingSpec::Create(0, PlacementsOnRanks(1));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Zeros(whole, Dims(64, 1), {.dtype = kComplex128}));
    EXPECT_THAT(SaveCheckpoint(path_, {{"deep", tensor}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("\"deep\""), HasSubstr("63"))));
  });
}

TEST_F(CheckpointSaveTest, TheLastSaveIdIsReported) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    ASSERT_THAT(SaveCheckpoint(path_, Samples(0, 1, 1)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest,
                               ReadManifest(FileSystem::Posix(), path_));
    manifest.save_id = "ffffffffffffffff";
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                               EncodeManifest(manifest));
    std::ofstream(JoinPath(path_, kManifestFileName), std::ios::binary)
        << bytes;
    EXPECT_THAT(SaveCheckpoint(path_, Samples(0, 1, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("ffffffffffffffff")));
    EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
  });
}

TEST_F(CheckpointSaveTest, AFailedSaveKeepsItsFilesWhileAManifestMayNotLast) {
  const auto count_files = [&] {
    return FileSystem::Posix().List(path_).value().size();
  };
  RunLocalRanks(1, [&](ProcessGroup&) {
    ASSERT_THAT(SaveCheckpoint(path_, Samples(0, 1, 1)), IsOk());
    const size_t before = count_files();
    for (const bool lasts : {true, false}) {
      const FailFileOperation fails("create", "*manifest.sherd.*",
                                    absl::InternalError("no manifest"));
      // The first sync is for the data file.
      std::optional<FailFileOperation> fault;
      if (!lasts) {
        fault.emplace("sync_directory", path_, absl::InternalError("no sync"),
                      FaultOptions{.nth = 2});
      }
      EXPECT_THAT(SaveCheckpoint(path_, Samples(0, 1, 2)),
                  StatusIs(absl::StatusCode::kInternal, "no manifest"));
      EXPECT_EQ(count_files(), before + (lasts ? 0 : 1));
    }
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointSaveTest, APlanIsForTheRanksThatWorkersHaveNow) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows = *ChunkShardingSpec::Create(0, {"a/cpu", "b/cpu"});
    const std::vector<std::string> both[] = {{"a", "b"}, {"b", "a"}};
    for (const std::vector<std::string>& names : both) {
      const auto workers = sherd::testing::FakeWorkers::Make(names);
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(rows, {6, 2}, {.workers = workers}));
      FillSample(tensor, 4);
      EXPECT_THAT(SaveCheckpoint(path_, {{"t", tensor}}), IsOk());
      EXPECT_THAT(group.Barrier(), IsOk());
    }
  });
  EXPECT_TRUE(Saved(path_).Holds("t", 4));
}

TEST_F(CheckpointSaveTest, ReplicasThatAreDrawnAnewNeedNoOtherPlan) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto spec =
        *MeshShardingSpec::Create({{2}, PlacementsOn({0, 1})}, {});
    int64_t plans = 0;
    for (int i = 0; i < 2; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor drawn,
                                 ShardedTensor::Rand(spec, {7, 3}));
      EXPECT_THAT(SaveCheckpoint(path_, {{"t", drawn}}), IsOk());
      EXPECT_THAT(group.Barrier(), IsOk());
      const int64_t made = KeptPlans::Get().plans_made();
      if (i > 0) {
        EXPECT_EQ(made, plans);
      }
      plans = made;
      EXPECT_THAT(group.Barrier(), IsOk());
    }
  });
}

TEST_F(CheckpointSaveTest, ReplicasThatDifferAreNamedIfTheyAreChecked) {
  // The rows on ranks 0 and 2, and on ranks 1 and 3; each rank of a pair has
  // the same ones.
  const DeviceMesh mesh = {{2, 2}, PlacementsOn({0, 2, 1, 3})};
  const auto spec = *MeshShardingSpec::Create(mesh, {{0}});
  constexpr SaveOptions kChecked = {.check_replicas = true};
  RunLocalRanks(4, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor good,
                               ShardedTensor::Zeros(spec, {6, 5}));
    FillSample(good, 1);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor bad,
                               ShardedTensor::Zeros(spec, {6, 5}));
    FillSample(bad, 2);
    const Tensors tensors = {{"bad", bad}, {"good", good}};
    EXPECT_THAT(CountedSave(path_, tensors, group, 5, kChecked), IsOk());
    if (group.rank() == 3) FillSample(bad, 3);
    const absl::Status status =
        SaveCheckpoint(path_, tensors, nullptr, kChecked);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("rank 1: tensor \"bad\""),
                               HasSubstr("[3, 5] at [3, 0]"),
                               HasSubstr("rank 1"), HasSubstr("rank 3"))));
    EXPECT_FALSE(IsRankFailure(status)) << status;
    ASSERT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 0) {
      EXPECT_THAT(VerifyCheckpoint(path_), IsOk()) << "the former one stays";
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(SaveCheckpoint(path_, tensors), IsOk());
    EXPECT_THAT(
        SaveCheckpoint(path_, tensors, nullptr,
                       {.check_replicas = group.rank() == 2}),
        StatusIs(absl::StatusCode::kInvalidArgument, "check_replicas true"));
  });
  EXPECT_THAT(VerifyCheckpoint(path_), IsOk());
}

TEST_F(CheckpointSaveTest, StatsHaveThePhasesOfEachRank) {
  constexpr absl::Duration kDelay = absl::Milliseconds(20);
  const auto mesh = *MeshShardingSpec::Create({{2}, PlacementsOnRanks(2)}, {});
  const CallAt plans("file/create", [&] { absl::SleepFor(kDelay); },
                     {.rank = 0, .subject = "*/lease.sherd*"});
  const CallAt writes("file/write", [&] { absl::SleepFor(kDelay); },
                      {.rank = 1, .subject = "*.safetensors"});
  const CallAt syncs("file/sync", [&] { absl::SleepFor(2 * kDelay); },
                     {.rank = 1, .subject = "*.safetensors"});
  const CallAt commits("file/rename", [&] { absl::SleepFor(kDelay); },
                       {.rank = 0, .subject = "*/manifest.sherd"});
  RunLocalRanks(2, [&](ProcessGroup& group) {
    Tensors tensors = Samples(0, 2, 1);
    SHERD_ASSERT_OK_AND_ASSIGN(tensors["replicas"],
                               ShardedTensor::Zeros(mesh, {6, 5}));
    CheckpointStats stats;
    ASSERT_THAT(SaveCheckpoint(path_, tensors, nullptr,
                               {.check_replicas = true, .stats = &stats}),
                IsOk());
    EXPECT_TRUE(stats.load_phases.empty());
    ASSERT_EQ(stats.save_phases.size(), 2u);
    const auto time = [&](int rank) {
      const SavePhases& phases = stats.save_phases[static_cast<size_t>(rank)];
      return phases.plan + phases.compare + phases.write + phases.sync;
    };
    EXPECT_GE(time(stats.slowest_rank), time(1 - stats.slowest_rank));
    EXPECT_GE(stats.save_phases[0].plan, kDelay);
    EXPECT_GT(stats.save_phases[0].compare, absl::ZeroDuration());
    EXPECT_GE(stats.save_phases[1].write, kDelay);
    EXPECT_GE(stats.save_phases[1].sync, 2 * kDelay);
    // The other one may come when this one is at it.
    if (group.rank() == 0) {
      EXPECT_GE(stats.commit, kDelay);
    }
  });
}

}  // namespace
}  // namespace sherd
