#include "sherd/backends/cuda/cuda_work.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "sherd/backends/cuda/copy_plan.h"
#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/cuda/element_plan.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/pool_plan.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

CUdeviceptr ToAddress(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

CUstream ToStream(void* stream) { return static_cast<CUstream>(stream); }

// The calling thread's, empty; it keeps its memory.
LaunchPlan& EmptyPlan() {
  static thread_local LaunchPlan plan;
  plan.Clear();
  return plan;
}

sherd_code Refuse(sherd_error_v0* error, const char* why) {
  return Fail(error, SHERD_INVALID_ARGUMENT, -1, why);
}

// The bytes of a fill without gaps, otherwise 0.
uint64_t DenseBytes(const sherd_fill_v0& fill) {
  int64_t count = 1;
  for (int32_t i = fill.rank - 1; i >= 0; --i) {
    if (fill.sizes[i] <= 0) return 0;
    if (fill.sizes[i] > 1 && fill.strides[i] != count) return 0;
    if (__builtin_mul_overflow(count, fill.sizes[i], &count)) return 0;
  }
  uint64_t bytes = 0;
  return __builtin_mul_overflow(static_cast<uint64_t>(count), fill.element_size,
                                &bytes)
             ? 0
             : bytes;
}

// The number of bytes, 1, 2 or 4, after which the value repeats itself; 0 if
// it does so later.
uint32_t PeriodOf(const sherd_fill_v0& fill) {
  for (const uint32_t period : {1u, 2u, 4u}) {
    if (fill.element_size % period == 0 &&
        std::memcmp(fill.value, fill.value + period,
                    fill.element_size - period) == 0) {
      return period;
    }
  }
  return 0;
}

CUresult Memset(const CudaFunctions& cuda, const sherd_fill_v0& fill,
                uint64_t bytes, uint32_t period, CUstream stream) {
  const CUdeviceptr data = ToAddress(fill.data);
  uint32_t value = 0;
  std::memcpy(&value, fill.value, period);
  switch (period) {
    case 1:
      return cuda.MemsetD8Async(data, static_cast<uint8_t>(value), bytes,
                                stream);
    case 2:
      return cuda.MemsetD16Async(data, static_cast<uint16_t>(value), bytes / 2,
                                 stream);
    default:
      return cuda.MemsetD32Async(data, value, bytes / 4, stream);
  }
}

}  // namespace

bool CudaWork::IsPageable(CUdeviceptr data) {
  int type = 0;
  int ordinal = -1;
  int attributes[] = {kCudaPointerMemoryType, kCudaPointerDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  return cuda_.PointerGetAttributes(2, attributes, values, data) !=
             kCudaSuccess ||
         type == 0;
}

CudaDevice* CudaWork::DeviceOf(CUdeviceptr data) {
  int type = 0;
  int ordinal = -1;
  int attributes[] = {kCudaPointerMemoryType, kCudaPointerDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  if (cuda_.PointerGetAttributes(2, attributes, values, data) != kCudaSuccess ||
      type != kCudaMemoryTypeDevice) {
    return nullptr;
  }
  CudaDevice* const known = devices_.WithHandle(ordinal);
  return known != nullptr && known->context.load() != nullptr ? known : nullptr;
}

sherd_code CudaWork::CopyCurrent(CUstream stream, CUdeviceptr dst,
                                 CUdeviceptr src, uint64_t bytes,
                                 sherd_error_v0* error) {
  if (bytes == 0) return SHERD_OK;
  // Between devices that do not reach each other's pools, only a peer copy
  // works.
  if (devices_.num_used() > 1) {
    const CudaDevice* const to = DeviceOf(dst);
    const CudaDevice* const from = DeviceOf(src);
    if (to != nullptr && from != nullptr && to != from) {
      const CUresult result = cuda_.MemcpyPeerAsync(
          dst, to->context.load(), src, from->context.load(), bytes, stream);
      if (result == kCudaSuccess) return SHERD_OK;
      return FailCuda(error, cuda_, "cuMemcpyPeerAsync", result);
    }
  }
  const CUresult result = cuda_.MemcpyAsync(dst, src, bytes, stream);
  if (result == kCudaSuccess) return SHERD_OK;
  return FailCuda(error, cuda_, "cuMemcpyAsync", result);
}

sherd_code CudaWork::CopyBytes(int32_t index, void* stream, void* dst,
                               const void* src, uint64_t bytes,
                               sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    const sherd_code code = CopyCurrent(ToStream(stream), ToAddress(dst),
                                        ToAddress(src), bytes, error);
    const bool may_be_running =
        code == SHERD_OK && bytes != 0 && device.uses_host_pages &&
        (IsPageable(ToAddress(src)) || IsPageable(ToAddress(dst)));
    if (!may_be_running) return code;
    const RelaxedCaptureScope relaxed(cuda_);
    const CUresult result = cuda_.StreamSynchronize(ToStream(stream));
    if (result == kCudaSuccess) return sherd_code{SHERD_OK};
    return FailCuda(error, cuda_, "cuStreamSynchronize", result);
  });
}

sherd_code CudaWork::Copy(int32_t index, void* stream,
                          const sherd_strided_copy_v0* copies,
                          uint64_t num_copies, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    LaunchPlan& plan = EmptyPlan();
    const char* const why = PlanCopies(copies, num_copies, plan);
    if (why != nullptr) return Refuse(error, why);
    return RunPlan(device, ToStream(stream), plan, error);
  });
}

