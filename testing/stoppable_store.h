#ifndef SHERD_TESTING_STOPPABLE_STORE_H_
#define SHERD_TESTING_STOPPABLE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store.h"

namespace sherd::testing::internal {

// A view of a store whose waits can be ended from outside.
class StoppableStore final : public Store {
 public:
  explicit StoppableStore(std::shared_ptr<Store> base)
      : base_(std::move(base)) {}

  // Waits fail with `cause` from now on; those under way within kLatency. The
  // first cause counts.
  void Stop(absl::Status cause);

  static constexpr absl::Duration kLatency = absl::Milliseconds(100);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key,
                                         absl::string_view expected,
                                         absl::string_view desired) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix) override;
  absl::Status Retire(absl::string_view prefix, int members) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<bool> Contains(absl::string_view key) override;

 private:
  // Has `wait` wait a little again and again.
  absl::Status InSlices(Deadline deadline,
                        absl::FunctionRef<absl::Status(Deadline)> wait);

  const std::shared_ptr<Store> base_;
  absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_STOPPABLE_STORE_H_
