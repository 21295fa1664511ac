// Collectives over Gloo's TCP transport.
//
// Every operation is a set of point-to-point messages on unbound buffers, not
// a call of Gloo's own collectives: those throw an error that does not say
// which rank it is about, cannot be ended from another thread, and know neither
// all types nor buffers that are not one array.

#include <signal.h>

#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/collectives.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"
#include "sherd/backends/gloo/point_to_point.h"
#include "sherd/backends/gloo/reductions.h"
#include "sherd/backends/host_reductions.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;
using sherd::internal::GlooMesh;
using sherd::internal::GlooOperation;
using sherd::internal::GlooPointToPoint;
using sherd::internal::GlooScratch;

// What sherd_comm_v0 stands for in this plugin.
class Communicator {
 public:
  Communicator(const sherd_comm_config_v0& config, const sherd_host_v0& host)
      : host_(host), mesh_(config.rank, config.size) {}

  sherd_code Connect(const sherd_comm_config_v0& config,
                     sherd_error_v0* error) {
    const sherd_code code = mesh_.Connect(config, error);
    return code == SHERD_OK ? Greet(config, error) : code;
  }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error) {
    GlooOperation operation(mesh_, op, error);
    if (operation.ok()) Start(op, operation);
    return operation.code();
  }

  void Abort() { mesh_.Abort(); }

 private:
  // Returns once every pair of ranks is connected at both ends, so that a rank
  // which fails while it connects fails the creation on all.
  sherd_code Greet(const sherd_comm_config_v0& config, sherd_error_v0* error) {
    std::vector<char> greetings(config.size);
    sherd_op_v0 op = {};
    op.struct_size = sizeof(op);
    op.op = SHERD_ALL_GATHER;
    op.in = &greetings[config.rank];
    op.out = greetings.data();
    op.bytes = 1;
    op.sequence = 0;  // The host's begin at 1.
    op.deadline = config.deadline;
    return Run(op, error);
  }

  void Start(const sherd_op_v0& op, GlooOperation& operation) {
    switch (op.op) {
      case SHERD_BARRIER:
        return GlooBarrier(mesh_, op, operation);
      case SHERD_BROADCAST:
        return GlooBroadcast(mesh_, op, operation);
      case SHERD_ALL_GATHER:
        return GlooAllGather(mesh_, op, operation);
      case SHERD_ALL_TO_ALL_V:
        return GlooAllToAllV(mesh_, op, operation);
      case SHERD_ALL_REDUCE:
        return GlooAllReduce(mesh_, host_, op, scratch_, operation);
      case SHERD_REDUCE:
        return GlooReduce(mesh_, host_, op, scratch_, operation);
      case SHERD_REDUCE_SCATTER:
        return GlooReduceScatter(mesh_, host_, op, scratch_, operation);
      case SHERD_ALL_GATHER_V:
        return GlooAllGatherV(mesh_, op, operation);
      case SHERD_GATHER:
        return GlooGather(mesh_, op, operation);
      case SHERD_SCATTER:
        return GlooScatter(mesh_, op, operation);
      case SHERD_SEND:
        return point_to_point_.Send(op, operation);
      case SHERD_RECV:
        return point_to_point_.Recv(op, operation);
      default:
        operation.Fail(SHERD_UNSUPPORTED, -1, "unknown operation");
    }
  }

  const sherd_host_v0& host_;
  GlooScratch scratch_;
  GlooPointToPoint point_to_point_;
  GlooMesh mesh_;
};

Communicator* From(sherd_comm_v0* comm) {
  return reinterpret_cast<Communicator*>(comm);
}

const sherd_host_v0* host_of_process = nullptr;

// Runs `body`, whose exceptions must not cross the plugin line.
template <typename Body>
sherd_code Guarded(sherd_error_v0* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(error, SHERD_RESOURCE, -1, "out of memory");
  } catch (const std::exception& e) {
    return Fail(error, SHERD_INTERNAL, -1, e.what());
  } catch (...) {
    return Fail(error, SHERD_INTERNAL, -1, "unknown exception");
  }
}

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

// Gloo writes to its sockets without MSG_NOSIGNAL, so that a peer's death would
// be this process's too. What the program itself set up is left alone.
void IgnoreBrokenPipes() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 &&
      current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  return Guarded(error, [&] {
    IgnoreBrokenPipes();
    auto made = std::make_unique<Communicator>(*config, *host_of_process);
    const sherd_code code = made->Connect(*config, error);
    if (code == SHERD_OK) {
      *comm = reinterpret_cast<sherd_comm_v0*>(made.release());
    }
    return code;
  });
}

void Destroy(sherd_comm_v0* comm) { delete From(comm); }

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return Guarded(error, [&] { return From(comm)->Run(*op, error); });
}

void Abort(sherd_comm_v0* comm) {
  sherd_error_v0 ignored;
  Guarded(&ignored, [&] {
    From(comm)->Abort();
    return SHERD_OK;
  });
}

constexpr uint64_t kAll = (1u << SHERD_NUM_OPERATIONS) - 1;

sherd_plugin_v0 MakePlugin(const sherd_host_v0& host) {
  sherd_plugin_v0 plugin = {.struct_size = sizeof(sherd_plugin_v0),
                            .major = SHERD_ABI_MAJOR,
                            .minor = SHERD_ABI_MINOR,
                            .next = nullptr,
                            .name = "gloo",
                            .operations = kAll,
                            .flags = SHERD_COMPLETES_IN_POST,
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
