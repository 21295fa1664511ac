#ifndef SHERD_SERIALIZATION_CHECKPOINT_SERIES_MANIFEST_INDEX_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SERIES_MANIFEST_INDEX_H_

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint/series/retention.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {

// The manifests of a directory, and the files that each names, as the process
// knows them that writes there. What it has read or placed is remembered, so
// that the saves of a series do not read all manifests again: as long as
// manifests and data files have the names that this process left, and the
// holder of the lease, which this process is then, is the only one to give or
// take any, the manifests are those that it knows. A save that replaces a
// manifest always writes files of a new name, unless it saves no element.
// Otherwise all are read again. manifest.sherd, which is replaced each time, is
// always read.
//
// Threads. Not safe.
class ManifestIndex {
 public:
  struct Entry {
    // Why the manifest could not be read; then the rest is not known.
    absl::Status status;
    // Of the save; 0 for version 1, whose numbers have no order.
    uint64_t number = 0;
    std::vector<std::string> files;
  };

  // Brings it up to date with `names`, all those in the directory `path`.
  // `after_read` is called after each read; with its error the manifest counts
  // as one that cannot be read.
  //
  // Cost. Reads each manifest that is not known, that is, of large ones the
  // list of files.
  void Refresh(FileSystem& files, const std::string& path,
               const std::vector<std::string>& names,
               const ManifestReader::AfterRead& after_read = nullptr);

  // By name of the manifest.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // Whether all manifests could be read, so that in_use() is complete.
  bool complete() const;
  // The largest number of a save whose manifest is there, and its name.
  uint64_t last_number(std::string* name = nullptr) const;
  // The files that manifests name.
  absl::flat_hash_set<std::string> in_use() const;
  // Of a series, ascending.
  std::vector<StepState> steps() const;
  // The manifest of a step that another job has placed since this process
  // placed its first one: its number is above that one's, and of none that this
  // process has placed. Empty if there is none.
  std::string StepOfAnotherJob() const;

  // What this process does itself. Placing: before the attempt, whatever comes
  // of it.
  void Placing(const Manifest& manifest);
  void Placed(const std::string& name, const Manifest& manifest);
  void Removed(const std::string& name);

 private:
  std::map<std::string, Entry> entries_;
  // Manifests and data files, as Refresh saw them and this process left them.
  std::set<std::string> names_;
  // The numbers of what this process has placed, or may have, and the first.
  std::set<uint64_t> own_;
  uint64_t first_own_ = std::numeric_limits<uint64_t>::max();
};

// The number of the save that wrote a manifest; 0 for version 1.
uint64_t NumberOf(const ManifestSummary& summary);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SERIES_MANIFEST_INDEX_H_
