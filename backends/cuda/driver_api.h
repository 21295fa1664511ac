#ifndef SHERD_BACKENDS_CUDA_DRIVER_API_H_
#define SHERD_BACKENDS_CUDA_DRIVER_API_H_

#include <cstddef>
#include <cstdint>

// The part of NVIDIA's driver API (cuda.h) that Sherd uses, declared here so
// that it builds without the CUDA toolkit, and called through a table of
// functions so that it runs without a driver. Where the toolkit is installed,
// driver_api_test.cc checks that the declarations equal cuda.h.

namespace sherd::internal {

// The vendor's types under the vendor's names. Enumerations are integers.
using CUresult = int;
using CUdevice = int;                    // what the vendor calls an ordinal
using CUdeviceptr = unsigned long long;  // NOLINT(runtime/int)
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemPoolProps {
  int allocType;
  int handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;  // NOLINT(runtime/int)
  unsigned char reserved[54];
};

struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};

struct CUipcMemHandle {
  char reserved[64];
};

// Results.
inline constexpr CUresult kCudaSuccess = 0;
inline constexpr CUresult kCudaInvalidValue = 1;
inline constexpr CUresult kCudaOutOfMemory = 2;
inline constexpr CUresult kCudaNotInitialized = 3;
inline constexpr CUresult kCudaDeinitialized = 4;
inline constexpr CUresult kCudaStubLibrary = 34;
inline constexpr CUresult kCudaCallRequiresNewerDriver = 36;
inline constexpr CUresult kCudaDeviceUnavailable = 46;
inline constexpr CUresult kCudaNoDevice = 100;
inline constexpr CUresult kCudaInvalidDevice = 101;
inline constexpr CUresult kCudaInvalidImage = 200;
inline constexpr CUresult kCudaInvalidContext = 201;
inline constexpr CUresult kCudaNoBinaryForGpu = 209;
inline constexpr CUresult kCudaEccUncorrectable = 214;
inline constexpr CUresult kCudaPeerAccessUnsupported = 217;
inline constexpr CUresult kCudaInvalidPtx = 218;
inline constexpr CUresult kCudaNvlinkUncorrectable = 220;
inline constexpr CUresult kCudaJitCompilerNotFound = 221;
inline constexpr CUresult kCudaUnsupportedPtxVersion = 222;
inline constexpr CUresult kCudaContained = 226;
inline constexpr CUresult kCudaOperatingSystem = 304;
inline constexpr CUresult kCudaInvalidHandle = 400;
inline constexpr CUresult kCudaNotFound = 500;
inline constexpr CUresult kCudaNotReady = 600;
inline constexpr CUresult kCudaIllegalAddress = 700;
inline constexpr CUresult kCudaLaunchOutOfResources = 701;
inline constexpr CUresult kCudaLaunchTimeout = 702;
inline constexpr CUresult kCudaPeerAccessAlreadyEnabled = 704;
inline constexpr CUresult kCudaContextIsDestroyed = 709;
inline constexpr CUresult kCudaAssert = 710;
inline constexpr CUresult kCudaHardwareStackError = 714;
inline constexpr CUresult kCudaLaunchFailed = 719;
inline constexpr CUresult kCudaTensorMemoryLeak = 721;
inline constexpr CUresult kCudaNotPermitted = 800;
inline constexpr CUresult kCudaNotSupported = 801;
inline constexpr CUresult kCudaSystemNotReady = 802;
inline constexpr CUresult kCudaSystemDriverMismatch = 803;
inline constexpr CUresult kCudaCompatNotSupportedOnDevice = 804;
inline constexpr CUresult kCudaMpsClientTerminated = 810;
inline constexpr CUresult kCudaStreamCaptureUnsupported = 900;
inline constexpr CUresult kCudaStreamCaptureImplicit = 906;
inline constexpr CUresult kCudaCapturedEvent = 907;
inline constexpr CUresult kCudaExternalDevice = 911;
inline constexpr CUresult kCudaUnknown = 999;

