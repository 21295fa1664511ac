#include "sherd/backends/gloo/operation.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>

#include "gloo/common/error.h"
#include "gloo/transport/context.h"
#include "sherd/backends/gloo/wait_limits.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

using std::chrono::milliseconds;

// For messages that have arrived or never will. Gloo cannot be polled without a
// wait, and closes all connections if a message has not arrived.
constexpr milliseconds kALook(1);

constexpr char kBroken[] = "the connection broke";

}  // namespace

GlooOperation::GlooOperation(GlooMesh& mesh, const sherd_op_v0& op,
                             sherd_error_v0* error)
    : mesh_(mesh), deadline_(op.deadline), error_(error) {
  std::lock_guard<std::mutex> lock(mesh_.mutex_);
  mesh_.running_.push_back(this);
  if (mesh_.aborted_) Fail(SHERD_ABORTED, -1, "aborted");
}

GlooOperation::~GlooOperation() {
  std::lock_guard<std::mutex> lock(mesh_.mutex_);
  auto& running = mesh_.running_;
  running.erase(std::find(running.begin(), running.end(), this));
}

char* GlooOperation::Memory(uint64_t size) {
  return memory_.emplace_back(new char[size]).get();
}

GlooChannel& GlooOperation::Open(int peer, const void* data, uint64_t size) {
  // Gloo does not write to memory that it only sends.
  auto buffer =
      mesh_.context_->createUnboundBuffer(const_cast<void*>(data), size);
  std::lock_guard<std::mutex> lock(mesh_.mutex_);
  GlooChannel& channel = channels_.emplace_back();
  channel.peer = peer;
  channel.buffer = std::move(buffer);
  if (mesh_.aborted_) Fail(SHERD_ABORTED, -1, "aborted");
  return channel;
}

bool GlooOperation::Send(GlooChannel& channel, uint64_t slot, uint64_t offset,
                         uint64_t size) {
  return Guarded(channel, [&] {
    channel.buffer->send(channel.peer, slot, offset, size);
    ++channel.sending;
    return true;
  });
}

bool GlooOperation::Recv(GlooChannel& channel, uint64_t slot, uint64_t offset,
                         uint64_t size) {
  return Guarded(channel, [&] {
    channel.buffer->recv(channel.peer, slot, offset, size);
    ++channel.receiving;
    return true;
  });
}

bool GlooOperation::AwaitSend(GlooChannel& channel) {
  --channel.sending;
  return Await(channel, [&channel](milliseconds timeout) {
    return channel.buffer->waitSend(nullptr, timeout);
  });
}

bool GlooOperation::AwaitRecv(GlooChannel& channel) {
  --channel.receiving;
  return Await(channel, [&channel](milliseconds timeout) {
    return channel.buffer->waitRecv(nullptr, timeout);
  });
}

bool GlooOperation::AwaitAll() {
  for (GlooChannel& channel : channels_) {
    while (channel.receiving > 0 && AwaitRecv(channel)) {
    }
  }
  for (GlooChannel& channel : channels_) {
    while (channel.sending > 0 && AwaitSend(channel)) {
    }
  }
  return ok();
}

bool GlooOperation::Exchange(uint64_t slot,
                             const std::vector<GlooMessage>& sends,
                             const std::vector<GlooMessage>& recvs) {
  for (const GlooMessage& m : recvs) {
    Recv(Open(m.peer, m.data, m.size), slot, 0, m.size);
  }
  for (const GlooMessage& m : sends) {
    Send(Open(m.peer, m.data, m.size), slot, 0, m.size);
  }
  return AwaitAll();
}

bool GlooOperation::Fail(sherd_code code, int peer, const char* text) {
  if (ok()) code_ = internal::Fail(error_, code, peer, text);
  return false;
}

void GlooOperation::EndWaits() {
  for (GlooChannel& channel : channels_) {
    channel.buffer->abortWaitSend();
    channel.buffer->abortWaitRecv();
  }
}

void GlooOperation::EndWaitsFor(int peer) {
  for (GlooChannel& channel : channels_) {
    if (channel.peer != peer) continue;
    channel.lost = true;
    channel.buffer->abortWaitSend();
    channel.buffer->abortWaitRecv();
  }
}

template <typename Body>
bool GlooOperation::Guarded(GlooChannel& channel, Body body) {
  if (!ok()) return false;
  try {
    return body();
  } catch (const gloo::IoException&) {
    // Gloo's text has the addresses that its pair began with.
    return FailAt(channel.peer, kBroken);
  } catch (const std::exception& e) {
    return FailAt(channel.peer, channel.lost ? kBroken : e.what());
  }
}

template <typename WaitOnce>
bool GlooOperation::Await(GlooChannel& channel, WaitOnce wait_once) {
  return Guarded(channel, [&] {
    if (!channel.lost && wait_once(Remaining(deadline_))) return true;
    if (channel.lost && Look(channel, wait_once)) return true;
    return FailAt(channel.peer, kBroken);
  });
}

template <typename WaitOnce>
bool GlooOperation::Look(GlooChannel& channel, WaitOnce wait_once) {
  bool first = false;
  {
    std::lock_guard<std::mutex> lock(mesh_.mutex_);
    if (mesh_.aborted_) return false;
    first = mesh_.cause_ == SHERD_OK;
    if (first) {
      mesh_.cause_ = SHERD_PEER_LOST;
      mesh_.cause_peer_ = channel.peer;
    }
  }
  // The first wait may only consume the call that woke this thread.
  if (!wait_once(kALook) && !wait_once(kALook)) return false;
  if (first) {
    std::lock_guard<std::mutex> lock(mesh_.mutex_);
    mesh_.cause_ = SHERD_OK;
  }
  return true;
}

bool GlooOperation::FailAt(int peer, const char* text) {
  std::lock_guard<std::mutex> lock(mesh_.mutex_);
  if (mesh_.aborted_) return Fail(SHERD_ABORTED, -1, "aborted");
  if (mesh_.cause_ == SHERD_OK && HasPassed(deadline_)) {
    mesh_.cause_ = SHERD_TIMEOUT;
    mesh_.cause_peer_ = peer;
  }
  if (mesh_.cause_ == SHERD_OK) return Fail(SHERD_PEER_LOST, peer, text);
  return Fail(mesh_.cause_, mesh_.cause_peer_,
              mesh_.cause_ == SHERD_TIMEOUT ? "did not come in time" : kBroken);
}

}  // namespace sherd::internal
