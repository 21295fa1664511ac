#include "sherd/backends/cuda/cuda_error.h"

#include <cstdio>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// Of the runtime API; a stub library may return it too.
constexpr CUresult kInsufficientDriver = 35;

struct Advice {
  CUresult result;
  const char* text;
};

constexpr Advice kAdvice[] = {
    {kCudaInvalidValue, "an address or a size is not one of CUDA's"},
    {kCudaOutOfMemory, "free memory, trim the pools, or use more devices"},
    {kCudaNotInitialized,
     "a child of fork() cannot use CUDA: start ranks as new programs"},
    {kCudaDeinitialized, "the process is ending"},
    {kCudaStubLibrary,
     "this is the toolkit's stub: let LD_LIBRARY_PATH or SHERD_CUDA_LIBRARY "
     "lead to the driver's own libcuda.so.1"},
    {kInsufficientDriver, "the driver is too old: update it"},
    {kCudaCallRequiresNewerDriver, "the driver is too old: update it"},
    {kCudaDeviceUnavailable,
     "another process has the device for itself (nvidia-smi -q -d COMPUTE)"},
    {kCudaNoDevice,
     "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {kCudaInvalidDevice, "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    // Returned by old drivers for code of newer toolkits.
    {kCudaInvalidImage,
     "the driver is older than the toolkit of this build: update it, or build "
     "with an older toolkit (CUDA_HOME)"},
    {kCudaNoBinaryForGpu,
     "build with this GPU's architecture (cuda_architectures)"},
    {kCudaUnsupportedPtxVersion,
     "the driver is older than the toolkit of this build: update it, or build "
     "with this GPU's architecture (cuda_architectures)"},
    {kCudaJitCompilerNotFound,
     "install the driver's libnvidia-ptxjitcompiler.so.1, or build with this "
     "GPU's architecture (cuda_architectures)"},
    {kCudaNotPermitted, "the system forbids it to this user or container"},
    {kCudaSystemNotReady, "start nvidia-fabricmanager"},
    {kCudaSystemDriverMismatch,
     "the kernel's driver is another version than this library: reload it or "
     "restart the machine"},
    {kCudaCompatNotSupportedOnDevice,
     "the CUDA compatibility package does not know this GPU: take it out of "
     "LD_LIBRARY_PATH"},
    {kCudaCapturedEvent, "the event was recorded while capturing a graph"},
};

const char* AdviceFor(CUresult result) {
  for (const Advice& advice : kAdvice) {
    if (advice.result == result) return advice.text;
  }
  if (IsSticky(result)) {
    return "work queued earlier on this GPU failed, maybe another library's: "
           "find it with compute-sanitizer, then restart the process";
  }
  if (result >= kCudaStreamCaptureUnsupported && result < kCudaCapturedEvent) {
    return "not possible while a graph is captured";
  }
  return "see nvidia-smi and the kernel's log";
}

}  // namespace

bool IsSticky(CUresult result) {
  switch (result) {
    case kCudaEccUncorrectable:
    case kCudaNvlinkUncorrectable:
    case kCudaContained:
    case kCudaIllegalAddress:
    case kCudaLaunchTimeout:
    case kCudaContextIsDestroyed:
    case kCudaAssert:
    case kCudaMpsClientTerminated:
    case kCudaExternalDevice:
      return true;
    default:
      // From a stack error to a failed launch, and leaks of tensor memory.
      return (result >= kCudaHardwareStackError &&
              result <= kCudaLaunchFailed) ||
             result == kCudaTensorMemoryLeak;
  }
}

sherd_code CodeOfCuda(CUresult result) {
  switch (result) {
    case kCudaOutOfMemory:
      return SHERD_RESOURCE;
    case kCudaInvalidValue:
    case kCudaInvalidDevice:
    case kCudaInvalidHandle:
      return SHERD_INVALID_ARGUMENT;
    case kCudaInvalidImage:
    case kCudaNoBinaryForGpu:
    case kCudaPeerAccessUnsupported:
    case kCudaJitCompilerNotFound:
    case kCudaUnsupportedPtxVersion:
    case kCudaNotPermitted:
    case kCudaNotSupported:
      return SHERD_UNSUPPORTED;
    default:
      return result >= kCudaStreamCaptureUnsupported &&
                     result <= kCudaCapturedEvent
                 ? SHERD_UNSUPPORTED
                 : SHERD_SYSTEM;
  }
}

sherd_code FailCuda(sherd_error_v0* error, const CudaFunctions& cuda,
                    const char* function, CUresult result, const char* detail) {
  const char* name = nullptr;
  if (cuda.GetErrorName == nullptr ||
      cuda.GetErrorName(result, &name) != kCudaSuccess || name == nullptr) {
    name = "CUDA error";
  }
  char text[sizeof(error->text)];
  std::snprintf(text, sizeof(text), "%s: %s (%d)%s%s; %s", function, name,
                result, *detail == '\0' ? "" : " ", detail, AdviceFor(result));
  error->native_code = result;
  return Fail(error, CodeOfCuda(result), -1, text);
}

}  // namespace sherd::internal
