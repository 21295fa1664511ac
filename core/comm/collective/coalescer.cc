#include "sherd/core/comm/coalescer.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/collective_call.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/tensor/types/memory_overlap.h"

namespace sherd {
namespace internal {
namespace {

// In ErrorInfo.
constexpr char kLaunch[] = "coalesced";

// Before the data of a packed message: what it is made of.
constexpr size_t kHeaderBytes = sizeof(uint64_t);

struct Operation {
  Collective call;
  // Place among what was added.
  size_t index = 0;

  // Bytes of one rank's part, of which packs are made.
  size_t block() const { return call.bytes; }

  bool IsSameKind(const Operation& other) const {
    return call.op == other.call.op && call.dtype == other.call.dtype &&
           call.reduction == other.call.reduction &&
           call.root == other.call.root && call.tag == other.call.tag;
  }

  // The buffers as they were passed, in a group of `size` ranks.
  ConstBytes Sent(int size) const {
    const void* const data =
        call.op == CollectiveOp::kBroadcast ? call.out : call.in;
    if (data == nullptr) return {};
    const bool is_whole = call.op == CollectiveOp::kReduceScatter;
    return {static_cast<const std::byte*>(data),
            block() * static_cast<size_t>(is_whole ? size : 1)};
  }
  MutableBytes Received(int size) const {
    if (call.out == nullptr) return {};
    const bool is_whole = call.op == CollectiveOp::kAllGather;
    return {static_cast<std::byte*>(call.out),
            block() * static_cast<size_t>(is_whole ? size : 1)};
  }
};

std::byte* Copy(std::byte* to, ConstBytes from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return to + from.size();
}

// One call: of one operation with its own buffers, or of a pack.
class Step {
 public:
  explicit Step(const Operation& first) : kind_(first) { Add(first); }

  const Operation& kind() const { return kind_; }
  bool IsPack() const { return operations_.size() > 1; }
  // Bytes of one rank's part of all operations.
  size_t block() const { return block_; }

  void Add(const Operation& operation) {
    operations_.push_back(operation);
    block_ += operation.block();
  }

  // Sets what is handed to the group.
  void Pack(int rank, int size);
  // Fills the receive buffers once the call has ended.
  absl::Status Unpack(int rank, int size) const;

  absl::Status Run(ProcessGroup& group, const CollectiveOptions& options) const;
  Work Start(ProcessGroup& group, const CollectiveOptions& options) const;

  // Which operations these are, for messages.
  std::string ToString() const;

 private:
  // Of the lengths in a packed message: how many there are above, and their
  // fingerprint below.
  uint64_t Header() const {
    Fingerprint fingerprint;
    for (const Operation& each : operations_) {
      fingerprint.Add(static_cast<int64_t>(each.block()));
    }
    return uint64_t{operations_.size()} << 32 | (fingerprint.value() >> 32);
  }
  std::byte* Allocate(size_t bytes) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return memory_.get();
  }

