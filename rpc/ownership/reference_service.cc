#include "sherd/rpc/ownership/reference_service.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/ownership/reference_codec.h"

namespace sherd::internal {

std::shared_ptr<const RawHandler> FetchValueHandler() {
  static const auto& handler = *new std::shared_ptr<const RawHandler>([] {
    RawHandler fetch;
    fetch.name = std::string(kFetchMethod);
    fetch.run = [](Payload request, ReplyFunction reply) {
      if (request.references_keep.size() != 1) {
        return reply(absl::InvalidArgumentError(absl::StrCat(
            "expected one reference, found ", request.references_keep.size())));
      }
      auto handle = std::static_pointer_cast<ReferenceHandle>(
          request.references_keep.front());
      ReferenceService& service = handle->service();
      service.Read(std::move(handle), std::move(reply));
    };
    return std::make_shared<const RawHandler>(std::move(fetch));
  }());
  return handler;
}

ReferenceHandle::~ReferenceHandle() { service_->Drop(id_); }

absl::Status NotTheOwner(const ReferenceHandle& handle) {
  const ReferenceService& service = handle.service();
  const int owner = handle.id().owner;
  return WithRank(
      absl::FailedPreconditionError(absl::StrCat(
          NameOf(handle.id()), ": the value is on ",
          service.NameOfWorker(owner), " (rank ", owner, "), not on ",
          service.NameOfWorker(service.rank()), ": use ToHere()")),
      owner);
}

// The readers that wait for one value.
//
// Threads. Safe from any thread.
class ReferenceService::Readers {
 public:
  // Returns the reader's number, or 0: the value is there.
  uint64_t Add(const Handle& keep, const ReplyFunction& reply)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return 0;
    readers_[++last_] = {keep, reply};
    return last_;
  }

  void Remove(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_) {
    // Destroyed without the lock.
    std::map<uint64_t, Reader>::node_type removed;
    absl::MutexLock lock(&mutex_);
    removed = readers_.extract(number);
  }

  // Called once.
  void OnValue(const absl::StatusOr<Payload>& value)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    std::map<uint64_t, Reader> readers;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      readers.swap(readers_);
    }
    for (const auto& [number, reader] : readers) reader.reply(value);
  }

 private:
  struct Reader {
    // Keeps the value until it has been sent.
    Handle keep;
    ReplyFunction reply;
  };

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  // In the order of arrival.
  std::map<uint64_t, Reader> readers_ ABSL_GUARDED_BY(mutex_);
};

ReferenceService::Owned::Owned() : readers(std::make_shared<Readers>()) {
  value.future().OnReady(
      [readers = readers](const absl::StatusOr<Payload>& result) {
        readers->OnValue(result);
      });
}

