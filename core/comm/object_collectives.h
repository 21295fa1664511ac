#ifndef SHERD_CORE_COMM_OBJECT_COLLECTIVES_H_
#define SHERD_CORE_COMM_OBJECT_COLLECTIVES_H_

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// Collectives over strings of bytes, whose lengths the receivers do not know
// beforehand, and over messages that turn into such strings. (AllGatherStrings
// is in agreement.h.)
//
// Collective. All ranks call in the same order, with the same root and
// max_bytes; send and receive stand apart, as in ProcessGroup.
//
// Errors. Those of the collectives below, and:
//   kResourceExhausted  Strings exceed max_bytes: on all ranks alike, before
//                       any of them moved or memory was taken for it. The group
//                       stays usable. (RecvString says otherwise.)
//   kInvalidArgument    This rank's arguments break a rule: nothing was sent,
//                       and the group stays usable; peers whose call was right
//                       wait for this rank until their deadline.
//
// Cost. One collective for the lengths, 8 bytes per rank, and one for the
// bytes.

struct StringOptions {
  // How long the whole call may take. Unset: the group's timeout.
  std::optional<absl::Duration> timeout;
  // Longest that the strings of one call may be together.
  int64_t max_bytes = int64_t{1} << 30;
};

// Returns root's `local` on every rank; that of others is ignored.
absl::StatusOr<std::string> BroadcastString(ProcessGroup& group,
                                            absl::string_view local, int root,
                                            const StringOptions& options = {});

// Returns every rank's `local` on root, in rank order, and nothing on others.
absl::StatusOr<std::vector<std::string>> GatherStrings(
    ProcessGroup& group, absl::string_view local, int root,
    const StringOptions& options = {});

// Returns root's strings[rank] on every rank. Root passes one per rank, others
// none.
absl::StatusOr<std::string> ScatterStrings(
    ProcessGroup& group, absl::Span<const std::string> strings, int root,
    const StringOptions& options = {});

// Sends `text` to rank `destination`, which calls RecvString with the same tag.
// Nothing but strings may have that tag between the two.
//   kResourceExhausted  It is longer than max_bytes. Nothing was sent.
absl::Status SendString(ProcessGroup& group, absl::string_view text,
                        int destination, int64_t tag = 0,
                        const StringOptions& options = {});

//   kResourceExhausted  Rank `source` wants to send more than max_bytes. The
//                       group is poisoned: what it sends stays unread.
absl::StatusOr<std::string> RecvString(ProcessGroup& group, int source,
                                       int64_t tag = 0,
                                       const StringOptions& options = {});

// What Protobuf generates, and anything else that writes itself into a string
// and reads itself from one.
template <typename T>
concept StringMessage = std::default_initializable<T> &&
    requires(T message, const T& source, std::string& bytes) {
  { source.SerializeToString(&bytes) } -> std::convertible_to<bool>;
  { message.ParseFromString(bytes) } -> std::convertible_to<bool>;
};

namespace internal {

// kInvalidArgument if the message does not serialize.
template <StringMessage T>
absl::StatusOr<std::string> SerializeMessage(const T& message) {
  std::string bytes;
  if (!message.SerializeToString(&bytes)) {
    return absl::InvalidArgumentError(
        "the message to send cannot be serialized: are all required fields "
        "set?");
  }
  return bytes;
}

// Returns kDataLoss from rank `from` if the bytes are not a T.
template <StringMessage T>
absl::StatusOr<T> ParseMessage(const std::string& bytes, int from) {
  T message;
  if (!message.ParseFromString(bytes)) {
    return WithRank(
        absl::DataLossError("the " + std::to_string(bytes.size()) +
                            " bytes from rank " + std::to_string(from) +
                            " are not a message of the expected type"),
        from);
  }
  return message;
}

}  // namespace internal

// The same for messages.
//
// Errors. Also kInvalidArgument if the message to send does not serialize, and
// kDataLoss, with the rank that sent it, if what came is not a T; the group
// stays usable.

template <StringMessage T>
absl::StatusOr<T> BroadcastMessage(ProcessGroup& group, const T& local,
                                   int root,
                                   const StringOptions& options = {}) {
  std::string own;
  if (group.rank() == root) {
    SHERD_ASSIGN_OR_RETURN(own, internal::SerializeMessage(local));
  }
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         BroadcastString(group, own, root, options));
  return internal::ParseMessage<T>(bytes, root);
}

template <StringMessage T>
absl::StatusOr<std::vector<T>> GatherMessages(
    ProcessGroup& group, const T& local, int root,
    const StringOptions& options = {}) {
  SHERD_ASSIGN_OR_RETURN(const std::string own,
                         internal::SerializeMessage(local));
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> strings,
                         GatherStrings(group, own, root, options));
  std::vector<T> messages;
  for (size_t r = 0; r < strings.size(); ++r) {
    SHERD_ASSIGN_OR_RETURN(
        T message, internal::ParseMessage<T>(strings[r], static_cast<int>(r)));
    messages.push_back(std::move(message));
  }
  return messages;
}

template <StringMessage T>
absl::StatusOr<T> ScatterMessages(ProcessGroup& group,
                                  absl::Span<const T> messages, int root,
                                  const StringOptions& options = {}) {
  std::vector<std::string> strings;
  for (const T& message : messages) {
    SHERD_ASSIGN_OR_RETURN(std::string bytes,
                           internal::SerializeMessage(message));
    strings.push_back(std::move(bytes));
  }
  SHERD_ASSIGN_OR_RETURN(const std::string own,
                         ScatterStrings(group, strings, root, options));
  return internal::ParseMessage<T>(own, root);
}

template <StringMessage T>
absl::Status SendMessage(ProcessGroup& group, const T& message, int destination,
                         int64_t tag = 0, const StringOptions& options = {}) {
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         internal::SerializeMessage(message));
  return SendString(group, bytes, destination, tag, options);
}

template <StringMessage T>
absl::StatusOr<T> RecvMessage(ProcessGroup& group, int source, int64_t tag = 0,
                              const StringOptions& options = {}) {
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         RecvString(group, source, tag, options));
  return internal::ParseMessage<T>(bytes, source);
}

}  // namespace sherd

#endif  // SHERD_CORE_COMM_OBJECT_COLLECTIVES_H_
