#include "sherd/tools/bench/harness/report.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sherd {
namespace {

std::string Row(const std::string& name, const std::string& world,
                const std::string& size, const std::string& peer,
                const std::string& median, const std::string& min,
                const std::string& max, const std::string& n,
                const std::string& cpu, const std::string& first,
                const std::string& moved, const std::string& memory,
                const std::string& ratios) {
  return absl::StrFormat(
      "%-25s %5s %9s  %-13s %9s %9s %9s %4s %9s %9s %6s %6s  %s\n", name, world,
      size, peer, median, min, max, n, cpu, first, moved, memory, ratios);
}

std::string RatioOf(const std::optional<int64_t>& part, int64_t whole) {
  if (!part.has_value() || whole <= 0) return "-";
  return absl::StrFormat("%.2f", static_cast<double>(*part) / whole);
}

// What peers are compared by; 0: not known.
double TimeOf(const BenchResult& result) {
  return result.compares_cpu ? result.cpu_seconds.value_or(0)
                             : result.steady.median;
}

std::string Ratios(absl::Span<const BenchResult> results, size_t own) {
  std::string text;
  if (TimeOf(results[own]) <= 0) return text;
  for (size_t i = own + 1; i < results.size(); ++i) {
    if (TimeOf(results[i]) <= 0) continue;
    absl::StrAppendFormat(&text, "%s%.2fx %s",
                          !text.empty()               ? ", "
                          : results[own].compares_cpu ? "cpu "
                                                      : "",
                          TimeOf(results[own]) / TimeOf(results[i]),
                          results[i].peer);
  }
  return text;
}

std::string Remarks(absl::Span<const BenchResult> results, size_t own) {
  const std::string ratios = Ratios(results, own);
  if (results[own].way.empty()) return ratios;
  return absl::StrCat(ratios, ratios.empty() ? "" : " ", "(", results[own].way,
                      ")");
}

}  // namespace

std::string JsonLine(const BenchResult& result) {
  // Names are ours and need no escapes.
  std::string more;
  if (result.cpu_seconds.has_value()) {
    absl::StrAppendFormat(&more, ",\"cpu_seconds_median\":%.9g",
                          *result.cpu_seconds);
  }
  if (!result.way.empty()) {
    absl::StrAppend(&more, ",\"way\":\"", result.way, "\"");
  }
  if (result.bytes_moved.has_value()) {
    absl::StrAppend(&more, ",\"bytes_moved\":", *result.bytes_moved,
                    ",\"lower_bound_bytes\":", result.lower_bound_bytes);
  }
  if (result.extra_bytes.has_value()) {
    absl::StrAppend(
        &more, ",\"extra_bytes\":", *result.extra_bytes,
        ",\"extra_bytes_of_one_rank\":", result.extra_bytes_of_one_rank);
  }
  return absl::StrFormat(
      "{\"case\":\"%s\",\"peer\":\"%s\",\"world\":%d,\"bytes\":%d,"
      "\"seconds_median\":%.9g,\"seconds_min\":%.9g,\"seconds_max\":%.9g,"
      "\"n\":%d,\"seconds_first\":%.9g%s}\n",
      result.case_name, result.peer, result.world, result.bytes,
      result.steady.median, result.steady.min, result.steady.max,
      result.steady.n, result.first_call, more);
}

std::string TableTitle() {
  return Row("case", "world", "bytes", "peer", "median", "min", "max", "n",
             "cpu", "1st call", "moved", "memory", "median as a multiple of");
}

std::string TableRows(absl::Span<const BenchResult> results) {
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    const BenchResult& r = results[i];
    text += Row(r.case_name, absl::StrCat(r.world), FormatSize(r.bytes), r.peer,
                FormatTime(r.steady.median), FormatTime(r.steady.min),
                FormatTime(r.steady.max), absl::StrCat(r.steady.n),
                r.cpu_seconds.has_value() ? FormatTime(*r.cpu_seconds) : "-",
                FormatTime(r.first_call),
                RatioOf(r.bytes_moved, r.lower_bound_bytes),
                RatioOf(r.extra_bytes, r.bytes), Remarks(results, i));
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
