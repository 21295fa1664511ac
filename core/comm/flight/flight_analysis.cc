#include "sherd/core/comm/flight/flight_analysis.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/units.h"
#include "sherd/core/comm/collective/call_signature.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/tensor/types/dtype_names.h"

namespace sherd {
namespace {

using internal::CallAgreement;
using internal::CallFields;
using internal::CallSignature;
using internal::Deviation;
using internal::FindOperation;
using internal::kOperationTraits;
using internal::OperationLists;
using internal::OperationTraits;

// Dumps are written one after the other: so far apart, ranks that are well may
// be in different calls.
constexpr int64_t kUsualLag = 1'000'000'000;

// Of a rank's pending messages, at most so many are examined.
constexpr int kMostMessages = 16;

using Entries = std::map<uint64_t, const FlightFileEntry*>;

// One rank of a group, as described by its dump.
struct Member {
  int rank = 0;
  const FlightFile* file = nullptr;
  const FlightFileGroup* group = nullptr;
  // Collectives by sequence number.
  Entries calls;
  std::vector<const FlightFileEntry*> messages;
  // Of the last call; unset if the dump does not reach back so far.
  std::optional<uint64_t> last;
};

struct Group {
  std::string name;
  int64_t instance = 0;
  std::string backend;
  std::vector<Member> members;
};

std::string JoinRanks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      FormatRanks(ranks));
}

std::string CallName(const FlightFileEntry& entry) {
  return absl::StrCat(entry.op, " #", entry.sequence);
}

// The index of `name` in `names`.
template <size_t n>
std::optional<int32_t> NumberOf(absl::string_view name,
                                const char* const (&names)[n]) {
  const auto it = std::find(std::begin(names), std::end(names), name);
  if (it == std::end(names)) return std::nullopt;
  return static_cast<int32_t>(it - std::begin(names));
}

// The signature of a call in a group of `ranks`; unset if a later version of
// the library wrote a name that this one does not know.
std::optional<CallSignature> KnownSignatureOf(const FlightFileEntry& entry,
                                              size_t ranks) {
  const OperationTraits* const traits = FindOperation(entry.op);
  if (traits == nullptr) return std::nullopt;
  CallFields call = {
      .op = static_cast<int32_t>(traits - std::begin(kOperationTraits)),
      .root = entry.root.value_or(-1),
      .bytes = entry.bytes,
      .is_typed = !entry.dtype.empty(),
      .is_even = entry.is_even,
      .on_device = entry.on_device};
  if (traits->reduces || call.is_typed) {
    const auto dtype = NumberOf(entry.dtype, internal::kDTypeNames);
    if (!dtype) return std::nullopt;
    call.dtype = *dtype;
  }
  if (traits->reduces) {
    const auto reduction = NumberOf(entry.reduction, internal::kReduceOpNames);
    if (!reduction) return std::nullopt;
    call.reduction = *reduction;
  }
  CallSignature signature = SignatureOf(call);
  signature.kind |= CallSignature::kWithoutLists;
  if (traits->lists == OperationLists::kSameSends) {
    signature.bytes = entry.is_even ? entry.bytes * ranks : entry.bytes;
  }
  return signature;
}

// The names of a call that this version does not know.
std::string NamesOf(const FlightFileEntry& entry) {
  std::vector<absl::string_view> names = {entry.op};
  if (!entry.dtype.empty()) names.push_back(entry.dtype);
  if (!entry.reduction.empty()) names.push_back(entry.reduction);
  return absl::StrJoin(names, " ");
}

// The signature on which all ranks must agree; for a call that this version
// does not know, built from its names.
CallSignature SignatureOf(const FlightFileEntry& entry, size_t ranks) {
  const std::optional<CallSignature> known = KnownSignatureOf(entry, ranks);
  if (known) return *known;
  constexpr uint64_t kUnknownOp = 0xff;
  return {.kind = kUnknownOp,
          .lengths = std::hash<std::string>()(NamesOf(entry))};
}

