#include "sherd/tools/sherd/checkpoint/layout_picture.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/svg.h"
#include "sherd/core/base/units.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

constexpr char kMuted[] = "#6b7280";
constexpr char kFaint[] = "#9ca3af";
constexpr char kRule[] = "#e5e7eb";
constexpr double kMargin = 32;
constexpr double kPanelWidth = 188;
constexpr double kPanelHeight = 92;

int64_t BytesOf(const HeldTensor& tensor, const BoxView& box) {
  return Volume(box) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

std::vector<int64_t> BytesPerRank(const HeldStage& stage) {
  std::vector<int64_t> bytes(stage.ranks, 0);
  for (const HeldTensor& tensor : stage.tensors) {
    for (const PlacedBox& box : tensor.boxes) {
      bytes[box.rank] += BytesOf(tensor, box);
    }
  }
  return bytes;
}

// The part of a tensor that a plane can show.
struct Plane {
  // Dimensions drawn downwards and to the right; -1: none.
  int down = -1;
  int right = -1;
  // Dimensions that are cut but not drawn: the picture is their slice at 0.
  std::vector<int> hidden;
};

Plane PlaneOf(const HeldTensor& tensor) {
  const int rank = static_cast<int>(tensor.shape.size());
  std::vector<int> drawn;
  Plane plane;
  for (int d = 0; d < rank; ++d) {
    const bool cut = std::any_of(
        tensor.boxes.begin(), tensor.boxes.end(), [&](const PlacedBox& box) {
          return !IsEmpty(box) && box.sizes[d] != tensor.shape[d];
        });
    if (!cut) continue;
    if (drawn.size() < 2) {
      drawn.push_back(d);
    } else {
      plane.hidden.push_back(d);
    }
  }
  // Dimensions that are not cut fill up, the last ones first.
  for (int d = rank - 1; d >= 0 && drawn.size() < 2; --d) {
    const bool taken = std::count(drawn.begin(), drawn.end(), d) > 0;
    if (!taken && tensor.shape[d] > 1) drawn.push_back(d);
  }
  std::sort(drawn.begin(), drawn.end());
  if (!drawn.empty()) plane.right = drawn.back();
  if (drawn.size() == 2) plane.down = drawn.front();
  return plane;
}

struct Area {
  double x, y, width, height;
};

// A size that hints at the shape without becoming a thread.
Area FrameOf(const HeldTensor& tensor, const Plane& plane, double x, double y) {
  if (plane.right < 0) return {x + kPanelWidth / 2 - 17, y + 29, 34, 34};
  if (plane.down < 0) return {x, y + 32, kPanelWidth, 28};
  const double ratio = static_cast<double>(tensor.shape[plane.down]) /
                       static_cast<double>(tensor.shape[plane.right]);
  if (ratio > 1) {
    const double width = std::max(96.0, kPanelHeight / ratio * 1.2);
    return {x + (kPanelWidth - width) / 2, y, width, kPanelHeight};
  }
  const double height =
      std::max(46.0, kPanelHeight * std::min(1.0, ratio * 1.3));
  return {x, y + (kPanelHeight - height) / 2, kPanelWidth, height};
}

std::string BoxTooltip(const HeldTensor& tensor, const PlacedBox& box) {
  return absl::StrCat("rank ", box.rank, ": offsets ", FormatDims(box.offsets),
                      ", sizes ", FormatDims(box.sizes), ", ",
                      FormatBytes(BytesOf(tensor, box)));
}

void DrawBox(Svg& svg, const HeldTensor& tensor, const PlacedBox& box,
             const Plane& plane, const Area& frame) {
  const auto part = [&](int dim, double length) {
    if (dim < 0) return std::pair(0.0, length);
    const double scale = length / static_cast<double>(tensor.shape[dim]);
    return std::pair(static_cast<double>(box.offsets[dim]) * scale,
                     static_cast<double>(box.sizes[dim]) * scale);
  };
  const auto [left, width] = part(plane.right, frame.width);
  const auto [top, height] = part(plane.down, frame.height);
  svg.Rect(frame.x + left, frame.y + top, width, height,
           {.fill = RankColour(box.rank),
            .stroke = "#ffffff",
            .stroke_width = 1.5,
            .radius = 2},
           BoxTooltip(tensor, box));
  const bool wide = width > 44;
  if (height < 12 || width < 9) return;
  svg.Text(frame.x + left + width / 2, frame.y + top + height / 2 + 4,
           absl::StrCat(wide ? "rank " : "", box.rank),
           {.size = 11, .fill = "#ffffff", .bold = true, .anchor = "middle"});
}

void DrawPanel(Svg& svg, const HeldTensor& tensor, int ranks, double x,
               double y) {
  const Plane plane = PlaneOf(tensor);
  const Area frame = FrameOf(tensor, plane, x, y);
  if (Volume(tensor.shape) == 0) {
    svg.Rect(x, y + 32, kPanelWidth, 28,
             {.stroke = kFaint, .radius = 3, .dashed = true});
    svg.Text(x + kPanelWidth / 2, y + 50, "no elements",
             {.size = 11, .fill = kMuted, .anchor = "middle"});
    return;
  }
  std::set<int> holders;
  for (const PlacedBox& box : tensor.boxes) {
    if (IsEmpty(box)) continue;
    holders.insert(box.rank);
    const bool shown = std::all_of(plane.hidden.begin(), plane.hidden.end(),
                                   [&](int d) { return box.offsets[d] == 0; });
    if (shown) DrawBox(svg, tensor, box, plane, frame);
  }
  std::vector<std::string> notes;
  std::vector<int> idle;
  for (int r = 0; r < ranks && ranks <= 64; ++r) {
    if (!holders.contains(r)) idle.push_back(r);
  }
  if (!idle.empty() && holders.size() > 1) {
    notes.push_back(absl::StrCat(
        idle.size() == 1 ? "rank " : "ranks ", absl::StrJoin(idle, ", "),
        idle.size() == 1 ? " holds" : " hold", " nothing"));
  }
  if (!plane.hidden.empty()) {
    notes.push_back(absl::StrCat("slice at 0 of dimension ",
                                 absl::StrJoin(plane.hidden, ", ")));
  }
  svg.Text(x + kPanelWidth / 2, frame.y + frame.height + 14,
           absl::StrJoin(notes, "; "),
           {.size = 10, .fill = kFaint, .anchor = "middle"});
}

std::string ShapeText(const HeldTensor& tensor) {
  return absl::StrCat(absl::string_view(Name(tensor.dtype)), " ",
                      FormatDims(tensor.shape), " · ",
                      FormatBytes(BytesOf(tensor, WholeBox(tensor.shape))));
}

void DrawHeading(Svg& svg, const std::string& title,
                 const std::string& subtitle) {
  svg.Text(kMargin, 46, title, {.size = 22, .fill = "#111827", .bold = true});
  svg.Text(kMargin, 68, subtitle, {.size = 13, .fill = kMuted});
}

void DrawRule(Svg& svg, double y, double width) {
  svg.Rect(kMargin, y, width - 2 * kMargin, 1, {.fill = kRule});
}

// The total of each rank, as bars of one scale. Returns the height.
double DrawBars(Svg& svg, const HeldStage& stage, int64_t scale, double x,
                double y, double width) {
  constexpr int kMaxBars = 64;
  const std::vector<int64_t> bytes = BytesPerRank(stage);
  const int shown = std::min(stage.ranks, kMaxBars);
  for (int r = 0; r < shown; ++r) {
    const double top = y + 20 * r;
    const double room = width - 104;
    const double length = scale == 0 ? 0
                                     : room * static_cast<double>(bytes[r]) /
                                           static_cast<double>(scale);
    svg.Text(x, top + 11, absl::StrCat("rank ", r),
             {.size = 11, .fill = kMuted});
    svg.Rect(x + 48, top + 1, std::max(length, 1.0), 12,
             {.fill = RankColour(r), .radius = 2});
    svg.Text(x + 48 + std::max(length, 1.0) + 6, top + 11,
             FormatBytes(bytes[r]), {.size = 11});
  }
  if (shown < stage.ranks) {
    svg.Text(x, y + 20 * shown + 11,
             absl::StrCat("and ", stage.ranks - shown, " more"),
             {.size = 11, .fill = kMuted});
  }
  return 20.0 * (shown + (shown < stage.ranks ? 1 : 0));
}

using Matrix = std::vector<std::vector<int64_t>>;

Matrix TotalMoved(const HeldStage& from, const HeldStage& to) {
  Matrix total(from.ranks, std::vector<int64_t>(to.ranks, 0));
  for (size_t t = 0; t < from.tensors.size(); ++t) {
    const Matrix moved =
        MovedBytes(from.tensors[t], to.tensors[t], from.ranks, to.ranks);
    for (int r = 0; r < from.ranks; ++r) {
      for (int s = 0; s < to.ranks; ++s) total[r][s] += moved[r][s];
    }
  }
  return total;
}

int64_t OffDiagonal(const Matrix& moved) {
  int64_t bytes = 0;
  for (size_t r = 0; r < moved.size(); ++r) {
    for (size_t s = 0; s < moved[r].size(); ++s) {
      if (r != s) bytes += moved[r][s];
    }
  }
  return bytes;
}

// How much each rank sends to each other: rows are senders, columns receivers.
void DrawHeatMap(Svg& svg, const Matrix& moved, double x, double y) {
  constexpr double kCellWidth = 58;
  constexpr double kCellHeight = 22;
  int64_t most = 1;
  for (const auto& row : moved) {
    most = std::max(most, *std::max_element(row.begin(), row.end()));
  }
  for (size_t s = 0; s < moved[0].size(); ++s) {
    svg.Text(x + 48 + kCellWidth * (static_cast<double>(s) + 0.5), y + 9,
             absl::StrCat("to ", s),
             {.size = 10, .fill = kMuted, .anchor = "middle"});
  }
  for (size_t r = 0; r < moved.size(); ++r) {
    const double top = y + 14 + kCellHeight * static_cast<double>(r);
    svg.Text(x, top + 15, absl::StrCat("from ", r),
             {.size = 10, .fill = kMuted});
    for (size_t s = 0; s < moved[r].size(); ++s) {
      const double left = x + 48 + kCellWidth * static_cast<double>(s);
      const double share =
          static_cast<double>(moved[r][s]) / static_cast<double>(most);
      svg.Rect(left, top, kCellWidth - 2, kCellHeight - 2,
               {.fill = "#f3f4f6", .radius = 2});
      svg.Rect(left, top, kCellWidth - 2, kCellHeight - 2,
               {.fill = r == s ? "#9ca3af" : "#ee7733",
                .radius = 2,
                .opacity = 0.12 + 0.83 * share},
               absl::StrCat("rank ", r, " to rank ", s, ": ",
                            FormatCount(moved[r][s]), " bytes"));
      svg.Text(left + (kCellWidth - 2) / 2, top + 14,
               moved[r][s] == 0 ? "–" : FormatBytes(moved[r][s]),
               {.size = 10, .anchor = "middle"});
    }
  }
}

constexpr double kLabelWidth = 250;
constexpr double kGap = 108;

double ColumnX(size_t stage) {
  return kMargin + kLabelWidth +
         static_cast<double>(stage) * (kPanelWidth + kGap);
}

void DrawRow(Svg& svg, const LayoutPicture& picture, const PictureRow& row,
             double y) {
  const HeldTensor& first = picture.stages[0].tensors[row.tensor];
  svg.Text(kMargin, y + 34, row.kind, {.size = 12.5, .bold = true});
  svg.Text(kMargin, y + 53, Shorten(first.name, 28),
           {.size = 11.5, .fill = "#374151", .monospace = true});
  svg.Text(kMargin, y + 70, ShapeText(first), {.size = 11, .fill = kMuted});
  for (size_t s = 0; s < picture.stages.size(); ++s) {
    const HeldStage& stage = picture.stages[s];
    const HeldTensor& tensor = stage.tensors[row.tensor];
    DrawPanel(svg, tensor, stage.ranks, ColumnX(s), y + 6);
    if (s == 0) continue;
    const HeldStage& before = picture.stages[s - 1];
    const int64_t moved = OffDiagonal(MovedBytes(
        before.tensors[row.tensor], tensor, before.ranks, stage.ranks));
    const double x = ColumnX(s) - kGap;
    svg.Arrow(x + 16, y + 52, kGap - 32, kFaint);
    svg.Text(x + kGap / 2, y + 44, FormatBytes(moved),
             {.size = 10.5, .fill = kMuted, .anchor = "middle"});
    svg.Text(x + kGap / 2, y + 68, "moved",
             {.size = 10, .fill = kFaint, .anchor = "middle"});
  }
}

int64_t LargestShare(const std::vector<HeldStage>& stages) {
  int64_t largest = 0;
  for (const HeldStage& stage : stages) {
    for (int64_t bytes : BytesPerRank(stage)) {
      largest = std::max(largest, bytes);
    }
  }
  return largest;
}

// Bars and heat maps below the rows. Returns the height.
double DrawTotals(Svg& svg, const LayoutPicture& picture, double y) {
  const int64_t scale = LargestShare(picture.stages);
  double bars = 0;
  svg.Text(kMargin, y + 14, "held by each rank", {.size = 14, .bold = true});
  svg.Text(kMargin, y + 33,
           absl::StrCat("all ", picture.stages[0].tensors.size(), " tensors"),
           {.size = 11, .fill = kMuted});
  for (size_t s = 0; s < picture.stages.size(); ++s) {
    bars = std::max(bars, DrawBars(svg, picture.stages[s], scale, ColumnX(s), y,
                                   kPanelWidth + 6));
  }
  const double top = y + bars + 34;
  if (picture.stages.size() < 2) return bars;
  DrawRule(svg, top - 18,
           ColumnX(picture.stages.size() - 1) + kPanelWidth + kMargin);
  svg.Text(kMargin, top + 16, "transfers between ranks",
           {.size = 14, .bold = true});
  svg.Text(kMargin, top + 35, "grey stays where it is",
           {.size = 11, .fill = kMuted});
  double maps = 0;
  for (size_t s = 1; s < picture.stages.size(); ++s) {
    const double x = s == 1 ? ColumnX(0) : ColumnX(0) + 400;
    svg.Text(x, top + 10,
             absl::StrCat(picture.stages[s - 1].label, " → ",
                          picture.stages[s].label),
             {.size = 11, .fill = "#374151", .bold = true});
    DrawHeatMap(svg, TotalMoved(picture.stages[s - 1], picture.stages[s]), x,
                top + 20);
    maps = std::max(maps, 36 + 22.0 * picture.stages[s - 1].ranks);
  }
  return bars + 34 + maps;
}

struct Card {
  HeldTensor tensor;
  int64_t count = 0;
};

// One card per kind, in the order of their first tensors.
std::vector<Card> CardsOf(const HeldStage& stage) {
  std::vector<Card> cards;
  std::map<std::string, size_t> known;
  for (const HeldTensor& tensor : stage.tensors) {
    std::string key = absl::StrCat(absl::string_view(Name(tensor.dtype)),
                                   FormatDims(tensor.shape));
    for (const PlacedBox& box : tensor.boxes) {
      absl::StrAppend(&key, ";", box.rank, FormatDims(box.offsets),
                      FormatDims(box.sizes));
    }
    const auto [position, is_new] = known.emplace(key, cards.size());
    if (is_new) cards.push_back({tensor});
    ++cards[position->second].count;
  }
  return cards;
}

void DrawCard(Svg& svg, const Card& card, int ranks, double x, double y) {
  svg.Text(x, y + 12, Shorten(card.tensor.name, 22),
           {.size = 11.5, .monospace = true});
  if (card.count > 1) {
    svg.Text(x + kPanelWidth, y + 12, absl::StrCat("×", card.count),
             {.size = 11.5, .bold = true, .anchor = "end"});
  }
  svg.Text(x, y + 28, Shorten(ShapeText(card.tensor), 36),
           {.size = 10.5, .fill = kMuted});
  DrawPanel(svg, card.tensor, ranks, x, y + 38);
}

}  // namespace

