#include "sherd/rpc/call/encoding.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"

namespace sherd::internal {
namespace {

std::string Text(const ValuePlace& place) {
  if (place.method.empty()) return "";
  if (place.argument == kResult)
    return absl::StrCat(place.method, ": result: ");
  if (place.argument == 0) return absl::StrCat(place.method, ": arguments: ");
  return absl::StrCat(place.method, ": argument ", place.argument, ": ");
}

std::string TooMany(absl::string_view what, size_t limit) {
  return absl::StrCat("more than ", limit, " ", what, " in one message");
}

absl::Status TooDeep() {
  return absl::InvalidArgumentError(
      absl::StrCat("structs are nested deeper than ", kMaxNesting,
                   "; send a list with indices instead"));
}

constexpr absl::string_view kItsType = "its type";

}  // namespace

absl::Status ThrownError(absl::string_view who) {
  try {
    throw;
  } catch (const std::exception& thrown) {
    return absl::InternalError(
        absl::StrCat(who, " threw ", Quoted(thrown.what())));
  } catch (...) {
    return absl::InternalError(
        absl::StrCat(who, " threw an object that is not a std::exception"));
  }
}

absl::StatusOr<Payload> Encoder::Run(absl::FunctionRef<void()> write) {
  try {
    write();
  } catch (...) {
    Fail(ThrownError(kItsType));
  }
  return std::move(*this).Finish();
}

void Encoder::PutBytes(const void* bytes, size_t size) {
  if (!ok()) return;
  if (size > kMaxValueBytes - payload_.values.size()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "values other than tensors take more than the ", kMaxValueBytes,
        " bytes that one message may hold; send large data as tensors")));
  }
  payload_.values.append(static_cast<const char*>(bytes), size);
}

void Encoder::PutCount(size_t count) {
  // A larger count is refused: its elements exceed the limit of bytes.
  PutNumber(static_cast<uint32_t>(std::min<size_t>(count, UINT32_MAX)));
}

void Encoder::PutText(absl::string_view text) {
  PutCount(text.size());
  PutBytes(text.data(), text.size());
}

void Encoder::PutTensor(const Tensor& tensor) {
  if (++tensors_ > kMaxTensors) {
    return Fail(absl::InvalidArgumentError(TooMany("tensors", kMaxTensors)));
  }
  PutFlag(tensor.defined());
  if (tensor.defined() && ok()) payload_.tensors.push_back(tensor);
}

void Encoder::PutReference(std::optional<HeldReference> reference) {
  if (++references_ > kMaxReferences) {
    return Fail(
        absl::InvalidArgumentError(TooMany("references", kMaxReferences)));
  }
  PutFlag(reference.has_value());
  if (!reference.has_value() || !ok()) return;
  payload_.references.push_back(reference->id);
  payload_.references_keep.push_back(std::move(reference->keep));
}

bool Encoder::Enter() {
  if (++depth_ <= kMaxNesting) return true;
  Fail(TooDeep());
  return false;
}

void Encoder::Fail(const absl::Status& status) {
  if (!ok()) return;
  status_ =
      absl::Status(status.code(), absl::StrCat(Text(place_), status.message()));
}

absl::StatusOr<Payload> Encoder::Finish() && {
  if (!ok()) return status_;
  return std::move(payload_);
}

const char* Decoder::Take(size_t size) {
  if (!status_.ok()) return nullptr;
  if (payload_.values.size() > kMaxValueBytes) {
    Fail(absl::StrCat("expected at most ", kMaxValueBytes, " bytes"));
    return nullptr;
  }
  if (size > left_.size()) {
    Fail(absl::StrCat("expected ", size, " bytes, found ", left_.size()));
    return nullptr;
  }
  const char* const taken = left_.data();
  left_.remove_prefix(size);
  return taken;
}

bool Decoder::TakeFlag(bool* flag) {
  uint8_t byte = 0;
  if (!TakeNumber(&byte)) return false;
  if (byte > 1) {
    return Fail(absl::StrCat("expected a byte 0 or 1, found ", byte));
  }
  *flag = byte == 1;
  return true;
}

