#include "sherd/tools/bench/cases/gpu_call_cases.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/kits/allocation_counter.h"
#include "sherd/tools/bench/cases/gpu_move_cases.h"
#include "sherd/tools/bench/peers/call_overhead.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

using internal::NcclApi;
using internal::NcclComm;
using internal::NcclConfig;
using internal::NcclUniqueId;
using ::sherd::testing::AllocationsOfThisThread;

constexpr Device kGpu = {DeviceType::kCuda, 0};
constexpr size_t kBytes = 8;
// Enough for a quantile of 99.
constexpr int kGpuGroups = 200;

// Calls something on kBytes of a GPU.
class GpuCalls : public CallOverhead {
 public:
  GpuCalls(RankContext& context, double quantile)
      : CallOverhead(context, quantile, kGpuGroups) {}

  absl::Status MakeBuffer() {
    SHERD_ASSIGN_OR_RETURN(runtime_, DeviceRuntime::For(DeviceType::kCuda));
    SHERD_RETURN_IF_ERROR(runtime_->SetCurrentDevice(kGpu.index));
    SHERD_ASSIGN_OR_RETURN(Allocator* const memory,
                           runtime_->MemoryOf(kGpu.index));
    SHERD_ASSIGN_OR_RETURN(buffer_, Storage::Allocate(kBytes, *memory));
    return absl::OkStatus();
  }

 protected:
  // A stream takes no more than so much work that has not run.
  absl::Status AfterGroup() override {
    return runtime_->Synchronize(CurrentStream(kGpu));
  }

  void* data() const { return buffer_->data(); }

 private:
  DeviceRuntime* runtime_ = nullptr;
  std::shared_ptr<Storage> buffer_;
};

class SherdCalls : public GpuCalls {
 public:
  SherdCalls(RankContext& context, double quantile,
             std::shared_ptr<ProcessGroup> group)
      : GpuCalls(context, quantile), group_(std::move(group)) {}

 protected:
  absl::Status Call() override {
    return group_->AllReduce(bytes(), bytes(), kFloat32, ReduceOp::kSum,
                             {.device = kGpu});
  }

  ProcessGroup& group() { return *group_; }
  MutableBytes bytes() const {
    return {static_cast<std::byte*>(data()), kBytes};
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

class SynchronousCalls final : public SherdCalls {
 public:
  using SherdCalls::SherdCalls;

  absl::Status Run() override {
    const int64_t before = AllocationsOfThisThread();
    SHERD_RETURN_IF_ERROR(SherdCalls::Run());
    allocations_ = AllocationsOfThisThread() - before;
    return absl::OkStatus();
  }

  absl::Status Check() override {
    // The first run fills what is used again; an emulated driver allocates for
    // what it queues.
    const bool warm = std::exchange(warm_, true);
    const bool emulated = GetKnob(Knob::kEmulatedGpus).has_value();
    if (!warm || emulated || allocations_ == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(calls_per_sample(),
                                            " calls allocated ", allocations_,
                                            " times, expected none"));
  }

 private:
  bool warm_ = false;
  int64_t allocations_ = 0;
};

class AsynchronousCalls final : public SherdCalls {
 public:
  using SherdCalls::SherdCalls;

 private:
  absl::Status Call() override {
    return group()
        .AllReduceAsync(bytes(), bytes(), kFloat32, ReduceOp::kSum,
                        {.device = kGpu})
        .WaitOnStream();
  }
};

// NCCL without Sherd.
class BareCalls final : public GpuCalls {
 public:
  using GpuCalls::GpuCalls;

  ~BareCalls() override {
    if (comm_ != nullptr) api_.comm_destroy(comm_);
  }

  absl::Status Connect() {
    const std::string path = GetKnobOr(Knob::kNcclLibrary, "libnccl.so.2");
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::NotFoundError(absl::StrCat("no NCCL: ", dlerror()));
    }
#define SHERD_BENCH_FIND(member, symbol, required) \
  api_.member =                                    \
      reinterpret_cast<decltype(api_.member)>(dlsym(library, #symbol));
    SHERD_NCCL_FUNCTIONS(SHERD_BENCH_FIND)
#undef SHERD_BENCH_FIND
    NcclUniqueId id;
    NcclConfig config;
    SHERD_RETURN_IF_ERROR(Try(api_.get_unique_id(&id)));
    return Try(api_.comm_init_rank_config(&comm_, 1, id, 0, &config));
  }

 private:
  absl::Status Call() override {
    return Try(api_.all_reduce(data(), data(), kBytes / sizeof(float),
                               internal::kNcclFloat32, internal::kNcclSum,
                               comm_, CurrentStream(kGpu).handle));
  }

  absl::Status Try(internal::NcclResult result) const {
    if (result == internal::kNcclSuccess) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("NCCL: ", api_.get_error_string(result)));
  }

  NcclApi api_;
  NcclComm comm_ = nullptr;
};

template <typename Calls>
BenchPeer SherdPeer(double quantile, const std::string& help) {
  return {.name = "sherd",
          .help = help,
          .make = [quantile](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(auto group, context.Group("nccl"));
            auto work =
                std::make_unique<Calls>(context, quantile, std::move(group));
            SHERD_RETURN_IF_ERROR(work->MakeBuffer());
            return work;
          }};
}

BenchCase CaseOf(const std::string& name, const std::string& help,
                 double quantile, BenchPeer sherd,
                 const std::string& torch_work) {
  return {.name = name,
          .help = help,
          .peers = {std::move(sherd),
                    {.name = "torch",
                     .help = "torch.distributed.all_reduce of 8 bytes",
                     .measuring_program =
                         [torch_work](const BenchTask& task,
                                      const std::string& report) {
                           return TorchGpuProgram(torch_work, task,
                                                  /*repeats=*/1, report);
                         },
                     .check = [](int, int64_t,
                                 const std::string&) { return FindTorch(); }},
                    {.name = "nccl",
                     .help = "the bare ncclAllReduce of 8 bytes",
                     .make = [quantile](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       auto work =
                           std::make_unique<BareCalls>(context, quantile);
                       SHERD_RETURN_IF_ERROR(work->MakeBuffer());
                       SHERD_RETURN_IF_ERROR(work->Connect());
                       return work;
                     }}},
          .check = [](int world, int64_t bytes,
                      const std::string&) -> absl::Status {
            if (bytes != int64_t{kBytes}) {
              return absl::InvalidArgumentError(
                  "measured for calls of 8 bytes: --bytes=8");
            }
            return CheckOneGpu(world);
          }};
}

}  // namespace

std::vector<BenchCase> GpuCallCases() {
  const std::string call = "ProcessGroup::AllReduce of 8 bytes";
  const std::string async = "AllReduceAsync of 8 bytes and WaitOnStream";
  return {CaseOf("gpu_call", "a synchronous call on a GPU, p50", 0.5,
                 SherdPeer<SynchronousCalls>(0.5, call), "call:50"),
          CaseOf("gpu_call_p99", "the same, p99", 0.99,
                 SherdPeer<SynchronousCalls>(0.99, call), "call:99"),
          CaseOf("gpu_call_async", "an asynchronous call on a GPU, p50", 0.5,
                 SherdPeer<AsynchronousCalls>(0.5, async), "call_async:50"),
          CaseOf("gpu_call_async_p99", "the same, p99", 0.99,
                 SherdPeer<AsynchronousCalls>(0.99, async), "call_async:99")};
}

}  // namespace sherd
