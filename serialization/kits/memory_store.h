#ifndef SHERD_SERIALIZATION_KITS_MEMORY_STORE_H_
#define SHERD_SERIALIZATION_KITS_MEMORY_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/store.h"

namespace sherd {

// For tests: a store in the memory of one process, each of whose operations is
// one step.
class MemoryStore final : public CheckpointStore {
 public:
  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) override {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> names;
    for (const auto& [name, object] : objects_) {
      if (absl::StartsWith(name, prefix)) names.push_back(name);
    }
    return names;
  }

  absl::StatusOr<int64_t> Stat(const std::string& name) override {
    SHERD_ASSIGN_OR_RETURN(const Object object, Find(name));
    return static_cast<int64_t>(object->size());
  }

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& name) override {
    SHERD_ASSIGN_OR_RETURN(Object object, Find(name));
    return std::make_unique<OpenObject>(name, std::move(object));
  }

  absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) override {
    SHERD_RETURN_IF_ERROR(CheckName(name));
    return std::make_unique<MemoryWriter>(*this, name);
  }

  absl::Status Put(const std::string& name,
                   absl::Span<const std::byte> data) override {
    SHERD_RETURN_IF_ERROR(CheckName(name));
    absl::MutexLock lock(&mutex_);
    objects_[name] = MakeObject(data);
    return absl::OkStatus();
  }

  absl::Status PutIfAbsent(const std::string& name,
                           absl::Span<const std::byte> data) override {
    SHERD_RETURN_IF_ERROR(CheckName(name));
    absl::MutexLock lock(&mutex_);
    if (objects_.emplace(name, MakeObject(data)).second) {
      return absl::OkStatus();
    }
    return absl::AlreadyExistsError(absl::StrCat(name, " is there"));
  }

  absl::Status Remove(const std::string& name) override {
    SHERD_RETURN_IF_ERROR(CheckName(name));
    absl::MutexLock lock(&mutex_);
    if (objects_.erase(name) > 0) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("there is no object ", name));
  }

 private:
  using Object = std::shared_ptr<const std::vector<std::byte>>;

  class OpenObject final : public File {
   public:
    OpenObject(std::string name, Object object)
        : File(std::move(name)), object_(std::move(object)) {}

    absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
      const auto size = static_cast<int64_t>(object_->size());
      if (offset > size ||
          static_cast<int64_t>(buffer.size()) > size - offset) {
        return absl::DataLossError(absl::StrCat(path(), " ends at ", size));
      }
      std::copy_n(object_->begin() + offset, buffer.size(), buffer.begin());
      return absl::OkStatus();
    }
    absl::StatusOr<int64_t> Size() override {
      return static_cast<int64_t>(object_->size());
    }
    absl::Status WriteAt(int64_t, absl::Span<const std::byte>) override {
      return absl::UnimplementedError("an object is not changed");
    }
    absl::Status Reserve(int64_t) override {
      return absl::UnimplementedError("an object is not changed");
    }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Close() override { return absl::OkStatus(); }

   private:
    const Object object_;
  };

  class MemoryWriter final : public ObjectWriter {
   public:
    MemoryWriter(MemoryStore& store, std::string name)
        : store_(store), name_(std::move(name)) {}

    absl::Status WriteAt(int64_t offset,
                         absl::Span<const std::byte> data) override {
      absl::MutexLock lock(&mutex_);
      const size_t end = static_cast<size_t>(offset) + data.size();
      bytes_.resize(std::max(bytes_.size(), end));
      std::copy(data.begin(), data.end(), bytes_.begin() + offset);
      return absl::OkStatus();
    }
    absl::Status Finish() override {
      absl::MutexLock lock(&mutex_);
      return store_.Put(name_, bytes_);
    }

   private:
    MemoryStore& store_;
    const std::string name_;
    absl::Mutex mutex_;
    std::vector<std::byte> bytes_ ABSL_GUARDED_BY(mutex_);
  };

  static Object MakeObject(absl::Span<const std::byte> data) {
    return std::make_shared<const std::vector<std::byte>>(data.begin(),
                                                          data.end());
  }

  static absl::Status CheckName(const std::string& name) {
    if (IsObjectName(name)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a name"));
  }

  absl::StatusOr<Object> Find(const std::string& name) {
    SHERD_RETURN_IF_ERROR(CheckName(name));
    absl::MutexLock lock(&mutex_);
    const auto it = objects_.find(name);
    if (it != objects_.end()) return it->second;
    return absl::NotFoundError(absl::StrCat("there is no object ", name));
  }

  absl::Mutex mutex_;
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_MEMORY_STORE_H_
