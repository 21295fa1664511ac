#ifndef SHERD_CORE_SHARDING_STATE_STATE_NAME_H_
#define SHERD_CORE_SHARDING_STATE_STATE_NAME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd::internal {

// A key of a map, or a position in a list: a part of a name in the grammar of
// StateDict.
struct NamePart {
  std::string key;
  // -1 for a key.
  int64_t position = -1;

  bool is_key() const { return position < 0; }
};

// The parts of a name from any source, at most StateDict::kMaxDepth; the first
// is a key.
//   kInvalidArgument  See StateDict.
absl::StatusOr<std::vector<NamePart>> ParseStateName(absl::string_view name);

// The inverse; "the state" for no parts, in messages.
std::string JoinStateName(absl::Span<const NamePart> parts);

// Appends a part to the name of a map or list. `key` may be any text that is
// not empty.
void AppendKey(absl::string_view key, std::string& name);
void AppendPosition(int64_t position, std::string& name);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_STATE_STATE_NAME_H_
