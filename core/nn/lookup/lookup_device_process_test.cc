#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/embedding.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_cases.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/emulated_gpu/driver_library.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/random_moves.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

// Lookups in tables on devices, one or more per rank.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::CheckRandomLookUp;
using ::sherd::testing::CheckReferenceLookUps;
using ::sherd::testing::DriverLibrary;
using ::sherd::testing::FailAt;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::ModelLookUp;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::SameOnAllRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotDone = absl::StatusCode::kUnimplemented;

class LookUpDeviceProcessTest : public sherd::testing::PlacedFixture<
                                    sherd::testing::PersistentDistributedTest> {
 protected:
  // The group moves memory of the first one only, if there are several.
  Device Own() { return DeviceOf(rank()); }
  Device Other() { return DeviceOf(rank() + 1); }

  // [10, 4], row i of 4 i, 4 i + 1, ….
  static Tensor Whole() {
    Tensor tensor = Tensor::Empty({10, 4}).value();
    for (int64_t i = 0; i < 40; ++i) {
      tensor.mutable_data_as<float>()[i] = static_cast<float>(i);
    }
    return tensor;
  }
  static Bags TwoBags() {
    return {Tensor::FromSpan<int64_t>({1, 9, 4, 1}, {2, 2}).value()};
  }
  ShardedTensor Rows() { return ShardsOf(Whole(), Chunks(0)); }

  void ExpectRandomLookUps(const Device& device, int64_t cases) {
    const uint64_t seed = SameOnAllRanks(group(), RandomSeed());
    for (int64_t i = 0; i < CaseCount(cases) && !HasFailure(); ++i) {
      CheckRandomLookUp(group(), seed + static_cast<uint64_t>(i),
                        /*reachable=*/false, device);
    }
  }
};

SHERD_DIST_TEST_F(LookUpDeviceProcessTest,
                  RandomTablesEqualTheModelAndTheHost) {
  ExpectRandomLookUps(Own(), 60);
}

// Replies through the host's memory.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest,
                  RandomTablesOnOtherDevicesThanTheGroupsDoToo) {
  ExpectRandomLookUps(Other(), 40);
}

SHERD_DIST_TEST_F(LookUpDeviceProcessTest, EveryCaseOfTheReference) {
  CheckReferenceLookUps(group(), /*reachable=*/false, Own());
}

// Results are queued: what follows on the stream sees them.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest, WorksOnAStreamOfTheCallers) {
  DeviceRuntime& runtime = *DeviceRuntime::For(Own().type).value();
  const ShardedTensor table = Rows();
  // Its elements were written on the default stream.
  ASSERT_THAT(runtime.Synchronize(CurrentStream(Own())), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const DeviceStream stream,
                             runtime.CreateStream(Own().index));
  {
    const ScopedStream scope(stream);
    for (int i = 0; i < 3; ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                                 LookUp({{table, TwoBags()}}));
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor copy, y[0].Clone());
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, copy.To(Device()));
      EXPECT_THAT(on_host,
                  TensorBitwiseEq(ModelLookUp(Whole(), TwoBags(), {})));
    }
  }
  // Tables may be freed, on the stream of their allocation, while they are
  // read.
  for (int i = 0; i < 3; ++i) {
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole, Whole().To(Own()));
    ShardedTensor rows = Rows();
    ASSERT_THAT(runtime.Synchronize(CurrentStream(Own())), IsOk());
    const ScopedStream scope(stream);
    SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                               LookUp({{whole, TwoBags()}, {rows, TwoBags()}}));
    whole = Tensor();
    rows = ShardedTensor();
    for (const Tensor& result : y) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, result.To(Device()));
      EXPECT_THAT(on_host,
                  TensorBitwiseEq(ModelLookUp(Whole(), TwoBags(), {})));
    }
  }
  ASSERT_THAT(runtime.Synchronize(stream), IsOk());
  runtime.DestroyStream(stream);
}

// The host is ahead of the devices: later calls reuse no memory that is in use.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest, SeveralCallsMayBeUnderWay) {
  for (const Device& device : {Own(), Other()}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor table, Rows().To(device));
    std::vector<Bags> bags;
    std::vector<Tensor> results;
    for (int64_t i = 0; i < 40; ++i) {
      std::vector<int64_t> ids;
      for (int64_t k = 0; k < 64; ++k) ids.push_back((k * i + rank()) % 10);
      bags.push_back(
          {Tensor::FromSpan(absl::MakeConstSpan(ids), {16, 4}).value()});
      SHERD_ASSERT_OK_AND_ASSIGN(
          const std::vector<Tensor> y,
          LookUp({{table, bags.back(), {.mode = BagMode::kSum}}}));
      results.push_back(y[0]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, results[i].To(Device()));
      EXPECT_THAT(on_host, TensorBitwiseEq(ModelLookUp(
                               Whole(), bags[i], {.mode = BagMode::kSum})));
    }
  }
}

