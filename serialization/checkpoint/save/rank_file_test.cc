#include "sherd/serialization/checkpoint/save/rank_file.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kSaveId[] = "0123456789abcdef";
constexpr int64_t kMaxUnsyncedBytes = 16 << 20;

// Tensors of one rank, whose file several threads write.
class RankFileTest : public ::testing::Test {
 protected:
  struct Written {
    absl::StatusOr<RankFileReport> report;
    std::string bytes;
    std::vector<uint32_t> sums;
    std::vector<uint32_t> fingerprints;
  };

  // Collective; of a group of one rank.
  void MakeTensors() {
    // Divided between threads in the middle, at ends and not at all.
    const std::map<std::string, Dims> sizes = {{"a", {24, 1 << 18}},
                                               {"b", {1000, 1001}},
                                               {"c", {8 << 20}},
                                               {"d", {3}},
                                               {"e", {5, 777, 333}}};
    int seed = 1;
    for (const auto& [name, size] : sizes) {
      auto tensor =
          ShardedTensor::Zeros(*ChunkShardingSpec::Create(0, {"rank:0/cpu"}),
                               size, {.dtype = kFloat32});
      ASSERT_THAT(tensor, IsOk());
      FillSample(*tensor, seed++);
      tensors_.emplace(name, *std::move(tensor));
    }
    for (const auto& [name, tensor] : tensors_) {
      named_.push_back({&name, &tensor});
    }
    auto plan = KeptPlans::Get().PlanFor(*DefaultGroup(), tensors_, false);
    ASSERT_THAT(plan, IsOk());
    plan_ = *plan;
  }

  Written Write(int threads, const std::function<absl::Status()>& progress) {
    const std::string path =
        JoinPath(::testing::TempDir(), absl::StrCat("rank_file_", threads));
    Written written;
    written.sums.resize(tensors_.size());
    written.report = WriteRankFile(
        FileSystem::Posix(), path, *plan_, AllParts(*plan_), named_,
        [this](const PlannedShard& shard) {
          const NamedTensor& named = named_[static_cast<size_t>(shard.tensor)];
          return LocalPart(*named.tensor, shard.held, shard.box);
        },
        {.save_id = kSaveId,
         .max_unsynced_bytes = kMaxUnsyncedBytes,
         .threads = threads},
        progress, absl::MakeSpan(written.sums), &written.fingerprints);
    auto bytes = ReadFile(FileSystem::Posix(), path, int64_t{1} << 30);
    written.bytes = bytes.value_or("");
    return written;
  }

  std::map<std::string, ShardedTensor> tensors_;
  std::vector<NamedTensor> named_;
  std::shared_ptr<const SavePlan> plan_;
};

TEST_F(RankFileTest, SeveralThreadsWriteTheSameFile) {
  RunLocalRanks(1, [this](ProcessGroup&) {
    MakeTensors();
    const std::thread::id own = std::this_thread::get_id();
    int64_t calls = 0;
    const auto progress = [&] {
      EXPECT_EQ(std::this_thread::get_id(), own);
      ++calls;
      return absl::OkStatus();
    };
    const Written one = Write(1, progress);
    ASSERT_THAT(one.report, IsOk());
    EXPECT_EQ(one.report->size, static_cast<int64_t>(one.bytes.size()));
    EXPECT_GT(one.bytes.size(), 7 * kMinThreadBytes);
    for (const int threads : {2, 3, 7, 1000}) {
      calls = 0;
      const Written several = Write(threads, progress);
      ASSERT_THAT(several.report, IsOk());
      EXPECT_GT(calls, 0);
      EXPECT_EQ(several.bytes.size(), one.bytes.size());
      EXPECT_TRUE(several.bytes == one.bytes) << threads << " threads";
      EXPECT_EQ(several.sums, one.sums);
      EXPECT_EQ(several.fingerprints, one.fingerprints);
      EXPECT_EQ(several.report->crc32c, one.report->crc32c);
    }
  });
}

TEST_F(RankFileTest, ThreadsTogetherLeaveLittleUnsynced) {
  RunLocalRanks(1, [this](ProcessGroup&) {
    MakeTensors();
    const auto none = [] { return absl::OkStatus(); };
    for (const int threads : {1, 7}) {
      const CountPassages syncs("file/sync", {.subject = "*rank_file_*"});
      const Written written = Write(threads, none);
      ASSERT_THAT(written.report, IsOk());
      // Some 64 MiB, and each thread may be a write ahead; then the last one.
      EXPECT_GE(syncs.count(), 3 + 1) << threads << " threads";
    }
  });
}

TEST_F(RankFileTest, ThreadsAreOfTheRankThatWrites) {
  RunLocalRanks(1, [this](ProcessGroup&) {
    MakeTensors();
    const CountPassages all("file/write", {.subject = "*rank_file_*"});
    const CountPassages own("file/write",
                            {.rank = 0, .subject = "*rank_file_*"});
    ASSERT_THAT(Write(3, [] { return absl::OkStatus(); }).report, IsOk());
    EXPECT_GT(all.count(), 0);
    EXPECT_EQ(own.count(), all.count());
  });
}

TEST_F(RankFileTest, AnErrorOfAnyThreadEndsAll) {
  RunLocalRanks(1, [this](ProcessGroup&) {
    MakeTensors();
    const auto none = [] { return absl::OkStatus(); };
    const auto ends = [] { return absl::UnavailableError("rank 1 died"); };
    for (const int threads : {1, 3}) {
      EXPECT_THAT(
          Write(threads, ends).report,
          StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 died")));
      // Each of them is the first on some thread.
      for (int n = 1; n < 200; n += 13) {
        const FailFileOperation fault("write", "*rank_file_*",
                                      absl::ResourceExhaustedError("full"),
                                      {.nth = n});
        EXPECT_THAT(
            Write(threads, none).report,
            StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
      }
    }
  });
}

}  // namespace
}  // namespace sherd
