#include "sherd/tools/bench/harness/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 40;

constexpr char kDescription[] =
    "Measures Sherd beside its peers: what moves the same bytes without it, "
    "and a limit program.\n"
    "Peers alternate within one run, every result is checked, the first call "
    "is reported apart.";

// The options as CLI11 reads them; the rest is checked afterwards.
struct RawOptions {
  bool list = false;
  std::string cases;
  std::string peers;
  std::optional<std::string> worlds;
  std::optional<std::string> bytes;
  int calls = 0;
  std::string python = BenchOptions().python;
  std::string json;
};

void Declare(CLI::App& app, RawOptions& raw) {
  app.add_flag("--list", raw.list, "Print cases and peers, run nothing");
  app.add_option("--cases", raw.cases, "Only cases in whose name this is found")
      ->type_name("REGEX");
  app.add_option("--peers", raw.peers, "Only peers in whose name this is found")
      ->type_name("REGEX");
  app.add_option("--world", raw.worlds, "Numbers of ranks, 2,4 by default")
      ->type_name("N,...");
  app.add_option("--bytes", raw.bytes,
                 "Sizes of the whole tensor or of a message; also KiB and GiB; "
                 "by default those of each case, 1MiB,64MiB for most")
      ->type_name("N,...");
  app.add_option("--calls", raw.calls,
                 "Calls of each peer that count, 51 up to 1MiB, 15 up to "
                 "64MiB, 5 above by default")
      ->check(CLI::Range(1, kMaxBenchSamples - 1))
      ->type_name("N");
  app.add_option("--python", raw.python,
                 "The Python whose PyTorch is a peer, python3 by default; "
                 "without one these peers are skipped")
      ->type_name("PROGRAM");
  app.add_option("--json", raw.json,
                 "Write a line per result to this file, relative to where you "
                 "stand")
      ->type_name("FILE");
}

absl::StatusOr<std::regex> ParseRegex(absl::string_view option,
                                      const std::string& text) {
  try {
    return std::regex(text);
  } catch (const std::regex_error& e) {
    return absl::InvalidArgumentError(absl::StrCat(
        option, "=", text, ": not a regular expression: ", e.what()));
  }
}

absl::StatusOr<int> ParseWorld(absl::string_view text) {
  int world;
  if (!absl::SimpleAtoi(text, &world) || world < 1 || world > kMaxBenchWorld) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world: \"", text, "\": expected numbers from 1 to ",
                     kMaxBenchWorld, ", such as 2,4"));
  }
  return world;
}

// Values between commas, each once: measuring something twice in a run would
// make two results of one name.
template <typename T>
absl::StatusOr<std::vector<T>> ParseList(
    absl::string_view text, absl::StatusOr<T> (*parse)(absl::string_view)) {
  std::vector<T> list;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    SHERD_ASSIGN_OR_RETURN(const T value, parse(item));
    if (std::find(list.begin(), list.end(), value) == list.end()) {
      list.push_back(value);
    }
  }
  return list;
}

absl::StatusOr<BenchOptions> Interpret(const RawOptions& raw) {
  BenchOptions options;
  options.list = raw.list;
  options.json = raw.json;
  options.calls = raw.calls;
  options.python = raw.python;
  SHERD_ASSIGN_OR_RETURN(options.cases, ParseRegex("--cases", raw.cases));
  SHERD_ASSIGN_OR_RETURN(options.peers, ParseRegex("--peers", raw.peers));
  if (raw.worlds) {
    SHERD_ASSIGN_OR_RETURN(options.worlds,
                           ParseList<int>(*raw.worlds, ParseWorld));
  }
  if (raw.bytes) {
    SHERD_ASSIGN_OR_RETURN(options.bytes,
                           ParseList<int64_t>(*raw.bytes, ParseByteCount));
  }
  return options;
}

}  // namespace

absl::StatusOr<BenchOptions> ParseBenchOptions(
    std::vector<std::string> arguments) {
  CLI::App app(kDescription, "bench");
  RawOptions raw;
  Declare(app, raw);
  // CLI11 takes the arguments from the end.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    BenchOptions options;
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& e) {
    return absl::InvalidArgumentError(e.what());
  }
  return Interpret(raw);
}

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  absl::string_view digits = text;
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&digits, "KiB")) {
    unit = int64_t{1} << 10;
  } else if (absl::ConsumeSuffix(&digits, "MiB")) {
    unit = int64_t{1} << 20;
  } else if (absl::ConsumeSuffix(&digits, "GiB")) {
    unit = int64_t{1} << 30;
  }
  int64_t count;
  if (!absl::SimpleAtoi(digits, &count) || count < 1 ||
      count > kMaxBytes / unit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--bytes: \"", text,
        "\": expected numbers from 1 to 1 TiB, such as 4096,64MiB"));
  }
  return count * unit;
}

bool Selects(const std::regex& expression, const std::string& name) {
  return std::regex_search(name, expression);
}

}  // namespace sherd
