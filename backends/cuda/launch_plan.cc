#include "sherd/backends/cuda/launch_plan.h"

#include <cstring>

namespace sherd::internal {

void LaunchPlan::Clear() {
  copy_dst = 0;
  copy_src = 0;
  copy_bytes = 0;
  boxes_.Clear();
  launches_.clear();
  memory_.clear();
}

void LaunchPlan::SetTable(const KernelLaunch& launch, uint64_t address) {
  std::memcpy(
      static_cast<unsigned char*>(params(launch)) + launch.table_address_offset,
      &address, sizeof(address));
}

void LaunchPlan::Add(const char* kernel, uint32_t grid, const void* params,
                     size_t params_size, const void* table, size_t table_bytes,
                     size_t table_address_offset) {
  KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = grid;
  launch.params_size = params_size;
  launch.params_offset = Append(params, params_size);
  if (table != nullptr) {
    launch.table_bytes = table_bytes;
    launch.table_offset = Append(table, table_bytes);
    launch.table_address_offset = table_address_offset;
  }
  launches_.push_back(launch);
}

size_t LaunchPlan::Append(const void* data, size_t bytes) {
  const size_t at = memory_.size();
  memory_.resize(at + (bytes + sizeof(Word) - 1) / sizeof(Word));
  std::memcpy(memory_.data() + at, data, bytes);
  return at;
}

}  // namespace sherd::internal
