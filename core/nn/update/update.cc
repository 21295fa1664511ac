#include "sherd/core/nn/update.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/nn/lookup/lookup_plan.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/nn/update/update_checks.h"
#include "sherd/core/nn/update/update_plan.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd {
namespace {

using internal::GradientMessages;
using internal::LookUpPlan;
using internal::LookUpPlans;
using internal::OfTable;
using internal::PeerBytes;
using internal::PlannedTable;
using internal::PreparedAccumulator;
using internal::UpdatePlan;

using GroupPtr = std::shared_ptr<ProcessGroup>;

constexpr absl::string_view kOperation = "update";

class UpdateCall {
 public:
  UpdateCall(absl::Span<const TableLookUp> lookups,
             absl::Span<const Tensor> gradients, const UpdateOptions& options,
             const GroupPtr& group, LookUpPlan& plan)
      : lookups_(lookups),
        gradients_(gradients),
        options_(options),
        group_(group),
        plan_(plan),
        mine_(*plan.update()) {}

  absl::Status Run(const absl::Status& local);
  // Whether the plan is one for the call's tables.
  bool planned() const { return planned_; }

 private:
  absl::Status Prepare();
  absl::Status CheckApart();
  absl::Status PrepareAccumulators();
  // Writes this rank's messages to its outbox.
  absl::Status Encode(bool direct);
  // Agrees with the other ranks that all can proceed, and chooses the path.
  absl::Status AgreeOnPath(absl::Status local);
  absl::Status Vote(const absl::Status& local, bool direct);
  // Takes the accumulators that Prepare made.
  absl::Status TakeAccumulators();
  absl::Status Receive();
  absl::Status ExchangeMessages();
  // Makes room in an inbox, as all ranks do: agrees with them if one of them
  // needs memory for that.
  absl::Status MakeRoom(PeerBytes& inbox, size_t bytes, bool any_needs_memory);
  absl::Status ExchangeSums();
  absl::Status AgreeOnSums(absl::Status local);
  absl::Status Apply();
  absl::Status Pass(FaultPoint point) const;
  uint64_t FingerprintOfCall() const;
  std::string Describe() const;

  bool alone() const { return group_ == nullptr || group_->size() == 1; }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  size_t ranks() const {
    return group_ == nullptr ? 1 : static_cast<size_t>(group_->size());
  }
  // The words of a vote: the note of the outbox, whether it is a message for
  // all, the inbox's capacity, and the lengths of messages for each rank.
  static constexpr size_t kDirect = PeerBytes::kWords;
  static constexpr size_t kCapacity = PeerBytes::kWords + 1;
  static constexpr size_t kLengths = PeerBytes::kWords + 2;
  // Of the vote about sums: the note, and the capacity of their inbox.
  static constexpr size_t kSumsWords = PeerBytes::kWords + 1;
  size_t vote_words() const { return kLengths + ranks(); }
  CollectiveOptions collective() const {
    CollectiveOptions result;
    result.timeout = options_.timeout;
    return result;
  }

  const absl::Span<const TableLookUp> lookups_;
  const absl::Span<const Tensor> gradients_;
  const UpdateOptions& options_;
  const GroupPtr& group_;
  LookUpPlan& plan_;
  UpdatePlan& mine_;
  bool planned_ = false;
  bool direct_ = true;
  // The ranks agreed that one cannot go on, before a table changed.
  bool all_failed_ = false;
};

absl::Status UpdateCall::Prepare() {
  SHERD_RETURN_IF_ERROR(internal::CheckUpdateOptions(options_));
  if (gradients_.size() != lookups_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a gradient for each of ", lookups_.size(),
                     " lookups, got ", gradients_.size()));
  }
  SHERD_RETURN_IF_ERROR(plan_.Set(lookups_, planned_));
  mine_.PlanFor(plan_.tables());
  mine_.gradients.resize(lookups_.size());
  for (size_t t = 0; t < lookups_.size(); ++t) {
    SHERD_RETURN_IF_ERROR(
        OfTable(t, internal::HoldGradient(gradients_[t], plan_.tables()[t],
                                          mine_.gradients[t])));
    SHERD_RETURN_IF_ERROR(
        OfTable(t, internal::CheckTableWritable(lookups_[t].table)));
  }
  internal::FindSameTables(lookups_, mine_.by_identity, mine_.same);
  SHERD_RETURN_IF_ERROR(CheckApart());
  return PrepareAccumulators();
}