  const Operation kind_;
  std::vector<Operation> operations_;
  size_t block_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  ConstBytes send_;
  MutableBytes recv_;
};

void Step::Pack(int rank, int size) {
  send_ = kind_.Sent(size);
  recv_ = kind_.Received(size);
  if (!IsPack()) return;
  const size_t parts = static_cast<size_t>(size);
  switch (kind_.call.op) {
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast: {
      std::byte* to = Allocate(block_);
      send_ = recv_ = MutableBytes(to, block_);
      const bool sends =
          kind_.call.op == CollectiveOp::kAllReduce || kind_.call.root == rank;
      for (const Operation& each : operations_) {
        if (sends) to = Copy(to, each.Sent(size));
      }
      break;
    }
    case CollectiveOp::kAllGather: {
      recv_ = MutableBytes(Allocate(parts * block_), parts * block_);
      std::byte* to = recv_.data() + static_cast<size_t>(rank) * block_;
      send_ = ConstBytes(to, block_);
      for (const Operation& each : operations_) to = Copy(to, each.Sent(size));
      break;
    }
    case CollectiveOp::kReduceScatter: {
      std::byte* to = Allocate(parts * block_);
      send_ = ConstBytes(to, parts * block_);
      recv_ = MutableBytes(to + static_cast<size_t>(rank) * block_, block_);
      for (size_t r = 0; r < parts; ++r) {
        for (const Operation& each : operations_) {
          to =
              Copy(to, each.Sent(size).subspan(r * each.block(), each.block()));
        }
      }
      break;
    }
    case CollectiveOp::kSend: {
      std::byte* to = Allocate(kHeaderBytes + block_);
      send_ = ConstBytes(to, kHeaderBytes + block_);
      const uint64_t header = Header();
      std::memcpy(to, &header, kHeaderBytes);
      to += kHeaderBytes;
      for (const Operation& each : operations_) to = Copy(to, each.Sent(size));
      break;
    }
    default:
      recv_ =
          MutableBytes(Allocate(kHeaderBytes + block_), kHeaderBytes + block_);
  }
}

absl::Status Step::Unpack(int rank, int size) const {
  if (!IsPack() || kind_.call.op == CollectiveOp::kSend ||
      (kind_.call.op == CollectiveOp::kBroadcast && kind_.call.root == rank)) {
    return absl::OkStatus();
  }
  const std::byte* from = recv_.data();
  if (kind_.call.op == CollectiveOp::kRecv) {
    uint64_t header;
    std::memcpy(&header, from, kHeaderBytes);
    if (header != Header()) {
      // These are two ranks: neither is in the right.
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", kind_.call.root, " sent ", block_, " bytes as ",
          header >> 32, " operations, which this rank receives as ",
          operations_.size(),
          " of other lengths; both ends must add equal lengths in equal "
          "order"));
    }
    from += kHeaderBytes;
  }
  const size_t parts =
      kind_.call.op == CollectiveOp::kAllGather ? static_cast<size_t>(size) : 1;
  for (size_t r = 0; r < parts; ++r) {
    for (const Operation& each : operations_) {
      if (each.block() == 0) continue;
      std::memcpy(each.Received(size).data() + r * each.block(), from,
                  each.block());
      from += each.block();
    }
  }
  return absl::OkStatus();
}

absl::Status Step::Run(ProcessGroup& group,
                       const CollectiveOptions& options) const {
  switch (kind_.call.op) {
    case CollectiveOp::kAllReduce:
      return group.AllReduce(send_, recv_, kind_.call.dtype,
                             kind_.call.reduction, options);
    case CollectiveOp::kReduceScatter:
      return group.ReduceScatter(send_, recv_, kind_.call.dtype,
                                 kind_.call.reduction, options);
    case CollectiveOp::kBroadcast:
      return group.Broadcast(recv_, kind_.call.root, options);
    case CollectiveOp::kAllGather:
      return group.AllGather(send_, recv_, options);
    default:
      // Messages are never waited for one by one.
      return Start(group, options).Wait();
  }
}

Work Step::Start(ProcessGroup& group, const CollectiveOptions& options) const {
  switch (kind_.call.op) {
    case CollectiveOp::kAllReduce:
      return group.AllReduceAsync(send_, recv_, kind_.call.dtype,
                                  kind_.call.reduction, options);
    case CollectiveOp::kReduceScatter:
      return group.ReduceScatterAsync(send_, recv_, kind_.call.dtype,
                                      kind_.call.reduction, options);
    case CollectiveOp::kBroadcast:
      return group.BroadcastAsync(recv_, kind_.call.root, options);
    case CollectiveOp::kAllGather:
      return group.AllGatherAsync(send_, recv_, options);
    case CollectiveOp::kSend:
      return group.SendAsync(send_, kind_.call.root, kind_.call.tag, options);
    default:
      return group.RecvAsync(recv_, kind_.call.root, kind_.call.tag, options);
  }
}

std::string Step::ToString() const {
  std::string which = absl::StrCat("coalesced operation ", kind_.index);
  if (IsPack()) {
    which = absl::StrCat("coalesced operations ", kind_.index, " to ",
                         operations_.back().index, " of a kind, ",
                         operations_.size(), " together");
  }
  return absl::StrCat(which, ", ", Name(kind_.call.op), " of ", block_,
                      " bytes");
}

// Appends operations to the packs of their kinds.
class Planner {
 public:
  explicit Planner(const CoalescerOptions& options) : options_(options) {}

  void Add(const Operation& operation) {
    if (operation.block() > options_.max_packed_block) {
      steps_.emplace_back(operation);
      return;
    }
    const auto open =
        std::find_if(open_.begin(), open_.end(), [&](size_t index) {
          return steps_[index].kind().IsSameKind(operation);
        });
    if (open == open_.end()) {
      open_.push_back(steps_.size());
      steps_.emplace_back(operation);
    } else if (steps_[*open].block() + operation.block() > options_.max_pack) {
      *open = steps_.size();
      steps_.emplace_back(operation);
    } else {
      steps_[*open].Add(operation);
    }
  }

