// driver_api.h against the toolkit's cuda.h.

#include "sherd/backends/cuda/driver_api.h"

#include <cuda.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "gtest/gtest.h"

namespace sherd {
namespace {

// Whether values of one type are passed as those of the other.
template <typename Ours, typename Vendors>
constexpr bool IsSameOnTheWire() {
  if constexpr (std::is_pointer_v<Ours>) {
    return std::is_pointer_v<Vendors>;
  } else if constexpr (std::is_class_v<Ours>) {
    return std::is_class_v<Vendors> && sizeof(Ours) == sizeof(Vendors) &&
           alignof(Ours) == alignof(Vendors);
  } else {
    return (std::is_integral_v<Vendors> ||
            std::is_enum_v<Vendors>)&&sizeof(Ours) == sizeof(Vendors);
  }
}

template <typename Ours, typename Vendors>
struct IsSameFunction : std::false_type {};

template <typename R, typename... Ours, typename S, typename... Vendors>
struct IsSameFunction<R (*)(Ours...), S (*)(Vendors...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(Ours) == sizeof...(Vendors)) {
      return IsSameOnTheWire<R, S>() &&
             (IsSameOnTheWire<Ours, Vendors>() && ...);
    } else {
      return false;
    }
  }
  static constexpr bool value = Compare();
};

// cuda.h maps the names to those that its libraries export.
#define SHERD_TEXT(name) #name
#define SHERD_MAPPED(name) SHERD_TEXT(name)