std::vector<std::vector<int64_t>> MovedBytes(const HeldTensor& from,
                                             const HeldTensor& to,
                                             int from_ranks, int to_ranks) {
  Matrix matrix(from_ranks, std::vector<int64_t>(to_ranks, 0));
  for (const PlacedBox& a : from.boxes) {
    for (const PlacedBox& b : to.boxes) {
      matrix[a.rank][b.rank] +=
          CommonVolume(a, b) * static_cast<int64_t>(SizeOf(from.dtype));
    }
  }
  return matrix;
}

std::string DrawTransitions(const LayoutPicture& picture) {
  Svg svg;
  const double width =
      ColumnX(picture.stages.size() - 1) + kPanelWidth + kMargin;
  DrawHeading(svg, picture.title, picture.subtitle);
  for (size_t s = 0; s < picture.stages.size(); ++s) {
    svg.Text(ColumnX(s) + kPanelWidth / 2, 106, picture.stages[s].label,
             {.size = 13, .bold = true, .anchor = "middle"});
  }
  double y = 118;
  for (const PictureRow& row : picture.rows) {
    DrawRule(svg, y, width);
    DrawRow(svg, picture, row, y + 8);
    y += 126;
  }
  DrawRule(svg, y, width);
  y += 18;
  y += DrawTotals(svg, picture, y);
  return svg.ToString(width, y + 24, picture.title);
}

