#include "sherd/rpc/link/links.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/host_address.h"
#include "sherd/core/comm/bootstrap/rendezvous.h"
#include "sherd/core/net/handshake.h"

namespace sherd::internal {
namespace {

// Interval at which rank 0 checks for processes that ended before they
// connected.
constexpr absl::Duration kLook = absl::Milliseconds(100);
// Random bytes of a Unix socket's name: enough to make it unique.
constexpr size_t kNameBytes = 12;

// Without these, this worker cannot meet the others.
absl::Status CheckPlace(const LinkOptions& options) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ",
                     options.world_size, ": expected 0 <= rank < world size"));
  }
  if (options.session == nullptr) {
    return absl::InvalidArgumentError("expected a session");
  }
  return absl::OkStatus();
}

absl::Status CheckHeartbeat(const LinkOptions& options) {
  if (options.heartbeat > absl::ZeroDuration() &&
      options.patience >= options.heartbeat) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("heartbeats every ", absl::FormatDuration(options.heartbeat),
                   ", awaited for ", absl::FormatDuration(options.patience),
                   ": expected an interval above zero, and no shorter a wait"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> Links::Start(const LinkOptions& options,
                                                    Handler* handler) {
  if (const absl::Status status = CheckPlace(options); !status.ok()) {
    if (options.session != nullptr) options.session->GiveUp(status);
    return status;
  }
  auto links = std::unique_ptr<Links>(new Links(options, handler));
  const absl::Status status = links->Join();
  if (status.ok()) return links;
  // It never was a member, and so does not report that it leaves.
  links->has_left_ = true;
  if (links->directory_ != nullptr) links->directory_->ReportFailure(status);
  links.reset();
  options.session->GiveUp(status);
  return Annotate(status, absl::StrCat("RPC worker of rank ", options.rank));
}

Links::Links(const LinkOptions& options, Handler* handler)
    : options_(options),
      context_{.handler = handler,
               .secret = options.secret,
               .connection = {.max_frame_bytes = kMaxControlBytes + 1,
                              .frame_timeout = options.patience,
                              .has_tails = true,
                              .max_tail_bytes = options.max_tail_bytes,
                              .pauses_reading = false},
               .heartbeat = options.heartbeat,
               .patience = options.patience} {}

absl::Status Links::Join() {
  const absl::StatusOr<Transports> transports =
      Transports::Choose(options_.transports);
  absl::Status error = options_.error;
  error.Update(CheckHeartbeat(options_));
  error.Update(transports.status());
  SHERD_ASSIGN_OR_RETURN(
      std::unique_ptr<Directory> directory,
      Directory::Meet(
          options_.session->store(), options_.rank, options_.world_size,
          {.name = options_.name.empty() ? absl::StrCat("worker", options_.rank)
                                         : options_.name,
           .nonce = NewNonce(),
           .network = OwnHostIdentity().network,
           .transports = transports.value_or(Transports()),
           .note = options_.note},
          options_.deadline, error));
  // From here on Start reports an error to the others.
  directory_ = std::move(directory);
  if (options_.on_met != nullptr) {
    SHERD_RETURN_IF_ERROR(options_.on_met(*directory_));
  }
  SHERD_ASSIGN_OR_RETURN(loop_, EventLoop::Start("sherd-rpc"));
  dialer_ = std::make_unique<Dialer>();
  context_.loop = loop_.get();
  context_.directory = directory_;
  context_.dialer = dialer_.get();
  HostPort unix_address;
  HostPort tcp_address;
  SHERD_RETURN_IF_ERROR(Listen(&unix_address, &tcp_address));
  SHERD_RETURN_IF_ERROR(directory_->ExchangeAddresses(unix_address, tcp_address,
                                                      options_.deadline));
  return LinkAll();
}

absl::Status Links::Listen(HostPort* unix_address, HostPort* tcp_address) {
  bool needs_unix = false;
  bool needs_tcp = false;
  for (int peer = 0; peer < directory_->size(); ++peer) {
    if (peer == rank()) continue;
    const Directory::Route route = directory_->RouteBetween(rank(), peer);
    needs_unix |= route == Directory::Route::kUnix;
    needs_tcp |= route == Directory::Route::kTcp;
  }
  if (needs_unix) {
    const std::string name =
        absl::StrCat("@sherd-rpc-",
                     absl::BytesToHexString(NewNonce().substr(0, kNameBytes)));
    SHERD_ASSIGN_OR_RETURN(*unix_address, ListenAt(name));
  }
  if (needs_tcp) {
    std::string address = LoopbackLike(options_.master);
    if (!directory_->one_network()) {
      SHERD_ASSIGN_OR_RETURN(address, AddressForOthers(options_.master));
    }
    SHERD_ASSIGN_OR_RETURN(*tcp_address, ListenAt(address));
    WarnOfMissingSecret(rank(), address, tcp_address->port, options_.secret);
  }
  return absl::OkStatus();
}

absl::StatusOr<HostPort> Links::ListenAt(const std::string& address) {
  const FrameConnection::Options& connection = context_.connection;
  SHERD_ASSIGN_OR_RETURN(
      std::unique_ptr<Reception> reception,
      Reception::Create(loop_.get(),
                        {.address = address,
                         .protocol = kLinkProtocol,
                         .secret = options_.secret,
                         .max_frame_bytes = connection.max_frame_bytes,
                         .handshake_timeout = kHelloTimeout,
                         .frame_timeout = connection.frame_timeout,
                         .has_tails = true,
                         .max_tail_bytes = connection.max_tail_bytes,
                         .pauses_reading = connection.pauses_reading,
                         .max_queued_bytes = connection.max_queued_bytes},
                        this));
  const int port = reception->address().port();
  receptions_.push_back(std::move(reception));
  return HostPort{address, port};
}

absl::Status Links::LinkAll() {
  PeerLink::Owner& owner = *this;
  for (int peer = 0; peer < directory_->size(); ++peer) {
    peers_.push_back(peer == rank()
                         ? nullptr
                         : std::make_unique<PeerLink>(context_, owner, peer));
    absl::MutexLock lock(&mutex_);
    if (peer != rank() && (peer == 0 || rank() == 0)) {
      progress_.awaited.insert(peer);
    }
  }
  for (const auto& reception : receptions_) reception->Open();
  next_beat_ = Deadline::After(options_.heartbeat).when();
  loop_->Post([this] { context_.loop->RunAt(next_beat_, [this] { Beat(); }); });
  if (rank() != 0) peers_[0]->Connect();
  const auto settled = [](Progress* progress) {
    return progress->awaited.empty() || !progress->failure.ok();
  };
  std::set<int> missing;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const Deadline look =
          Deadline::Earlier(options_.deadline, Deadline::After(kLook));
      if (mutex_.AwaitWithTimeout(absl::Condition(+settled, &progress_),
                                  look.Remaining())) {
        return progress_.failure;
      }
      missing = progress_.awaited;
    }
    if (options_.deadline.HasPassed()) break;
    loop_->Post([this] { WatchProcesses(); });
  }
  std::vector<std::string> labels;
  for (const int peer : missing) labels.push_back(directory_->Label(peer));
  return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                            absl::StrJoin(labels, ", "),
                            rank() == 0 ? " did not connect to rank 0 in time"
                                        : " did not answer in time")),
                        *missing.begin());
}