std::string CallText(const FlightFileEntry& entry, size_t ranks) {
  const std::optional<CallSignature> known = KnownSignatureOf(entry, ranks);
  return known ? ToText(*known) : NamesOf(entry);
}

double SecondsBetween(int64_t from, int64_t to) {
  return 1e-9 * static_cast<double>(to - from);
}

int64_t BeginOf(const FlightFileEntry& entry) {
  return entry.started_ns.value_or(entry.enqueued_ns);
}

// How long the entry's rank waited or has waited in it.
int64_t WaitOf(const Member& member, const FlightFileEntry& entry) {
  return entry.ended_ns.value_or(member.file->monotonic_ns) - BeginOf(entry);
}

// Whether the call does not go on as it should.
bool IsInTrouble(const Member& member, const FlightFileEntry& entry) {
  return entry.failed() ||
         (entry.outstanding() && WaitOf(member, entry) >= kUsualLag);
}

void FindLast(Member& member) {
  if (!member.calls.empty()) {
    member.last = member.calls.rbegin()->first;
  } else if (member.group->ended_collectives == uint64_t{0}) {
    member.last = 0;
  }
}

// The backend as requested from Init.
std::string BackendOf(const FlightFileGroup& group) {
  if (group.device.empty()) return group.backend;
  const std::string type = group.device.substr(0, group.device.find(':'));
  return absl::StrCat("cpu:", group.backend, ",", type, ":",
                      group.device_backend);
}

using GroupKey = std::tuple<std::string, int64_t, int, std::vector<int>>;

// Adds the contents of `file`; `groups` have a member for each rank.
void AddFile(const FlightFile& file, std::map<GroupKey, Group>& groups) {
  std::vector<Member*> members;
  for (const FlightFileGroup& group : file.groups) {
    Group& merged =
        groups[{group.name, group.instance, group.size, group.world_ranks}];
    if (merged.members.empty()) {
      merged.name = group.name;
      merged.instance = group.instance;
      merged.backend = BackendOf(group);
      merged.members.resize(static_cast<size_t>(group.size));
      for (int r = 0; r < group.size; ++r) {
        merged.members[static_cast<size_t>(r)].rank = group.world_rank(r);
      }
    }
    Member& member = merged.members[static_cast<size_t>(group.rank)];
    member.file = &file;
    member.group = &group;
    members.push_back(&member);
  }
  for (const FlightFileEntry& entry : file.entries) {
    Member& member = *members[entry.group];
    if (entry.is_point_to_point()) {
      member.messages.push_back(&entry);
    } else {
      member.calls[entry.sequence] = &entry;
    }
  }
}

// The first call that not all ranks made alike.
std::optional<uint64_t> FirstUnequal(const Group& group) {
  std::map<uint64_t, CallAgreement> agreements;
  std::optional<uint64_t> unequal;
  for (const Member& member : group.members) {
    for (const auto& [sequence, entry] : member.calls) {
      if (unequal && sequence >= *unequal) break;
      const CallSignature signature = SignatureOf(*entry, group.members.size());
      const auto it = agreements.try_emplace(sequence, signature).first;
      if (!it->second.Fits(signature)) unequal = sequence;
    }
  }
  return unequal;
}

std::optional<FlightFinding> FindMismatch(const Group& group) {
  const std::optional<uint64_t> unequal = FirstUnequal(group);
  if (!unequal) return std::nullopt;
  std::vector<std::optional<CallSignature>> calls(group.members.size());
  for (size_t r = 0; r < calls.size(); ++r) {
    const auto it = group.members[r].calls.find(*unequal);
    if (it == group.members[r].calls.end()) continue;
    calls[r] = SignatureOf(*it->second, calls.size());
  }
  const Deviation deviation = internal::FindDeviatingCalls(calls);
  const std::vector<int> deviating = deviation.Ranks();
  FlightFinding finding = {.kind = FlightFindingKind::kMismatch,
                           .sequence = *unequal};
  std::vector<std::string> texts;
  for (const std::vector<int>& party : deviation.parties) {
    std::vector<int> ranks;
    for (const int r : party) {
      const int rank = group.members[static_cast<size_t>(r)].rank;
      ranks.push_back(rank);
      // In a draw no rank is right.
      if (deviating.empty() ||
          std::binary_search(deviating.begin(), deviating.end(), r)) {
        finding.ranks.push_back(rank);
      }
    }
    const Member& first = group.members[static_cast<size_t>(party.front())];
    texts.push_back(
        absl::StrCat(JoinRanks(ranks), " called ",
                     CallText(*first.calls.at(*unequal), calls.size())));
  }
  std::sort(finding.ranks.begin(), finding.ranks.end());
  // The deviating rank comes first.
  std::reverse(texts.begin(), texts.end());
  finding.text =
      absl::StrCat("as call #", *unequal, ", ", absl::StrJoin(texts, "; "));
  return finding;
}

