#include "sherd/serialization/checkpoint/series/manifest_index.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "sherd/serialization/manifest/directory_names.h"

namespace sherd {
namespace {

ManifestIndex::Entry ReadEntry(FileSystem& files, const std::string& path,
                               const ManifestReader::AfterRead& after_read) {
  // Whatever the code of the error, it does not describe the manifest.
  const auto cancel = [&after_read]() -> absl::Status {
    const absl::Status status =
        after_read == nullptr ? absl::OkStatus() : after_read();
    return status.ok() ? status : absl::CancelledError(status.message());
  };
  ManifestIndex::Entry entry;
  const auto manifest = ManifestReader::Open(files, path, cancel);
  entry.status = manifest.status();
  if (!manifest.ok()) return entry;
  entry.number = NumberOf(manifest->summary());
  for (int32_t i = 0; i < manifest->num_files(); ++i) {
    const auto file = manifest->FileAt(i);
    entry.status = file.status();
    if (!file.ok()) return entry;
    entry.files.push_back((*file)->name);
  }
  return entry;
}

}  // namespace

uint64_t NumberOf(const ManifestSummary& summary) {
  uint64_t number = 0;
  if (summary.version == 1 || !absl::SimpleHexAtoi(summary.save_id, &number)) {
    return 0;
  }
  return number;
}

void ManifestIndex::Refresh(FileSystem& files, const std::string& path,
                            const std::vector<std::string>& names,
                            const ManifestReader::AfterRead& after_read) {
  std::set<std::string> now;
  // A directory may be listed without a file that was renamed just now.
  std::vector<std::string> manifests = {kManifestFileName};
  for (const std::string& name : names) {
    if (StepOfManifestName(name).has_value()) manifests.push_back(name);
    if (IsManifestName(name) || IsDataFileName(name)) now.insert(name);
  }
  if (now != names_) entries_.clear();
  names_ = std::move(now);
  entries_.erase(kManifestFileName);
  for (const std::string& name : manifests) {
    const auto it = entries_.find(name);
    if (it != entries_.end() && it->second.status.ok()) continue;
    Entry entry = ReadEntry(files, JoinPath(path, name), after_read);
    if (absl::IsNotFound(entry.status)) {
      entries_.erase(name);
    } else {
      entries_[name] = std::move(entry);
    }
  }
}

bool ManifestIndex::complete() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry.second.status.ok();
  });
}

uint64_t ManifestIndex::last_number(std::string* name) const {
  uint64_t last = 0;
  for (const auto& [manifest, entry] : entries_) {
    if (entry.number <= last) continue;
    last = entry.number;
    if (name != nullptr) *name = manifest;
  }
  return last;
}

absl::flat_hash_set<std::string> ManifestIndex::in_use() const {
  absl::flat_hash_set<std::string> files;
  for (const auto& [name, entry] : entries_) {
    files.insert(entry.files.begin(), entry.files.end());
  }
  return files;
}

std::vector<StepState> ManifestIndex::steps() const {
  std::vector<StepState> steps;
  for (const auto& [name, entry] : entries_) {
    const std::optional<int64_t> step = StepOfManifestName(name);
    if (!step.has_value()) continue;
    StepState::State state = StepState::kUnknown;
    if (entry.status.ok()) {
      const bool all = std::all_of(
          entry.files.begin(), entry.files.end(),
          [this](const std::string& file) { return names_.contains(file); });
      state = all ? StepState::kWhole : StepState::kIncomplete;
    } else if (absl::IsDataLoss(entry.status)) {
      state = StepState::kDamaged;
    }
    steps.push_back({*step, state});
  }
  return steps;
}

std::string ManifestIndex::StepOfAnotherJob() const {
  for (const auto& [name, entry] : entries_) {
    if (StepOfManifestName(name).has_value() && entry.number > first_own_ &&
        !own_.contains(entry.number)) {
      return name;
    }
  }
  return "";
}

void ManifestIndex::Placing(const Manifest& manifest) {
  if (own_.empty()) first_own_ = NumberOf(manifest);
  own_.insert(NumberOf(manifest));
}

void ManifestIndex::Placed(const std::string& name, const Manifest& manifest) {
  Entry entry = {.number = NumberOf(manifest)};
  for (const ManifestFile& file : manifest.files) {
    entry.files.push_back(file.name);
    names_.insert(file.name);
  }
  names_.insert(name);
  entries_[name] = std::move(entry);
}

void ManifestIndex::Removed(const std::string& name) {
  names_.erase(name);
  entries_.erase(name);
}

}  // namespace sherd
