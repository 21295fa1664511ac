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

  // Reads the root of a manifest of `size` bytes. This and other functions take
  // from `memory` what parsing takes, and give it back.
  static absl::StatusOr<SectionTree> Open(int64_t size, ReadFn read,
                                          MemoryBudget& memory);

  const ManifestRoot& root() const { return root_; }

  // The section of things which has the name, if any has, or the number, which
  // is below the count.
  absl::StatusOr<SectionPlace> FindTensor(absl::string_view name,
                                          MemoryBudget& memory);
  absl::StatusOr<SectionPlace> FindNumber(SectionKind kind, int64_t number,
                                          MemoryBudget& memory);

  // The bytes of a section, until the next call.
  absl::StatusOr<absl::string_view> Read(const SectionPlace& place);

  // All of it, which takes from `memory`, as decoded from the sections, but
  // checked as a whole only in that each byte belongs to one section.
  absl::StatusOr<Manifest> ReadAll(MemoryBudget& memory);

 private:
  SectionTree(int64_t size, ReadFn read)
      : size_(size), read_(std::move(read)) {}

  using Visit = absl::FunctionRef<absl::Status(const SectionPlace&)>;
  absl::Status ForEach(SectionKind kind, MemoryBudget& memory, Visit visit);
  absl::Status ForEachBelow(const SectionPlace& place, MemoryBudget& memory,
                            Visit visit);
  // Those that an index names, until the next call.
  absl::StatusOr<const std::vector<SectionPlace>*> Children(
      const SectionPlace& place, MemoryBudget& memory);
  absl::Status CheckTiled(std::vector<std::pair<int64_t, int64_t>> sections);

  int64_t size_;
  ReadFn read_;
  ManifestRoot root_;
  std::string buffer_;
  // Indexes read so far, by offset, with the place that each was checked
  // against: another one may lead to the same bytes. Not too many.
  struct Index {
    SectionPlace place;
    std::vector<SectionPlace> children;
  };
  std::map<int64_t, Index> indexes_;
  // Of their sections.
  int64_t index_bytes_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_SECTION_TREE_H_
