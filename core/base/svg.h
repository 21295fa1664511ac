#ifndef SHERD_CORE_BASE_SVG_H_
#define SHERD_CORE_BASE_SVG_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd {

struct SvgStyle {
  // Colours as in CSS; empty: no colour.
  std::string fill;
  std::string stroke;
  double stroke_width = 1;
  double radius = 0;
  bool dashed = false;
  double opacity = 1;
};

struct SvgText {
  double size = 12;
  std::string fill = "#1f2937";
  bool bold = false;
  bool monospace = false;
  // "start", "middle" or "end".
  std::string anchor = "start";
};

// A picture that needs nothing outside itself: no fonts, scripts or network.
// Coordinates are pixels from the upper left corner.
class Svg {
 public:
  void Rect(double x, double y, double width, double height,
            const SvgStyle& style, absl::string_view tooltip = "");
  // `y` is the base line.
  void Text(double x, double y, absl::string_view text,
            const SvgText& style = {});
  // From (x, y) to the right, with a tip at its end.
  void Arrow(double x, double y, double length, absl::string_view colour);

  // The file, of that size, on a white card.
  std::string ToString(double width, double height,
                       absl::string_view title) const;

 private:
  std::string body_;
};

// A colour for a rank: distinct for the first ten, also for most colour-blind
// people, and well spread for any others.
std::string RankColour(int rank);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_SVG_H_
