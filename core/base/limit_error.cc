#include "sherd/core/base/limit_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sherd {
namespace {

constexpr absl::string_view kPayloadUrl = "sherd/limit";

}  // namespace

absl::Status LimitError(std::string message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kPayloadUrl, absl::Cord("exceeded"));
  return status;
}

bool IsLimitError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         status.GetPayload(kPayloadUrl).has_value();
}

}  // namespace sherd
