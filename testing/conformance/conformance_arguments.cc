// Invalid arguments: each is refused with the same error on every backend, and
// has no effect.

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/conformance/conformance_data.h"

namespace sherd::testing::internal {
namespace {

// The arguments of bad calls. The lists have one entry per rank.
struct Material {
  explicit Material(const ConformanceRank& conformance_rank)
      : group(conformance_rank.group),
        rank(conformance_rank.rank()),
        size(conformance_rank.size()),
        send(64),
        recv(64),
        blocks(64 * size_t{256}) {
    for (int r = 0; r < size; ++r) {
      sends.push_back(send.bytes().subspan(r, 1));
      recvs.push_back(recv.bytes().subspan(r, 1));
    }
  }

  ConstBytes Send(size_t n) { return send.bytes().subspan(0, n); }
  MutableBytes Recv(size_t n) { return recv.bytes().subspan(0, n); }
  int peer() const { return (rank + 1) % size; }

  absl::Status CheckNothingWritten() const {
    for (const GuardedBuffer* buffer : {&send, &recv, &blocks}) {
      SHERD_RETURN_IF_ERROR(CheckUntouched(buffer->bytes()));
      SHERD_RETURN_IF_ERROR(buffer->CheckCanaries());
    }
    return absl::OkStatus();
  }

