#include "sherd/rpc/ownership/ownership_world.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace sherd::internal {

using Kind = OwnershipWorld::Action::Kind;

std::string OwnershipWorld::Action::ToString() const {
  static constexpr const char* kNames[] = {
      "create",  "create unsent", "pass", "deliver", "drop",
      "abandon", "kill",          "cut",  "notice",  "release all"};
  return absl::StrCat(kNames[static_cast<int>(kind)], " ", a, " ", b, " ", c,
                      " ", d);
}

std::string OwnershipWorld::Packet::ToString() const {
  return transfer != 0
             ? absl::StrCat("#", transfer, " of ", absl::StrJoin(values, ","))
             : absl::StrCat(static_cast<int>(message.kind), " ",
                            NameOf(message.id), "@", message.sequence);
}

OwnershipWorld::OwnershipWorld(const Limits& limits) : left_(limits) {
  for (int i = 0; i < limits.workers; ++i) {
    workers_.push_back({.table = ReferenceTable(i)});
  }
  values_.resize(limits.creations.size());
}

// ---- Possible actions

std::vector<OwnershipWorld::Action> OwnershipWorld::Actions(size_t* due) const {
  std::vector<Action> actions;
  AddDue(actions);
  *due = actions.size();
  for (size_t i = 0; i < values_.size(); ++i) {
    const auto [creator, owner] = left_.creations[i];
    if (values_[i].begun || !workers_[creator].alive) continue;
    actions.push_back({Kind::kCreate, static_cast<int>(i)});
    if (left_.abandons > 0 && creator != owner) {
      actions.push_back({Kind::kNotSent, static_cast<int>(i)});
    }
  }
  if (left_.passes > 0) AddPasses(actions);
  AddFaults(actions);
  return actions;
}

void OwnershipWorld::AddDue(std::vector<Action>& actions) const {
  for (const auto& [pair, packets] : channels_) {
    const size_t count = left_.reorders ? packets.size() : 1;
    for (size_t i = 0; i < std::min(count, packets.size()); ++i) {
      actions.push_back(
          {Kind::kDeliver, pair.first, pair.second, static_cast<int>(i)});
    }
  }
  for (const auto& [who, whom] : notices_) {
    actions.push_back({Kind::kNotice, who, whom});
  }
  for (size_t w = 0; w < workers_.size(); ++w) {
    for (const auto& [value, count] : workers_[w].handles) {
      actions.push_back({Kind::kDrop, static_cast<int>(w), value});
    }
  }
}

void OwnershipWorld::AddPasses(std::vector<Action>& actions) const {
  const int count = static_cast<int>(workers_.size());
  for (int w = 0; w < count; ++w) {
    for (const auto& [value, handles] : workers_[w].handles) {
      for (int to = 0; to < count; ++to) {
        actions.push_back({Kind::kPass, w, to, value, -1});
        for (const auto& [other, others] : workers_[w].handles) {
          if (!left_.pairs || other <= value) continue;
          actions.push_back({Kind::kPass, w, to, value, other});
        }
      }
    }
  }
}

void OwnershipWorld::AddFaults(std::vector<Action>& actions) const {
  const int count = static_cast<int>(workers_.size());
  if (left_.duplicates > 0) AddDuplicates(actions);
  for (int w = 0; w < count; ++w) {
    if (!workers_[w].alive) continue;
    for (const auto& [transfer, pending] : workers_[w].pending) {
      if (left_.abandons == 0) break;
      actions.push_back({Kind::kAbandon, w, static_cast<int>(transfer)});
    }
    if (left_.deaths > 0) actions.push_back({Kind::kKill, w});
    if (left_.releases_of_all > 0 && !workers_[w].released_all) {
      actions.push_back({Kind::kReleaseAll, w});
    }
    for (int other = w + 1; left_.cuts > 0 && other < count; ++other) {
      if (Intact(w, other)) actions.push_back({Kind::kCut, w, other});
    }
  }
}

void OwnershipWorld::AddDuplicates(std::vector<Action>& actions) const {
  std::vector<Action> due;
  AddDue(due);
  for (Action action : due) {
    if (action.kind != Kind::kDeliver) continue;
    const Packet& packet =
        channels_.at({action.a, action.b})[static_cast<size_t>(action.c)];
    if (packet.transfer != 0 ||
        packet.message.kind == ReferenceMessage::Kind::kCreate) {
      continue;  // Calls and replies do not come twice.
    }
    action.d = 1;
    actions.push_back(action);
  }
}

