#ifndef SHERD_BACKENDS_GLOO_OPERATION_H_
#define SHERD_BACKENDS_GLOO_OPERATION_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gloo/transport/unbound_buffer.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/mesh.h"

namespace sherd::internal {

// Memory for messages to or from one peer. Messages of one slot are matched,
// and completed, in order.
struct GlooChannel {
  int peer = -1;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  // The connection broke: no further data will arrive.
  std::atomic<bool> lost = false;
  // Messages that were started and not yet waited for.
  uint64_t sending = 0;
  uint64_t receiving = 0;
};

// A whole message.
struct GlooMessage {
  int peer;
  void* data;
  uint64_t size;
};

// One running operation: its channels, its deadline, and its first error. After
// an error every call returns false and does nothing, so that callers check
// code() once, at their end.
//
// After destruction no connection accesses the channels' memory.
//
// Threads. One thread per operation; operations of a mesh may run side by side.
class GlooOperation {
 public:
  // `error` outlives the operation.
  GlooOperation(GlooMesh& mesh, const sherd_op_v0& op, sherd_error_v0* error);
  GlooOperation(const GlooOperation&) = delete;
  GlooOperation& operator=(const GlooOperation&) = delete;
  ~GlooOperation();

  sherd_code code() const { return code_; }
  bool ok() const { return code_ == SHERD_OK; }

  // Uninitialised memory for messages, which lives as long as the operation:
  // memory of the caller could be freed too early if the operation fails.
  char* Memory(uint64_t size);

  // A channel that lives as long as the operation.
  GlooChannel& Open(int peer, const void* data, uint64_t size);

  // Start a message; never wait.
  bool Send(GlooChannel& channel, uint64_t slot, uint64_t offset,
            uint64_t size);
  bool Recv(GlooChannel& channel, uint64_t slot, uint64_t offset,
            uint64_t size);

  // Wait for the oldest message that was not waited for.
  bool AwaitSend(GlooChannel& channel);
  bool AwaitRecv(GlooChannel& channel);

  // Waits for all messages of all channels.
  bool AwaitAll();

  // Sends and receives all messages on `slot`.
  bool Exchange(uint64_t slot, const std::vector<GlooMessage>& sends,
                const std::vector<GlooMessage>& recvs);

  // Fails the operation, unless it has failed already.
  bool Fail(sherd_code code, int peer, const char* text);

 private:
  friend class GlooMesh;

  // Make this operation's waits return false: all, or those for `peer`. The
  // caller holds the mesh's lock.
  void EndWaits();
  void EndWaitsFor(int peer);

  template <typename Body>
  bool Guarded(GlooChannel& channel, Body body);
  template <typename WaitOnce>
  bool Await(GlooChannel& channel, WaitOnce wait_once);
  // Whether a message from, or to, a lost peer has nevertheless completed.
  template <typename WaitOnce>
  bool Look(GlooChannel& channel, WaitOnce wait_once);
  // Translates Gloo's error `text` on a connection to `peer`.
  bool FailAt(int peer, const char* text);

  GlooMesh& mesh_;
  const int64_t deadline_;
  sherd_error_v0* const error_;
  sherd_code code_ = SHERD_OK;
  // Outlives the channels.
  std::vector<std::unique_ptr<char[]>> memory_;
  // Grows under the mesh's lock.
  std::deque<GlooChannel> channels_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_OPERATION_H_
