#include "sherd/rpc/ownership/reference_table.h"

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {
namespace {

// The worker that passed the reference on was lost, or released it, before this
// one was listed.
absl::Status Unknown(const ReferenceId& id) {
  return absl::NotFoundError(absl::StrCat(NameOf(id), ": worker ", id.owner,
                                          " no longer has this value"));
}

void AppendName(std::string* text, const ReferenceId& id) {
  absl::StrAppend(text, NameOf(id));
}

absl::Status AfterReleaseAll() {
  return absl::FailedPreconditionError(
      "this worker's remote references ended with its shutdown");
}

absl::Status Misplaced(int from, const ReferenceMessage& message) {
  return absl::InvalidArgumentError(
      absl::StrCat(NameOf(message.id),
                   ": expected a message of its owner, its creator "
                   "(once) or a holder, found one of worker ",
                   from, " of kind ", static_cast<int>(message.kind),
                   ", number ", message.sequence));
}

absl::Status OwnerLost(const ReferenceId& id, const absl::Status& why) {
  return WithFailedRank(absl::UnavailableError(absl::StrCat(
                            NameOf(id), ": its owner, worker ", id.owner,
                            ", is lost: ", why.message())),
                        id.owner);
}

}  // namespace

absl::StatusOr<ReferenceMessage> ReferenceTable::Create(int owner) {
  if (released_all_) return AfterReleaseAll();
  const ReferenceId id = {owner, self_, ++last_number_};
  if (const auto lost = lost_.find(owner); lost != lost_.end()) {
    return OwnerLost(id, lost->second);
  }
  const ReferenceMessage creation = {Kind::kCreate, id, ++last_sequence_};
  held_[id] = {1, creation.sequence, /*confirmed=*/owner == self_};
  if (owner == self_) owned_[id].holders[self_] = {creation.sequence, true};
  return creation;
}

void ReferenceTable::RequestNotSent(const ReferenceId& id,
                                    const absl::Status& why,
                                    ReferenceEffects* effects) {
  const auto held = held_.find(id);
  if (held != held_.end() && !held->second.confirmed) Settle(id, why, effects);
}

void ReferenceTable::DropHandle(const ReferenceId& id,
                                ReferenceEffects* effects) {
  const auto held = held_.find(id);
  // After ReleaseAll there may be no handle left to drop.
  if (held == held_.end() || held->second.handles == 0) return;
  --held->second.handles;
  ForgetIfUnused(id, effects);
}

absl::Status ReferenceTable::Check(const ReferenceId& id) const {
  if (released_all_) return Annotate(AfterReleaseAll(), NameOf(id));
  const auto held = held_.find(id);
  if (held == held_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(NameOf(id), ": this worker has no handle of it"));
  }
  return held->second.dead;
}

void ReferenceTable::SetValue(const ReferenceId& id,
                              std::shared_ptr<void> value,
                              ReferenceEffects* effects) {
  const auto owned = owned_.find(id);
  if (owned != owned_.end()) owned->second.value.swap(value);
  if (value != nullptr) effects->released.push_back(std::move(value));
}

std::shared_ptr<void> ReferenceTable::Find(const ReferenceId& id) const {
  const auto owned = owned_.find(id);
  return owned == owned_.end() ? nullptr : owned->second.value;
}

ReferenceTable::OwnedMap::iterator ReferenceTable::RemoveIfUnheld(
    OwnedMap::iterator owned, ReferenceEffects* effects) {
  for (const auto& [worker, holder] : owned->second.holders) {
    if (holder.holds) return std::next(owned);
  }
  if (owned->second.value != nullptr) {
    effects->released.push_back(std::move(owned->second.value));
  }
  return owned_.erase(owned);
}

uint64_t ReferenceTable::Pass(int to, absl::Span<const ReferenceId> ids,
                              ReferenceEffects* effects) {
  Transfer transfer = {.outgoing = true, .peer = to};
  if (const auto lost = lost_.find(to); lost != lost_.end()) {
    transfer.status = lost->second;
  }
  for (const ReferenceId& id : ids) transfer.status.Update(Check(id));
  return Begin(std::move(transfer), ids, effects);
}

uint64_t ReferenceTable::Receive(int from, uint64_t number,
                                 absl::Span<const ReferenceId> ids,
                                 ReferenceEffects* effects) {
  Transfer transfer = {.peer = from, .number = number};
  if (released_all_) transfer.status = AfterReleaseAll();
  return Begin(std::move(transfer), ids, effects);
}

