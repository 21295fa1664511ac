#include "sherd/core/base/error_info.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sherd {
namespace {

constexpr absl::string_view kPayloadUrl = "sherd/error-info";

// Four lines in the order of the fields. Line breaks cannot occur in names of
// groups and operations, so no escaping is needed.
std::string Encode(const ErrorInfo& info) {
  return absl::StrCat(info.group, "\n", info.operation, "\n", info.sequence,
                      "\n", info.rank ? absl::StrCat(*info.rank) : "");
}

ErrorInfo Decode(const std::string& text) {
  ErrorInfo info;
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  if (fields.size() != 4) return info;
  info.group = fields[0];
  info.operation = fields[1];
  if (!absl::SimpleAtoi(fields[2], &info.sequence)) info.sequence = 0;
  if (int rank; absl::SimpleAtoi(fields[3], &rank)) info.rank = rank;
  return info;
}

}  // namespace

absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info) {
  if (status.ok()) return status;
  ErrorInfo merged = GetErrorInfo(status);
  if (!info.group.empty()) merged.group = info.group;
  if (!info.operation.empty()) merged.operation = info.operation;
  if (info.sequence != 0) merged.sequence = info.sequence;
  if (info.rank) merged.rank = info.rank;
  status.SetPayload(kPayloadUrl, absl::Cord(Encode(merged)));
  return status;
}

absl::Status WithRank(absl::Status status, int rank) {
  ErrorInfo info;
  info.rank = rank;
  return WithErrorInfo(std::move(status), info);
}

ErrorInfo GetErrorInfo(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  return payload ? Decode(std::string(*payload)) : ErrorInfo{};
}

std::optional<int> BlamedRank(const absl::Status& status) {
  return GetErrorInfo(status).rank;
}

absl::Status Annotate(absl::Status status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&annotated](absl::string_view url, const absl::Cord& payload) {
        annotated.SetPayload(url, payload);
      });
  return annotated;
}

}  // namespace sherd
