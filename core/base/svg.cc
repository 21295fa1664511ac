#include "sherd/core/base/svg.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/printable_text.h"

namespace sherd {
namespace {

constexpr char kSans[] =
    "system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif";
constexpr char kMonospace[] =
    "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace";

// Text from files: also what XML 1.0 does not allow at all.
std::string Escape(absl::string_view text) {
  std::string escaped;
  for (const char c : PrintableLine(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Number(double value) {
  std::string text = absl::StrFormat("%.1f", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string PaintAttributes(const SvgStyle& style) {
  std::string text =
      absl::StrCat(" fill=\"", style.fill.empty() ? "none" : style.fill, "\"");
  if (!style.stroke.empty()) {
    absl::StrAppend(&text, " stroke=\"", style.stroke, "\" stroke-width=\"",
                    Number(style.stroke_width), "\"");
  }
  if (style.dashed) text += " stroke-dasharray=\"4 3\"";
  if (style.radius > 0) {
    absl::StrAppend(&text, " rx=\"", Number(style.radius), "\"");
  }
  if (style.opacity < 1) {
    absl::StrAppend(&text, " opacity=\"",
                    absl::StrFormat("%.2f", style.opacity), "\"");
  }
  return text;
}

}  // namespace

void Svg::Rect(double x, double y, double width, double height,
               const SvgStyle& style, absl::string_view tooltip) {
  absl::StrAppend(&body_, "<rect x=\"", Number(x), "\" y=\"", Number(y),
                  "\" width=\"", Number(width), "\" height=\"", Number(height),
                  "\"", PaintAttributes(style));
  if (tooltip.empty()) {
    body_ += "/>\n";
  } else {
    absl::StrAppend(&body_, "><title>", Escape(tooltip), "</title></rect>\n");
  }
}

void Svg::Text(double x, double y, absl::string_view text,
               const SvgText& style) {
  absl::StrAppend(&body_, "<text x=\"", Number(x), "\" y=\"", Number(y),
                  "\" font-size=\"", Number(style.size), "\" fill=\"",
                  style.fill, "\" text-anchor=\"", style.anchor, "\"",
                  style.bold ? " font-weight=\"600\"" : "");
  if (style.monospace) {
    absl::StrAppend(&body_, " font-family=\"", kMonospace, "\"");
  }
  absl::StrAppend(&body_, ">", Escape(text), "</text>\n");
}

void Svg::Arrow(double x, double y, double length, absl::string_view colour) {
  const double tip = x + length;
  absl::StrAppend(&body_, "<path d=\"M", Number(x), " ", Number(y), "H",
                  Number(tip - 6), "\" stroke=\"", colour,
                  "\" stroke-width=\"1.5\" fill=\"none\"/>\n<path d=\"M",
                  Number(tip), " ", Number(y), "l-8 -4v8z\" fill=\"", colour,
                  "\"/>\n");
}

std::string Svg::ToString(double width, double height,
                          absl::string_view title) const {
  const std::string size = absl::StrCat("width=\"", Number(width),
                                        "\" height=\"", Number(height), "\"");
  return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" ", size,
                      " viewBox=\"0 0 ", Number(width), " ", Number(height),
                      "\" role=\"img\" font-family=\"", kSans, "\">\n<title>",
                      Escape(title),
                      "</title>\n<rect x=\"0.5\" y=\"0.5\" width=\"",
                      Number(width - 1), "\" height=\"", Number(height - 1),
                      "\" rx=\"12\" fill=\"#ffffff\" stroke=\"#e5e7eb\"/>\n",
                      body_, "</svg>\n");
}

std::string RankColour(int rank) {
  constexpr std::array<const char*, 10> kColours = {
      "#4477aa", "#ee7733", "#228833", "#ccbb44", "#aa3377",
      "#66ccee", "#ee6677", "#997700", "#777777", "#004488"};
  if (rank < static_cast<int>(kColours.size())) return kColours[rank];
  // Steps of the golden angle keep neighbours apart.
  return absl::StrFormat("hsl(%d,55%%,%d%%)", rank * 137 % 360,
                         45 + rank % 3 * 10);
}

}  // namespace sherd
