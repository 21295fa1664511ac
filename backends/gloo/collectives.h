#ifndef SHERD_BACKENDS_GLOO_COLLECTIVES_H_
#define SHERD_BACKENDS_GLOO_COLLECTIVES_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"

namespace sherd::internal {

// Collectives that only move bytes, each over direct messages. They return once
// this rank's part is done; operation.code() is the result.

// Every rank sends to rank 0, which then sends to every rank: 2 (P - 1)
// messages. Rank 0 detects a rank that does not arrive; the others wait for
// rank 0.
void GlooBarrier(GlooMesh& mesh, const sherd_op_v0& op,
                 GlooOperation& operation);

// Binomial tree: in step i, the 2^i ranks that have the data forward it.
void GlooBroadcast(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation);

void GlooAllGather(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation);
void GlooAllToAllV(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation);
void GlooAllGatherV(GlooMesh& mesh, const sherd_op_v0& op,
                    GlooOperation& operation);
void GlooGather(GlooMesh& mesh, const sherd_op_v0& op,
                GlooOperation& operation);
void GlooScatter(GlooMesh& mesh, const sherd_op_v0& op,
                 GlooOperation& operation);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_COLLECTIVES_H_
