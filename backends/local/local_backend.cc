// Ranks are threads of one process: each operation is a meeting at which every
// rank takes what it needs straight from the others' buffers.

#include <unistd.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <new>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/host_reductions.h"
#include "sherd/backends/local/meeting.h"
#include "sherd/backends/local/thread_memory.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;
using sherd::internal::Meeting;
using sherd::internal::ThreadPeers;

constexpr char kMeetingKey[] = "local/meeting";

const sherd_host_v0* host_of_process = nullptr;

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

// Where rank 0 made the meeting. Only meaningful in its own process.
struct MeetingAddress {
  int64_t pid;
  uint64_t serial;
};

// What sherd_comm_v0 stands for in this plugin.
struct Member {
  int rank;
  std::shared_ptr<Meeting> meeting;
};

Member* From(sherd_comm_v0* comm) { return reinterpret_cast<Member*>(comm); }

// Rank 0's meeting, which the others find by what it puts into the store.
sherd_code Found(const sherd_comm_config_v0& config,
                 std::shared_ptr<Meeting>* meeting, sherd_error_v0* error) {
  *meeting = Meeting::Make(config.size, *host_of_process);
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

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  try {
    auto member = std::make_unique<Member>(Member{config->rank, nullptr});
    const sherd_code code = config->rank == 0
                                ? Found(*config, &member->meeting, error)
                                : Join(*config, &member->meeting, error);
    if (code != SHERD_OK) return code;
    *comm = reinterpret_cast<sherd_comm_v0*>(member.release());
    return SHERD_OK;
  } catch (const std::exception& e) {
    return Fail(error, SHERD_RESOURCE, -1, e.what());
  }
}

void Destroy(sherd_comm_v0* comm) {
  const std::unique_ptr<Member> member(From(comm));
  member->meeting->Leave(member->rank);
}

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  try {
    return From(comm)->meeting->Run(From(comm)->rank, *op, error);
  } catch (const std::exception& e) {
    return Fail(error, SHERD_RESOURCE, -1, e.what());
  }
}

void Abort(sherd_comm_v0* comm) {
  From(comm)->meeting->Abort(From(comm)->rank);
}

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  *peers = reinterpret_cast<sherd_peers_v0*>(new (std::nothrow) ThreadPeers{
      From(comm)->rank, From(comm)->meeting->serial()});
  if (*peers != nullptr) return SHERD_OK;
  return Fail(error, SHERD_RESOURCE, -1, "out of memory");
}

void ClosePeers(sherd_peers_v0* peers) {
  delete reinterpret_cast<ThreadPeers*>(peers);
}

sherd_code Export(sherd_peers_v0* peers, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0*) {
  *handle = reinterpret_cast<ThreadPeers*>(peers)->Export(data, bytes);
  return SHERD_OK;
}

sherd_code Import(sherd_peers_v0* peers, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  return reinterpret_cast<ThreadPeers*>(peers)->Import(peer, *handle, range,
                                                       error);
}

const sherd_memory_v0 memory = {.struct_size = sizeof(sherd_memory_v0),
                                .reserved = 0,
                                .allocate = nullptr,
                                .deallocate = nullptr,
                                .open_peers = OpenPeers,
                                .close_peers = ClosePeers,
                                .export_memory = Export,
                                .import_memory = Import};

constexpr uint64_t kAll = (1u << SHERD_NUM_OPERATIONS) - 1;

sherd_plugin_v0 MakePlugin(const sherd_host_v0& host) {
  sherd_plugin_v0 plugin = {.struct_size = sizeof(sherd_plugin_v0),
                            .major = SHERD_ABI_MAJOR,
                            .minor = SHERD_ABI_MINOR,
                            .next = nullptr,
                            .name = "local",
                            .operations = kAll,
                            .flags = SHERD_COMPLETES_IN_POST |
                                     SHERD_RANKS_ARE_THREADS |
                                     SHERD_ONE_HOST_ONLY | SHERD_COMPARES_CALLS,
                            .reserved = 0,
                            .library_version = nullptr,
                            .probe = Probe,
                            .create = Create,
                            .destroy = Destroy,
                            .post = Post,
                            .test = nullptr,
                            .abort = Abort,
                            .reductions = {},
                            .reserved2 = 0,
                            .bootstrap = nullptr,
                            .memory = &memory};
  sherd::internal::UseHostReductions(host, plugin);
  return plugin;
}

const sherd_plugin_v0* GetPlugin(const sherd_host_v0* host) {
  host_of_process = host;
  static const sherd_plugin_v0 plugin = MakePlugin(*host);
  return &plugin;
}

}  // namespace

SHERD_BACKEND_PLUGIN(GetPlugin)
