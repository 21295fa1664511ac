#ifndef SHERD_BACKENDS_GLOO_REDUCTIONS_H_
#define SHERD_BACKENDS_GLOO_REDUCTIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"

namespace sherd::internal {

// Memory for data that is to be reduced: grows to a few MiB, and is kept
// between calls.
class GlooScratch {
 public:
  // At least `size` bytes, whose content is undefined.
  char* Get(size_t size) {
    if (size > size_) {
      memory_ = nullptr;
      memory_.reset(new char[size]);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t size_ = 0;
};

// Collectives that compute. The vector is cut into one slice per rank; each
// rank receives the others' parts of its slice in chunks, reduces all of them
// in one pass of the host's function while the next chunks arrive, and sends
// the result to the ranks that need it. So every element is rounded once, and
// all ranks have the same bits. A small vector is one slice, owned by rank 0 or
// the root.
//
// Gloo's own reductions are not used: they lack types, do not report whose
// connection broke, and cannot be ended by another thread. Nor is the host's
// Emulation, which needs all_to_all_v only: each of its rounds ends before the
// next begins, and on every rank. AllReduce by it took 1.1 times as long (8 B
// to 64 MiB, 2 and 4 ranks, geometric mean), up to 16 KiB on 4 ranks 1.3 to 1.5
// times, for it has twice the messages there.
void GlooAllReduce(GlooMesh& mesh, const sherd_host_v0& host,
                   const sherd_op_v0& op, GlooScratch& scratch,
                   GlooOperation& operation);
void GlooReduce(GlooMesh& mesh, const sherd_host_v0& host,
                const sherd_op_v0& op, GlooScratch& scratch,
                GlooOperation& operation);
void GlooReduceScatter(GlooMesh& mesh, const sherd_host_v0& host,
                       const sherd_op_v0& op, GlooScratch& scratch,
                       GlooOperation& operation);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_REDUCTIONS_H_
