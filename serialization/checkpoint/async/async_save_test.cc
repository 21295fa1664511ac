// Saves that run beside the program; for processes that die see
// async_kill_test.cc.

#include "sherd/serialization/checkpoint/async/async_save.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::CountPassages;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Tensors = std::map<std::string, ShardedTensor>;

// The samples in several layouts, and one that is larger than the others
// together.
const Dims kLarge = {1024, 300};

Tensors MakeTensors(int ranks, int seed) {
  Tensors tensors;
  int kind = 0;
  const auto add = [&](const std::string& name, const Dims& size, DType dtype) {
    const auto spec = SampleSpec(kind++, size, ranks);
    EXPECT_THAT(spec, IsOk());
    auto tensor = ShardedTensor::Zeros(*spec, size, {.dtype = dtype});
    EXPECT_THAT(tensor, IsOk());
    tensors.emplace(name, *std::move(tensor));
  };
  for (const SampleTensor& sample : SampleTensors()) {
    add(sample.name, sample.size, sample.dtype);
  }
  kind = 0;
  add("largest", kLarge, kFloat64);
  // Columns: not contiguous on their rank.
  const auto view = tensors.at("largest").Narrow(1, 1, 100);
  EXPECT_THAT(view, IsOk());
  tensors.emplace("view", *view);
  for (auto& [name, tensor] : tensors) {
    if (name != "view") FillSample(tensor, seed);
  }
  return tensors;
}

void Change(Tensors& tensors, int seed) {
  for (auto& [name, tensor] : tensors) {
    if (name != "view") FillSample(tensor, seed);
  }
}

class AsyncSaveTest : public ::testing::Test {
 protected:
  AsyncSaveTest()
      : path_(JoinPath(::testing::TempDir(),
                       absl::StrCat("async_", ::testing::UnitTest::GetInstance()
                                                  ->current_test_info()
                                                  ->name()))) {
    std::filesystem::remove_all(path_);
  }

  std::string Path(int number = 0) const {
    return JoinPath(path_, absl::StrCat("checkpoint", number));
  }

  // Expects that a checkpoint holds MakeTensors(…, seed), whole.
  static void ExpectHolds(const std::string& path, int seed) {
    ASSERT_THAT(VerifyCheckpoint(path), IsOk());
    const auto reader = CheckpointReader::Open(path);
    ASSERT_THAT(reader, IsOk());
    std::vector<SampleTensor> samples = SampleTensors();
    samples.push_back({"largest", kLarge, kFloat64});
    for (const SampleTensor& sample : samples) {
      const auto tensor = reader->ReadTensor(sample.name);
      ASSERT_THAT(tensor, IsOk());
      EXPECT_EQ(
          CountWrong(*tensor, Dims(sample.size.size(), 0), sample.size, seed),
          0)
          << sample.name;
    }
    const auto view = reader->ReadTensor("view");
    ASSERT_THAT(view, IsOk());
    EXPECT_EQ(CountWrong(*view, {0, 1}, kLarge, seed), 0);
  }

  const LeaveOutSyncs no_syncs_;
  const std::string path_;
};

TEST_F(AsyncSaveTest, SavesTheValuesOfTheCallThoughTensorsChange) {
  for (const int ranks : {1, 2, 3}) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      Tensors tensors = MakeTensors(ranks, 1);
      auto save = SaveCheckpointAsync(Path(ranks), tensors);
      ASSERT_THAT(save, IsOk());
      EXPECT_THAT(save->Copied(), IsOk());
      Change(tensors, 2);
      EXPECT_THAT(save->Durable(), IsOk());
      EXPECT_THAT(save->Durable(), IsOk());
      EXPECT_THAT(FlushSaves(), IsOk());
    });
    ExpectHolds(Path(ranks), 1);
  }
}

}  // namespace
}  // namespace sherd
