#include "sherd/backends/host/plugin_call.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"

namespace sherd::internal {
namespace {

absl::StatusCode ToStatusCode(sherd_code code) {
  switch (code) {
    case SHERD_INVALID_ARGUMENT:
      return absl::StatusCode::kInvalidArgument;
    case SHERD_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case SHERD_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case SHERD_PEER_LOST:
      return absl::StatusCode::kUnavailable;
    case SHERD_ABORTED:
      return absl::StatusCode::kAborted;
    case SHERD_RESOURCE:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

sherd_error_v0 NoError() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  error.peer = -1;
  return error;
}

sherd_code ReportThrow(sherd_error_v0* error, const char* what) {
  std::snprintf(error->text, sizeof(error->text),
                "the plugin threw an exception across the plugin ABI%s%s",
                what == nullptr ? "" : ": ", what == nullptr ? "" : what);
  return SHERD_INTERNAL;
}

void LogThrow(const sherd_error_v0& error) { SHERD_LOG(kError) << error.text; }

absl::Status ToStatus(sherd_code code, const sherd_error_v0& error, int size) {
  if (code == SHERD_OK) return absl::OkStatus();
  // The plugin may have filled the array to its last byte.
  std::string text(error.text, strnlen(error.text, sizeof(error.text)));
  if (text.empty()) text = absl::StrCat("the plugin returned code ", code);
  if (error.native_code != 0) {
    absl::StrAppend(&text, " (native code ", error.native_code, ")");
  }
  if (error.peer < 0 || error.peer >= size) {
    return absl::Status(ToStatusCode(code), text);
  }
  const std::string rank = absl::StrCat("rank ", error.peer);
  if (code == SHERD_INVALID_ARGUMENT && !absl::StrContains(text, rank)) {
    text = absl::StrCat(rank, ": ", text);
  }
  absl::Status status(ToStatusCode(code), text);
  // For other errors the peer is the rank where it happened, not a failed rank.
  const bool failed = code == SHERD_PEER_LOST || code == SHERD_TIMEOUT ||
                      code == SHERD_INVALID_ARGUMENT;
  return failed ? WithFailedRank(std::move(status), error.peer)
                : WithRank(std::move(status), error.peer);
}

}  // namespace sherd::internal
