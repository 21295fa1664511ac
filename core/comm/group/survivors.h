#ifndef SHERD_CORE_COMM_GROUP_SURVIVORS_H_
#define SHERD_CORE_COMM_GROUP_SURVIVORS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// Agreement, through the store of a group with failed ranks, on the survivors,
// and on whether their new group is established. It proceeds in rounds: a round
// in which a further rank fails is followed by one without that rank.
//
// Every decision is one CompareSet, so that ranks with different knowledge, or
// which arrive at different times, cannot decide differently.
//
// Keys, below the group's prefix; K is the number of the round:
//   shrink/K/came/R    rank R takes part; the failed rank of its last error
//   shrink/K/exited/R  a rank has seen that rank R ended
//   shrink/K/members   the survivors, ascending
//   shrink/K/made/R    rank R has created the new group
//   shrink/K/outcome   kMade or kFailed
//
// Threads. One call at a time.
class SurvivorAgreement {
 public:
  // This rank's own view of the others.
  struct Sight {
    // The rank's process has ended, or it has left the group: it never arrives.
    std::function<bool(int rank)> has_exited;
    // The rank's process is stopped.
    std::function<bool(int rank)> is_stopped;
  };

  // `store` outlives this object.
  SurvivorAgreement(Store& store, int rank, int size, Sight sight);

  // Begins a round, or resumes the one that an error of the store interrupted,
  // and returns its members, ascending; the same on all ranks, and possibly
  // without this one, for which there is then no further round. `suspect` is
  // the failed rank of this rank's last error.
  //
  // Excluded are ranks that former rounds excluded, ranks that ended, ranks
  // that do not arrive within half of the time until `deadline`, and the one
  // rank that arrived though more than half of the other ranks that arrived
  // name it as failed; if they name two, neither. A rank that is named by that
  // many, or is stopped, is waited for only kPatience.
  //
  // Errors. Those of the store.
  absl::StatusOr<std::vector<int>> AgreeOnMembers(std::optional<int> suspect,
                                                  Deadline deadline);

  // Ends the round: true if all of its members have created the new group,
  // false if one could not, ended, or did not do so by `deadline`; the same on
  // all of them. `made`: whether this rank has.
  //
  // Errors. Those of the store.
  absl::StatusOr<bool> AgreeOnOutcome(bool made, Deadline deadline);

  // Counts from 1.
  int round() const { return round_; }

  static constexpr absl::Duration kPatience = absl::Seconds(1);

 private:
  // By rank that arrived: the rank that it names as failed, or -1.
  using Came = std::map<int, int>;

  std::string Key(absl::string_view name) const;
  std::string Key(absl::string_view name, int rank) const;
  // The value of `key`, if it exists now. Fails if the store does not answer.
  absl::StatusOr<std::optional<std::string>> Look(const std::string& key) const;
  // Whether `rank` ended or left. Records this rank's own observation for ranks
  // on other hosts.
  absl::StatusOr<bool> HasExited(int rank) const;
  // Adds the ranks that arrived meanwhile. True if every candidate has either
  // arrived or is no longer waited for.
  absl::StatusOr<bool> AreSettled(bool is_patient, Came& came) const;
  // The survivors, given the ranks that arrived.
  absl::StatusOr<std::vector<int>> Survivors(Came came) const;
  // Parses the members as decided, which are the candidates of the next round.
  absl::StatusOr<std::vector<int>> Accept(absl::string_view list);
  absl::StatusOr<bool> Decide(const char* outcome);

  Store& store_;
  const int rank_;
  const Sight sight_;
  int round_ = 1;
  std::vector<int> candidates_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_SURVIVORS_H_
