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

// Workers with their tables, the messages between them, and handles in the
// hands of users: everything that ownership depends on, as a value that can be
// copied, so that a test can try whatever may happen next.
class OwnershipWorld {
 public:
  // What may happen, and how often.
  struct Limits {
    int workers = 2;
    // (creator, owner) of each value, in any order.
    std::vector<std::pair<int, int>> creations;
    int passes = 0;
    // A pass may carry two references.
    bool pairs = false;
    // Messages of a pair overtake one another.
    bool reorders = false;
    // Messages about references come twice.
    int duplicates = 0;
    int deaths = 0;
    // Two workers lose each other and live on.
    int cuts = 0;
    // Transfers given up while they wait, and creations that are not sent.
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

  // All that may happen now. Those that must happen some day, if nothing else
  // does, come first: there are `due` of them.
  std::vector<Action> Actions(size_t* due) const;
  void Do(const Action& action);

  // What is wrong: a value released early or raised from the dead, a transfer
  // that failed without a reason, a refused message. Empty if nothing.
  std::string Violation() const;
  // What is left though nothing is due. Empty if nothing.
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
  void Blame(std::string what);
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

// What came of many worlds. `wrong` is empty, or what went wrong first, after
// which actions.
struct Exploration {
  size_t worlds = 0;
  size_t at_rest = 0;  // Of them, where nothing is due.
  std::string wrong;
};

// Looks at every world that can come of these limits, each once.
Exploration ExploreAll(const OwnershipWorld::Limits& limits);

// Follows one story at random, to its end.
Exploration ExploreAtRandom(const OwnershipWorld::Limits& limits,
                            uint64_t seed);

}  // namespace sherd::internal

#endif  // SHERD_RPC_OWNERSHIP_OWNERSHIP_WORLD_H_