// The last call of the group that is in trouble somewhere, and where.
struct Trouble {
  uint64_t sequence = 0;
  const FlightFileEntry* entry = nullptr;
  int64_t wait = 0;
  std::vector<int> waiting;
  std::vector<int> failed;
};

std::optional<Trouble> FindTrouble(const Group& group) {
  // The first one: later failures follow from it.
  std::optional<Trouble> trouble;
  for (const Member& member : group.members) {
    uint64_t last_good = 0;
    for (const auto& [sequence, entry] : member.calls) {
      if (entry->state == "completed") last_good = sequence;
    }
    for (const auto& [sequence, entry] : member.calls) {
      if (!IsInTrouble(member, *entry)) continue;
      // A refused call after which the group went on.
      if (entry->failed() && sequence < last_good) continue;
      if (!trouble || sequence < trouble->sequence) {
        trouble = Trouble{.sequence = sequence, .entry = entry};
      }
      break;
    }
  }
  if (!trouble) return std::nullopt;
  for (const Member& member : group.members) {
    const auto it = member.calls.find(trouble->sequence);
    if (it == member.calls.end() || !IsInTrouble(member, *it->second)) continue;
    trouble->wait = std::max(trouble->wait, WaitOf(member, *it->second));
    (it->second->failed() ? trouble->failed : trouble->waiting)
        .push_back(member.rank);
  }
  return trouble;
}

std::string WhoIsIn(const Trouble& trouble) {
  std::vector<std::string> texts;
  if (!trouble.waiting.empty()) {
    texts.push_back(absl::StrCat(
        JoinRanks(trouble.waiting),
        trouble.waiting.size() == 1 ? " waits" : " wait", " in it"));
  }
  if (!trouble.failed.empty()) {
    texts.push_back(absl::StrCat("it failed on ", JoinRanks(trouble.failed)));
  }
  return absl::StrCat(absl::StrJoin(texts, ", "), " after ",
                      FormatSeconds(SecondsBetween(0, trouble.wait)));
}

std::string WhereIs(const Member& member, uint64_t sequence) {
  const std::string behind = absl::StrCat(
      sequence - *member.last,
      sequence - *member.last == 1 ? " call" : " calls", " behind");
  if (*member.last == 0) return absl::StrCat("has made no call, ", behind);
  const FlightFileEntry& last = *member.calls.rbegin()->second;
  return absl::StrCat("is ", behind, ", its last is ", CallName(last), " (",
                      last.state, ")");
}

void FindMissing(const Group& group, const Trouble& trouble,
                 std::vector<FlightFinding>& findings) {
  FlightFinding finding = {.kind = FlightFindingKind::kMissingInCall,
                           .sequence = trouble.sequence};
  std::vector<std::string> texts;
  for (const Member& member : group.members) {
    if (!member.last || *member.last >= trouble.sequence) continue;
    finding.ranks.push_back(member.rank);
    texts.push_back(absl::StrCat("rank ", member.rank, " ",
                                 WhereIs(member, trouble.sequence)));
  }
  if (texts.empty()) return;
  finding.text = absl::StrCat(
      JoinRanks(finding.ranks), finding.ranks.size() == 1 ? " has" : " have",
      " not come to ", CallName(*trouble.entry), ": ", WhoIsIn(trouble), "; ",
      absl::StrJoin(texts, "; "));
  findings.push_back(std::move(finding));
}