uint64_t ReferenceTable::Begin(Transfer transfer,
                               absl::Span<const ReferenceId> ids,
                               ReferenceEffects* effects) {
  const uint64_t number = ++last_number_;
  // Counts this function too, since a worker answers itself at once.
  transfer.unanswered = 1;
  absl::Status status = transfer.status;
  transfers_[number] = std::move(transfer);
  for (const ReferenceId& id : ids) {
    if (!status.ok()) break;
    status = AddHandle(id, number, effects);
  }
  Advance(number, status, effects);
  return number;
}

absl::Status ReferenceTable::AddHandle(const ReferenceId& id, uint64_t number,
                                       ReferenceEffects* effects) {
  if (const auto lost = lost_.find(id.owner); lost != lost_.end()) {
    return OwnerLost(id, lost->second);
  }
  const auto [found, is_new] = held_.try_emplace(id);
  Held& held = found->second;
  if (!held.dead.ok()) return held.dead;
  Transfer& transfer = transfers_.find(number)->second;
  transfer.ids.push_back(id);
  ++held.handles;
  if (held.confirmed) return absl::OkStatus();
  ++transfer.unanswered;
  held.waiting.push_back(number);
  if (is_new) {
    held.sequence = ++last_sequence_;
    Send(id.owner, {Kind::kRegister, id, held.sequence}, effects);
  }
  return absl::OkStatus();
}

void ReferenceTable::Advance(uint64_t number, const absl::Status& status,
                             ReferenceEffects* effects) {
  const auto found = transfers_.find(number);
  if (found == transfers_.end()) return;  // Abandoned.
  Transfer& transfer = found->second;
  transfer.status.Update(status);
  if (--transfer.unanswered > 0) return;
  effects->ready.push_back({number, transfer.status});
  transfer.ready = true;
  if (transfer.outgoing && transfer.status.ok()) return;
  if (transfer.status.ok()) transfer.ids.clear();  // The caller's now.
  Abandon(number, effects);
}

void ReferenceTable::Abandon(uint64_t transfer, ReferenceEffects* effects) {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return;
  const Transfer ended = std::move(found->second);
  transfers_.erase(found);
  if (!ended.outgoing) Decline(ended.peer, ended.number, effects);
  for (const ReferenceId& id : ended.ids) DropHandle(id, effects);
}

