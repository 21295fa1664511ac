#ifndef SHERD_BACKENDS_NCCL_NCCL_API_H_
#define SHERD_BACKENDS_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>
#include <cstdint>

// The part of NCCL that Sherd uses, declared here so that everything builds
// without nccl.h. nccl_header_test.cc checks that it equals NVIDIA's.
namespace sherd::internal {

// ncclResult_t. Newer libraries return values that are not listed here.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
  // Since NCCL 2.30.
  kNcclTimeout = 8,
};

// ncclDataType_t.
enum NcclDataType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
  kNcclFloat8e4m3 = 10,
  kNcclFloat8e5m2 = 11,
};

// ncclRedOp_t.
enum NcclRedOp : int {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
  kNcclAvg = 4,
};

// ncclComm_t, an opaque pointer.
struct NcclOpaqueComm;
using NcclComm = NcclOpaqueComm*;

// cudaStream_t, which is CUstream.
using NcclStream = void*;

// ncclUniqueId; passed by value.
struct NcclUniqueId {
  char internal[128];
};

constexpr int kNcclUndefined = INT_MIN;
constexpr int kNcclSplitNoColor = -1;
constexpr int kNcclShrinkDefault = 0;
constexpr int kNcclShrinkAbort = 1;
constexpr int kNcclRevokeDefault = 0;
constexpr unsigned int kNcclConfigMagic = 0xcafebeef;

// NCCL_VERSION of releases from 2.9 on.
constexpr int NcclVersion(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

// The release whose NcclConfig this is. Older and newer libraries read the
// members that they share with it.
constexpr int kNcclConfigVersion = NcclVersion(2, 28, 9);

// ncclConfig_t. Made with the values of NCCL_CONFIG_INITIALIZER.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = kNcclConfigMagic;
  unsigned int version = kNcclConfigVersion;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kNcclUndefined;
  int cta_policy = kNcclUndefined;
  int shrink_share = kNcclUndefined;
  int nvls_ctas = kNcclUndefined;
  int channels_per_net_peer = kNcclUndefined;
  int nvlink_centric_sched = kNcclUndefined;
};

// The functions of NCCL that Sherd calls; SHERD_NCCL_FUNCTIONS(X) expands to
// X(member, symbol, required) for each. A function that is not required is null
// if the library does not have it.
struct NcclApi {
  // The library.
  NcclResult (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(NcclResult result) = nullptr;
  const char* (*get_last_error)(NcclComm comm) = nullptr;

  // Communicators.
  NcclResult (*get_unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclComm* comm, int num_ranks,
                                      NcclUniqueId id, int rank,
                                      NcclConfig* config) = nullptr;
  NcclResult (*comm_init_rank_scalable)(NcclComm* comm, int num_ranks, int rank,
                                        int num_ids, NcclUniqueId* ids,
                                        NcclConfig* config) = nullptr;
  NcclResult (*comm_split)(NcclComm comm, int color, int key, NcclComm* made,
                           NcclConfig* config) = nullptr;
  NcclResult (*comm_shrink)(NcclComm comm, int* excluded, int num_excluded,
                            NcclComm* made, NcclConfig* config,
                            int flags) = nullptr;
  NcclResult (*comm_finalize)(NcclComm comm) = nullptr;
  NcclResult (*comm_destroy)(NcclComm comm) = nullptr;
  NcclResult (*comm_abort)(NcclComm comm) = nullptr;
  NcclResult (*comm_revoke)(NcclComm comm, int flags) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm comm,
                                     NcclResult* error) = nullptr;

  // Operations; bytes are elements of kNcclUint8.
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_reduce)(const void* in, void* out, size_t count,
                           NcclDataType type, NcclRedOp op, NcclComm comm,
                           NcclStream stream) = nullptr;
  NcclResult (*reduce)(const void* in, void* out, size_t count,
                       NcclDataType type, NcclRedOp op, int root, NcclComm comm,
                       NcclStream stream) = nullptr;
  NcclResult (*broadcast)(const void* in, void* out, size_t count,
                          NcclDataType type, int root, NcclComm comm,
                          NcclStream stream) = nullptr;
  NcclResult (*all_gather)(const void* in, void* out, size_t in_count,
                           NcclDataType type, NcclComm comm,
                           NcclStream stream) = nullptr;
  NcclResult (*reduce_scatter)(const void* in, void* out, size_t out_count,
                               NcclDataType type, NcclRedOp op, NcclComm comm,
                               NcclStream stream) = nullptr;
  NcclResult (*send)(const void* in, size_t count, NcclDataType type, int peer,
                     NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*recv)(void* out, size_t count, NcclDataType type, int peer,
                     NcclComm comm, NcclStream stream) = nullptr;

  // Memory.
  NcclResult (*mem_alloc)(void** data, size_t bytes) = nullptr;
  NcclResult (*mem_free)(void* data) = nullptr;
  NcclResult (*comm_register)(NcclComm comm, void* data, size_t bytes,
                              void** handle) = nullptr;
  NcclResult (*comm_deregister)(NcclComm comm, void* handle) = nullptr;
};

// clang-format off
#define SHERD_NCCL_FUNCTIONS(X)                               \
  X(get_version, ncclGetVersion, true)                        \
  X(get_error_string, ncclGetErrorString, true)               \
  X(get_last_error, ncclGetLastError, false)                  \
  X(get_unique_id, ncclGetUniqueId, true)                     \
  X(comm_init_rank_config, ncclCommInitRankConfig, true)      \
  X(comm_init_rank_scalable, ncclCommInitRankScalable, false) \
  X(comm_split, ncclCommSplit, true)                          \
  X(comm_shrink, ncclCommShrink, false)                       \
  X(comm_finalize, ncclCommFinalize, true)                    \
  X(comm_destroy, ncclCommDestroy, true)                      \
  X(comm_abort, ncclCommAbort, true)                          \
  X(comm_revoke, ncclCommRevoke, false)                       \
  X(comm_get_async_error, ncclCommGetAsyncError, true)        \
  X(group_start, ncclGroupStart, true)                        \
  X(group_end, ncclGroupEnd, true)                            \
  X(all_reduce, ncclAllReduce, true)                          \
  X(reduce, ncclReduce, true)                                 \
  X(broadcast, ncclBroadcast, true)                           \
  X(all_gather, ncclAllGather, true)                          \
  X(reduce_scatter, ncclReduceScatter, true)                  \
  X(send, ncclSend, true)                                     \
  X(recv, ncclRecv, true)                                     \
  X(mem_alloc, ncclMemAlloc, false)                           \
  X(mem_free, ncclMemFree, false)                             \
  X(comm_register, ncclCommRegister, false)                   \
  X(comm_deregister, ncclCommDeregister, false)
// clang-format on

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_API_H_
