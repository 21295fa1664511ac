#ifndef SHERD_RPC_ENGINE_CALL_CODEC_H_
#define SHERD_RPC_ENGINE_CALL_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/ownership/reference_id.h"
#include "sherd/rpc/ownership/reference_message.h"
#include "sherd/rpc/transfer/exposures.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace sherd::internal {

// Limits of a message, checked before memory is allocated for it.
struct CallLimits {
  size_t max_control_bytes = size_t{4} << 20;
  size_t max_tensors = 1024;
  size_t max_references = size_t{1} << 16;
  // All tensors of a message.
  uint64_t max_tensor_bytes = uint64_t{16} << 30;
};

// A tensor in a message.
struct TensorLayout {
  bool defined = true;
  DType dtype = kFloat32;
  Dims sizes;
  uint64_t bytes = 0;
  // The receiver's device to which it goes.
  Device device = {};
};

struct PayloadHeader {
  std::string values;
  std::vector<TensorLayout> tensors;
  // Of all tensors.
  uint64_t tensor_bytes = 0;
  std::vector<ReferenceId> references;
  // The number that the sender gave their transfer; 0 without references.
  uint64_t reference_transfer = 0;
  // 0: the tensors are in the tail. Otherwise there is no tail, and each tensor
  // has an entry in `sources`.
  uint64_t transfer = 0;
  std::vector<TensorSource> sources;
};

// The messages of calls; rpc.proto defines the fields.
struct RequestHeader {
  uint64_t call = 0;
  std::string method;
  uint64_t signature = 0;
  // Time left until the caller's deadline.
  absl::Duration timeout = absl::InfiniteDuration();
  PayloadHeader payload;
  // The result stays on the callee, as the value of a reference: the numbers of
  // the reference and of its creation; 0: it does not stay.
  uint64_t creation_number = 0;
  uint64_t creation_sequence = 0;
};
struct ReplyHeader {
  uint64_t call = 0;
  absl::Status status;
  // Empty unless `status` is OK.
  PayloadHeader payload;
};
struct CancelHeader {
  uint64_t call = 0;
};
enum class DrainKind {
  kWave,
  kReport,
  kAgreed,
  kAcknowledged,
  kLeave,
  kGiveUp
};
struct DrainHeader {
  DrainKind kind = DrainKind::kWave;
  uint64_t wave = 0;
  uint64_t sent = 0;
  uint64_t received = 0;
  std::vector<int> excluded = {};
};
struct TransferReadHeader {
  uint64_t transfer = 0;
};
using ReferenceMessages = std::vector<ReferenceMessage>;
using CallHeader = std::variant<RequestHeader, ReplyHeader, CancelHeader,
                                DrainHeader, ReferenceMessages,
                                TransferReadHeader, MemoryProbe, MemoryPathSet>;

// Reads the control part of a message that `tail_bytes` follow. Checks that the
// bytes of the tensors are within the limits and, unless they are elsewhere,
// add up to tail_bytes.
//   kInvalidArgument  It is not a message, or breaks a limit, which is named.
absl::StatusOr<CallHeader> DecodeCallMessage(absl::string_view control,
                                             uint64_t tail_bytes,
                                             const CallLimits& limits);

// Checks whether the tensors of `payload` can travel, and sets payload.devices
// to where they go. `route` returns the receiver's device for a device of this
// worker.
//   kInvalidArgument  There are too many, or too many bytes.
//   other             Errors of `route`.
absl::Status CheckTensors(
    Payload& payload, const CallLimits& limits,
    absl::FunctionRef<absl::StatusOr<Device>(const Device&)> route);

// Makes tensors in host memory contiguous, ready for a tail.
absl::Status PackTensors(std::vector<Tensor>& tensors);

// The tail of packed tensors, by reference.
std::vector<absl::Span<const std::byte>> TailOf(
    const std::vector<Tensor>& tensors);

// Encode the control parts. `payload`: its values are moved out; its tensors
// are packed, or those of `exposure`, which may be null. `reference_transfer`:
// that of its references. `request`: all but the payload.
//   kInvalidArgument  The message would break a limit.
absl::StatusOr<std::string> EncodeRequest(const RequestHeader& request,
                                          Payload& payload,
                                          uint64_t reference_transfer,
                                          const Exposure* exposure,
                                          const CallLimits& limits);
absl::StatusOr<std::string> EncodeReply(uint64_t call, Payload& payload,
                                        uint64_t reference_transfer,
                                        const Exposure* exposure,
                                        const CallLimits& limits);
// The text is cut to 64 KiB.
std::string EncodeErrorReply(uint64_t call, const absl::Status& error);
std::string EncodeCancel(uint64_t call);
std::string EncodeDrain(const DrainHeader& drain);
std::string EncodeTransferRead(uint64_t transfer);
std::string EncodeMemoryProbe(const MemoryProbe& probe);
std::string EncodeMemoryPaths(const MemoryPathSet& paths);

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_CODEC_H_
