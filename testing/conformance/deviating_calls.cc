#include "sherd/testing/conformance/deviating_calls.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {
namespace {

using Random = std::mt19937_64;

constexpr CollectiveOp kOperations[] = {
    CollectiveOp::kBarrier,   CollectiveOp::kBroadcast,
    CollectiveOp::kAllGather, CollectiveOp::kAllGatherV,
    CollectiveOp::kGather,    CollectiveOp::kScatter,
    CollectiveOp::kAllToAllV, CollectiveOp::kAllReduce,
    CollectiveOp::kReduce,    CollectiveOp::kReduceScatter};
constexpr size_t kCounts[] = {0, 0, 1, 3, 17, 1'003};
constexpr size_t kShort = 17;
constexpr DType kTypes[] = {kFloat32, kInt32, kFloat64, kInt64};
constexpr ReduceOp kReductions[] = {ReduceOp::kSum, ReduceOp::kMin,
                                    ReduceOp::kMax};

// Where a rank deviates.
enum class Kind {
  kOperation,
  kLength,
  kType,
  kReduction,
  kRoot,
  kList,
  kForm,
  kOrder,
  kLeave,
};
constexpr int kKinds = 9;

int Uniform(int low, int high, Random& random) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

template <typename T, size_t n>
T OneOf(const T (&list)[n], Random& random) {
  return list[Uniform(0, n - 1, random)];
}

bool OneIn(int n, Random& random) { return Uniform(1, n, random) == 1; }

bool HasLists(CollectiveOp op) {
  return op == CollectiveOp::kGather || op == CollectiveOp::kScatter ||
         op == CollectiveOp::kAllToAllV || op == CollectiveOp::kReduceScatter;
}

size_t RandomCount(bool only_short, Random& random) {
  const size_t count = OneOf(kCounts, random);
  return only_short ? std::min(count, kShort) : count;
}

CallSpec RandomSpec(int ranks, bool only_short, Random& random) {
  CallSpec spec = {.op = OneOf(kOperations, random)};
  spec.timeout = LongTimeout();
  if (spec.op == CollectiveOp::kBarrier) return spec;
  spec.count = RandomCount(only_short, random);
  spec.lists = spec.op == CollectiveOp::kAllGatherV ||
               (HasLists(spec.op) && OneIn(2, random));
  spec.uneven = spec.lists && OneIn(2, random);
  spec.in_place = spec.op != CollectiveOp::kBroadcast &&
                  (spec.op != CollectiveOp::kAllToAllV || spec.lists) &&
                  OneIn(2, random);
  spec.asynchronous = OneIn(2, random);
  if (HasRoot(spec.op)) spec.root = Uniform(0, ranks - 1, random);
  if (IsReduction(spec.op)) {
    spec.dtype = OneOf(kTypes, random);
    spec.reduction = OneOf(kReductions, random);
  } else if (OneIn(2, random)) {
    spec.type = OneOf(kTypes, random);
  }
  return spec;
}

// Changes the part of the call that `kind` names; the result may be equal.
void Change(Kind kind, int ranks, bool only_short, Random& random,
            CallSpec& spec) {
  switch (kind) {
    case Kind::kOperation:
      spec = RandomSpec(ranks, only_short, random);
      break;
    case Kind::kLength:
      spec.count = RandomCount(only_short, random);
      break;
    case Kind::kType:
      (IsReduction(spec.op) ? spec.dtype : spec.type.emplace()) =
          OneOf(kTypes, random);
      break;
    case Kind::kReduction:
      spec.reduction = OneOf(kReductions, random);
      break;
    case Kind::kRoot:
      if (HasRoot(spec.op)) spec.root = Uniform(0, ranks - 1, random);
      break;
    case Kind::kList:
      if (spec.lists) spec.uneven = true;
      spec.skew = 1;
      break;
    case Kind::kForm:
      if (HasLists(spec.op)) spec.lists = !spec.lists;
      spec.uneven = false;
      spec.in_place = false;
      break;
    case Kind::kOrder:
    case Kind::kLeave:
      break;
  }
}

// The part that all ranks must have in common, except the type.
using CommonPart =
    std::tuple<CollectiveOp, bool, int, int, std::vector<size_t>>;

CommonPart CommonPartOf(const CallSpec& spec, int ranks) {
  std::vector<size_t> lengths;
  const bool reduces = IsReduction(spec.op);
  const bool with_lists = spec.op == CollectiveOp::kAllToAllV && spec.lists;
  switch (spec.op) {
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kAllGather:
      lengths = {spec.count};
      break;
    case CollectiveOp::kAllToAllV:
      if (!spec.lists) lengths = {spec.count};
      break;
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kReduce:
      lengths = {spec.count * SizeOf(spec.dtype)};
      break;
    case CollectiveOp::kReduceScatter:
      for (int r = 0; r < ranks; ++r) {
        lengths.push_back(BlockCount(spec, r) * SizeOf(spec.dtype));
      }
      break;
    case CollectiveOp::kAllGatherV:
      for (int r = 0; r < ranks; ++r) {
        lengths.push_back(MessageBytes(spec, r, 0));
      }
      break;
    default:
      break;
  }
  return {spec.op, with_lists, HasRoot(spec.op) ? spec.root : 0,
          reduces ? static_cast<int>(spec.reduction) : 0, std::move(lengths)};
}

// Bytes from one rank to another in `spec`, if its lengths are per pair of
// ranks; otherwise 0.
size_t BytesBetween(const CallSpec& spec, int from, int to) {
  switch (spec.op) {
    case CollectiveOp::kAllToAllV:
      return spec.lists ? MessageBytes(spec, from, to) : 0;
    case CollectiveOp::kGather:
      return to == spec.root ? MessageBytes(spec, from, 0) : 0;
    case CollectiveOp::kScatter:
      return from == spec.root ? MessageBytes(spec, from, to) : 0;
    default:
      return 0;
  }
}

// The ranks that a text names, as in "rank 2" or "ranks 0, 1".
std::vector<int> RanksNamedIn(absl::string_view text) {
  std::vector<int> ranks;
  for (size_t at; (at = text.find("rank")) != text.npos;) {
    text.remove_prefix(at + 4);
    if (absl::StartsWith(text, "s")) text.remove_prefix(1);
    for (absl::string_view before = " ";
         absl::StartsWith(text, before) && text.size() > before.size() &&
         absl::ascii_isdigit(text[before.size()]);
         before = ", ") {
      text.remove_prefix(before.size());
      int number = 0;
      while (!text.empty() && absl::ascii_isdigit(text[0])) {
        number = 10 * number + (text[0] - '0');
        text.remove_prefix(1);
      }
      ranks.push_back(number);
    }
  }
  return ranks;
}

// Returns OK if a rank's error is the one that the deviation causes.
absl::Status CheckError(const CallSequence& sequence, bool on_devices,
                        const absl::Status& status) {
  if (!sequence.deviating) {
    return Fault("a valid call failed: ", status.ToString());
  }
  const int deviating = *sequence.deviating;
  const absl::StatusCode expected = sequence.leaves
                                        ? absl::StatusCode::kUnavailable
                                        : absl::StatusCode::kInvalidArgument;
  // An operation on a device may fail between two calls.
  const bool later = on_devices && absl::IsFailedPrecondition(status);
  if (status.code() != expected && !later) {
    return Fault("expected ", absl::StatusCodeToString(expected), ", got ",
                 status.ToString());
  }
  const std::vector<int> named = RanksNamedIn(status.message());
  const auto names = [&named](int rank) {
    return std::find(named.begin(), named.end(), rank) != named.end();
  };
  if (!names(deviating)) {
    return Fault("the error does not name rank ", deviating, ": ",
                 status.ToString());
  }
  // The other ranks can go on without a failed rank.
  const bool has_failed_rank =
      sequence.leaves || sequence.contradiction == Contradiction::kInTheCall;
  const int failed = FailedRank(status).value_or(-1);
  if (failed != (has_failed_rank ? deviating : -1)) {
    return Fault("the failed rank is ", failed, ", expected ",
                 has_failed_rank ? deviating : -1, ": ", status.ToString());
  }
  if (!has_failed_rank && sequence.ranks() == 2 && !(names(0) && names(1))) {
    return Fault("the error does not name both ranks: ", status.ToString());
  }
  return absl::OkStatus();
}

absl::Status RunSequence(const ConformanceRank& parent, ProcessGroup& group,
                         const CallSequence& sequence, uint64_t number) {
  const int me = group.rank();
  const bool on_devices = group.device().has_value();
  ConformanceRank rank = {
      .group = group,
      .small_floats_rounded_once = parent.small_floats_rounded_once};
  // All ranks have connected before the first one leaves the group. A rank that
  // is late may learn here already what the others find in a later call.
  const absl::Status met = group.Barrier();
  if (!met.ok()) return CheckError(sequence, on_devices, met);
  const std::vector<CallSpec>& calls = sequence.calls[me];
  for (size_t i = 0; i < calls.size(); ++i) {
    if (sequence.leaves && me == sequence.deviating && i == sequence.step) {
      return absl::OkStatus();
    }
    Call call(calls[i], number + i, me, group.size());
    const absl::Status status = call.Run(group);
    if (!status.ok()) return CheckError(sequence, on_devices, status);
    SHERD_RETURN_IF_ERROR(call.Check(RoundingOf(rank, calls[i])));
  }
  const absl::Status status = group.Barrier({.timeout = LongTimeout()});
  if (!status.ok()) return CheckError(sequence, on_devices, status);
  return sequence.deviating ? Fault("no error reported that a rank deviates")
                            : absl::OkStatus();
}

// The same on all ranks of the group.
absl::StatusOr<uint64_t> AgreeOnSeed(ProcessGroup& group) {
  uint64_t seed = 0;
  if (group.rank() == 0) {
    const auto given = GetIntKnob(Knob::kTestSeed, 0, INT64_MAX);
    seed = given.ok() && given->has_value() ? static_cast<uint64_t>(**given)
                                            : std::random_device()();
    std::cout << "SHERD_TEST_SEED=" << seed << std::endl;
  }
  SHERD_RETURN_IF_ERROR(group.Broadcast(
      MutableBytes(reinterpret_cast<std::byte*>(&seed), sizeof(seed)), 0));
  return seed;
}

}  // namespace

Contradiction FindContradiction(absl::Span<const CallSpec> calls) {
  const int ranks = static_cast<int>(calls.size());
  // One rank deviates, so that of three or more ranks a majority agrees.
  const auto among = [](int with_a_say) {
    return with_a_say > 2 ? Contradiction::kInTheCall : Contradiction::kInADraw;
  };
  std::vector<DType> types;
  for (const CallSpec& call : calls) {
    if (CommonPartOf(call, ranks) != CommonPartOf(calls[0], ranks)) {
      return among(ranks);
    }
    if (IsReduction(call.op)) types.push_back(call.dtype);
    if (call.type) types.push_back(*call.type);
  }
  for (const DType type : types) {
    if (type != types[0]) return among(static_cast<int>(types.size()));
  }
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from == to) continue;
      if (BytesBetween(calls[from], from, to) !=
          BytesBetween(calls[to], from, to)) {
        return Contradiction::kInALength;
      }
    }
  }
  return Contradiction::kNone;
}

