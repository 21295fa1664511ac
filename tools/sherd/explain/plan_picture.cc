#include "sherd/tools/sherd/explain/plan_picture.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/svg.h"
#include "sherd/core/base/units.h"

namespace sherd {
namespace {

constexpr char kMuted[] = "#6b7280";
constexpr char kRule[] = "#e5e7eb";
constexpr char kEmpty[] = "#f9fafb";
constexpr double kMargin = 32;
constexpr double kMapLeft = 120;
constexpr double kMapTop = 132;
constexpr double kMapSize = 576;
constexpr double kSideLeft = kMapLeft + kMapSize + 40;
constexpr double kWidth = kSideLeft + 240;
constexpr double kHeight = kMapTop + kMapSize + 40;

// From pale yellow over green to dark blue, even in lightness and for
// colour-blind people. `share` is in [0, 1].
std::string HeatColour(double share) {
  struct Stop {
    double red, green, blue;
  };
  constexpr Stop kStops[] = {{255, 247, 188},
                             {161, 218, 180},
                             {65, 182, 196},
                             {34, 94, 168},
                             {8, 29, 88}};
  const double place = std::clamp(share, 0.0, 1.0) * 4;
  const int stop = std::min(static_cast<int>(place), 3);
  const double part = place - stop;
  const auto mix = [&](double Stop::*colour) {
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    return static_cast<int>(std::lround(kStops[stop].*colour * (1 - part) +
                                        kStops[stop + 1].*colour * part));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(&Stop::red), mix(&Stop::green),
                         mix(&Stop::blue));
}

std::string RangeName(const PlanReport::RankRange& range) {
  if (range.first == range.last) return absl::StrCat("rank ", range.first);
  return absl::StrCat("ranks ", range.first, "-", range.last);
}

int64_t LargestOf(const PlanReport& report) {
  int64_t largest = 0;
  for (const int64_t bytes : report.heat_map) {
    largest = std::max(largest, bytes);
  }
  return largest;
}

void DrawCells(Svg& svg, const PlanReport& report) {
  const size_t n = report.heat_ranges.size();
  const double cell = kMapSize / static_cast<double>(n);
  const double gap = cell > 6 ? 1 : 0;
  const double largest = static_cast<double>(LargestOf(report));
  svg.Rect(kMapLeft, kMapTop, kMapSize, kMapSize,
           {.fill = kEmpty, .stroke = kRule});
  for (size_t r = 0; r < n; ++r) {
    for (size_t c = 0; c < n; ++c) {
      const int64_t bytes = report.heat_map[r * n + c];
      if (bytes == 0) continue;
      const double share = static_cast<double>(bytes) / largest;
      const double x = kMapLeft + cell * static_cast<double>(c);
      const double y = kMapTop + cell * static_cast<double>(r);
      svg.Rect(x, y, cell - gap, cell - gap, {.fill = HeatColour(share)},
               absl::StrCat(RangeName(report.heat_ranges[r]), " to ",
                            RangeName(report.heat_ranges[c]), ": ",
                            FormatBytes(bytes)));
      if (n > 8) continue;
      svg.Text(x + cell / 2, y + cell / 2 + 4, FormatBytes(bytes),
               {.size = 12,
                .fill = share > 0.5 ? "#ffffff" : "#1f2937",
                .anchor = "middle"});
    }
  }
}

void DrawAxes(Svg& svg, const PlanReport& report) {
  const size_t n = report.heat_ranges.size();
  const double cell = kMapSize / static_cast<double>(n);
  // Ranges need more room than numbers.
  const bool ranges = n < report.ranks.size();
  const double room = ranges ? 64 : 24;
  const size_t step = static_cast<size_t>(std::ceil(room / cell));
  const size_t row_step = static_cast<size_t>(std::ceil(16 / cell));
  const auto name = [&](size_t i) {
    const PlanReport::RankRange& range = report.heat_ranges[i];
    if (range.first == range.last) return absl::StrCat(range.first);
    return absl::StrCat(range.first, "-", range.last);
  };
  for (size_t i = 0; i < n; ++i) {
    const double middle = cell * (static_cast<double>(i) + 0.5);
    if (i % step == 0) {
      svg.Text(kMapLeft + middle, kMapTop - 8, name(i),
               {.size = 11, .anchor = "middle"});
    }
    if (i % row_step == 0) {
      svg.Text(kMapLeft - 8, kMapTop + middle + 4, name(i),
               {.size = 11, .anchor = "end"});
    }
  }
  svg.Text(kMapLeft + kMapSize / 2, kMapTop - 28,
           ranges ? "to ranks" : "to rank",
           {.size = 12, .bold = true, .anchor = "middle"});
  svg.Text(kMapLeft - 8, kMapTop - 28, ranges ? "from ranks" : "from rank",
           {.size = 12, .bold = true, .anchor = "end"});
}

double DrawLegend(Svg& svg, const PlanReport& report, double y) {
  constexpr int kSteps = 40;
  constexpr double kBar = 200;
  svg.Text(kSideLeft, y, "bytes from rank to rank", {.size = 12, .bold = true});
  for (int i = 0; i < kSteps; ++i) {
    svg.Rect(kSideLeft + kBar * i / kSteps, y + 10, kBar / kSteps, 14,
             {.fill = HeatColour((i + 0.5) / kSteps)});
  }
  svg.Text(kSideLeft, y + 40, "0", {.size = 11, .fill = kMuted});
  svg.Text(kSideLeft + kBar, y + 40, FormatBytes(LargestOf(report)),
           {.size = 11, .fill = kMuted, .anchor = "end"});
  return y + 72;
}

void DrawTotals(Svg& svg, const PlanReport& report, double y) {
  struct Line {
    const char* name;
    std::string value;
  };
  std::vector<Line> lines = {
      {"moved", FormatBytes(report.bytes_moved())},
      {"lower bound", FormatBytes(report.lower_bound_bytes())},
      {"moved / lower bound", absl::StrFormat("%.2f", report.ratio())},
      {"stays on its rank", FormatBytes(report.bytes_local())},
      {"of it in place", FormatBytes(report.bytes_in_place())},
      {"pairs of ranks", FormatCount(report.pairs)},
      {"messages", FormatCount(report.messages)},
      {"passes", FormatCount(report.rounds)},
      {"peak extra memory", FormatBytes(report.peak_extra_bytes())}};
  if (report.bytes_between_hosts > 0) {
    lines.push_back({"between hosts", FormatBytes(report.bytes_between_hosts)});
  }
  for (const Line& line : lines) {
    svg.Text(kSideLeft, y, line.name, {.size = 12, .fill = kMuted});
    svg.Text(kSideLeft + 200, y, line.value, {.size = 12, .anchor = "end"});
    y += 22;
  }
}

}  // namespace

std::string PlanToSvg(const PlanReport& report) {
  constexpr char kTitle[] = "Transfers between ranks";
  Svg svg;
  svg.Text(kMargin, 44, kTitle, {.size = 20, .bold = true});
  svg.Text(kMargin, 66,
           absl::StrCat(FormatCount(report.from_shards), " shards to ",
                        FormatCount(report.to_shards), " shards on ",
                        FormatCount(report.world_size()),
                        " ranks, elements of ", report.element_size, " bytes"),
           {.size = 12, .fill = kMuted});
  DrawCells(svg, report);
  DrawAxes(svg, report);
  DrawTotals(svg, report, DrawLegend(svg, report, kMapTop + 10));
  return svg.ToString(kWidth, kHeight, kTitle);
}

}  // namespace sherd
