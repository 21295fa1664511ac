#ifndef SHERD_CORE_COMM_STORE_STORE_SESSION_H_
#define SHERD_CORE_COMM_STORE_STORE_SESSION_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/file_store.h"

namespace sherd::internal {

// One session of a group on a store: the time from Init to Destroy. A store may
// serve many sessions, and a rank enters the next one while others still leave
// the last one, so that each session has a prefix of its own. The ranks find
// its number without communication: it counts how often a rank has entered.
// Ranks that enter later skip a session in which some rank gave up.
class StoreSession {
 public:
  virtual ~StoreSession() = default;

  // The store of this session, separate from other sessions.
  const std::shared_ptr<Store>& store() const { return store_; }

  // Records that this rank has left the group. Nothing depends on this record
  // if the store is already unreachable.
  virtual void Leave() = 0;

  // Records that this rank never became a member.
  virtual void GiveUp(const absl::Status& why) = 0;

 protected:
  explicit StoreSession(std::shared_ptr<Store> store)
      : store_(std::move(store)) {}

 private:
  const std::shared_ptr<Store> store_;
};

// Enters the next session of `group` on a store that is kept elsewhere. The
// store itself counts, so each session may use a new Store object.
//   kInvalidArgument  The rank is in a session already: two processes have the
//                     same rank, or another run ended without leaving.
absl::StatusOr<std::unique_ptr<StoreSession>> EnterStoreSession(
    const std::shared_ptr<Store>& store, absl::string_view group, int rank,
    int world_size);

// Enters the next session of `group` in a file, which the last rank to leave
// removes. Since the count must outlive the file, this process keeps it, by
// path and rank.
//   kInvalidArgument  As above: the file is left over from another run.
absl::StatusOr<std::unique_ptr<StoreSession>> EnterFileSession(
    const std::shared_ptr<FileStore>& file, absl::string_view group, int rank,
    int world_size);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_STORE_SESSION_H_
