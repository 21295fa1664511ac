#include "sherd/backends/nccl/nccl_error.h"

#include <string>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

sherd_code CodeOf(NcclResult result) {
  switch (result) {
    case kNcclSuccess:
      return SHERD_OK;
    case kNcclInProgress:
      return SHERD_IN_PROGRESS;
    case kNcclInvalidArgument:
      return SHERD_INVALID_ARGUMENT;
    case kNcclRemoteError:
      return SHERD_PEER_LOST;
    case kNcclTimeout:
      return SHERD_TIMEOUT;
    case kNcclUnhandledCudaError:
    case kNcclSystemError:
      return SHERD_SYSTEM;
    default:
      return SHERD_INTERNAL;
  }
}

// Without the line ends that NCCL's messages have.
std::string Trimmed(const char* text) {
  std::string trimmed = text != nullptr ? text : "";
  while (!trimmed.empty() && trimmed.back() <= ' ') trimmed.pop_back();
  return trimmed;
}

}  // namespace

sherd_code FailWithNccl(const NcclApi& api, NcclResult result, const char* what,
                        sherd_error_v0* error) {
  std::string reason = Trimmed(api.get_error_string(result));
  // "(run with NCCL_DEBUG=INFO for details)" is removed if the details follow.
  std::string details;
  if (api.get_last_error != nullptr) {
    details = Trimmed(api.get_last_error(nullptr));
  }
  const size_t advice = reason.find(" (run with");
  if (!details.empty() && advice != std::string::npos) reason.resize(advice);
  std::string text = std::string(what) + ": " + reason;
  if (!details.empty()) text += ": " + details;
  if (details.find("driver version is insufficient") != std::string::npos) {
    text += "; update NVIDIA's driver, or use an NCCL of an older CUDA";
  }
  sherd_code code = CodeOf(result);
  if (code == SHERD_SYSTEM &&
      (details.find("out of memory") != std::string::npos ||
       details.find("Cannot allocate memory") != std::string::npos)) {
    code = SHERD_RESOURCE;
  }
  error->native_code = result;
  return Fail(error, code, -1, text.c_str());
}

}  // namespace sherd::internal
