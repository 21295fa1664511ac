#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/bag_view.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

// A rank of three passes what cannot be looked up, has no memory, or fails: one
// error on every rank.

namespace sherd {
namespace {

using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FailAt;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::ModelLookUp;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kNotDone = absl::StatusCode::kUnimplemented;
constexpr int kFailedRank = 1;

Tensor Ids(const std::vector<int64_t>& ids, const Dims& size = {}) {
  return Tensor::FromSpan(
             absl::MakeConstSpan(ids),
             size.empty() ? Dims{static_cast<int64_t>(ids.size())} : size)
      .value();
}

Tensor Whole() {
  Tensor tensor = Tensor::Empty({10, 4}).value();
  for (int64_t i = 0; i < 40; ++i) {
    tensor.mutable_data_as<float>()[i] = static_cast<float>(i);
  }
  return tensor;
}

ShardingSpecPtr Chunks(int dim) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(3)).value();
}

TableLookUp OfTensor() { return {Whole(), {Ids({1, 2, 9, 0}, {2, 2})}}; }

std::vector<TableLookUp> Valid() {
  const ShardedTensor table = ShardsOf(Whole(), Chunks(0));
  return {{table, {Ids({1, 2, 9}), Ids({0, 1})}, {.mode = BagMode::kSum}},
          OfTensor()};
}

struct Rejection {
  std::string name;
  std::function<void(std::vector<TableLookUp>&)> spoil;
  absl::StatusCode code;
  std::string phrase;
};

