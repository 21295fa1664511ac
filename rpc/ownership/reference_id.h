#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_ID_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_ID_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace sherd::internal {

// A value that one worker owns and others may refer to. The creator numbers the
// references that it creates, so that an identifier is unique among the workers
// of a session without a message: the caller of Remote() names the value before
// the owner has it.
struct ReferenceId {
  // Rank of the worker that owns the value, and of the one that named it.
  int32_t owner = 0;
  int32_t creator = 0;
  uint64_t number = 0;

  friend auto operator<=>(const ReferenceId&, const ReferenceId&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const ReferenceId& id) {
    return H::combine(std::move(state), id.owner, id.creator, id.number);
  }
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_ID_H_
