#ifndef SHERD_CORE_NN_STATE_STATE_LOADER_H_
#define SHERD_CORE_NN_STATE_STATE_LOADER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd::internal {

// The path of a module with a dot ("a.b.") as the beginning of names of a
// state, where parts of names are escaped.
std::string StatePrefix(absl::string_view prefix);

// One LoadState: Match, Agree, Copy, in this order.
class StateLoader {
 public:
  // Finds the groups, also those of a tree that is not valid: a rank with an
  // error meets the others in Agree. Both arguments outlive it.
  StateLoader(Module& root, const StateDict& state);

  // Finds the value of each member, and fills the members that are none. Runs
  // load hooks.
  absl::Status Match();

  // kFailedPrecondition if the report is not empty.
  absl::Status CheckComplete() const;

  // Makes an error of one rank that of all ranks of the groups, and compares
  // what they are about to move.
  absl::Status Agree(absl::string_view operation, absl::Status local) const;

  // Copies the elements. Continues after an error, as the other ranks do, and
  // returns the first.
  absl::Status Copy();

  LoadStateReport report() && { return std::move(report_); }

 private:
  // Elements that move. Both are a Tensor or a ShardedTensor.
  struct Move {
    std::string name;
    Value target;
    Value source;
  };

  absl::Status MatchModule(Module& module, const std::string& prefix);
  // Matches a value with that of the state; replaces what is none, also in
  // lists and maps.
  void Match(const std::string& name, Value& target, const StateValue& source);
  void MatchTensor(const std::string& name, const Value& target,
                   const Value& source);
  void Mismatch(const std::string& name, absl::string_view why);
  void FindUnexpected();

  Module& root_;
  const StateDict& state_;
  LoadStateReport report_;
  std::vector<Move> moves_;
  GroupAgreement groups_;
  // Whether Match has replaced anything in the member at hand.
  bool filled_ = false;
  // Names of the state that members and hooks took.
  absl::flat_hash_set<std::string> taken_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_STATE_STATE_LOADER_H_