// The rank that made call `sequence` last, and how long after the first, if the
// ranks share a clock.
std::string LastToCome(const Group& group, uint64_t sequence) {
  std::vector<std::pair<int64_t, int>> arrivals;
  std::set<std::string> clocks;
  for (const Member& member : group.members) {
    const auto it = member.calls.find(sequence);
    if (it == member.calls.end()) continue;
    arrivals.emplace_back(BeginOf(*it->second), member.rank);
    clocks.insert(member.file->boot);
  }
  if (arrivals.size() < 2 || clocks.size() != 1 || clocks.count("") != 0)
    return "";
  std::sort(arrivals.begin(), arrivals.end());
  return absl::StrCat("; rank ", arrivals.back().second, " came last, ",
                      FormatSeconds(SecondsBetween(arrivals.front().first,
                                                   arrivals.back().first)),
                      " after rank ", arrivals.front().second);
}

void FindTogether(const Group& group, const Trouble& trouble,
                  std::vector<FlightFinding>& findings) {
  for (const Member& member : group.members) {
    if (member.calls.count(trouble.sequence) == 0) return;
  }
  FlightFinding finding = {.kind = trouble.failed.empty()
                                       ? FlightFindingKind::kStuckTogether
                                       : FlightFindingKind::kFailedTogether,
                           .sequence = trouble.sequence};
  finding.text =
      absl::StrCat("all ranks came to ", CallName(*trouble.entry),
                   " with equal calls: ", WhoIsIn(trouble),
                   LastToCome(group, trouble.sequence),
                   "; look at the network and at the ranks' processes");
  findings.push_back(std::move(finding));
}

void FindNoDump(const Group& group, const std::optional<Trouble>& trouble,
                std::vector<FlightFinding>& findings) {
  FlightFinding finding = {.kind = FlightFindingKind::kNoDump};
  for (const Member& member : group.members) {
    if (member.file == nullptr) finding.ranks.push_back(member.rank);
  }
  if (finding.ranks.empty()) return;
  finding.text = absl::StrCat(
      JoinRanks(finding.ranks),
      " left no dump: dead, stopped, on another host, or not asked");
  if (trouble) {
    finding.sequence = trouble->sequence;
    absl::StrAppend(&finding.text, "; the others' trouble is ",
                    CallName(*trouble->entry), ": ", WhoIsIn(*trouble));
  }
  findings.push_back(std::move(finding));
}

// Messages from one rank to another with one tag, as one of them has them.
using Messages = std::vector<const FlightFileEntry*>;

Messages MessagesOf(const Member& member, absl::string_view op, int peer,
                    std::optional<int64_t> tag) {
  Messages messages;
  for (const FlightFileEntry* entry : member.messages) {
    if (entry->op == op && entry->root == peer && entry->tag == tag) {
      messages.push_back(entry);
    }
  }
  return messages;
}

// Whether the recorder still has all that the rank ever did.
bool IsComplete(const FlightFile& file) {
  return file.dropped == 0 &&
         (file.entries.empty() ||
          file.entries.back().id <= std::max<int64_t>(file.capacity, 1));
}