std::string Describe(const CallSequence& sequence) {
  if (!sequence.deviating) {
    return absl::StrCat(sequence.ranks(), " ranks, of which none deviates");
  }
  const size_t step = sequence.step;
  const int other = *sequence.deviating == 0 ? 1 : 0;
  return absl::StrCat(
      sequence.ranks(), " ranks, of which rank ", *sequence.deviating,
      sequence.leaves
          ? " leaves before "
          : absl::StrCat(" calls ",
                         Describe(sequence.calls[*sequence.deviating][step]),
                         " as "),
      "call #", step + 1, ", which for rank ", other, " is ",
      Describe(sequence.calls[other][step]));
}

CallSequence RandomSequence(uint64_t seed, int max_ranks, bool only_short) {
  Random random(seed);
  const int ranks = Uniform(2, max_ranks, random);
  std::vector<CallSpec> right(Uniform(1, 6, random));
  for (CallSpec& spec : right) spec = RandomSpec(ranks, only_short, random);
  CallSequence sequence;
  sequence.calls.assign(ranks, right);
  // A call by bytes fits one with a type.
  for (std::vector<CallSpec>& calls : sequence.calls) {
    for (CallSpec& spec : calls) {
      if (OneIn(4, random)) spec.type.reset();
    }
  }
  if (OneIn(8, random)) return sequence;
  const std::vector<std::vector<CallSpec>> same = sequence.calls;
  while (!sequence.leaves && sequence.contradiction == Contradiction::kNone) {
    sequence.calls = same;
    sequence.deviating = Uniform(0, ranks - 1, random);
    sequence.step = Uniform(0, static_cast<int>(right.size()) - 1, random);
    const auto kind = static_cast<Kind>(Uniform(0, kKinds - 1, random));
    std::vector<CallSpec>& calls = sequence.calls[*sequence.deviating];
    sequence.leaves = kind == Kind::kLeave;
    if (kind == Kind::kOrder && sequence.step + 1 < calls.size()) {
      std::swap(calls[sequence.step], calls[sequence.step + 1]);
    }
    Change(kind, ranks, only_short, random, calls[sequence.step]);
    std::vector<CallSpec> step;
    for (const auto& of_rank : sequence.calls) {
      step.push_back(of_rank[sequence.step]);
    }
    sequence.contradiction = FindContradiction(step);
  }
  return sequence;
}

