#include "sherd/core/comm/store/tcp_store.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/store/store_entries.h"
#include "sherd/core/comm/store/store_protocol.h"
#include "sherd/core/net/dial.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_connection.h"
#include "sherd/core/net/socket.h"

namespace sherd {

using internal::StoreOperation;
using internal::StoreRequest;
using internal::StoreResponse;

namespace {

// Keeps a client's requests within the size that the server accepts.
constexpr size_t kMaxRequestBytes = internal::kMaxStoreFrameBytes;

std::vector<std::string> ToStrings(absl::Span<const std::string> keys) {
  return {keys.begin(), keys.end()};
}

// The keys that a request is about, for messages.
std::string Describe(const StoreRequest& request) {
  const bool many = request.operation == StoreOperation::kGet ||
                    request.operation == StoreOperation::kWait;
  constexpr size_t kNamed = 16;
  const size_t count = many ? request.strings.size() : 1;
  const absl::Span<const std::string> named =
      absl::MakeConstSpan(request.strings).subspan(0, std::min(count, kNamed));
  return absl::StrCat(
      absl::StrJoin(named, ", "),
      count > kNamed ? absl::StrCat(" and ", count - kNamed, " more") : "");
}

}  // namespace

class TcpStore::Impl {
 public:
  Impl(std::string server, absl::Duration call_timeout)
      : server_(std::move(server)), call_timeout_(call_timeout) {}

  ~Impl() {
    if (loop_ == nullptr) return;
    loop_->Post([this] {
      connection_->Close(absl::CancelledError("this client has ended"));
    });
  }

  absl::Status Start(UniqueFd socket) {
    SHERD_ASSIGN_OR_RETURN(loop_, EventLoop::Start("sherd-store-cl"));
    connection_ = FrameConnection::Create(
        loop_.get(), std::move(socket),
        {.max_frame_bytes = internal::kMaxStoreFrameBytes});
    absl::Status status;
    absl::Notification started;
    loop_->Post([&] {
      status = connection_->Start(
          {.on_frame = [this](absl::string_view p) { OnFrame(p); },
           .on_closed = [this](const absl::Status& why) { OnClosed(why); }});
      started.Notify();
    });
    started.WaitForNotification();
    return status;
  }

  // The server's answer to `request`, whose id is given here. With a deadline,
  // `operation` is one that waits.
  absl::StatusOr<StoreResponse> Call(absl::string_view operation,
                                     StoreRequest request,
                                     std::optional<Deadline> deadline)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    const auto started = Deadline::Clock::now();
    if (deadline) request.number = NanosecondsLeft(*deadline);
    Pending pending;
    {
      absl::MutexLock lock(&mutex_);
      request.id = next_id_++;
      pending_.emplace(request.id, &pending);
    }
    absl::Status failure = Send(request);
    {
      absl::MutexLock lock(&mutex_);
      if (failure.ok()) {
        failure = Await(pending, GiveUpAt(deadline));
      }
      pending_.erase(request.id);
    }
    if (absl::IsDeadlineExceeded(failure) && deadline) {
      StoreRequest cancel;
      cancel.id = request.id;
      cancel.operation = StoreOperation::kCancel;
      (void)connection_->Send(internal::EncodeStoreRequest(cancel));
    }
    if (failure.ok() && pending.response.code == absl::StatusCode::kOk) {
      return std::move(pending.response);
    }
    return Explain(operation, request, failure, pending.response, started);
  }

  absl::Status Explain(absl::string_view operation, const StoreRequest& request,
                       const absl::Status& failure,
                       const StoreResponse& response,
                       Deadline::Clock::time_point started) const {
    const std::string where = absl::StrCat("the store at ", server_);
    if (failure.ok() && response.code == absl::StatusCode::kDeadlineExceeded) {
      return internal::StoreTimeout(operation, response.strings, started,
                                    where);
    }
    const absl::Status& cause =
        !failure.ok()
            ? failure
            : absl::Status(response.code, absl::StrJoin(response.strings, ""));
    return absl::Status(
        cause.code(),
        absl::StrCat(operation, " of ", Describe(request), ", ", where,
                     ", after ",
                     absl::FormatDuration(absl::Trunc(
                         absl::FromChrono(Deadline::Clock::now() - started),
                         absl::Milliseconds(1))),
                     ": ", cause.message()));
  }

