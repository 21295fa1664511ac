// What Update keeps with a table goes through the files of a checkpoint: who
// starts again, in another layout, takes the steps that would have been taken.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/nn/embedding.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::TensorBitwiseEq;

constexpr int64_t kRows = 10;
constexpr int64_t kColumns = 24;

class ModuleCheckpointTest : public sherd::testing::PersistentDistributedTest {
 protected:
  // A table in chunks of a dimension, of ones.
  std::shared_ptr<EmbeddingBag> MakeTable(int dim) {
    return std::make_shared<EmbeddingBag>(
        Value(ShardedTensor::Ones(Chunks(dim), {kRows, kColumns}).value()));
  }

  absl::Status Step(const EmbeddingBag& table, SparseRule rule, int step) {
    const Tensor ids =
        Tensor::FromSpan<int64_t>({step % kRows, rank(), 9, 3}, {2, 2}).value();
    const Tensor gradient =
        Tensor::Full({2, kColumns}, static_cast<float>(step + 1) /
                                        static_cast<float>(rank() + 3))
            .value();
    return Update({{WeightOf(table), {ids}}}, {gradient},
                  {.rule = rule, .learning_rate = 0.1});
  }

  ShardingSpecPtr Chunks(int dim) {
    return ChunkShardingSpec::Create(dim, PlacementsOnRanks(world_size()))
        .value();
  }

  static ShardedTensor WeightOf(const EmbeddingBag& table) {
    return table.weight().Get<ShardedTensor>().value();
  }

  static Tensor WholeSums(const EmbeddingBag& table) {
    return GetAccumulator(WeightOf(table))
        .Get<ShardedTensor>()
        .value()
        .AllGather()
        .value();
  }
};

SHERD_DIST_TEST_F(ModuleCheckpointTest, AccumulatorsComeBackInAnyLayout) {
  const std::string path = JoinPath(temp_dir(), "checkpoint");
  for (const SparseRule rule :
       {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
    for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
      const auto trained = MakeTable(from);
      for (int step = 0; step < 3; ++step) {
        ASSERT_THAT(Step(*trained, rule, step), IsOk());
      }
      SHERD_ASSERT_OK_AND_ASSIGN(const StateDict saved, State(*trained));
      ASSERT_THAT(SaveCheckpoint(path, saved), IsOk());

      const auto loaded = MakeTable(to);
      SHERD_ASSERT_OK_AND_ASSIGN(StateDict state, State(*loaded));
      // Without it the load would leave the accumulator out, and say so.
      LoadReport report;
      ASSERT_THAT(LoadCheckpointInto(path, state, nullptr, {.report = &report}),
                  IsOk());
      EXPECT_THAT(report.unexpected, ::testing::ElementsAre("accumulator"));
      ASSERT_THAT(MakeAccumulators(*loaded, rule), IsOk());
      SHERD_ASSERT_OK_AND_ASSIGN(state, State(*loaded));
      ASSERT_THAT(LoadCheckpointInto(path, state), IsOk());

      for (int step = 3; step < 6; ++step) {
        ASSERT_THAT(Step(*trained, rule, step), IsOk());
        ASSERT_THAT(Step(*loaded, rule, step), IsOk());
      }
      EXPECT_THAT(WeightOf(*loaded).AllGather().value(),
                  TensorBitwiseEq(WeightOf(*trained).AllGather().value()));
      EXPECT_THAT(WholeSums(*loaded), TensorBitwiseEq(WholeSums(*trained)));
    }
  }
}

}  // namespace
}  // namespace sherd
