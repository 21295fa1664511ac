#ifndef SHERD_BACKENDS_GLOO_POINT_TO_POINT_H_
#define SHERD_BACKENDS_GLOO_POINT_TO_POINT_H_

#include <atomic>
#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/mesh.h"
#include "sherd/backends/gloo/operation.h"

namespace sherd::internal {

// Messages from one rank to another, matched by tag.
//
// The first message, of fixed length, contains the length of the data, so that
// the receiver detects a different length before Gloo, which would end the
// process. It also contains short data; long data follows on a slot of its own,
// because several messages with equal tags may be in flight.
//
// Threads. Any number of sends and receives at a time.
class GlooPointToPoint {
 public:
  void Send(const sherd_op_v0& op, GlooOperation& operation);
  void Recv(const sherd_op_v0& op, GlooOperation& operation);

 private:
  std::atomic<uint64_t> next_payload_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_POINT_TO_POINT_H_
