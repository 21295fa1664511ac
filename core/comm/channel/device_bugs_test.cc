// Errors that core/comm could make with streams, events and buffers: the device
// plugin forgets something, and the emulated GPUs report it.

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/host/device_loader.h"
#include "sherd/backends/host/plugin_host.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/emulated_gpu/driver_library.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::DriverLibrary;
using ::sherd::testing::IsOk;

// The plugin's own table, and the one with a bug that the program uses.
const sherd_device_v0* sound = nullptr;
sherd_device_v0 table = {};

sherd_code ForgetToWait(int32_t, void*, void*, sherd_error_v0*) {
  return SHERD_OK;
}

sherd_code RecordElsewhere(int32_t device, void* event, void*,
                           sherd_error_v0* error) {
  return sound->record_event(device, event, nullptr, error);
}

// Buffers are released at once instead of once the operation has ended. The
// driver is not queried: that would make the end of a quick operation known.
sherd_code EndTooEarly(void*, sherd_error_v0*) { return SHERD_OK; }

class DeviceBugsTest : public sherd::testing::DistributedTest {
 protected:
  // The GPUs' findings in a correct program.
  uint64_t FindingsWith(const std::function<void()>& plant) {
    sound = internal::StaticPlugin<sherd_device_v0>::Head()->entry(
        &internal::PluginHost());
    table = *sound;
    plant();
    DeviceRuntime::SetLoader(
        [](DeviceType) { return AdaptDevice(&table, "with a bug"); });
    const DriverLibrary driver =
        DriverLibrary::Load(GetKnobOr(Knob::kCudaLibrary, "").c_str());
    EXPECT_EQ(driver.problem, "");
    driver.set_abort_on_finding(0);
    EXPECT_THAT(Program(), IsOk());
    return driver.findings(0);
  }

  absl::Status Program() {
    SHERD_ASSIGN_OR_RETURN(const auto group, Init());
    const Device device = *group->device();
    for (int round = 0; round < 3; ++round) {
      SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                             Tensor::Ones({1000}, {.device = device}));
      SHERD_ASSIGN_OR_RETURN(Tensor copy,
                             Tensor::Empty({1000}, {.device = device}));
      Work work = AllReduceAsync(*group, tensor, ReduceOp::kSum);
      SHERD_RETURN_IF_ERROR(work.WaitOnStream());
      SHERD_RETURN_IF_ERROR(copy.CopyFrom(tensor));
      // The tensor is destroyed before the operation has ended.
      Work dropped = AllReduceAsync(*group, copy, ReduceOp::kSum);
    }
    group->Synchronize().IgnoreError();
    SHERD_RETURN_IF_ERROR(group->Barrier());
    return group->Destroy();
  }
};

SHERD_DIST_TEST_F(DeviceBugsTest, ACorrectProgramHasNoFindings,
                  WithoutComms{}) {
  EXPECT_EQ(FindingsWith([] {}), 0u);
}

SHERD_DIST_TEST_F(DeviceBugsTest, AStreamThatDoesNotWaitIsFound,
                  WithoutComms{}) {
  EXPECT_GT(FindingsWith([] { table.wait_event = ForgetToWait; }), 0u);
}

SHERD_DIST_TEST_F(DeviceBugsTest, AnEventOfAnotherStreamIsFound,
                  WithoutComms{}) {
  EXPECT_GT(FindingsWith([] { table.record_event = RecordElsewhere; }), 0u);
}

SHERD_DIST_TEST_F(DeviceBugsTest, ABufferThatIsFreedTooEarlyIsFound,
                  WithoutComms{}) {
  EXPECT_GT(FindingsWith([] { table.query_event = EndTooEarly; }), 0u);
}

}  // namespace
}  // namespace sherd
