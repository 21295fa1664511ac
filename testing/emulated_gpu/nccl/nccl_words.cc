#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

#include <mutex>

namespace sherd::testing {
namespace {

struct LastError {
  std::mutex mutex;
  std::string text;
};

LastError& Last() {
  static LastError* const last = new LastError;
  return *last;
}

}  // namespace

NcclResult NcclFail(NcclResult result, const std::string& text) {
  const std::lock_guard<std::mutex> lock(Last().mutex);
  Last().text = text;
  return result;
}

const char* NcclLastError() {
  thread_local std::string text;
  const std::lock_guard<std::mutex> lock(Last().mutex);
  text = Last().text;
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.InnerPointer)
  return text.c_str();
}

const char* NcclErrorString(int result) {
  switch (result) {
    case internal::kNcclSuccess:
      return "no error";
    case internal::kNcclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case internal::kNcclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case internal::kNcclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case internal::kNcclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case internal::kNcclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case internal::kNcclRemoteError:
      return "remote process exited or there was a network error";
    case internal::kNcclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

std::optional<DType> DTypeOfNccl(int type) {
  switch (type) {
    case internal::kNcclInt8:
      return kInt8;
    case internal::kNcclUint8:
      return kUInt8;
    case internal::kNcclInt32:
      return kInt32;
    case internal::kNcclUint32:
      return kUInt32;
    case internal::kNcclInt64:
      return kInt64;
    case internal::kNcclUint64:
      return kUInt64;
    case internal::kNcclFloat16:
      return kFloat16;
    case internal::kNcclFloat32:
      return kFloat32;
    case internal::kNcclFloat64:
      return kFloat64;
    case internal::kNcclBfloat16:
      return kBFloat16;
    case internal::kNcclFloat8e4m3:
      return kFloat8E4M3;
    case internal::kNcclFloat8e5m2:
      return kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

std::string NcclTypeName(int type) {
  const std::optional<DType> dtype = DTypeOfNccl(type);
  return dtype ? std::string(Name(*dtype).data(), Name(*dtype).size())
               : "type " + std::to_string(type);
}

const char* NcclFunctionName(NcclFunction function) {
  static constexpr const char* kNames[] = {
      "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
      "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};
  return kNames[static_cast<int>(function)];
}

bool HasReduction(NcclFunction function) {
  return function == NcclFunction::kAllReduce ||
         function == NcclFunction::kReduce ||
         function == NcclFunction::kReduceScatter;
}

bool HasRoot(NcclFunction function) {
  return function == NcclFunction::kReduce ||
         function == NcclFunction::kBroadcast ||
         function == NcclFunction::kGather ||
         function == NcclFunction::kScatter;
}

std::string Describe(const NcclSignature& signature) {
  static constexpr const char* kOps[] = {"sum", "prod", "max",
                                         "min", "avg",  "its own"};
  const auto function = static_cast<NcclFunction>(signature.function);
  std::string text = std::string("nccl") + NcclFunctionName(function) + " of " +
                     std::to_string(signature.count) + " " +
                     NcclTypeName(signature.type);
  if (HasReduction(function)) {
    text += std::string(", ") + kOps[signature.op];
  }
  if (HasRoot(function)) text += ", root " + std::to_string(signature.root);
  return text;
}

}  // namespace sherd::testing
