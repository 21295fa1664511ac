#include "sherd/core/comm/bootstrap/backend_agreement.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/meeting_errors.h"

namespace sherd::internal {
namespace {

constexpr char kAuto[] = "auto";
constexpr int kNoRank = -1;

// Fields are lines.
constexpr size_t kRequestFields = 6;
constexpr size_t kAgreementFields = 4;

std::string Flag(bool value) { return value ? "1" : "0"; }

std::string Lines(const std::vector<std::string>& fields) {
  return absl::StrJoin(
      fields, "\n", [](std::string* text, const std::string& field) {
        absl::StrAppend(text, absl::StrReplaceAll(field, {{"\n", " "}}));
      });
}

absl::StatusOr<BackendRequest> ParseRequest(int rank, absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  if (fields.size() != kRequestFields) {
    return WithRank(NotOfThisVersion(absl::StrCat("the record of rank ", rank)),
                    rank);
  }
  return BackendRequest{.backend = fields[0],
                        .device_backend = fields[1],
                        .one_host_only = fields[2] == Flag(true),
                        .shm_obstacle = fields[3],
                        .host = {fields[4], fields[5]}};
}

// As in BackendChoice::text.
std::string Asked(const BackendRequest& request) {
  if (request.device_backend.empty()) return request.backend;
  return absl::StrCat("cpu:", request.backend,
                      ",cuda:", request.device_backend);
}

absl::Status CheckBackends(const std::vector<BackendRequest>& requests) {
  std::vector<std::optional<std::string>> asked;
  for (const BackendRequest& request : requests) {
    asked.push_back(absl::StrCat("\"", Asked(request), "\""));
  }
  return CheckEqual("backends", asked);
}

BackendAgreement Decide(const std::vector<BackendRequest>& requests) {
  BackendAgreement agreement;
  agreement.backend = requests[0].backend;
  agreement.one_network = true;
  int unable = kNoRank;
  for (int rank = 0; rank < static_cast<int>(requests.size()); ++rank) {
    const BackendRequest& request = requests[rank];
    agreement.one_network &= request.host.network == requests[0].host.network;
    if (agreement.elsewhere == kNoRank && request.host != requests[0].host) {
      agreement.elsewhere = rank;
    }
    if (unable == kNoRank && !request.shm_obstacle.empty()) unable = rank;
  }
  if (agreement.backend != kAuto) return agreement;
  if (!agreement.one_host()) {
    agreement.reason = absl::StrCat("rank ", agreement.elsewhere,
                                    " is not on the host of rank 0");
  } else if (unable != kNoRank) {
    agreement.reason =
        absl::StrCat("on rank ", unable, ": ", requests[unable].shm_obstacle);
  }
  agreement.backend = agreement.reason.empty() ? "shm" : "gloo";
  return agreement;
}

}  // namespace

std::string BackendRequest::ToText() const {
  return Lines({backend, device_backend, Flag(one_host_only), shm_obstacle,
                host.network, host.machine});
}

absl::StatusOr<BackendAgreement> BackendAgreement::Parse(
    absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  BackendAgreement agreement;
  if (fields.size() != kAgreementFields ||
      !absl::SimpleAtoi(fields[3], &agreement.elsewhere)) {
    return NotOfThisVersion("the summary of rank 0");
  }
  agreement.backend = fields[0];
  agreement.reason = fields[1];
  agreement.one_network = fields[2] == Flag(true);
  return agreement;
}

absl::StatusOr<std::string> AgreeOnBackend(
    const std::vector<std::string>& requests) {
  std::vector<BackendRequest> parsed;
  for (const std::string& text : requests) {
    SHERD_ASSIGN_OR_RETURN(BackendRequest request,
                           ParseRequest(static_cast<int>(parsed.size()), text));
    parsed.push_back(std::move(request));
  }
  SHERD_RETURN_IF_ERROR(CheckBackends(parsed));
  const BackendAgreement agreement = Decide(parsed);
  if (parsed[0].one_host_only && !agreement.one_host()) {
    return WithRank(
        absl::FailedPreconditionError(absl::StrCat(
            "the backend ", agreement.backend,
            " works on one host only, but rank ", agreement.elsewhere,
            " is not on the host of rank 0: use auto or gloo")),
        agreement.elsewhere);
  }
  return Lines({agreement.backend, agreement.reason,
                Flag(agreement.one_network),
                absl::StrCat(agreement.elsewhere)});
}

}  // namespace sherd::internal
