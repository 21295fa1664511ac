#include "sherd/serialization/checkpoint/incremental/save_base.h"

#include <algorithm>

namespace sherd {
namespace {

bool IsThere(FileSystem& files, const std::string& path, int64_t size) {
  const auto file = files.OpenForRead(path);
  if (!file.ok()) return false;
  const auto found = (*file)->Size();
  return found.ok() && *found == size;
}

// Whether both have the same shards, in the same order.
bool IsSamePlan(const SavePlan& a, const SavePlan& b) {
  return &a == &b ||
         (a.fingerprint == b.fingerprint && a.contents == b.contents);
}

}  // namespace

const SavedChunks* FittingChunks(const SaveBase& base, const SavePlan& plan,
                                 const std::string& path, bool sync,
                                 FileSystem& files) {
  const SavedChunks* const last = base.last();
  if (last == nullptr || last->path != path || (sync && !last->sync) ||
      !IsSamePlan(*last->plan, plan)) {
    return nullptr;
  }
  const bool all_there = std::all_of(
      last->files.begin(), last->files.end(), [&](const ManifestFile& file) {
        return IsThere(files, JoinPath(path, file.name), file.size);
      });
  return all_there ? last : nullptr;
}

}  // namespace sherd
