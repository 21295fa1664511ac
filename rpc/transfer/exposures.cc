#include "sherd/rpc/transfer/exposures.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"

namespace sherd::internal {
namespace {

struct Announced {
  absl::Mutex mutex;
  // By nonce; those that have ended are removed by the next Announce.
  absl::flat_hash_map<std::string, std::weak_ptr<Exposures>> all
      ABSL_GUARDED_BY(mutex);

  // Never destroyed: workers may outlive main.
  static Announced& Get() {
    static Announced& announced = *new Announced;
    return announced;
  }
};

}  // namespace

Exposure::~Exposure() {
  if (listed != nullptr) listed->Remove(transfer);
}

std::shared_ptr<Exposures> Exposures::Announce(const std::string& nonce) {
  auto made = std::make_shared<Exposures>();
  Announced& announced = Announced::Get();
  absl::MutexLock lock(&announced.mutex);
  absl::erase_if(announced.all,
                 [](const auto& entry) { return entry.second.expired(); });
  announced.all[nonce] = made;
  return made;
}

std::shared_ptr<Exposures> Exposures::Of(const std::string& nonce) {
  Announced& announced = Announced::Get();
  absl::MutexLock lock(&announced.mutex);
  const auto it = announced.all.find(nonce);
  return it == announced.all.end() ? nullptr : it->second.lock();
}

void Exposures::Add(const std::shared_ptr<const Exposure>& exposure) {
  absl::MutexLock lock(&mutex_);
  exposures_[exposure->transfer] = exposure;
}

void Exposures::Remove(uint64_t transfer) {
  absl::MutexLock lock(&mutex_);
  exposures_.erase(transfer);
}

std::shared_ptr<const Exposure> Exposures::Find(uint64_t transfer) {
  absl::MutexLock lock(&mutex_);
  const auto it = exposures_.find(transfer);
  return it == exposures_.end() ? nullptr : it->second.lock();
}

}  // namespace sherd::internal
