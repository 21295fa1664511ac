#include "sherd/rpc/transfer/memory_transfer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

constexpr MemoryPathSet kAll = {.thread = true, .shm = true, .cma = true};

// The paths that worker 0 finds to worker 1, whose probe `edit` has changed.
absl::StatusOr<MemoryPathSet> Examined(
    const std::function<void(MemoryProbe&)>& edit, MemoryPathSet paths = kAll) {
  MemoryTransfer reader(2, paths);
  MemoryTransfer owner(2, kAll);
  std::optional<MemoryProbe> probe = owner.IntroduceTo(0);
  EXPECT_TRUE(probe.has_value());
  edit(*probe);
  return reader.Examine(1, *probe);
}

TEST(MemoryTransferTest, OnlyWorkingAndAllowedPathsAreUsed) {
  const auto as_it_is = [](MemoryProbe&) {};
  EXPECT_THAT(Examined(as_it_is), IsOkAndHolds(kAll));
  for (const MemoryPathSet& paths :
       {MemoryPathSet{.thread = true}, MemoryPathSet{.shm = true},
        MemoryPathSet{.cma = true}}) {
    EXPECT_THAT(Examined(as_it_is, paths), IsOkAndHolds(paths));
  }
}

TEST(MemoryTransferTest, AFalseProbeMeansTheSocket) {
  EXPECT_THAT(Examined([](MemoryProbe& probe) { probe.nonce[5] ^= 1; }),
              IsOkAndHolds(MemoryPathSet{.shm = true}));
  EXPECT_THAT(Examined([](MemoryProbe& probe) { ++probe.nonce_address; }),
              IsOkAndHolds(MemoryPathSet{.thread = true, .shm = true}));
  EXPECT_THAT(Examined([](MemoryProbe& probe) { probe.nonce_address = 8; }),
              IsOkAndHolds(MemoryPathSet{.thread = true, .shm = true}));
  for (const char* const process :
       {"", "x", "other-boot pid:[1] 1 2", "\n\n\n\n"}) {
    EXPECT_THAT(Examined([&](MemoryProbe& probe) { probe.process = process; }),
                IsOkAndHolds(MemoryPathSet{.thread = true}));
  }
  EXPECT_THAT(Examined([&](MemoryProbe& probe) {
                probe.nonce.clear();
                probe.process += "0";
              }),
              IsOkAndHolds(MemoryPathSet{}));
}

