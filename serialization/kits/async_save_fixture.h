#ifndef SHERD_SERIALIZATION_KITS_ASYNC_SAVE_FIXTURE_H_
#define SHERD_SERIALIZATION_KITS_ASYNC_SAVE_FIXTURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// Keeps the writer of `rank` at its next operation on files until Open().
class WriterGate {
 public:
  explicit WriterGate(const std::string& operation, int rank = 0,
                      const std::string& subject = "*")
      : at_("file/" + operation,
            [this] {
              reached_.Notify();
              open_.WaitForNotification();
            },
            {.rank = rank, .subject = subject}) {}

  void AwaitReached() { reached_.WaitForNotification(); }
  void Open() { open_.Notify(); }

 private:
  absl::Notification reached_;
  absl::Notification open_;
  const testing::CallAt at_;
};

// For tests of saves that run beside the program, in a directory of the test's
// own.
class AsyncSaveFixture : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, ShardedTensor>;

  // The samples in several layouts, and one that is larger than the others
  // together.
  static inline const Dims kLarge = {300, 200};

  static std::vector<SampleTensor> Samples() {
    std::vector<SampleTensor> samples = SampleTensors();
    std::erase_if(samples, [](const SampleTensor& sample) {
      return sample.name == "large";
    });
    samples.push_back({"largest", kLarge, kFloat64});
    return samples;
  }

  static Tensors MakeTensors(int ranks, int seed) {
    Tensors tensors;
    int kind = 0;
    for (const auto& [name, size, dtype] : Samples()) {
      if (name == "largest") kind = 0;
      const auto spec = SampleSpec(kind++, size, ranks);
      EXPECT_THAT(spec, testing::IsOk());
      auto tensor = ShardedTensor::Zeros(*spec, size, {.dtype = dtype});
      EXPECT_THAT(tensor, testing::IsOk());
      tensors.emplace(name, *std::move(tensor));
    }
    // Columns: not contiguous on their rank.
    const auto view = tensors.at("largest").Narrow(1, 1, 100);
    EXPECT_THAT(view, testing::IsOk());
    tensors.emplace("view", *view);
    for (auto& [name, tensor] : tensors) {
      if (name != "view") FillSample(tensor, seed);
    }
    return tensors;
  }

  static void Change(Tensors& tensors, int seed) {
    for (auto& [name, tensor] : tensors) {
      if (name != "view") FillSample(tensor, seed);
    }
  }

  AsyncSaveFixture()
      : path_(CheckpointPlace(
            JoinPath(::testing::TempDir(),
                     absl::StrCat("async_", ::testing::UnitTest::GetInstance()
                                                ->current_test_info()
                                                ->name())))) {
    RemoveAllPlaced(path_);
  }

  std::string Path(int number = 0) const {
    return JoinPath(path_, absl::StrCat("checkpoint", number));
  }

  // Calls of the group that have ended.
  static uint64_t Calls(const ProcessGroup& group) {
    return group.counters().Total().calls;
  }

  // Expects that a checkpoint holds MakeTensors(…, seed), whole.
  static void ExpectHolds(const std::string& path, int seed) {
    ASSERT_THAT(VerifyCheckpoint(path), testing::IsOk());
    const auto reader = CheckpointReader::Open(path);
    ASSERT_THAT(reader, testing::IsOk());
    for (const SampleTensor& sample : Samples()) {
      const auto tensor = reader->ReadTensor(sample.name);
      ASSERT_THAT(tensor, testing::IsOk());
      EXPECT_EQ(
          CountWrong(*tensor, Dims(sample.size.size(), 0), sample.size, seed),
          0)
          << sample.name;
    }
    const auto view = reader->ReadTensor("view");
    ASSERT_THAT(view, testing::IsOk());
    EXPECT_EQ(CountWrong(*view, {0, 1}, kLarge, seed), 0);
  }

  const testing::LeaveOutSyncs no_syncs_;
  const std::string path_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_ASYNC_SAVE_FIXTURE_H_