  std::vector<Step> Finish() && { return std::move(steps_); }

 private:
  const CoalescerOptions options_;
  std::vector<Step> steps_;
  // The steps to which more may be added, at most one of a kind.
  std::vector<size_t> open_;
};

// Collectives in the order in which they were added, so that it is the same on
// all ranks; before them the messages, which wait for nothing else.
std::vector<Step> PlanSteps(absl::Span<const Operation> operations,
                            const CoalescerOptions& options) {
  Planner messages(options), collectives(options);
  for (const Operation& operation : operations) {
    (IsPointToPoint(operation.call.op) ? messages : collectives).Add(operation);
  }
  std::vector<Step> steps = std::move(messages).Finish();
  std::vector<Step> rest = std::move(collectives).Finish();
  for (Step& step : rest) steps.push_back(std::move(step));
  return steps;
}

// A rank's added operations, as sent to the others. All ranks run the same
// build, so the struct is sent as it is in memory.
struct Summary {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t fingerprint = 0;

  friend auto operator<=>(const Summary&, const Summary&) = default;

  std::string ToString() const {
    return absl::StrFormat("%d operations of %d bytes (fingerprint %x)",
                           operations, bytes, fingerprint);
  }
};

}  // namespace

// The added operations, and later the running ones. Held by every part of a
// launch that has not ended.
class CoalescedBatch : public std::enable_shared_from_this<CoalescedBatch> {
 public:
  CoalescedBatch(ProcessGroup& group, const CoalescerOptions& options)
      : group_(group), options_(options) {}

  absl::Status Add(const CollectiveCall& call);
  absl::Status Launch(const CollectiveOptions& options);
  Work LaunchAsync(const CollectiveOptions& options);

  int num_operations() const { return static_cast<int>(operations_.size()); }
  int num_calls() const {
    return static_cast<int>(PlanSteps(operations_, options_).size());
  }
  Place place() const { return {std::max(group_.rank(), 0), group_.size()}; }

 private:
  absl::Status Prepare(const CollectiveOptions& options);
  absl::Status CheckApart() const;
  bool NeedsComparison() const;
  MutableBytes OwnSummary();
  MutableBytes AllSummaries();
  // Poisons the group if the ranks added different operations.
  absl::Status Compare();
  // Concludes a step that ended: unpacks its result, or records its error as
  // that of the batch if it is the first.
  absl::Status Conclude(const Step& step, absl::Status status);
  absl::Status Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status FirstError() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Describe(absl::string_view which, absl::Status status) const;
  Work StartStep(const Step& step, const CollectiveOptions& options);

  ProcessGroup& group_;
  const CoalescerOptions options_;
  bool launched_ = false;
  std::vector<Operation> operations_;
  absl::Status invalid_;
  std::vector<Step> steps_;
  Summary summary_;
  std::vector<Summary> summaries_;

