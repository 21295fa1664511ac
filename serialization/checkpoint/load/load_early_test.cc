#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
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
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/kits/failing_reads.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::FaultOptions;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 2;
const Dims kSize = {4096, 96};
constexpr char kDataFiles[] = "*.safetensors";
// From there on, pieces are long.
constexpr int64_t kInPieces = 1;
constexpr int64_t kExchanged = 1 << 20;

ShardingSpecPtr Chunks(int dim) {
  return *ChunkShardingSpec::Create(dim, PlacementsOnRanks(kRanks));
}

ShardingSpecPtr Replicas() {
  return *MeshShardingSpec::Create({{kRanks}, PlacementsOnRanks(kRanks)}, {});
}

// What a rank reads before all ranks agree on the load, of a tensor in rows.
class LoadEarlyTest : public ::testing::Test {
 protected:
  LoadEarlyTest() {
    path_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(
            "load_early_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(path_);
  }

  void SetUp() override {
    RunLocalRanks(kRanks, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(Chunks(0), kSize, {.dtype = kInt32}));
      FillSample(tensor, 1);
      ASSERT_THAT(SaveCheckpoint(path_, {{"t", tensor}, {"u", tensor}}),
                  IsOk());
    });
  }

  // On one rank: loads it into a new tensor.
  absl::Status LoadNew(const ShardingSpecPtr& spec, int64_t min_read_bytes,
                       CheckpointStats* stats = nullptr) {
    const auto loaded =
        LoadCheckpoint(path_, {{"t", spec}}, nullptr,
                       {.min_read_bytes = min_read_bytes, .stats = stats});
    if (loaded.ok()) {
      EXPECT_EQ(CountWrong(loaded->at("t"), 1), 0);
    }
    return loaded.status();
  }
  // Into one that exists.
  absl::Status LoadInto(const ShardingSpecPtr& spec, int64_t min_read_bytes) {
    auto tensor = ShardedTensor::Zeros(spec, kSize, {.dtype = kInt32});
    if (!tensor.ok()) return tensor.status();
    FillSample(*tensor, 2);
    const absl::Status status = LoadCheckpointInto(
        path_, {{"t", &*tensor}}, nullptr, {.min_read_bytes = min_read_bytes});
    // After other errors it has no defined values.
    if (status.ok() || absl::IsInvalidArgument(status)) {
      EXPECT_EQ(CountWrong(*tensor, status.ok() ? 1 : 2), 0) << status;
    }
    return status;
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

TEST_F(LoadEarlyTest, NewTensorsAndExchangesAreReadBeforeTheLastRankComes) {
  const auto exchange_into_given = [&] {
    return LoadInto(Chunks(1), kExchanged);
  };
  const std::map<std::string, std::function<absl::Status()>> loads = {
      {"rows", [&] { return LoadNew(Chunks(0), kInPieces); }},
      {"columns", [&] { return LoadNew(Chunks(1), kInPieces); }},
      {"replicas", [&] { return LoadNew(Replicas(), kInPieces); }},
      {"exchange", [&] { return LoadNew(Chunks(1), kExchanged); }},
      {"exchange into a given tensor", exchange_into_given}};
  for (const auto& [name, load] : loads) {
    SCOPED_TRACE(name);
    const CountPassages reads("file/read", {.rank = 0, .subject = kDataFiles});
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      const Deadline deadline = Deadline::After(absl::Minutes(1));
      while (group.rank() == 1 && reads.count() == 0 && !deadline.HasPassed()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_FALSE(deadline.HasPassed()) << "rank 0 has not begun to read";
      EXPECT_THAT(load(), IsOk());
    });
  }
}

TEST_F(LoadEarlyTest, ALoadWithoutExchangesIsOneAgreement) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    uint64_t before = 0;
    const auto agreements = [&] {
      const uint64_t now = group.counters().Of(CollectiveOp::kAllGather).calls;
      return now - std::exchange(before, now);
    };
    EXPECT_THAT(LoadNew(Chunks(0), kInPieces), IsOk());
    EXPECT_EQ(agreements(), 1u);
    EXPECT_THAT(LoadInto(Chunks(0), kInPieces), IsOk());
    EXPECT_EQ(agreements(), 2u);
    EXPECT_THAT(LoadCheckpointInto(path_, {}), IsOk());
    EXPECT_EQ(agreements(), 1u);
  });
}

