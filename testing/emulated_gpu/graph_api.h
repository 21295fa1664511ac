#ifndef SHERD_TESTING_EMULATED_GPU_GRAPH_API_H_
#define SHERD_TESTING_EMULATED_GPU_GRAPH_API_H_

#include "sherd/backends/cuda/driver_api.h"

// Functions of the driver that tests call beyond those of Sherd: capture and
// graphs, and waits. See SHERD_CUDA_FUNCTIONS in backends/cuda/driver_api.h.

namespace sherd::testing {

// Fully qualified: sherd::testing has a namespace `internal` of its own.
using ::sherd::internal::CUcontext;
using ::sherd::internal::CUdevice;
using ::sherd::internal::CUdeviceptr;
using ::sherd::internal::CUevent;
using ::sherd::internal::CUmemoryPool;
using ::sherd::internal::CUresult;
using ::sherd::internal::CUstream;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

#define SHERD_TEST_CUDA_FUNCTIONS(X)                                         \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2",                 \
    (CUdevice device))                                                       \
  X(CtxCreate, "cuCtxCreate_v2",                                             \
    (CUcontext * context, unsigned flags, CUdevice device))                  \
  X(CtxSynchronize, "cuCtxSynchronize", ())                                  \
  X(MemPoolDestroy, "cuMemPoolDestroy", (CUmemoryPool pool))                 \
  X(StreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))     \
  X(StreamQuery, "cuStreamQuery", (CUstream stream))                         \
  X(EventSynchronize, "cuEventSynchronize", (CUevent event))                 \
  X(Memcpy, "cuMemcpy", (CUdeviceptr dst, CUdeviceptr src, size_t bytes))    \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2",                           \
    (CUstream stream, int mode))                                             \
  X(StreamEndCapture, "cuStreamEndCapture",                                  \
    (CUstream stream, CUgraph * graph))                                      \
  X(GraphInstantiate, "cuGraphInstantiateWithFlags",                         \
    (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) /* NOLINT \
                                                                    */       \
  X(GraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))       \
  X(GraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))              \
  X(GraphDestroy, "cuGraphDestroy", (CUgraph graph))

// The functions of one copy of the driver's library.
struct TestCudaFunctions {
#define SHERD_TEST_CUDA_MEMBER(name, symbol, parameters) \
  CUresult(*name) parameters = nullptr;
  SHERD_TEST_CUDA_FUNCTIONS(SHERD_TEST_CUDA_MEMBER)
#undef SHERD_TEST_CUDA_MEMBER
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_GRAPH_API_H_
