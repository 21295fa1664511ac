// Groups that are made from another one.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/group/process_group_impl.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd {
namespace {

using internal::DeviceOrigin;
using internal::SurvivorAgreement;

constexpr char kNewGroup[] = "new_group";
constexpr char kShrink[] = "shrink";

absl::Status CheckRanks(absl::Span<const int> ranks, int size) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError("the list of ranks is empty");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", ranks[i], " is out of range, expected 0 to ",
                       size - 1, ", ranks of this group"));
    }
    if (i == 0 || ranks[i - 1] < ranks[i]) continue;
    return absl::InvalidArgumentError(
        ranks[i - 1] == ranks[i]
            ? absl::StrCat("rank ", ranks[i], " is named twice")
            : absl::StrCat("rank ", ranks[i], " comes after rank ",
                           ranks[i - 1],
                           ", expected ascending order; Split makes groups in "
                           "another order"));
  }
  return absl::OkStatus();
}

// Names a list of ranks: as it is if that is short, else by size and hash.
std::string Label(absl::Span<const int> ranks) {
  std::string list = absl::StrJoin(ranks, ",");
  if (list.size() <= 32) return list;
  return absl::StrCat(ranks.size(), "ranks-",
                      absl::Hex(Fingerprint().Add(list).value()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::NewGroup(
    absl::Span<const int> ranks, const NewGroupOptions& options) {
  if (absl::Status status = CheckRanks(ranks, membership_.size());
      !status.ok()) {
    return Describe(kNewGroup, std::move(status));
  }
  SHERD_RETURN_IF_ERROR(CheckParent(kNewGroup, options));
  return MakeChild({.operation = kNewGroup,
                    .ranks = {ranks.begin(), ranks.end()},
                    .label = CountedLabel(ranks)},
                   options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::Split(
    int color, int key, const NewGroupOptions& options) {
  // The third: whether this rank's device part is split with the others'.
  using Choice = std::array<int64_t, 3>;
  const Choice own = {color, key,
                      device_ != nullptr && options.with_devices ? 1 : 0};
  std::vector<Choice> choices(membership_.size());
  SHERD_RETURN_IF_ERROR(
      Run(internal::AllGatherCall(
              place(),
              ConstBytes(reinterpret_cast<const std::byte*>(own.data()),
                         sizeof(own)),
              MutableBytes(reinterpret_cast<std::byte*>(choices.data()),
                           choices.size() * sizeof(Choice))),
          {}));
  std::vector<int> ranks;
  for (int r = 0; r < membership_.size(); ++r) {
    if (choices[r][0] == color) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return choices[a][1] < choices[b][1]; });
  const bool has_devices =
      std::all_of(choices.begin(), choices.end(),
                  [](const Choice& choice) { return choice[2] != 0; });
  const SplitChoice split = {color, key, has_devices};
  SHERD_RETURN_IF_ERROR(CheckParent(kNewGroup, options));
  std::string label = CountedLabel(ranks);
  return MakeChild({.operation = kNewGroup,
                    .ranks = std::move(ranks),
                    .label = std::move(label),
                    .split = &split},
                   options);
}

absl::Status ProcessGroup::Impl::CheckParent(
    absl::string_view operation, const NewGroupOptions& options) const {
  if (!membership_.is_member()) {
    return Describe(operation,
                    absl::FailedPreconditionError(
                        "this process is not a member of the group"));
  }
  if (device_ != nullptr && device_->IsInBatch()) {
    return Describe(operation,
                    absl::FailedPreconditionError(
                        "called within a batch of the group: end it before"));
  }
  if (options.timeout && *options.timeout <= absl::ZeroDuration()) {
    return Describe(operation, absl::InvalidArgumentError(absl::StrCat(
                                   "timeout must be above zero, found ",
                                   absl::FormatDuration(*options.timeout))));
  }
  if (!peers_.has_left()) return absl::OkStatus();
  return Describe(operation,
                  absl::FailedPreconditionError("the group was destroyed"));
}

std::string ProcessGroup::Impl::CountedLabel(absl::Span<const int> ranks) {
  std::string label = Label(ranks);
  absl::MutexLock lock(&children_.mutex);
  absl::StrAppend(&label, "#", ++children_.counts[label]);
  return label;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::MakeChild(
    const ChildPlan& plan, const NewGroupOptions& options) {
  const std::vector<int>& ranks = plan.ranks;
  const SplitChoice* const split = plan.split;
  if (absl::Status status = membership_.MaybeInjectFault(FaultPoint::kNewGroup,
                                                         membership_.name());
      !status.ok()) {
    return Describe(plan.operation, std::move(status));
  }
  ProcessGroupOptions child;
  child.name = absl::StrCat(membership_.name(), "/", plan.label);
  child.size = static_cast<int>(ranks.size());
  const auto own = std::find(ranks.begin(), ranks.end(), membership_.rank());
  const bool member = split == nullptr || split->color >= 0;
  child.rank =
      member && own != ranks.end() ? static_cast<int>(own - ranks.begin()) : -1;
  for (const int r : ranks) {
    child.world_ranks.push_back(membership_.world_ranks()[r]);
    child.processes.push_back(membership_.process(r));
  }
  child.world_size = membership_.world_size();
  child.timeout = options.timeout.value_or(options_.timeout);
  child.bind_address = options_.bind_address;
  child.join_deadline = plan.join_deadline;
  const std::string prefix = absl::StrCat("groups/", plan.label);
  child.store = std::make_shared<PrefixStore>(prefix, options_.store);
  if (options.with_devices) {
    child.device_backend = options_.device_backend;
    child.device = options_.device;
  }
  DeviceOrigin origin;
  if (child.device_backend == nullptr) {
    // No device part, nor a parent's to make it of.
  } else if (split != nullptr && split->has_devices) {
    SplitDevice(child, *split, origin);
  } else if (device_ != nullptr && !peers_.usable()) {
    origin.parent = device_->group();
    for (int r = 0; r < membership_.size(); ++r) {
      if (std::find(ranks.begin(), ranks.end(), r) == ranks.end()) {
        origin.excluded.push_back(r);
      }
    }
  }
  if (child.rank < 0) {
    return std::shared_ptr<ProcessGroup>(
        new ProcessGroup(std::make_unique<Impl>(backend_, std::move(child))));
  }
  child.on_destroy = [store = options_.store, prefix, size = child.size] {
    if (absl::Status status = store->Retire(prefix, size); !status.ok()) {
      SHERD_LOG(kDebug) << "keys of " << prefix
                        << " stay behind: " << status.ToString();
    }
  };
  return Create(backend_, std::move(child), plan.operation, origin);
}

void ProcessGroup::Impl::SplitDevice(const ProcessGroupOptions& child,
                                     const SplitChoice& split,
                                     DeviceOrigin& origin) {
  CommunicatorOptions options;
  options.group = child.name;
  options.rank = std::max(child.rank, 0);
  options.size = child.rank < 0 ? 1 : child.size;
  origin.store = child.store;
  options.store = child.store.get();
  options.deadline = Deadline::After(child.timeout);
  options.world_ranks = child.world_ranks;
  options.world_size = child.world_size;
  options.one_host = membership_.one_host();
  if (!options_.bind_address.empty()) options.address = options_.bind_address;
  options.device = options_.device.index;
  if (const auto properties =
          device_->group()->runtime().Properties(options_.device.index);
      properties.ok()) {
    options.device_id = properties->bus_id;
  }
  // Nothing is under way on this rank.
  if (!device_->group()->Synchronize().ok()) return;
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      device_->group()->Split(options, split.color, split.key);
  if (made.ok()) {
    origin.device = options_.device;
    origin.split = *std::move(made);
  } else {
    SHERD_LOG(kDebug) << "group \"" << child.name
                      << "\" connects its devices anew: "
                      << made.status().message();
  }
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::Shrink(
    const NewGroupOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckParent(kShrink, options));
  const absl::Duration timeout = options.timeout.value_or(options_.timeout);
  const Deadline deadline = Deadline::After(timeout);
  absl::MutexLock lock(&children_.shrink_mutex);
  if (children_.survivors == nullptr) {
    children_.survivors = std::make_unique<SurvivorAgreement>(
        *options_.store, membership_.rank(), membership_.size(),
        SurvivorAgreement::Sight{
            .has_exited = [this](int r) { return peers_.HasExited(r); },
            .is_stopped = [this](int r) { return peers_.IsStopped(r); }});
  }
  std::optional<int> suspect = FailedRank(peers_.health());
  for (;;) {
    absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
        ShrinkOnce(options, deadline, suspect);
    if (!group.ok() || *group != nullptr) return group;
    if (!deadline.HasPassed()) continue;
    absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "no group of the ranks that are left was established within ",
        absl::FormatDuration(timeout)));
    if (suspect) late = WithFailedRank(std::move(late), *suspect);
    return Describe(kShrink, membership_.WithJobRank(std::move(late)));
  }
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::ShrinkOnce(
    const NewGroupOptions& options, Deadline deadline,
    std::optional<int>& suspect) {
  const auto store_failed = [this](const absl::Status& status) {
    absl::Status lost(
        status.code(),
        absl::StrCat("the store in which the ranks that are left agree does "
                     "not answer (that of tcp:// and env:// ends with the "
                     "process of rank 0 of the job): start the job again, or "
                     "let ranks meet at a file:// that outlives them: ",
                     status.message()));
    if (membership_.world_ranks()[0] == 0 && membership_.rank() != 0 &&
        StateOf(membership_.process(0)) != ProcessState::kRunning) {
      lost = WithFailedRank(std::move(lost), 0);
    }
    return Describe(kShrink, std::move(lost));
  };
  const absl::StatusOr<std::vector<int>> members =
      children_.survivors->AgreeOnMembers(suspect, deadline);
  if (!members.ok()) return store_failed(members.status());
  LeaveOut(*members);
  if (std::find(members->begin(), members->end(), membership_.rank()) ==
      members->end()) {
    return Describe(
        kShrink,
        WithFailedRank(
            absl::FailedPreconditionError(absl::StrCat(
                "this rank was left out: it called too late, or most of the "
                "others' errors name it as failed; ",
                internal::RankList(*members), " of the group ",
                members->size() == 1 ? "goes" : "go",
                " on without it: end this process, or start it as a rank of "
                "another job")),
            membership_.rank()));
  }
  absl::StatusOr<std::shared_ptr<ProcessGroup>> made = MakeChild(
      {.operation = kShrink,
       .ranks = *members,
       .label = absl::StrCat(kShrink, "#", children_.survivors->round()),
       .join_deadline = Deadline::After(deadline.Remaining() / 2)},
      options);
  const absl::StatusOr<bool> all_made =
      children_.survivors->AgreeOnOutcome(made.ok(), deadline);
  if (all_made.ok() && *all_made) return made;
  if (made.ok()) {
    (*made)->Abort(absl::AbortedError("another rank failed meanwhile"));
    (*made)->Destroy().IgnoreError();
  }
  if (!all_made.ok()) return store_failed(all_made.status());
  suspect.reset();
  if (made.ok()) return nullptr;
  const std::optional<int> failed = FailedRank(made.status());
  if (!failed || (*members)[*failed] == membership_.rank()) return made;
  suspect = (*members)[*failed];
  SHERD_LOG(kInfo) << "shrink continues without a further rank: "
                   << made.status().message();
  return nullptr;
}

void ProcessGroup::Impl::LeaveOut(absl::Span<const int> members) {
  std::vector<int> left_out;
  for (int r = 0; r < membership_.size(); ++r) {
    if (std::find(members.begin(), members.end(), r) == members.end()) {
      left_out.push_back(r);
    }
  }
  if (left_out.empty()) return;
  const std::string text = absl::StrCat(internal::RankList(left_out),
                                        " failed; the others go on without");
  peers_.LeaveOut(left_out);
  if (peers_.usable()) {
    Abort(WithFailedRank(absl::UnavailableError(text), left_out.front()));
  }
}

}  // namespace sherd