absl::Status ReferenceTable::OnMessage(int from,
                                       const ReferenceMessage& message,
                                       ReferenceEffects* effects) {
  const auto& [kind, id, sequence] = message;
  const bool asks = kind == Kind::kCreate || kind == Kind::kRegister ||
                    kind == Kind::kRelease;
  if ((kind != Kind::kAccepted && id.owner != (asks ? self_ : from)) ||
      (asks && sequence == 0) ||
      (kind == Kind::kCreate && id.creator != from)) {
    return Misplaced(from, message);
  }
  // An old message of a lost worker must not list it again.
  if (const auto lost = lost_.find(from); lost != lost_.end()) {
    return kind == Kind::kCreate ? lost->second : absl::OkStatus();
  }
  switch (kind) {
    case Kind::kCreate:
    case Kind::kRegister:
    case Kind::kRelease:
      return OnRequest(from, message, effects);
    case Kind::kRegistered:
    case Kind::kUnknown: {
      const auto held = held_.find(id);
      // Otherwise it answers an earlier request, perhaps for a reference that
      // no longer exists, or is a second answer to the same one.
      if (held != held_.end() && held->second.sequence == sequence &&
          !held->second.confirmed && held->second.dead.ok()) {
        held->second.confirmed = kind == Kind::kRegistered;
        Settle(id, held->second.confirmed ? absl::OkStatus() : Unknown(id),
               effects);
      }
      break;
    }
    case Kind::kAccepted: {
      const auto transfer = transfers_.find(sequence);
      if (transfer != transfers_.end() && transfer->second.ready &&
          transfer->second.peer == from) {
        Abandon(sequence, effects);
      }
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceTable::OnRequest(int from,
                                       const ReferenceMessage& request,
                                       ReferenceEffects* effects) {
  const auto& [kind, id, sequence] = request;
  auto owned = owned_.find(id);
  if (kind == Kind::kCreate && !released_all_) {
    if (owned != owned_.end()) return Misplaced(from, request);
    owned = owned_.try_emplace(id).first;
  }
  const bool known = owned != owned_.end();
  if (known) {
    Owned::Holder& last = owned->second.holders[from];
    if (sequence > last.sequence) last = {sequence, kind != Kind::kRelease};
  }
  if (kind != Kind::kRelease) {
    Send(from, {known ? Kind::kRegistered : Kind::kUnknown, id, sequence},
         effects);
  } else if (known) {
    RemoveIfUnheld(owned, effects);
  }
  return kind == Kind::kCreate && !known ? AfterReleaseAll() : absl::OkStatus();
}

void ReferenceTable::Settle(const ReferenceId& id, const absl::Status& dead,
                            ReferenceEffects* effects) {
  Held& held = held_[id];
  held.dead = dead;
  for (const uint64_t number : std::exchange(held.waiting, {})) {
    Advance(number, dead, effects);
  }
  ForgetIfUnused(id, effects);
}

void ReferenceTable::ForgetIfUnused(const ReferenceId& id,
                                    ReferenceEffects* effects) {
  const auto found = held_.find(id);
  if (found == held_.end() || found->second.handles > 0) return;
  const bool dead = !found->second.dead.ok();
  // While its request is under way, nothing is released: a release that
  // overtakes a creation would find nothing. The answer calls this again.
  if (!dead && !found->second.confirmed) return;
  held_.erase(found);
  if (!dead) Send(id.owner, {Kind::kRelease, id, ++last_sequence_}, effects);
}

void ReferenceTable::WorkerLost(int worker, const absl::Status& why,
                                ReferenceEffects* effects) {
  if (!lost_.try_emplace(worker, why).second) return;
  for (auto owned = owned_.begin(); owned != owned_.end();) {
    owned->second.holders.erase(worker);
    owned = RemoveIfUnheld(owned, effects);
  }
  std::vector<uint64_t> to_it;
  for (const auto& [number, transfer] : transfers_) {
    if (transfer.outgoing && transfer.peer == worker) to_it.push_back(number);
  }
  for (const uint64_t number : to_it) {
    if (!transfers_.find(number)->second.ready) {
      effects->ready.push_back({number, why});
    }
    Abandon(number, effects);
  }
  std::vector<ReferenceId> of_it;
  for (const auto& [id, held] : held_) {
    if (id.owner == worker && held.dead.ok()) of_it.push_back(id);
  }
  for (const ReferenceId& id : of_it) Settle(id, OwnerLost(id, why), effects);
}

void ReferenceTable::ReleaseAll(ReferenceEffects* effects) {
  if (std::exchange(released_all_, true)) return;
  for (const auto& [number, transfer] : std::exchange(transfers_, {})) {
    if (!transfer.ready) effects->ready.push_back({number, AfterReleaseAll()});
    if (!transfer.outgoing) Decline(transfer.peer, transfer.number, effects);
  }
  std::vector<ReferenceId> ids;
  for (auto& [id, held] : held_) {
    held.handles = 0;
    ids.push_back(id);
  }
  for (const ReferenceId& id : ids) ForgetIfUnused(id, effects);
}

void ReferenceTable::Send(int to, const ReferenceMessage& message,
                          ReferenceEffects* effects) {
  if (to == self_) {
    // A worker holds its own values as others do; its messages are valid.
    OnMessage(self_, message, effects).IgnoreError();
  } else if (!lost_.contains(to)) {
    effects->messages.push_back({to, message});
  }
}

std::string ReferenceTable::ToString() const {
  std::string text;
  for (const auto& [id, owned] : owned_) {
    absl::StrAppend(&text, NameOf(id), " owned, holders");
    for (const auto& [worker, holder] : owned.holders) {
      absl::StrAppend(&text, holder.holds ? " " : " not ", worker, "@",
                      holder.sequence);
    }
    absl::StrAppend(&text, "\n");
  }
  for (const auto& [id, held] : held_) {
    absl::StrAppend(&text, NameOf(id), " held by ", held.handles, " handles, ",
                    !held.dead.ok()  ? "dead"
                    : held.confirmed ? "listed"
                                     : "to be listed",
                    "@", held.sequence, "\n");
  }
  for (const auto& [number, transfer] : transfers_) {
    absl::StrAppend(&text, "transfer ", number,
                    transfer.outgoing ? " to " : " from ", transfer.peer, "#",
                    transfer.number, transfer.ready ? " sent" : " waits for ",
                    transfer.unanswered,
                    transfer.status.ok() ? ": " : ", fails: ",
                    absl::StrJoin(transfer.ids, ", ", AppendName), "\n");
  }
  return text;
}

}  // namespace sherd::internal
