#include "sherd/rpc/devices/device_routes.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/tensor/device.h"
#include "sherd/rpc/rpc.pb.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

const std::vector<std::string>& Names() {
  static const auto* const names =
      new std::vector<std::string>{"ps", "trainer:0", "trainer:1"};
  return *names;
}

// The routes of `rank` if these are the maps of rank 0, and rank 2 maps to it.
absl::StatusOr<DeviceRoutes> RoutesOf(int rank, const DeviceMaps& maps) {
  const DeviceMaps back = {{"ps", {{"cuda:5", "cuda:0"}}}};
  return DeviceRoutes::Create(
      rank, Names(), {EncodeDeviceMaps(maps), "", EncodeDeviceMaps(back)});
}

TEST(DeviceRoutesTest, ArgumentsFollowTheCallersMapAndResultsComeBackOnIt) {
  const DeviceMaps maps = {
      {"trainer:0", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}},
      {"trainer:1", {{"cuda:0", "cpu:0"}}}};
  const absl::StatusOr<DeviceRoutes> ps = RoutesOf(0, maps);
  ASSERT_THAT(ps, IsOk());
  EXPECT_TRUE(ps->uses_devices());
  EXPECT_THAT(ps->OfArgument(1, "cuda:0"), IsOkAndHolds(Device("cuda:1")));
  EXPECT_THAT(ps->OfArgument(1, "cuda:1"), IsOkAndHolds(Device("cuda:0")));
  EXPECT_THAT(ps->OfArgument(1, "cpu"), IsOkAndHolds(Device()));
  EXPECT_THAT(ps->OfArgument(2, "cuda:0"), IsOkAndHolds(Device()));
  EXPECT_THAT(ps->OfResult(2, "cuda:0"), IsOkAndHolds(Device("cuda:5")));
  const absl::StatusOr<DeviceRoutes> trainer = RoutesOf(1, maps);
  ASSERT_THAT(trainer, IsOk());
  EXPECT_TRUE(trainer->uses_devices());
  EXPECT_THAT(trainer->OfResult(0, "cuda:1"), IsOkAndHolds(Device("cuda:0")));
  EXPECT_THAT(trainer->OfResult(0, "cpu"), IsOkAndHolds(Device()));
  EXPECT_THAT(trainer->OfArgument(2, "cuda:0"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  // The CPU has an entry in the map, and so its results go to a device.
  EXPECT_THAT(RoutesOf(2, maps)->OfResult(0, "cpu:0"),
              IsOkAndHolds(Device("cuda:0")));
}

TEST(DeviceRoutesTest, WithoutAMapTheErrorSaysWhatToSet) {
  const DeviceMaps maps = {{"trainer:0", {{"cuda:0", "cuda:1"}}}};
  const DeviceRoutes ps = *RoutesOf(0, maps);
  EXPECT_THAT(ps.OfArgument(1, "cuda:1"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "ps (rank 0) has no device map from cuda:1 to trainer:0 "
                       "(rank 1); set RpcOptions::device_maps"));
  EXPECT_THAT(ps.OfArgument(2, "cuda:0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "trainer:1"));
  // What it maps to others is not where results of their calls may be.
  EXPECT_THAT(ps.OfResult(1, "cuda:0"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "trainer:0 (rank 1), the caller, has no device map to "
                       "cuda:0 of ps (rank 0)"));
  EXPECT_THAT(ps.OfArgument(1, "meta"),
              StatusIs(absl::StatusCode::kUnimplemented, "no data"));
  EXPECT_THAT(ps.OfResult(1, "meta"),
              StatusIs(absl::StatusCode::kUnimplemented, "no data"));
  EXPECT_FALSE(DeviceRoutes().uses_devices());
  EXPECT_THAT(DeviceRoutes().OfArgument(0, "cpu"), IsOkAndHolds(Device()));
}

TEST(DeviceRoutesTest, BadMapsAreRefusedAlikeOnAllWorkers) {
  struct Case {
    DeviceMaps maps;
    absl::string_view text;
  };
  const Case cases[] = {
      {{{"trainer:2", {{"cuda:0", "cuda:0"}}}},
       "ps (rank 0) has invalid target node names in its device maps: "
       "\"trainer:2\" is not a worker; these are ps, trainer:0, trainer:1"},
      {{{"two\nlines", {{"cuda:0", "cuda:0"}}}}, "two\\nlines"},
      {{{"trainer:0", {{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:1"}}}},
       "ps (rank 0) has duplicated target devices in its device map for "
       "trainer:0: device_maps only supports 1-to-1 mapping, trying to map "
       "cuda:1 to cuda:1 of trainer:0: cuda:0 goes there already"},
      {{{"trainer:0", {{"cpu", "cuda:1"}, {"cpu:0", "cuda:0"}}}},
       "only supports 1-to-1 mapping"},
      {{{"trainer:0", {{"cuda", "cuda:1"}}}}, "has invalid devices"},
      {{{"trainer:0", {{"cuda:0", "meta"}}}}, "has invalid devices"},
      {{{"trainer:0", {{"cuda:0", "cuda:65536"}}}}, "has invalid devices"},
      {{{"trainer:0", {{"tpu:0", "cuda:0"}}}}, "Expected one of cpu, cuda"},
      {{{"trainer:0", {{"cuda:x", "cuda:0"}}}}, "Invalid device string"},
  };
  for (const Case& bad : cases) {
    for (int rank = 0; rank < 3; ++rank) {
      const absl::Status status = RoutesOf(rank, bad.maps).status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   std::string(bad.text)));
      EXPECT_EQ(ErrorRank(status), 0);
    }
  }
}

TEST(DeviceRoutesTest, MalformedRecordsAreRefused) {
  rpc::DeviceMapRecord uneven;
  uneven.add_worker("ps");
  uneven.add_from("cuda:0");
  for (const std::string& record :
       {std::string("\xff"), uneven.SerializeAsString()}) {
    const absl::Status status =
        DeviceRoutes::Create(0, Names(), {"", record, ""}).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 "trainer:0 (rank 1) wrote device maps"));
    EXPECT_EQ(ErrorRank(status), 1);
  }
}

// Golden: workers of other builds read these bytes.
TEST(DeviceRoutesTest, RecordsKeepTheirBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeDeviceMaps(
                {{"b", {{"cuda:1", "cuda:0"}, {"cuda:0", "cuda:1"}}},
                 {"a", {{"cuda:2", "cpu"}}}})),
            "0a01610a01620a0162"
            "1206637564613a321206637564613a301206637564613a31"
            "1a036370751a06637564613a311a06637564613a30");
}

}  // namespace
}  // namespace sherd::internal
