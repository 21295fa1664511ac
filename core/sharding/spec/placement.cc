#include "sherd/core/sharding/placement.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

absl::Status CouldNotParse(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Could not parse remote_device: '", PrintableLine(text),
      "'. Expected 'rank:N/device', 'worker/device', an owner alone or a "
      "device alone"));
}

// The first of many, and how many there are.
template <typename List>
std::string FirstFew(const List& list) {
  constexpr size_t kFew = 16;
  const size_t shown = std::min(list.size(), kFew);
  std::string text = absl::StrJoin(list.begin(), list.begin() + shown, ", ");
  if (shown < list.size()) {
    absl::StrAppend(&text, ", … (", list.size(), " in all)");
  }
  return text;
}

}  // namespace

absl::StatusOr<Placement> Placement::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (parts.size() > 2) return CouldNotParse(text);
  if (parts.size() == 1) {
    absl::StatusOr<Device> device = Device::Parse(text);
    if (device.ok()) return OnDevice(*device);
  }
  absl::string_view owner = parts[0];
  const auto colons = std::count(owner.begin(), owner.end(), ':');
  if (owner.empty() || colons > 1) return CouldNotParse(text);
  int rank = 0;
  if (colons == 1 &&
      (!absl::ConsumePrefix(&owner, "rank:") ||
       !std::all_of(owner.begin(), owner.end(), absl::ascii_isdigit) ||
       !absl::SimpleAtoi(owner, &rank))) {
    return CouldNotParse(text);
  }
  Device device;
  if (parts.size() == 2) {
    SHERD_ASSIGN_OR_RETURN(device, Device::Parse(parts[1]));
  }
  return colons == 1 ? OnRank(rank, device)
                     : OnWorker(std::string(owner), device);
}

Placement Placement::OnRank(int rank, Device device) {
  SHERD_CHECK(rank >= 0);
  Placement placement;
  placement.kind_ = Kind::kRank;
  placement.rank_ = rank;
  placement.device_ = device;
  return placement;
}

Placement Placement::OnWorker(std::string name, Device device) {
  SHERD_CHECK(!name.empty() && !absl::StrContains(name, ':') &&
              !absl::StrContains(name, '/'));
  Placement placement;
  placement.kind_ = Kind::kWorker;
  placement.text_ = std::move(name);
  placement.device_ = device;
  return placement;
}

Placement Placement::OnDevice(Device device) {
  Placement placement;
  placement.device_ = device;
  return placement;
}

Placement Placement::OnSameOwner(Device device) const {
  Placement placement = *this;
  placement.device_ = device;
  return placement;
}

Placement Placement::FromText(absl::string_view text) {
  absl::StatusOr<Placement> parsed = Parse(text);
  if (parsed.ok()) return *std::move(parsed);
  Placement placement;
  placement.kind_ = Kind::kMalformed;
  placement.text_ = std::string(text);
  return placement;
}

absl::Status Placement::status() const {
  SHERD_RETURN_IF_ERROR(device_.status());
  if (kind_ != Kind::kMalformed) return absl::OkStatus();
  return Parse(text_).status();
}

std::optional<int> Placement::rank() const {
  if (kind_ != Kind::kRank) return std::nullopt;
  return rank_;
}

std::optional<std::string> Placement::worker_name() const {
  if (kind_ != Kind::kWorker) return std::nullopt;
  return text_;
}

std::string Placement::ToString() const {
  switch (kind_) {
    case Kind::kNoOwner:
      return device_.ToString();
    case Kind::kRank:
      return absl::StrCat("rank:", rank_, "/", device_.ToString());
    case Kind::kWorker:
      return absl::StrCat(text_, "/", device_.ToString());
    case Kind::kMalformed:
      return text_;
  }
  return text_;
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.ToString();
}

bool SamePlace(const Placement& a, const Placement& b) {
  return SameDevice(a.device(), b.device()) && a.OnSameOwner(b.device()) == b;
}

std::vector<Placement> PlacementsOnRanks(int count, Device device,
                                         int devices_per_host) {
  return PlacementsOn(AllRanks(count), device, devices_per_host);
}

std::vector<Placement> PlacementsOn(absl::Span<const int> ranks, Device device,
                                    int devices_per_host) {
  std::vector<Placement> placements;
  placements.reserve(ranks.size());
  for (const int rank : ranks) {
    if (devices_per_host > 0 && device.type != DeviceType::kInvalid) {
      device.index = rank % devices_per_host;
    }
    placements.push_back(Placement::OnRank(rank, device));
  }
  return placements;
}

std::vector<int> AllRanks(int world_size) {
  std::vector<int> ranks(static_cast<size_t>(std::max(world_size, 0)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

RankResolver::RankResolver(absl::Span<const int> world_ranks)
    : RankResolver(world_ranks, Options()) {}

RankResolver::RankResolver(absl::Span<const int> world_ranks,
                           const Options& options)
    : world_ranks_(world_ranks), options_(options) {
  for (size_t r = 0; r < world_ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (world_ranks[r] != rank) rank_in_group_.emplace(world_ranks[r], rank);
  }
  if (options.workers == nullptr) return;
  for (size_t r = 0; r < options.workers->size(); ++r) {
    rank_of_worker_.emplace((*options.workers)[r], static_cast<int>(r));
  }
}

int RankResolver::RankInGroup(int global_rank) const {
  const size_t r = static_cast<size_t>(global_rank);
  if (r < world_ranks_.size() && world_ranks_[r] == global_rank) {
    return global_rank;
  }
  const auto it = rank_in_group_.find(global_rank);
  return it == rank_in_group_.end() ? -1 : it->second;
}

absl::StatusOr<int> RankResolver::GlobalRank(const Placement& placement) const {
  SHERD_RETURN_IF_ERROR(placement.status());
  if (const std::optional<int> rank = placement.rank()) return *rank;
  const std::optional<std::string> name = placement.worker_name();
  if (!name) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement '", PrintableLine(placement.ToString()),
                     "' has no owner, expected one such as 'rank:0/",
                     placement.device().ToString(), "'"));
  }
  if (options_.workers == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("RPC framework needs to be initialized for using worker "
                     "names, such as the one in '",
                     PrintableLine(placement.ToString()), "'"));
  }
  const auto worker = rank_of_worker_.find(*name);
  if (worker != rank_of_worker_.end()) return worker->second;
  return absl::InvalidArgumentError(absl::StrCat("Invalid worker name '", *name,
                                                 "': the workers are ",
                                                 FirstFew(*options_.workers)));
}

absl::StatusOr<int> RankResolver::Resolve(
    const std::optional<Placement>& placement) const {
  if (!placement) {
    return absl::InvalidArgumentError(
        "remote device is None: every shard needs a placement such as "
        "'rank:0/cpu'");
  }
  SHERD_ASSIGN_OR_RETURN(const int global_rank, GlobalRank(*placement));
  const int rank = RankInGroup(global_rank);
  if (rank >= 0 || !options_.is_member) return rank;
  return absl::InvalidArgumentError(
      absl::StrCat("Global rank ", global_rank,
                   " does not exist in input process group, whose ranks are ",
                   FirstFew(world_ranks_), " (placement '",
                   PrintableLine(placement->ToString()), "')"));
}

absl::StatusOr<int> ResolveRank(const std::optional<Placement>& placement,
                                absl::Span<const int> world_ranks,
                                const std::vector<std::string>* workers) {
  return RankResolver(world_ranks, {.workers = workers}).Resolve(placement);
}

}  // namespace sherd
