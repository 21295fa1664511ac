#ifndef SHERD_BACKENDS_CUDA_LAUNCH_PLAN_H_
#define SHERD_BACKENDS_CUDA_LAUNCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sherd/backends/cuda/box_table.h"

namespace sherd::internal {

// A launch of a kernel of kernel_params.h: `grid` blocks of kThreads threads,
// no dynamic shared memory, and one parameter of params_size bytes.
struct KernelLaunch {
  const char* kernel = nullptr;
  uint32_t grid = 0;
  size_t params_size = 0;
  // Bytes that must be in memory of the device, aligned to 16, before the
  // kernel runs; 0 for almost all launches. Before the launch,
  // LaunchPlan::SetTable is given their address.
  size_t table_bytes = 0;

  // Offsets within the LaunchPlan.
  size_t params_offset = 0;
  size_t table_offset = 0;
  size_t table_address_offset = 0;
};

// The work to queue on a stream for one operation, in order: at most one copy
// of bytes, or launches, usually one. A value; if it is reused, it allocates
// nothing once it has grown.
class LaunchPlan {
 public:
  void Clear();

  // A copy that cuMemcpyAsync does at least as well as a kernel. 0 bytes: none.
  uint64_t copy_dst = 0;
  uint64_t copy_src = 0;
  uint64_t copy_bytes = 0;

  const std::vector<KernelLaunch>& launches() const { return launches_; }
  // Valid until the plan changes.
  void* params(const KernelLaunch& launch) {
    return memory_.data() + launch.params_offset;
  }
  const void* table(const KernelLaunch& launch) const {
    return memory_.data() + launch.table_offset;
  }
  void SetTable(const KernelLaunch& launch, uint64_t address);

  // Called by planners.

  // Appends a launch with a copy of `params`, and of `table` unless it is null.
  // The address of the latter is stored in params[table_address_offset).
  void Add(const char* kernel, uint32_t grid, const void* params,
           size_t params_size, const void* table = nullptr,
           size_t table_bytes = 0, size_t table_address_offset = 0);
  BoxTable& boxes() { return boxes_; }

 private:
  // Aligned as parameters and tables require.
  struct alignas(16) Word {
    unsigned char bytes[16];
  };

  // Returns the offset of the copy, in words.
  size_t Append(const void* data, size_t bytes);

  BoxTable boxes_;
  std::vector<KernelLaunch> launches_;
  std::vector<Word> memory_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_LAUNCH_PLAN_H_
