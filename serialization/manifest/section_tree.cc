#include "sherd/serialization/manifest/section_tree.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// Of sections; most have some kilobytes.
constexpr int64_t kMaxKeptIndexBytes = 4 << 20;

absl::Status ExpectCount(absl::string_view what, size_t count,
                         int64_t expected) {
  if (static_cast<int64_t>(count) == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the manifest has ", count, " ", what,
                                          ", its root says ", expected));
}

}  // namespace

absl::StatusOr<SectionTree> SectionTree::Open(int64_t size, ReadFn read,
                                              MemoryBudget& memory) {
  if (size < kManifestFrontBytes + kManifestTrailerBytes) {
    return absl::DataLossError(
        absl::StrCat("the manifest is cut short: it has ", size,
                     " bytes, expected at least ",
                     kManifestFrontBytes + kManifestTrailerBytes));
  }
  SectionTree tree(size, std::move(read));
  SHERD_ASSIGN_OR_RETURN(const absl::string_view trailer,
                         tree.read_(size - kManifestTrailerBytes,
                                    kManifestTrailerBytes, tree.buffer_));
  SHERD_ASSIGN_OR_RETURN(const SectionPlace place, ParseTrailer(trailer, size));
  SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, tree.Read(place));
  SHERD_ASSIGN_OR_RETURN(tree.root_, ParseRoot(bytes, place, memory));
  return tree;
}

absl::StatusOr<absl::string_view> SectionTree::Read(const SectionPlace& place) {
  return read_(place.offset, place.length, buffer_);
}

absl::StatusOr<const std::vector<SectionPlace>*> SectionTree::Children(
    const SectionPlace& place, MemoryBudget& memory) {
  const auto it = indexes_.find(place.offset);
  if (it != indexes_.end() && it->second.place == place) {
    return &it->second.children;
  }
  SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, Read(place));
  SHERD_ASSIGN_OR_RETURN(std::vector<SectionPlace> children,
                         ParseIndex(bytes, place, memory));
  index_bytes_ += place.length;
  if (index_bytes_ > kMaxKeptIndexBytes) {
    indexes_.clear();
    index_bytes_ = place.length;
  }
  Index& index = indexes_[place.offset];
  index = {place, std::move(children)};
  return &index.children;
}

absl::StatusOr<SectionPlace> SectionTree::FindTensor(absl::string_view name,
                                                     MemoryBudget& memory) {
  SectionPlace place = *root_.Top(SectionKind::kTensors);
  while (place.level > 0) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<SectionPlace>* const children,
                           Children(place, memory));
    auto it = std::upper_bound(
        children->begin(), children->end(), name,
        [](absl::string_view wanted, const SectionPlace& child) {
          return wanted < absl::string_view(child.first_name);
        });
    if (it != children->begin()) --it;
    place = SectionPlace(*it);
  }
  return place;
}

absl::StatusOr<SectionPlace> SectionTree::FindNumber(SectionKind kind,
                                                     int64_t number,
                                                     MemoryBudget& memory) {
  SectionPlace place = *root_.Top(kind);
  while (place.level > 0) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<SectionPlace>* const children,
                           Children(place, memory));
    const auto it =
        std::upper_bound(children->begin(), children->end(), number,
                         [](int64_t wanted, const SectionPlace& child) {
                           return wanted < child.first;
                         });
    // The first begins where its parent does.
    place = SectionPlace(*std::prev(it));
  }
  return place;
}

absl::Status SectionTree::ForEach(SectionKind kind, MemoryBudget& memory,
                                  Visit visit) {
  const SectionPlace* const top = root_.Top(kind);
  return top == nullptr ? absl::OkStatus() : ForEachBelow(*top, memory, visit);
}

absl::Status SectionTree::ForEachBelow(const SectionPlace& place,
                                       MemoryBudget& memory, Visit visit) {
  SHERD_RETURN_IF_ERROR(visit(place));
  if (place.level == 0) return absl::OkStatus();
  // A copy, since those below are asked for theirs.
  SHERD_ASSIGN_OR_RETURN(const std::vector<SectionPlace>* const kept,
                         Children(place, memory));
  const std::vector<SectionPlace> children = *kept;
  for (const SectionPlace& child : children) {
    SHERD_RETURN_IF_ERROR(ForEachBelow(child, memory, visit));
  }
  return absl::OkStatus();
}

absl::Status SectionTree::CheckTiled(
    std::vector<std::pair<int64_t, int64_t>> sections) {
  std::sort(sections.begin(), sections.end());
  int64_t position = kManifestFrontBytes;
  for (const auto& [offset, length] : sections) {
    if (offset != position) break;
    position += length;
  }
  if (position == size_ - kManifestTrailerBytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the manifest has bytes from offset ", position,
                   " on that belong to no section, or to several"));
}

absl::StatusOr<Manifest> SectionTree::ReadAll(MemoryBudget& memory) {
  Manifest manifest;
  static_cast<ManifestSummary&>(manifest) = root_.summary;
  std::vector<std::pair<int64_t, int64_t>> sections = {
      {root_.offset, size_ - kManifestTrailerBytes - root_.offset}};
  // Each section has some bytes of its own, so there cannot be more of them.
  const auto read = [&](SectionKind kind, Visit parse) {
    return ForEach(kind, memory,
                   [&](const SectionPlace& place) -> absl::Status {
                     SHERD_RETURN_IF_ERROR(memory.Take(1, kPerSection));
                     sections.emplace_back(place.offset, place.length);
                     return place.level == 0 ? parse(place) : absl::OkStatus();
                   });
  };
  SHERD_RETURN_IF_ERROR(read(
      SectionKind::kPlacements, [&](const SectionPlace& place) -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, Read(place));
        SHERD_RETURN_IF_ERROR(memory.Take(place.length, kMemoryPerByte));
        SHERD_ASSIGN_OR_RETURN(std::vector<std::string> part,
                               ParsePlacements(bytes, place, memory));
        std::move(part.begin(), part.end(),
                  std::back_inserter(manifest.placements));
        return absl::OkStatus();
      }));
  SHERD_RETURN_IF_ERROR(
      read(SectionKind::kFiles, [&](const SectionPlace& place) -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, Read(place));
        SHERD_RETURN_IF_ERROR(memory.Take(place.length, kMemoryPerByte));
        SHERD_ASSIGN_OR_RETURN(std::vector<ManifestFile> part,
                               ParseFiles(bytes, place, memory));
        std::move(part.begin(), part.end(), std::back_inserter(manifest.files));
        return absl::OkStatus();
      }));
  SHERD_RETURN_IF_ERROR(read(
      SectionKind::kTensors, [&](const SectionPlace& place) -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(const absl::string_view bytes, Read(place));
        SHERD_ASSIGN_OR_RETURN(std::vector<ManifestTensor> part,
                               ParseTensors(bytes, place, root_, memory));
        std::move(part.begin(), part.end(),
                  std::back_inserter(manifest.tensors));
        return absl::OkStatus();
      }));
  SHERD_RETURN_IF_ERROR(CheckTiled(std::move(sections)));
  SHERD_RETURN_IF_ERROR(
      ExpectCount("placements", manifest.placements.size(), root_.placements));
  SHERD_RETURN_IF_ERROR(
      ExpectCount("files", manifest.files.size(), root_.files));
  SHERD_RETURN_IF_ERROR(
      ExpectCount("tensors", manifest.tensors.size(), root_.tensors));
  return manifest;
}

}  // namespace sherd