absl::Status UpdateCall::CheckApart() {
  // The shards of a plan stay where they are.
  Fingerprint memory;
  for (size_t t = 0; t < lookups_.size(); ++t) {
    const PlannedTable& table = plan_.tables()[t];
    memory.Add(static_cast<int64_t>(mine_.same[t]));
    if (!table.plain) continue;
    memory.Add(std::bit_cast<int64_t>(table.shards[0].data))
        .Add(table.shards[0].stride)
        .Add(table.rows)
        .Add(table.columns * static_cast<int64_t>(SizeOf(table.dtype)));
  }
  if (mine_.apart == memory.value()) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(internal::CheckTablesApart(lookups_, mine_.same));
  mine_.apart = memory.value();
  return absl::OkStatus();
}

absl::Status UpdateCall::PrepareAccumulators() {
  mine_.prepared.resize(lookups_.size());
  for (size_t t = 0; t < lookups_.size(); ++t) {
    mine_.prepared[t] = {};
    if (mine_.same[t] != t) continue;
    absl::StatusOr<PreparedAccumulator> prepared = internal::PrepareAccumulator(
        lookups_[t].table, plan_.tables()[t], options_.rule);
    SHERD_RETURN_IF_ERROR(OfTable(t, prepared.status()));
    mine_.prepared[t] = *std::move(prepared);
  }
  return absl::OkStatus();
}

uint64_t UpdateCall::FingerprintOfCall() const {
  Fingerprint fingerprint;
  fingerprint.Add(options_.direct ? 1 : 0)
      .Add(static_cast<int64_t>(options_.rule))
      .Add(std::bit_cast<int64_t>(options_.learning_rate))
      .Add(std::bit_cast<int64_t>(options_.eps))
      .Add(static_cast<int64_t>(plan_.FingerprintOfCall()));
  for (size_t t = 0; t < lookups_.size(); ++t) {
    const PreparedAccumulator& prepared = mine_.prepared[t];
    const bool shared = plan_.tables()[t].shared;
    fingerprint.Add(shared ? static_cast<int64_t>(mine_.same[t]) : -1)
        .Add(shared && prepared.is_new ? 1 : 0)
        .Add(shared && prepared.from_whole ? 1 : 0)
        .Add(prepared.moves_from.defined()
                 ? static_cast<int64_t>(prepared.moves_from.fingerprint())
                 : 0);
  }
  return fingerprint.value();
}

std::string UpdateCall::Describe() const {
  std::string text = absl::StrCat(
      "direct ", options_.direct ? "true" : "false", ", rule ",
      Name(options_.rule), ", learning rate ", options_.learning_rate, ", eps ",
      options_.eps, "\n", plan_.Describe(lookups_));
  for (size_t t = 0; t < lookups_.size(); ++t) {
    const PreparedAccumulator& prepared = mine_.prepared[t];
    absl::StrAppend(&text, "table ", t, " is that of lookup ", mine_.same[t],
                    " and has ",
                    prepared.moves_from.defined() ? "an accumulator to move"
                    : prepared.from_whole ? "an accumulator that is a Tensor"
                    : prepared.is_new     ? "a new accumulator"
                                          : "its accumulator",
                    "\n");
  }
  return text;
}

absl::Status UpdateCall::Pass(FaultPoint point) const {
  if (!FaultPointsAreArmed()) return absl::OkStatus();
  return MaybeInjectFault(
      {.point = point,
       .rank = group_ == nullptr ? -1 : group_->world_ranks()[group_->rank()],
       .subject = kOperation});
}

absl::Status UpdateCall::Encode(bool direct) {
  std::optional<GradientMessages>& messages = mine_.messages(direct);
  if (!messages) {
    messages.emplace();
    messages->Plan(plan_.tables(), rank(), static_cast<int>(ranks()), direct);
  }
  messages->Collect(plan_.tables());
  size_t bytes = 0;
  for (const uint64_t length : messages->lengths()) bytes += length;
  SHERD_RETURN_IF_ERROR(
      mine_.outbox.Resize(alone() ? nullptr : group_.get(), bytes));
  mine_.writers.clear();
  std::byte* to = mine_.outbox.data();
  for (const uint64_t length : messages->lengths()) {
    mine_.writers.push_back(length == 0 ? nullptr : to);
    to += length;
  }
  messages->Write(plan_.tables(), mine_.gradients, mine_.writers);
  return absl::OkStatus();
}

