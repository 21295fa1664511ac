#include "sherd/backends/cuda/box_launches.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/kernel_params.h"

namespace sherd::internal {
namespace {

void AddLaunch(const BoxKernels& kernels, const void* header,
               size_t header_bytes, size_t first, size_t last, uint32_t grid,
               LaunchPlan& plan) {
  const BoxTable& table = plan.boxes();
  const size_t bytes = table.BytesOf(first, last);
  const uint32_t num_boxes = static_cast<uint32_t>(last - first);
  alignas(16) unsigned char params[4096];
  const bool is_table = bytes > kLargeBytes;
  const bool is_small = kernels.small != nullptr && bytes <= kSmallBytes;
  const size_t size = header_bytes + (is_small ? kSmallBytes : kLargeBytes);
  std::memcpy(params, header, header_bytes);
  std::vector<unsigned char> elsewhere(is_table ? bytes : 0);
  const uint32_t counts[2] = {
      num_boxes,
      table.Write(first, last,
                  is_table ? elsewhere.data() : params + header_bytes)};
  std::memcpy(params, counts, sizeof(counts));
  const size_t used = header_bytes + (is_table ? 0 : bytes);
  std::memset(params + used, 0, size - used);
  plan.Add(is_small ? kernels.small : kernels.large, grid, params, size,
           is_table ? elsewhere.data() : nullptr, elsewhere.size(),
           offsetof(LargeCopyParams, table_address));
}

}  // namespace

void AddBoxLaunches(const BoxKernels& kernels, const void* header,
                    size_t header_bytes, LaunchPlan& plan) {
  std::vector<CopyBox>& boxes = plan.boxes().boxes();
  size_t first = 0;
  uint32_t grid = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const uint32_t blocks = BlocksOfBox(boxes[i].kind, boxes[i].units);
    if (i > first && (uint64_t{grid} + blocks >= kIndexLimit ||
                      (!kernels.has_tables &&
                       plan.boxes().BytesOf(first, i + 1) > kLargeBytes))) {
      AddLaunch(kernels, header, header_bytes, first, i, grid, plan);
      first = i;
      grid = 0;
    }
    boxes[i].first_block = grid;
    grid += blocks;
  }
  if (first < boxes.size()) {
    AddLaunch(kernels, header, header_bytes, first, boxes.size(), grid, plan);
  }
}

}  // namespace sherd::internal