// Holds the lock, releases it, and then carries out the effects of the table.
class ABSL_SCOPED_LOCKABLE ReferenceService::Turn {
 public:
  explicit Turn(ReferenceService* service)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(service->mutex_)
      : service_(service) {
    service_->mutex_.Lock();
  }
  ~Turn() ABSL_UNLOCK_FUNCTION() {
    std::vector<Waiting> due;
    for (const auto& ready : effects_.ready) service_->MarkReady(ready, due);
    const bool garbage = !effects_.released.empty();
    for (auto& value : effects_.released) {
      service_->released_.push_back(std::move(value));
    }
    service_->mutex_.Unlock();
    service_->Send(effects_.messages);
    for (Waiting& each : due) each.then(*each.ready, std::move(each.handles));
    if (garbage) service_->DestroyReleased();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  ReferenceEffects* effects() { return &effects_; }

 private:
  ReferenceService* const service_;
  ReferenceEffects effects_;
};

ReferenceService::ReferenceService(int rank, int world_size,
                                   absl::Duration timeout, Hooks hooks)
    : rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      hooks_(std::move(hooks)),
      table_(rank) {}

absl::StatusOr<ReferenceService::Created> ReferenceService::Create(int owner) {
  Turn turn(this);
  SHERD_ASSIGN_OR_RETURN(const ReferenceMessage message, table_.Create(owner));
  if (owner == rank_) {
    table_.SetValue(message.id, std::make_shared<Owned>(), turn.effects());
  }
  return Created{
      std::make_shared<ReferenceHandle>(shared_from_this(), message.id),
      message};
}

void ReferenceService::RequestNotSent(const ReferenceId& id,
                                      const absl::Status& why) {
  {
    Turn turn(this);
    table_.RequestNotSent(id, Annotate(why, NameOf(id)), turn.effects());
  }
  if (const auto value = ValueOf(id)) value->Set(why);
}

absl::StatusOr<ReferenceService::Value> ReferenceService::OnCreation(
    int from, const ReferenceMessage& message) {
  const auto owned = std::make_shared<Owned>();
  Turn turn(this);
  SHERD_RETURN_IF_ERROR(table_.OnMessage(from, message, turn.effects()));
  table_.SetValue(message.id, owned, turn.effects());
  return owned->value;
}

std::optional<ReferenceService::Value> ReferenceService::ValueOf(
    const ReferenceId& id) const {
  const std::shared_ptr<const Owned> owned = Find(id);
  if (owned == nullptr) return std::nullopt;
  return owned->value;
}

std::shared_ptr<const ReferenceService::Owned> ReferenceService::Find(
    const ReferenceId& id) const {
  absl::MutexLock lock(&mutex_);
  return std::static_pointer_cast<const Owned>(table_.Find(id));
}

void ReferenceService::Read(Handle handle, ReplyFunction reply) {
  const std::shared_ptr<const Owned> owned = Find(handle->id());
  if (owned == nullptr) {
    return reply(absl::NotFoundError(absl::StrCat(
        NameOf(handle->id()), ": the value is not on this worker")));
  }
  const uint64_t reader = owned->readers->Add(handle, reply);
  if (reader == 0) return reply(owned->value.future().Wait());
  if (const auto& context = CallContext::Current(); context != nullptr) {
    context->OnCancelled([weak = std::weak_ptr(owned->readers), reader] {
      if (const auto readers = weak.lock()) readers->Remove(reader);
    });
  }
}

absl::StatusOr<Payload> ReferenceService::Fetch(
    const Handle& handle, std::optional<absl::Duration> timeout) {
  const ReferenceId& id = handle->id();
  {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(WithRank(table_.Check(id), id.owner));
  }
  if (const auto value = ValueOf(id)) {
    const Future<Payload> here = value->future();
    if (here.Ready()) {
      absl::StatusOr<Payload> ready = here.Wait();
      if (ready.ok()) return ready;
      const int rank = ErrorRank(ready.status()).value_or(rank_);
      return WithRank(Annotate(ready.status(), NameOf(id)), rank);
    }
  }
  Payload request;
  request.references = {id};
  request.references_keep = {handle};
  const Promise<Payload> fetched(work_);
  hooks_.fetch(id.owner, std::move(request), timeout.value_or(timeout_),
               [fetched](absl::StatusOr<Payload> value) {
                 fetched.Set(std::move(value));
               });
  return fetched.future().Wait();
}

absl::StatusOr<uint64_t> ReferenceService::Pass(int to,
                                                const Payload& payload) {
  for (const auto& keep : payload.references_keep) {
    const auto* const handle = static_cast<const ReferenceHandle*>(keep.get());
    if (&handle->service() == this) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        NameOf(handle->id()),
        ": it belongs to another agent, or to this one before a shutdown"));
  }
  Turn turn(this);
  const uint64_t transfer = table_.Pass(to, payload.references, turn.effects());
  waiting_[transfer] = {};
  return transfer;
}

absl::StatusOr<uint64_t> ReferenceService::Receive(
    int from, uint64_t number, absl::Span<const ReferenceId> ids) {
  for (const ReferenceId& id : ids) {
    if (id.owner < 0 || id.owner >= world_size_ || id.creator < 0 ||
        id.creator >= world_size_) {
      return absl::InvalidArgumentError(absl::StrCat(
          NameOf(id), ": expected workers from 0 to ", world_size_ - 1));
    }
  }
  Turn turn(this);
  const uint64_t transfer = table_.Receive(from, number, ids, turn.effects());
  waiting_[transfer].ids.assign(ids.begin(), ids.end());
  return transfer;
}

void ReferenceService::Decline(int from, uint64_t number) {
  Turn turn(this);
  table_.Decline(from, number, turn.effects());
}

void ReferenceService::MarkReady(const ReferenceEffects::Ready& ready,
                                 std::vector<Waiting>& due) {
  const auto it = waiting_.find(ready.transfer);
  if (it == waiting_.end()) return;
  Waiting& waiting = it->second;
  waiting.ready = ready.status;
  if (ready.status.ok()) {
    for (const ReferenceId& id : waiting.ids) {
      waiting.handles.push_back(
          std::make_shared<ReferenceHandle>(shared_from_this(), id));
    }
  }
  if (waiting.then == nullptr) return;
  due.push_back(std::move(waiting));
  waiting_.erase(it);
}

