#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/store/store_engine.h"
#include "sherd/core/comm/store/store_protocol.h"
#include "sherd/core/comm/store/tcp_store.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_server.h"

namespace sherd {

class TcpStoreServer::Impl final : private FrameServer::Handler {
 public:
  explicit Impl(const Options& options)
      : linger_(options.linger),
        engine_(
            options.max_bytes,
            [this](uint64_t client, const internal::StoreResponse& response) {
              server_->Send(client, internal::EncodeStoreResponse(response));
            }) {}

  absl::Status Start(const Options& options) {
    // FrameServer would take it for a Unix socket.
    if (absl::StartsWith(options.address, "@")) {
      return absl::InvalidArgumentError(
          absl::StrCat("the store server: expected a numeric address, found \"",
                       options.address, "\""));
    }
    SHERD_ASSIGN_OR_RETURN(loop_, EventLoop::Start("sherd-store"));
    absl::StatusOr<std::unique_ptr<FrameServer>> server =
        FrameServer::Create(loop_.get(),
                            {.address = options.address,
                             .port = options.port,
                             .protocol = std::string(internal::kStoreProtocol),
                             .secret = options.secret,
                             .max_connections = options.max_clients,
                             .max_frame_bytes = internal::kMaxStoreFrameBytes,
                             .handshake_timeout = options.handshake_timeout},
                            this);
    if (!server.ok()) {
      return absl::Status(
          server.status().code(),
          absl::StrCat("the store server: ", server.status().message()));
    }
    server_ = *std::move(server);
    timers_ = loop_.get();
    port_ = server_->address().port();
    address_ = server_->address().ToString();
    server_->Open();
    return absl::OkStatus();
  }

  absl::Status Shutdown(Deadline deadline) {
    absl::MutexLock lock(&shutdown_mutex_);
    if (loop_ == nullptr) return absl::OkStatus();
    loop_->Post([this] { server_->StopAccepting(); });
    const int left = AwaitGoodbyes(deadline);
    loop_->Post([this] {
      server_->CloseAll(absl::UnavailableError("the server has ended"));
    });
    // Ends the thread: nothing uses the server after that.
    loop_.reset();
    if (left == 0) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("the store server at ", address_, " ended while ", left,
                     " clients were connected"));
  }

  int port() const { return port_; }
  const std::string& address() const { return address_; }
  int num_clients() const { return server_->num_connections(); }
  absl::Duration linger() const { return linger_; }

 private:
  // Waits, and returns how many clients are left.
  int AwaitGoodbyes(Deadline deadline) {
    absl::MutexLock lock(&mutex_);
    while (num_clients() > 0 && !deadline.HasPassed()) {
      changed_.WaitWithTimeout(
          &mutex_, std::min(deadline.Remaining(), absl::Seconds(1)));
    }
    return num_clients();
  }

  void OnOpened(FrameServer::ConnectionId) override {}

  void OnClosed(FrameServer::ConnectionId client,
                const absl::Status&) override {
    engine_.Disconnect(client);
    absl::MutexLock lock(&mutex_);
    changed_.SignalAll();
  }

  void OnFrame(FrameServer::ConnectionId client,
               absl::string_view payload) override {
    const absl::Status status =
        engine_.Handle(client, payload, Deadline::Clock::now());
    if (!status.ok()) return server_->Close(client, status);
    UpdateTimer();
  }

  void UpdateTimer() {
    const std::optional<Deadline::Clock::time_point> next =
        engine_.NextExpiry();
    if (timer_ && next && timer_->first == *next) return;
    if (timer_) timers_->Cancel(*timer_);
    timer_.reset();
    if (!next) return;
    timer_ = timers_->RunAt(*next, [this] {
      timer_.reset();
      engine_.Expire(Deadline::Clock::now());
      UpdateTimer();
    });
  }

  const absl::Duration linger_;
  int port_ = 0;
  std::string address_;

  absl::Mutex shutdown_mutex_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<FrameServer> server_;

  // For waiting until a client has left.
  absl::Mutex mutex_;
  absl::CondVar changed_;

  // Of the loop's thread only.
  internal::StoreEngine engine_;
  // loop_, which is null already while its destructor waits for the thread.
  EventLoop* timers_ = nullptr;
  std::optional<EventLoop::TimerId> timer_;
};

absl::StatusOr<std::unique_ptr<TcpStoreServer>> TcpStoreServer::Start(
    const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  SHERD_RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(impl)));
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

TcpStoreServer::~TcpStoreServer() {
  Shutdown(Deadline::After(impl_->linger())).IgnoreError();
}

int TcpStoreServer::port() const { return impl_->port(); }
const std::string& TcpStoreServer::address() const { return impl_->address(); }
int TcpStoreServer::num_clients() const { return impl_->num_clients(); }

absl::Status TcpStoreServer::Shutdown(Deadline deadline) {
  return impl_->Shutdown(deadline);
}

}  // namespace sherd
