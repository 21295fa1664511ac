#include "sherd/rpc/engine/drain_agreement.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/rpc/engine/call_codec.h"

namespace sherd::internal {

DrainAgreement::DrainAgreement(int rank, int world_size)
    : rank_(rank), size_(world_size) {}

int DrainAgreement::Coordinator() const {
  int lowest = 0;
  while (lowest < rank_ && gone_.contains(lowest)) ++lowest;
  return lowest;
}

DrainAgreement::Messages DrainAgreement::ToOthers(
    const DrainHeader& header) const {
  Messages messages;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && !gone_.contains(r)) messages.push_back({r, header});
  }
  return messages;
}

DrainAgreement::Messages DrainAgreement::OnMessage(int from,
                                                   const DrainHeader& header) {
  // A worker that gave up may still run, but is excluded.
  if (gone_.contains(from)) return {};
  switch (header.kind) {
    case DrainKind::kWave:
      if (agreed()) return {{from, Agreed()}};
      asked_[from] = {header.wave,
                      {header.excluded.begin(), header.excluded.end()}};
      return {};
    case DrainKind::kReport:
      if (reports_ && header.wave == wave_) {
        (*reports_)[from] = {true, header.sent, header.received};
      }
      return {};
    case DrainKind::kAgreed:
      if (!joined_) return {};
      if (!agreed()) Agree(header.excluded);
      return {{from, {.kind = DrainKind::kAcknowledged}}};
    case DrainKind::kAcknowledged:
      acknowledged_.insert(from);
      return {};
    case DrainKind::kLeave:
      if (agreed()) phase_ = Phase::kOver;
      return {};
    case DrainKind::kGiveUp:
      if (!agreed()) OnGone(from, "it gave up");
      return {};
  }
  return {};
}

void DrainAgreement::OnGone(int worker, absl::string_view why) {
  // A worker that leaves after the agreement is not missed.
  if (agreed()) why = "";
  if (!gone_.emplace(worker, why).second) return;
  asked_.erase(worker);
  // The counts so far include requests to and from it.
  reports_.reset();
  balance_.reset();
  wave_is_due_ = false;
}

std::set<int> DrainAgreement::Gone() const {
  std::set<int> gone;
  for (const auto& [worker, why] : gone_) gone.insert(worker);
  return gone;
}

std::map<int, std::string> DrainAgreement::lost() const {
  std::map<int, std::string> lost = gone_;
  std::erase_if(lost, [](const auto& entry) { return entry.second.empty(); });
  return lost;
}

DrainHeader DrainAgreement::Agreed() const {
  DrainHeader header{.kind = DrainKind::kAgreed};
  for (const auto& [worker, why] : lost()) header.excluded.push_back(worker);
  return header;
}

void DrainAgreement::Agree(const std::vector<int>& lost) {
  for (const int worker : lost) {
    if (worker >= size_ || worker == rank_) continue;
    gone_.try_emplace(worker, "others have lost it");
  }
  phase_ = Phase::kAgreed;
  asked_.clear();
  reports_.reset();
  wave_is_due_ = false;
}

DrainAgreement::Messages DrainAgreement::Advance(const Look& look,
                                                 bool new_wave) {
  Messages messages;
  if (!joined_ || over()) return messages;
  const auto tell_others = [&](const DrainHeader& header) {
    for (Message& message : ToOthers(header)) {
      messages.push_back(std::move(message));
    }
  };
  std::erase_if(asked_, [&](const auto& asked) {
    const DrainCounts counts = look(asked.second.excluded);
    if (!counts.idle) return false;
    messages.push_back({asked.first,
                        {.kind = DrainKind::kReport,
                         .wave = asked.second.number,
                         .sent = counts.sent,
                         .received = counts.received}});
    return true;
  });
  if (Coordinator() != rank_) {
    Greet(messages);
    return messages;
  }
  if (!agreed()) AdvanceCount(look, new_wave, messages);
  if (!agreed()) return messages;
  if (!std::exchange(told_, true)) tell_others(Agreed());
  if (!Missing().empty()) return messages;
  tell_others({.kind = DrainKind::kLeave});
  phase_ = Phase::kOver;
  return messages;
}

void DrainAgreement::Greet(Messages& messages) {
  const int coordinator = Coordinator();
  if (std::exchange(greeted_, coordinator) == coordinator) return;
  // Waves are numbered from 1, so that no coordinator counts it.
  messages.push_back({coordinator, {.kind = DrainKind::kReport}});
}

void DrainAgreement::AdvanceCount(const Look& look, bool new_wave,
                                  Messages& messages) {
  const std::set<int> gone = Gone();
  for (;;) {
    if (!reports_) {
      if (wave_is_due_ && !new_wave) return;
      wave_is_due_ = false;
      reports_.emplace();
      ++wave_;
      for (Message& ask : ToOthers({.kind = DrainKind::kWave,
                          .wave = wave_,
                          .excluded = {gone.begin(), gone.end()}})) {
        messages.push_back(std::move(ask));
      }
    }
    if (!reports_->contains(rank_)) {
      const DrainCounts own = look(gone);
      if (!own.idle) return;
      (*reports_)[rank_] = own;
    }
    if (!Missing().empty()) return;
    uint64_t sent = 0, received = 0;
    for (const auto& [rank, counts] : *reports_) {
      sent += counts.sent;
      received += counts.received;
    }
    reports_.reset();
    const bool balanced = sent == received;
    if (balanced && balance_ == sent) {
      Agree({});
      return;
    }
    balance_.reset();
    if (balanced) balance_ = sent;
    wave_is_due_ = !balanced;
    new_wave = false;
  }
}

DrainAgreement::Messages DrainAgreement::GiveUp() {
  joined_ = false;
  const DrainHeader header{.kind = DrainKind::kGiveUp};
  const int coordinator = Coordinator();
  reports_.reset();
  balance_.reset();
  if (coordinator == rank_) return ToOthers(header);
  return {{coordinator, header}};
}

std::vector<int> DrainAgreement::Missing() const {
  std::vector<int> missing;
  if (over()) return missing;
  if (Coordinator() != rank_) return {Coordinator()};
  for (int r = 0; r < size_; ++r) {
    if (gone_.contains(r)) continue;
    const bool here = agreed() ? r == rank_ || acknowledged_.contains(r)
                               : reports_ && reports_->contains(r);
    if (!here) missing.push_back(r);
  }
  return missing;
}

}  // namespace sherd::internal
