#include "sherd/tools/examples/quickstart/quickstart_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/units.h"

namespace sherd {
namespace {

using Json = nlohmann::json;

// The layout of several tensors in one row.
constexpr char kVarious[] = "various";

// Values of a kind that is not expected count as absent.
std::string GetText(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

template <typename T>
T GetNumber(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_number() ? it->get<T>() : T{};
}

Json ToJson(const TensorResult& tensor) {
  return {{"name", tensor.name},
          {"type", tensor.type},
          {"bytes", tensor.bytes},
          {"scattered", tensor.scattered},
          {"saved", tensor.saved},
          {"loaded", tensor.loaded},
          {"moved_bytes", tensor.moved_bytes},
          {"least_bytes", tensor.least_bytes},
          {"seconds", tensor.seconds}};
}

TensorResult TensorFromJson(const Json& json) {
  return {.name = GetText(json, "name"),
          .type = GetText(json, "type"),
          .bytes = GetNumber<int64_t>(json, "bytes"),
          .scattered = GetText(json, "scattered"),
          .saved = GetText(json, "saved"),
          .loaded = GetText(json, "loaded"),
          .moved_bytes = GetNumber<int64_t>(json, "moved_bytes"),
          .least_bytes = GetNumber<int64_t>(json, "least_bytes"),
          .seconds = GetNumber<double>(json, "seconds")};
}

std::string Seconds(double seconds) {
  return absl::StrFormat("%.*f", seconds < 1 ? 4 : 2, seconds);
}

std::string Rate(int64_t bytes, double seconds) {
  if (bytes <= 0 || seconds <= 0) return "-";
  return absl::StrFormat("%.3f", static_cast<double>(bytes) / seconds / 1e9);
}

std::string LayoutsOf(const TensorResult& tensor) {
  std::vector<std::string> layouts;
  for (const std::string* layout :
       {&tensor.scattered, &tensor.saved, &tensor.loaded}) {
    if (!layout->empty() && *layout != kVarious) layouts.push_back(*layout);
  }
  return absl::StrJoin(layouts, " → ");
}

// The last columns of a row: bytes moved / lower bound, ratio, seconds, GB/s.
std::vector<std::string> Figures(const TensorResult& tensor) {
  if (tensor.scattered.empty()) return {"-", "-", "-", "-"};
  const std::string ratio =
      tensor.least_bytes == 0
          ? "-"
          : absl::StrFormat("%.2f",
                            static_cast<double>(tensor.moved_bytes) /
                                static_cast<double>(tensor.least_bytes));
  return {absl::StrCat(FormatBytes(tensor.moved_bytes), " / ",
                       FormatBytes(tensor.least_bytes)),
          ratio, Seconds(tensor.seconds), Rate(tensor.bytes, tensor.seconds)};
}

void AddRow(TextTable& table, std::string name, std::string type,
            const TensorResult& tensor) {
  std::vector<std::string> row = {std::move(name), std::move(type),
                                  FormatBytes(tensor.bytes), LayoutsOf(tensor)};
  for (std::string& figure : Figures(tensor)) row.push_back(std::move(figure));
  table.AddRow(std::move(row));
}

TensorResult Sum(const std::vector<TensorResult>& tensors,
                 const std::vector<size_t>& chosen) {
  TensorResult sum;
  for (size_t t : chosen) {
    sum.bytes += tensors[t].bytes;
    sum.moved_bytes += tensors[t].moved_bytes;
    sum.least_bytes += tensors[t].least_bytes;
    sum.seconds += tensors[t].seconds;
    if (!tensors[t].scattered.empty()) sum.scattered = kVarious;
  }
  return sum;
}

}  // namespace

std::string ReportToJson(const QuickstartReport& report) {
  Json json = {{"model", report.model},
               {"save_ranks", report.save_ranks},
               {"load_ranks", report.load_ranks},
               {"tensors", Json::array()},
               {"phases", Json::array()}};
  for (const TensorResult& tensor : report.tensors) {
    json["tensors"].push_back(ToJson(tensor));
  }
  for (const PhaseResult& phase : report.phases) {
    json["phases"].push_back({{"name", phase.name},
                              {"bytes", phase.bytes},
                              {"seconds", phase.seconds}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<QuickstartReport> ParseReport(absl::string_view text,
                                             absl::string_view what) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr,
                                /*allow_exceptions=*/false);
  const auto is_list = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_array() &&
           std::all_of(it->begin(), it->end(),
                       [](const Json& item) { return item.is_object(); });
  };
  if (!json.is_object() || !is_list("tensors") || !is_list("phases")) {
    return absl::DataLossError(
        absl::StrCat(what, ": not a report of sherd quickstart"));
  }
  QuickstartReport report = {.model = GetText(json, "model"),
                             .save_ranks = GetNumber<int>(json, "save_ranks"),
                             .load_ranks = GetNumber<int>(json, "load_ranks")};
  for (const Json& tensor : json["tensors"]) {
    report.tensors.push_back(TensorFromJson(tensor));
  }
  for (const Json& phase : json["phases"]) {
    report.phases.push_back({GetText(phase, "name"),
                             GetNumber<int64_t>(phase, "bytes"),
                             GetNumber<double>(phase, "seconds")});
  }
  return report;
}

std::string FormatReport(const QuickstartReport& report, size_t max_tensors) {
  constexpr TextTable::Align kRight = TextTable::Align::kRight;
  const std::vector<TensorResult>& tensors = report.tensors;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<size_t> shown = order, others;
  if (tensors.size() > max_tensors) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return tensors[a].bytes > tensors[b].bytes;
    });
    shown.assign(order.begin(), order.begin() + max_tensors);
    others.assign(order.begin() + max_tensors, order.end());
    std::sort(shown.begin(), shown.end());
  }
  TextTable table({{"tensor"},
                   {"type"},
                   {"size", kRight},
                   {"layout"},
                   {"moved / lower bound", kRight},
                   {"ratio", kRight},
                   {"seconds", kRight},
                   {"GB/s", kRight}});
  for (size_t t : shown) {
    AddRow(table, tensors[t].name, tensors[t].type, tensors[t]);
  }
  if (!others.empty()) {
    AddRow(table, absl::StrCat("… ", others.size(), " smaller tensors"), "",
           Sum(tensors, others));
  }
  AddRow(table, absl::StrCat("all ", tensors.size(), " tensors"), "",
         Sum(tensors, order));
  TextTable phases(
      {{"step"}, {"size", kRight}, {"seconds", kRight}, {"GB/s", kRight}});
  for (const PhaseResult& phase : report.phases) {
    phases.AddRow({phase.name, FormatBytes(phase.bytes), Seconds(phase.seconds),
                   Rate(phase.bytes, phase.seconds)});
  }
  return absl::StrCat(table.ToString(), "\n", phases.ToString());
}

}  // namespace sherd
