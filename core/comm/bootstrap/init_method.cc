#include "sherd/core/comm/bootstrap/init_method.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/launch_environment.h"

namespace sherd {
namespace {

constexpr int kLastPort = 65535;

absl::Status Bad(absl::string_view url, absl::string_view scheme,
                 absl::string_view what, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("Error initializing using ", scheme, " rendezvous: ", what,
                   " in \"", url, "\", expected ", expected));
}

absl::Status ParseParameters(absl::string_view url, absl::string_view query,
                             InitMethod& method) {
  for (absl::string_view parameter :
       absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> fields =
        absl::StrSplit(parameter, absl::MaxSplits('=', 1));
    const bool is_rank = fields.first == "rank";
    if (!is_rank && fields.first != "world_size") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown parameter \"", fields.first, "\" in \"", url,
                       "\", expected rank or world_size"));
    }
    const int low = is_rank ? 0 : 1;
    int value;
    if (!absl::SimpleAtoi(fields.second, &value) || value < low ||
        value > kMaxWorldSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the parameter ", fields.first, " in \"", url, "\" is \"",
          fields.second, "\", expected a number from ", low));
    }
    (is_rank ? method.rank : method.world_size) = value;
  }
  return absl::OkStatus();
}

absl::Status ParseHostAndPort(absl::string_view url, absl::string_view text,
                              InitMethod& method) {
  constexpr absl::string_view kForm = "tcp://HOST:PORT or tcp://[ADDRESS]:PORT";
  absl::string_view host, port;
  if (absl::StartsWith(text, "[")) {
    const size_t close = text.find(']');
    if (close == absl::string_view::npos) {
      return Bad(url, "tcp://", "no closing bracket", kForm);
    }
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
  } else {
    const size_t colon = text.find(':');
    host = text.substr(0, colon);
    port = colon == absl::string_view::npos ? "" : text.substr(colon);
    if (absl::StrContains(port.substr(port.empty() ? 0 : 1), ':')) {
      return Bad(url, "tcp://", "an IPv6 address without brackets", kForm);
    }
  }
  if (host.empty()) return Bad(url, "tcp://", "host missing", kForm);
  if (!absl::ConsumePrefix(&port, ":") || port.empty()) {
    return Bad(url, "tcp://", "port number missing", kForm);
  }
  int number;
  if (!absl::SimpleAtoi(port, &number) || number < 1 || number > kLastPort) {
    return Bad(url, "tcp://", absl::StrCat("port \"", port, "\""),
               absl::StrCat("a number from 1 to ", kLastPort));
  }
  method.host = std::string(host);
  method.port = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InitMethod> InitMethod::Parse(absl::string_view url) {
  InitMethod method;
  const size_t question = url.find('?');
  absl::string_view base = url.substr(0, question);
  if (question != absl::string_view::npos) {
    SHERD_RETURN_IF_ERROR(
        ParseParameters(url, url.substr(question + 1), method));
  }
  if (absl::ConsumePrefix(&base, "file://")) {
    method.kind = Kind::kFile;
    if (!absl::StartsWith(base, "/")) {
      return Bad(url, "file://", "path missing or not absolute",
                 "file:///PATH");
    }
    method.path = std::string(base);
    return method;
  }
  if (absl::ConsumePrefix(&base, "tcp://")) {
    method.kind = Kind::kTcp;
    absl::ConsumeSuffix(&base, "/");
    SHERD_RETURN_IF_ERROR(ParseHostAndPort(url, base, method));
    return method;
  }
  if (absl::ConsumePrefix(&base, "env://")) {
    if (!base.empty()) {
      return Bad(url, "env://", absl::StrCat("\"", base, "\""),
                 "nothing behind env://, since variables say it all");
    }
    return method;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("No rendezvous handler for \"", url,
                   "\": expected file:///PATH, tcp://HOST:PORT or env://"));
}

}  // namespace sherd
