#include "sherd/serialization/checkpoint/async/saves_registry.h"

#include <cstdlib>
#include <utility>

#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

SavesRegistry& SavesRegistry::Get() {
  static SavesRegistry* const registry = new SavesRegistry;
  return *registry;
}

SavesRegistry::SavesRegistry() {
  std::atexit([] { Get().ProcessExits(); });
}

absl::StatusOr<std::shared_ptr<GroupSaves>> SavesRegistry::For(
    ProcessGroup& group, std::optional<absl::Duration> timeout) {
  bool is_new = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = saves_.find(&group);
    if (it != saves_.end() && it->second != nullptr) return it->second;
    is_new = it == saves_.end();
  }
  JoinEnded();
  SHERD_ASSIGN_OR_RETURN(Saves saves, GroupSaves::Begin(group, timeout));
  if (is_new) {
    const absl::Status status =
        group.OnDestroy([this, group = &group](const absl::Status& health) {
          GroupEnds(group, health);
        });
    if (!status.ok()) {
      saves->End(status);
      return status;
    }
  }
  absl::MutexLock lock(&mutex_);
  saves_[&group] = saves;
  return saves;
}

absl::Status SavesRegistry::Flush(ProcessGroup& group) {
  Saves saves;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = saves_.find(&group);
    if (it == saves_.end() || it->second == nullptr) return absl::OkStatus();
    saves.swap(it->second);
  }
  saves->End(absl::OkStatus());
  return saves->TakeError();
}

void SavesRegistry::GroupEnds(ProcessGroup* group, const absl::Status& health) {
  Saves saves;
  {
    absl::MutexLock lock(&mutex_);
    saves.swap(saves_[group]);
    saves_.erase(group);
  }
  if (saves != nullptr) End(saves, health);
}

void SavesRegistry::ProcessExits() {
  std::map<ProcessGroup*, Saves> all;
  {
    absl::MutexLock lock(&mutex_);
    all.swap(saves_);
  }
  for (const auto& [group, saves] : all) {
    if (saves != nullptr) End(saves, absl::OkStatus());
  }
  JoinEnded();
}

void SavesRegistry::End(const Saves& saves, const absl::Status& cause) {
  if (!saves->End(cause)) {
    absl::MutexLock lock(&mutex_);
    ended_.push_back(saves);
    return;
  }
  if (const absl::Status error = saves->TakeError(); !error.ok()) {
    SHERD_LOG(kWarning) << "a save failed, and nothing asked for its result: "
                        << error.ToString();
  }
}

void SavesRegistry::JoinEnded() {
  std::vector<Saves> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(ended_);
  }
  for (const Saves& saves : ended) End(saves, absl::OkStatus());
}

}  // namespace sherd