#define SHERD_SAME_FUNCTION(name, symbol, parameters)                   \
  static_assert(IsSameFunction<decltype(internal::CudaFunctions::name), \
                               decltype(&::cu##name)>::value,           \
                symbol);                                                \
  static_assert(std::string_view(SHERD_MAPPED(cu##name)) == symbol, symbol);
SHERD_CUDA_FUNCTIONS(SHERD_SAME_FUNCTION)
#undef SHERD_SAME_FUNCTION

#define SHERD_SAME_TYPE(type)                            \
  static_assert(sizeof(internal::type) == sizeof(type)); \
  static_assert(alignof(internal::type) == alignof(type))
SHERD_SAME_TYPE(CUresult);
SHERD_SAME_TYPE(CUdevice);
SHERD_SAME_TYPE(CUdeviceptr);
SHERD_SAME_TYPE(CUstream);
SHERD_SAME_TYPE(CUmemLocation);
SHERD_SAME_TYPE(CUmemPoolProps);
SHERD_SAME_TYPE(CUmemAccessDesc);
SHERD_SAME_TYPE(CUipcMemHandle);

#define SHERD_SAME_PLACE(type, member) \
  static_assert(offsetof(internal::type, member) == offsetof(type, member))
SHERD_SAME_PLACE(CUmemLocation, type);
SHERD_SAME_PLACE(CUmemLocation, id);
SHERD_SAME_PLACE(CUmemPoolProps, allocType);
SHERD_SAME_PLACE(CUmemPoolProps, handleTypes);
SHERD_SAME_PLACE(CUmemPoolProps, location);
SHERD_SAME_PLACE(CUmemPoolProps, win32SecurityAttributes);
SHERD_SAME_PLACE(CUmemPoolProps, maxSize);
SHERD_SAME_PLACE(CUmemPoolProps, usage);
SHERD_SAME_PLACE(CUmemAccessDesc, location);
SHERD_SAME_PLACE(CUmemAccessDesc, flags);

struct Constant {
  const char* name;
  long long ours;     // NOLINT(runtime/int)
  long long vendors;  // NOLINT(runtime/int)
};

#define SHERD_CONSTANT(ours, vendors) \
  Constant { #vendors, internal::ours, vendors }

const Constant kConstants[] = {
    SHERD_CONSTANT(kCudaSuccess, CUDA_SUCCESS),
    SHERD_CONSTANT(kCudaInvalidValue, CUDA_ERROR_INVALID_VALUE),
    SHERD_CONSTANT(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY),
    SHERD_CONSTANT(kCudaNotInitialized, CUDA_ERROR_NOT_INITIALIZED),
    SHERD_CONSTANT(kCudaDeinitialized, CUDA_ERROR_DEINITIALIZED),
    SHERD_CONSTANT(kCudaStubLibrary, CUDA_ERROR_STUB_LIBRARY),
    SHERD_CONSTANT(kCudaCallRequiresNewerDriver,
                   CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER),
    SHERD_CONSTANT(kCudaDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE),
    SHERD_CONSTANT(kCudaNoDevice, CUDA_ERROR_NO_DEVICE),
    SHERD_CONSTANT(kCudaInvalidDevice, CUDA_ERROR_INVALID_DEVICE),
    SHERD_CONSTANT(kCudaInvalidImage, CUDA_ERROR_INVALID_IMAGE),
    SHERD_CONSTANT(kCudaInvalidContext, CUDA_ERROR_INVALID_CONTEXT),
    SHERD_CONSTANT(kCudaNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU),
    SHERD_CONSTANT(kCudaEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE),
    SHERD_CONSTANT(kCudaPeerAccessUnsupported,
                   CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
    SHERD_CONSTANT(kCudaInvalidPtx, CUDA_ERROR_INVALID_PTX),
    SHERD_CONSTANT(kCudaNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE),
    SHERD_CONSTANT(kCudaJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND),
    SHERD_CONSTANT(kCudaUnsupportedPtxVersion,
                   CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    SHERD_CONSTANT(kCudaOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM),
    SHERD_CONSTANT(kCudaInvalidHandle, CUDA_ERROR_INVALID_HANDLE),
    SHERD_CONSTANT(kCudaNotFound, CUDA_ERROR_NOT_FOUND),
    SHERD_CONSTANT(kCudaNotReady, CUDA_ERROR_NOT_READY),
    SHERD_CONSTANT(kCudaIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS),
    SHERD_CONSTANT(kCudaLaunchOutOfResources,
                   CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    SHERD_CONSTANT(kCudaLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT),
    SHERD_CONSTANT(kCudaPeerAccessAlreadyEnabled,
                   CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    SHERD_CONSTANT(kCudaContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED),
    SHERD_CONSTANT(kCudaAssert, CUDA_ERROR_ASSERT),
    SHERD_CONSTANT(kCudaHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR),
    SHERD_CONSTANT(kCudaLaunchFailed, CUDA_ERROR_LAUNCH_FAILED),
    SHERD_CONSTANT(kCudaNotPermitted, CUDA_ERROR_NOT_PERMITTED),
    SHERD_CONSTANT(kCudaNotSupported, CUDA_ERROR_NOT_SUPPORTED),
    SHERD_CONSTANT(kCudaSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY),
    SHERD_CONSTANT(kCudaSystemDriverMismatch,
                   CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
    SHERD_CONSTANT(kCudaCompatNotSupportedOnDevice,
                   CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE),
    SHERD_CONSTANT(kCudaStreamCaptureUnsupported,
                   CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    SHERD_CONSTANT(kCudaStreamCaptureImplicit,
                   CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    SHERD_CONSTANT(kCudaCapturedEvent, CUDA_ERROR_CAPTURED_EVENT),
    SHERD_CONSTANT(kCudaUnknown, CUDA_ERROR_UNKNOWN),
#if CUDA_VERSION >= 12080
    SHERD_CONSTANT(kCudaContained, CUDA_ERROR_CONTAINED),
    SHERD_CONSTANT(kCudaTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK),
#endif
    SHERD_CONSTANT(kCudaMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED),
    SHERD_CONSTANT(kCudaExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE),
    SHERD_CONSTANT(kCudaMultiprocessorCount,
                   CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    SHERD_CONSTANT(kCudaComputeCapabilityMajor,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    SHERD_CONSTANT(kCudaComputeCapabilityMinor,
                   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    SHERD_CONSTANT(
        kCudaUsesHostPageTables,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    SHERD_CONSTANT(kCudaMemoryPoolsSupported,
                   CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
    SHERD_CONSTANT(kCudaAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED),
    SHERD_CONSTANT(kCudaHandleTypeNone, CU_MEM_HANDLE_TYPE_NONE),
    SHERD_CONSTANT(kCudaLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE),
    SHERD_CONSTANT(kCudaAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    SHERD_CONSTANT(kCudaPoolReuseOpportunistic,
                   CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
    SHERD_CONSTANT(kCudaPoolReleaseThreshold,
                   CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
    SHERD_CONSTANT(kCudaPoolReservedCurrent,
                   CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
    SHERD_CONSTANT(kCudaPoolUsedCurrent, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
    SHERD_CONSTANT(kCudaPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
    SHERD_CONSTANT(kCudaPointerDeviceOrdinal,
                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
    SHERD_CONSTANT(kCudaMemoryTypeHost, CU_MEMORYTYPE_HOST),
    SHERD_CONSTANT(kCudaMemoryTypeDevice, CU_MEMORYTYPE_DEVICE),
    SHERD_CONSTANT(kCudaCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED),
    SHERD_CONSTANT(kCudaCaptureStatusNone, CU_STREAM_CAPTURE_STATUS_NONE),
    SHERD_CONSTANT(kCudaStreamNonBlocking, CU_STREAM_NON_BLOCKING),
    SHERD_CONSTANT(kCudaEventDisableTiming, CU_EVENT_DISABLE_TIMING),
    SHERD_CONSTANT(kCudaHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE),
    SHERD_CONSTANT(kCudaIpcLazyEnablePeerAccess,
                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
};

TEST(DriverApiTest, NumbersAreTheVendors) {
  for (const Constant& constant : kConstants) {
    EXPECT_EQ(constant.ours, constant.vendors) << constant.name;
  }
}

}  // namespace
}  // namespace sherd