// NOLINTNEXTLINE(readability-function-size): a table.
std::vector<Rejection> Rejections() {
  using L = std::vector<TableLookUp>;
  const Tensor zeros = Tensor::Zeros({3, 4, 1}).value();
  return {
      {"no ids", [](L& l) { l[0].bags.ids = Tensor(); }, kInvalid,
       "table 0: input need to be torch.Tensor"},
      {"ids of floats", [](L& l) { l[1].bags.ids = Whole(); }, kInvalid,
       "table 1: ids: expected int32 or int64, got float32"},
      {"ids on meta",
       [](L& l) {
         l[1].bags.ids = Tensor::Empty({2, 2}, {.dtype = kInt64,
                                                .device = DeviceType::kMeta})
                             .value();
       },
       kState, "table 1: ids are on meta"},
      {"ids of three dims",
       [](L& l) {
         l[1].bags.ids = Ids({1, 2}, {2, 1, 1});
       },
       kInvalid, "Input more than 2 dims not supported"},
      {"a scalar",
       [](L& l) { l[1].bags.ids = Tensor::Scalar(int64_t{1}).value(); },
       kInvalid, "nor a scalar"},
      {"no table", [](L& l) { l[1].table = Tensor(); }, kState,
       "table 1: the table was not created"},
      {"no sharded table", [](L& l) { l[1].table = ShardedTensor(); }, kState,
       "table 1: the table was not created"},
      {"a table of three dims", [zeros](L& l) { l[1].table = zeros; }, kInvalid,
       "table 1: Weight needs to have exactly 2 dims, got [3, 4, 1]"},
      {"a table of integers",
       [](L& l) {
         l[1].table = Tensor::Zeros({10, 4}, {.dtype = kInt32}).value();
       },
       kInvalid, "table 1: Weight needs to be of float64"},
      {"a table of columns",
       [](L& l) { l[1].table = Whole().Transpose(0, 1).value(); }, kInvalid,
       "not a contiguous Tensor"},
      {"a table on meta",
       [](L& l) {
         l[1].table =
             Tensor::Empty({10, 4}, {.device = DeviceType::kMeta}).value();
       },
       kState, "table 1: the table is on meta"},
      {"a sharded table on meta",
       [](L& l) {
         std::vector<Placement> placements;
         for (int r = 0; r < 3; ++r) {
           placements.push_back(Placement::OnRank(r, DeviceType::kMeta));
         }
         l[0].table =
             ShardedTensor::Empty(
                 ChunkShardingSpec::Create(0, placements).value(), {10, 4})
                 .value();
       },
       kState, "table 0: the table is on meta"},
      {"an id too large",
       [](L& l) {
         l[0].bags.ids = Ids({1, 10, 12});
       },
       kInvalid,
       "rank 1: table 0: Index out of range in Input: the id at position 1 is "
       "10, expected one of 0 to 9"},
      {"a negative id",
       [](L& l) {
         l[0].bags.ids = Ids({1, 3, -1});
       },
       kInvalid, "the id at position 2 is -1"},
      {"a mode that is not one",
       [](L& l) { l[0].options.mode = static_cast<BagMode>(7); }, kInvalid,
       "mode '7' is not supported"},
      {"no offsets", [](L& l) { l[0].bags.offsets = Tensor(); }, kInvalid,
       "offsets is required for 1D input"},
      {"offsets of 2-D ids",
       [](L& l) {
         l[1].bags.offsets = Ids({0, 1});
       },
       kInvalid, "Input dimension needs to be exactly 1 dim"},
      {"offsets without bags", [](L& l) { l[0].options.mode = BagMode::kNone; },
       kInvalid, "Input dimension needs to be exactly 1 dim"},
      {"offsets of two dims",
       [](L& l) {
         l[0].bags.offsets = Ids({0, 1}, {1, 2});
       },
       kInvalid, "offsets: Input dimension needs to be exactly 1 dim, got 2"},
      {"offsets of floats",
       [](L& l) { l[0].bags.offsets = Tensor::Zeros({2}).value(); }, kInvalid,
       "offsets: expected int32 or int64"},
      {"a first offset of 1",
       [](L& l) {
         l[0].bags.offsets = Ids({1, 2});
       },
       kInvalid, "but offsets[0] is 1"},
      {"offsets that descend",
       [](L& l) {
         l[0].bags.offsets = Ids({0, 2, 1});
       },
       kInvalid, "but offsets[2] is 1 after 2"},
      {"an offset past the end",
       [](L& l) {
         l[0].bags.offsets = Ids({0, 4});
       },
       kInvalid, "but offsets[1] is 4 after 0"},
      {"ids without a bag", [](L& l) { l[0].bags.offsets = Ids({}); }, kInvalid,
       "there are 3 ids but no bag"},
      {"a flag without offsets",
       [](L& l) { l[1].options.include_last_offset = true; }, kInvalid,
       "offsets is required for flag"},
      {"a last offset before the end",
       [](L& l) { l[0].options.include_last_offset = true; }, kInvalid,
       "offsets need to have the input size in the end: expected 3, got 1"},
      {"weights of another size",
       [](L& l) { l[0].bags.per_sample_weights = Tensor::Ones({2}).value(); },
       kInvalid, "is not equal to input size [3]"},
      {"weights of another dtype",
       [](L& l) {
         l[0].bags.per_sample_weights =
             Tensor::Ones({3}, {.dtype = kFloat64}).value();
       },
       kInvalid, "expected the table's dtype float32, got float64"},
      {"weights of a mean",
       [](L& l) {
         l[1].bags.per_sample_weights = Tensor::Ones({2, 2}).value();
       },
       kNotDone, "only supported for mode='sum', got mode='mean'"},
      {"a max_norm of 0", [](L& l) { l[0].options.max_norm = 0; }, kInvalid,
       "\"max_norm\" must be larger than zero!"},
      {"a norm_type of 0",
       [](L& l) {
         l[0].options.max_norm = 1;
         l[0].options.norm_type = 0;
       },
       kInvalid, "\"norm_type\" must be larger than zero!"},
      {"padding past the end", [](L& l) { l[0].options.padding_idx = 10; },
       kInvalid, "padding_idx must be within the number of embeddings"},
      {"padding before the beginning",
       [](L& l) { l[0].options.padding_idx = -11; }, kInvalid,
       "padding_idx must be within the number of embeddings"},
      // What only the comparison of ranks finds.
      {"another layout",
       [](L& l) { l[0].table = ShardsOf(Whole(), Chunks(1)); }, kInvalid,
       "rank 1 was called with other arguments"},
      {"another mode", [](L& l) { l[0].options.mode = BagMode::kMean; },
       kInvalid, "rank 1 was called with other arguments"},
      {"weights on one rank",
       [](L& l) { l[0].bags.per_sample_weights = Tensor::Ones({3}).value(); },
       kInvalid, "rank 1 was called with other arguments"},
      {"max_norm on one rank", [](L& l) { l[1].options.max_norm = 5; },
       kInvalid, "max_norm 5"},
      {"padding on one rank", [](L& l) { l[1].options.padding_idx = 5; },
       kInvalid, "padding_idx 5"},
      {"a table less", [](L& l) { l.pop_back(); }, kInvalid, "1 tables"},
  };
}

TEST(LookUpErrorsTest, BadArgumentsOfOneRankAreTheSameErrorOnAll) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Rejection& rejection : Rejections()) {
      for (const bool direct : {true, false}) {
        SCOPED_TRACE(absl::StrCat(rejection.name, direct ? "" : ", messages"));
        std::vector<TableLookUp> lookups = Valid();
        if (group.rank() == kFailedRank) rejection.spoil(lookups);
        EXPECT_THAT(LookUp(lookups, {.direct = direct}).status(),
                    AllOf(StatusIs(rejection.code, rejection.phrase),
                          StatusIs(rejection.code, "look_up: rank 1")));
        EXPECT_THAT(LookUp(Valid(), {.direct = direct}), IsOk());
      }
    }
  });
}

