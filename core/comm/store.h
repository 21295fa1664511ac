#ifndef SHERD_CORE_COMM_STORE_H_
#define SHERD_CORE_COMM_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"

namespace sherd {

// A small key-value store that the ranks of a job share before they are
// connected, and while they find out who failed. Keys and values are bytes;
// keys are at most 4 KiB, values at most 16 MiB.
//
// The meaning of the operations follows torch.distributed's Store, but for
// one point: a counter is its own type there and plain decimal text here and
// there, so that Get reads what Add wrote.
//
// Threads. All methods may be called from any thread at any time; none waits
// for another.
class Store {
 public:
  virtual ~Store() = default;

  // Creates `key` or replaces its value.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;

  // The value of `key`, which somebody else may yet have to set.
  //   kDeadlineExceeded  It was not there by the deadline; the message names
  //                      the key. With a deadline that has passed this is a
  //                      plain look.
  virtual absl::StatusOr<std::string> Get(absl::string_view key,
                                          Deadline deadline) = 0;

  // Adds `amount` to the decimal number at `key` (missing: 0) in one step and
  // returns the sum.
  //   kFailedPrecondition  The value is not a number; it stays.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key,
                                      int64_t amount) = 0;

  // Removes `key` and says whether it was there.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;

  // Returns once every key exists.
  //   kDeadlineExceeded  Some are missing at the deadline; the message names
  //                      them.
  virtual absl::Status Wait(absl::Span<const std::string> keys,
                            Deadline deadline) = 0;

  // True if the key exists now.
  virtual absl::StatusOr<bool> Contains(absl::string_view key) = 0;
};

// A view of `base` in which every key stands behind "`prefix`/". Groups and
// their generations are kept apart by it.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> base);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) override;
  absl::StatusOr<bool> Contains(absl::string_view key) override;

 private:
  std::string Prefixed(absl::string_view key) const;

  const std::string prefix_;
  const std::shared_ptr<Store> base_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_H_