  mutable absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

absl::Status CoalescedBatch::Add(const CollectiveCall& call) {
  if (launched_) {
    return Describe(Name(call.desc.op),
                    absl::FailedPreconditionError(
                        "the batch was launched, so that nothing can be added; "
                        "use another Coalescer"));
  }
  const size_t index = operations_.size();
  operations_.push_back({call.desc, index});
  // For a process that is not a member, Launch returns the error.
  if (call.valid.ok() || !group_.is_member()) return absl::OkStatus();
  absl::Status status = Describe(
      absl::StrCat("coalesced operation ", index, ", ", Name(call.desc.op)),
      call.valid);
  if (invalid_.ok()) invalid_ = status;
  return status;
}

// That nothing that an operation writes is touched by another one.
absl::Status CoalescedBatch::CheckApart() const {
  // Two of each operation; one, the larger, where it is in place.
  std::vector<MemoryAccess> accesses;
  accesses.reserve(2 * operations_.size());
  for (const Operation& each : operations_) {
    const bool writes = each.call.op != CollectiveOp::kBroadcast ||
                        each.call.root != group_.rank();
    const ConstBytes sent = each.Sent(group_.size());
    const MutableBytes received = each.Received(group_.size());
    MemoryAccess send = AccessToBytes(sent.data(), sent.size(), Access::kRead);
    MemoryAccess recv = AccessToBytes(received.data(), received.size(),
                                      writes ? Access::kWrite : Access::kRead);
    if (MayShareMemory(send, recv)) {
      if (send.element_size > recv.element_size) {
        recv.data = send.data;
        recv.element_size = send.element_size;
      }
      send = {};
    }
    accesses.push_back(send);
    accesses.push_back(recv);
  }
  const auto conflict = FindConflict(accesses);
  if (!conflict) return absl::OkStatus();
  const Operation& first = operations_[conflict->first / 2];
  const Operation& second = operations_[conflict->second / 2];
  return Describe(
      "launch",
      absl::InvalidArgumentError(absl::StrCat(
          "buffers of coalesced operation ", first.index, ", ",
          Name(first.call.op), ", and of operation ", second.index, ", ",
          Name(second.call.op),
          ", overlap, and operations of a batch have no order, expected memory "
          "of its own for what each receives; use another Coalescer for one "
          "of them")));
}

absl::Status CoalescedBatch::Prepare(const CollectiveOptions& options) {
  if (launched_) {
    return Describe("launch", absl::FailedPreconditionError(
                                  "the batch was launched before; use another "
                                  "Coalescer"));
  }
  if (!options.device.is_cpu()) {
    return Describe("launch",
                    absl::UnimplementedError(absl::StrCat(
                        "the options say that the buffers are on ",
                        options.device.ToString(),
                        ", and a Coalescer packs host memory only: copy them "
                        "to the host, or make the calls one by one, sends and "
                        "receives within ProcessGroup::Batch")));
  }
  launched_ = true;
  SHERD_RETURN_IF_ERROR(invalid_);
  if (group_.is_member()) SHERD_RETURN_IF_ERROR(CheckApart());
  steps_ = PlanSteps(operations_, options_);
  if (!group_.is_member()) return absl::OkStatus();
  for (Step& step : steps_) step.Pack(group_.rank(), group_.size());
  return absl::OkStatus();
}

// Where there is one collective at least. The group refuses it to a process
// that is not a member.
bool CoalescedBatch::NeedsComparison() const {
  return std::any_of(
      operations_.begin(), operations_.end(),
      [](const Operation& each) { return !IsPointToPoint(each.call.op); });
}

MutableBytes CoalescedBatch::OwnSummary() {
  summary_ = {};
  Fingerprint all;
  all.Add(static_cast<int64_t>(options_.max_packed_block));
  all.Add(static_cast<int64_t>(options_.max_pack));
  for (const Operation& each : operations_) {
    if (IsPointToPoint(each.call.op)) continue;
    ++summary_.operations;
    summary_.bytes += each.block();
    all.Add(static_cast<int64_t>(each.call.op))
        .Add(static_cast<int64_t>(each.call.dtype))
        .Add(static_cast<int64_t>(each.call.reduction))
        .Add(each.call.root)
        .Add(static_cast<int64_t>(each.block()));
  }
  summary_.fingerprint = all.value();
  return MutableBytes(reinterpret_cast<std::byte*>(&summary_),
                      sizeof(summary_));
}

MutableBytes CoalescedBatch::AllSummaries() {
  summaries_.resize(static_cast<size_t>(group_.size()));
  return MutableBytes(reinterpret_cast<std::byte*>(summaries_.data()),
                      summaries_.size() * sizeof(Summary));
}

absl::Status CoalescedBatch::Compare() {
  const Deviation deviation = FindDeviation(std::vector<std::optional<Summary>>(
      summaries_.begin(), summaries_.end()));
  if (!deviation.Exists()) return absl::OkStatus();
  const std::string text = deviation.ToText("added", [&](int rank) {
    return summaries_[static_cast<size_t>(rank)].ToString();
  });
  const std::optional<int> failed = deviation.Rank();
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      failed ? absl::StrCat("rank ", *failed) : "a rank",
      " added other operations: ", text,
      "; all ranks must add the same, with the same lengths and options, in "
      "the same order"));
  if (failed) status = WithFailedRank(std::move(status), *failed);
  status = Describe("launch", std::move(status));
  group_.Abort(status);
  return status;
}

absl::Status CoalescedBatch::Conclude(const Step& step, absl::Status status) {
  if (status.ok()) {
    status = step.Unpack(group_.rank(), group_.size());
    if (status.ok()) return status;
    status = Describe(Name(step.kind().call.op), std::move(status));
    group_.Abort(status);
  }
  return Fail(Annotate(std::move(status), step.ToString()));
}

absl::Status CoalescedBatch::Fail(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (first_error_.ok()) first_error_ = status;
  return status;
}

absl::Status CoalescedBatch::FirstError() const {
  absl::MutexLock lock(&mutex_);
  return first_error_;
}