 private:
  struct Pending {
    bool answered = false;
    StoreResponse response;
    absl::CondVar done;
  };

  static int64_t NanosecondsLeft(Deadline deadline) {
    if (deadline.IsInfinite()) return -1;
    return absl::ToInt64Nanoseconds(deadline.Remaining());
  }

  // The server looks at the deadline. This is for one that does not answer.
  Deadline GiveUpAt(std::optional<Deadline> deadline) const {
    if (!deadline) return Deadline::After(call_timeout_);
    return Deadline::After(deadline->Remaining() + call_timeout_);
  }

  absl::Status Send(const StoreRequest& request) ABSL_LOCKS_EXCLUDED(mutex_) {
    const std::string bytes = internal::EncodeStoreRequest(request);
    if (bytes.size() > kMaxRequestBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the request has ", bytes.size(),
                       " bytes, expected at most ", kMaxRequestBytes));
    }
    const absl::Status status = connection_->Send(bytes);
    if (!absl::IsUnavailable(status)) return status;
    absl::MutexLock lock(&mutex_);
    return lost_.ok() ? Lost(status) : lost_;
  }

  absl::Status Await(Pending& pending, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!pending.answered) {
      if (!lost_.ok()) return lost_;
      if (deadline.HasPassed()) {
        return absl::DeadlineExceededError(
            "the server is connected and does not answer");
      }
      pending.done.WaitWithTimeout(
          &mutex_, std::min(deadline.Remaining(), absl::Seconds(1)));
    }
    return absl::OkStatus();
  }

  absl::Status Lost(const absl::Status& why) const {
    return absl::UnavailableError(absl::StrCat(
        "the server has ended or cannot be reached (", why.message(), ")"));
  }

  void OnFrame(absl::string_view payload) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::StatusOr<StoreResponse> response =
        internal::ParseStoreResponse(payload);
    if (!response.ok()) return connection_->Close(response.status());
    absl::MutexLock lock(&mutex_);
    const auto it = pending_.find(response->id);
    // One that was given up.
    if (it == pending_.end()) return;
    it->second->answered = true;
    it->second->response = *std::move(response);
    it->second->done.Signal();
  }

  void OnClosed(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    lost_ = Lost(why);
    for (const auto& [id, pending] : pending_) pending->done.Signal();
  }

  const std::string server_;
  const absl::Duration call_timeout_;

  absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);

  std::shared_ptr<FrameConnection> connection_;
  // Last, so that its thread ends before the members that it uses are
  // destroyed.
  std::unique_ptr<EventLoop> loop_;
};

absl::StatusOr<std::shared_ptr<TcpStore>> TcpStore::Connect(
    const Options& options) {
  // Dial would take it for a Unix socket.
  if (absl::StartsWith(options.host, "@")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the store: expected a host, found \"", options.host, "\""));
  }
  SHERD_ASSIGN_OR_RETURN(
      UniqueFd socket, Dial({.host = options.host,
                             .port = options.port,
                             .protocol = std::string(internal::kStoreProtocol),
                             .secret = options.secret,
                             .deadline = options.deadline}));
  auto impl = std::make_unique<Impl>(FormatHostPort(options.host, options.port),
                                     options.call_timeout);
  SHERD_RETURN_IF_ERROR(impl->Start(std::move(socket)));
  return std::shared_ptr<TcpStore>(new TcpStore(std::move(impl)));
}

TcpStore::TcpStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpStore::~TcpStore() = default;

absl::Status TcpStore::DoSet(absl::string_view key, absl::string_view value) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, value));
  StoreRequest request;
  request.operation = StoreOperation::kSet;
  request.strings = {std::string(key), std::string(value)};
  return impl_->Call("Set", std::move(request), std::nullopt).status();
}

