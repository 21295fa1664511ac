#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_RANKS_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_RANKS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_functions.h"

namespace sherd::testing {

// One process of a test of the emulated NCCL, on the device with its number.
class NcclRank {
 public:
  int rank() const { return rank_; }
  int size() const { return size_; }
  const ::sherd::internal::NcclApi& nccl() const { return nccl_; }

  // The id that rank 0 makes; all ranks call it.
  ::sherd::internal::NcclUniqueId ShareId();
  // Returns once all ranks have called it.
  void Barrier();

  // A communicator of all ranks; ends the test on failure.
  ::sherd::internal::NcclComm Connect(
      ::sherd::internal::NcclConfig config = {});
  // Polls until the state is no longer kNcclInProgress.
  ::sherd::internal::NcclResult WaitReady(::sherd::internal::NcclComm comm);

  // Makes the device current; each rank begins with that of its number.
  void UseDevice(int device);

  // Of the current device.
  void* NewStream();
  void* NewEvent();
  void Record(void* event, void* stream);
  void WaitEvent(void* stream, void* event);
  bool HasHappened(void* event);
  // The driver's result.
  int Synchronize(void* stream);
  // The work that `queue` queues on `stream`, as a graph that can be launched.
  void* Capture(void* stream, const std::function<void()>& queue);
  void LaunchGraph(void* graph, void* stream);
  void* Allocate(size_t bytes);
  void Free(void* data);
  void Upload(void* device, const void* host, size_t bytes);
  void Download(void* host, const void* device, size_t bytes);

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* const data = static_cast<T*>(Allocate(values.size() * sizeof(T) + 1));
    Upload(data, values.data(), values.size() * sizeof(T));
    return data;
  }
  template <typename T>
  std::vector<T> Download(const T* data, size_t count) {
    std::vector<T> values(count);
    Download(values.data(), data, count * sizeof(T));
    return values;
  }

 private:
  friend std::vector<int> RunNcclRanks(
      int size, const std::function<void(NcclRank&)>& body);

  NcclRank(int rank, int size, std::vector<int> down, std::vector<int> up);

  const int rank_;
  const int size_;
  // Pipes: from rank 0 to each, and from each to rank 0.
  const std::vector<int> down_, up_;
  const ::sherd::internal::NcclApi nccl_;
};

// Runs `body` in `size` new processes and returns the status from waitpid of
// each: 0 if it passed; a failed expectation makes an exit code of 1. The
// calling process has no threads. A rank that takes a minute is killed.
std::vector<int> RunNcclRanks(int size,
                              const std::function<void(NcclRank&)>& body);

// Expects that all ranks pass.
void ExpectNcclRanks(int size, const std::function<void(NcclRank&)>& body);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_RANKS_H_