// Rank 0 has all rows; the others get theirs from there, on their own devices.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest, RanksWithoutShardsHaveTheirDevice) {
  const ShardedTensor table = ShardsOf(Whole(), Chunks(0, {0}));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                             LookUp({{table, TwoBags()}}));
  EXPECT_EQ(y[0].device(), Own());
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, y[0].To(Device()));
  EXPECT_THAT(on_host, TensorBitwiseEq(ModelLookUp(Whole(), TwoBags(), {})));
}

SHERD_DIST_TEST_F(LookUpDeviceProcessTest, FillsOutputsOnTheDevice) {
  const ShardedTensor table = Rows();
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor output,
                             Tensor::Empty({2, 4}, {.device = Own()}));
  const void* const memory = output.data();
  ASSERT_THAT(LookUpInto({{table, TwoBags()}}, absl::MakeSpan(&output, 1)),
              IsOk());
  EXPECT_EQ(output.data(), memory);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, output.To(Device()));
  EXPECT_THAT(on_host, TensorBitwiseEq(ModelLookUp(Whole(), TwoBags(), {})));
}

// Each error is one rank's, and the same on all; afterwards lookups work.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest, ErrorsAreTheSameOnAllRanks) {
  const ShardedTensor table = Rows();
  const std::string one = DeviceOf(1).ToString();
  const auto expect = [&](std::vector<TableLookUp> lookups,
                          absl::StatusCode code, const std::string& phrase) {
    SCOPED_TRACE(phrase);
    EXPECT_THAT(LookUp(lookups).status(), StatusIs(code, phrase));
    EXPECT_THAT(LookUp({{table, TwoBags()}}), IsOk());
  };
  const bool bad = rank() == 1;

  Bags bags = TwoBags();
  if (bad) bags.ids = Tensor::FromSpan<int64_t>({1, 9, 10, 1}, {2, 2}).value();
  bags.ids = bags.ids.To(Own()).value();
  expect({{table, bags}}, kInvalid,
         "look_up: rank 1: table 0: Index out of range in Input: the id at "
         "position 2 is 10");

  if (Other() != Own()) {
    bags = TwoBags();
    if (bad) bags.ids = bags.ids.To(Other()).value();
    expect({{table, bags}}, kInvalid,
           absl::StrCat("look_up: rank 1: table 0: ids are on ",
                        DeviceOf(2).ToString(),
                        ", expected them in host memory or on ", one));
    const Tensor other = Whole().To(bad ? Other() : Own()).value();
    expect({{table, TwoBags()}, {other, TwoBags()}}, kInvalid,
           absl::StrCat("look_up: rank 1: table 1 is on ",
                        DeviceOf(2).ToString(), ", but table 0 on ", one));
  }
  const Tensor plain = bad ? Whole() : Whole().To(Own()).value();
  expect({{table, TwoBags()}, {plain, TwoBags()}}, kInvalid,
         absl::StrCat("rank 1: table 1 is on cpu, but table 0 on ", one));
  expect({{table, TwoBags(), {.max_norm = bad ? 1.0 : 2.0}}}, kNotDone,
         "max_norm: the table is on cuda:");

  std::vector<Placement> placements = OnAllRanks();
  placements[1] = Placement::OnRank(1);
  const auto cut = ChunkShardingSpec::Create(0, placements).value();
  expect({{ShardsOf(Whole(), cut), TwoBags()}}, kInvalid,
         absl::StrCat("table 0: the table has shards on ",
                      DeviceOf(0).ToString(), " and on cpu"));
  if (Other() != Own()) {
    placements = {Placement::OnRank(0, DeviceOf(0)),
                  Placement::OnRank(1, DeviceOf(1)),
                  Placement::OnRank(1, DeviceOf(2))};
    const auto both = ChunkShardingSpec::Create(0, placements).value();
    expect({{ShardsOf(Whole(), both), TwoBags()}}, kInvalid,
           absl::StrCat("look_up: rank 1: table 0: the table has shards on ",
                        one, " and on ", DeviceOf(2).ToString()));
  }

  Tensor output;
  if (bad) output = Tensor::Empty({2, 4}).value();
  EXPECT_THAT(
      LookUpInto({{table, TwoBags()}}, absl::MakeSpan(&output, 1)),
      StatusIs(kInvalid, absl::StrCat("of float32 and size [2, 4] on ", one,
                                      ", got float32 and size [2, 4] on cpu")));
  EXPECT_THAT(LookUp({{table, TwoBags()}}), IsOk());
}

SHERD_DIST_TEST_F(LookUpDeviceProcessTest, UpdatesAreOfTheHost) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gradient, Tensor::Ones({2, 4}));
  EXPECT_THAT(Update({{Rows(), TwoBags()}}, {gradient}, {}),
              StatusIs(kNotDone, "the tables are on cuda:"));
}