absl::StatusOr<std::string> TcpStore::DoGet(absl::string_view key,
                                            Deadline deadline) {
  StoreRequest request;
  request.operation = StoreOperation::kGet;
  request.strings = {std::string(key)};
  SHERD_ASSIGN_OR_RETURN(StoreResponse response,
                         impl_->Call("Get", std::move(request), deadline));
  if (response.strings.size() != 1) {
    return absl::DataLossError("Get: the server sent no value");
  }
  return std::move(response.strings[0]);
}

absl::StatusOr<int64_t> TcpStore::DoAdd(absl::string_view key, int64_t amount) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, ""));
  StoreRequest request;
  request.operation = StoreOperation::kAdd;
  request.number = amount;
  request.strings = {std::string(key)};
  SHERD_ASSIGN_OR_RETURN(const StoreResponse response,
                         impl_->Call("Add", std::move(request), std::nullopt));
  return response.number;
}

absl::StatusOr<std::string> TcpStore::DoCompareSet(absl::string_view key,
                                                   absl::string_view expected,
                                                   absl::string_view desired) {
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, desired));
  SHERD_RETURN_IF_ERROR(internal::CheckStoreEntry(key, expected));
  StoreRequest request;
  request.operation = StoreOperation::kCompareSet;
  request.strings = {std::string(key), std::string(expected),
                     std::string(desired)};
  SHERD_ASSIGN_OR_RETURN(
      StoreResponse response,
      impl_->Call("CompareSet", std::move(request), std::nullopt));
  if (response.strings.size() != 1) {
    return absl::DataLossError("CompareSet: the server sent no value");
  }
  return std::move(response.strings[0]);
}

absl::StatusOr<bool> TcpStore::DoDelete(absl::string_view key) {
  StoreRequest request;
  request.operation = StoreOperation::kDelete;
  request.strings = {std::string(key)};
  SHERD_ASSIGN_OR_RETURN(
      const StoreResponse response,
      impl_->Call("Delete", std::move(request), std::nullopt));
  return response.number != 0;
}

absl::StatusOr<int64_t> TcpStore::DoDeletePrefix(absl::string_view prefix) {
  StoreRequest request;
  request.operation = StoreOperation::kDeletePrefix;
  request.strings = {std::string(prefix)};
  SHERD_ASSIGN_OR_RETURN(
      const StoreResponse response,
      impl_->Call("DeletePrefix", std::move(request), std::nullopt));
  return response.number;
}

absl::Status TcpStore::DoRetire(absl::string_view prefix, int members) {
  StoreRequest request;
  request.operation = StoreOperation::kRetire;
  request.number = members;
  request.strings = {std::string(prefix)};
  return impl_->Call("Retire", std::move(request), std::nullopt).status();
}

absl::Status TcpStore::DoWait(absl::Span<const std::string> keys,
                              Deadline deadline) {
  StoreRequest request;
  request.operation = StoreOperation::kWait;
  request.strings = ToStrings(keys);
  return impl_->Call("Wait", std::move(request), deadline).status();
}

absl::StatusOr<std::vector<std::string>> TcpStore::DoMultiGet(
    absl::Span<const std::string> keys, Deadline deadline) {
  StoreRequest request;
  request.operation = StoreOperation::kGet;
  request.strings = ToStrings(keys);
  SHERD_ASSIGN_OR_RETURN(StoreResponse response,
                         impl_->Call("MultiGet", std::move(request), deadline));
  if (response.strings.size() != keys.size()) {
    return absl::DataLossError(
        absl::StrCat("MultiGet of ", keys.size(), " keys: the server sent ",
                     response.strings.size(), " values"));
  }
  return std::move(response.strings);
}

absl::StatusOr<bool> TcpStore::DoContains(absl::string_view key) {
  StoreRequest request;
  request.operation = StoreOperation::kContains;
  request.strings = {std::string(key)};
  SHERD_ASSIGN_OR_RETURN(
      const StoreResponse response,
      impl_->Call("Contains", std::move(request), std::nullopt));
  return response.number != 0;
}

}  // namespace sherd
