#include "sherd/core/comm/bootstrap/backend_choice.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sherd {

absl::StatusOr<BackendChoice> BackendChoice::Parse(absl::string_view text) {
  const std::string lower =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  BackendChoice choice;
  if (!absl::StrContains(lower, ':') && !absl::StrContains(lower, ',')) {
    if (lower.empty()) {
      return absl::InvalidArgumentError(
          "Init: the backend's name is empty, expected auto or a name");
    }
    if (lower == "nccl") return Parse("cpu:auto,cuda:nccl");
    choice.text = choice.cpu = lower;
    return choice;
  }
  for (absl::string_view pair : absl::StrSplit(lower, ',')) {
    pair = absl::StripAsciiWhitespace(pair);
    const std::vector<std::string> fields = absl::StrSplit(pair, ':');
    if (fields.size() != 2 || fields[0].empty() || fields[1].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Invalid device:backend pairing: \"", pair, "\" in \"", text,
          "\", expected one name, or pairs such as cpu:gloo,cuda:nccl"));
    }
    if (fields[0] != "cpu" && fields[0] != "cuda") {
      return absl::InvalidArgumentError(
          absl::StrCat("Invalid device:backend pairing: \"", pair, "\" in \"",
                       text, "\", expected the device cpu or cuda"));
    }
    std::string& name = fields[0] == "cpu" ? choice.cpu : choice.cuda;
    if (!name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Duplicate device type ", fields[0], " in backend string: ", text));
    }
    name = fields[1];
  }
  if (choice.cpu.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the backend string \"", text,
        "\" has no backend for cpu, which every group needs: write cpu:gloo,",
        lower));
  }
  if (choice.cuda == "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid device:backend pairing: \"cuda:auto\" in \"",
                     text, "\", expected a backend's name: auto is for cpu"));
  }
  choice.text = choice.cuda.empty()
                    ? choice.cpu
                    : absl::StrCat("cpu:", choice.cpu, ",cuda:", choice.cuda);
  return choice;
}

}  // namespace sherd
