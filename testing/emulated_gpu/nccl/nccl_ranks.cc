#include "sherd/testing/emulated_gpu/nccl/nccl_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/core/process/exit_status.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/emulated_gpu/driver/linked_driver.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

namespace sherd::testing {
namespace {

using internal::CUcontext;
using internal::CUdeviceptr;
using internal::CUevent;
using internal::CUstream;
using internal::NcclComm;
using internal::NcclResult;
using internal::NcclUniqueId;

constexpr unsigned kSecondsToLive = 60;
constexpr int kNoDevice = 3;

const internal::CudaFunctions& Cuda() { return LinkedCuda(); }

// Ends the process: without its device a test cannot go on.
void Must(int code, const char* what) {
  if (code == 0) return;
  std::fprintf(stderr, "%s failed with %d\n", what, code);
  _exit(kNoDevice);
}

void WriteAll(int fd, const void* data, size_t size) {
  Must(write(fd, data, size) == static_cast<ssize_t>(size) ? 0 : 1, "write");
}

void ReadAll(int fd, void* data, size_t size) {
  Must(read(fd, data, size) == static_cast<ssize_t>(size) ? 0 : 1, "read");
}

// The wait statuses of all once they have ended.
std::vector<int> AwaitRanks(std::vector<Subprocess>& processes) {
  std::vector<int> statuses(processes.size());
  for (bool runs = true; runs;) {
    runs = false;
    for (size_t r = 0; r < processes.size(); ++r) {
      const std::optional<ExitStatus>& end = processes[r].Poll();
      if (!end) {
        runs = true;
        continue;
      }
      statuses[r] = end->wait_status();
      if (!end->ExitedWith(kNoDevice)) continue;
      // No rank waits for a rank that could not begin.
      for (Subprocess& other : processes) other.Signal(SIGKILL);
    }
    if (runs) usleep(1000);
  }
  return statuses;
}

CUdeviceptr Address(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

}  // namespace

NcclRank::NcclRank(int rank, int size, std::vector<int> down,
                   std::vector<int> up)
    : rank_(rank),
      size_(size),
      down_(std::move(down)),
      up_(std::move(up)),
      nccl_(EmulatedNccl()) {}

void NcclRank::UseDevice(int device) {
  CUcontext context = nullptr;
  Must(Cuda().Init(0), "cuInit");
  Must(Cuda().DevicePrimaryCtxRetain(&context, device), "retain");
  Must(Cuda().CtxSetCurrent(context), "cuCtxSetCurrent");
}

NcclUniqueId NcclRank::ShareId() {
  NcclUniqueId id = {};
  if (rank_ != 0) {
    ReadAll(down_[2 * rank_], &id, sizeof(id));
    return id;
  }
  Must(nccl_.get_unique_id(&id), "ncclGetUniqueId");
  for (int r = 1; r < size_; ++r) {
    WriteAll(down_[2 * r + 1], &id, sizeof(id));
  }
  return id;
}

void NcclRank::Barrier() {
  char byte = 0;
  if (rank_ != 0) {
    WriteAll(up_[2 * rank_ + 1], &byte, 1);
    ReadAll(down_[2 * rank_], &byte, 1);
    return;
  }
  for (int r = 1; r < size_; ++r) ReadAll(up_[2 * r], &byte, 1);
  for (int r = 1; r < size_; ++r) WriteAll(down_[2 * r + 1], &byte, 1);
}

NcclComm NcclRank::Connect(internal::NcclConfig config) {
  NcclComm comm = nullptr;
  const NcclUniqueId id = ShareId();
  const NcclResult result =
      nccl_.comm_init_rank_config(&comm, size_, id, rank_, &config);
  if (result != internal::kNcclSuccess) {
    Must(result == internal::kNcclInProgress ? WaitReady(comm) : result,
         nccl_.get_last_error(nullptr));
  }
  return comm;
}

NcclResult NcclRank::WaitReady(NcclComm comm) {
  NcclResult state = internal::kNcclInProgress;
  while (state == internal::kNcclInProgress) {
    usleep(100);
    const NcclResult result = nccl_.comm_get_async_error(comm, &state);
    if (result != internal::kNcclSuccess) return result;
  }
  return state;
}

void* NcclRank::NewStream() {
  CUstream stream = nullptr;
  Must(Cuda().StreamCreateWithPriority(&stream,
                                       internal::kCudaStreamNonBlocking, 0),
       "cuStreamCreate");
  return stream;
}

void* NcclRank::NewEvent() {
  CUevent event = nullptr;
  Must(Cuda().EventCreate(&event, internal::kCudaEventDisableTiming),
       "cuEventCreate");
  return event;
}

void NcclRank::Record(void* event, void* stream) {
  Must(Cuda().EventRecord(static_cast<CUevent>(event),
                          static_cast<CUstream>(stream)),
       "cuEventRecord");
}

void NcclRank::WaitEvent(void* stream, void* event) {
  Must(Cuda().StreamWaitEvent(static_cast<CUstream>(stream),
                              static_cast<CUevent>(event), 0),
       "cuStreamWaitEvent");
}

bool NcclRank::HasHappened(void* event) {
  const int code = Cuda().EventQuery(static_cast<CUevent>(event));
  if (code != internal::kCudaNotReady) Must(code, "cuEventQuery");
  return code == internal::kCudaSuccess;
}

int NcclRank::Synchronize(void* stream) {
  return Cuda().StreamSynchronize(static_cast<CUstream>(stream));
}

void* NcclRank::Capture(void* stream, const std::function<void()>& queue) {
  CUstream const on = static_cast<CUstream>(stream);
  Must(LinkedTestCuda().StreamBeginCapture(on,
                                           internal::kCudaCaptureModeRelaxed),
       "cuStreamBeginCapture");
  queue();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  Must(LinkedTestCuda().StreamEndCapture(on, &graph), "cuStreamEndCapture");
  Must(LinkedTestCuda().GraphInstantiate(&exec, graph, 0),
       "cuGraphInstantiate");
  Must(LinkedTestCuda().GraphDestroy(graph), "cuGraphDestroy");
  return exec;
}

void NcclRank::LaunchGraph(void* graph, void* stream) {
  Must(LinkedTestCuda().GraphLaunch(static_cast<CUgraphExec>(graph),
                                    static_cast<CUstream>(stream)),
       "cuGraphLaunch");
}

void* NcclRank::Allocate(size_t bytes) {
  CUdeviceptr data = 0;
  Must(Cuda().MemAlloc(&data, bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(data);
}

void NcclRank::Free(void* data) {
  Must(Cuda().MemFree(Address(data)), "cuMemFree");
}

void NcclRank::Upload(void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;
  Must(Cuda().MemcpyAsync(Address(device), Address(host), bytes, nullptr),
       "cuMemcpyAsync");
  Must(Synchronize(nullptr), "cuStreamSynchronize");
}

void NcclRank::Download(void* host, const void* device, size_t bytes) {
  Upload(host, device, bytes);
}

std::vector<int> RunNcclRanks(int size,
                              const std::function<void(NcclRank&)>& body) {
  std::vector<int> down(2 * size), up(2 * size);
  for (int r = 0; r < size; ++r) {
    Must(pipe2(&down[2 * r], O_CLOEXEC), "pipe");
    Must(pipe2(&up[2 * r], O_CLOEXEC), "pipe");
  }
  std::vector<Subprocess> processes;
  for (int r = 0; r < size; ++r) {
    absl::StatusOr<Subprocess> process = Subprocess::Fork([&] {
      alarm(kSecondsToLive);
      NcclRank rank(r, size, down, up);
      rank.UseDevice(r);
      body(rank);
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    Must(process.ok() ? 0 : 1, "fork");
    processes.push_back(*std::move(process));
  }
  const std::vector<int> statuses = AwaitRanks(processes);
  for (const int fd : down) close(fd);
  for (const int fd : up) close(fd);
  return statuses;
}

void ExpectNcclRanks(int size, const std::function<void(NcclRank&)>& body) {
  EXPECT_EQ(RunNcclRanks(size, body), std::vector<int>(size, 0));
}

}  // namespace sherd::testing
