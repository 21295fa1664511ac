#ifndef SHERD_RPC_OWNERSHIP_REFERENCE_MESSAGE_H_
#define SHERD_RPC_OWNERSHIP_REFERENCE_MESSAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/rpc/ownership/reference_id.h"

namespace sherd::internal {

// Owner, creator and number, for messages to people.
inline std::string NameOf(const ReferenceId& id) {
  return absl::StrCat("reference ", id.owner, ":", id.creator, ":", id.number);
}

// A message between two workers about a reference; see rpc/OWNERSHIP.md.
struct ReferenceMessage {
  enum class Kind {
    kCreate = 1,      // Holder to owner, in a call: make it, and list me.
    kRegister = 2,    // Holder to owner: list me.
    kRegistered = 3,  // Owner to holder: you are listed.
    kUnknown = 4,     // Owner to holder: there is no such value any more.
    kRelease = 5,     // Holder to owner: I am no holder any more.
    kAccepted = 6,    // Receiver of a message to its sender: I need your
                      // references no longer. Has no id.
  };

  Kind kind = Kind::kRegister;
  ReferenceId id;
  // kCreate, kRegister, kRelease: increases with each request of a worker.
  // kRegistered, kUnknown: that of the request. kAccepted: the number of the
  // transfer at its sender.
  uint64_t sequence = 0;
};

// What the caller of a table has to do once it has released the lock of the
// table. No order matters, neither of messages nor between two calls.
struct ReferenceEffects {
  struct Outgoing {
    int to = 0;  // Never the worker itself.
    ReferenceMessage message;
  };
  struct Ready {
    uint64_t transfer = 0;
    absl::Status status;
  };

  std::vector<Outgoing> messages;
  std::vector<Ready> ready;  // Transfers that wait no longer.
  // Values without holders, to be destroyed.
  std::vector<std::shared_ptr<void>> released;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_REFERENCE_MESSAGE_H_