TEST_F(LoadEarlyTest, GivenTensorsStayAsTheyAreUntilTheRanksAgree) {
  for (const int64_t first : {kInPieces, kExchanged}) {
    const CountPassages reads("file/read", {.subject = kDataFiles});
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      EXPECT_THAT(LoadInto(Chunks(1), group.rank() == 0 ? first : 17),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("min_read_bytes 17")));
    });
    if (first == kInPieces) {
      EXPECT_EQ(reads.count(), 0);
    }
  }
}

TEST_F(LoadEarlyTest, NewAndGivenTensorsAreNotOneLoad) {
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    EXPECT_THAT(group.rank() == 0 ? LoadNew(Chunks(0), kInPieces)
                                  : LoadInto(Chunks(0), kInPieces),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("destinations new"),
                               HasSubstr("destinations given"))));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

// Rank 1 fails at once, and rank 0 learns of it by a vote while it reads.
TEST_F(LoadEarlyTest, AnErrorOfOneRankEndsTheReadsOfTheOthers) {
  for (const bool are_new : {true, false}) {
    const FailFileOperation fault(
        "read", kDataFiles, absl::InternalError("bad sector"), {.rank = 1});
    const CountPassages reads("file/read", {.rank = 0, .subject = kDataFiles});
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      const auto calls = [&] { return group.counters().Total().calls; };
      uint64_t before = 0;
      std::optional<CallAt> votes;
      if (group.rank() == 0) {
        const auto vote = [&] {
          if (reads.count() <= 1) {
            // Until the next vote is due.
            absl::SleepFor(absl::Milliseconds(1100));
            before = calls();
            return;
          }
          const Deadline deadline = Deadline::After(absl::Minutes(1));
          while (calls() == before && !deadline.HasPassed()) {
            absl::SleepFor(absl::Milliseconds(1));
          }
          // The thread that counted the vote has yet to say that it ended.
          absl::SleepFor(absl::Milliseconds(10));
        };
        votes.emplace(
            "file/read", vote,
            FaultOptions{.times = 1000, .rank = 0, .subject = kDataFiles});
      }
      ASSERT_THAT(group.Barrier(), IsOk());
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor columns,
          ShardedTensor::Zeros(Chunks(1), kSize, {.dtype = kInt32}));
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor replicas,
          ShardedTensor::Zeros(Replicas(), kSize, {.dtype = kInt32}));
      const LoadOptions options = {.min_read_bytes = kInPieces, .threads = 1};
      const absl::Status status =
          are_new
              ? LoadCheckpoint(path_, {{"t", Chunks(1)}, {"u", Replicas()}},
                               nullptr, options)
                    .status()
              : LoadCheckpointInto(path_, {{"t", &columns}, {"u", &replicas}},
                                   nullptr, options);
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1: ")));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("bad sector")));
      ASSERT_THAT(group.Barrier(), IsOk());
    });
    // Of 14.
    EXPECT_LE(reads.count(), 5) << "new: " << are_new;
  }
}

TEST_F(LoadEarlyTest, AnErrorOfAnyReadIsThatOfAllRanks) {
  const std::vector<std::function<absl::Status()>> loads = {
      [&] { return LoadNew(Chunks(1), kInPieces); },
      [&] { return LoadNew(Replicas(), kInPieces); },
      [&] { return LoadNew(Chunks(1), kExchanged); },
      [&] { return LoadInto(Chunks(1), kInPieces); },
      [&] { return LoadInto(Replicas(), kInPieces); },
      [&] { return LoadInto(Chunks(1), kExchanged); }};
  for (const auto& load : loads) {
    EXPECT_GT(ExpectErrorOfEachReadOnAllRanks([&] {
                std::vector<absl::Status> statuses(kRanks);
                RunLocalRanks(kRanks, [&](ProcessGroup& group) {
                  statuses[static_cast<size_t>(group.rank())] = load();
                });
                return statuses;
              }),
              1);
  }
}

}  // namespace
}  // namespace sherd