// Finds the state of the message that `member` has been waiting for in `entry`.
std::optional<FlightFinding> CheckMessage(const Group& group,
                                          const Member& member, int own_rank,
                                          const FlightFileEntry& entry) {
  if (!entry.root) return std::nullopt;
  const Member& peer = group.members[static_cast<size_t>(*entry.root)];
  const bool is_recv = entry.op == "recv";
  const Messages own = MessagesOf(member, entry.op, *entry.root, entry.tag);
  FlightFinding finding = {.kind = FlightFindingKind::kMessage,
                           .ranks = {peer.rank},
                           .sequence = entry.sequence};
  const std::string what = absl::StrCat(
      "rank ", member.rank, entry.failed() ? " failed" : " waits", " in ",
      CallName(entry), is_recv ? " from rank " : " to rank ", peer.rank,
      ", tag ", entry.tag.value_or(0), ", after ",
      FormatSeconds(SecondsBetween(0, WaitOf(member, entry))), ": ");
  if (peer.file == nullptr) {
    finding.text = absl::StrCat(what, "rank ", peer.rank, " left no dump");
    return finding;
  }
  const Messages others =
      MessagesOf(peer, is_recv ? "send" : "recv", own_rank, entry.tag);
  if (!IsComplete(*member.file) || !IsComplete(*peer.file)) {
    finding.text =
        absl::StrCat(what, "the dump of rank ", peer.rank, " has ",
                     others.size(), is_recv ? " such sends" : " such receives",
                     ", but the recorders do not reach back to the beginning");
    return finding;
  }
  const size_t index = static_cast<size_t>(
      std::find(own.begin(), own.end(), &entry) - own.begin());
  if (index >= others.size()) {
    finding.text = absl::StrCat(
        what, "rank ", peer.rank, is_recv ? " has sent " : " has taken ",
        others.size(), " such messages, this is number ", index + 1);
    return finding;
  }
  const FlightFileEntry& other = *others[index];
  if (other.bytes == entry.bytes) return std::nullopt;
  finding.ranks = {std::min(member.rank, peer.rank),
                   std::max(member.rank, peer.rank)};
  finding.text =
      absl::StrCat(what, "it has ", entry.bytes, " bytes, ", CallName(other),
                   " of rank ", peer.rank, " has ", other.bytes);
  return finding;
}

FlightRankState StateOf(const Member& member, int group_rank,
                        std::optional<uint64_t> furthest) {
  FlightRankState state = {.rank = member.rank,
                           .group_rank = group_rank,
                           .has_dump = member.file != nullptr,
                           .last_sequence = member.last};
  if (member.last && furthest) state.behind = *furthest - *member.last;
  if (!member.calls.empty()) {
    const FlightFileEntry& last = *member.calls.rbegin()->second;
    state.last_op = last.op;
    state.last_state = last.state;
    state.seconds = SecondsBetween(last.ended_ns.value_or(BeginOf(last)),
                                   member.file->monotonic_ns);
  }
  return state;
}

// "worker1 (rank 1)".
std::string WorkerName(const FlightFileCall& call) {
  return absl::StrCat(call.peer_name, " (rank ", call.peer, ")");
}

std::string CallText(const FlightFileCall& call, int64_t now) {
  std::string text = absl::StrCat(
      call.state, " for ", FormatSeconds(SecondsBetween(call.started_ns, now)));
  if (!call.deadline_ns) return text;
  const double left = SecondsBetween(now, *call.deadline_ns);
  return left < 0 ? absl::StrCat(text, ", deadline passed ",
                                 FormatSeconds(-left), " ago")
                  : absl::StrCat(text, ", deadline in ", FormatSeconds(left));
}

// Calls by the rank whose dump has them, direction, peer and number.
using CallKey = std::tuple<int, bool, int, uint64_t>;
using Calls = std::map<CallKey, const FlightFileCall*>;

// The same call as the worker has it that was called, or that called.
const FlightFileCall* OtherEnd(const Calls& calls, int rank,
                               const FlightFileCall& call) {
  const auto it = calls.find({call.peer, !call.incoming, rank, call.number});
  return it == calls.end() ? nullptr : it->second;
}

std::string DescribeCall(const Group& group, const Calls& calls, int rank,
                         const FlightFileCall& call) {
  const Member& member = group.members[static_cast<size_t>(rank)];
  const Member& peer = group.members[static_cast<size_t>(call.peer)];
  const std::string text = absl::StrCat(
      "rank ", rank, call.incoming ? " has" : " waits in", " call ",
      call.number, " of ", call.method, call.incoming ? " from " : " for ",
      WorkerName(call), ", ", CallText(call, member.file->monotonic_ns));
  if (peer.file == nullptr) {
    return absl::StrCat(text, "; that worker left no dump");
  }
  const FlightFileCall* const other = OtherEnd(calls, rank, call);
  if (other == nullptr) {
    return absl::StrCat(text, "; that worker does not have it");
  }
  return absl::StrCat(text, "; ", CallText(*other, peer.file->monotonic_ns),
                      " there");
}

