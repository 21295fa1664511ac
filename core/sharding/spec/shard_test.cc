
#include "sherd/core/sharding/shard.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ShardTest, ChecksTensorAgainstMetadata) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Zeros({2, 3}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard,
                             Shard::FromTensorAndOffsets(tensor, {4, 0}, 1));
  EXPECT_EQ(shard.metadata,
            (ShardMetadata{{4, 0}, {2, 3}, Placement("rank:1/cpu")}));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {4}, 1),
              StatusIs(kInvalid, "same number of elements"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {-4, 0}, 1),
              StatusIs(kInvalid, "shard_offsets should be >=0"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(tensor, {4, 0}, -1),
              StatusIs(kInvalid, "rank is -1"));
  EXPECT_THAT(Shard::FromTensorAndOffsets(Tensor(), {}, 0),
              StatusIs(kInvalid, "undefined"));
  Shard wrong = shard;
  wrong.metadata.sizes = {3, 2};
  EXPECT_THAT(
      wrong.Validate(),
      StatusIs(kInvalid,
               "Shard tensor size does not match with metadata.shard_lengths"));
  wrong = shard;
  wrong.metadata.placement = "rank:1/cuda:0";
  EXPECT_THAT(wrong.Validate(),
              StatusIs(kInvalid,
                       "Local shard tensor device does not match with local "
                       "Shard's placement"));
  wrong.metadata.placement.reset();
  EXPECT_THAT(wrong.Validate(), IsOk());
}

TEST(MakeLocalTensorTest, MakesWhatThePropertiesSay) {
  for (const Dims& sizes : {Dims{5, 10}, Dims{0, 4}, Dims{}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor tensor,
        MakeLocalTensor(sizes, {.dtype = kFloat64, .pin_memory = true}));
    EXPECT_EQ(tensor.sizes(), absl::MakeConstSpan(sizes));
    EXPECT_EQ(tensor.dtype(), kFloat64);
    EXPECT_TRUE(tensor.device().is_cpu());
    EXPECT_TRUE(tensor.is_contiguous());
  }
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor meta,
      MakeLocalTensor({5}, {.dtype = kInt8}, {DeviceType::kMeta}));
  EXPECT_TRUE(meta.device().is_meta());
}

TEST(MakeLocalTensorTest, RefusesUnsupportedProperties) {
  EXPECT_THAT(
      MakeLocalTensor({5}, {.layout = Layout::kSparseCsr}),
      StatusIs(kInvalid, "Only torch.strided layout is currently supported"));
  EXPECT_THAT(MakeLocalTensor({5}, {.memory_format = MemoryFormat::kPreserve}),
              StatusIs(kInvalid,
                       "Only torch.contiguous_format memory_format is "
                       "currently supported"));
  EXPECT_THAT(MakeLocalTensor({5}, {.pin_memory = true}, {DeviceType::kMeta}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "Only dense CPU tensors can be pinned"));
  EXPECT_THAT(MakeLocalTensor({5}, {}, {DeviceType::kCuda, 0}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "a shard on cuda:0 needs memory there"));
  EXPECT_THAT(MakeLocalTensor({-5}, {}), StatusIs(kInvalid));
  EXPECT_THAT(MakeLocalTensor({int64_t{1} << 62, 4}, {}), StatusIs(kInvalid));
}

}  // namespace
}  // namespace sherd
