#ifndef SHERD_RPC_CALL_ENCODING_H_
#define SHERD_RPC_CALL_ENCODING_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/ownership/reference_id.h"

namespace sherd::internal {

// Limit of one payload's values, so that its message stays below 4 MiB: larger
// data are tensors, whose elements are sent beside the message.
inline constexpr size_t kMaxValueBytes = size_t{2} << 20;
inline constexpr size_t kMaxTensors = 1024;
inline constexpr size_t kMaxReferences = 16384;
// Limit of structs within structs: one that contains vectors of itself could
// otherwise overflow the stack.
inline constexpr int kMaxNesting = 100;

// A reference with the object that keeps it: at the sender, its handle; at the
// receiver, the engine's handle of the confirmed reference, or null.
struct HeldReference {
  ReferenceId id;
  std::shared_ptr<void> keep;
};

template <typename T>
concept WireNumber = (std::is_arithmetic_v<T> ||
                      std::is_enum_v<T>)&&sizeof(T) <= 8;

// "scale: argument 2", counted from 1, "scale: result", or "scale: arguments"
// for number 0.
inline constexpr size_t kResult = SIZE_MAX;
struct ValuePlace {
  absl::string_view method;
  size_t argument = 0;
};

// kInternal for the exception that is being handled, thrown by `who`.
absl::Status ThrownError(absl::string_view who);

// Writes a payload. After the first error nothing more is written, and Finish
// returns it; without a place if this writes a part of another payload.
class Encoder {
 public:
  // The argument that is written next, for errors.
  void Begin(absl::string_view method, size_t argument) {
    place_ = {method, argument};
  }

  void PutBytes(const void* bytes, size_t size);
  template <WireNumber T>
  void PutNumber(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    if constexpr (std::endian::native == std::endian::big) {
      std::reverse(bytes, bytes + sizeof(T));
    }
    PutBytes(bytes, sizeof(T));
  }
  void PutFlag(bool flag) { PutNumber(static_cast<uint8_t>(flag ? 1 : 0)); }
  void PutCount(size_t count);
  void PutText(absl::string_view text);
  // An undefined tensor is not added to Payload::tensors.
  void PutTensor(const Tensor& tensor);
  // Nullopt: an empty reference.
  void PutReference(std::optional<HeldReference> reference);

  // Around the fields of a struct. Returns false, with an error, if too deep.
  bool Enter();
  void Leave() { --depth_; }

  // Makes `status` the outcome unless there is one.
  void Fail(const absl::Status& status);
  bool ok() const { return status_.ok(); }
  // Bytes of values so far.
  size_t size() const { return payload_.values.size(); }

  // Calls `write`, then Finish; an exception becomes kInternal.
  absl::StatusOr<Payload> Run(absl::FunctionRef<void()> write);

  //   kInvalidArgument  A value is too large, too deep or malformed.
  //   other             From a reference.
  absl::StatusOr<Payload> Finish() &&;

 private:
  Payload payload_;
  ValuePlace place_;
  size_t tensors_ = 0;
  size_t references_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

// Reads an untrusted payload. Functions return false after the first error,
// which Finish returns.
//
// Cost. Allocates for the bytes that are there, never for an announced number:
// each element of a list has consumed bytes of `values` before memory for the
// next is allocated.
class Decoder {
 public:
  explicit Decoder(Payload payload)
      : payload_(std::move(payload)), left_(payload_.values) {}
  // `left_` refers to `payload_`.
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // As Encoder::Begin.
  void Begin(absl::string_view method, size_t argument) {
    place_ = {method, argument};
  }

  // The next `size` bytes, valid as long as this is; or null.
  const char* Take(size_t size);
  template <WireNumber T>
  bool TakeNumber(T* value) {
    const char* const from = Take(sizeof(T));
    if (from == nullptr) return false;
    char bytes[sizeof(T)];
    std::memcpy(bytes, from, sizeof(T));
    if constexpr (std::endian::native == std::endian::big) {
      std::reverse(bytes, bytes + sizeof(T));
    }
    std::memcpy(value, bytes, sizeof(T));
    return true;
  }
  bool TakeFlag(bool* flag);
  // The number of elements that follow, of at least `min_bytes` > 0 each, whose
  // bytes are there.
  bool TakeCount(size_t min_bytes, size_t* count);
  bool TakeText(absl::string_view* text);
  // Does not change `tensor` if it was undefined at the sender.
  bool TakeTensor(Tensor* tensor);
  // Nullopt: an empty reference.
  bool TakeReference(std::optional<HeldReference>* reference);

  bool Enter();
  void Leave() { --depth_; }

  // The unread bytes.
  absl::string_view left() const { return left_; }

  // Always false: for `return decoder.Fail(…)`.
  bool Fail(absl::string_view problem);
  // The same with the code of `status`.
  bool Fail(const absl::Status& status);

  // Calls `read`, then Finish; an exception becomes kInternal.
  absl::Status Run(absl::FunctionRef<void()> read);

  //   kDataLoss  The payload is malformed, or data is left over.
  //   other      From a reference.
  absl::Status Finish();

 private:
  Payload payload_;
  absl::string_view left_;
  ValuePlace place_;
  size_t tensors_ = 0;
  size_t next_tensor_ = 0;
  size_t references_ = 0;
  size_t next_reference_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

// Writes the canonical text of a type.
class TypeText {
 public:
  void Append(absl::string_view text) {
    text_.append(text.data(), text.size());
  }
  void Append(size_t number);

  // Around the text of the struct `type`. Returns false if it is within itself;
  // then it is written as "^n", the n-th enclosing struct.
  bool OpenStruct(const std::type_info& type);
  void CloseStruct() { open_.pop_back(); }

  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
  std::vector<std::type_index> open_;
};

// What caller and handler compare: the name and the canonical types, which do
// not depend on compiler or platform. "scale(tensor,f64)->tensor".
struct MethodSignatureText {
  std::string text;
  // Of kArgumentsFormat and `text`.
  uint64_t hash = 0;
};

// Changes if the encoding of any value changes.
inline constexpr int64_t kArgumentsFormat = 1;

uint64_t HashSignature(absl::string_view text);

MethodSignatureText MakeSignature(absl::string_view method,
                                  void (*describe)(TypeText& type));

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_ENCODING_H_