absl::Status UpdateCall::Vote(const absl::Status& local, bool direct) {
  mine_.note.assign(vote_words(), 0);
  mine_.outbox.WriteNote(absl::MakeSpan(mine_.note));
  mine_.note[kDirect] = direct ? 1 : 0;
  mine_.note[kCapacity] = mine_.inbox.capacity();
  if (local.ok() && !direct) {
    const absl::Span<const uint64_t> lengths = mine_.messages(false)->lengths();
    std::copy(lengths.begin(), lengths.end(), mine_.note.begin() + kLengths);
  }
  mine_.notes.resize(ranks() * vote_words());
  const auto describe = [this] { return Describe(); };
  return AgreeAndGather(
      *group_, kOperation, local,
      {local.ok() ? FingerprintOfCall() : 0, describe},
      ConstBytes(reinterpret_cast<const std::byte*>(mine_.note.data()),
                 mine_.note.size() * sizeof(uint64_t)),
      MutableBytes(reinterpret_cast<std::byte*>(mine_.notes.data()),
                   mine_.notes.size() * sizeof(uint64_t)),
      collective());
}

absl::Status UpdateCall::AgreeOnPath(absl::Status local) {
  bool direct =
      alone() || (options_.direct && group_->one_host() && !mine_.unreachable);
  bool encoded = false;
  // At most three times: messages for all that must be mapped first, and if a
  // rank cannot, messages for each rank.
  for (;;) {
    if (local.ok() && !encoded) local = Encode(direct);
    encoded = true;
    if (group_ == nullptr) return InOperation(kOperation, local);
    SHERD_RETURN_IF_ERROR(Vote(local, direct));
    size_t direct_ranks = 0;
    for (size_t r = 0; r < ranks(); ++r) {
      direct_ranks += mine_.notes[r * vote_words() + kDirect];
    }
    direct_ = direct;
    if (alone() || direct_ranks == 0) return absl::OkStatus();
    absl::Status mapped = absl::UnimplementedError("");
    if (direct_ranks == ranks() &&
        PeerBytes::Reachable(mine_.notes, vote_words())) {
      if (PeerBytes::Mapped(mine_.notes, vote_words())) return absl::OkStatus();
      mapped = mine_.outbox.Map(*group_, mine_.notes, vote_words());
      if (mapped.ok()) continue;
      SHERD_LOG(kWarning) << "update by messages, since the others' gradients "
                             "cannot be read: "
                          << mapped;
    }
    mine_.unreachable = true;
    encoded = encoded && !direct;
    direct = false;
  }
}

absl::Status UpdateCall::TakeAccumulators() {
  for (PreparedAccumulator& prepared : mine_.prepared) {
    if (!prepared.moves_from.defined()) continue;
    SHERD_RETURN_IF_ERROR(
        prepared.moves_from.ReshardInto(*prepared.value.get_if<ShardedTensor>(),
                                        {.timeout = options_.timeout}));
  }
  mine_.accumulators.clear();
  for (size_t t = 0; t < lookups_.size(); ++t) {
    PreparedAccumulator& prepared = mine_.prepared[t];
    if (prepared.is_new) SetAccumulator(lookups_[t].table, prepared.value);
    mine_.accumulators.push_back(std::move(prepared.value));
  }
  return absl::OkStatus();
}

absl::Status UpdateCall::MakeRoom(PeerBytes& inbox, size_t bytes,
                                  bool any_needs_memory) {
  absl::Status status = inbox.Resize(nullptr, bytes);
  if (any_needs_memory) {
    status = Agree(*group_, kOperation, status, {}, collective());
    all_failed_ = !status.ok();
  }
  return status;
}

