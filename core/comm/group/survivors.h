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

// Agreement, through the store of a group that lost ranks, on who is left, and
// on whether the group that these make is established. It proceeds in rounds:
// one in which a further rank fails is followed by one without that rank.
//
// Every decision is one CompareSet, so that ranks with different knowledge, or
// which come at different times, cannot decide differently.
//
// Keys, below the group's prefix; K is the number of the round:
//   shrink/K/came/R    rank R takes part; whom its last error calls failed
//   shrink/K/gone/R    a rank has seen that rank R ended
//   shrink/K/members   who is left, ascending
//   shrink/K/made/R    rank R has made the new group
//   shrink/K/outcome   kMade or kFailed
//
// Threads. One call at a time.
class SurvivorAgreement {
 public:
  // What this rank can see of the others by itself.
  struct Sight {
    // Its process has ended, or it has left the group: it never comes.
    std::function<bool(int rank)> is_gone;
    // Its process is stopped.
    std::function<bool(int rank)> is_stopped;
  };

  // `store` outlives this object.
  SurvivorAgreement(Store& store, int rank, int size, Sight sight);

  // Begins a round, or takes up the one that an error of the store interrupted,
  // and returns its members, ascending; the same on all ranks, and maybe
  // without this one, for which there is then no further round. `accused` is
  // the rank that this one's last error calls failed.
  //
  // Left out are those that former rounds left out, those that ended, those
  // that do not come within half of the time until `deadline`, and the one rank
  // that came though more than half of the other ranks that came accuse it; if
  // two are accused so, neither. A rank that is accused by so many, or is
  // stopped, is waited for only kPatience.
  //
  // Errors. Those of the store.
  absl::StatusOr<std::vector<int>> AgreeOnMembers(std::optional<int> accused,
                                                  Deadline deadline);

  // Ends the round: true if all of its members have made the new group, false
  // if one could not, ended, or did not do so by `deadline`; the same on all of
  // them. `made`: whether this rank has.
  //
  // Errors. Those of the store.
  absl::StatusOr<bool> AgreeOnOutcome(bool made, Deadline deadline);

  // Counts from 1.
  int round() const { return round_; }

  static constexpr absl::Duration kPatience = absl::Seconds(1);

 private:
  // By rank that came: whom it accuses, or -1.
  using Came = std::map<int, int>;

  std::string Key(absl::string_view name) const;
  std::string Key(absl::string_view name, int rank) const;
  // The value of `key`, if it is there now. Fails if the store does not answer.
  absl::StatusOr<std::optional<std::string>> Look(const std::string& key) const;
  // What this rank sees of it, it tells those on other hosts.
  absl::StatusOr<bool> IsGone(int rank) const;
  // Adds those who came meanwhile. True if every candidate either came, or is
  // not waited for any longer.
  absl::StatusOr<bool> AreSettled(bool is_patient, Came& came) const;
  // As those that came have it.
  absl::StatusOr<std::vector<int>> Survivors(Came came) const;
  // The members as decided, which are the candidates of the next round.
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
