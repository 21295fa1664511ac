#include "sherd/backends/gloo/mesh.h"

#include <netdb.h>
#include <sched.h>

#include <cstring>
#include <exception>
#include <utility>

#include "sherd/backends/gloo/operation.h"
#include "sherd/backends/gloo/pair_connection.h"
#include "sherd/backends/gloo/wait_limits.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr uint64_t kSentinelSlot = ~uint64_t{0};

// The numeric `address` in Gloo's terms; false if it is not one.
bool Resolve(const std::string& address,
             gloo::transport::tcp::attr& attributes) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return false;
  attributes.hostname = address;
  attributes.ai_family = found->ai_family;
  attributes.ai_socktype = SOCK_STREAM | SOCK_CLOEXEC;
  attributes.ai_protocol = 0;
  attributes.ai_addr = {};
  std::memcpy(&attributes.ai_addr, found->ai_addr, found->ai_addrlen);
  attributes.ai_addrlen = static_cast<int>(found->ai_addrlen);
  freeaddrinfo(found);
  return true;
}

}  // namespace

GlooMesh::~GlooMesh() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    if (sentinel_ != nullptr) sentinel_->abortWaitRecv();
  }
  if (watcher_.joinable()) watcher_.join();
  sentinel_ = nullptr;
  ClosePairs();
}

sherd_code GlooMesh::Connect(const sherd_comm_config_v0& config,
                             sherd_error_v0* error) {
  const std::string address = config.address;
  gloo::transport::tcp::attr attributes;
  if (!Resolve(address, attributes)) {
    return Fail(error, SHERD_INVALID_ARGUMENT, -1,
                ("the address to listen on is \"" + address +
                 "\", expected a numeric one")
                    .c_str());
  }
  try {
    CreateDevice(attributes);
  } catch (const std::exception& e) {
    return Fail(error, SHERD_SYSTEM, -1,
                ("cannot listen on " + address + ": " + e.what()).c_str());
  }
  GlooPeerSockets sockets(rank_, size_);
  const sherd_code code =
      sockets.Connect(config, attributes.ai_addr,
                      static_cast<socklen_t>(attributes.ai_addrlen), error);
  if (code != SHERD_OK) return code;
  context_ = device_->createContext(rank_, size_);
  // Without a timeout Gloo uses its own. No operation relies on it.
  context_->setTimeout(kForever);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ &&
        !ConnectPairOver(sockets.Take(peer), *device_, *context_, peer)) {
      return Fail(error, SHERD_SYSTEM, peer,
                  "Gloo took no connection to it: is this process out of "
                  "descriptors (ulimit -n), or without /proc?");
    }
  }
  if (WatchConnections()) watcher_ = std::thread([this] { Watch(); });
  return SHERD_OK;
}

// Gloo's thread, which moves the bytes, wakes for every packet. Under the
// default policy it then preempts the thread that is filling a socket, finds
// the connection's lock taken by it, and spins; a batch thread waits for its
// turn. Threads inherit the policy of their creator. Where it cannot be set,
// transfers are slower.
void GlooMesh::CreateDevice(const gloo::transport::tcp::attr& attributes) {
  struct Policy {
    Policy() : old(sched_getscheduler(0)) {
      if (old == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &none);
    }
    ~Policy() {
      if (old == SCHED_OTHER) sched_setscheduler(0, old, &none);
    }
    const int old;
    const sched_param none = {};
  } policy;
  device_ = MakeGlooDevice(attributes);
}

void GlooMesh::ClosePairs() {
  if (context_ == nullptr) return;
  for (int peer = 0; peer < size_; ++peer) {
    const auto& pair = context_->getPair(peer);
    if (pair != nullptr) pair->close();
  }
}

void GlooMesh::Abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    for (GlooOperation* operation : running_) operation->EndWaits();
  }
  ClosePairs();
}

void GlooMesh::Watch() {
  for (;;) {
    try {
      sentinel_->waitRecv(nullptr, kForever);
    } catch (const std::exception&) {
      // A connection broke. Each connection's own state shows which one.
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closing_ || aborted_) return;
    }
    if (!WatchConnections()) return;
  }
}

bool GlooMesh::WatchConnections() {
  auto sentinel = context_->createUnboundBuffer(&sentinel_byte_, 1);
  std::lock_guard<std::mutex> lock(mutex_);
  bool any = false;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || lost_[peer]) continue;
    try {
      sentinel->recv(peer, kSentinelSlot);
      any = true;
    } catch (const std::exception&) {
      lost_[peer] = true;
      for (GlooOperation* operation : running_) operation->EndWaitsFor(peer);
    }
  }
  sentinel_ = std::move(sentinel);
  return any && !closing_ && !aborted_;
}

}  // namespace sherd::internal
