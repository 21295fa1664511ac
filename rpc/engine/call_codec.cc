#include "sherd/rpc/engine/call_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "google/protobuf/arena.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/ownership/reference_codec.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {
namespace {

// Stands for the dtype of an undefined tensor.
constexpr uint32_t kUndefinedDType = 255;
constexpr size_t kMaxErrorText = size_t{64} << 10;
constexpr int kMaxAttachments = 16;
constexpr size_t kMaxMethodBytes = 1024;

// A message whose parts are on the stack unless they are many.
class ScratchMessage {
 public:
  ScratchMessage() : arena_(Options(block_)) {}
  rpc::Message& operator*() { return *message_; }
  rpc::Message* operator->() { return message_; }

 private:
  static google::protobuf::ArenaOptions Options(char (&block)[2048]) {
    google::protobuf::ArenaOptions options;
    options.initial_block = block;
    options.initial_block_size = sizeof(block);
    return options;
  }

  alignas(8) char block_[2048];
  google::protobuf::Arena arena_;
  rpc::Message* const message_ =
      google::protobuf::Arena::CreateMessage<rpc::Message>(&arena_);
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("call message: ", what));
}

// The type in the upper bits, the number in the lower ones.
constexpr int kDeviceTypeShift = 16;

absl::StatusOr<Device> DecodeDevice(uint32_t number) {
  if (number == 0) return Device();
  const Device device(static_cast<DeviceType>(number >> kDeviceTypeShift),
                      static_cast<int>(number & 0xffff));
  if (device.is_cuda()) return device;
  return Malformed(absl::StrCat("a tensor goes to device ", number));
}

uint32_t EncodeDevice(const Device& device) {
  if (device.is_cpu()) return 0;
  return static_cast<uint32_t>(device.type) << kDeviceTypeShift |
         static_cast<uint32_t>(device.index);
}

absl::Status DecodeTensors(const rpc::CallPayload& from,
                           const CallLimits& limits,
                           std::vector<TensorLayout>& to, uint64_t& total) {
  const auto count = static_cast<size_t>(from.tensor_dtype_size());
  if (count > limits.max_tensors) {
    return Malformed(absl::StrCat(count, " tensors, at most ",
                                  limits.max_tensors, " are allowed"));
  }
  if (static_cast<size_t>(from.tensor_rank_size()) != count) {
    return Malformed(absl::StrCat(count, " dtypes of tensors, but ",
                                  from.tensor_rank_size(), " ranks"));
  }
  const int devices = from.tensor_device_size();
  if (devices != 0 && static_cast<size_t>(devices) != count) {
    return Malformed(
        absl::StrCat(count, " dtypes of tensors, but ", devices, " devices"));
  }
  to.resize(count);
  int next_size = 0;
  for (size_t i = 0; i < count; ++i) {
    TensorLayout& tensor = to[i];
    const uint32_t dtype = from.tensor_dtype(static_cast<int>(i));
    const uint32_t rank = from.tensor_rank(static_cast<int>(i));
    tensor.defined = dtype != kUndefinedDType;
    if (tensor.defined && dtype >= kNumDTypes) {
      return Malformed(absl::StrCat("tensor ", i, " has dtype ", dtype));
    }
    const int sizes_left = from.tensor_size_size() - next_size;
    if (rank > kMaxRank || static_cast<int>(rank) > sizes_left ||
        (!tensor.defined && rank > 0)) {
      return Malformed(absl::StrCat("tensor ", i, " has rank ", rank, ", and ",
                                    sizes_left, " sizes follow"));
    }
    if (!tensor.defined) continue;
    if (devices != 0) {
      SHERD_ASSIGN_OR_RETURN(
          tensor.device, DecodeDevice(from.tensor_device(static_cast<int>(i))));
    }
    tensor.dtype = static_cast<DType>(dtype);
    for (uint32_t d = 0; d < rank; ++d) {
      const uint64_t size = from.tensor_size(next_size++);
      // A size beyond int64_t becomes negative, which NumBytes refuses.
      tensor.sizes.push_back(static_cast<int64_t>(size));
    }
    const absl::StatusOr<int64_t> bytes = NumBytes(tensor.sizes, tensor.dtype);
    if (!bytes.ok()) {
      return Malformed(
          absl::StrCat("tensor ", i, ": ", bytes.status().message()));
    }
    tensor.bytes = static_cast<uint64_t>(*bytes);
    const std::optional<uint64_t> sum = CheckedAdd(total, tensor.bytes);
    if (!sum || *sum > limits.max_tensor_bytes) {
      return Malformed(absl::StrCat("its tensors have more than ",
                                    limits.max_tensor_bytes,
                                    " bytes, the maximum"));
    }
    total = *sum;
  }
  if (next_size != from.tensor_size_size()) {
    return Malformed(absl::StrCat(from.tensor_size_size(),
                                  " sizes of tensors, of which ", next_size,
                                  " belong to one"));
  }
  return absl::OkStatus();
}