absl::Status UpdateCall::ExchangeMessages() {
  const absl::Span<const uint64_t> lengths = mine_.messages(false)->lengths();
  const auto lengths_of = [&](size_t r) {
    return absl::MakeConstSpan(mine_.notes)
        .subspan(r * vote_words() + kLengths, ranks());
  };
  const auto from = [&](size_t r) {
    return lengths_of(r)[static_cast<size_t>(rank())];
  };
  for (size_t r = 0; r < ranks(); ++r) {
    SHERD_RETURN_IF_ERROR(
        internal::CheckMessageLengths(static_cast<int>(r), lengths_of(r)));
  }
  size_t bytes = 0;
  bool any_needs_memory = false;
  for (size_t to = 0; to < ranks(); ++to) {
    size_t sum = 0;
    for (size_t r = 0; r < ranks(); ++r) sum += lengths_of(r)[to];
    any_needs_memory |= sum > mine_.notes[to * vote_words() + kCapacity];
    if (static_cast<int>(to) == rank()) bytes = sum;
  }
  SHERD_RETURN_IF_ERROR(MakeRoom(mine_.inbox, bytes, any_needs_memory));
  mine_.sends.resize(ranks());
  mine_.recvs.resize(ranks());
  mine_.received.resize(ranks());
  std::byte* in = mine_.inbox.data();
  std::byte* out = mine_.outbox.data();
  for (size_t r = 0; r < ranks(); ++r) {
    // What a rank sends to itself stays where it is.
    const bool own = static_cast<int>(r) == rank();
    mine_.sends[r] = ConstBytes(out, own ? 0 : lengths[r]);
    mine_.recvs[r] = MutableBytes(in, own ? 0 : from(r));
    mine_.received[r] =
        own ? ConstBytes(out, lengths[r]) : ConstBytes(mine_.recvs[r]);
    out += lengths[r];
    in += mine_.recvs[r].size();
  }
  return group_->AllToAllV(mine_.sends, mine_.recvs, collective());
}

absl::Status UpdateCall::Receive() {
  GradientMessages& messages = *mine_.messages(direct_);
  if (group_ == nullptr) {
    mine_.received.assign(1, {mine_.outbox.data(), messages.lengths()[0]});
  } else if (direct_) {
    SHERD_RETURN_IF_ERROR(
        mine_.outbox.Read(rank(), mine_.notes, vote_words(), mine_.received));
  } else {
    SHERD_RETURN_IF_ERROR(ExchangeMessages());
  }
  for (size_t r = 0; r < ranks(); ++r) {
    SHERD_RETURN_IF_ERROR(
        messages.Read(plan_.tables(), static_cast<int>(r), mine_.received[r]));
  }
  return absl::OkStatus();
}

absl::Status UpdateCall::AgreeOnSums(absl::Status local) {
  mine_.note.resize(kSumsWords);
  mine_.notes.resize(ranks() * kSumsWords);
  mine_.note[PeerBytes::kWords] = mine_.sums_inbox.capacity();
  for (;;) {
    mine_.sums.WriteNote(absl::MakeSpan(mine_.note));
    SHERD_RETURN_IF_ERROR(AgreeAndGather(
        *group_, kOperation, local, {},
        ConstBytes(reinterpret_cast<const std::byte*>(mine_.note.data()),
                   mine_.note.size() * sizeof(uint64_t)),
        MutableBytes(reinterpret_cast<std::byte*>(mine_.notes.data()),
                     mine_.notes.size() * sizeof(uint64_t)),
        collective()));
    if (!direct_ || PeerBytes::Mapped(mine_.notes, kSumsWords)) {
      return absl::OkStatus();
    }
    local = mine_.sums.Map(*group_, mine_.notes, kSumsWords);
    // Later calls use messages.
    mine_.unreachable = !local.ok();
  }
}

