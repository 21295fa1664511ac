#include "sherd/core/nn/lookup/table_layout.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sherd::internal {
namespace {

bool IsEmptyBox(const PlacedBox& box) {
  return box.sizes[0] == 0 || box.sizes[1] == 0;
}

// Leaves one of the replicas that hold the same rows.
void ChooseReplicas(absl::Span<const PlacedBox> boxes, int reader,
                    std::vector<RowBand>& bands) {
  std::stable_sort(
      bands.begin(), bands.end(),
      [](const RowBand& a, const RowBand& b) { return a.begin < b.begin; });
  std::vector<RowBand> chosen;
  for (size_t i = 0; i < bands.size();) {
    size_t end = i;
    const RowBand* own = nullptr;
    do {
      if (boxes[static_cast<size_t>(bands[end].shard)].rank == reader &&
          own == nullptr) {
        own = &bands[end];
      }
      ++end;
    } while (end < bands.size() && bands[end].begin == bands[i].begin);
    chosen.push_back(own != nullptr
                         ? *own
                         : bands[i + static_cast<size_t>(reader) % (end - i)]);
    i = end;
  }
  bands = std::move(chosen);
}

using Rows = std::vector<std::pair<int64_t, int64_t>>;

void AddRows(Rows& rows, const RowBand& band) {
  if (!rows.empty() && rows.back().second == band.begin) {
    rows.back().second = band.end;
  } else {
    rows.emplace_back(band.begin, band.end);
  }
}

}  // namespace

std::vector<ColumnStrip> StripsOf(absl::Span<const PlacedBox> boxes,
                                  int reader) {
  std::vector<int64_t> cuts;
  for (const PlacedBox& box : boxes) {
    if (IsEmptyBox(box)) continue;
    cuts.push_back(box.offsets[1]);
    cuts.push_back(box.offsets[1] + box.sizes[1]);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<ColumnStrip> strips;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    strips.push_back({.column = cuts[i], .width = cuts[i + 1] - cuts[i]});
  }
  for (size_t s = 0; s < boxes.size(); ++s) {
    const PlacedBox& box = boxes[s];
    if (IsEmptyBox(box)) continue;
    const auto first =
        std::lower_bound(cuts.begin(), cuts.end(), box.offsets[1]);
    const int64_t end = box.offsets[1] + box.sizes[1];
    for (auto cut = first; *cut < end; ++cut) {
      strips[static_cast<size_t>(cut - cuts.begin())].bands.push_back(
          {.begin = box.offsets[0],
           .end = box.offsets[0] + box.sizes[0],
           .shard = static_cast<int>(s)});
    }
  }
  for (ColumnStrip& strip : strips) ChooseReplicas(boxes, reader, strip.bands);
  return strips;
}

std::vector<StreamShape> StreamsOf(absl::Span<const ColumnStrip> strips,
                                   absl::Span<const PlacedBox> boxes) {
  std::map<std::pair<int, Rows>, StreamShape> streams;
  for (const ColumnStrip& strip : strips) {
    std::map<int, std::pair<Rows, std::vector<RowBand>>> owners;
    for (const RowBand& band : strip.bands) {
      auto& [rows, bands] = owners[boxes[static_cast<size_t>(band.shard)].rank];
      AddRows(rows, band);
      bands.push_back(band);
    }
    for (auto& [owner, held] : owners) {
      StreamShape& stream = streams[{owner, std::move(held.first)}];
      stream.owner = owner;
      stream.width += strip.width;
      stream.strips.push_back({.column = strip.column,
                               .width = strip.width,
                               .bands = std::move(held.second)});
    }
  }
  std::vector<StreamShape> result;
  for (auto& [key, stream] : streams) result.push_back(std::move(stream));
  return result;
}

StreamRoutes RoutesOf(absl::Span<const StreamShape> streams) {
  std::vector<Rows> rows(streams.size());
  StreamRoutes routes;
  for (size_t i = 0; i < streams.size(); ++i) {
    for (const RowBand& band : streams[i].strips[0].bands) {
      AddRows(rows[i], band);
    }
    for (const auto& [begin, end] : rows[i]) {
      routes.begins.push_back(begin);
      routes.begins.push_back(end);
    }
  }
  std::sort(routes.begins.begin(), routes.begins.end());
  routes.begins.erase(std::unique(routes.begins.begin(), routes.begins.end()),
                      routes.begins.end());
  routes.streams.resize(routes.begins.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    for (const auto& [begin, end] : rows[i]) {
      const auto first =
          std::lower_bound(routes.begins.begin(), routes.begins.end(), begin);
      for (auto at = first; *at < end; ++at) {
        routes.streams[static_cast<size_t>(at - routes.begins.begin())]
            .push_back(static_cast<int>(i));
      }
    }
  }
  return routes;
}

}  // namespace sherd::internal
