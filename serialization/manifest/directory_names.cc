#include "sherd/serialization/manifest/directory_names.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr char kManifestSuffix[] = ".sherd";
constexpr char kPinSuffix[] = ".pin";
constexpr size_t kStepDigits = 20;
constexpr absl::string_view kShardPrefix = "shard-";
constexpr absl::string_view kShardSuffix = ".safetensors";
constexpr absl::string_view kTemporarySuffix = ".tmp";
constexpr size_t kSaveIdDigits = 16;

std::optional<int64_t> StepIn(absl::string_view name,
                              absl::string_view suffix) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kStepPrefix) ||
      !absl::ConsumeSuffix(&name, suffix) || name.size() != kStepDigits ||
      !std::all_of(name.begin(), name.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step;
}

// The prefix of `text` is consumed if it has that form.
bool ConsumeDigits(absl::string_view& text) {
  size_t n = 0;
  while (n < text.size() && absl::ascii_isdigit(text[n])) ++n;
  text.remove_prefix(n);
  return n > 0;
}

}  // namespace

std::string StepManifestName(int64_t step) {
  return absl::StrFormat("%s%020d%s", kStepPrefix, step, kManifestSuffix);
}

std::optional<int64_t> StepOfManifestName(absl::string_view name) {
  return StepIn(name, kManifestSuffix);
}

bool IsManifestName(absl::string_view name) {
  return name == kManifestFileName || StepOfManifestName(name).has_value();
}

bool IsStagedManifestName(absl::string_view name) {
  // manifest.sherd.<16 hex digits>.tmp, and of earlier builds, which wrote
  // digits of any number.
  absl::string_view id = name;
  return absl::ConsumePrefix(&id, absl::StrCat(kManifestFileName, ".")) &&
         absl::ConsumeSuffix(&id, kTemporarySuffix) &&
         (IsSaveId(id) || (ConsumeDigits(id) && id.empty()));
}

std::string StagedManifestName(absl::string_view save_id) {
  return absl::StrCat(kManifestFileName, ".", save_id, kTemporarySuffix);
}

std::string StepPinName(int64_t step) {
  return absl::StrFormat("%s%020d%s", kStepPrefix, step, kPinSuffix);
}

std::optional<int64_t> StepOfPinName(absl::string_view name) {
  return StepIn(name, kPinSuffix);
}

ManifestPlace PlaceOfManifest(const std::string& path) {
  const absl::string_view last =
      absl::string_view(path).substr(path.rfind('/') + 1);
  if (!IsManifestName(last)) return {path, kManifestFileName};
  return {ParentDirectory(path), std::string(last)};
}

bool IsSaveId(absl::string_view text) {
  return text.size() == kSaveIdDigits &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

std::string DataFileName(int rank, int world_size, absl::string_view save_id) {
  return absl::StrFormat("%s%05d-of-%05d.%s%s", kShardPrefix, rank, world_size,
                         save_id, kShardSuffix);
}

bool IsDataFileName(absl::string_view name) {
  absl::string_view rest = name;
  // shard-<rank>-of-<ranks>.<16 hex digits>.safetensors
  if (!absl::ConsumePrefix(&rest, kShardPrefix) || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, "-of-") || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, ".") ||
      !absl::ConsumeSuffix(&rest, kShardSuffix)) {
    return false;
  }
  return IsSaveId(rest);
}

std::string UnfinishedCopyName(absl::string_view data_file,
                               absl::string_view copy_id) {
  return absl::StrCat(data_file, ".", copy_id, kTemporarySuffix);
}

bool IsSaveFileName(absl::string_view name) {
  if (IsStagedManifestName(name) || IsDataFileName(name)) return true;
  if (!absl::ConsumeSuffix(&name, kTemporarySuffix)) return false;
  // lease.sherd.<16 hex digits>.tmp
  absl::string_view id = name;
  if (absl::ConsumePrefix(&id, absl::StrCat(kLeaseFileName, "."))) {
    return IsSaveId(id);
  }
  // <data file>.<16 hex digits>.tmp
  const size_t dot = name.rfind('.');
  return dot != absl::string_view::npos && IsSaveId(name.substr(dot + 1)) &&
         IsDataFileName(name.substr(0, dot));
}

bool AllManifestsAreLost(absl::Span<const std::string> names) {
  return std::binary_search(names.begin(), names.end(), kCommittedFileName) &&
         std::none_of(names.begin(), names.end(), IsManifestName) &&
         std::any_of(names.begin(), names.end(), IsDataFileName);
}

}  // namespace sherd
