#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_SECTIONS_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_SECTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/memory_budget.h"

namespace sherd {

// The bytes of a manifest of version 2; see FORMAT.md. It has sections with
// what it says, indexes of these, and last, at a fixed place, where the root of
// the indexes is.

// The first bytes: mark and version.
inline constexpr int64_t kManifestFrontBytes = 12;
// The last bytes: offset, length and CRC of the root, and their own CRC.
inline constexpr int64_t kManifestTrailerBytes = 20;
// Of a section.
inline constexpr int64_t kMaxSectionBytes = int64_t{128} << 20;

// Entries of an index.
inline constexpr int kMaxIndexEntries = 256;

// An upper bound of the memory that a byte of a section takes while it is a
// message, or that is left of it in lists of files and placements: the shortest
// text has two bytes.
inline constexpr int64_t kMemoryPerByte = 64;
// And what each section and each tensor takes, in lists that grow.
inline constexpr int64_t kPerSection = 64;
inline constexpr int64_t kPerTensor = 4 * sizeof(ManifestTensor);

// What a manifest is made of, in trees of sections of their own.
enum class SectionKind { kPlacements, kFiles, kTensors };

// A section, as described by the one that leads to it.
struct SectionPlace {
  SectionKind kind = SectionKind::kTensors;
  // 0: things; otherwise an index of sections of the level below.
  int level = 0;
  int64_t offset = 0;
  int64_t length = 0;
  uint32_t crc32c = 0;
  // It ends here at the latest: so nothing leads in a circle.
  int64_t max_end = 0;
  // Its things: names in [first_name, end_name), the latter if there is one;
  // or numbers in [first, end).
  std::string first_name;
  std::optional<std::string> end_name;
  int64_t first = 0;
  int64_t end = 0;

  friend bool operator==(const SectionPlace&, const SectionPlace&) = default;
};

struct ManifestRoot {
  ManifestSummary summary;
  int64_t offset = 0;
  int64_t placements = 0;
  int64_t files = 0;
  int64_t tensors = 0;
  // The tops of the trees, of those that have things.
  std::vector<SectionPlace> tops;

  const SectionPlace* Top(SectionKind kind) const;
};

// Returns tensor number `i` with its runs, or an error that ends the writing.
using TensorAtFn = absl::FunctionRef<absl::StatusOr<ManifestTensor>(size_t i)>;

// Appends the sections, the root and the trailer to `bytes`, which has the
// front. Tensors are those of `tensor_at`, called for each in order; those of
// the manifest need no runs.
// Takes from `memory` what reading all of them takes.
//   kResourceExhausted  A section exceeds kMaxSectionBytes, all of it
//                       kMaxManifestBytes, or the memory does not suffice.
absl::Status AppendSections(const Manifest& manifest, TensorAtFn tensor_at,
                            MemoryBudget& memory, std::string& bytes);

// Where the root is: offset, length and CRC, from the trailer of a manifest of
// `size` bytes.
//   kDataLoss  The trailer is damaged.
absl::StatusOr<SectionPlace> ParseTrailer(absl::string_view trailer,
                                          int64_t size);

// Each of these takes the bytes of the section, checks that they have its CRC
// and what is said about it, and that it is valid by itself. From `memory` they
// take what the message needs, and give it back; ParseTensors also takes what
// remains. After an error it is not known how much that is.
//   kDataLoss           They have not; the message has the offset.
//   kResourceExhausted  It would take too much memory.
absl::StatusOr<ManifestRoot> ParseRoot(absl::string_view bytes,
                                       const SectionPlace& place,
                                       MemoryBudget& memory);
absl::StatusOr<std::vector<SectionPlace>> ParseIndex(absl::string_view bytes,
                                                     const SectionPlace& place,
                                                     MemoryBudget& memory);
absl::StatusOr<std::vector<std::string>> ParsePlacements(
    absl::string_view bytes, const SectionPlace& place, MemoryBudget& memory);
absl::StatusOr<std::vector<ManifestFile>> ParseFiles(absl::string_view bytes,
                                                     const SectionPlace& place,
                                                     MemoryBudget& memory);
absl::StatusOr<std::vector<ManifestTensor>> ParseTensors(
    absl::string_view bytes, const SectionPlace& place,
    const ManifestRoot& root, MemoryBudget& memory);

// Checks what does not depend on other parts.
absl::Status CheckSummary(const ManifestSummary& summary);
absl::Status CheckFile(const ManifestFile& file);
// All but the layout, of a tensor of these sizes.
absl::Status CheckTensor(const ManifestTensor& tensor,
                         absl::Span<const int64_t> sizes);
absl::Status CheckPlacement(absl::string_view placement);
// The same of both versions: that text is short UTF-8, that a file is in the
// checkpoint's directory, and what a tensor is apart from its shards.
absl::Status CheckText(absl::string_view what, absl::string_view text);
absl::Status CheckFileName(absl::string_view name);
absl::Status CheckTensorForm(absl::string_view name,
                             absl::Span<const int64_t> sizes, DType dtype,
                             SavedLayoutKind kind, int32_t chunk_dim);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_SECTIONS_H_