void Links::WatchProcesses() {
  std::set<int> awaited;
  {
    absl::MutexLock lock(&mutex_);
    awaited = progress_.awaited;
  }
  for (const int peer : awaited) {
    if (directory_->StateOfWorker(peer) == ProcessState::kEnded) {
      peers_[peer]->OnReportedLost(directory_->EndOfWorker(peer));
    }
  }
}

void Links::Beat() {
  const auto now = Deadline::Clock::now();
  const bool was_asleep =
      absl::FromChrono(now - next_beat_) > options_.heartbeat;
  next_beat_ = Deadline::After(options_.heartbeat).when();
  context_.loop->RunAt(next_beat_, [this] { Beat(); });
  std::erase_if(linked_, [&](int peer) {
    peers_[peer]->Beat(now, was_asleep);
    return peers_[peer]->HasEnded();
  });
}

absl::Status Links::Send(int to, WireMessage message) {
  if (to < 0 || to >= directory_->size() || to == rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message to rank ", to, ", expected one of 0 to ",
                     directory_->size() - 1, " other than ", rank()));
  }
  if (has_left_) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory_->Label(rank()), " has said goodbye"));
  }
  return peers_[to]->Send(std::move(message));
}

absl::Status Links::Goodbye(Deadline deadline) {
  const bool is_first = !has_left_.exchange(true);
  if (is_first) {
    directory_->ReportLeaving();
    loop_->Post([this] {
      for (const auto& reception : receptions_) reception->StopAccepting();
      for (const auto& peer : peers_) {
        if (peer != nullptr) peer->SayGoodbye();
      }
      CheckEnded();
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&progress_.has_ended),
                            deadline.Remaining());
  }
  std::vector<int> unfinished;
  absl::Notification closed;
  loop_->Post([&] {
    // Links that another thread cut have ended.
    if (!unfinished_.has_value()) unfinished_ = Unfinished();
    unfinished = *unfinished_;
    CloseAll();
    closed.Notify();
  });
  closed.WaitForNotification();
  {
    // For other threads in this function.
    absl::MutexLock lock(&mutex_);
    progress_.has_ended = true;
  }
  if (is_first) options_.session->Leave();
  if (unfinished.empty()) return absl::OkStatus();
  std::vector<std::string> labels;
  for (const int peer : unfinished) labels.push_back(directory_->Label(peer));
  return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                            "goodbye: ", absl::StrJoin(labels, ", "),
                            " did not receive all messages in time")),
                        unfinished.front());
}