// The number of entries of a tensor's place.
int PlacesOf(MemoryPath path) {
  if (path == MemoryPath::kShm) return 6;
  return path == MemoryPath::kCma ? 1 : 0;
}

// Decodes the places of the tensors, which were decoded before.
absl::Status DecodeSources(const rpc::CallPayload& from,
                           const std::vector<TensorLayout>& tensors,
                           std::vector<TensorSource>& to) {
  const int count = static_cast<int>(tensors.size());
  const bool elsewhere = from.transfer() != 0;
  if (from.source_path_size() != (elsewhere ? count : 0) ||
      from.source_stride_size() != (elsewhere ? from.tensor_size_size() : 0)) {
    return Malformed(absl::StrCat(
        "transfer ", from.transfer(), " of ", count, " tensors has ",
        from.source_path_size(), " paths, and ", from.source_stride_size(),
        " strides for ", from.tensor_size_size(), " sizes"));
  }
  to.resize(static_cast<size_t>(elsewhere ? count : 0));
  int next_place = 0;
  int next_stride = 0;
  for (int i = 0; i < static_cast<int>(to.size()); ++i) {
    TensorSource& source = to[static_cast<size_t>(i)];
    const TensorLayout& tensor = tensors[static_cast<size_t>(i)];
    const uint32_t path = from.source_path(i);
    if (path >= kNumMemoryPaths || (path == 0) != (tensor.bytes == 0)) {
      return Malformed(absl::StrCat("tensor ", i, " of ", tensor.bytes,
                                    " bytes has path ", path));
    }
    source.path = static_cast<MemoryPath>(path);
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      const uint64_t stride = from.source_stride(next_stride++);
      if (stride > std::numeric_limits<int64_t>::max()) {
        return Malformed(absl::StrCat("tensor ", i, " has stride ", stride));
      }
      source.strides.push_back(static_cast<int64_t>(stride));
    }
    const int places = PlacesOf(source.path);
    if (places > from.source_place_size() - next_place) {
      return Malformed(absl::StrCat("tensor ", i, " has path ", path, ", and ",
                                    from.source_place_size() - next_place,
                                    " places follow"));
    }
    for (int p = 0; p < places; ++p) {
      source.place[static_cast<size_t>(p)] = from.source_place(next_place++);
    }
  }
  if (next_place == from.source_place_size()) return absl::OkStatus();
  return Malformed(absl::StrCat(from.source_place_size(),
                                " places of tensors, of which ", next_place,
                                " belong to one"));
}

absl::Status DecodePayload(rpc::CallPayload& from, uint64_t tail_bytes,
                           const CallLimits& limits, PayloadHeader& to) {
  SHERD_RETURN_IF_ERROR(
      DecodeTensors(from, limits, to.tensors, to.tensor_bytes));
  SHERD_RETURN_IF_ERROR(DecodeSources(from, to.tensors, to.sources));
  to.transfer = from.transfer();
  const uint64_t expected = to.transfer == 0 ? to.tensor_bytes : 0;
  if (tail_bytes != expected) {
    return Malformed(absl::StrCat("its tensors have ", expected, " bytes, but ",
                                  tail_bytes, " follow"));
  }
  const int references = from.reference_owner_size();
  if (from.reference_creator_size() != references ||
      from.reference_number_size() != references ||
      static_cast<size_t>(references) > limits.max_references) {
    return Malformed(absl::StrCat(
        references, " owners of references, ", from.reference_creator_size(),
        " creators and ", from.reference_number_size(), " numbers; at most ",
        limits.max_references, " of each are allowed"));
  }
  to.references.reserve(static_cast<size_t>(references));
  for (int i = 0; i < references; ++i) {
    to.references.push_back({.owner = from.reference_owner(i),
                             .creator = from.reference_creator(i),
                             .number = from.reference_number(i)});
  }
  to.reference_transfer = from.reference_transfer();
  if ((to.reference_transfer == 0) != to.references.empty()) {
    return Malformed(absl::StrCat(references, " references in transfer ",
                                  to.reference_transfer));
  }
  to.values = std::move(*from.mutable_values());
  return absl::OkStatus();
}