absl::Status TryRandomSequences(ConformanceRank& rank, int64_t count) {
  const auto given = GetIntKnob(Knob::kTestCases, 1, INT64_MAX);
  if (given.ok() && given->has_value()) count = **given;
  SHERD_ASSIGN_OR_RETURN(const uint64_t seed, AgreeOnSeed(rank.group));
  absl::Status fault;
  for (int64_t i = 0; i < count; ++i) {
    // A library that ends all ranks with one cannot cancel operations that have
    // begun, except for short messages.
    const CallSequence sequence =
        RandomSequence(seed + i, rank.size(), rank.dies_together);
    if (rank.rank() >= sequence.ranks()) continue;
    std::vector<int> members = rank.AllRanks();
    members.resize(sequence.ranks());
    const auto group = rank.group.NewGroup(members, {.timeout = LongTimeout()});
    absl::Status status = group.status();
    if (group.ok()) {
      status = RunSequence(rank, **group, sequence, 64 * i + 1);
      (*group)->Destroy().IgnoreError();
    }
    if (status.ok() || !fault.ok()) continue;
    fault = Fault("SHERD_TEST_SEED=", seed + i,
                  " SHERD_TEST_CASES=1: ", Describe(sequence), ": ",
                  status.message());
  }
  // No rank leaves while another one still calls.
  const absl::Status end = rank.group.Barrier();
  return fault.ok() ? end : fault;
}

}  // namespace sherd::testing::internal