// ---- Their effects

void OwnershipWorld::Do(const Action& action) {
  ReferenceEffects effects;
  const int a = action.a;
  switch (action.kind) {
    case Kind::kCreate:
    case Kind::kNotSent:
      return Create(a, action.kind == Kind::kCreate);
    case Kind::kPass: {
      --left_.passes;
      std::vector<int> values = {action.c};
      if (action.d >= 0) values.push_back(action.d);
      const uint64_t transfer =
          workers_[a].table.Pass(action.b, IdsOf(values), &effects);
      workers_[a].pending[transfer] = {true, action.b, values};
      break;
    }
    case Kind::kDeliver: {
      std::vector<Packet>& packets = channels_.at({a, action.b});
      const Packet packet = packets[static_cast<size_t>(action.c)];
      if (action.d != 0) {
        --left_.duplicates;
      } else {
        packets.erase(packets.begin() + action.c);
      }
      return Deliver(a, action.b, packet);
    }
    case Kind::kDrop: {
      int& handles = workers_[a].handles[action.b];
      if (--handles == 0) workers_[a].handles.erase(action.b);
      workers_[a].table.DropHandle(values_[action.b].id, &effects);
      break;
    }
    case Kind::kAbandon:
      --left_.abandons;
      workers_[a].pending.erase(action.b);
      workers_[a].table.Abandon(action.b, &effects);
      break;
    case Kind::kKill:
      --left_.deaths;
      for (int other = 0; other < static_cast<int>(workers_.size()); ++other) {
        if (other != a && Intact(a, other)) Break(a, other);
        channels_.erase({other, a});
        notices_.erase({a, other});
      }
      workers_[a] = {.table = ReferenceTable(a), .alive = false};
      return;
    case Kind::kCut:
      --left_.cuts;
      return Break(a, action.b);
    case Kind::kNotice:
      notices_.erase({a, action.b});
      channels_.erase({action.b, a});
      workers_[a].lost.insert(action.b);
      workers_[a].table.WorkerLost(
          action.b, absl::UnavailableError("end of file"), &effects);
      break;
    case Kind::kReleaseAll:
      --left_.releases_of_all;
      workers_[a].released_all = true;
      workers_[a].handles.clear();
      workers_[a].table.ReleaseAll(&effects);
      break;
  }
  Apply(a, effects);
}

void OwnershipWorld::Create(int value, bool sent) {
  const auto [creator, owner] = left_.creations[value];
  Worker& worker = workers_[creator];
  values_[value].begun = true;
  if (!sent) --left_.abandons;
  const auto creation = worker.table.Create(owner);
  if (!creation.ok()) {
    if (!worker.released_all && Intact(creator, owner)) {
      ReportViolation("not created");
    }
    return;
  }
  ReferenceEffects effects;
  values_[value].id = creation->id;
  worker.handles[value] = 1;
  if (owner == creator) {
    values_[value].made = true;
    worker.table.SetValue(creation->id, std::make_shared<int>(value), &effects);
  } else if (sent) {
    Post(creator, owner, {.message = *creation});
  } else {
    values_[value].not_sent = true;
    worker.table.RequestNotSent(creation->id, absl::CancelledError("no"),
                                &effects);
  }
  Apply(creator, effects);
}

void OwnershipWorld::Deliver(int from, int to, const Packet& packet) {
  Worker& worker = workers_[to];
  ReferenceEffects effects;
  if (packet.transfer != 0) {
    const uint64_t transfer = worker.table.Receive(
        from, packet.transfer, IdsOf(packet.values), &effects);
    worker.pending[transfer] = {false, from, packet.values};
    return Apply(to, effects);
  }
  const ReferenceMessage& message = packet.message;
  const absl::Status status = worker.table.OnMessage(from, message, &effects);
  if (message.kind != ReferenceMessage::Kind::kCreate) {
    if (!status.ok()) ReportViolation(status.ToString());
  } else if (status.ok()) {
    const int value = IndexOf(message.id);
    values_[value].made = true;
    worker.table.SetValue(message.id, std::make_shared<int>(value), &effects);
  }
  Apply(to, effects);
}

void OwnershipWorld::Apply(int worker, const ReferenceEffects& effects) {
  for (const auto& [to, message] : effects.messages) {
    if (to == worker) ReportViolation("a message to itself");
    Post(worker, to, {.message = message});
  }
  for (const auto& [transfer, status] : effects.ready) {
    OnReady(worker, transfer, status.ok());
  }
  for (const std::shared_ptr<void>& released : effects.released) {
    Value& value = values_[*static_cast<const int*>(released.get())];
    if (value.freed) ReportViolation("released twice");
    value.freed = true;
  }
}

