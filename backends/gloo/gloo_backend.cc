// Collectives over Gloo's TCP transport.
//
// Every operation is a set of point-to-point messages on unbound buffers, not
// a call of Gloo's own collectives: those throw an error that does not say
// which rank it is about, cannot be ended from another thread, and all_to_all
// would need its entries in one array.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gloo/context.h"
#include "gloo/transport/address.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Longer than any run, short enough for Gloo's arithmetic.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);

// Time left, at least 1 ms: Gloo takes 0 as "no limit".
milliseconds Remaining(int64_t deadline) {
  if (deadline == SHERD_NO_DEADLINE) return kForever;
  const auto left =
      steady_clock::time_point(nanoseconds(deadline)) - steady_clock::now();
  return std::clamp(
      std::chrono::duration_cast<milliseconds>(left) + milliseconds(1),
      milliseconds(1), kForever);
}

bool HasPassed(int64_t deadline) {
  return deadline != SHERD_NO_DEADLINE &&
         steady_clock::now() >= steady_clock::time_point(nanoseconds(deadline));
}

struct Message {
  int peer;
  void* data;
  uint64_t size;
};

// A Gloo context whose rendezvous is the host's store, so that addresses can be
// exchanged under the host's deadline.
class Mesh final : public gloo::Context {
 public:
  Mesh(const sherd_comm_config_v0& config)
      : gloo::Context(config.rank, config.size) {}

  sherd_code Connect(const sherd_comm_config_v0& config,
                     sherd_error_v0* error) {
    // Never the host's name, which need not resolve: all ranks are on this
    // host.
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "127.0.0.1";
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(Remaining(config.deadline));

    std::vector<std::vector<char>> addresses(size);
    size_t length = 0;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      addresses[peer] = transportContext_->createPair(peer)->address().bytes();
      length = addresses[peer].size();
    }
    std::vector<char> blob;
    addresses[rank].resize(length);
    for (const std::vector<char>& address : addresses) {
      blob.insert(blob.end(), address.begin(), address.end());
    }
    const sherd_kv_v0& kv = *config.kv;
    const sherd_code code =
        kv.set(kv.context, Key(rank).c_str(), blob.data(), blob.size());
    if (code != SHERD_OK) return Fail(error, code, -1, "the store failed");
    return ConnectPairs(config, length, error);
  }

  gloo::transport::Context& transport() { return *transportContext_; }

  // Ends all connections that there are; the far ends notice. Any thread.
  void Close() {
    if (transportContext_ == nullptr) return;
    for (int peer = 0; peer < size; ++peer) {
      const auto& pair = transportContext_->getPair(peer);
      if (pair != nullptr) pair->close();
    }
  }

 private:
  static std::string Key(int rank) { return "gloo/" + std::to_string(rank); }

  // `length` is that of one address; each rank's value holds one per peer.
  sherd_code ConnectPairs(const sherd_comm_config_v0& config, size_t length,
                          sherd_error_v0* error) {
    const sherd_kv_v0& kv = *config.kv;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      std::vector<char> blob(length * size);
      uint64_t found = 0;
      const sherd_code code =
          kv.get(kv.context, Key(peer).c_str(), config.deadline, blob.data(),
                 blob.size(), &found);
      if (code != SHERD_OK) {
        return Fail(error, code, peer, "did not publish its address");
      }
      if (found != blob.size()) {
        return Fail(error, SHERD_INTERNAL, peer, "published a bad address");
      }
      const auto own = blob.begin() + static_cast<ptrdiff_t>(rank * length);
      try {
        transportContext_->getPair(peer)->connect(
            std::vector<char>(own, own + static_cast<ptrdiff_t>(length)));
      } catch (const std::exception& e) {
        return Fail(
            error, HasPassed(config.deadline) ? SHERD_TIMEOUT : SHERD_PEER_LOST,
            peer, e.what());
      }
    }
    return SHERD_OK;
  }
};

}  // namespace

struct sherd_comm_v0 {
 public:
  explicit sherd_comm_v0(const sherd_comm_config_v0& config) : mesh_(config) {}

  ~sherd_comm_v0() { mesh_.Close(); }