std::optional<std::vector<std::string>> DescribeCalls(const Group& group) {
  Calls calls;
  bool has_calls = false;
  for (size_t r = 0; r < group.members.size(); ++r) {
    const Member& member = group.members[r];
    if (member.group == nullptr || !member.group->calls) continue;
    has_calls = true;
    for (const FlightFileCall& call : *member.group->calls) {
      calls[{static_cast<int>(r), call.incoming, call.peer, call.number}] =
          &call;
    }
  }
  if (!has_calls) return std::nullopt;
  std::vector<std::pair<int64_t, std::string>> by_age;
  for (const auto& [key, call] : calls) {
    const int rank = std::get<0>(key);
    // The caller's line speaks of both.
    if (call->incoming && OtherEnd(calls, rank, *call) != nullptr) continue;
    const Member& member = group.members[static_cast<size_t>(rank)];
    by_age.emplace_back(call->started_ns - member.file->monotonic_ns,
                        DescribeCall(group, calls, rank, *call));
  }
  std::stable_sort(
      by_age.begin(), by_age.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  for (auto& [age, text] : by_age) texts.push_back(std::move(text));
  return texts;
}

FlightGroupReport Analyze(Group& group) {
  FlightGroupReport report = {.name = group.name,
                              .instance = group.instance,
                              .backend = group.backend,
                              .size = static_cast<int>(group.members.size())};
  std::optional<uint64_t> furthest;
  for (Member& member : group.members) {
    if (member.file == nullptr) continue;
    FindLast(member);
    if (member.last) furthest = std::max(furthest.value_or(0), *member.last);
  }
  for (size_t r = 0; r < group.members.size(); ++r) {
    report.ranks.push_back(
        StateOf(group.members[r], static_cast<int>(r), furthest));
  }
  const std::optional<FlightFinding> mismatch = FindMismatch(group);
  if (mismatch) report.findings.push_back(*mismatch);
  const std::optional<Trouble> trouble = FindTrouble(group);
  if (trouble) {
    FindMissing(group, *trouble, report.findings);
    const bool explained = mismatch && mismatch->sequence <= trouble->sequence;
    if (!explained) FindTogether(group, *trouble, report.findings);
  }
  for (size_t r = 0; r < group.members.size(); ++r) {
    const Member& member = group.members[r];
    int looked_at = 0;
    for (const FlightFileEntry* entry : member.messages) {
      if (!IsInTrouble(member, *entry)) continue;
      if (++looked_at > kMostMessages) break;
      std::optional<FlightFinding> finding =
          CheckMessage(group, member, static_cast<int>(r), *entry);
      if (!finding) continue;
      // The first that a rank waits for; the rest queue up behind it.
      report.findings.push_back(*std::move(finding));
      break;
    }
  }
  FindNoDump(group, trouble, report.findings);
  report.calls = DescribeCalls(group);
  return report;
}

// By rank whose errors name others, or itself: these, in the order in which its
// groups were made.
using Named = std::map<int, std::vector<int>>;

// The rank to which the error of `rank` leads; the rank named first may itself
// only have waited. Of ranks that name each other, the one that most ranks
// name; unset in a draw.
std::optional<int> RootOf(const Named& named, const std::map<int, int>& votes,
                          int rank) {
  std::vector<int> chain = {rank};
  for (auto it = named.find(rank); it != named.end();
       it = named.find(chain.back())) {
    const int next = it->second.front();
    const auto cycle = std::find(chain.begin(), chain.end(), next);
    if (cycle == chain.end()) {
      chain.push_back(next);
      continue;
    }
    std::sort(cycle, chain.end(),
              [&](int a, int b) { return votes.at(a) > votes.at(b); });
    const bool is_draw =
        chain.end() - cycle > 1 && votes.at(cycle[0]) == votes.at(cycle[1]);
    return is_draw ? std::nullopt : std::optional<int>(*cycle);
  }
  return chain.back();
}

std::vector<FlightFailedRank> FindFailed(const std::vector<FlightFile>& files) {
  Named named;
  std::map<int, int> votes;
  for (const FlightFile& file : files) {
    for (const FlightFileGroup& group : file.groups) {
      if (!group.failed_rank) continue;
      named[file.rank].push_back(*group.failed_rank);
      ++votes[*group.failed_rank];
    }
  }
  std::map<int, FlightFailedRank> failed;
  for (const FlightFile& file : files) {
    const auto it = named.find(file.rank);
    if (it == named.end()) continue;
    std::set<int> roots;
    if (const std::optional<int> root = RootOf(named, votes, file.rank)) {
      roots.insert(*root);
    }
    for (const int later : it->second) {
      if (named.count(later) == 0) roots.insert(later);
    }
    for (const int root : roots) {
      FlightFailedRank& one = failed[root];
      one.rank = root;
      if (root != file.rank) one.named_by.push_back(file.rank);
    }
  }
  std::vector<FlightFailedRank> list;
  for (auto& [rank, one] : failed) list.push_back(std::move(one));
  std::stable_sort(list.begin(), list.end(),
                   [](const FlightFailedRank& a, const FlightFailedRank& b) {
                     return a.named_by.size() > b.named_by.size();
                   });
  return list;
}

}  // namespace

