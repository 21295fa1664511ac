#include "sherd/backends/cuda/ipc_memory.h"

#include <cstring>
#include <mutex>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr uint64_t kMark = 0x3176616475634853;
constexpr int kMarkWord = 8;
constexpr int kOffsetWord = 9;
constexpr int kBytesWord = 10;
constexpr int kZeroWord = 11;

static_assert(sizeof(CUipcMemHandle) == kMarkWord * sizeof(uint64_t));

}  // namespace

sherd_code IpcMemory::Export(const void* data, uint64_t bytes,
                             sherd_device_handle_v0* handle,
                             sherd_error_v0* error) {
  const CUdeviceptr address = reinterpret_cast<uintptr_t>(data);
  CUdeviceptr base = 0;
  size_t size = 0;
  const RelaxedCaptureScope relaxed(cuda_);
  CUresult result = cuda_.MemGetAddressRange(&base, &size, address);
  if (result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemGetAddressRange", result);
  }
  const uint64_t offset = address - base;
  if (offset > size || bytes > size - offset) {
    return Fail(error, SHERD_INVALID_ARGUMENT, -1,
                "what is to be exported goes beyond its allocation");
  }
  CUipcMemHandle vendors = {};
  result = cuda_.IpcGetMemHandle(&vendors, base);
  if (result == kCudaInvalidValue || result == kCudaInvalidHandle ||
      result == kCudaNotSupported) {
    FailCuda(error, cuda_, "cuIpcGetMemHandle", result);
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "other processes cannot reach this memory: it comes from a "
                "pool, not from allocate_shared");
  }
  if (result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuIpcGetMemHandle", result);
  }
  *handle = {};
  std::memcpy(handle->words, &vendors, sizeof(vendors));
  handle->words[kMarkWord] = kMark;
  handle->words[kOffsetWord] = offset;
  handle->words[kBytesWord] = bytes;
  return SHERD_OK;
}

sherd_code IpcMemory::Import(const sherd_device_handle_v0& handle, void** data,
                             sherd_error_v0* error) {
  if (handle.words[kMarkWord] != kMark || handle.words[kZeroWord] != 0) {
    return Fail(error, SHERD_INVALID_ARGUMENT, -1,
                "not a handle of CUDA memory");
  }
  CUipcMemHandle vendors;
  std::memcpy(&vendors, handle.words, sizeof(vendors));
  const RelaxedCaptureScope relaxed(cuda_);
  CUdeviceptr base = 0;
  if (const CUresult result =
          cuda_.IpcOpenMemHandle(&base, vendors, kCudaIpcLazyEnablePeerAccess);
      result != kCudaSuccess) {
    const sherd_code code = FailCuda(error, cuda_, "cuIpcOpenMemHandle", result,
                                     "of a handle of another process");
    return IsSticky(result) || code == SHERD_RESOURCE ? code
                                                      : SHERD_INVALID_ARGUMENT;
  }
  CUdeviceptr start = 0;
  size_t size = 0;
  const uint64_t offset = handle.words[kOffsetWord];
  if (cuda_.MemGetAddressRange(&start, &size, base) != kCudaSuccess ||
      offset > size || handle.words[kBytesWord] > size - offset) {
    cuda_.IpcCloseMemHandle(base);
    return Fail(error, SHERD_INVALID_ARGUMENT, -1,
                "a handle of CUDA memory goes beyond its allocation");
  }
  *data = reinterpret_cast<void*>(base + offset);
  std::lock_guard<std::mutex> lock(mutex_);
  imported_.emplace(*data, base);
  return SHERD_OK;
}

void IpcMemory::Close(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = imported_.find(data);
  if (found == imported_.end()) return;
  const RelaxedCaptureScope relaxed(cuda_);
  cuda_.IpcCloseMemHandle(found->second);
  imported_.erase(found);
}

}  // namespace sherd::internal
