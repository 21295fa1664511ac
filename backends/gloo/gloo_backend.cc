// Collectives over Gloo's TCP transport.
//
// Every operation is a set of point-to-point messages on unbound buffers, not a
// call of Gloo's own collectives: their errors do not identify the failed rank,
// another thread cannot end them, and they lack types and buffers that are not
// one array.

#include <signal.h>

#include <memory>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/collectives.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"
#include "sherd/backends/gloo/point_to_point.h"
#include "sherd/backends/gloo/reductions.h"
#include "sherd/backends/plugin.h"

namespace {

using sherd::internal::GlooMesh;
using sherd::internal::GlooOperation;
using sherd::internal::GlooPointToPoint;
using sherd::internal::GlooScratch;

// Gloo writes to its sockets without MSG_NOSIGNAL, so a peer's death would end
// this process too. A handler that the program itself installed is kept.
void IgnoreBrokenPipes() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 &&
      current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

class Communicator {
 public:
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Communicator>* made,
                           sherd_error_v0* error) {
    IgnoreBrokenPipes();
    *made = std::make_unique<Communicator>(config);
    const sherd_code code = (*made)->mesh_.Connect(config, error);
    return code == SHERD_OK ? (*made)->Greet(config, error) : code;
  }

  explicit Communicator(const sherd_comm_config_v0& config)
      : mesh_(config.rank, config.size) {}

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

  const sherd_host_v0& host_ = sherd::plugin::Host();
  GlooScratch scratch_;
  GlooPointToPoint point_to_point_;
  GlooMesh mesh_;
};

constexpr sherd_plugin_v0 kPlugin =
    sherd::plugin::WithHostReductions(sherd::plugin::BackendTable<Communicator>(
        {.name = "gloo", .operations = sherd::plugin::kAllOperations}));

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
