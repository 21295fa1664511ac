#include "sherd/serialization/manifest/manifest_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/manifest_codec_v1.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/manifest/section_tree.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

constexpr absl::string_view kMark("SHERD\r\n\x1a", 8);

absl::StatusOr<Manifest> DecodeSections(absl::string_view bytes,
                                        int64_t max_memory) {
  MemoryBudget memory(max_memory);
  SHERD_ASSIGN_OR_RETURN(
      SectionTree tree,
      SectionTree::Open(
          static_cast<int64_t>(bytes.size()),
          [bytes](int64_t offset, int64_t length,
                  std::string&) -> absl::StatusOr<absl::string_view> {
            return bytes.substr(offset, length);
          },
          memory));
  SHERD_ASSIGN_OR_RETURN(Manifest manifest, tree.ReadAll(memory));
  SHERD_RETURN_IF_ERROR(ValidateManifest(manifest));
  return manifest;
}

// What the caller passes is at fault, and no file.
absl::Status AsArgument(const absl::Status& status) {
  return absl::Status(absl::IsDataLoss(status)
                          ? absl::StatusCode::kInvalidArgument
                          : status.code(),
                      status.message());
}

absl::StatusOr<std::string> EncodeSections(const Manifest& manifest,
                                           TensorAtFn tensor_at,
                                           int64_t max_memory) {
  SHERD_RETURN_IF_ERROR(AsArgument(ValidateAllButTensors(manifest)));
  // A tensor is checked before it is written, and not with all others: its runs
  // are not there for long.
  const auto checked = [&](size_t i) -> absl::StatusOr<ManifestTensor> {
    SHERD_ASSIGN_OR_RETURN(ManifestTensor tensor, tensor_at(i));
    SHERD_RETURN_IF_ERROR(AsArgument(ValidateTensor(
        manifest, i > 0 ? &manifest.tensors[i - 1] : nullptr, tensor)));
    return tensor;
  };
  std::string bytes = ManifestFront(2);
  MemoryBudget memory(max_memory);
  SHERD_RETURN_IF_ERROR(AppendSections(manifest, checked, memory, bytes));
  if (bytes.size() > static_cast<size_t>(kMaxManifestBytes)) {
    return LimitError(absl::StrCat("the manifest would have ", bytes.size(),
                                   " bytes, expected at most ",
                                   kMaxManifestBytes));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest,
                                           int64_t max_memory) {
  if (manifest.version == 1) return EncodeManifestV1(ToV1(manifest));
  return EncodeSections(
      manifest, [&manifest](size_t i) { return manifest.tensors[i]; },
      max_memory);
}

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest,
                                           RunsOfTensorFn runs_of,
                                           int64_t max_memory) {
  return EncodeSections(
      manifest,
      [&](size_t i) {
        ManifestTensor tensor = manifest.tensors[i];
        tensor.runs = runs_of(i);
        return tensor;
      },
      max_memory);
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes,
                                        absl::string_view what,
                                        int64_t max_memory) {
  const absl::StatusOr<uint32_t> version =
      ReadManifestVersion(bytes, static_cast<int64_t>(bytes.size()));
  if (!version.ok()) return Annotate(version.status(), what);
  if (*version == 1) {
    SHERD_ASSIGN_OR_RETURN(ManifestV1 manifest,
                           DecodeManifestV1(bytes, what, max_memory));
    return FromV1(std::move(manifest));
  }
  absl::StatusOr<Manifest> manifest = DecodeSections(bytes, max_memory);
  if (!manifest.ok()) return Annotate(manifest.status(), what);
  return manifest;
}

absl::StatusOr<uint32_t> ReadManifestVersion(absl::string_view front,
                                             int64_t size) {
  if (front.size() < static_cast<size_t>(kManifestFrontBytes) ||
      front.substr(0, kMark.size()) != kMark) {
    return absl::DataLossError(
        absl::StrCat("not a checkpoint manifest: ", size,
                     " bytes that do not begin with its mark"));
  }
  // Before any CRC: a later version may keep it elsewhere.
  const uint32_t version =
      ReadLittleEndian<uint32_t>(front.substr(kMark.size()));
  if (version == 0 || version > kManifestVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "the manifest has version ", version, ", this build reads 1 to ",
        kManifestVersion, "; use a later Sherd"));
  }
  return version;
}

std::string ManifestFront(uint32_t version) {
  std::string bytes(kMark);
  AppendLittleEndian<uint32_t>(version, bytes);
  return bytes;
}

}  // namespace sherd
