#include "sherd/core/base/keep_forever.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sherd::internal {

void KeepForever(std::shared_ptr<const void> owner) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::shared_ptr<const void>> owners;
  };
  static Kept* const kept = new Kept;
  if (owner == nullptr) return;
  const std::lock_guard<std::mutex> lock(kept->mutex);
  kept->owners.push_back(std::move(owner));
}

}  // namespace sherd::internal
