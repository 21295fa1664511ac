#ifndef SHERD_SERIALIZATION_ARCHIVE_STATE_MEMORY_H_
#define SHERD_SERIALIZATION_ARCHIVE_STATE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd::internal {

// An upper bound of the memory that a message sherd.state.v1.Value takes while
// it is parsed, and what is made of it: in a SavedState, and in the state that
// is built from that, without elements. A few bytes of it may become hundreds.
// Takes none itself.
//   kDataLoss  Not such a message.
//
// Cost. One pass over the message.
absl::StatusOr<int64_t> ValueMemory(absl::string_view value);

// Of all values of a message sherd.state.v1.State.
absl::StatusOr<int64_t> StateMemory(absl::string_view state);

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_STATE_MEMORY_H_
