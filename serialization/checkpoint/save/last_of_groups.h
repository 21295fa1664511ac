#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_LAST_OF_GROUPS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_LAST_OF_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// The values of each group that were used last, such as its plans: for programs
// that save the same again and again.
//
// Memory. Up to kPerGroup values per group; those of a group that is gone go
// when the next one is kept.
//
// Threads. Safe.
template <typename T>
class LastOfGroups {
 public:
  static constexpr size_t kPerGroup = 4;

  // Of those that fit, the one that was used last, which this is a use of.
  std::optional<T> Find(const std::shared_ptr<ProcessGroup>& group,
                        absl::FunctionRef<bool(const T&)> fits) {
    absl::MutexLock lock(&mutex_);
    const auto of_group = values_.find(group);
    if (of_group == values_.end()) return std::nullopt;
    std::list<T>& values = of_group->second;
    const auto found = std::find_if(values.begin(), values.end(), fits);
    if (found == values.end()) return std::nullopt;
    values.splice(values.begin(), values, found);
    return *found;
  }

  // In place of those that are `same`.
  void Keep(const std::shared_ptr<ProcessGroup>& group, T value,
            absl::FunctionRef<bool(const T&)> same) {
    absl::MutexLock lock(&mutex_);
    for (auto it = values_.begin(); it != values_.end();) {
      it = it->first.expired() ? values_.erase(it) : std::next(it);
    }
    std::list<T>& values = values_[group];
    values.remove_if(same);
    values.push_front(std::move(value));
    if (values.size() > kPerGroup) values.pop_back();
  }

 private:
  using GroupRef = std::weak_ptr<ProcessGroup>;

  absl::Mutex mutex_;
  // The last used one first.
  std::map<GroupRef, std::list<T>, std::owner_less<GroupRef>> values_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_LAST_OF_GROUPS_H_
