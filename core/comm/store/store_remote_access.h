#ifndef SHERD_CORE_COMM_STORE_STORE_REMOTE_ACCESS_H_
#define SHERD_CORE_COMM_STORE_STORE_REMOTE_ACCESS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "sherd/core/comm/remote_access.h"

namespace sherd {

// Remote access that passes shards through the store, for tests of what uses
// it: neither server nor threads, but shards of at most 16 MiB, of which others
// see what they held when they were published, and no dead worker is noticed
// before a deadline.
//
// To be given to RegisterRemoteAccess.
absl::StatusOr<std::shared_ptr<RemoteAccess>> StartStoreRemoteAccess(
    const RemoteAccessOptions& options);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_STORE_REMOTE_ACCESS_H_
