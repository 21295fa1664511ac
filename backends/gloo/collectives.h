#ifndef SHERD_BACKENDS_GLOO_COLLECTIVES_H_
#define SHERD_BACKENDS_GLOO_COLLECTIVES_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"

namespace sherd::internal {

// Collectives that only move bytes, each over direct messages. They return once
// this rank's part is done; operation.code() says how it ended.

// Everybody tells rank 0, which then tells everybody: 2 (P - 1) messages, and a
// rank that did not come is missed by rank 0, which the others wait for.
void GlooBarrier(GlooMesh& mesh, const sherd_op_v0& op,
                 GlooOperation& operation);

// Binomial tree: in step i, the 2^i ranks that have the data send it on.
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