absl::Status CoalescedBatch::Describe(absl::string_view which,
                                      absl::Status status) const {
  ErrorInfo info;
  info.group = group_.name();
  info.operation = kLaunch;
  return WithErrorInfo(
      Annotate(std::move(status),
               absl::StrCat("group \"", group_.name(), "\", rank ",
                            group_.rank(), ", ", which)),
      info);
}

Work CoalescedBatch::StartStep(const Step& step,
                               const CollectiveOptions& options) {
  return step.Start(group_, options)
      .Then([self = shared_from_this(), &step](absl::Status status) {
        return self->Conclude(step, std::move(status));
      });
}

absl::Status CoalescedBatch::Launch(const CollectiveOptions& options) {
  SHERD_RETURN_IF_ERROR(Prepare(options));
  const Deadline deadline =
      Deadline::After(options.timeout.value_or(group_.timeout()));
  const auto left = [&] {
    return CollectiveOptions{.timeout = deadline.Remaining()};
  };
  if (NeedsComparison()) {
    SHERD_RETURN_IF_ERROR(
        group_.AllGather(OwnSummary(), AllSummaries(), left()));
    SHERD_RETURN_IF_ERROR(Compare());
  }
  // Both ends of a message may be waiting in this loop: none is waited for
  // before all are started.
  std::vector<Work> messages;
  for (const Step& step : steps_) {
    if (IsPointToPoint(step.kind().call.op)) {
      messages.push_back(StartStep(step, left()));
    } else if (!Conclude(step, step.Run(group_, left())).ok()) {
      break;
    }
  }
  // Their errors are remembered; if a collective failed, they end soon.
  (void)WhenAll(std::move(messages)).Wait();
  return FirstError();
}

Work CoalescedBatch::LaunchAsync(const CollectiveOptions& options) {
  if (absl::Status status = Prepare(options); !status.ok()) {
    return Work(std::move(status));
  }
  std::vector<Work> works;
  const auto self = shared_from_this();
  if (NeedsComparison()) {
    // Its continuation runs before the group's next operation, so that a
    // difference stops what is queued behind.
    works.push_back(group_.AllGatherAsync(OwnSummary(), AllSummaries(), options)
                        .Then([self](absl::Status status) {
                          if (status.ok()) status = self->Compare();
                          return status.ok() ? status
                                             : self->Fail(std::move(status));
                        }));
  }
  for (const Step& step : steps_) works.push_back(StartStep(step, options));
  return WhenAll(std::move(works)).Then([self](absl::Status) {
    return self->FirstError();
  });
}

}  // namespace internal

using internal::CoalescedBatch;
using internal::kLaunch;

Coalescer::Coalescer(ProcessGroup& group, const CoalescerOptions& options)
    : batch_(std::make_shared<CoalescedBatch>(group, options)) {}

Coalescer::~Coalescer() = default;

absl::Status Coalescer::AllReduce(ConstBytes send, MutableBytes recv,
                                  DType dtype, ReduceOp op) {
  return batch_->Add(internal::AllReduceCall({dtype, op}, send, recv));
}

absl::Status Coalescer::ReduceScatter(ConstBytes send, MutableBytes recv,
                                      DType dtype, ReduceOp op) {
  return batch_->Add(
      internal::ReduceScatterCall(batch_->place(), {dtype, op}, send, recv));
}

absl::Status Coalescer::Broadcast(MutableBytes buffer, int root) {
  return batch_->Add(internal::BroadcastCall(batch_->place(), buffer, root));
}

absl::Status Coalescer::AllGather(ConstBytes send, MutableBytes recv) {
  return batch_->Add(internal::AllGatherCall(batch_->place(), send, recv));
}

absl::Status Coalescer::Send(ConstBytes send, int destination, int64_t tag) {
  return batch_->Add(
      internal::SendCall(batch_->place(), send, destination, tag));
}

absl::Status Coalescer::Recv(MutableBytes recv, int source, int64_t tag) {
  return batch_->Add(internal::RecvCall(batch_->place(), recv, source, tag));
}

absl::Status Coalescer::Launch(const CollectiveOptions& options) {
  return InOperation(kLaunch, batch_->Launch(options));
}

Work Coalescer::LaunchAsync(const CollectiveOptions& options) {
  return batch_->LaunchAsync(options).Then([](absl::Status status) {
    return InOperation(kLaunch, std::move(status));
  });
}

int Coalescer::num_operations() const { return batch_->num_operations(); }

int Coalescer::num_calls() const { return batch_->num_calls(); }

}  // namespace sherd