bool Decoder::TakeCount(size_t min_bytes, size_t* count) {
  uint32_t announced = 0;
  if (!TakeNumber(&announced)) return false;
  if (announced > left_.size() / min_bytes) {
    return Fail(absl::StrCat("expected ", announced, " elements of at least ",
                             min_bytes, " bytes, found ", left_.size(),
                             " bytes"));
  }
  *count = announced;
  return true;
}

bool Decoder::TakeText(absl::string_view* text) {
  size_t size = 0;
  if (!TakeCount(1, &size)) return false;
  *text = absl::string_view(Take(size), size);
  return true;
}

bool Decoder::TakeTensor(Tensor* tensor) {
  bool defined = false;
  if (!TakeFlag(&defined)) return false;
  if (++tensors_ > kMaxTensors) return Fail(TooMany("tensors", kMaxTensors));
  if (!defined) return true;
  if (next_tensor_ == payload_.tensors.size()) {
    return Fail(absl::StrCat("expected more than the ", next_tensor_,
                             " tensors of the message"));
  }
  if (!payload_.tensors[next_tensor_].defined()) {
    return Fail("expected a defined tensor, found an undefined one");
  }
  *tensor = std::move(payload_.tensors[next_tensor_++]);
  return true;
}

bool Decoder::TakeReference(std::optional<HeldReference>* reference) {
  bool there = false;
  if (!TakeFlag(&there)) return false;
  if (++references_ > kMaxReferences) {
    return Fail(TooMany("references", kMaxReferences));
  }
  if (!there) return true;
  const size_t i = next_reference_;
  if (i == payload_.references.size()) {
    return Fail(absl::StrCat("expected more than the ", i,
                             " references of the message"));
  }
  reference->emplace().id = payload_.references[i];
  if (i < payload_.references_keep.size()) {
    (*reference)->keep = std::move(payload_.references_keep[i]);
  }
  ++next_reference_;
  return true;
}

bool Decoder::Enter() {
  return ++depth_ <= kMaxNesting || Fail(TooDeep().message());
}

bool Decoder::Fail(absl::string_view problem) {
  return Fail(absl::DataLossError(problem));
}

bool Decoder::Fail(const absl::Status& status) {
  if (!status_.ok()) return false;
  status_ = absl::Status(
      status.code(),
      absl::StrCat(Text(place_), PrintableLine(status.message()), " at byte ",
                   payload_.values.size() - left_.size(), " of ",
                   payload_.values.size(), " from another worker"));
  return false;
}

absl::Status Decoder::Run(absl::FunctionRef<void()> read) {
  try {
    read();
  } catch (...) {
    Fail(ThrownError(kItsType));
  }
  return Finish();
}

absl::Status Decoder::Finish() {
  if (!left_.empty()) {
    Fail(absl::StrCat("expected no more bytes, found ", left_.size()));
  }
  if (next_tensor_ != payload_.tensors.size()) {
    Fail(absl::StrCat("expected ", next_tensor_, " tensors, found ",
                      payload_.tensors.size()));
  }
  if (next_reference_ != payload_.references.size()) {
    Fail(absl::StrCat("expected ", next_reference_, " references, found ",
                      payload_.references.size()));
  }
  return status_;
}

void TypeText::Append(size_t number) { absl::StrAppend(&text_, number); }

bool TypeText::OpenStruct(const std::type_info& type) {
  const auto found = std::find(open_.begin(), open_.end(), type);
  if (found == open_.end()) {
    open_.emplace_back(type);
    return true;
  }
  absl::StrAppend(&text_, "^", open_.end() - found);
  return false;
}

uint64_t HashSignature(absl::string_view text) {
  return Fingerprint().Add(kArgumentsFormat).Add(text).value();
}

MethodSignatureText MakeSignature(absl::string_view method,
                                  void (*describe)(TypeText& type)) {
  TypeText type;
  type.Append(method);
  describe(type);
  MethodSignatureText made;
  made.text = std::move(type).Take();
  made.hash = HashSignature(made.text);
  return made;
}

}  // namespace sherd::internal
