#ifndef SHERD_CORE_TENSOR_DEVICE_HOST_DEVICE_H_
#define SHERD_CORE_TENSOR_DEVICE_HOST_DEVICE_H_

// Marks functions that are compiled for GPUs by nvcc and for the host by any
// compiler; SHERD_UNROLL, loops whose arrays are to stay in registers there,
// and SHERD_NO_UNROLL, loops whose code is long.
#if defined(__CUDACC__)
#define SHERD_HD __host__ __device__ __forceinline__
#define SHERD_UNROLL _Pragma("unroll")
#define SHERD_NO_UNROLL _Pragma("unroll 1")
#else
#define SHERD_HD inline
#define SHERD_UNROLL
#define SHERD_NO_UNROLL
#endif

#endif  // SHERD_CORE_TENSOR_DEVICE_HOST_DEVICE_H_
