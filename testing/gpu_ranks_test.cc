// What ranks of a test on GPUs find, on GPUs that are emulated.

#include <cstdint>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

class GpuRanksTest : public DistributedTest {
 protected:
  // The GPU of this rank.
  int expected_gpu() const { return rank() % gpus(); }

  int gpus() const {
    return *(*DeviceRuntime::For(DeviceType::kCuda))->DeviceCount();
  }
};

SHERD_DIST_TEST_F(GpuRanksTest, EachRankHasAGroupOnItsGpu, WithComms{}) {
  EXPECT_EQ(group().device(), (Device{DeviceType::kCuda, expected_gpu()}));
  const std::vector<float> own = {1.0f + static_cast<float>(rank()), 10};
  Tensor tensor = *Tensor::FromSpan<float>(own, {2});
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor on_gpu, tensor.To(*group().device()));
  ASSERT_THAT(AllReduce(group(), on_gpu, ReduceOp::kSum), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor sum, on_gpu.To(Device()));
  const float n = static_cast<float>(world_size());
  EXPECT_EQ(sum.data_as<float>()[0], n * (n + 1) / 2);
  EXPECT_EQ(sum.data_as<float>()[1], 10 * n);
}

SHERD_DIST_TEST_F(GpuRanksTest, OnAHostBackendTheGpuIsTheCurrentOne,
                  (WithComms{.backend = "gloo", .device = "cuda"})) {
  EXPECT_EQ(group().device(), std::nullopt);
  EXPECT_EQ(*(*DeviceRuntime::For(DeviceType::kCuda))->CurrentDevice(),
            expected_gpu());
}

}  // namespace
}  // namespace sherd::testing
