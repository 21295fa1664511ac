#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/sanitized.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_pattern.h"

// How much memory a rank needs while a sharded tensor moves: the result and the
// bound on staging memory.

namespace sherd {
namespace {

using ::sherd::testing::CountPassages;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;

// Of four ranks with 256 KiB each.
constexpr int64_t kRows = 512;
constexpr int64_t kColumns = 512;
constexpr int64_t kShardBytes = kRows * kColumns / 4 * 4;
constexpr int64_t kStaging = 32 << 10;

class MoveMemoryTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {
 protected:
  // Of this process, in bytes: "VmRSS", or "VmHWM" for the most so far.
  static int64_t Resident(absl::string_view field) {
    std::ifstream status("/proc/self/status");
    std::string name;
    int64_t kib = 0;
    while (status >> name) {
      if (name == std::string(field) + ":") {
        status >> kib;
        break;
      }
    }
    return kib * 1024;
  }

  // Lets "VmHWM" begin again; false where the system does not allow it.
  static bool ForgetPeak() {
    std::ofstream clear("/proc/self/clear_refs");
    clear << "5" << std::flush;
    return clear.good();
  }

  ShardedTensor Source() {
    const ShardedTensor tensor =
        ShardedTensor::Empty(Chunks(0), {kRows, kColumns}).value();
    FillPattern(tensor);
    return tensor;
  }
};

SHERD_DIST_TEST_F(MoveMemoryTest, IsTheResultAndTheStagingBound) {
  for (const bool direct : {true, false}) {
    ShardedTensor tensor = Source();
    // Keeps the old shards.
    const ShardedTensor before = tensor;
    ReshardStats stats;
    uint64_t allocated = 0;
    {
      CountPassages fault("tensor/allocate");
      ASSERT_THAT(tensor.Reshard(Chunks(1), {.max_staging_bytes = kStaging,
                                             .direct = direct,
                                             .stats = &stats}),
                  IsOk());
      allocated = fault.bytes();
    }
    EXPECT_LE(stats.staging_bytes, kStaging);
    EXPECT_LE(allocated, static_cast<uint64_t>(kShardBytes + kStaging));
    EXPECT_TRUE(HasPattern(tensor));
    if (stats.strategy != TransferStrategy::kMessages) {
      EXPECT_EQ(stats.staging_bytes, 0);
    }
  }
}

// As measured by the system, for all allocators. PyTorch's DTensor needs the
// whole tensor and twice its cut.
SHERD_DIST_TEST_F(MoveMemoryTest, IsBoundedAsMeasuredByTheSystem) {
  constexpr int64_t kMiB = 1 << 20;
  constexpr int64_t kShard = 16 * kMiB;
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardedTensor::Full(Chunks(0), {1024, 16384}, rank()));
  const ShardedTensor before = tensor;
  ASSERT_THAT(group().Barrier(), IsOk());
  if (!ForgetPeak()) GTEST_SKIP() << "/proc/self/clear_refs is not writable";
  const int64_t resident = Resident("VmRSS");
  ASSERT_THAT(tensor.Reshard(Chunks(1),
                             {.max_staging_bytes = 2 * kMiB, .direct = false}),
              IsOk());
  const int64_t peak = Resident("VmHWM") - resident;
  if (!sherd::testing::kIsSanitized) {
    // Buffers of connections, lists of pieces, and what libraries keep.
    EXPECT_LE(peak, kShard + 2 * kMiB + 6 * kMiB);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor columns, tensor.local_tensor());
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(columns.At<float>({256 * r, 17}).value(), r);
  }
}

// The same memory again and again.
SHERD_DIST_TEST_F(MoveMemoryTest, ReshardIntoTakesStagingOnly) {
  const ShardedTensor tensor = Source();
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor into, ShardedTensor::Zeros(Chunks(1), {kRows, kColumns}));
  for (int i = 0; i < 3; ++i) {
    CountPassages fault("tensor/allocate", {.optional = true});
    ASSERT_THAT(tensor.ReshardInto(into, {.max_staging_bytes = kStaging}),
                IsOk());
    EXPECT_LE(fault.bytes(), static_cast<uint64_t>(kStaging));
  }
  EXPECT_TRUE(HasPattern(into));
}

// A box costs what it holds, and not what the tensor holds.
SHERD_DIST_TEST_F(MoveMemoryTest, ABoxCostsNoMoreThanItHolds) {
  const ShardedTensor tensor = Source();
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor box,
                             tensor.Narrow({200, 10}, {100, 70}));
  ReshardStats stats;
  CountPassages fault("tensor/allocate", {.optional = true});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor whole,
      box.Gather(0, Tensor(),
                 {.max_staging_bytes = kStaging, .stats = &stats}));
  constexpr int64_t kBoxBytes = 100 * 70 * 4;
  EXPECT_LE(fault.bytes(), static_cast<uint64_t>(kBoxBytes + kStaging));
  EXPECT_LE(stats.bytes_received, kBoxBytes);
  EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
  if (whole.defined()) {
    EXPECT_TRUE(HasPattern(whole, {200, 10}, {kRows, kColumns}));
  }
}

}  // namespace
}  // namespace sherd
