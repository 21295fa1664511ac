#include "sherd/testing/kits/fake_device_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::testing {
namespace {

// Where the ranks of one group meet.
struct Meeting {
  explicit Meeting(int size) : sends(static_cast<size_t>(size)) {}

  // Returns once all ranks are here.
  absl::Status Arrive(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    const uint64_t round = (arrived++) / sends.size();
    const auto complete = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return aborted || arrived >= (round + 1) * sends.size();
    };
    mutex.AwaitWithTimeout(absl::Condition(&complete), deadline.Remaining());
    if (arrived >= (round + 1) * sends.size()) return absl::OkStatus();
    return absl::UnavailableError("a rank did not come");
  }

  absl::Mutex mutex;
  uint64_t arrived ABSL_GUARDED_BY(mutex) = 0;
  bool aborted ABSL_GUARDED_BY(mutex) = false;
  // By rank: written before it arrives, read by the others until all have
  // arrived once more.
  std::vector<absl::Span<const ConstBytes>> sends;
};

// Finds that of a group by its name.
class Meetings {
 public:
  static std::shared_ptr<Meeting> Of(const CommunicatorOptions& options) {
    static Meetings& meetings = *new Meetings;
    absl::MutexLock lock(&meetings.mutex_);
    std::weak_ptr<Meeting>& known = meetings.by_store_[options.group];
    std::shared_ptr<Meeting> meeting = known.lock();
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>(options.size);
      known = meeting;
    }
    return meeting;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<Meeting>> by_store_
      ABSL_GUARDED_BY(mutex_);
};

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(const CommunicatorOptions& options, DeviceRuntime& runtime)
      : rank_(static_cast<size_t>(options.rank)),
        device_{DeviceType::kCuda, options.device},
        runtime_(runtime),
        meeting_(Meetings::Of(options)) {}

  absl::StatusOr<bool> Post(const Collective& desc,
                            CollectiveRequest&) override {
    SHERD_RETURN_IF_ERROR(
        runtime_.Synchronize({device_, desc.stream}, desc.deadline));
    if (desc.op != CollectiveOp::kAllToAllV) return true;
    meeting_->sends[rank_] = desc.sends;
    SHERD_RETURN_IF_ERROR(meeting_->Arrive(desc.deadline));
    for (size_t r = 0; r < desc.recvs.size(); ++r) {
      if (r == rank_ || desc.recvs[r].empty()) continue;
      const ConstBytes from = meeting_->sends[r][rank_];
      EXPECT_EQ(from.size(), desc.recvs[r].size());
      std::memcpy(desc.recvs[r].data(), from.data(), from.size());
    }
    SHERD_RETURN_IF_ERROR(meeting_->Arrive(desc.deadline));
    return true;
  }

  absl::StatusOr<bool> Test(CollectiveRequest&) override { return true; }

  void Abort() override {
    absl::MutexLock lock(&meeting_->mutex);
    meeting_->aborted = true;
  }

 private:
  const size_t rank_;
  const Device device_;
  DeviceRuntime& runtime_;
  const std::shared_ptr<Meeting> meeting_;
};

class FakeDeviceBackend final : public Backend {
 public:
  FakeDeviceBackend() {
    info_.name = "fake_device";
    info_.origin = "a test";
    info_.ranks_are_threads = true;
    info_.one_host_only = true;
    info_.device_type = DeviceType::kCuda;
    info_.native.operations =
        uint64_t{1} << static_cast<int>(CollectiveOp::kAllToAllV) |
        uint64_t{1} << static_cast<int>(CollectiveOp::kBarrier);
  }

  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                           DeviceRuntime::For(DeviceType::kCuda));
    return std::make_unique<FakeCommunicator>(options, *runtime);
  }

 private:
  BackendInfo info_;
};

}  // namespace

void RegisterFakeDeviceBackend() {
  static const bool registered =
      BackendRegistry::Global()
          .Register(std::make_unique<FakeDeviceBackend>())
          .ok();
  EXPECT_TRUE(registered);
}

}  // namespace sherd::testing