sherd_code CudaWork::Fill(int32_t index, void* stream,
                          const sherd_fill_v0& fill, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    LaunchPlan& plan = EmptyPlan();
    const char* const why = PlanFill(fill, plan);
    if (why != nullptr) return Refuse(error, why);
    const uint32_t period = PeriodOf(fill);
    const uint64_t bytes = DenseBytes(fill);
    if (period == 0 || bytes == 0 || ToAddress(fill.data) % period != 0) {
      return RunPlan(device, ToStream(stream), plan, error);
    }
    const CUresult result =
        Memset(cuda_, fill, bytes, period, ToStream(stream));
    if (result == kCudaSuccess) return sherd_code{SHERD_OK};
    return FailCuda(error, cuda_, "cuMemsetAsync", result);
  });
}

sherd_code CudaWork::Random(int32_t index, void* stream,
                            const sherd_random_v0& random,
                            sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    LaunchPlan& plan = EmptyPlan();
    const char* const why = PlanRandom(random, plan);
    if (why != nullptr) return Refuse(error, why);
    return RunPlan(device, ToStream(stream), plan, error);
  });
}

sherd_code CudaWork::Reduce(int32_t index, void* stream, int32_t dtype,
                            int32_t reduction, void* out,
                            const void* const* ins, int32_t num_ins,
                            uint64_t count, int32_t divisor,
                            sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    LaunchPlan& plan = EmptyPlan();
    const char* const why =
        PlanReduce(dtype, reduction, out, ins, num_ins, count, divisor,
                   device.multiprocessors, plan);
    if (why != nullptr) return Refuse(error, why);
    return RunPlan(device, ToStream(stream), plan, error);
  });
}

sherd_code CudaWork::PoolRows(int32_t index, void* stream,
                              const sherd_pool_rows_v0& pool,
                              sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    LaunchPlan& plan = EmptyPlan();
    const char* const why = PlanPoolRows(pool, plan);
    if (why != nullptr) return Refuse(error, why);
    return RunPlan(device, ToStream(stream), plan, error);
  });
}

sherd_code CudaWork::RunPlan(CudaDevice& device, CUstream stream,
                             LaunchPlan& plan, sherd_error_v0* error) {
  if (const sherd_code code = CopyCurrent(stream, plan.copy_dst, plan.copy_src,
                                          plan.copy_bytes, error);
      code != SHERD_OK) {
    return code;
  }
  for (const KernelLaunch& launch : plan.launches()) {
    const sherd_code code = Launch(device, stream, plan, launch, error);
    if (code != SHERD_OK) return code;
  }
  return SHERD_OK;
}

sherd_code CudaWork::Launch(CudaDevice& device, CUstream stream,
                            LaunchPlan& plan, const KernelLaunch& launch,
                            sherd_error_v0* error) {
  CUfunction kernel = nullptr;
  if (const sherd_code code =
          device.kernels.Find(launch.kernel, &kernel, error);
      code != SHERD_OK) {
    return code;
  }
  void* table = nullptr;
  if (launch.table_bytes > 0) {
    sherd_code code =
        device.memory.Allocate(launch.table_bytes, stream, &table, error);
    if (code != SHERD_OK) return code;
    code = StageTable(device, stream, plan.table(launch), launch.table_bytes,
                      table, error);
    if (code != SHERD_OK) {
      sherd_error_v0 ignored = {};
      device.memory.Free(table, launch.table_bytes, stream, &ignored);
      return code;
    }
    plan.SetTable(launch, ToAddress(table));
  }
  void* parameters[] = {plan.params(launch)};
  const CUresult result =
      cuda_.LaunchKernel(kernel, launch.grid, 1, 1, kThreads, 1, 1, 0, stream,
                         parameters, nullptr);
  sherd_code code = SHERD_OK;
  if (result != kCudaSuccess) {
    code = FailCuda(error, cuda_, "cuLaunchKernel", result, launch.kernel);
  }
  if (table == nullptr) return code;
  sherd_error_v0 ignored = {};
  const sherd_code freed = device.memory.Free(
      table, launch.table_bytes, stream, code == SHERD_OK ? error : &ignored);
  return code == SHERD_OK ? freed : code;
}

sherd_code CudaWork::StageTable(CudaDevice& device, CUstream stream,
                                const void* table, uint64_t bytes, void* at,
                                sherd_error_v0* error) {
  ReclaimTables();
  void* pinned = nullptr;
  sherd_code code = pinned_.Allocate(bytes, &pinned, error);
  if (code != SHERD_OK) return code;
  std::memcpy(pinned, table, bytes);
  if (const CUresult result =
          cuda_.MemcpyAsync(ToAddress(at), ToAddress(pinned), bytes, stream);
      result != kCudaSuccess) {
    pinned_.Free(pinned, bytes);
    return FailCuda(error, cuda_, "cuMemcpyAsync", result);
  }
  bool is_captured = false;
  if (GetCapturing(cuda_, stream, &is_captured) == kCudaSuccess &&
      is_captured) {
    // Every launch of the graph reads it, and its destruction is not reported:
    // it stays allocated.
    return SHERD_OK;
  }
  PooledEvent* read = nullptr;
  code = device.events.Take(device.context.load(std::memory_order_relaxed),
                            &read, error);
  if (code != SHERD_OK) return code;
  if (const CUresult result = cuda_.EventRecord(read->event, stream);
      result != kCudaSuccess) {
    device.events.Return(read);
    return FailCuda(error, cuda_, "cuEventRecord", result);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  staged_.push_back({&device, pinned, bytes, read});
  return SHERD_OK;
}

void CudaWork::ReclaimTables() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (staged_.empty()) return;
  const RelaxedCaptureScope relaxed(cuda_);
  std::erase_if(staged_, [&](const StagedTable& table) {
    if (cuda_.EventQuery(table.read->event) != kCudaSuccess) return false;
    pinned_.Free(table.data, table.bytes);
    table.device->events.Return(table.read);
    return true;
  });
}

}  // namespace sherd::internal