TEST(LookUpErrorsTest, WithoutAGroupTheErrorIsReturnedAtOnce) {
  for (const Rejection& rejection : Rejections()) {
    if (rejection.phrase.find("table 1") == std::string::npos) continue;
    std::vector<TableLookUp> lookups(2, OfTensor());
    rejection.spoil(lookups);
    EXPECT_THAT(LookUp(lookups).status(),
                StatusIs(rejection.code, "look_up: table 1"))
        << rejection.name;
  }
}

TEST(LookUpErrorsTest, WithoutAGroupAFailureWhileRowsArePooledIsNamedToo) {
  FailAt fault("sharding/before_copy", absl::DataLossError("gone"),
               {.subject = "look_up"});
  EXPECT_THAT(LookUp({OfTensor()}).status(),
              StatusIs(absl::StatusCode::kDataLoss, "look_up: gone"));
}

TEST(LookUpErrorsTest, OutputsThatDoNotFit) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Tensor& output :
         {Tensor::Zeros({2, 5}).value(),
          Tensor::Zeros({2, 4}, {.dtype = kFloat64}).value(),
          Tensor::Zeros({4, 2})->Transpose(0, 1).value()}) {
      std::vector<Tensor> outputs(2);
      if (group.rank() == kFailedRank) outputs[1] = output;
      EXPECT_THAT(LookUpInto(Valid(), absl::MakeSpan(outputs)),
                  AllOf(StatusIs(kInvalid, "rank 1: table 1: the output needs"),
                        HasErrorRank(kFailedRank)));
      EXPECT_FALSE(outputs[0].defined());
    }
    std::vector<Tensor> outputs(1);
    EXPECT_THAT(LookUpInto(Valid(), absl::MakeSpan(outputs)),
                StatusIs(kInvalid, "an output for each of 2 tables, got 1"));
  });
}

TEST(LookUpErrorsTest, TablesOfTwoGroups) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const auto other = group.NewGroup({0, 1, 2}).value();
    const Bags bags = {Ids({1}, {1, 1})};
    EXPECT_THAT(LookUp({{ShardsOf(Whole(), Chunks(0)), bags},
                        {ShardsOf(Whole(), Chunks(0), other), bags}})
                    .status(),
                StatusIs(kState, "should use the same ProcessGroup"));
  });
}

TEST(LookUpErrorsTest, ATableThatMayNotBeWrittenTo) {
  const Tensor whole = Whole();
  const auto storage =
      Storage::BorrowReadOnly(whole.data(), 160, whole.storage()).value();
  const Tensor table =
      Tensor::FromStorage(storage, 0, {10, 4}, kFloat32).value();
  const Bags bags = {Ids({9}, {1, 1})};
  EXPECT_THAT(LookUp({{table, bags}}), IsOk());
  EXPECT_THAT(LookUp({{table, bags, {.max_norm = 1}}}).status(),
              StatusIs(kState, "may not be written to"));
}

TEST(LookUpErrorsTest, ANegativeInt32IdIsNoRowOfATableWithMoreThan2To31) {
  for (const int64_t rows : {(int64_t{1} << 31) + 1, int64_t{1} << 40}) {
    for (const int32_t id : {-1, std::numeric_limits<int32_t>::min()}) {
      internal::BagView view;
      const Bags bags = {Tensor::FromSpan<int32_t>({7, id}, {1, 2}).value()};
      EXPECT_THAT(view.Set(kFloat32, rows, bags, {}),
                  StatusIs(kInvalid, absl::StrCat("position 1 is ", id)));
      const Bags valid = {Tensor::FromSpan<int32_t>(
                              {0, std::numeric_limits<int32_t>::max()}, {1, 2})
                              .value()};
      EXPECT_THAT(view.Set(kFloat32, rows, valid, {}), IsOk());
    }
  }
}

// Found before the ranks rely on each other.
TEST(LookUpErrorsTest, ADeviceThatPoolsNoRowsDoesNoHarmToTheGroup) {
  FakeDevice::Install(3);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    std::vector<Placement> placements;
    for (int r = 0; r < 3; ++r) {
      placements.push_back(Placement::OnRank(r, {DeviceType::kCuda, r}));
    }
    const auto rows = ChunkShardingSpec::Create(0, placements).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor table,
                               ShardedTensor::Ones(rows, {10, 4}));
    const Bags bags = {Ids({1, 2, 9, 0}, {2, 2})};
    EXPECT_THAT(
        LookUp({{table, bags}}, {.timeout = absl::Seconds(20)}).status(),
        StatusIs(kNotDone, "the fake device pools no rows"));
    EXPECT_THAT(group.health(), IsOk());
    EXPECT_THAT(LookUp(Valid()), IsOk());
  });
}

