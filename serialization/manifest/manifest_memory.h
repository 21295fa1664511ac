#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_MEMORY_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// An upper bound of the memory that decoding the message of a manifest takes,
// the message included: a few bytes of it may become hundreds, since a shard is
// three bytes at least and a structure in memory. Takes none itself.
//   kDataLoss  Not a message of the expected form.
//
// Cost. One pass over the message.
absl::StatusOr<int64_t> ManifestMemory(absl::string_view message);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_MEMORY_H_
