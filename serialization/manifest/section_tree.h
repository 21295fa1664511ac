#ifndef SHERD_SERIALIZATION_MANIFEST_SECTION_TREE_H_
#define SHERD_SERIALIZATION_MANIFEST_SECTION_TREE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/manifest/manifest_sections.h"

namespace sherd {

// Reads sections of a manifest of version 2, wherever its bytes are. Errors are
// without the path. Not thread-safe.
class SectionTree {
 public:
  // Returns `length` bytes at `offset`, both in the manifest, in `buffer` or
  // elsewhere, where they stay until the next call.
  using ReadFn = std::function<absl::StatusOr<absl::string_view>(
      int64_t offset, int64_t length, std::string& buffer)>;

  // Reads the root of a manifest of `size` bytes.
  static absl::StatusOr<SectionTree> Open(int64_t size, ReadFn read);

  const ManifestRoot& root() const { return root_; }

  // The section of things which has the name, if any has, or the number, which
  // is below the count.
  absl::StatusOr<SectionPlace> FindTensor(absl::string_view name);
  absl::StatusOr<SectionPlace> FindNumber(SectionKind kind, int64_t number);

  // The bytes of a section, until the next call.
  absl::StatusOr<absl::string_view> Read(const SectionPlace& place);

  // All of it, as decoded from the sections, but checked as a whole only in
  // that each byte belongs to one section.
  absl::StatusOr<Manifest> ReadAll(MemoryBudget& memory);

 private:
  SectionTree(int64_t size, ReadFn read)
      : size_(size), read_(std::move(read)) {}

  using Visit = absl::FunctionRef<absl::Status(const SectionPlace&)>;
  absl::Status ForEach(SectionKind kind, Visit visit);
  absl::Status ForEachBelow(const SectionPlace& place, Visit visit);
  absl::StatusOr<std::vector<SectionPlace>> Children(const SectionPlace& place);
  absl::Status CheckTiled(std::vector<std::pair<int64_t, int64_t>> sections);

  int64_t size_;
  ReadFn read_;
  ManifestRoot root_;
  std::string buffer_;
  // Indexes read so far, by offset; not too many.
  std::map<int64_t, std::vector<SectionPlace>> indexes_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_SECTION_TREE_H_
