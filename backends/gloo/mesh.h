#ifndef SHERD_BACKENDS_GLOO_MESH_H_
#define SHERD_BACKENDS_GLOO_MESH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gloo/transport/context.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/gloo/peer_sockets.h"

namespace sherd::internal {

class GlooOperation;

// One rank's connections to all others of its group, over Gloo's TCP transport.
// Gloo's pairs neither listen nor connect: they receive connections that
// GlooPeerSockets made.
//
// Gloo reports a broken connection to an operation only if its message has not
// begun to move, and to no thread that waits for another peer. Therefore a
// thread watches all connections and ends the waits that need a broken one;
// operations that need other peers continue.
//
// Slots, the numbers by which Gloo matches messages, are assigned below such
// that those of collectives and of point-to-point messages are disjoint.
//
// Threads. Abort from any thread; operations as for GlooOperation.
class GlooMesh {
 public:
  GlooMesh(int rank, int size) : rank_(rank), size_(size), lost_(size) {}
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;
  // No operation may be running.
  ~GlooMesh();

  // Called once, before anything else. Throws Gloo's exceptions.
  sherd_code Connect(const sherd_comm_config_v0& config, sherd_error_v0* error);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The k-th peer of this rank, 1 <= k < size. Each rank begins with a
  // different one, so that not all send to the same rank at once.
  int Peer(int k) const { return (rank_ + k) % size_; }

  // Ends running operations and all connections; the peers notice it.
  void Abort();

  // Messages of a collective; `phase` is 0 to 3.
  static uint64_t CollectiveSlot(uint64_t sequence, int phase) {
    return sequence << 2 | static_cast<uint64_t>(phase);
  }
  // The first message of a send, and its second message.
  static uint64_t TagSlot(int64_t tag) {
    return uint64_t{1} << 63 | static_cast<uint64_t>(tag);
  }
  static uint64_t PayloadSlot(uint64_t number) {
    return uint64_t{3} << 62 | number;
  }

 private:
  friend class GlooOperation;

  void CreateDevice(const gloo::transport::tcp::attr& attributes);
  void ClosePairs();
  // Body of the watching thread.
  void Watch();
  // Posts a receive that no peer serves on each intact connection, and ends the
  // waits for peers whose connection is broken. False if no connection is
  // intact.
  bool WatchConnections();

  const int rank_;
  const int size_;
  std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;

  std::mutex mutex_;
  bool aborted_ = false;
  bool closing_ = false;
  // Why this rank closed all connections, as Gloo does when a wait times out.
  // Operations that ran at the same time report the same error.
  sherd_code cause_ = SHERD_OK;
  int cause_peer_ = -1;
  std::vector<bool> lost_;
  std::vector<GlooOperation*> running_;
  // Only the watching thread replaces it.
  std::unique_ptr<gloo::transport::UnboundBuffer> sentinel_;
  char sentinel_byte_ = 0;
  std::thread watcher_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_MESH_H_