  ProcessGroup& group;
  const int rank;
  const int size;
  GuardedBuffer send;
  GuardedBuffer recv;
  GuardedBuffer blocks;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
};

struct BadCall {
  const char* what;
  // The key phrase of the error.
  const char* phrase;
  Work (*make)(Material&);
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  int min_size = 1;
};

Work Done(absl::Status status) { return Work(std::move(status)); }

constexpr BadCall kBadRoots[] = {
    {"broadcast from rank -1", "root is -1, expected 0 to",
     [](Material& m) { return m.group.BroadcastAsync(m.Recv(4), -1); }},
    {"broadcast from rank P", "root is ",
     [](Material& m) { return m.group.BroadcastAsync(m.Recv(4), m.size); }},
    {"reduce to rank P", "root is ",
     [](Material& m) {
       return m.group.ReduceAsync(m.Send(4), m.Recv(4), kFloat32,
                                  ReduceOp::kSum, m.size);
     }},
    {"gather to rank -1", "root is -1",
     [](Material& m) {
       return m.group.GatherAsync(m.Send(1), m.Recv(m.size), -1);
     }},
    {"gather_v to rank P", "root is ",
     [](Material& m) {
       return m.group.GatherVAsync(m.Send(1), m.recvs, m.size);
     }},
    {"scatter from rank P", "root is ",
     [](Material& m) {
       return m.group.ScatterAsync(m.Send(m.size), m.Recv(1), m.size);
     }},
    {"scatter_v from rank -7", "root is -7",
     [](Material& m) { return m.group.ScatterVAsync(m.sends, m.Recv(1), -7); }},
};

constexpr BadCall kBadSizes[] = {
    {"all_reduce into a shorter buffer", "expected equal lengths",
     [](Material& m) {
       return m.group.AllReduceAsync(m.Send(8), m.Recv(4), kFloat32,
                                     ReduceOp::kSum);
     }},
    {"all_reduce of half an element", "expected a multiple of the 4 of one",
     [](Material& m) {
       return m.group.AllReduceAsync(m.Send(6), m.Recv(6), kFloat32,
                                     ReduceOp::kSum);
     }},
    {"reduce_scatter of too much", "ranks times the",
     [](Material& m) {
       return m.group.ReduceScatterAsync(
           m.blocks.bytes().subspan(0, 8 * m.size + 8), m.Recv(8), kInt64,
           ReduceOp::kSum);
     }},
    {"all_gather into too little", "ranks times the",
     [](Material& m) {
       return m.group.AllGatherAsync(m.Send(3), m.Recv(3 * m.size - 1));
     }},
    {"all_gather_v whose own entry has another length",
     "expected equal lengths",
     [](Material& m) { return m.group.AllGatherVAsync(m.Send(2), m.recvs); }},
    {"all_to_all of unequal buffers", "expected equal lengths",
     [](Material& m) {
       return m.group.AllToAllAsync(m.Send(2 * m.size), m.Recv(3 * m.size));
     }},
    {"all_to_all that does not divide", "do not divide equally across",
     [](Material& m) {
       return m.group.AllToAllAsync(m.Send(m.size + 1), m.Recv(m.size + 1));
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"all_to_all_v whose own entries differ", "expected equal lengths",
     [](Material& m) {
       std::vector<MutableBytes> recvs = m.recvs;
       recvs[m.rank] = m.blocks.bytes().subspan(0, 2);
       return Done(m.group.AllToAllV(m.sends, recvs));
     }},
    {"a null buffer with a length", "null pointer",
     [](Material& m) {
       return m.group.BroadcastAsync(MutableBytes(nullptr, 4), 0);
     }},
};

constexpr BadCall kBadLists[] = {
    {"all_gather_v with an entry too few", "one per rank",
     [](Material& m) {
       return m.group.AllGatherVAsync(m.Send(1),
                                      absl::MakeConstSpan(m.recvs).subspan(1));
     }},
    {"reduce_scatter_v without entries", "one per rank",
     [](Material& m) {
       return m.group.ReduceScatterVAsync({}, m.Recv(4), kFloat32,
                                          ReduceOp::kSum);
     }},
    {"all_to_all_v with an entry too few", "one per rank",
     [](Material& m) {
       return m.group.AllToAllVAsync(m.sends,
                                     absl::MakeConstSpan(m.recvs).subspan(1));
     }},
    {"gather with a receive buffer besides the root's", "the root, passes",
     [](Material& m) {
       return m.group.GatherAsync(m.Send(1), m.Recv(m.size), m.peer());
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"scatter_v with a list besides the root's", "the root, passes",
     [](Material& m) {
       return m.group.ScatterVAsync(m.sends, m.Recv(1), m.peer());
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"all_reduce of buffers that overlap", "overlaps",
     [](Material& m) {
       return m.group.AllReduceAsync(m.recv.bytes().subspan(0, 8),
                                     m.recv.bytes().subspan(4, 8), kFloat32,
                                     ReduceOp::kSum);
     }},
    {"all_to_all in place", "overlaps",
     [](Material& m) {
       return m.group.AllToAllAsync(m.Recv(m.size), m.Recv(m.size));
     }},
    {"all_to_all_v with one list twice", "overlaps",
     [](Material& m) {
       const std::vector<ConstBytes> sends(m.recvs.begin(), m.recvs.end());
       return Done(m.group.AllToAllV(sends, m.recvs));
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"all_gather_v with one buffer as two entries", "overlaps receive entry 0",
     [](Material& m) {
       std::vector<MutableBytes> recvs = m.recvs;
       recvs[1] = recvs[0];
       return Done(m.group.AllGatherV(m.Send(1), recvs));
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"reduce_scatter_v into another rank's entry", "overlaps",
     [](Material& m) {
       std::vector<ConstBytes> sends = m.sends;
       sends[m.rank] = m.send.bytes().subspan(60, 1);
       sends[m.peer()] = m.Recv(1);
       return Done(
           m.group.ReduceScatterV(sends, m.Recv(1), kUInt8, ReduceOp::kSum));
     },
     absl::StatusCode::kInvalidArgument, 2},
};

constexpr BadCall kBadMessages[] = {
    {"send to itself", "cannot send to itself",
     [](Material& m) { return m.group.SendAsync(m.Send(4), m.rank); }},
    {"recv from itself", "cannot send to itself",
     [](Material& m) { return m.group.RecvAsync(m.Recv(4), m.rank); }},
    {"send to rank P", "the peer is ",
     [](Material& m) { return m.group.SendAsync(m.Send(4), m.size); }},
    {"recv from rank -1", "the peer is -1, expected 0 to",
     [](Material& m) { return m.group.RecvAsync(m.Recv(4), -1); }},
    {"send with tag -1", "the tag is -1, expected 0 to",
     [](Material& m) { return m.group.SendAsync(m.Send(4), m.peer(), -1); },
     absl::StatusCode::kInvalidArgument, 2},
    {"recv with tag 2^31", "the tag is 2147483648, expected 0 to",
     [](Material& m) {
       return m.group.RecvAsync(m.Recv(4), m.peer(), int64_t{1} << 31);
     },
     absl::StatusCode::kInvalidArgument, 2},
};

template <typename Ranks>
Work TryNewGroup(Material& m, const Ranks& ranks) {
  return Done(m.group.NewGroup(ranks).status());
}

constexpr BadCall kBadGroups[] = {
    {"a group with a rank twice", "",
     [](Material& m) {
       return TryNewGroup(m, std::vector<int>{m.rank, m.rank});
     }},
    {"a group in falling order", "",
     [](Material& m) {
       return TryNewGroup(m, std::vector<int>{1, 0});
     },
     absl::StatusCode::kInvalidArgument, 2},
    {"a group with rank P", "",
     [](Material& m) {
       return TryNewGroup(m, std::vector<int>{0, m.size});
     }},
    {"a group with rank -1", "",
     [](Material& m) {
       return TryNewGroup(m, std::vector<int>{-1, 0});
     }},
};

// A fault if the error is not of the right kind and does not give the reason.
absl::Status CheckRefusal(const BadCall& bad, const absl::Status& status) {
  if (status.code() == bad.code &&
      absl::StrContains(status.message(), bad.phrase)) {
    return absl::OkStatus();
  }
  return Fault(bad.what, ": expected ", absl::StatusCodeToString(bad.code),
               " with \"", bad.phrase, "\", got ", status.ToString());
}

absl::Status TryAll(ConformanceRank& rank, absl::Span<const BadCall> calls) {
  Material material(rank);
  for (const BadCall& bad : calls) {
    if (rank.size() < bad.min_size) continue;
    SHERD_RETURN_IF_ERROR(CheckRefusal(bad, bad.make(material).Wait()));
    if (absl::Status status = material.CheckNothingWritten(); !status.ok()) {
      return Fault(bad.what, ": refused, and yet ", status.message());
    }
    if (!rank.group.health().ok()) {
      return Fault(bad.what,
                   ": it spoils the group: ", rank.group.health().ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status BadArguments(ConformanceRank& rank) {
  SHERD_RETURN_IF_ERROR(TryAll(rank, kBadRoots));
  SHERD_RETURN_IF_ERROR(TryAll(rank, kBadSizes));
  SHERD_RETURN_IF_ERROR(TryAll(rank, kBadLists));
  SHERD_RETURN_IF_ERROR(TryAll(rank, kBadMessages));
  SHERD_RETURN_IF_ERROR(TryAll(rank, kBadGroups));
  // One rank makes a bad call, gets an error, and makes the others' call.
  if (rank.rank() == rank.size() - 1) {
    Material material(rank);
    SHERD_RETURN_IF_ERROR(
        CheckRefusal(kBadSizes[0], kBadSizes[0].make(material).Wait()));
  }
  return CheckCall(
      rank, {.op = CollectiveOp::kAllReduce, .count = 3, .dtype = kFloat32});
}

// PathOf has an answer for every call, and calls that it declares unsupported
// are refused at once.
absl::Status CheckPath(ConformanceRank& rank, CollectiveOp op, DType dtype,
                       ReduceOp reduction) {
  const OperationPath path = rank.group.PathOf(op, dtype, reduction);
  const bool may_lack = IsPointToPoint(op);
  const bool exists = !IsReduction(op) || HasReduction(dtype, reduction);
  const CallSpec spec = {
      .op = op,
      .count = 2,
      .dtype = dtype,
      .reduction = reduction,
      .root = IsPointToPoint(op) ? (rank.rank() + 1) % rank.size() : 0};
  if (path != OperationPath::kUnsupported) {
    if (exists) return absl::OkStatus();
    return Fault("PathOf returned ", Name(path), " for ", Describe(spec),
                 ", which has no meaning");
  }
  if (exists && !may_lack) {
    return Fault("PathOf reports that there is no ", Describe(spec));
  }
  if (exists && rank.size() == 1) return absl::OkStatus();
  Call call(spec, ++rank.calls, rank.rank(), rank.size());
  const absl::Status status = call.Run(rank.group);
  if (absl::IsUnimplemented(status) || absl::IsInvalidArgument(status)) {
    return call.CheckNothingHappened();
  }
  return Fault(Describe(spec),
               ": PathOf returned unsupported, the call: ", status.ToString());
}

absl::Status Paths(ConformanceRank& rank) {
  for (int op = 0; op < kNumCollectiveOps; ++op) {
    const auto operation = static_cast<CollectiveOp>(op);
    if (!IsReduction(operation)) {
      SHERD_RETURN_IF_ERROR(CheckPath(rank, operation, kUInt8, ReduceOp::kSum));
      continue;
    }
    for (int dtype = 0; dtype < kNumComputedDTypes; ++dtype) {
      for (int reduction = 0; reduction < kNumReduceOps; ++reduction) {
        SHERD_RETURN_IF_ERROR(CheckPath(rank, operation,
                                        static_cast<DType>(dtype),
                                        static_cast<ReduceOp>(reduction)));
      }
    }
  }
  const BackendInfo& info = rank.group.backend();
  if (info.ranks_are_threads != rank.ranks_are_threads ||
      info.dies_together != rank.dies_together) {
    return Fault(
        "the plugin's flags contradict SHERD_CONFORMANCE_SUITE: ranks are ",
        info.ranks_are_threads ? "threads" : "processes",
        info.dies_together ? " and die together" : "", ", say the flags");
  }
  return CheckCall(rank, {.op = CollectiveOp::kBarrier});
}

}  // namespace

absl::Span<const ConformanceCase> ArgumentCases() {
  static constexpr ConformanceCase kCases[] = {
      {"Paths", Paths},
      {"BadArguments", BadArguments},
  };
  return kCases;
}

}  // namespace sherd::testing::internal
