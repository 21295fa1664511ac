#include "sherd/tools/bench/report.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sherd {
namespace {

std::string Row(const std::string& name, const std::string& world,
                const std::string& size, const std::string& peer,
                const std::string& median, const std::string& min,
                const std::string& max, const std::string& n,
                const std::string& first, const std::string& ratios) {
  return absl::StrFormat("%-25s %5s %9s  %-11s %9s %9s %9s %4s %9s  %s\n", name,
                         world, size, peer, median, min, max, n, first, ratios);
}

std::string Ratios(absl::Span<const BenchResult> results, size_t own) {
  std::string text;
  for (size_t i = own + 1; i < results.size(); ++i) {
    if (results[i].steady.median <= 0) continue;
    absl::StrAppendFormat(&text, "%s%.2fx %s", text.empty() ? "" : ", ",
                          results[own].steady.median / results[i].steady.median,
                          results[i].peer);
  }
  return text;
}

}  // namespace

std::string JsonLine(const BenchResult& result) {
  // Names are ours and need no escapes.
  return absl::StrFormat(
      "{\"case\":\"%s\",\"peer\":\"%s\",\"world\":%d,\"bytes\":%d,"
      "\"seconds_median\":%.9g,\"seconds_min\":%.9g,\"seconds_max\":%.9g,"
      "\"n\":%d}\n",
      result.case_name, result.peer, result.world, result.bytes,
      result.steady.median, result.steady.min, result.steady.max,
      result.steady.n);
}

std::string TableTitle() {
  return Row("case", "world", "bytes", "peer", "median", "min", "max", "n",
             "1st call", "median as a multiple of");
}

std::string TableRows(absl::Span<const BenchResult> results) {
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    const BenchResult& r = results[i];
    text += Row(r.case_name, absl::StrCat(r.world), FormatSize(r.bytes), r.peer,
                FormatTime(r.steady.median), FormatTime(r.steady.min),
                FormatTime(r.steady.max), absl::StrCat(r.steady.n),
                FormatTime(r.first_call), Ratios(results, i));
  }
  return text;
}

std::string FormatTime(double seconds) {
  const auto in = [](double value, const char* unit) {
    const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return absl::StrFormat("%.*f %s", decimals, value, unit);
  };
  if (seconds < 999.5e-6) return in(seconds * 1e6, "us");
  if (seconds < 999.5e-3) return in(seconds * 1e3, "ms");
  return in(seconds, "s");
}

std::string FormatSize(int64_t bytes) {
  if (bytes == 0) return "0";
  int unit = 0;
  while (unit < 3 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  return absl::StrCat(bytes, " ", kUnits[unit]);
}

}  // namespace sherd
