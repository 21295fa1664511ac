#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_WORDS_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_WORDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing {

using ::sherd::internal::NcclConfig;
using ::sherd::internal::NcclDataType;
using ::sherd::internal::NcclRedOp;
using ::sherd::internal::NcclResult;
using ::sherd::internal::NcclUniqueId;

// Definitions of nccl.h that Sherd does not use.
constexpr int kNcclNumOps = 5;
constexpr int kNcclNumTypes = 12;
constexpr int kNcclScalarDevice = 0;
constexpr int kNcclScalarHostImmediate = 1;

// Sets `text` as the result of ncclGetLastError, and returns `result`.
NcclResult NcclFail(NcclResult result, const std::string& text);

// The text of the last failure of any thread, valid until the calling thread
// asks again.
const char* NcclLastError();

// As ncclGetErrorString.
const char* NcclErrorString(int result);

// Returns nothing if `type` is not an ncclDataType_t.
std::optional<DType> DTypeOfNccl(int type);

// "float32".
std::string NcclTypeName(int type);

// The part of an operation that must be equal on all ranks.
struct NcclSignature {
  int32_t function = 0;
  int32_t type = 0;
  // An ncclRedOp_t; kNcclNumOps for operators that the program made.
  int32_t op = 0;
  int32_t root = 0;
  uint64_t count = 0;

  friend bool operator==(const NcclSignature&, const NcclSignature&) = default;
};

enum class NcclFunction : int32_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
};

// "AllReduce", as NCCL's messages call it.
const char* NcclFunctionName(NcclFunction function);
bool HasReduction(NcclFunction function);
bool HasRoot(NcclFunction function);

// "ncclReduce of 12 float32, sum, root 1".
std::string Describe(const NcclSignature& signature);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_WORDS_H_
