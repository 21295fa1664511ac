// The plugin "local", linked into this shared object, with one fault planted,
// selected by PLANTED_FAULT.

#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/plugin.h"

namespace {

enum Fault {
  kNone = 0,
  kWrongTail,
  kLiesAboutACapability,
  kLosesACompletion,
  kThrows,
  kWritesPastTheEnd,
  kIgnoresAbort,
  kLeaks,
  kTrustsHandles,
};

constexpr Fault kFault = static_cast<Fault>(PLANTED_FAULT);
constexpr const char* kNames[] = {
    "planted_none",          "planted_wrong_tail",
    "planted_lies",          "planted_loses_a_completion",
    "planted_throws",        "planted_writes_past_the_end",
    "planted_ignores_abort", "planted_leaks",
    "planted_trusts_handles"};

const sherd_plugin_v0* good;

struct Communicator {
  sherd_comm_v0* inner;
  int rank;
  int size;
  std::atomic<int> posts{0};
};

Communicator* Unwrap(sherd_comm_v0* comm) {
  return reinterpret_cast<Communicator*>(comm);
}

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  auto* const wrapper = new Communicator{nullptr, config->rank, config->size};
  const sherd_code code = good->create(config, &wrapper->inner, error);
  if (code != SHERD_OK) {
    delete wrapper;
    return code;
  }
  if (kFault == kLeaks && open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) {
    return SHERD_RESOURCE;
  }
  *comm = reinterpret_cast<sherd_comm_v0*>(wrapper);
  return SHERD_OK;
}

void Destroy(sherd_comm_v0* comm) {
  good->destroy(Unwrap(comm)->inner);
  delete Unwrap(comm);
}

sherd_code RunToTheEnd(sherd_comm_v0* inner, const sherd_op_v0* op,
                       sherd_request_v0* request, sherd_error_v0* error) {
  sherd_code code = good->post(inner, op, request, error);
  while (code == SHERD_IN_PROGRESS) code = good->test(inner, request, error);
  return code;
}

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op,
                sherd_request_v0* request, sherd_error_v0* error) {
  Communicator& wrapper = *Unwrap(comm);
  const int number = ++wrapper.posts;
  const bool last = wrapper.rank == wrapper.size - 1;
  if (kFault == kLiesAboutACapability && op->op == SHERD_ALL_REDUCE &&
      op->dtype == SHERD_INT16) {
    return SHERD_UNSUPPORTED;
  }
  if (kFault == kThrows && number == 10) throw std::runtime_error("planted");
  const sherd_code code = RunToTheEnd(wrapper.inner, op, request, error);
  if (code != SHERD_OK) return code;
  auto* const out = static_cast<char*>(op->out);
  if (kFault == kWrongTail && last && op->op == SHERD_ALL_REDUCE &&
      op->bytes > 1000) {
    out[op->bytes - 1] ^= 1;
  }
  if (kFault == kWritesPastTheEnd && last && op->op == SHERD_ALL_GATHER) {
    out[op->bytes * wrapper.size] = 0;
  }
  if (kFault != kLosesACompletion) return SHERD_OK;
  // The host clears nothing of it, and post is done with it.
  request->words[0] = static_cast<uint64_t>(number);
  return SHERD_IN_PROGRESS;
}

sherd_code Test(sherd_comm_v0* comm, sherd_request_v0* request,
                sherd_error_v0*) {
  const bool lost = Unwrap(comm)->rank == 0 && request->words[0] == 40;
  return lost ? SHERD_IN_PROGRESS : SHERD_OK;
}

void Abort(sherd_comm_v0* comm) {
  if (kFault != kIgnoresAbort) good->abort(Unwrap(comm)->inner);
}

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  return good->memory->open_peers(Unwrap(comm)->inner, peers, error);
}

sherd_code Import(sherd_peers_v0* peers, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  const sherd_code code =
      good->memory->import_memory(peers, peer, handle, range, error);
  if (kFault != kTrustsHandles || code == SHERD_OK) return code;
  *range = {reinterpret_cast<void*>(handle->words[4]), handle->words[5]};
  return SHERD_OK;
}

}  // namespace

extern "C" const sherd_plugin_v0* sherd_get_plugin_v0(
    const sherd_host_v0* host) {
  static sherd_plugin_v0 table;
  static sherd_memory_v0 memory;
  good = sherd::internal::StaticPlugin<sherd_plugin_v0>::Head()->entry(host);
  if (good == nullptr) return nullptr;
  table = *good;
  table.name = kNames[kFault];
  table.create = Create;
  table.destroy = Destroy;
  table.post = Post;
  table.abort = Abort;
  table.test = nullptr;
  memory = *good->memory;
  memory.open_peers = OpenPeers;
  memory.import_memory = Import;
  table.memory = &memory;
  table.flags |= SHERD_COMPLETES_IN_POST;
  if (kFault == kLosesACompletion) {
    table.flags &= ~uint32_t{SHERD_COMPLETES_IN_POST};
    table.test = Test;
  }
  return &table;
}