void OwnershipWorld::OnReady(int worker, uint64_t transfer, bool ok) {
  const auto found = workers_[worker].pending.find(transfer);
  if (found == workers_[worker].pending.end()) {
    return ReportViolation("ready, and not pending");
  }
  const PendingTransfer pending = found->second;
  workers_[worker].pending.erase(found);
  if (!ok) {
    const int from = pending.outgoing ? worker : pending.peer;
    const int to = pending.outgoing ? pending.peer : worker;
    const bool excused =
        std::any_of(pending.values.begin(), pending.values.end(),
                    [&](int value) { return Excused(value, from, to); });
    if (!excused) ReportViolation("a transfer failed without a reason");
  } else if (pending.outgoing) {
    Post(worker, pending.peer,
         {.transfer = transfer, .values = pending.values});
  } else {
    for (const int value : pending.values) {
      if (!values_[value].made) ReportViolation("received before it was made");
      ++workers_[worker].handles[value];
    }
  }
}

void OwnershipWorld::Post(int from, int to, Packet packet) {
  // To a dead worker, or by one that knows the other as lost.
  if (!workers_[to].alive || workers_[from].lost.contains(to)) return;
  channels_[{from, to}].push_back(std::move(packet));
}

void OwnershipWorld::Break(int a, int b) {
  broken_.insert({std::min(a, b), std::max(a, b)});
  notices_.insert({a, b});
  notices_.insert({b, a});
}

// ---- Properties that must hold

bool OwnershipWorld::Intact(int a, int b) const {
  return workers_[a].alive && workers_[b].alive &&
         !broken_.contains({std::min(a, b), std::max(a, b)});
}

// Whether a transfer of `value` may fail: a worker on which it depends was
// lost, released everything, or never made it.
bool OwnershipWorld::Excused(int value, int from, int to) const {
  const int owner = left_.creations[value].second;
  const bool all_here = Intact(from, to) && Intact(from, owner) &&
                        Intact(to, owner) && !workers_[from].released_all &&
                        !workers_[to].released_all &&
                        (values_[value].made || !workers_[owner].released_all);
  return !all_here || values_[value].not_sent;
}

std::string OwnershipWorld::Violation() const {
  if (!violation_.empty()) return violation_;
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = values_[i];
    const int owner = left_.creations[i].second;
    if (!value.made || !workers_[owner].alive) continue;
    const bool there = workers_[owner].table.Find(value.id) != nullptr;
    if (value.freed && there) return absl::StrCat("raised from the dead: ", i);
    if (there) continue;
    for (size_t w = 0; w < workers_.size(); ++w) {
      if (Intact(owner, w) && workers_[w].handles.contains(i) &&
          workers_[w].table.Check(value.id).ok()) {
        return absl::StrCat("value ", i, " released while worker ", w,
                            " has a handle");
      }
    }
    for (const auto& [pair, packets] : channels_) {
      if (Excused(i, pair.first, pair.second)) continue;
      for (const Packet& packet : packets) {
        if (std::count(packet.values.begin(), packet.values.end(), i) > 0) {
          return absl::StrCat("value ", i, " released while worker ",
                              pair.second, " is to receive it");
        }
      }
    }
  }
  return "";
}

std::string OwnershipWorld::Leftovers() const {
  std::string text;
  for (const Worker& worker : workers_) {
    if (!worker.table.empty()) absl::StrAppend(&text, worker.table.ToString());
    if (!worker.pending.empty()) absl::StrAppend(&text, "waits for ever\n");
  }
  return text;
}

std::string OwnershipWorld::Key() const {
  std::string key = absl::StrCat(
      left_.passes, " ", left_.duplicates, " ", left_.deaths, " ", left_.cuts,
      " ", left_.abandons, " ", left_.releases_of_all, "\n");
  for (const Worker& worker : workers_) {
    absl::StrAppend(
        &key, worker.alive ? "+" : "-", worker.released_all ? "r" : "", "l",
        absl::StrJoin(worker.lost, ","), "h",
        absl::StrJoin(worker.handles, ",", absl::PairFormatter(":")), "\n",
        worker.table.ToString());
    for (const auto& [transfer, pending] : worker.pending) {
      absl::StrAppend(&key, transfer, " ");
    }
  }
  for (const Value& value : values_) {
    absl::StrAppend(&key, value.begun, value.made, value.not_sent, value.freed);
  }
  for (const auto& [pair, packets] : channels_) {
    if (packets.empty()) continue;
    std::vector<std::string> texts;
    for (const Packet& packet : packets) texts.push_back(packet.ToString());
    if (left_.reorders) std::sort(texts.begin(), texts.end());
    absl::StrAppend(&key, "\n", pair.first, "-", pair.second, ": ",
                    absl::StrJoin(texts, " "));
  }
  for (const auto& [a, b] : broken_) absl::StrAppend(&key, "!", a, b);
  for (const auto& [a, b] : notices_) absl::StrAppend(&key, "?", a, b);
  return key;
}