absl::StatusOr<CallHeader> DecodeRequest(rpc::CallRequest& from,
                                         uint64_t tail_bytes,
                                         const CallLimits& limits) {
  RequestHeader to;
  to.call = from.call();
  if (to.call == 0) return Malformed("a request has call 0");
  if (from.method().empty() || from.method().size() > kMaxMethodBytes) {
    return Malformed(absl::StrCat("the name of a method has ",
                                  from.method().size(), " bytes"));
  }
  to.method = std::move(*from.mutable_method());
  to.signature = from.signature();
  if (from.timeout_us() != 0) {
    to.timeout = absl::Microseconds(std::min<uint64_t>(
        from.timeout_us(), std::numeric_limits<int64_t>::max()));
  }
  to.creation_number = from.creation_number();
  to.creation_sequence = from.creation_sequence();
  SHERD_RETURN_IF_ERROR(
      DecodePayload(*from.mutable_payload(), tail_bytes, limits, to.payload));
  return CallHeader(std::move(to));
}

absl::StatusOr<CallHeader> DecodeReply(rpc::CallReply& from,
                                       uint64_t tail_bytes,
                                       const CallLimits& limits) {
  ReplyHeader to;
  to.call = from.call();
  if (from.code() != 0) {
    if (from.has_payload() || tail_bytes != 0) {
      return Malformed("a reply has both an error and a payload");
    }
    if (from.attachment_size() != from.attachment_type_size() ||
        from.attachment_size() > kMaxAttachments) {
      return Malformed(absl::StrCat("an error has ", from.attachment_size(),
                                    " attachments and ",
                                    from.attachment_type_size(), " types"));
    }
    // A code of a later version becomes kUnknown.
    const bool known = from.code() > 0 && from.code() <= 16;
    to.status = absl::Status(known ? static_cast<absl::StatusCode>(from.code())
                                   : absl::StatusCode::kUnknown,
                             from.message());
    for (int i = 0; i < from.attachment_size(); ++i) {
      to.status.SetPayload(from.attachment_type(i),
                           absl::Cord(from.attachment(i)));
    }
    return CallHeader(std::move(to));
  }
  SHERD_RETURN_IF_ERROR(
      DecodePayload(*from.mutable_payload(), tail_bytes, limits, to.payload));
  return CallHeader(std::move(to));
}

absl::StatusOr<CallHeader> DecodeDrain(const rpc::DrainMessage& from,
                                       const CallLimits& limits) {
  if (from.kind() < rpc::DrainMessage::WAVE ||
      from.kind() > rpc::DrainMessage::GIVE_UP) {
    return Malformed(absl::StrCat("a drain message has kind ",
                                  static_cast<int>(from.kind())));
  }
  DrainHeader to;
  to.kind = static_cast<DrainKind>(from.kind() - rpc::DrainMessage::WAVE);
  to.wave = from.wave();
  to.sent = from.sent();
  to.received = from.received();
  if (static_cast<size_t>(from.excluded_size()) > limits.max_references) {
    return Malformed(absl::StrCat("a drain message leaves out ",
                                  from.excluded_size(), " workers"));
  }
  for (const uint32_t rank : from.excluded()) {
    if (rank > std::numeric_limits<int32_t>::max()) {
      return Malformed(absl::StrCat("a drain message leaves out rank ", rank));
    }
    to.excluded.push_back(static_cast<int>(rank));
  }
  return CallHeader(std::move(to));
}

void EncodeSources(const Exposure& from, rpc::CallPayload& to) {
  to.set_transfer(from.transfer);
  for (const TensorSource& source : from.sources) {
    to.add_source_path(static_cast<uint32_t>(source.path));
    for (int p = 0; p < PlacesOf(source.path); ++p) {
      to.add_source_place(source.place[static_cast<size_t>(p)]);
    }
    for (const int64_t stride : source.strides) {
      to.add_source_stride(static_cast<uint64_t>(stride));
    }
  }
}

void EncodePayload(Payload& from, uint64_t reference_transfer,
                   const Exposure* exposure, rpc::CallPayload& to) {
  if (exposure != nullptr) EncodeSources(*exposure, to);
  to.set_values(std::move(from.values));
  for (const Tensor& tensor : from.tensors) {
    to.add_tensor_dtype(tensor.defined() ? static_cast<uint32_t>(tensor.dtype())
                                         : kUndefinedDType);
    to.add_tensor_rank(static_cast<uint32_t>(tensor.dim()));
    for (const int64_t size : tensor.sizes()) {
      to.add_tensor_size(static_cast<uint64_t>(size));
    }
  }
  for (const Device& device : from.devices) {
    to.add_tensor_device(EncodeDevice(device));
  }
  for (const ReferenceId& reference : from.references) {
    to.add_reference_owner(reference.owner);
    to.add_reference_creator(reference.creator);
    to.add_reference_number(reference.number);
  }
  to.set_reference_transfer(reference_transfer);
}

