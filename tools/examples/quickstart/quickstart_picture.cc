#include "sherd/tools/examples/quickstart/quickstart_picture.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/units.h"
#include "sherd/tools/examples/quickstart/quickstart_plan.h"

namespace sherd {
namespace {

std::string Arrows(const QuickstartLayouts& layouts) {
  return absl::StrCat(Name(layouts.scattered.kind), " → ",
                      Name(layouts.saved.kind), " → ",
                      Name(layouts.loaded.kind));
}

HeldTensor Held(const SafetensorsEntry& entry, std::vector<PlacedBox> boxes) {
  return {entry.name, entry.dtype, entry.shape, std::move(boxes)};
}

// A tensor for each first layout: rather a matrix than a vector, of a shape
// that no other row has, and large.
std::vector<PictureRow> ChooseRows(
    const std::vector<SafetensorsEntry>& model,
    const std::vector<QuickstartLayouts>& layouts) {
  std::map<LayoutKind, std::vector<int64_t>> by_kind;
  for (size_t t = 0; t < model.size(); ++t) {
    by_kind[layouts[t].scattered.kind].push_back(static_cast<int64_t>(t));
  }
  std::set<Dims> shapes;
  std::vector<PictureRow> rows;
  for (const auto& [kind, tensors] : by_kind) {
    const auto weight = [&](int64_t t) {
      return std::tuple(model[t].shape.size() > 1,
                        !shapes.contains(model[t].shape), model[t].nbytes());
    };
    const int64_t best = *std::max_element(
        tensors.begin(), tensors.end(),
        [&](int64_t a, int64_t b) { return weight(a) < weight(b); });
    shapes.insert(model[best].shape);
    rows.push_back({best, Arrows(layouts[best])});
  }
  return rows;
}

}  // namespace

LayoutPicture MakeQuickstartPicture(const std::string& model_name,
                                    const std::vector<SafetensorsEntry>& model,
                                    int save_ranks, int load_ranks) {
  std::vector<QuickstartLayouts> layouts;
  HeldStage scattered{absl::StrCat("scattered over ", save_ranks, " ranks"),
                      save_ranks};
  HeldStage saved{absl::StrCat("resharded and saved by ", save_ranks),
                  save_ranks};
  HeldStage loaded{absl::StrCat("loaded by ", load_ranks, " ranks"),
                   load_ranks};
  int64_t bytes = 0;
  for (size_t t = 0; t < model.size(); ++t) {
    const SafetensorsEntry& entry = model[t];
    const QuickstartLayouts plan = PlanQuickstart(
        static_cast<int64_t>(t), entry.shape, save_ranks, load_ranks);
    scattered.tensors.push_back(Held(entry, plan.scattered.boxes));
    saved.tensors.push_back(Held(entry, plan.saved.boxes));
    loaded.tensors.push_back(Held(entry, plan.loaded.boxes));
    bytes += entry.nbytes();
    layouts.push_back(plan);
  }
  return {.title = absl::StrCat("Who holds what: ", model_name),
          .subtitle = absl::StrCat(
              model.size(), " tensors, ", FormatBytes(bytes), " · ", save_ranks,
              " processes scatter, reshard and save them, ", load_ranks,
              " load them into a third layout"),
          .stages = {std::move(scattered), std::move(saved), std::move(loaded)},
          .rows = ChooseRows(model, layouts)};
}

}  // namespace sherd