TEST(LookUpErrorsTest, AStreamThatIsBeingCapturedTakesNoLookup) {
  FakeDevice& devices = FakeDevice::Install(1);
  const Device device = {DeviceType::kCuda, 0};
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor table, Whole().To(device));
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             devices.CreateStream(0, false));
  devices.SetCapturing(stream, true);
  const ScopedStream scope(stream);
  const Bags bags = {Ids({1, 2}, {1, 2})};
  EXPECT_THAT(
      LookUp({{table, bags}}).status(),
      StatusIs(kState, "look_up: a stream of cuda:0 is being captured"));
}

// A rank that fails in a phase

TEST(LookUpErrorsTest, ARankWithoutMemoryIsTheSameErrorOnAll) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const std::vector<TableLookUp> lookups = Valid();
    for (const bool direct : {true, false}) {
      absl::Status status;
      ASSERT_THAT(group.Barrier(), IsOk());
      {
        FailAllocationAt fault({.rank = kFailedRank});
        ASSERT_THAT(group.Barrier(), IsOk());
        status = LookUp(lookups, {.direct = direct}).status();
        ASSERT_THAT(group.Barrier(), IsOk());
      }
      EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kResourceExhausted,
                                         "rank 1"),
                                HasErrorRank(kFailedRank)));
    }
    EXPECT_THAT(LookUp(lookups), IsOk());
  });
}

TEST(LookUpErrorsTest, ARankThatCannotMapShardsMakesAllUseMessages) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const std::vector<TableLookUp> lookups = Valid();
    LookUpStats stats;
    absl::StatusOr<std::vector<Tensor>> y;
    {
      FailAt fault("sharding/import", absl::ResourceExhaustedError("full"),
                   {.rank = kFailedRank, .subject = "look_up"});
      ASSERT_THAT(group.Barrier(), IsOk());
      y = LookUp(lookups, {.stats = &stats});
      ASSERT_THAT(group.Barrier(), IsOk());
    }
    ASSERT_THAT(y, IsOk());
    EXPECT_FALSE(stats.direct);
    EXPECT_THAT((*y)[0], TensorBitwiseEq(ModelLookUp(Whole(), lookups[0].bags,
                                                     lookups[0].options)));
    // It is not tried again for these tables.
    ASSERT_THAT(LookUp(lookups, {.stats = &stats}), IsOk());
    EXPECT_FALSE(stats.direct);
  });
}

TEST(LookUpErrorsTest, ARankThatFailsWhileOthersReadIsTheSameErrorOnAll) {
  for (const char* const point :
       {"sharding/before_copy", "sharding/after_copy"}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      const std::vector<TableLookUp> lookups = Valid();
      absl::Status status;
      {
        FailAt fault(point, absl::DataLossError("gone"),
                     {.rank = kFailedRank, .subject = "look_up"});
        ASSERT_THAT(group.Barrier(), IsOk());
        status = LookUp(lookups).status();
        ASSERT_THAT(group.Barrier(), IsOk());
      }
      EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kDataLoss, "gone"),
                                HasErrorRank(kFailedRank)));
      EXPECT_THAT(LookUp(lookups), IsOk());
    });
  }
}

TEST(LookUpErrorsTest, ARankThatFailsAmongMessagesEndsTheCallOnAll) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const std::vector<TableLookUp> lookups = Valid();
    FailAt fault("sharding/before_copy", absl::DataLossError("gone"),
                 {.rank = kFailedRank, .subject = "look_up", .optional = true});
    const absl::Status status =
        LookUp(lookups, {.timeout = absl::Seconds(5), .direct = false})
            .status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("look_up"));
    if (group.rank() == kFailedRank) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "gone"));
    }
    EXPECT_FALSE(group.health().ok());
  });
}

TEST(LookUpErrorsTest, ARankThatStaysAwayIsNamed) {
  for (const bool direct : {true, false}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      const std::vector<TableLookUp> lookups = Valid();
      ASSERT_THAT(LookUp(lookups, {.direct = direct}), IsOk());
      if (group.rank() == kFailedRank) return;
      EXPECT_THAT(
          LookUp(lookups, {.timeout = absl::Seconds(20), .direct = direct})
              .status(),
          HasErrorRank(kFailedRank));
    });
  }
}

}  // namespace
}  // namespace sherd
