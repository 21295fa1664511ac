#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/allocation_counter.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::AllocationsOfThisThread;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;

// Of every kind: by rows, by columns, 16-bit, and a rank's own with `options`.
std::vector<TableLookUp> LookUpsOf(const BagOptions& options) {
  const auto rows = ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value();
  const auto columns =
      ChunkShardingSpec::Create(1, PlacementsOnRanks(4)).value();
  std::vector<int64_t> ids(2000);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * 7 + 13) % 100;
  }
  const Bags bags = {
      Tensor::FromSpan(absl::MakeConstSpan(ids), {100, 20}).value()};
  Bags weighted = bags;
  weighted.per_sample_weights = Tensor::Ones({100, 20}).value();
  return {{ShardedTensor::Ones(rows, {100, 16}).value(), bags},
          {ShardedTensor::Ones(columns, {100, 16}).value(),
           weighted,
           {.mode = BagMode::kSum, .padding_idx = 3}},
          {ShardedTensor::Ones(rows, {100, 4}, {.dtype = kFloat16}).value(),
           bags,
           {.mode = BagMode::kNone}},
          {Tensor::Ones({100, 5}).value(), bags, options}};
}

// Runs `call` 20 times; the first two make plans and buffers.
void ExpectNoLaterAllocations(absl::FunctionRef<absl::Status()> call) {
  for (int i = 0; i < 20; ++i) {
    const int64_t before = AllocationsOfThisThread();
    const absl::Status status = call();
    const int64_t made = AllocationsOfThisThread() - before;
    ASSERT_THAT(status, IsOk());
    if (i >= 2) {
      EXPECT_EQ(made, 0) << "call " << i;
    }
  }
}

TEST(LookUpMemoryTest, LaterCallsForTheSameTablesAllocateNothing) {
  for (const bool direct : {true, false}) {
    SCOPED_TRACE(direct);
    RunLocalRanks(4, [&](ProcessGroup& group) {
      const auto lookups = LookUpsOf({.mode = BagMode::kMax});
      std::vector<Tensor> outputs(lookups.size());
      ExpectNoLaterAllocations([&] {
        return LookUpInto(lookups, absl::MakeSpan(outputs), {.direct = direct});
      });
      EXPECT_EQ(group.health(), absl::OkStatus());
    });
  }
}

TEST(UpdateMemoryTest, LaterStepsOnTheSameTablesAllocateNothing) {
  for (const bool direct : {true, false}) {
    SCOPED_TRACE(direct);
    RunLocalRanks(4, [&](ProcessGroup& group) {
      const auto lookups = LookUpsOf({});
      const std::vector<Tensor> gradients = {
          Tensor::Ones({100, 16}).value(), Tensor::Ones({100, 16}).value(),
          Tensor::Ones({100, 20, 4}, {.dtype = kFloat16}).value(),
          Tensor::Ones({100, 5}).value()};
      std::vector<Tensor> outputs(lookups.size());
      for (const SparseRule rule :
           {SparseRule::kSgd, SparseRule::kRowWiseAdagrad}) {
        SCOPED_TRACE(Name(rule));
        ExpectNoLaterAllocations([&] {
          absl::Status status =
              LookUpInto(lookups, absl::MakeSpan(outputs), {.direct = direct});
          status.Update(
              Update(lookups, gradients, {.rule = rule, .direct = direct}));
          return status;
        });
      }
      EXPECT_EQ(group.health(), absl::OkStatus());
    });
  }
}

}  // namespace
}  // namespace sherd
