#ifndef SHERD_CORE_COMM_STORE_BASE_STORE_H_
#define SHERD_CORE_COMM_STORE_BASE_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// A store that is not a view of another one. Tests drop or delay its messages
// between ranks (core/base/fault_point.h) here, once per operation, with the
// whole key.
class BaseStore : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) final;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) final;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) final;
  absl::StatusOr<std::string> CompareSet(absl::string_view key,
                                         absl::string_view expected,
                                         absl::string_view desired) final;
  absl::StatusOr<bool> Delete(absl::string_view key) final;
  absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix) final;
  absl::Status Retire(absl::string_view prefix, int members) final;
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) final;
  absl::StatusOr<std::vector<std::string>> MultiGet(
      absl::Span<const std::string> keys, Deadline deadline) final;
  absl::StatusOr<bool> Contains(absl::string_view key) final;

 private:
  virtual absl::Status DoSet(absl::string_view key,
                             absl::string_view value) = 0;
  virtual absl::StatusOr<std::string> DoGet(absl::string_view key,
                                            Deadline deadline) = 0;
  virtual absl::StatusOr<int64_t> DoAdd(absl::string_view key,
                                        int64_t amount) = 0;
  virtual absl::StatusOr<std::string> DoCompareSet(
      absl::string_view key, absl::string_view expected,
      absl::string_view desired) = 0;
  virtual absl::StatusOr<bool> DoDelete(absl::string_view key) = 0;
  virtual absl::StatusOr<int64_t> DoDeletePrefix(absl::string_view prefix) = 0;
  virtual absl::Status DoRetire(absl::string_view prefix, int members) = 0;
  virtual absl::Status DoWait(absl::Span<const std::string> keys,
                              Deadline deadline) = 0;
  virtual absl::StatusOr<std::vector<std::string>> DoMultiGet(
      absl::Span<const std::string> keys, Deadline deadline) = 0;
  virtual absl::StatusOr<bool> DoContains(absl::string_view key) = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_BASE_STORE_H_
