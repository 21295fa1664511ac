// Ranks are threads of one process: each operation is a meeting at which every
// rank takes what it needs straight from the others' buffers.

#include <unistd.h>

#include <cstdint>
#include <exception>
#include <new>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/host_reductions.h"
#include "sherd/backends/local/meeting.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;
using sherd::internal::Meeting;

constexpr char kMeetingKey[] = "local/meeting";

const sherd_host_v0* host_of_process = nullptr;

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

// Where rank 0 made the meeting. Only meaningful in its own process.
struct MeetingAddress {
  int64_t pid;
  Meeting* meeting;
};

// What sherd_comm_v0 stands for in this plugin.
struct Member {
  int rank;
  Meeting* meeting;
};

Member* From(sherd_comm_v0* comm) { return reinterpret_cast<Member*>(comm); }

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  MeetingAddress address = {getpid(), nullptr};
  if (config->rank == 0) {
    address.meeting =
        new (std::nothrow) Meeting(config->size, *host_of_process);
    if (address.meeting == nullptr) {
      return Fail(error, SHERD_RESOURCE, -1, "out of memory");
    }
    const sherd_code code = config->kv->set(config->kv->context, kMeetingKey,
                                            &address, sizeof(address));
    if (code != SHERD_OK) {
      delete address.meeting;
      return Fail(error, code, -1, "the store failed");
    }
  } else {
    uint64_t size = 0;
    const sherd_code code =
        config->kv->get(config->kv->context, kMeetingKey, config->deadline,
                        &address, sizeof(address), &size);
    if (code != SHERD_OK || size != sizeof(address)) {
      return Fail(error, code == SHERD_OK ? SHERD_INTERNAL : code, 0,
                  "did not set up the group");
    }
    if (address.pid != getpid()) {
      return Fail(error, SHERD_INVALID_ARGUMENT, 0,
                  "is in another process, but ranks of the backend \"local\" "
                  "are threads of one; use gloo between processes");
    }
  }
  *comm = reinterpret_cast<sherd_comm_v0*>(
      new (std::nothrow) Member{config->rank, address.meeting});
  if (*comm != nullptr) return SHERD_OK;
  if (address.meeting->Leave(config->rank)) delete address.meeting;
  return Fail(error, SHERD_RESOURCE, -1, "out of memory");
}

void Destroy(sherd_comm_v0* comm) {
  Member* const member = From(comm);
  if (member->meeting->Leave(member->rank)) delete member->meeting;
  delete member;
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
                            .abort = Abort};
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