absl::StatusOr<std::string> Finish(const rpc::Message& message,
                                   const CallLimits& limits) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > limits.max_control_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "values of ", bytes, " bytes, at most ", limits.max_control_bytes,
        " are allowed; pass large data as a Tensor"));
  }
  std::string control;
  // With room for the byte that a link puts before it.
  control.reserve(bytes + 1);
  control.resize(bytes);
  message.SerializeWithCachedSizesToArray(
      reinterpret_cast<uint8_t*>(control.data()));
  return control;
}

}  // namespace

absl::StatusOr<CallHeader> DecodeCallMessage(absl::string_view control,
                                             uint64_t tail_bytes,
                                             const CallLimits& limits) {
  if (control.size() > limits.max_control_bytes) {
    return Malformed(absl::StrCat(control.size(), " bytes, at most ",
                                  limits.max_control_bytes, " are allowed"));
  }
  ScratchMessage message;
  if (!message->ParseFromArray(control.data(),
                               static_cast<int>(control.size()))) {
    return Malformed("it is not a message");
  }
  const bool is_call = message->has_call();
  if (is_call && message->call().has_request()) {
    return DecodeRequest(*message->mutable_call()->mutable_request(),
                         tail_bytes, limits);
  }
  if (is_call && message->call().has_reply()) {
    return DecodeReply(*message->mutable_call()->mutable_reply(), tail_bytes,
                       limits);
  }
  if (tail_bytes != 0) {
    return Malformed(absl::StrCat(tail_bytes,
                                  " bytes follow one without "
                                  "tensors"));
  }
  if (message->has_reference()) {
    return DecodeReferenceMessages(message->reference());
  }
  const rpc::CallMessage& call = message->call();
  switch (call.kind_case()) {
    case rpc::CallMessage::kCancel:
      return CallHeader(CancelHeader{call.cancel().call()});
    case rpc::CallMessage::kDrain:
      return DecodeDrain(call.drain(), limits);
    case rpc::CallMessage::kTransferRead:
      return CallHeader(TransferReadHeader{call.transfer_read().transfer()});
    case rpc::CallMessage::kMemoryProbe:
      return CallHeader(
          MemoryProbe{.process = call.memory_probe().process(),
                      .nonce = call.memory_probe().nonce(),
                      .nonce_address = call.memory_probe().nonce_address()});
    case rpc::CallMessage::kMemoryPaths:
      return CallHeader(MemoryPathSet{.thread = call.memory_paths().thread(),
                                      .shm = call.memory_paths().shm(),
                                      .cma = call.memory_paths().cma()});
    default:
      return Malformed("it is of no known kind");
  }
}

absl::Status CheckTensors(
    Payload& payload, const CallLimits& limits,
    absl::FunctionRef<absl::StatusOr<Device>(const Device&)> route) {
  if (payload.tensors.size() > limits.max_tensors ||
      payload.references.size() > limits.max_references) {
    return absl::InvalidArgumentError(absl::StrCat(
        payload.tensors.size(), " tensors and ", payload.references.size(),
        " references in one message, at most ", limits.max_tensors, " and ",
        limits.max_references, " are allowed"));
  }
  uint64_t total = 0;
  payload.devices.clear();
  for (size_t i = 0; i < payload.tensors.size(); ++i) {
    const Tensor& tensor = payload.tensors[i];
    if (!tensor.defined()) continue;
    const absl::StatusOr<Device> device = route(tensor.device());
    if (!device.ok()) {
      return Annotate(device.status(),
                      absl::StrCat("tensor ", i, " of the message, on ",
                                   tensor.device().ToString()));
    }
    if (!device->is_cpu()) {
      payload.devices.resize(payload.tensors.size());
      payload.devices[i] = *device;
    }
    const std::optional<uint64_t> sum =
        CheckedAdd(total, static_cast<uint64_t>(tensor.nbytes()));
    if (!sum || *sum > limits.max_tensor_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors of more than ", limits.max_tensor_bytes,
                       " bytes in one message, the maximum"));
    }
    total = *sum;
  }
  return absl::OkStatus();
}

