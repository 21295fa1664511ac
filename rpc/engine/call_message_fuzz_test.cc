// Any bytes as the control part of a message: it is refused, or the decoded
// message fits the announced tail, is within the limits and survives being
// written again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/ownership/reference_codec.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace {

using sherd::internal::CallLimits;
using sherd::internal::MemoryPath;
using sherd::internal::PayloadHeader;

void CheckPayload(const PayloadHeader& payload, uint64_t tail_bytes,
                  const CallLimits& limits) {
  SHERD_CHECK(payload.tensors.size() <= limits.max_tensors);
  SHERD_CHECK(payload.references.size() <= limits.max_references);
  uint64_t total = 0;
  for (const auto& tensor : payload.tensors) {
    total += tensor.bytes;
    SHERD_CHECK(tensor.device.is_cpu() || tensor.device.is_cuda());
  }
  SHERD_CHECK(total == payload.tensor_bytes &&
              total <= limits.max_tensor_bytes);
  SHERD_CHECK(tail_bytes == (payload.transfer == 0 ? total : 0));
  SHERD_CHECK(payload.sources.size() ==
              (payload.transfer == 0 ? 0 : payload.tensors.size()));
  for (size_t i = 0; i < payload.sources.size(); ++i) {
    const auto& tensor = payload.tensors[i];
    const auto& source = payload.sources[i];
    SHERD_CHECK((source.path == MemoryPath::kNone) == (tensor.bytes == 0));
    SHERD_CHECK(source.strides.size() == tensor.sizes.size());
    for (const int64_t stride : source.strides) SHERD_CHECK(stride >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sherd::internal;  // NOLINT(google-build-using-namespace)
  const CallLimits limits{.max_control_bytes = 4096,
                          .max_tensors = 8,
                          .max_references = 8,
                          .max_tensor_bytes = uint64_t{1} << 20};
  // The first two bytes: how much follows.
  if (size < 2) return 0;
  const uint64_t tail_bytes = data[0] + 256u * data[1];
  const absl::string_view control(reinterpret_cast<const char*>(data) + 2,
                                  size - 2);
  const absl::StatusOr<CallHeader> header =
      DecodeCallMessage(control, tail_bytes, limits);
  if (!header.ok()) return 0;
  std::string again;
  if (const auto* request = std::get_if<RequestHeader>(&*header)) {
    SHERD_CHECK(request->call != 0 && !request->method.empty());
    SHERD_CHECK(request->timeout > absl::ZeroDuration());
    CheckPayload(request->payload, tail_bytes, limits);
  } else if (const auto* reply = std::get_if<ReplyHeader>(&*header)) {
    CheckPayload(reply->payload, tail_bytes, limits);
    if (!reply->status.ok()) {
      again = EncodeErrorReply(reply->call, reply->status);
    }
  } else if (const auto* cancel = std::get_if<CancelHeader>(&*header)) {
    again = EncodeCancel(cancel->call);
  } else if (const auto* words = std::get_if<ReferenceMessages>(&*header)) {
    again = EncodeReferenceMessages(*words);
  } else if (const auto* drain = std::get_if<DrainHeader>(&*header)) {
    again = EncodeDrain(*drain);
  } else if (const auto* read = std::get_if<TransferReadHeader>(&*header)) {
    again = EncodeTransferRead(read->transfer);
  } else if (const auto* probe = std::get_if<MemoryProbe>(&*header)) {
    again = EncodeMemoryProbe(*probe);
  } else if (const auto* paths = std::get_if<MemoryPathSet>(&*header)) {
    again = EncodeMemoryPaths(*paths);
  }
  if (again.empty()) return 0;
  const absl::StatusOr<CallHeader> reread = DecodeCallMessage(again, 0, {});
  SHERD_CHECK(reread.ok() && reread->index() == header->index());
  return 0;
}
