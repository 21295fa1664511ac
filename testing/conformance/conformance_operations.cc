// Every operation, every type and reduction, lengths that are awkward.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/conformance/conformance_call.h"
#include "sherd/testing/conformance/conformance_case.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kSmallCounts[] = {0, 1, 3, 1'003};
constexpr size_t kLargeCount = 1'000'003;

// No rank leaves a barrier before all ranks have arrived.
absl::Status Barriers(ConformanceRank& rank) {
  Store& store = rank.group.store();
  for (int round = 1; round <= 3; ++round) {
    SHERD_RETURN_IF_ERROR(store.Add("conformance/barrier", 1).status());
    SHERD_RETURN_IF_ERROR(CheckCall(
        rank, {.op = CollectiveOp::kBarrier, .asynchronous = round % 2 == 0}));
    SHERD_ASSIGN_OR_RETURN(const int64_t came,
                           store.Add("conformance/barrier", 0));
    if (came < int64_t{round} * rank.size()) {
      return Fault("barrier let a rank go after ", came, " of ",
                   round * rank.size(), " had come");
    }
  }
  return absl::OkStatus();
}

// Runs `spec` with blocks and with lists, in place and not; every second call
// is asynchronous, every third one has buffers at odd addresses.
absl::Status InAllForms(ConformanceRank& rank, CallSpec spec) {
  const bool has_root = spec.op == CollectiveOp::kBroadcast ||
                        spec.op == CollectiveOp::kGather ||
                        spec.op == CollectiveOp::kScatter;
  const bool has_lists = spec.op == CollectiveOp::kGather ||
                         spec.op == CollectiveOp::kScatter ||
                         spec.op == CollectiveOp::kAllToAllV;
  const bool only_lists = spec.op == CollectiveOp::kAllGatherV;
  const bool has_in_place = spec.op != CollectiveOp::kBroadcast;
  for (spec.root = 0; spec.root < (has_root ? rank.size() : 1); ++spec.root) {
    for (const bool lists : {false, true}) {
      if (lists ? !has_lists && !only_lists : only_lists) continue;
      for (const bool in_place : {false, true}) {
        // An exchange of one block per rank has no such form.
        if (in_place && (!has_in_place ||
                         (spec.op == CollectiveOp::kAllToAllV && !lists))) {
          continue;
        }
        spec.lists = spec.uneven = lists;
        spec.in_place = in_place;
        spec.asynchronous = rank.calls % 2 == 0;
        spec.shift = rank.calls % 3 == 0 ? 1 + rank.calls % 7 : 0;
        SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Moves(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(Barriers(rank));
  for (const size_t count : kSmallCounts) {
    for (const CollectiveOp op :
         {CollectiveOp::kBroadcast, CollectiveOp::kAllGather,
          CollectiveOp::kAllGatherV, CollectiveOp::kGather,
          CollectiveOp::kScatter, CollectiveOp::kAllToAllV}) {
      SHERD_RETURN_IF_ERROR(InAllForms(rank, {.op = op, .count = count}));
    }
  }
  return absl::OkStatus();
}

// One rank sends to all, then all to one, without help of other ranks.
absl::Status OneSidedExchanges(ConformanceRank& rank) {
  constexpr size_t kBytes = 4096;
  const int centre = rank.size() - 1;
  for (const bool to_all : {true, false}) {
    const uint64_t call = ++rank.calls;
    std::vector<GuardedBuffer> sent, received;
    std::vector<ConstBytes> sends;
    std::vector<MutableBytes> recvs;
    for (int r = 0; r < rank.size(); ++r) {
      const bool to_r = to_all ? rank.rank() == centre : r == centre;
      const bool from_r = to_all ? r == centre : rank.rank() == centre;
      sent.emplace_back(to_r ? kBytes : 0);
      received.emplace_back(from_r ? kBytes : 0);
      FillMessage(MessageKey(call, rank.rank(), r), sent.back().bytes());
    }
    for (int r = 0; r < rank.size(); ++r) {
      sends.push_back(sent[r].bytes());
      recvs.push_back(received[r].bytes());
    }
    if (absl::Status status = rank.group.AllToAllV(sends, recvs);
        !status.ok()) {
      return ExplainFailure(
          rank.group,
          {.op = CollectiveOp::kAllToAllV, .lists = true, .count = kBytes},
          status);
    }
    for (int r = 0; r < rank.size(); ++r) {
      SHERD_RETURN_IF_ERROR(
          CheckMessage(MessageKey(call, r, rank.rank()), received[r].bytes()));
      SHERD_RETURN_IF_ERROR(received[r].CheckCanaries());
    }
  }
  return absl::OkStatus();
}

std::vector<CallSpec> Reductions(DType dtype, ReduceOp reduction, int size,
                                 uint64_t variant) {
  const int root = static_cast<int>(variant % size);
  const bool flip = variant % 2 == 0;
  const size_t count = flip ? 1 : 3;
  const CallSpec base = {.dtype = dtype, .reduction = reduction};
  std::vector<CallSpec> specs(5, base);
  specs[0].op = specs[1].op = CollectiveOp::kAllReduce;
  specs[0].count = 1'003;
  specs[1].count = count;
  specs[1].in_place = true;
  specs[2].op = CollectiveOp::kReduce;
  specs[2].count = 3;
  specs[2].root = root;
  specs[2].in_place = flip;
  specs[3].op = specs[4].op = CollectiveOp::kReduceScatter;
  specs[3].count = count;
  specs[3].in_place = !flip;
  specs[4].count = 3;
  specs[4].lists = true;
  specs[4].in_place = flip;
  for (CallSpec& spec : specs) {
    spec.asynchronous = (variant += 1) % 3 == 0;
  }
  return specs;
}

// Every operation, type and reduction.
absl::Status AllReductions(ConformanceRank& rank) {
  uint64_t variant = 0;
  for (int dtype = 0; dtype < kNumComputedDTypes; ++dtype) {
    for (int reduction = 0; reduction < kNumReduceOps; ++reduction) {
      const auto type = static_cast<DType>(dtype);
      const auto op = static_cast<ReduceOp>(reduction);
      if (!HasReduction(type, op)) continue;
      for (const CallSpec& spec :
           Reductions(type, op, rank.size(), ++variant)) {
        SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
      }
    }
  }
  return absl::OkStatus();
}

// Every root, form and small count, for few types.
absl::Status ReductionForms(ConformanceRank& rank) {
  for (const DType dtype : {kFloat32, kBFloat16, kInt64}) {
    for (const size_t count : kSmallCounts) {
      for (const bool in_place : {false, true}) {
        CallSpec spec = {.count = count,
                         .dtype = dtype,
                         .in_place = in_place,
                         .asynchronous = in_place};
        spec.op = CollectiveOp::kAllReduce;
        SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
        spec.op = CollectiveOp::kReduceScatter;
        for (const bool lists : {false, true}) {
          spec.lists = spec.uneven = lists;
          SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
        }
        spec.lists = spec.uneven = false;
        spec.op = CollectiveOp::kReduce;
        for (spec.root = 0; spec.root < rank.size(); ++spec.root) {
          SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LargeCalls(ConformanceRank& rank) {
  const int last = rank.size() - 1;
  const CallSpec specs[] = {
      {.op = CollectiveOp::kBroadcast, .count = kLargeCount, .root = last},
      {.op = CollectiveOp::kAllGather, .count = kLargeCount, .in_place = true},
      {.op = CollectiveOp::kAllToAllV,
       .lists = true,
       .count = kLargeCount,
       .uneven = true,
       .asynchronous = true},
      {.op = CollectiveOp::kGather, .count = kLargeCount, .root = last},
      {.op = CollectiveOp::kScatter, .count = kLargeCount, .shift = 3},
      {.op = CollectiveOp::kAllReduce,
       .count = kLargeCount,
       .dtype = kFloat32,
       .in_place = true},
      {.op = CollectiveOp::kAllReduce,
       .count = kLargeCount / 4,
       .dtype = kBFloat16},
      {.op = CollectiveOp::kReduce,
       .count = kLargeCount / 4,
       .dtype = kUInt8,
       .reduction = ReduceOp::kMax,
       .root = last},
      {.op = CollectiveOp::kReduceScatter,
       .count = kLargeCount / 8,
       .dtype = kInt32}};
  for (const CallSpec& spec : specs) {
    SHERD_RETURN_IF_ERROR(CheckCall(rank, spec));
  }
  return absl::OkStatus();
}

// Rank r gets a block of a length of its own; of some it is empty.
absl::Status UnevenReduceScatter(ConformanceRank& rank) {
  for (const size_t scale : {1, 1'003, 200'003}) {
    const auto length = [&](int r) { return (2 + r) % 3 * scale; };
    const auto element = [](int from, int to, size_t i) {
      return static_cast<int32_t>(1000 * from + 10 * to + 7 * i % 1000);
    };
    std::vector<std::vector<int32_t>> blocks(rank.size());
    std::vector<ConstBytes> sends;
    for (int to = 0; to < rank.size(); ++to) {
      for (size_t i = 0; i < length(to); ++i) {
        blocks[to].push_back(element(rank.rank(), to, i));
      }
      sends.emplace_back(reinterpret_cast<const std::byte*>(blocks[to].data()),
                         blocks[to].size() * sizeof(int32_t));
    }
    std::vector<int32_t> sum(length(rank.rank()), -1);
    const absl::Status status = rank.group.ReduceScatterV(
        sends,
        MutableBytes(reinterpret_cast<std::byte*>(sum.data()),
                     sum.size() * sizeof(int32_t)),
        kInt32, ReduceOp::kSum);
    if (!status.ok()) {
      return Fault("reduce_scatter of blocks of different lengths: ",
                   status.ToString());
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      int32_t expected = 0;
      for (int from = 0; from < rank.size(); ++from) {
        expected += element(from, rank.rank(), i);
      }
      if (sum[i] == expected) continue;
      return Fault("reduce_scatter of blocks of different lengths: element ", i,
                   " of ", sum.size(), " is ", sum[i], ", expected ", expected);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const ConformanceCase> OperationCases() {
  static constexpr ConformanceCase kCases[] = {
      {"Moves", Moves},
      {"OneSidedExchanges", OneSidedExchanges},
      {"AllReductions", AllReductions},
      {"ReductionForms", ReductionForms},
      {"UnevenReduceScatter", UnevenReduceScatter},
      {"LargeCalls", LargeCalls},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