void Links::CheckEnded() {
  if (!has_left_) return;
  for (const auto& peer : peers_) {
    if (peer != nullptr && !peer->HasEnded()) return;
  }
  absl::MutexLock lock(&mutex_);
  progress_.has_ended = true;
}

std::vector<int> Links::Unfinished() const {
  std::vector<int> unfinished;
  for (int peer = 0; peer < directory_->size(); ++peer) {
    if (peer != rank() && !peers_[peer]->HasEnded()) unfinished.push_back(peer);
  }
  return unfinished;
}

void Links::CloseAll() {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->Abandon();
  }
  for (const auto& reception : receptions_) {
    reception->CloseAll(absl::CancelledError("this worker has shut down"));
  }
}

Links::~Links() {
  if (loop_ != nullptr) {
    absl::Notification closed;
    loop_->Post([&] {
      CloseAll();
      closed.Notify();
    });
    closed.WaitForNotification();
  }
  // No connection is dialed any more; then only the loop posts tasks.
  dialer_.reset();
  loop_.reset();
  if (!has_left_) options_.session->Leave();
}

std::vector<std::string> Links::Addresses() const {
  std::vector<std::string> addresses;
  for (const auto& reception : receptions_) {
    addresses.push_back(reception->address().ToString());
  }
  return addresses;
}

void Links::Settle(int rank, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (progress_.awaited.erase(rank) == 0) return;
  // Rank 0 continues without lost workers.
  if (this->rank() != 0) progress_.failure = status;
}

void Links::OnLinked(int rank) {
  linked_.push_back(rank);
  if (reporter_ == this->rank()) {
    for (const auto& [lost, cause] : losses_) {
      peers_[rank]->SendLostNotice(lost, cause);
    }
  }
  Settle(rank, absl::OkStatus());
}

void Links::OnEnded(int rank, PeerLink::End end, const absl::Status& why,
                    const absl::Status& cause) {
  if (end == PeerLink::End::kLost) {
    Settle(rank,
           WithFailedRank(absl::Status(cause.code(), why.message()), rank));
    // Before the handler acts on it: its messages to others presume that they
    // know.
    losses_[rank] = std::string(cause.message());
    if (reporter_ == this->rank()) ReportLoss(rank);
    context_.handler->OnLost(rank, why);
  } else if (end == PeerLink::End::kLeft) {
    Settle(rank, why);
    context_.handler->OnLeft(rank, why);
  }
  UpdateReporter();
  CheckEnded();
}

void Links::ReportLoss(int rank) {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->SendLostNotice(rank, losses_[rank]);
  }
}

void Links::UpdateReporter() {
  // The links that it parts with end too.
  if (has_left_) return;
  const int before = reporter_;
  while (reporter_ != rank() && peers_[reporter_]->HasEnded()) ++reporter_;
  if (reporter_ == before) return;
  if (reporter_ == rank()) {
    for (const auto& [lost, cause] : losses_) ReportLoss(lost);
    return;
  }
  const auto found = notices_.find(reporter_);
  if (found == notices_.end()) return;
  // A copy: each of them may change the reporter again.
  const std::map<int, std::string> notices = found->second;
  for (const auto& [lost, cause] : notices) {
    peers_[lost]->OnReportedLost(cause);
  }
}

void Links::OnNotReached(int rank, const absl::Status& why) {
  Settle(rank, why);
}

void Links::OnLostNotice(int from, const rpc::LinkMessage::LostNotice& notice) {
  const int lost = notice.rank();
  if (lost < 0 || lost >= directory_->size() || lost == rank()) return;
  if (from != reporter_) {
    notices_[from][lost] = PrintableLine(notice.why());
    return;
  }
  peers_[lost]->OnReportedLost(PrintableLine(notice.why()));
}

LinkChannel* Links::OnHello(const rpc::LinkMessage::Hello& hello,
                            rpc::LinkMessage::HelloReply* reply) {
  const int from = hello.rank();
  const bool is_known = from >= 0 && from < directory_->size() &&
                        from != rank() &&
                        hello.name() == directory_->worker(from).name &&
                        hello.nonce() == directory_->worker(from).nonce;
  if (!is_known || hello.to_rank() != rank() ||
      hello.to_nonce() != directory_->self().nonce) {
    reply->set_outcome(rpc::LinkMessage::HelloReply::REFUSED);
    reply->set_why(absl::StrCat(
        directory_->Label(rank()),
        is_known ? " is not the worker it looks for"
                 : " does not know a worker of that rank, name and nonce"));
    return nullptr;
  }
  return peers_[from]->OnHello(hello, reply);
}

}  // namespace sherd::internal
