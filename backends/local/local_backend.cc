// Ranks are threads of one process: in each operation every rank copies
// directly from the others' buffers.

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/local/meeting.h"
#include "sherd/backends/local/thread_memory.h"
#include "sherd/backends/plugin.h"

namespace {

using sherd::internal::Meeting;
using sherd::internal::ThreadPeers;
using sherd::plugin::Fail;
using sherd::plugin::FromHandle;
using sherd::plugin::GuardQuietly;

constexpr char kMeetingKey[] = "local/meeting";

// Where rank 0 made the meeting. Only meaningful in its own process.
struct MeetingAddress {
  int64_t pid;
  uint64_t serial;
};

// Rank 0's meeting, which the others find through the store.
sherd_code Found(const sherd_comm_config_v0& config,
                 std::shared_ptr<Meeting>* meeting, sherd_error_v0* error) {
  *meeting = Meeting::Make(config.size, sherd::plugin::Host());
  const MeetingAddress address = {getpid(), (*meeting)->serial()};
  const sherd_code code = config.kv->set(config.kv->context, kMeetingKey,
                                         &address, sizeof(address));
  return code == SHERD_OK ? code : Fail(error, code, -1, "the store failed");
}

sherd_code Join(const sherd_comm_config_v0& config,
                std::shared_ptr<Meeting>* meeting, sherd_error_v0* error) {
  MeetingAddress address = {};
  uint64_t size = 0;
  const sherd_code code =
      config.kv->get(config.kv->context, kMeetingKey, config.deadline, &address,
                     sizeof(address), &size);
  if (code != SHERD_OK || size != sizeof(address)) {
    return Fail(error, code == SHERD_OK ? SHERD_INTERNAL : code, 0,
                "did not set up the group");
  }
  if (address.pid != getpid()) {
    return Fail(error, SHERD_INVALID_ARGUMENT, 0,
                "is in another process, but ranks of the backend \"local\" "
                "are threads of one; use gloo between processes");
  }
  *meeting = Meeting::Join(address.serial);
  if (*meeting != nullptr) return SHERD_OK;
  return Fail(error, SHERD_INTERNAL, 0, "named a meeting that there is not");
}

// One rank, in the meeting of its group.
class Member {
 public:
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Member>* made,
                           sherd_error_v0* error) {
    std::shared_ptr<Meeting> meeting;
    const sherd_code code = config.rank == 0 ? Found(config, &meeting, error)
                                             : Join(config, &meeting, error);
    if (code != SHERD_OK) return code;
    *made = std::make_unique<Member>(config.rank, std::move(meeting));
    return SHERD_OK;
  }

  Member(int rank, std::shared_ptr<Meeting> meeting)
      : rank_(rank), meeting_(std::move(meeting)) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    GuardQuietly([this] { meeting_->Leave(rank_); });
  }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error) {
    return meeting_->Run(rank_, op, error);
  }
  void Abort() { meeting_->Abort(rank_); }

  ThreadPeers Peers() const { return {rank_, meeting_->serial()}; }

 private:
  const int rank_;
  const std::shared_ptr<Meeting> meeting_;
};

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  return sherd::plugin::MakeHandle<ThreadPeers>(
      peers, error, [&](std::unique_ptr<ThreadPeers>* made) {
        *made = std::make_unique<ThreadPeers>(FromHandle<Member>(comm).Peers());
        return SHERD_OK;
      });
}

sherd_code Export(sherd_peers_v0* peers, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0*) {
  *handle = FromHandle<ThreadPeers>(peers).Export(data, bytes);
  return SHERD_OK;
}

sherd_code Import(sherd_peers_v0* peers, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  return FromHandle<ThreadPeers>(peers).Import(peer, *handle, range, error);
}

constexpr sherd_memory_v0 kMemory = sherd::plugin::WithHeader(sherd_memory_v0{
    .open_peers = OpenPeers,
    .close_peers = sherd::plugin::DeleteHandle<ThreadPeers, sherd_peers_v0>,
    .export_memory = Export,
    .import_memory = Import});

constexpr sherd_plugin_v0 kPlugin =
    sherd::plugin::WithHostReductions(sherd::plugin::BackendTable<Member>(
        {.name = "local",
         .operations = sherd::plugin::kAllOperations,
         .flags = SHERD_RANKS_ARE_THREADS | SHERD_ONE_HOST_ONLY |
                  SHERD_COMPARES_CALLS,
         .memory = &kMemory}));

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
