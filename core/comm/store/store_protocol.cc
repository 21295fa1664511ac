#include "sherd/core/comm/store/store_protocol.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr int kHighestCode =
    static_cast<int>(absl::StatusCode::kUnauthenticated);

template <typename T>
void AppendNumber(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

std::string Encode(uint64_t id, uint8_t kind, int64_t number,
                   const std::vector<std::string>& strings) {
  size_t size = 8 + 1 + 8 + 4;
  for (const std::string& s : strings) size += 4 + s.size();
  std::string out;
  out.reserve(size);
  AppendNumber(out, id);
  AppendNumber(out, kind);
  AppendNumber(out, number);
  AppendNumber(out, static_cast<uint32_t>(strings.size()));
  for (const std::string& s : strings) {
    AppendNumber(out, static_cast<uint32_t>(s.size()));
    out.append(s);
  }
  return out;
}

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a malformed store message: ", what));
}

template <typename T>
bool ReadNumber(absl::string_view& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  *value = static_cast<T>(bits);
  bytes.remove_prefix(sizeof(T));
  return true;
}

struct Message {
  uint64_t id;
  uint8_t kind;
  int64_t number;
  std::vector<std::string> strings;
};

absl::StatusOr<Message> Parse(absl::string_view bytes) {
  Message message;
  uint32_t count;
  if (!ReadNumber(bytes, &message.id) || !ReadNumber(bytes, &message.kind) ||
      !ReadNumber(bytes, &message.number) || !ReadNumber(bytes, &count)) {
    return Malformed("it is too short");
  }
  // Each has a length at least.
  if (count > bytes.size() / sizeof(uint32_t)) {
    return Malformed("more strings than bytes");
  }
  message.strings.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t length;
    if (!ReadNumber(bytes, &length) || length > bytes.size()) {
      return Malformed("a string goes beyond its end");
    }
    message.strings.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  if (!bytes.empty()) return Malformed("bytes are left over");
  return message;
}

// How many strings a request has; -1: any number.
int NumStrings(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kSet:
      return 2;
    case StoreOperation::kCompareSet:
      return 3;
    case StoreOperation::kGet:
    case StoreOperation::kWait:
      return -1;
    case StoreOperation::kAdd:
    case StoreOperation::kDelete:
    case StoreOperation::kDeletePrefix:
    case StoreOperation::kRetire:
    case StoreOperation::kContains:
      return 1;
    case StoreOperation::kCancel:
      return 0;
  }
  return 0;
}

}  // namespace

std::string EncodeStoreRequest(const StoreRequest& request) {
  return Encode(request.id, static_cast<uint8_t>(request.operation),
                request.number, request.strings);
}

std::string EncodeStoreResponse(const StoreResponse& response) {
  return Encode(response.id, static_cast<uint8_t>(response.code),
                response.number, response.strings);
}

absl::StatusOr<StoreRequest> ParseStoreRequest(absl::string_view bytes) {
  SHERD_ASSIGN_OR_RETURN(Message message, Parse(bytes));
  if (message.kind < static_cast<uint8_t>(StoreOperation::kSet) ||
      message.kind > static_cast<uint8_t>(StoreOperation::kCancel)) {
    return Malformed(absl::StrCat("unknown operation ", message.kind));
  }
  const auto operation = static_cast<StoreOperation>(message.kind);
  const int expected = NumStrings(operation);
  if (expected >= 0 &&
      message.strings.size() != static_cast<size_t>(expected)) {
    return Malformed(absl::StrCat(StoreOperationName(operation), " with ",
                                  message.strings.size(), " strings, expected ",
                                  expected));
  }
  return StoreRequest{message.id, operation, message.number,
                      std::move(message.strings)};
}

absl::StatusOr<StoreResponse> ParseStoreResponse(absl::string_view bytes) {
  SHERD_ASSIGN_OR_RETURN(Message message, Parse(bytes));
  if (message.kind > kHighestCode) {
    return Malformed(absl::StrCat("unknown status code ", message.kind));
  }
  return StoreResponse{message.id, static_cast<absl::StatusCode>(message.kind),
                       message.number, std::move(message.strings)};
}

absl::string_view StoreOperationName(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kSet:
      return "Set";
    case StoreOperation::kGet:
      return "Get";
    case StoreOperation::kAdd:
      return "Add";
    case StoreOperation::kCompareSet:
      return "CompareSet";
    case StoreOperation::kDelete:
      return "Delete";
    case StoreOperation::kDeletePrefix:
      return "DeletePrefix";
    case StoreOperation::kRetire:
      return "Retire";
    case StoreOperation::kWait:
      return "Wait";
    case StoreOperation::kContains:
      return "Contains";
    case StoreOperation::kCancel:
      return "Cancel";
  }
  return "unknown operation";
}

}  // namespace sherd::internal
