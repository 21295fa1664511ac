#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/device.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/kits/fake_device_backend.h"
#include "sherd/testing/kits/random_moves.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/random_layouts.h"

// Random layouts over devices and host memory, in groups without a device part,
// where messages between ranks go through host memory, and with one. Work on
// the devices does not run before something waits for it.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::RandomMovesOptions;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RegisterFakeDeviceBackend;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::RunRandomMoves;

constexpr int kRanks = 4;

void RunOver(const std::string& backend) {
  FakeDevice& devices = FakeDevice::Install(kRanks);
  RandomMovesOptions options = {
      .seed = RandomSeed(), .cases = CaseCount(100), .draw_on_devices = false};
  for (int r = 0; r < kRanks; ++r) {
    options.devices.push_back(
        {{DeviceType::kCuda, r}, {DeviceType::kCuda, (r + 1) % kRanks}});
  }
  RunLocalRanks(
      kRanks,
      [&](ProcessGroup&) { RunRandomMoves(DefaultGroup().value(), options); },
      {.backend = backend});
  devices.RunAll();
  EXPECT_EQ(devices.live_blocks(), 0);
}

TEST(AnyDeviceLayoutTest, HoldsTheSameElementsAfterMovesByTheHost) {
  RunOver("local");
}

TEST(AnyDeviceLayoutTest, HoldsTheSameElementsAfterMovesOnDevices) {
  RegisterFakeDeviceBackend();
  RunOver("cpu:local,cuda:fake_device");
}

}  // namespace
}  // namespace sherd