  sherd_code Connect(const sherd_comm_config_v0& config,
                     sherd_error_v0* error) {
    return mesh_.Connect(config, error);
  }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error) {
    switch (op.op) {
      case SHERD_BARRIER:
        return Barrier(op, error);
      case SHERD_BROADCAST:
        return Broadcast(op, error);
      case SHERD_ALL_GATHER:
        return AllGather(op, error);
      case SHERD_ALL_TO_ALL_V:
        return AllToAllV(op, error);
      default:
        return Fail(error, SHERD_UNSUPPORTED, -1, "unknown operation");
    }
  }

  void Abort() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      aborted_ = true;
      for (auto& buffer : in_flight_) {
        buffer->abortWaitSend();
        buffer->abortWaitRecv();
      }
    }
    mesh_.Close();
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  int rank() const { return mesh_.rank; }
  int size() const { return mesh_.size; }
  // The k-th peer of this rank. Everybody starts at another one, so that not
  // all talk to the same rank at once.
  int Peer(int k) const { return (rank() + k) % size(); }

  // Everybody tells everybody: the rank that did not come is then the one whose
  // message is missing.
  sherd_code Barrier(const sherd_op_v0& op, sherd_error_v0* error) {
    char sent = 0;
    std::vector<char> received(size());
    std::vector<Message> sends, recvs;
    for (int k = 1; k < size(); ++k) {
      sends.push_back({Peer(k), &sent, 1});
      recvs.push_back({Peer(k), &received[Peer(k)], 1});
    }
    return Exchange(op, sends, recvs, error);
  }

  // Binomial tree: in step i, the 2^i ranks that have the data send it on.
  sherd_code Broadcast(const sherd_op_v0& op, sherd_error_v0* error) {
    const int position = (rank() - op.root + size()) % size();
    int step = 1;
    while (step <= position) step *= 2;
    if (position > 0) {
      const int parent = position - step / 2;
      const sherd_code code = Exchange(
          op, {}, {{(parent + op.root) % size(), op.out, op.bytes}}, error);
      if (code != SHERD_OK) return code;
    }
    std::vector<Message> sends;
    for (; position + step < size(); step *= 2) {
      sends.push_back({(position + step + op.root) % size(), op.out, op.bytes});
    }
    return Exchange(op, sends, {}, error);
  }

  sherd_code AllGather(const sherd_op_v0& op, sherd_error_v0* error) {
    std::vector<Message> sends, recvs;
    for (int k = 1; k < size(); ++k) {
      sends.push_back({Peer(k), const_cast<void*>(op.in), op.bytes});
      recvs.push_back(
          {Peer(k), static_cast<char*>(op.out) + Peer(k) * op.bytes, op.bytes});
    }
    return Exchange(op, sends, recvs, error);
  }

  sherd_code AllToAllV(const sherd_op_v0& op, sherd_error_v0* error) {
    std::vector<Message> sends, recvs;
    for (int k = 1; k < size(); ++k) {
      const int peer = Peer(k);
      if (op.sends[peer].size > 0) {
        sends.push_back({peer, op.sends[peer].data, op.sends[peer].size});
      }
      if (op.recvs[peer].size > 0) {
        recvs.push_back({peer, op.recvs[peer].data, op.recvs[peer].size});
      }
    }
    return Exchange(op, sends, recvs, error);
  }

  // Sends and receives all messages. On return no connection uses the buffers
  // any more.
  sherd_code Exchange(const sherd_op_v0& op, const std::vector<Message>& sends,
                      const std::vector<Message>& recvs,
                      sherd_error_v0* error) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_) return Fail(error, SHERD_ABORTED, -1, "aborted");
      in_flight_.clear();
      for (const std::vector<Message>* list : {&recvs, &sends}) {
        for (const Message& m : *list) {
          in_flight_.push_back(
              mesh_.transport().createUnboundBuffer(m.data, m.size));
        }
      }
    }
    const sherd_code code = PostAndWait(op, sends, recvs, error);
    std::lock_guard<std::mutex> lock(mutex_);
    in_flight_.clear();
    return code;
  }

  // in_flight_ holds the buffers of `recvs`, then of `sends`; only this thread
  // changes the list.
  sherd_code PostAndWait(const sherd_op_v0& op,
                         const std::vector<Message>& sends,
                         const std::vector<Message>& recvs,
                         sherd_error_v0* error) {
    int peer = -1;
    try {
      for (size_t i = 0; i < recvs.size(); ++i) {
        peer = recvs[i].peer;
        in_flight_[i]->recv(peer, op.sequence);
      }
      for (size_t i = 0; i < sends.size(); ++i) {
        peer = sends[i].peer;
        in_flight_[recvs.size() + i]->send(peer, op.sequence);
      }
      bool whole = true;
      for (size_t i = 0; i < recvs.size() && whole; ++i) {
        peer = recvs[i].peer;
        whole = in_flight_[i]->waitRecv(nullptr, Remaining(op.deadline));
      }
      for (size_t i = 0; i < sends.size() && whole; ++i) {
        peer = sends[i].peer;
        whole = in_flight_[recvs.size() + i]->waitSend(nullptr,
                                                       Remaining(op.deadline));
      }
      if (whole) return SHERD_OK;
      return Fail(error, SHERD_ABORTED, -1, "aborted");
    } catch (const std::exception& e) {
      if (IsAborted()) return Fail(error, SHERD_ABORTED, -1, "aborted");
      if (HasPassed(op.deadline)) {
        return Fail(error, SHERD_TIMEOUT, peer, "did not come in time");
      }
      return Fail(error, SHERD_PEER_LOST, peer, e.what());
    }
  }

  bool IsAborted() {
    std::lock_guard<std::mutex> lock(mutex_);
    return aborted_;
  }

  Mesh mesh_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<Buffer> in_flight_;
};

namespace {

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
    auto made = std::make_unique<sherd_comm_v0>(*config);
    const sherd_code code = made->Connect(*config, error);
    if (code == SHERD_OK) *comm = made.release();
    return code;
  });
}

void Destroy(sherd_comm_v0* comm) { delete comm; }

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return Guarded(error, [&] { return comm->Run(*op, error); });
}

void Abort(sherd_comm_v0* comm) {
  sherd_error_v0 ignored;
  Guarded(&ignored, [&] {
    comm->Abort();
    return SHERD_OK;
  });
}

const sherd_plugin_v0 kPlugin = {
    .struct_size = sizeof(sherd_plugin_v0),
    .major = SHERD_ABI_MAJOR,
    .minor = SHERD_ABI_MINOR,
    .next = nullptr,
    .name = "gloo",
    .operations = 1u << SHERD_BARRIER | 1u << SHERD_BROADCAST |
                  1u << SHERD_ALL_GATHER | 1u << SHERD_ALL_TO_ALL_V,
    .flags = SHERD_COMPLETES_IN_POST,
    .reserved = 0,
    .library_version = nullptr,
    .probe = Probe,
    .create = Create,
    .destroy = Destroy,
    .post = Post,
    .test = nullptr,
    .abort = Abort};

const sherd_plugin_v0* GetPlugin(const sherd_host_v0*) { return &kPlugin; }

}  // namespace

SHERD_BACKEND_PLUGIN(GetPlugin)