void ReferenceService::WhenReady(uint64_t transfer, Then then) {
  Waiting ready;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = waiting_.find(transfer);
    if (it == waiting_.end()) return;
    if (!it->second.ready.has_value()) {
      it->second.then = std::move(then);
      return;
    }
    ready = std::move(it->second);
    waiting_.erase(it);
  }
  then(*ready.ready, std::move(ready.handles));
}

bool ReferenceService::Abandon(uint64_t transfer) {
  // Destroyed without the lock.
  Waiting abandoned;
  Turn turn(this);
  const auto it = waiting_.find(transfer);
  if (it == waiting_.end()) return false;
  abandoned = std::move(it->second);
  waiting_.erase(it);
  table_.Abandon(transfer, turn.effects());
  return true;
}

void ReferenceService::Unsent(uint64_t transfer) {
  Turn turn(this);
  table_.Abandon(transfer, turn.effects());
}

absl::Status ReferenceService::OnMessages(
    int from, absl::Span<const ReferenceMessage> messages) {
  Turn turn(this);
  for (const ReferenceMessage& message : messages) {
    // If no call sets the value, fetches would wait for ever.
    if (message.kind == ReferenceMessage::Kind::kCreate) {
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(message.id), ": created without a call"));
    }
    SHERD_RETURN_IF_ERROR(table_.OnMessage(from, message, turn.effects()));
  }
  return absl::OkStatus();
}

void ReferenceService::WorkerLost(int worker, const absl::Status& why) {
  Turn turn(this);
  table_.WorkerLost(worker, why, turn.effects());
}

void ReferenceService::ReleaseAll() {
  {
    Turn turn(this);
    table_.ReleaseAll(turn.effects());
  }
  if (!LogEnabled(LogSeverity::kDebug)) return;
  if (const std::string left = ToString(); !left.empty()) {
    SHERD_LOG(kDebug) << "values that other workers hold at the shutdown:\n"
                      << left;
  }
}

void ReferenceService::Close() {
  ReleaseAll();
  // Destroyed without the lock, like the waiting calls.
  ReferenceTable ended(rank_);
  absl::flat_hash_map<uint64_t, Waiting> waiting;
  Turn turn(this);
  std::swap(ended, table_);
  table_.ReleaseAll(turn.effects());
  waiting.swap(waiting_);
}

void ReferenceService::SetNames(const std::vector<std::string>& names) {
  absl::MutexLock lock(&mutex_);
  names_ = names;
}

std::string ReferenceService::NameOfWorker(int rank) const {
  absl::MutexLock lock(&mutex_);
  if (rank < 0 || static_cast<size_t>(rank) >= names_.size()) return "";
  return names_[static_cast<size_t>(rank)];
}

std::string ReferenceService::ToString() const {
  absl::MutexLock lock(&mutex_);
  return table_.ToString();
}

void ReferenceService::Drop(const ReferenceId& id) {
  Turn turn(this);
  table_.DropHandle(id, turn.effects());
}

void ReferenceService::Send(
    const std::vector<ReferenceEffects::Outgoing>& messages) {
  std::map<int, std::vector<ReferenceMessage>> by_worker;
  for (const auto& [to, message] : messages) by_worker[to].push_back(message);
  for (const auto& [to, all] : by_worker) {
    for (size_t at = 0; at < all.size(); at += kMaxReferenceMessages) {
      const auto part =
          absl::MakeConstSpan(all).subspan(at, kMaxReferenceMessages);
      hooks_.send(to, EncodeReferenceMessages(part), UnsentOf(part));
    }
  }
}

// All messages but a registration go to a worker that is connected already.
ReferenceService::NotSent ReferenceService::UnsentOf(
    absl::Span<const ReferenceMessage> messages) {
  std::vector<ReferenceId> asked;
  for (const ReferenceMessage& message : messages) {
    if (message.kind == ReferenceMessage::Kind::kRegister) {
      asked.push_back(message.id);
    }
  }
  if (asked.empty()) return nullptr;
  return [weak = weak_from_this(),
          asked = std::move(asked)](const absl::Status& why) {
    const auto alive = weak.lock();
    if (alive == nullptr) return;
    for (const ReferenceId& id : asked) alive->RequestNotSent(id, why);
  };
}

void ReferenceService::DestroyReleased() {
  std::vector<std::shared_ptr<void>> batch;
  for (bool first = true;; first = false) {
    batch.clear();
    absl::MutexLock lock(&mutex_);
    if (first && destroying_) return;
    destroying_ = !released_.empty();
    if (!destroying_) return;
    batch.swap(released_);
  }
}

}  // namespace sherd::internal
