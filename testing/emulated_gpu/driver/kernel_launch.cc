#include "sherd/testing/emulated_gpu/driver/kernel_launch.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/testing/emulated_gpu/driver/host_kernels.h"

namespace sherd::testing {
namespace {

using Bytes = std::vector<unsigned char>;

void* Translate(void*, uint64_t address) {
  return HostView(reinterpret_cast<const void*>(address));
}

// Ranges as they are visited, neighbours joined: there may be one for each
// element of a box.
struct Collector {
  std::vector<MemoryAccess> reads;
  std::vector<MemoryAccess> writes;

  void Add(const internal::KernelAccess& range) {
    std::vector<MemoryAccess>& list = range.is_write ? writes : reads;
    if (list.empty() || !Extend(list.back(), range)) {
      list.push_back({reinterpret_cast<const void*>(range.address),
                      range.bytes,
                      range.is_write,
                      {}});
    }
  }

  static bool Extend(MemoryAccess& last, const internal::KernelAccess& range) {
    const auto begin = reinterpret_cast<uint64_t>(last.address);
    if (last.repeats.empty()) {
      if (range.address == begin + last.bytes) {
        last.bytes += range.bytes;
        return true;
      }
      if (range.bytes != last.bytes) return false;
      last.repeats = {{2, static_cast<int64_t>(range.address - begin)}};
      return true;
    }
    auto& [count, stride] = last.repeats.back();
    if (range.bytes != last.bytes ||
        range.address != begin + count * static_cast<uint64_t>(stride)) {
      return false;
    }
    ++count;
    return true;
  }
};

std::vector<MemoryAccess> AccessesOf(const internal::HostKernel& kernel,
                                     const void* params, uint32_t grid) {
  Collector collector;
  kernel.visit_accesses(
      params, grid, Translate,
      [](void* context, const internal::KernelAccess& range) {
        static_cast<Collector*>(context)->Add(range);
      },
      &collector);
  std::vector<MemoryAccess> all = std::move(collector.reads);
  all.insert(all.end(), collector.writes.begin(), collector.writes.end());
  return MergeRanges(all);
}

// A member of a parameter of type `Params`.
template <typename Params>
uint64_t AddressIn(const Bytes& params, uint64_t Params::*member) {
  Params copy;
  std::memcpy(&copy, params.data(), std::min(sizeof(copy), params.size()));
  return copy.*member;
}

// Whether the launch reads a table in the device's memory.
bool HasTable(absl::string_view name, const Bytes& params) {
  if (absl::StartsWith(name, "sherd_pool_")) return true;
  if (absl::StartsWith(name, "sherd_reduce_")) {
    return AddressIn(params, &internal::ReduceParams::inputs_table) != 0;
  }
  return absl::StartsWith(name, "sherd_copy_") &&
         AddressIn(params, &internal::SmallCopyParams::table_address) != 0;
}

}  // namespace

bool IsKernel(const std::string& name) {
  return internal::FindHostKernel(name) != nullptr;
}

StreamTask LaunchOf(const std::string& name, const void* params,
                    uint32_t grid) {
  const internal::HostKernel* const kernel = internal::FindHostKernel(name);
  const auto* const first = static_cast<const unsigned char*>(params);
  const auto copy =
      std::make_shared<const Bytes>(first, first + kernel->params_size);
  StreamTask task;
  task.name = absl::StrCat("kernel ", name);
  const auto accesses = [kernel, copy, grid] {
    return AccessesOf(*kernel, copy->data(), grid);
  };
  if (HasTable(name, *copy)) {
    task.late_accesses = accesses;
  } else {
    task.accesses = accesses();
  }
  task.run = [kernel, copy, grid] {
    kernel->run(copy->data(), grid, Translate, nullptr);
    return 0;
  };
  return task;
}

}  // namespace sherd::testing