absl::Status PackTensors(std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    SHERD_ASSIGN_OR_RETURN(tensor, tensor.Contiguous());
  }
  return absl::OkStatus();
}

std::vector<absl::Span<const std::byte>> TailOf(
    const std::vector<Tensor>& tensors) {
  std::vector<absl::Span<const std::byte>> tail;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.nbytes() == 0) continue;
    tail.emplace_back(static_cast<const std::byte*>(tensor.data()),
                      static_cast<size_t>(tensor.nbytes()));
  }
  return tail;
}

absl::StatusOr<std::string> EncodeRequest(const RequestHeader& request,
                                          Payload& payload,
                                          uint64_t reference_transfer,
                                          const Exposure* exposure,
                                          const CallLimits& limits) {
  if (request.method.empty() || request.method.size() > kMaxMethodBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a method has 1 to ", kMaxMethodBytes,
                     " bytes, not ", request.method.size()));
  }
  ScratchMessage message;
  rpc::CallRequest& to = *message->mutable_call()->mutable_request();
  to.set_call(request.call);
  to.set_method(request.method);
  to.set_signature(request.signature);
  if (request.timeout != absl::InfiniteDuration()) {
    // 0 would mean that there is no deadline.
    to.set_timeout_us(static_cast<uint64_t>(
        std::max<int64_t>(1, absl::ToInt64Microseconds(request.timeout))));
  }
  to.set_creation_number(request.creation_number);
  to.set_creation_sequence(request.creation_sequence);
  EncodePayload(payload, reference_transfer, exposure, *to.mutable_payload());
  return Finish(*message, limits);
}

absl::StatusOr<std::string> EncodeReply(uint64_t call, Payload& payload,
                                        uint64_t reference_transfer,
                                        const Exposure* exposure,
                                        const CallLimits& limits) {
  ScratchMessage message;
  rpc::CallReply& reply = *message->mutable_call()->mutable_reply();
  reply.set_call(call);
  EncodePayload(payload, reference_transfer, exposure,
                *reply.mutable_payload());
  return Finish(*message, limits);
}

std::string EncodeErrorReply(uint64_t call, const absl::Status& error) {
  ScratchMessage message;
  rpc::CallReply& reply = *message->mutable_call()->mutable_reply();
  reply.set_call(call);
  reply.set_code(static_cast<int32_t>(error.code()));
  const absl::string_view text = error.message().substr(0, kMaxErrorText);
  reply.set_message(text.data(), text.size());
  error.ForEachPayload([&](absl::string_view type, const absl::Cord& value) {
    if (reply.attachment_size() == kMaxAttachments ||
        type.size() + value.size() > kMaxErrorText) {
      return;
    }
    reply.add_attachment_type(type.data(), type.size());
    reply.add_attachment(std::string(value));
  });
  return message->SerializeAsString();
}

std::string EncodeCancel(uint64_t call) {
  ScratchMessage message;
  message->mutable_call()->mutable_cancel()->set_call(call);
  return message->SerializeAsString();
}

std::string EncodeDrain(const DrainHeader& drain) {
  ScratchMessage message;
  rpc::DrainMessage& to = *message->mutable_call()->mutable_drain();
  to.set_kind(static_cast<rpc::DrainMessage::Kind>(
      static_cast<int>(drain.kind) + rpc::DrainMessage::WAVE));
  to.set_wave(drain.wave);
  to.set_sent(drain.sent);
  to.set_received(drain.received);
  for (const int rank : drain.excluded) {
    to.add_excluded(static_cast<uint32_t>(rank));
  }
  return message->SerializeAsString();
}

std::string EncodeTransferRead(uint64_t transfer) {
  ScratchMessage message;
  message->mutable_call()->mutable_transfer_read()->set_transfer(transfer);
  return message->SerializeAsString();
}

std::string EncodeMemoryProbe(const MemoryProbe& probe) {
  ScratchMessage message;
  rpc::MemoryProbe& to = *message->mutable_call()->mutable_memory_probe();
  to.set_process(probe.process);
  to.set_nonce(probe.nonce);
  to.set_nonce_address(probe.nonce_address);
  return message->SerializeAsString();
}

std::string EncodeMemoryPaths(const MemoryPathSet& paths) {
  ScratchMessage message;
  rpc::MemoryPaths& to = *message->mutable_call()->mutable_memory_paths();
  to.set_thread(paths.thread);
  to.set_shm(paths.shm);
  to.set_cma(paths.cma);
  return message->SerializeAsString();
}

}  // namespace sherd::internal
