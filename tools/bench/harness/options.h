#ifndef SHERD_TOOLS_BENCH_HARNESS_OPTIONS_H_
#define SHERD_TOOLS_BENCH_HARNESS_OPTIONS_H_

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

inline constexpr int kMaxBenchWorld = 256;
// Per peer, including the first call.
inline constexpr int kMaxBenchSamples = 64;

struct BenchOptions {
  // Not empty if the user asked for help, and for nothing else.
  std::string help;
  bool list = false;
  // Matches any part of a name: "gather" selects every name that contains it.
  std::regex cases{""};
  std::regex peers{""};
  std::vector<int> worlds = {2, 4};
  // Of the whole tensor or of a message; empty: those of each case.
  std::vector<int64_t> bytes;
  // Calls of each peer that count; 0: a number that suits the size.
  int calls = 0;
  // If it has no PyTorch, its peers are skipped.
  std::string python = "python3";
  // File for JSON lines, as given; empty: none.
  std::string json;
};

// Parses a command line without the name of the program.
//   kInvalidArgument  Unknown option, bad expression or number; the message
//                     names the option and its values.
absl::StatusOr<BenchOptions> ParseBenchOptions(
    std::vector<std::string> arguments);

// A number of bytes: "4096", "64KiB", "1MiB", "2GiB".
//   kInvalidArgument  Anything else, zero, or more than 1 TiB.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// Whether `expression` is found in `name`.
bool Selects(const std::regex& expression, const std::string& name);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_OPTIONS_H_