TEST(MemoryTransferTest, WorkersAreIntroducedOnce) {
  MemoryTransfer owner(3, {.cma = true});
  MemoryTransfer reader(3, {.cma = true});
  const std::optional<MemoryProbe> probe = owner.IntroduceTo(1);
  ASSERT_TRUE(probe.has_value());
  EXPECT_FALSE(owner.IntroduceTo(1).has_value());
  EXPECT_NE(owner.IntroduceTo(2)->nonce, probe->nonce);
  EXPECT_THAT(reader.Examine(0, *probe), IsOk());
  EXPECT_THAT(reader.Examine(0, *probe),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(MemoryTransfer(2, {}).IntroduceTo(1).has_value());
}

TEST(MemoryTransferTest, AnUnsentProbeIsReturnedAgain) {
  MemoryTransfer owner(2, kAll);
  MemoryTransfer reader(2, kAll);
  const std::optional<MemoryProbe> lost = owner.IntroduceTo(1);
  ASSERT_TRUE(lost.has_value());
  owner.ProbeUnsent(1);
  const std::optional<MemoryProbe> probe = owner.IntroduceTo(1);
  ASSERT_TRUE(probe.has_value());
  EXPECT_EQ(probe->nonce, lost->nonce);
  EXPECT_EQ(probe->nonce_address, lost->nonce_address);
  EXPECT_FALSE(owner.IntroduceTo(1).has_value());
  EXPECT_THAT(reader.Examine(0, *probe), IsOkAndHolds(kAll));
}

// Loading may take long, and probes are examined on the thread that receives.
TEST(MemoryTransferTest, AProbeIsExaminedWhileABackendIsBeingLoaded) {
  MemoryTransfer owner(2, kAll);
  MemoryTransfer reader(2, kAll);
  const std::optional<MemoryProbe> probe = owner.IntroduceTo(1);
  ASSERT_TRUE(probe.has_value());
  absl::Notification loading;
  absl::Notification examined;
  BackendRegistry::Global().SetLoader(
      [&](absl::string_view) -> absl::StatusOr<std::unique_ptr<Backend>> {
        loading.Notify();
        // Or else the test would hang.
        EXPECT_TRUE(examined.WaitForNotificationWithTimeout(absl::Seconds(60)));
        return absl::NotFoundError("it is not there");
      });
  std::thread loader(
      [] { BackendRegistry::Global().Find("slow").IgnoreError(); });
  loading.WaitForNotification();
  EXPECT_THAT(reader.Examine(0, *probe), IsOkAndHolds(kAll));
  examined.Notify();
  loader.join();
  BackendRegistry::Global().SetLoader(nullptr);
}

TEST(MemoryTransferTest, NothingIsExposedBeforeTheAnswer) {
  MemoryTransfer owner(2, {.cma = true});
  const std::vector<Tensor> tensors = {*Tensor::Ones({1000})};
  owner.SetReadable(1, kAll);
  EXPECT_EQ(owner.Expose(1, tensors), nullptr);
  ASSERT_TRUE(owner.IntroduceTo(1).has_value());
  EXPECT_EQ(owner.Expose(1, tensors), nullptr);
  owner.SetReadable(1, {.thread = true, .shm = true});
  EXPECT_EQ(owner.Expose(1, tensors), nullptr);
  owner.SetReadable(1, kAll);
  const auto exposure = owner.Expose(1, tensors);
  ASSERT_NE(exposure, nullptr);
  EXPECT_EQ(exposure->sources[0].path, MemoryPath::kCma);
  EXPECT_EQ(exposure->bytes, 4000);
  owner.Forget(1, absl::CancelledError("the end"));
  EXPECT_EQ(owner.Expose(1, tensors), nullptr);
}

TEST(MemoryTransferTest, AForgottenWorkerIsNotReadAndHoldsNothing) {
  MemoryTransfer owner(2, kAll);
  MemoryTransfer reader(2, {.thread = true});
  SHERD_ASSERT_OK_AND_ASSIGN(const MemoryPathSet paths,
                             reader.Examine(0, *owner.IntroduceTo(1)));
  owner.SetReadable(1, paths);
  const auto exposure = owner.Expose(1, {*Tensor::Ones({1000})});
  ASSERT_NE(exposure, nullptr);
  std::vector<Tensor> into = {*Tensor::Zeros({1000})};
  EXPECT_THAT(reader.Read(0, exposure->transfer, exposure->sources, into),
              IsOk());
  // What reads by this path, and no longer than that.
  const long users = exposure->listed.use_count();
  reader.Forget(0, WithFailedRank(absl::UnavailableError("end of file"), 0));
  EXPECT_EQ(exposure->listed.use_count(), users - 1);
  const absl::Status status =
      reader.Read(0, exposure->transfer, exposure->sources, into);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "end of file"));
  EXPECT_EQ(FailedRank(status), 0);
}

// As memory that a device driver has mapped.
TEST(MemoryTransferTest, MemoryThatOthersCannotReadIsSent) {
  MemoryTransfer owner(2, {.cma = true});
  ASSERT_TRUE(owner.IntroduceTo(1).has_value());
  owner.SetReadable(1, kAll);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const data =
      mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  const Tensor tensor =
      *Tensor::FromBorrowed(data, {static_cast<int64_t>(page)}, kUInt8);
  EXPECT_EQ(owner.Expose(1, {*Tensor::Ones({10}), tensor}), nullptr);
  munmap(data, page);
}

}  // namespace
}  // namespace sherd::internal
