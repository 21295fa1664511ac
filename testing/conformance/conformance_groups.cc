// Groups of groups: any order, non-members, nests, splits, and many of them.

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/conformance/conformance_case.h"

namespace sherd::testing::internal {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Checks that `group` has these ranks of the job, in this order, and lets them
// gather something.
absl::Status CheckGroup(ProcessGroup& group, absl::Span<const int> world) {
  if (group.size() != static_cast<int>(world.size()) ||
      group.world_ranks() != world) {
    return Fault("group \"", group.name(), "\" has the ranks ",
                 absl::StrJoin(group.world_ranks(), ", "), ", expected ",
                 absl::StrJoin(world, ", "));
  }
  ConformanceRank rank = {.group = group};
  rank.calls = 1'000 + static_cast<uint64_t>(world[0]);
  SHERD_RETURN_IF_ERROR(
      CheckCall(rank, {.op = CollectiveOp::kAllGather, .count = 40}));
  return CheckCall(
      rank,
      {.op = CollectiveOp::kAllReduce, .count = 3, .dtype = kInt64, .root = 0});
}

absl::StatusOr<Group> Make(ProcessGroup& parent, std::vector<int> ranks) {
  absl::StatusOr<Group> group = parent.NewGroup(ranks);
  if (!group.ok()) {
    return Fault("a group of ranks ", absl::StrJoin(ranks, ", "), ": ",
                 group.status().ToString());
  }
  return group;
}

// Each rank is in a group with either neighbour. Half of the ranks make the
// left one first, the other half the right one.
absl::Status NeighboursInAnyOrder(ConformanceRank& rank) {
  const int me = rank.rank();
  std::vector<int> firsts = {me - 1, me};
  if (me % 2 == 0) std::reverse(firsts.begin(), firsts.end());
  std::vector<std::pair<Group, int>> groups;
  for (const int first : firsts) {
    if (first < 0 || first + 1 >= rank.size()) continue;
    SHERD_ASSIGN_OR_RETURN(Group group, Make(rank.group, {first, first + 1}));
    groups.emplace_back(std::move(group), first);
  }
  for (const auto& [group, first] : groups) {
    SHERD_RETURN_IF_ERROR(CheckGroup(*group, {first, first + 1}));
    SHERD_RETURN_IF_ERROR(group->Destroy());
  }
  return absl::OkStatus();
}

// Two groups that overlap, used alternately; then the same one again.
absl::Status OverlappingGroups(ConformanceRank& rank) {
  std::vector<int> all = rank.AllRanks();
  const std::vector<int> low(all.begin(), all.begin() + (rank.size() + 1) / 2);
  const auto is_low = [&] {
    return rank.rank() < static_cast<int>(low.size());
  };
  SHERD_ASSIGN_OR_RETURN(const Group whole, Make(rank.group, all));
  Group half, again;
  if (is_low()) {
    SHERD_ASSIGN_OR_RETURN(half, Make(rank.group, low));
    SHERD_ASSIGN_OR_RETURN(again, Make(rank.group, low));
  }
  for (int turn = 0; turn < 3; ++turn) {
    SHERD_RETURN_IF_ERROR(CheckGroup(*whole, all));
    if (!is_low()) continue;
    SHERD_RETURN_IF_ERROR(CheckGroup(*half, low));
    SHERD_RETURN_IF_ERROR(CheckGroup(*again, low));
  }
  return absl::OkStatus();
}

// All ranks create the group of the last rank alone; the others get handles
// that are not members, at once, and cannot use them.
absl::Status NonMembers(ConformanceRank& rank) {
  const int last = rank.size() - 1;
  SHERD_ASSIGN_OR_RETURN(const Group group, Make(rank.group, {last}));
  if (rank.rank() == last) return CheckGroup(*group, {last});
  if (group == nullptr)
    return Fault("a rank that is not a member gets no handle");
  if (group->is_member() || group->rank() != -1) {
    return Fault("rank ", rank.rank(), " is reported as rank ", group->rank(),
                 " of a group of rank ", last);
  }
  const absl::Status barrier = group->Barrier();
  if (!absl::IsFailedPrecondition(barrier)) {
    return Fault("barrier on a group that the rank is not a member of: ",
                 barrier.ToString());
  }
  return group->Destroy();
}

// A group of a group of a group, counted in ranks of each.
absl::Status NestedGroups(ConformanceRank& rank) {
  Group group;
  std::vector<int> world = rank.AllRanks();
  ProcessGroup* parent = &rank.group;
  std::vector<Group> chain;
  while (world.size() > 1) {
    // All but the first.
    std::vector<int> ranks(world.size() - 1);
    for (size_t i = 0; i < ranks.size(); ++i)
      ranks[i] = static_cast<int>(i) + 1;
    world.erase(world.begin());
    SHERD_ASSIGN_OR_RETURN(group, Make(*parent, ranks));
    if (!group->is_member()) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(CheckGroup(*group, world));
    chain.push_back(group);
    parent = group.get();
  }
  return absl::OkStatus();
}

// Colours apart, keys in falling order, one rank without a group.
absl::Status Splits(ConformanceRank& rank) {
  const int me = rank.rank();
  const int last = rank.size() - 1;
  const bool stays_out = me == last && last > 0;
  const absl::StatusOr<Group> part =
      rank.group.Split(stays_out ? -1 : me % 2, -me);
  if (!part.ok()) return Fault("split: ", part.status().ToString());
  if (stays_out) {
    if ((*part)->is_member()) return Fault("split with color -1 gives a group");
    return absl::OkStatus();
  }
  std::vector<int> world;
  for (int r = std::max(1, last) - 1; r >= 0; --r) {
    if (r % 2 == me % 2) world.push_back(r);
  }
  return CheckGroup(**part, world);
}

absl::Status TimeoutsAreInherited(ConformanceRank& rank) {
  SHERD_ASSIGN_OR_RETURN(const Group heir, Make(rank.group, {rank.rank()}));
  const auto own =
      rank.group.NewGroup({rank.rank()}, {.timeout = absl::Seconds(17)});
  if (!own.ok()) return Fault("a group of one: ", own.status().ToString());
  if (heir->timeout() != rank.group.timeout() ||
      (*own)->timeout() != absl::Seconds(17)) {
    return Fault("a group's timeout is ", absl::FormatDuration(heir->timeout()),
                 ", its parent's ", absl::FormatDuration(rank.group.timeout()));
  }
  return absl::OkStatus();
}

absl::Status Groups(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(NeighboursInAnyOrder(rank));
  SHERD_RETURN_IF_ERROR(OverlappingGroups(rank));
  SHERD_RETURN_IF_ERROR(NonMembers(rank));
  SHERD_RETURN_IF_ERROR(NestedGroups(rank));
  SHERD_RETURN_IF_ERROR(Splits(rank));
  SHERD_RETURN_IF_ERROR(TimeoutsAreInherited(rank));
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

int CountEntries(const char* directory) {
  DIR* const entries = opendir(directory);
  if (entries == nullptr) return 0;
  int count = 0;
  while (readdir(entries) != nullptr) ++count;
  closedir(entries);
  return count;
}

struct Resources {
  int descriptors = CountEntries("/proc/self/fd");
  int threads = CountEntries("/proc/self/task");
};

// Makes, uses and leaves groups of two ranks, so that all ranks are busy.
absl::Status MakeAndLeave(ConformanceRank& rank, int times) {
  const int first = rank.rank() / 2 * 2;
  std::vector<int> ranks = {first};
  if (first + 1 < rank.size()) ranks.push_back(first + 1);
  for (int i = 0; i < times; ++i) {
    SHERD_ASSIGN_OR_RETURN(const Group group, Make(rank.group, ranks));
    Work work = group->BarrierAsync();
    SHERD_RETURN_IF_ERROR(work.Wait());
    SHERD_RETURN_IF_ERROR(group->Destroy());
  }
  // All ranks have left all groups.
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  return CheckCall(rank, {.op = CollectiveOp::kBarrier, .asynchronous = true});
}

absl::Status ManyGroups(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(MakeAndLeave(rank, 5));
  const Resources before;
  // No rank continues while another one counts.
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  // Fewer if ranks share few cores.
  const int times = rank.size() <= 4 ? 200 : 60;
  SHERD_RETURN_IF_ERROR(MakeAndLeave(rank, times));
  const Resources after;
  SHERD_RETURN_IF_ERROR(CheckCall(rank, {.op = CollectiveOp::kBarrier}));
  // Threads that were asked to end may not have ended yet.
  constexpr int kSlack = 20;
  if (after.descriptors > before.descriptors + kSlack ||
      after.threads > before.threads + kSlack) {
    return Fault(times, " groups that were made and destroyed leave ",
                 after.descriptors - before.descriptors, " descriptors and ",
                 after.threads - before.threads, " threads");
  }
  return absl::OkStatus();
}

// The open files of a program that is executed now, by number.
using OpenFiles = std::map<int, std::string>;

// The descriptors that this process inherits to programs since before it was a
// rank.
OpenFiles FindInheritable() {
  OpenFiles found;
  DIR* const entries = opendir("/proc/self/fd");
  if (entries == nullptr) return found;
  while (const dirent* const entry = readdir(entries)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->d_name, &fd)) continue;
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    std::error_code ignored;
    found[fd] = std::filesystem::read_symlink(
        absl::StrCat("/proc/self/fd/", fd), ignored);
  }
  closedir(entries);
  return found;
}

