#ifndef SHERD_RPC_OWNERSHIP_OWNERSHIP_WORLD_H_
#define SHERD_RPC_OWNERSHIP_OWNERSHIP_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "sherd/rpc/ownership/reference_table.h"

namespace sherd::internal {

// Workers with their tables, the messages between them, and the handles of
// users: the whole state on which ownership depends, as a value that can be
// copied, so that a test can try each possible next action.
class OwnershipWorld {
 public:
  // The actions that may occur, and how often.
  struct Limits {
    int workers = 2;
    // (creator, owner) of each value, in any order.
    std::vector<std::pair<int, int>> creations;
    int passes = 0;
    // A pass may carry two references.
    bool pairs = false;
    // Messages of a pair may overtake one another.
    bool reorders = false;
    // Messages about references may arrive twice.
    int duplicates = 0;
    int deaths = 0;
    // Two workers may lose each other and continue.
    int cuts = 0;
    // Transfers abandoned while they wait, and creations that are not sent.
    int abandons = 0;
    int releases_of_all = 0;
  };

  struct Action {
    enum class Kind {
      kCreate,      // Value a.
      kNotSent,     // Value a, whose creation does not leave.
      kPass,        // Worker a to worker b, value c, and value d unless -1.
      kDeliver,     // From a to b, message number c; again later if d.
      kDrop,        // Worker a, value b.
      kAbandon,     // Worker a, transfer b.
      kKill,        // Worker a.
      kCut,         // Workers a and b.
      kNotice,      // Worker a finds b lost.
      kReleaseAll,  // Worker a.
    };
    Kind kind;
    int a = 0, b = 0, c = 0, d = 0;

    std::string ToString() const;
  };

  explicit OwnershipWorld(const Limits& limits);

  // All possible next actions. The first `due` of them must occur eventually.
  std::vector<Action> Actions(size_t* due) const;
  void Do(const Action& action);

  // Describes a violation: a value released early or found after its release,
  // a transfer that failed without a reason, a refused message. Empty if none.
  std::string Violation() const;
  // Describes entries that are left though nothing is due. Empty if none.
  std::string Leftovers() const;

  // Equal for worlds with equal futures.
  std::string Key() const;

 private:
  struct Packet {
    ReferenceMessage message;  // Unless `transfer`.
    uint64_t transfer = 0;
    std::vector<int> values;

    std::string ToString() const;
  };
  struct Value {
    bool begun = false;  // Created, or tried.
    bool made = false;   // The owner had an entry.
    bool not_sent = false;
    bool freed = false;
    ReferenceId id;
  };
  struct PendingTransfer {
    bool outgoing = false;
    int peer = 0;
    std::vector<int> values;
  };
  struct Worker {
    ReferenceTable table;
    bool alive = true;
    bool released_all = false;
    std::set<int> lost;
    std::map<int, int> handles;  // By value.
    std::map<uint64_t, PendingTransfer> pending;
  };

  bool Intact(int a, int b) const;
  bool Excused(int value, int from, int to) const;
  int IndexOf(const ReferenceId& id) const;
  std::vector<ReferenceId> IdsOf(absl::Span<const int> values) const;
  void Post(int from, int to, Packet packet);
  void Apply(int worker, const ReferenceEffects& effects);
  void OnReady(int worker, uint64_t transfer, bool ok);
  void Create(int value, bool sent);
  void Deliver(int from, int to, const Packet& packet);
  void Break(int a, int b);
  void ReportViolation(std::string what);
  void AddDue(std::vector<Action>& actions) const;
  void AddPasses(std::vector<Action>& actions) const;
  void AddFaults(std::vector<Action>& actions) const;
  void AddDuplicates(std::vector<Action>& actions) const;

  Limits left_;
  std::vector<Worker> workers_;
  std::vector<Value> values_;
  std::map<std::pair<int, int>, std::vector<Packet>> channels_;
  std::set<std::pair<int, int>> broken_;   // Both ways.
  std::set<std::pair<int, int>> notices_;  // (who, of whom).
  std::string violation_;
};

// The outcome of many worlds. `wrong`: the first violation, with the actions
// that led to it; empty if there is none.
struct Exploration {
  size_t worlds = 0;
  size_t at_rest = 0;  // Of them, where nothing is due.
  std::string wrong;
};

// Visits each world that is reachable within these limits once.
Exploration ExploreAll(const OwnershipWorld::Limits& limits);

// Takes random actions until none is left.
Exploration ExploreAtRandom(const OwnershipWorld::Limits& limits,
                            uint64_t seed);

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_OWNERSHIP_WORLD_H_
