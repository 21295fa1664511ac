// Any lines as the names of a state's values: an error, or a state that has
// these values under these names and survives Flatten and Unflatten.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/sharding/state_dict.h"

namespace {

using sherd::StateDict;
using sherd::StateEntry;

// A line that ends in "{" or "[" after a blank is of an empty map or list.
sherd::StateValue ValueOf(absl::string_view& name, int64_t number) {
  if (name.size() < 2 || name[name.size() - 2] != ' ') return number;
  const char last = name.back();
  if (last != '{' && last != '[') return number;
  name.remove_suffix(2);
  if (last == '{') return StateDict();
  return sherd::StateList();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<StateEntry> entries;
  for (absl::string_view name : absl::StrSplit(bytes, '\n')) {
    sherd::StateValue value =
        ValueOf(name, static_cast<int64_t>(entries.size()));
    entries.push_back({std::string(name), std::move(value)});
  }
  const absl::StatusOr<StateDict> state = StateDict::Unflatten(entries);
  if (!state.ok()) {
    SHERD_CHECK(state.status().code() == absl::StatusCode::kInvalidArgument ||
                state.status().code() == absl::StatusCode::kOutOfRange)
        << state.status().ToString();
    return 0;
  }
  for (const StateEntry& entry : entries) {
    const auto value = state->Find(entry.name);
    SHERD_CHECK(value.ok()) << value.status().ToString();
    // A value that was an empty map or list may have items from later lines.
    SHERD_CHECK((*value)->kind() == entry.value.kind());
  }
  const absl::StatusOr<StateDict> again =
      StateDict::Unflatten(state->Flatten());
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(again->BitwiseEqual(*state)) << again->Difference(*state);
  return 0;
}