const OpenFiles& InheritedFromBefore() {
  static const auto* const files = new OpenFiles(FindInheritable());
  return *files;
}
// Before main, and so before any group.
[[maybe_unused]] const OpenFiles& inherited_from_before = InheritedFromBefore();

// The files that `ls` itself has open, as it prints them.
absl::StatusOr<std::string> ListInChild() {
  SHERD_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  SHERD_ASSIGN_OR_RETURN(
      Subprocess child,
      Subprocess::Start({.program = "/bin/ls",
                         .arguments = {"ls", "-l", "/proc/self/fd"},
                         .environment = {"LC_ALL=C"},
                         .output_fd = pipe.write.get()}));
  pipe.write.Reset();
  std::string listed;
  std::array<char, 4096> buffer;
  ssize_t n;
  while ((n = read(pipe.read.get(), buffer.data(), buffer.size())) > 0) {
    listed.append(buffer.data(), static_cast<size_t>(n));
  }
  if (child.Wait().ExitedWith(0)) return listed;
  return Fault("ls ", child.Wait().ToString(), ": ", listed);
}

// A program that a rank starts has no descriptor of the group: one that it
// kept open would hide the rank's death from its peers.
absl::Status ExecInheritsNothing(ConformanceRank& rank) {
  SHERD_ASSIGN_OR_RETURN(const Group group, NewGroupOfAll(rank));
  SHERD_RETURN_IF_ERROR(CheckGroup(*group, group->world_ranks()));
  SHERD_ASSIGN_OR_RETURN(const std::string listed, ListInChild());
  for (const absl::string_view line : absl::StrSplit(listed, '\n')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(line, absl::MaxSplits(" -> ", 1));
    int fd = -1;
    if (!absl::SimpleAtoi(ends.first.substr(ends.first.rfind(' ') + 1), &fd) ||
        fd <= 2 || absl::StrContains(ends.second, "/proc/")) {
      continue;
    }
    const auto known = InheritedFromBefore().find(fd);
    if (known == InheritedFromBefore().end() || known->second != ends.second) {
      return Fault("a program that the rank executes inherits descriptor ", fd,
                   ", ", ends.second);
    }
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

}  // namespace

absl::Span<const ConformanceCase> GroupCases() {
  static constexpr ConformanceCase kCases[] = {
      {"Groups", Groups},
      {"ManyGroups", ManyGroups},
      {"ExecInheritsNothing", ExecInheritsNothing},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
