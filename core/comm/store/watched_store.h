#ifndef SHERD_CORE_COMM_STORE_WATCHED_STORE_H_
#define SHERD_CORE_COMM_STORE_WATCHED_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// A view of `base` for ranks that connect, in which no wait for a key continues
// until the deadline once some rank has failed: a rank that waits there needs
// all ranks.
//
// Get, Wait and MultiGet then fail with
//   kUnavailable  A rank failed, which the error names; the key still does not
//                 exist.
// All other behavior is that of `base`. A wait checks for a failed rank after
// kFirstLook, then with growing intervals of up to kLastLook.
//
// Threads. As `base`; `find_failed_rank` is called from any thread.
class WatchedStore final : public Store {
 public:
  // `base` outlives this view.
  WatchedStore(Store& base,
               std::function<std::optional<int>()> find_failed_rank);

  // The rank for which a wait was ended, if one was.
  std::optional<int> failed_rank() const;

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

  static constexpr absl::Duration kFirstLook = absl::Milliseconds(50);
  static constexpr absl::Duration kLastLook = absl::Seconds(1);

 private:
  // The result of `ask`, an operation with a deadline, obtained by `deadline`.
  template <typename Answer>
  Answer Watch(Deadline deadline, const std::function<Answer(Deadline)>& ask);

  Store& base_;
  const std::function<std::optional<int>()> find_failed_rank_;
  // -1: none.
  std::atomic<int> failed_rank_{-1};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_WATCHED_STORE_H_
