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
// keys have 1 to 4096 bytes, values at most 16 MiB. A counter is decimal text,
// so that Get reads what Add wrote.
//
// Each operation takes effect at one moment, in one order for all ranks. The
// meaning of each follows torch.distributed's Store.
//
// Threads. All methods may be called from any thread at any time; none waits
// for another.
//
// Errors of every operation.
//   kInvalidArgument  A key or value is over its limit; nothing was written.
//   kUnavailable      The server of the store is unreachable (TcpStore).
class Store {
 public:
  virtual ~Store() = default;

  // Creates `key` or replaces its value.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;

  // Returns the value of `key`; waits until another rank sets it.
  //   kDeadlineExceeded  The key was not set by the deadline; the message names
  //                      it. With a deadline that has passed, Get does not
  //                      wait.
  virtual absl::StatusOr<std::string> Get(absl::string_view key,
                                          Deadline deadline) = 0;

  // Adds `amount` to the decimal number at `key` (missing: 0) in one step and
  // returns the sum.
  //   kFailedPrecondition  The value is not a number; it stays.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key,
                                      int64_t amount) = 0;

  // Gives `key` the value `desired` if it has the value `expected`, in one
  // step; a missing key counts as having an empty value. Returns the value that
  // the key has afterwards, so that the caller won if that is `desired`; for a
  // missing key with a non-empty `expected`, which is not created, `expected`.
  virtual absl::StatusOr<std::string> CompareSet(absl::string_view key,
                                                 absl::string_view expected,
                                                 absl::string_view desired) = 0;

  // Removes `key` and returns whether it existed.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;

  // Removes all keys that begin with "`prefix`/" and returns how many.
  virtual absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix) = 0;

  // Counts the caller as done with all keys that begin with "`prefix`/". The
  // last of `members` callers removes these keys, and no rank has to wait for
  // it. The count is stored at "`prefix`/retired".
  //   kInvalidArgument  `members` is less than 1.
  virtual absl::Status Retire(absl::string_view prefix, int members) = 0;

  // Returns once every key exists.
  //   kDeadlineExceeded  Some are missing at the deadline; the message names
  //                      them.
  virtual absl::Status Wait(absl::Span<const std::string> keys,
                            Deadline deadline) = 0;

  // Returns the values of all keys, in their order and as of one moment, once
  // every key exists. Without keys returns no values, at once.
  //   kDeadlineExceeded   Some are missing at the deadline; the message names
  //                       them.
  //   kResourceExhausted  Their values together have more than 64 MiB.
  virtual absl::StatusOr<std::vector<std::string>> MultiGet(
      absl::Span<const std::string> keys, Deadline deadline) = 0;

  // True if the key exists now.
  virtual absl::StatusOr<bool> Contains(absl::string_view key) = 0;
};

// A view of `base` in which every key is prefixed with "`prefix`/". It
// separates groups and their generations.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> base);

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
  std::string Prefixed(absl::string_view key) const;
  std::vector<std::string> Prefixed(absl::Span<const std::string> keys) const;

  const std::string prefix_;
  const std::shared_ptr<Store> base_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_H_
