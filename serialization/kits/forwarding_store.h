#ifndef SHERD_SERIALIZATION_KITS_FORWARDING_STORE_H_
#define SHERD_SERIALIZATION_KITS_FORWARDING_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/store.h"

namespace sherd {

// Another store, for tests that override some of the operations.
class ForwardingStore : public CheckpointStore {
 public:
  // `store` is borrowed.
  explicit ForwardingStore(CheckpointStore& store) : store_(store) {}

  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) override {
    return store_.List(prefix);
  }
  absl::StatusOr<int64_t> Stat(const std::string& name) override {
    return store_.Stat(name);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& name) override {
    return store_.OpenForRead(name);
  }
  absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) override {
    return store_.BeginPut(name);
  }
  absl::Status Put(const std::string& name,
                   absl::Span<const std::byte> data) override {
    return store_.Put(name, data);
  }
  absl::Status PutIfAbsent(const std::string& name,
                           absl::Span<const std::byte> data) override {
    return store_.PutIfAbsent(name, data);
  }
  absl::Status Remove(const std::string& name) override {
    return store_.Remove(name);
  }

 private:
  CheckpointStore& store_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_FORWARDING_STORE_H_
