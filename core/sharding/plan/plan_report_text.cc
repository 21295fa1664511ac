// PlanReport as text and as JSON.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/units.h"
#include "sherd/core/sharding/plan/plan_report.h"

namespace sherd {
namespace {

using Align = TextTable::Align;

// Ranks that are listed one by one, and rows of the heat map, at most.
constexpr size_t kMaxListed = 16;
constexpr size_t kMaxRows = 8;

std::string FormatRange(const PlanReport::RankRange& range) {
  if (range.first == range.last) return absl::StrCat(range.first);
  return absl::StrCat(range.first, "-", range.last);
}

std::string Plural(int64_t count, absl::string_view noun) {
  return absl::StrCat(FormatCount(count), " ", noun, count == 1 ? "" : "s");
}

std::string Totals(const PlanReport& report) {
  TextTable table({{""}, {"", Align::kRight}, {""}});
  table.AddRow(
      {"moved", FormatBytes(report.bytes_moved()),
       absl::StrFormat("%.2f times the lower bound, %s", report.ratio(),
                       FormatBytes(report.lower_bound_bytes()))});
  if (report.bytes_between_hosts > 0) {
    table.AddRow(
        {"", FormatBytes(report.bytes_between_hosts), "of it between hosts"});
  }
  table.AddRow(
      {"stays", FormatBytes(report.bytes_local()),
       absl::StrCat("on its rank; ", FormatBytes(report.bytes_in_place()),
                    " of it in boxes that stay the same")});
  if (report.direct) {
    table.AddRow({"messages", "0",
                  absl::StrCat("data is copied once, straight from shard to "
                               "shard, between ",
                               Plural(report.pairs, "pair"), " of ranks")});
  } else {
    table.AddRow(
        {"messages", FormatCount(report.messages),
         absl::StrCat("between ", Plural(report.pairs, "pair"), " of ranks")});
    table.AddRow({"passes", FormatCount(report.rounds),
                  report.exact_rounds
                      ? "rounds of messages"
                      : "rounds of messages at least: too many to be cut"});
  }
  table.AddRow({"peak memory", FormatBytes(report.peak_extra_bytes()),
                absl::StrCat("beside the source, on the rank that needs most; ",
                             FormatBytes(report.max_staging_bytes),
                             " of staging at most")});
  std::string text = table.ToString();
  // Without the empty title line.
  return text.substr(text.find('\n') + 1);
}

std::vector<std::string> Cells(const RankReport& rank) {
  return {FormatBytes(rank.bytes_sent),        FormatBytes(rank.bytes_received),
          FormatBytes(rank.bytes_local),       FormatCount(rank.sends),
          FormatCount(rank.receives),          FormatCount(rank.rounds),
          FormatBytes(rank.result_bytes),      FormatBytes(rank.staging_bytes),
          FormatBytes(rank.peak_extra_bytes())};
}

// Rank by rank, or for each column the least, the middle and the most of all.
std::string RankTable(const PlanReport& report) {
  TextTable table({{"rank", Align::kRight},
                   {"sends", Align::kRight},
                   {"receives", Align::kRight},
                   {"keeps", Align::kRight},
                   {"out to", Align::kRight},
                   {"in from", Align::kRight},
                   {"passes", Align::kRight},
                   {"result", Align::kRight},
                   {"staging", Align::kRight},
                   {"peak", Align::kRight}});
  const auto add = [&](std::string name, const RankReport& rank) {
    std::vector<std::string> cells = Cells(rank);
    cells.insert(cells.begin(), std::move(name));
    table.AddRow(std::move(cells));
  };
  if (report.ranks.size() <= kMaxListed) {
    for (size_t i = 0; i < report.ranks.size(); ++i) {
      add(absl::StrCat(i), report.ranks[i]);
    }
    return table.ToString();
  }
  const auto at = [&](size_t place) {
    RankReport picked;
    for (int64_t RankReport::*member :
         {&RankReport::bytes_sent, &RankReport::bytes_received,
          &RankReport::bytes_local, &RankReport::sends, &RankReport::receives,
          &RankReport::rounds, &RankReport::result_bytes,
          &RankReport::staging_bytes}) {
      std::vector<int64_t> values;
      for (const RankReport& rank : report.ranks) {
        values.push_back(rank.*member);
      }
      std::nth_element(values.begin(), values.begin() + place, values.end());
      picked.*member = values[place];
    }
    return picked;
  };
  const auto add_place = [&](const char* name, size_t place) {
    std::vector<std::string> cells = Cells(at(place));
    // Result and staging need not be those of one rank.
    std::vector<int64_t> peaks;
    for (const RankReport& rank : report.ranks) {
      peaks.push_back(rank.peak_extra_bytes());
    }
    std::nth_element(peaks.begin(), peaks.begin() + place, peaks.end());
    cells.back() = FormatBytes(peaks[place]);
    cells.insert(cells.begin(), name);
    table.AddRow(std::move(cells));
  };
  add_place("least", 0);
  add_place("median", report.ranks.size() / 2);
  add_place("most", report.ranks.size() - 1);
  return table.ToString();
}

std::string HeatTable(const PlanReport& report) {
  const size_t n = report.heat_ranges.size();
  const size_t rows = std::min(n, kMaxRows);
  std::vector<size_t> row_of(n);
  std::vector<PlanReport::RankRange> ranges(rows);
  for (size_t i = 0; i < rows; ++i) {
    const size_t begin = i * n / rows;
    const size_t end = (i + 1) * n / rows;
    ranges[i] = {report.heat_ranges[begin].first,
                 report.heat_ranges[end - 1].last};
    std::fill(row_of.begin() + begin, row_of.begin() + end, i);
  }
  std::vector<int64_t> sums(rows * rows);
  for (size_t r = 0; r < n; ++r) {
    for (size_t c = 0; c < n; ++c) {
      sums[row_of[r] * rows + row_of[c]] += report.heat_map[r * n + c];
    }
  }
  std::vector<TextTable::Column> columns = {{"from \\ to", Align::kRight}};
  for (const auto& range : ranges) {
    columns.push_back({FormatRange(range), Align::kRight});
  }
  TextTable table(std::move(columns));
  for (size_t r = 0; r < rows; ++r) {
    std::vector<std::string> cells = {FormatRange(ranges[r])};
    for (size_t c = 0; c < rows; ++c) {
      const int64_t bytes = sums[r * rows + c];
      cells.push_back(bytes == 0 ? "·" : FormatBytes(bytes));
    }
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

}  // namespace

std::string PlanReport::ToText() const {
  return absl::StrCat(
      Plural(from_shards, "shard"), " to ", Plural(to_shards, "shard"), " on ",
      Plural(world_size(), "rank"), ", elements of ",
      Plural(static_cast<int64_t>(element_size), "byte"), "\n\n", Totals(*this),
      "\n", RankTable(*this), "\nbytes from rank to rank\n", HeatTable(*this));
}

std::string PlanReport::ToJson() const {
  nlohmann::ordered_json json = {{"world_size", world_size()},
                                 {"element_size", element_size},
                                 {"from_shards", from_shards},
                                 {"to_shards", to_shards},
                                 {"direct", direct},
                                 {"bytes_moved", bytes_moved()},
                                 {"lower_bound_bytes", lower_bound_bytes()},
                                 {"ratio", ratio()},
                                 {"bytes_between_hosts", bytes_between_hosts},
                                 {"bytes_local", bytes_local()},
                                 {"bytes_in_place", bytes_in_place()},
                                 {"pairs", pairs},
                                 {"messages", messages},
                                 {"rounds", rounds},
                                 {"exact_rounds", exact_rounds},
                                 {"max_staging_bytes", max_staging_bytes},
                                 {"peak_extra_bytes", peak_extra_bytes()}};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankReport& rank = ranks[i];
    list.push_back({{"rank", i},
                    {"bytes_sent", rank.bytes_sent},
                    {"bytes_received", rank.bytes_received},
                    {"bytes_local", rank.bytes_local},
                    {"bytes_in_place", rank.bytes_in_place},
                    {"lower_bound_bytes", rank.lower_bound_bytes},
                    {"sends", rank.sends},
                    {"receives", rank.receives},
                    {"rounds", rank.rounds},
                    {"result_bytes", rank.result_bytes},
                    {"staging_bytes", rank.staging_bytes},
                    {"peak_extra_bytes", rank.peak_extra_bytes()}});
  }
  json["ranks"] = std::move(list);
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const size_t n = heat_ranges.size();
  for (size_t r = 0; r < n; ++r) {
    ranges.push_back({heat_ranges[r].first, heat_ranges[r].last});
    rows.push_back(std::vector<int64_t>(heat_map.begin() + r * n,
                                        heat_map.begin() + (r + 1) * n));
  }
  json["heat_map"] = {{"ranks", std::move(ranges)}, {"bytes", std::move(rows)}};
  return json.dump();
}

}  // namespace sherd