absl::string_view Name(FlightFindingKind kind) {
  switch (kind) {
    case FlightFindingKind::kMismatch:
      return "mismatch";
    case FlightFindingKind::kMissingInCall:
      return "missing_in_call";
    case FlightFindingKind::kMessage:
      return "message";
    case FlightFindingKind::kStuckTogether:
      return "stuck_together";
    case FlightFindingKind::kFailedTogether:
      return "failed_together";
    case FlightFindingKind::kNoDump:
      return "no_dump";
  }
  return "unknown";
}

bool FlightReport::HasFindings() const {
  return !unreadable.empty() || std::any_of(groups.begin(), groups.end(),
                                            [](const FlightGroupReport& group) {
                                              return !group.findings.empty();
                                            });
}

const FlightFinding* FlightReport::FirstDeviation() const {
  for (const FlightGroupReport& group : groups) {
    for (const FlightFinding& finding : group.findings) {
      if (finding.kind == FlightFindingKind::kMismatch ||
          finding.kind == FlightFindingKind::kMissingInCall ||
          finding.kind == FlightFindingKind::kMessage) {
        return &finding;
      }
    }
  }
  return nullptr;
}

FlightReport AnalyzeFlight(const FlightDirectoryFiles& directory) {
  FlightReport report = {.unreadable = directory.unreadable,
                         .notes = directory.notes};
  std::map<GroupKey, Group> groups;
  std::map<std::string, int> reasons;
  for (const FlightFile& file : directory.files) {
    report.ranks.push_back(file.rank);
    ++reasons[file.reason];
    if (!file.detail.empty()) {
      report.details.push_back(absl::StrCat("rank ", file.rank, ", ",
                                            file.reason, ": ", file.detail));
    }
    if (file.dropped > 0) {
      report.notes.push_back(
          absl::StrCat(file.path, ": ", file.dropped,
                       " operations found no place in the recorder; set "
                       "SHERD_FLIGHT_ENTRIES to more than ",
                       file.capacity));
    }
    AddFile(file, groups);
  }
  report.reasons = absl::StrJoin(reasons, ", ", absl::PairFormatter(": "));
  for (auto& [key, group] : groups) {
    report.groups.push_back(Analyze(group));
  }
  report.failed = FindFailed(directory.files);
  const FlightFinding* const deviation = report.FirstDeviation();
  if (report.failed.empty() && deviation != nullptr &&
      deviation->ranks.size() == 1) {
    report.failed.push_back({deviation->ranks.front()});
  }
  return report;
}

}  // namespace sherd