absl::Status UpdateCall::ExchangeSums() {
  internal::ShardUpdates& shards = *mine_.shards;
  size_t bytes = 0;
  absl::Status status = shards.Collect(*mine_.messages(direct_), bytes);
  if (status.ok()) {
    status = mine_.sums.Resize(alone() ? nullptr : group_.get(), bytes);
  }
  if (status.ok()) shards.WriteSums(mine_.sums.data());
  if (alone() || !shards.exchanges_squares()) {
    // No other rank waits, and no table has changed.
    all_failed_ = alone() && !status.ok();
    SHERD_RETURN_IF_ERROR(status);
    mine_.received.assign(ranks(), {});
    mine_.received[static_cast<size_t>(rank())] = {mine_.sums.data(), bytes};
    return shards.ReadSums(mine_.received);
  }
  status = AgreeOnSums(std::move(status));
  all_failed_ = !status.ok();
  SHERD_RETURN_IF_ERROR(status);
  if (direct_) {
    SHERD_RETURN_IF_ERROR(
        mine_.sums.Read(rank(), mine_.notes, kSumsWords, mine_.received));
    return shards.ReadSums(mine_.received);
  }
  size_t all = 0;
  uint64_t least_capacity = UINT64_MAX;
  for (size_t r = 0; r < ranks(); ++r) {
    const uint64_t length = PeerBytes::Bytes(mine_.notes, kSumsWords, r);
    SHERD_RETURN_IF_ERROR(internal::CheckMessageLengths(
        static_cast<int>(r), absl::MakeConstSpan(&length, 1)));
    all += length;
    least_capacity = std::min(least_capacity,
                              mine_.notes[r * kSumsWords + PeerBytes::kWords]);
  }
  SHERD_RETURN_IF_ERROR(MakeRoom(mine_.sums_inbox, all, all > least_capacity));
  std::byte* to = mine_.sums_inbox.data();
  for (size_t r = 0; r < ranks(); ++r) {
    mine_.recvs[r] =
        MutableBytes(to, PeerBytes::Bytes(mine_.notes, kSumsWords, r));
    mine_.received[r] = mine_.recvs[r];
    to += mine_.recvs[r].size();
  }
  SHERD_RETURN_IF_ERROR(group_->AllGatherV(ConstBytes(mine_.sums.data(), bytes),
                                           mine_.recvs, collective()));
  return shards.ReadSums(mine_.received);
}

absl::Status UpdateCall::Apply() {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforeShardCopy));
  SHERD_RETURN_IF_ERROR(Receive());
  if (!mine_.shards) mine_.shards.emplace().Plan(plan_.tables(), rank());
  mine_.shards->Begin(plan_.tables(), mine_.same, mine_.accumulators, options_);
  if (mine_.shards->adds_squares()) SHERD_RETURN_IF_ERROR(ExchangeSums());
  SHERD_RETURN_IF_ERROR(mine_.shards->Apply(*mine_.messages(direct_)));
  return Pass(FaultPoint::kAfterShardCopy);
}

absl::Status UpdateCall::Run(const absl::Status& local) {
  SHERD_RETURN_IF_ERROR(AgreeOnPath(local.ok() ? Prepare() : local));
  SHERD_RETURN_IF_ERROR(TakeAccumulators());
  absl::Status status = Apply();
  // After this no rank reads the others' gradients.
  if (status.ok() && !alone() && direct_) {
    status = Agree(*group_, kOperation, status, {}, collective());
  }
  if (status.ok() || group_ == nullptr) {
    return InOperation(kOperation, status);
  }
  // The other ranks rely on this one to continue, as agreed.
  if (!all_failed_ && group_->health().ok()) group_->Abort(status);
  if (!group_->health().ok() && group_->backend().ranks_are_threads) {
    mine_.outbox.KeepForever();
    mine_.sums.KeepForever();
  }
  return InOperation(kOperation, status, group_->name());
}

}  // namespace

absl::string_view Name(SparseRule rule) {
  switch (rule) {
    case SparseRule::kSgd:
      return "sgd";
    case SparseRule::kAdagrad:
      return "adagrad";
    case SparseRule::kRowWiseAdagrad:
      return "rowwise_adagrad";
  }
  return "(no rule)";
}

absl::Status Update(absl::Span<const TableLookUp> lookups,
                    absl::Span<const Tensor> gradients,
                    const UpdateOptions& options) {
  return internal::UpdateAfter(absl::OkStatus(), lookups, gradients, options);
}

absl::Status internal::UpdateAfter(const absl::Status& local,
                                   absl::Span<const TableLookUp> lookups,
                                   absl::Span<const Tensor> gradients,
                                   const UpdateOptions& options) {
  const GroupPtr group = internal::GroupOf(lookups);
  if (group != nullptr) {
    SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, kOperation));
  }
  LookUpPlans::Taken taken = LookUpPlans::Get().Take(group, lookups);
  std::shared_ptr<UpdatePlan>& mine = taken.front().update();
  if (mine == nullptr) mine = std::make_shared<UpdatePlan>();
  UpdateCall call(lookups, gradients, options, group, taken.front());
  absl::Status status = call.Run(local);
  taken.front().EndCall();
  mine->EndCall();
  if (call.planned()) LookUpPlans::Get().Return(group, std::move(taken));
  return status;
}

}  // namespace sherd