// CUdevice_attribute.
inline constexpr int kCudaMultiprocessorCount = 16;
inline constexpr int kCudaComputeCapabilityMajor = 75;
inline constexpr int kCudaComputeCapabilityMinor = 76;
inline constexpr int kCudaUsesHostPageTables = 100;
inline constexpr int kCudaMemoryPoolsSupported = 115;

// CUmemAllocationType, CUmemAllocationHandleType, CUmemLocationType and
// CUmemAccess_flags.
inline constexpr int kCudaAllocationPinned = 1;
inline constexpr int kCudaHandleTypeNone = 0;
inline constexpr int kCudaLocationDevice = 1;
inline constexpr int kCudaAccessReadWrite = 3;

// CUmemPool_attribute, with a value of int, and others, of uint64_t.
inline constexpr int kCudaPoolReuseOpportunistic = 2;
inline constexpr int kCudaPoolReleaseThreshold = 4;
inline constexpr int kCudaPoolReservedCurrent = 5;
inline constexpr int kCudaPoolUsedCurrent = 7;

// CUpointer_attribute, with values of int, and CUmemorytype.
inline constexpr int kCudaPointerMemoryType = 2;
inline constexpr int kCudaPointerDeviceOrdinal = 9;
inline constexpr int kCudaMemoryTypeHost = 1;
inline constexpr int kCudaMemoryTypeDevice = 2;

// CUstreamCaptureMode and CUstreamCaptureStatus.
inline constexpr int kCudaCaptureModeRelaxed = 2;
inline constexpr int kCudaCaptureStatusNone = 0;

// Flags.
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaHostAllocPortable = 1;
inline constexpr unsigned kCudaIpcLazyEnablePeerAccess = 1;