// A table in host memory does not take ids from a device, and names both.
SHERD_DIST_TEST_F(LookUpDeviceProcessTest, HostTablesTakeIdsOfTheHost) {
  Bags bags = TwoBags();
  bags.ids = bags.ids.To(Own()).value();
  EXPECT_THAT(
      LookUp({{Whole(), bags}}).status(),
      StatusIs(kInvalid, absl::StrCat("table 0: ids are on ", Own().ToString(),
                                      ", expected them in host memory, as the "
                                      "table")));
}

SHERD_DIST_TEST_F(LookUpDeviceProcessTest, ACollectionWorksAfterItMoves) {
  EmbeddingBagCollection collection;
  const BagMode modes[] = {BagMode::kSum, BagMode::kMean, BagMode::kMax};
  ShardingPlan plan;
  for (int t = 0; t < 6; ++t) {
    ASSERT_THAT(collection.Insert(
                    absl::StrCat("t", t),
                    std::make_shared<EmbeddingBag>(
                        Value(Whole()), BagOptions{.mode = modes[t % 3]})),
                IsOk());
    // The last three stay whole.
    if (t < 3) {
      plan.plan.push_back(
          {absl::StrCat("embedding_bags.t", t, ".weight"), Chunks(t % 2)});
    }
  }
  ASSERT_THAT(To(collection, Own()), IsOk());
  ASSERT_THAT(ShardModule(collection, plan), IsOk());
  for (const bool on_device : {false, true}) {
    Tensor ids = TwoBags().ids;
    if (on_device) ids = ids.To(Own()).value();
    const auto y = collection.Call({ids});
    ASSERT_THAT(y, IsOk());
    for (int t = 0; t < 6; ++t) {
      SCOPED_TRACE(t);
      const Tensor result =
          *y->get_if<ValueMap>()->at(absl::StrCat("t", t)).get_if<Tensor>();
      EXPECT_EQ(result.device(), Own());
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host, result.To(Device()));
      // Small integers, whose sums are exact in any order.
      EXPECT_THAT(on_host, TensorBitwiseEq(ModelLookUp(
                               Whole(), TwoBags(), {.mode = modes[t % 3]})));
    }
  }
  const auto words = std::make_shared<Embedding>(Value(Whole()), BagOptions());
  ASSERT_THAT(To(*words, Own()), IsOk());
  const auto y = words->Call({TwoBags().ids});
  ASSERT_THAT(y, IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor on_host,
                             y->get_if<Tensor>()->To(Device()));
  EXPECT_THAT(on_host, TensorBitwiseEq(ModelLookUp(Whole(), TwoBags(),
                                                   {.mode = BagMode::kNone})));
}

// Groups do not survive these tests.
class LookUpDeviceFailureTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {
 protected:
  static constexpr int kFailedRank = 1;

  // Each owner has rows of each rank's bag.
  ShardedTensor Table() {
    return ShardedTensor::Ones(Chunks(0), {8, 4}).value();
  }
  static Bags OneBag() {
    return {Tensor::FromSpan<int64_t>({0, 2, 4, 6}, {1, 4}).value()};
  }

  // Where the failure is, or later, when queued work reports it.
  absl::Status CallTwice(const ShardedTensor& table) {
    absl::Status status;
    for (int i = 0; i < 2 && status.ok(); ++i) {
      status =
          LookUp({{table, OneBag()}}, {.timeout = absl::Seconds(20)}).status();
    }
    return status;
  }
};

SHERD_DIST_TEST_F(LookUpDeviceFailureTest, ARankThatFailsEndsTheCallOnAll) {
  const ShardedTensor table = Table();
  FailAt fault("sharding/before_copy", absl::DataLossError("gone"),
               {.rank = kFailedRank, .subject = "look_up"});
  const absl::Status status = CallTwice(table);
  if (rank() == kFailedRank) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "look_up: gone"));
  } else {
    EXPECT_THAT(status, HasErrorRank(kFailedRank));
  }
  EXPECT_FALSE(group().health().ok());
}

// As it serves the second rank.
SHERD_DIST_TEST_F(LookUpDeviceFailureTest, ADeviceThatFailsEndsTheCallOnAll) {
  DriverLibrary driver = DriverLibrary::Load(
      GetKnobOr(Knob::kCudaLibrary, "libcuda.so.1").c_str());
  if (driver.set_faults == nullptr) GTEST_SKIP() << "the GPUs are real ones";
  const ShardedTensor table = Table();
  ASSERT_THAT(LookUp({{table, OneBag()}}), IsOk());
  ASSERT_THAT(group().Synchronize(), IsOk());
  if (rank() == kFailedRank) {
    ASSERT_EQ(driver.set_faults("cuLaunchKernel:2:2"), 0);
  }
  const absl::Status status = CallTwice(table);
  if (rank() == kFailedRank) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "look_up: cuLaunchKernel"));
  } else {
    EXPECT_THAT(status, HasErrorRank(kFailedRank));
  }
  EXPECT_FALSE(group().health().ok());
}

}  // namespace
}  // namespace sherd
