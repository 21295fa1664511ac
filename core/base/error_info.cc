#include "sherd/core/base/error_info.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sherd {
namespace {

constexpr absl::string_view kPayloadUrl = "sherd/error-info";

// "operation=reshard sequence=3 rank=1 failed_rank=1 group=default", without
// what is unset: absl::Status prints payloads, so people read it. The group is
// last, since its name may hold spaces.
std::string Encode(const ErrorInfo& info) {
  std::vector<std::string> fields;
  if (!info.operation.empty()) {
    fields.push_back(absl::StrCat("operation=", info.operation));
  }
  if (info.sequence != 0) {
    fields.push_back(absl::StrCat("sequence=", info.sequence));
  }
  if (info.rank) fields.push_back(absl::StrCat("rank=", *info.rank));
  if (info.failed_rank) {
    fields.push_back(absl::StrCat("failed_rank=", *info.failed_rank));
  }
  if (!info.group.empty()) fields.push_back(absl::StrCat("group=", info.group));
  return absl::StrJoin(fields, " ");
}

std::optional<int> ToRank(absl::string_view text) {
  int rank = 0;
  return absl::SimpleAtoi(text, &rank) ? std::optional<int>(rank)
                                       : std::nullopt;
}

ErrorInfo Decode(absl::string_view text) {
  ErrorInfo info;
  while (!text.empty()) {
    if (absl::ConsumePrefix(&text, "group=")) {
      info.group = std::string(text);
      break;
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(' ', 1));
    absl::string_view field = parts.first;
    text = parts.second;
    if (absl::ConsumePrefix(&field, "operation=")) {
      info.operation = std::string(field);
    } else if (absl::ConsumePrefix(&field, "sequence=")) {
      if (!absl::SimpleAtoi(field, &info.sequence)) info.sequence = 0;
    } else if (absl::ConsumePrefix(&field, "rank=")) {
      info.rank = ToRank(field);
    } else if (absl::ConsumePrefix(&field, "failed_rank=")) {
      info.failed_rank = ToRank(field);
    }
  }
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
  if (info.failed_rank) merged.failed_rank = info.failed_rank;
  status.SetPayload(kPayloadUrl, absl::Cord(Encode(merged)));
  return status;
}

absl::Status WithRank(absl::Status status, int rank) {
  ErrorInfo info;
  info.rank = rank;
  return WithErrorInfo(std::move(status), info);
}

absl::Status WithFailedRank(absl::Status status, int rank) {
  ErrorInfo info;
  info.rank = rank;
  info.failed_rank = rank;
  return WithErrorInfo(std::move(status), info);
}

ErrorInfo GetErrorInfo(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  return payload ? Decode(std::string(*payload)) : ErrorInfo{};
}

absl::Status WithoutErrorInfo(absl::Status status) {
  if (!status.ok()) status.ErasePayload(kPayloadUrl);
  return status;
}

std::optional<int> ErrorRank(const absl::Status& status) {
  return GetErrorInfo(status).rank;
}

std::optional<int> FailedRank(const absl::Status& status) {
  return GetErrorInfo(status).failed_rank;
}

bool IsRankFailure(const absl::Status& status) {
  return FailedRank(status).has_value();
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
