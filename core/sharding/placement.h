#ifndef SHERD_CORE_SHARDING_PLACEMENT_H_
#define SHERD_CORE_SHARDING_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"

namespace sherd {

// The owner of a shard, and the owner's device that holds it.
//
// Grammar.
//
//     placement = owner [ "/" device ] | device
//     owner     = "rank:" digits | worker-name
//
// A missing device is the CPU. Text without "/" is a device if it reads as one
// ("cuda:0": no owner), otherwise an owner. Ranks are global ranks.
//
// Value. Text converts to a Placement: "rank:0/cpu". Malformed text makes an
// invalid placement; functions that take placements check status() and return
// its error. Parse returns the error at once.
class Placement {
 public:
  // No owner, on the CPU.
  Placement() = default;

  // Implicit, so that lists of placements can be written as text.
  template <typename Text, typename = std::enable_if_t<std::is_convertible_v<
                               const Text&, absl::string_view>>>
  Placement(const Text& text)  // NOLINT(google-explicit-constructor)
      : Placement(FromText(text)) {}

  //   kInvalidArgument     "Could not parse remote_device": no owner before
  //                        "/", a rank that is not a number, too many parts.
  //   kFailedPrecondition  "Expected one of" or "Invalid device string", from
  //                        Device::Parse.
  static absl::StatusOr<Placement> Parse(absl::string_view text);

  // `rank` is not negative.
  static Placement OnRank(int rank, Device device = {});
  // `name` is not empty and has neither "/" nor ":".
  static Placement OnWorker(std::string name, Device device = {});
  static Placement OnDevice(Device device);

  // OK, or the error of the text that this, or its device, was made from.
  absl::Status status() const;

  // The owner's rank, and the owner's name; one of them is set if there is an
  // owner.
  std::optional<int> rank() const;
  std::optional<std::string> worker_name() const;
  Device device() const { return device_; }

  // The same owner on another device.
  Placement OnSameOwner(Device device) const;

  // The text that Parse reads, always with the device: "rank:0/cpu",
  // "trainer/cuda:1", "cuda:0".
  std::string ToString() const;

  friend bool operator==(const Placement&, const Placement&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const Placement& placement) {
    return H::combine(std::move(state), placement.kind_, placement.rank_,
                      placement.text_, placement.device_);
  }

 private:
  enum class Kind : int32_t { kNoOwner, kRank, kWorker, kMalformed };

  static Placement FromText(absl::string_view text);

  Kind kind_ = Kind::kNoOwner;
  int rank_ = 0;
  Device device_;
  // The worker's name, or the malformed text.
  std::string text_;
};

std::ostream& operator<<(std::ostream& out, const Placement& placement);

// Whether both have the same owner and, as far as indices are given, the same
// device.
bool SamePlace(const Placement& a, const Placement& b);

// "rank:0/…" to "rank:`count - 1`/…". If `devices_per_host` is not 0, each rank
// has a device of its own: rank N that of the index N modulo devices_per_host.
//
//     PlacementsOnRanks(4, "cuda", 4)  // "rank:0/cuda:0" to "rank:3/cuda:3"
std::vector<Placement> PlacementsOnRanks(int count, Device device = {},
                                         int devices_per_host = 0);

// As PlacementsOnRanks, for every N of `ranks`, none of which is negative.
std::vector<Placement> PlacementsOn(absl::Span<const int> ranks,
                                    Device device = {},
                                    int devices_per_host = 0);

// 0 to `world_size - 1`: the world ranks of a group of all ranks.
std::vector<int> AllRanks(int world_size);

// Finds the owners of placements among the ranks of a group. Placements are by
// global rank, the result is by rank in the group.
//
// Threads. Const calls are safe.
class RankResolver {
 public:
  struct Options {
    // Whether the calling process is in the group: ProcessGroup::is_member().
    bool is_member = true;
    // Names of workers by global rank: RemoteAccess::workers(). Null if there
    // is no RPC. Must outlive the resolver.
    const std::vector<std::string>* workers = nullptr;
  };

  // Entry r of `world_ranks` is the global rank of the group's rank r:
  // ProcessGroup::world_ranks(). Must outlive the resolver.
  //
  // Cost. O(group) at once, O(1) for each placement.
  explicit RankResolver(absl::Span<const int> world_ranks);
  RankResolver(absl::Span<const int> world_ranks, const Options& options);

  // Returns the owner's rank in the group. For a process that is not a member,
  // which runs nothing on the group, an owner outside of it is not an error:
  // returns -1.
  //   kInvalidArgument     "remote device is None" for no placement; "Global
  //                        rank N does not exist in input process group", with
  //                        the ranks of the group; "Invalid worker name"; a
  //                        device without an owner; Placement::Parse.
  //   kFailedPrecondition  The owner is a worker's name, and no workers are
  //                        given: "RPC framework needs to be initialized for
  //                        using worker names". Or the device is malformed or
  //                        unknown.
  absl::StatusOr<int> Resolve(const std::optional<Placement>& placement) const;

 private:
  int RankInGroup(int global_rank) const;
  absl::StatusOr<int> GlobalRank(const Placement& placement) const;

  const absl::Span<const int> world_ranks_;
  const Options options_;
  // Ranks whose rank in the group differs from their global rank, and the
  // numbers of workers.
  absl::flat_hash_map<int, int> rank_in_group_;
  absl::flat_hash_map<absl::string_view, int> rank_of_worker_;
};

// RankResolver for one placement and a member of the group.
absl::StatusOr<int> ResolveRank(
    const std::optional<Placement>& placement,
    absl::Span<const int> world_ranks,
    const std::vector<std::string>* workers = nullptr);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_PLACEMENT_H_