// X(name, symbol, parameters) for each function of the driver that Sherd calls;
// all return CUresult. The symbols are those to which cuda.h maps the names.
#define SHERD_CUDA_FUNCTIONS(X)                                               \
  X(GetErrorName, "cuGetErrorName", (CUresult error, const char** name))      \
  X(GetErrorString, "cuGetErrorString", (CUresult error, const char** text))  \
  X(DriverGetVersion, "cuDriverGetVersion", (int* version))                   \
  X(Init, "cuInit", (unsigned flags))                                         \
                                                                              \
  X(DeviceGetCount, "cuDeviceGetCount", (int* count))                         \
  X(DeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))               \
  X(DeviceGetName, "cuDeviceGetName",                                         \
    (char* name, int capacity, CUdevice device))                              \
  X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId",                                 \
    (char* bus_id, int capacity, CUdevice device))                            \
  X(DeviceGetAttribute, "cuDeviceGetAttribute",                               \
    (int* value, int attribute, CUdevice device))                             \
  X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, CUdevice device)) \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer",                             \
    (int* can_access, CUdevice device, CUdevice peer))                        \
                                                                              \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                       \
    (CUcontext * context, CUdevice device))                                   \
  X(DevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState",                   \
    (CUdevice device, unsigned* flags, int* active))                          \
  X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                  \
  X(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                    \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))               \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))               \
  X(CtxGetDevice, "cuCtxGetDevice", (CUdevice * device))                      \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange",                 \
    (int* least, int* greatest))                                              \
  X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess",                             \
    (CUcontext peer, unsigned flags))                                         \
                                                                              \
  X(MemPoolCreate, "cuMemPoolCreate",                                         \
    (CUmemoryPool * pool, const CUmemPoolProps* properties))                  \
  X(MemPoolSetAttribute, "cuMemPoolSetAttribute",                             \
    (CUmemoryPool pool, int attribute, void* value))                          \
  X(MemPoolGetAttribute, "cuMemPoolGetAttribute",                             \
    (CUmemoryPool pool, int attribute, void* value))                          \
  X(MemPoolSetAccess, "cuMemPoolSetAccess",                                   \
    (CUmemoryPool pool, const CUmemAccessDesc* accesses, size_t count))       \
  X(MemPoolTrimTo, "cuMemPoolTrimTo", (CUmemoryPool pool, size_t keep_bytes)) \
  X(MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync",                         \
    (CUdeviceptr * data, size_t bytes, CUmemoryPool pool, CUstream stream))   \
  X(MemFreeAsync, "cuMemFreeAsync", (CUdeviceptr data, CUstream stream))      \
  X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr * data, size_t bytes))            \
  X(MemFree, "cuMemFree_v2", (CUdeviceptr data))                              \
  X(MemHostAlloc, "cuMemHostAlloc",                                           \
    (void** data, size_t bytes, unsigned flags))                              \
  X(MemFreeHost, "cuMemFreeHost", (void* data))                               \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total))     \
  X(MemGetAddressRange, "cuMemGetAddressRange_v2",                            \
    (CUdeviceptr * base, size_t * bytes, CUdeviceptr data))                   \
  X(PointerGetAttributes, "cuPointerGetAttributes",                           \
    (unsigned count, int* attributes, void** values, CUdeviceptr data))       \
  X(IpcGetMemHandle, "cuIpcGetMemHandle",                                     \
    (CUipcMemHandle * handle, CUdeviceptr data))                              \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2",                                \
    (CUdeviceptr * data, CUipcMemHandle handle, unsigned flags))              \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr data))             \
                                                                              \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority",                   \
    (CUstream * stream, unsigned flags, int priority))                        \
  X(StreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                   \
  X(StreamSynchronize, "cuStreamSynchronize", (CUstream stream))              \
  X(StreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int* status)) \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode",     \
    (int* mode))                                                              \
  X(StreamWaitEvent, "cuStreamWaitEvent",                                     \
    (CUstream stream, CUevent event, unsigned flags))                         \
  X(EventCreate, "cuEventCreate", (CUevent * event, unsigned flags))          \
  X(EventDestroy, "cuEventDestroy_v2", (CUevent event))                       \
  X(EventRecord, "cuEventRecord", (CUevent event, CUstream stream))           \
  X(EventQuery, "cuEventQuery", (CUevent event))                              \
                                                                              \
  X(MemcpyAsync, "cuMemcpyAsync",                                             \
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))        \
  X(MemcpyPeerAsync, "cuMemcpyPeerAsync",                                     \
    (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,                 \
     CUcontext src_context, size_t bytes, CUstream stream))                   \
  X(MemsetD8Async, "cuMemsetD8Async",                                         \
    (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))    \
  X(MemsetD16Async, "cuMemsetD16Async",                                       \
    (CUdeviceptr dst, unsigned short value, size_t count, /* NOLINT */        \
     CUstream stream))                                                        \
  X(MemsetD32Async, "cuMemsetD32Async",                                       \
    (CUdeviceptr dst, unsigned value, size_t count, CUstream stream))         \
  X(ModuleLoadData, "cuModuleLoadData",                                       \
    (CUmodule * module, const void* image))                                   \
  X(ModuleGetFunction, "cuModuleGetFunction",                                 \
    (CUfunction * function, CUmodule module, const char* name))               \
  X(LaunchKernel, "cuLaunchKernel",                                           \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
     unsigned block_x, unsigned block_y, unsigned block_z,                    \
     unsigned shared_bytes, CUstream stream, void** parameters, void** extra))

// The functions of one copy of the driver's library; tests fill it with their
// own. Members are named as the vendor's functions, without "cu".
struct CudaFunctions {
#define SHERD_CUDA_MEMBER(name, symbol, parameters) \
  CUresult(*name) parameters = nullptr;
  SHERD_CUDA_FUNCTIONS(SHERD_CUDA_MEMBER)
#undef SHERD_CUDA_MEMBER
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_DRIVER_API_H_
