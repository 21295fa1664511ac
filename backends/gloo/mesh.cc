#include "sherd/backends/gloo/mesh.h"

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <utility>

#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/backends/gloo/operation.h"
#include "sherd/backends/gloo/wait_limits.h"
#include "sherd/backends/plugin_error.h"

namespace sherd::internal {
namespace {

constexpr uint64_t kSentinelSlot = ~uint64_t{0};
constexpr char kLoopback[] = "127.0.0.1";

std::string Key(int rank) { return "gloo/" + std::to_string(rank); }

std::string AddressOf(const sherd_comm_config_v0& config) {
  constexpr size_t kEnd =
      offsetof(sherd_comm_config_v0, address) + sizeof(config.address);
  return config.struct_size >= kEnd && config.address != nullptr
             ? config.address
             : kLoopback;
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
  const std::string address = AddressOf(config);
  try {
    CreateDevice(address);
  } catch (const std::exception& e) {
    return Fail(error, SHERD_SYSTEM, -1,
                ("cannot listen on " + address + ": " + e.what()).c_str());
  }
  context_ = device_->createContext(rank_, size_);
  // Of which Gloo gives a connection five. Nothing else uses it.
  context_->setTimeout(Remaining(config.deadline) / 5 +
                       std::chrono::milliseconds(1));

  std::vector<std::vector<char>> addresses(size_);
  size_t length = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    addresses[peer] = context_->createPair(peer)->address().bytes();
    length = addresses[peer].size();
  }
  std::vector<char> blob;
  addresses[rank_].resize(length);
  for (const std::vector<char>& bytes : addresses) {
    blob.insert(blob.end(), bytes.begin(), bytes.end());
  }
  const sherd_kv_v0& kv = *config.kv;
  sherd_code code =
      kv.set(kv.context, Key(rank_).c_str(), blob.data(), blob.size());
  if (code != SHERD_OK) return Fail(error, code, -1, "the store failed");
  code = ConnectPairs(config, length, error);
  if (code == SHERD_OK && WatchConnections()) {
    watcher_ = std::thread([this] { Watch(); });
  }
  return code;
}

// Gloo's thread, which moves the bytes, wakes for every packet. Under the
// default policy it then preempts the thread that is filling a socket, finds
// the connection's lock taken by it, and spins; a batch thread waits for its
// turn. Threads inherit the policy of their creator. Where it cannot be set,
// transfers are slower.
void GlooMesh::CreateDevice(const std::string& address) {
  // An address, never the host's name, which need not resolve.
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
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
  device_ = gloo::transport::tcp::CreateDevice(attributes);
}

// `length` is that of one address; each rank's value holds one per peer.
sherd_code GlooMesh::ConnectPairs(const sherd_comm_config_v0& config,
                                  size_t length, sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config.kv;
  // All addresses before the first connection: a rank that is lost is told of
  // while waiting for the one, not for the other.
  std::vector<std::vector<char>> addresses(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    std::vector<char> blob(length * size_);
    uint64_t found = 0;
    const sherd_code code =
        kv.get(kv.context, Key(peer).c_str(), config.deadline, blob.data(),
               blob.size(), &found);
    if (code == SHERD_PEER_LOST) return Fail(error, code, -1, "a rank is lost");
    if (code != SHERD_OK) {
      return Fail(error, code, peer, "did not publish its address");
    }
    if (found != blob.size()) {
      return Fail(error, SHERD_INTERNAL, peer, "published a bad address");
    }
    const auto own = blob.begin() + static_cast<ptrdiff_t>(rank_ * length);
    addresses[peer].assign(own, own + static_cast<ptrdiff_t>(length));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    try {
      context_->getPair(peer)->connect(addresses[peer]);
    } catch (const std::exception& e) {
      return Fail(error,
                  HasPassed(config.deadline) ? SHERD_TIMEOUT : SHERD_PEER_LOST,
                  peer, e.what());
    }
  }
  return SHERD_OK;
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
      // A connection broke. Which one, each says itself.
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