int OwnershipWorld::IndexOf(const ReferenceId& id) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].begun && values_[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

std::vector<ReferenceId> OwnershipWorld::IdsOf(
    absl::Span<const int> values) const {
  std::vector<ReferenceId> ids;
  for (const int value : values) ids.push_back(values_[value].id);
  return ids;
}

void OwnershipWorld::ReportViolation(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

// ---- Exploration

namespace {

std::string Story(const std::vector<OwnershipWorld::Action>& path) {
  std::string story;
  for (const OwnershipWorld::Action& action : path) {
    absl::StrAppend(&story, "  ", action.ToString(), "\n");
  }
  return story;
}

// Describes what is wrong with `world`, in which `due` actions are due.
std::string Judge(const OwnershipWorld& world, size_t due) {
  std::string wrong = world.Violation();
  if (wrong.empty() && due == 0) wrong = world.Leftovers();
  return wrong;
}

class Explorer {
 public:
  void Explore(const OwnershipWorld& world) {
    const std::string key = world.Key();
    // Two hashes instead of the text: there are millions.
    if (!seen_.insert({absl::HashOf(key), std::hash<std::string>()(key)})
             .second) {
      return;
    }
    size_t due = 0;
    const std::vector<OwnershipWorld::Action> actions = world.Actions(&due);
    ++found_.worlds;
    if (due == 0) ++found_.at_rest;
    if (const std::string wrong = Judge(world, due); !wrong.empty()) {
      found_.wrong = absl::StrCat(wrong, "\nafter\n", Story(path_), key);
      return;
    }
    for (const OwnershipWorld::Action& action : actions) {
      OwnershipWorld next = world;
      next.Do(action);
      path_.push_back(action);
      Explore(next);
      path_.pop_back();
      if (!found_.wrong.empty()) return;
    }
  }

  const Exploration& found() const { return found_; }

 private:
  absl::flat_hash_set<std::pair<size_t, size_t>> seen_;
  std::vector<OwnershipWorld::Action> path_;
  Exploration found_;
};

// The relative frequency of a kind of action.
double Rate(OwnershipWorld::Action::Kind kind) {
  switch (kind) {
    case Kind::kDeliver:
    case Kind::kCreate:
      return 1;
    case Kind::kPass:
    case Kind::kNotice:
      return 0.3;
    case Kind::kDrop:
      return 0.1;
    case Kind::kNotSent:
    case Kind::kAbandon:
      return 0.05;
    case Kind::kKill:
    case Kind::kCut:
    case Kind::kReleaseAll:
      return 0.005;
  }
  return 1;
}

}  // namespace

Exploration ExploreAll(const OwnershipWorld::Limits& limits) {
  Explorer explorer;
  explorer.Explore(OwnershipWorld(limits));
  return explorer.found();
}

Exploration ExploreAtRandom(const OwnershipWorld::Limits& limits,
                            uint64_t seed) {
  std::mt19937_64 random(seed);
  OwnershipWorld world(limits);
  std::vector<OwnershipWorld::Action> path;
  Exploration found;
  while (true) {
    size_t due = 0;
    const std::vector<OwnershipWorld::Action> actions = world.Actions(&due);
    ++found.worlds;
    if (due == 0) ++found.at_rest;
    if (const std::string wrong = Judge(world, due); !wrong.empty()) {
      found.wrong = absl::StrCat(wrong, "\nafter\n", Story(path), world.Key());
      return found;
    }
    if (actions.empty()) return found;
    std::vector<double> rates;
    for (const auto& action : actions) rates.push_back(Rate(action.kind));
    std::discrete_distribution<size_t> next(rates.begin(), rates.end());
    path.push_back(actions[next(random)]);
    world.Do(path.back());
  }
}

}  // namespace sherd::internal