std::string DrawStage(const std::string& title, const std::string& subtitle,
                      const HeldStage& stage) {
  constexpr size_t kColumns = 4;
  // A page that a browser still opens; the text output has all tensors.
  constexpr size_t kMaxCards = 400;
  Svg svg;
  const double width =
      2 * kMargin + kColumns * kPanelWidth + (kColumns - 1) * 34;
  const std::vector<Card> cards = CardsOf(stage);
  const size_t shown = std::min(cards.size(), kMaxCards);
  std::string below = subtitle;
  if (shown < cards.size()) {
    absl::StrAppend(&below, " · first ", shown, " of ", cards.size(),
                    " kinds of tensors");
  }
  DrawHeading(svg, title, below);
  double y = 92;
  DrawRule(svg, y, width);
  y += 16;
  y += DrawBars(svg, stage, LargestShare({stage}), kMargin, y,
                width - 2 * kMargin);
  y += 10;
  DrawRule(svg, y, width);
  y += 16;
  for (size_t i = 0; i < shown; ++i) {
    const double x =
        kMargin + static_cast<double>(i % kColumns) * (kPanelWidth + 34);
    DrawCard(svg, cards[i], stage.ranks, x, y);
    if (i % kColumns == kColumns - 1 || i + 1 == shown) y += 166;
  }
  return svg.ToString(width, y + 8, title);
}

}  // namespace sherd
