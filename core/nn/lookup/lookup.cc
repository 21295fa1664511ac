#include "sherd/core/nn/lookup.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/nn/lookup/lookup_place.h"
#include "sherd/core/nn/lookup/lookup_plan.h"
#include "sherd/core/nn/lookup/max_norm.h"
#include "sherd/core/nn/lookup/own_ops.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/sharding/sharded_op_registry.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/device.h"

namespace sherd {
namespace {

using internal::LookUpPlan;
using internal::LookUpPlans;
using internal::OfTable;
using internal::PlannedTable;

using GroupPtr = std::shared_ptr<ProcessGroup>;

absl::Status CheckWritable(const EmbeddingTable& table) {
  bool writable = true;
  if (const auto* const tensor = std::get_if<Tensor>(&table)) {
    writable = tensor->numel() == 0 || tensor->writable();
  } else {
    for (const Shard& shard : std::get<ShardedTensor>(table).local_shards()) {
      writable &= shard.tensor.numel() == 0 || shard.tensor.writable();
    }
  }
  if (writable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "max_norm scales rows of the table, which may not be written to");
}

// Sets `result` to `output`, or to a new tensor.
absl::Status SetOutput(const Tensor& output, const Dims& size, DType dtype,
                       const Device& device, Tensor& result) {
  SHERD_RETURN_IF_ERROR(internal::CheckOutput(output, size, dtype, device));
  if (output.defined()) {
    result = output;
    return absl::OkStatus();
  }
  SHERD_ASSIGN_OR_RETURN(
      result, Tensor::Empty(size, {.dtype = dtype, .device = device}));
  return absl::OkStatus();
}

// One call with a plan.
class LookUpCall {
 public:
  LookUpCall(const absl::Status& local, absl::Span<const TableLookUp> lookups,
             absl::Span<Tensor> outputs, const LookUpOptions& options,
             internal::TableNumbers numbers, const GroupPtr& group,
             LookUpPlan& plan)
      : local_(local),
        lookups_(lookups),
        outputs_(outputs),
        options_(options),
        numbers_(numbers),
        group_(group),
        plan_(plan) {}

  absl::Status Run();
  // Whether the plan is one for the call's tables.
  bool planned() const { return planned_; }

 private:
  absl::Status Prepare();
  // Agrees with the other ranks that all can proceed, and chooses the path.
  absl::Status AgreeOnPath(const absl::Status& local);
  // Gathers everyone's note: `number`, and the lengths of requests.
  absl::Status Vote(const absl::Status& local, uint64_t number);
  void CollectMessages();
  absl::Status Renormalize();
  absl::Status Read();
  absl::Status ReadDirectly();
  absl::Status ReadByMessages();
  absl::Status Pool(PlannedTable& table);
  absl::Status Pass(FaultPoint point) const;
  // After an error that broke the group: others may still be reading.
  void KeepShards() const;

  bool alone() const { return group_ == nullptr || group_->size() == 1; }
  bool on_host() const { return place_.device.is_cpu(); }
  // All ranks answer alike.
  bool may_be_direct() const {
    return options_.direct && group_->one_host() && on_host();
  }
  CollectiveOptions collective() const {
    CollectiveOptions result;
    result.timeout = options_.timeout;
    return result;
  }

  const absl::Status& local_;
  const absl::Span<const TableLookUp> lookups_;
  const absl::Span<Tensor> outputs_;
  const LookUpOptions& options_;
  const internal::TableNumbers numbers_;
  const GroupPtr& group_;
  LookUpPlan& plan_;
  internal::LookUpPlace place_;
  bool planned_ = false;
  bool direct_ = true;
  bool collected_ = false;
  LookUpStats stats_;
};

absl::Status LookUpCall::Prepare() {
  SHERD_RETURN_IF_ERROR(local_);
  SHERD_RETURN_IF_ERROR(
      plan_.Set(lookups_, planned_, &place_.device, numbers_));
  for (size_t t = 0; t < lookups_.size(); ++t) {
    if (!lookups_[t].options.max_norm) continue;
    if (!on_host()) {
      return OfTable(t,
                     absl::UnimplementedError(absl::StrCat(
                         "max_norm: the table is on ", place_.device.ToString(),
                         ", expected it in host memory")),
                     numbers_);
    }
    SHERD_RETURN_IF_ERROR(
        OfTable(t, CheckWritable(lookups_[t].table), numbers_));
  }
  for (size_t t = 0; t < lookups_.size(); ++t) {
    PlannedTable& table = plan_.tables()[t];
    SHERD_RETURN_IF_ERROR(
        OfTable(t,
                SetOutput(outputs_[t], table.bags.ResultSize(table.columns),
                          table.dtype, place_.device, table.output),
                numbers_));
  }
  return absl::OkStatus();
}

absl::Status LookUpCall::Pass(FaultPoint point) const {
  if (!FaultPointsAreArmed()) return absl::OkStatus();
  return MaybeInjectFault(
      {.point = point,
       .rank = group_ == nullptr ? -1 : group_->world_ranks()[group_->rank()],
       .subject = LookUpOp::kName});
}

void LookUpCall::CollectMessages() {
  if (!plan_.messages().planned()) {
    plan_.messages().Plan(plan_.tables(), group_->rank(), group_->size());
  }
  plan_.messages().Collect(plan_.tables());
  collected_ = true;
}

absl::Status LookUpCall::Vote(const absl::Status& local, uint64_t number) {
  const auto ranks = static_cast<size_t>(group_->size());
  const uint64_t fingerprint =
      Fingerprint()
          .Add(options_.direct ? 1 : 0)
          .Add(static_cast<int64_t>(plan_.FingerprintOfCall()))
          .value();
  absl::Span<uint64_t> note = plan_.Note(ranks + 2);
  std::fill(note.begin(), note.end(), 0);
  note[0] = number;
  note[1] = LookUpPlans::Get().NextExchange();
  if (collected_) {
    const absl::Span<const uint64_t> lengths = plan_.messages().lengths();
    std::copy(lengths.begin(), lengths.end(), note.begin() + 2);
  }
  absl::Span<uint64_t> notes = plan_.Notes(ranks * note.size());
  const auto describe = [this] {
    return absl::StrCat("direct ", options_.direct ? "true" : "false", "\n",
                        plan_.Describe(lookups_, numbers_));
  };
  return AgreeAndGather(
      *group_, LookUpOp::kName, local, {local.ok() ? fingerprint : 0, describe},
      ConstBytes(reinterpret_cast<const std::byte*>(note.data()),
                 note.size() * sizeof(uint64_t)),
      MutableBytes(reinterpret_cast<std::byte*>(notes.data()),
                   notes.size() * sizeof(uint64_t)),
      collective());
}

absl::Status LookUpCall::AgreeOnPath(const absl::Status& local) {
  const bool known = plan_.exchange() != 0;
  direct_ = alone() || (may_be_direct() && (!known || plan_.direct()));
  if (local.ok() && !direct_) CollectMessages();
  // Devices have no addresses to exchange, but may differ from the group's.
  SHERD_RETURN_IF_ERROR(Vote(local, on_host() ? plan_.exchange()
                                              : uint64_t{internal::GroupMoves(
                                                    *group_, place_.device)}));
  if (alone()) return absl::OkStatus();
  absl::Span<const uint64_t> notes = plan_.notes();
  const size_t length = static_cast<size_t>(group_->size()) + 2;
  if (!on_host()) {
    place_.moved_by_group = true;
    for (size_t at = 0; at < notes.size(); at += length) {
      place_.moved_by_group &= notes[at] == 1;
    }
  }
  if (!may_be_direct()) return absl::OkStatus();
  bool same = notes[0] != 0;
  uint64_t next = 0;
  for (size_t at = 0; at < notes.size(); at += length) {
    same = same && notes[at] == notes[0];
    next = std::max(next, notes[at + 1]);
  }
  if (same) return absl::OkStatus();
  // The tables are new to a rank: all exchange their addresses.
  LookUpPlans::Get().TookPartIn(next);
  absl::Status mapped;
  SHERD_RETURN_IF_ERROR(InOperation(
      LookUpOp::kName, plan_.ExchangeAddresses(*group_, collective(), mapped),
      group_->name()));
  if (!mapped.ok() && !absl::IsUnimplemented(mapped)) {
    SHERD_LOG(kWarning) << "look_up by messages, since rows cannot be read: "
                        << mapped;
  }
  CollectMessages();
  SHERD_RETURN_IF_ERROR(Vote(absl::OkStatus(), mapped.ok() ? 1 : 0));
  direct_ = true;
  for (size_t at = 0; at < notes.size(); at += length) {
    direct_ = direct_ && notes[at] == 1;
  }
  plan_.SetExchange(next, direct_);
  return absl::OkStatus();
}

absl::Status LookUpCall::Renormalize() {
  for (PlannedTable& table : plan_.tables()) {
    if (!table.options.max_norm) continue;
    SHERD_RETURN_IF_ERROR(internal::Renormalize(
        table, table.shared ? group_.get() : nullptr, collective(), direct_));
  }
  return absl::OkStatus();
}

absl::Status LookUpCall::Pool(PlannedTable& table) {
  const internal::BagView& bags = table.bags;
  Tensor& output = table.output;
  if (output.numel() == 0) return absl::OkStatus();
  // No rows, and so no ids.
  if (table.strips.empty()) return output.Fill(0);
  return plan_.pool().Run(
      {.ids = bags.ids(),
       .bags = bags.bags(),
       .padding = bags.padding(),
       .begin = [&](int64_t b) { return bags.begin(b); },
       .weighted = bags.weighted(),
       .copy_weights = [&](int64_t begin, int64_t end,
                           void* to) { bags.CopyWeights(begin, end, to); }},
      table.readable,
      {.mode = table.options.mode,
       .table = table.dtype,
       .dtype = table.dtype,
       .device = place_.device,
       .data = static_cast<std::byte*>(output.data()),
       .stride = table.columns * static_cast<int64_t>(output.element_size())});
}

absl::Status LookUpCall::ReadDirectly() {
  stats_.direct = true;
  absl::Status status = Pass(FaultPoint::kBeforeShardCopy);
  for (PlannedTable& table : plan_.tables()) {
    if (status.ok()) status = Pool(table);
  }
  if (status.ok()) status = Pass(FaultPoint::kAfterShardCopy);
  if (alone()) return status;
  // After this no rank reads the others' shards.
  return Agree(*group_, LookUpOp::kName, status, {}, collective());
}

absl::Status LookUpCall::ReadByMessages() {
  const auto ranks = static_cast<size_t>(group_->size());
  const auto rank = static_cast<size_t>(group_->rank());
  absl::Span<uint64_t> received = plan_.Note(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    const auto lengths = plan_.notes().subspan(r * (ranks + 2) + 2, ranks);
    // All ranks see all lengths, and an error of one is that of all.
    SHERD_RETURN_IF_ERROR(
        internal::CheckMessageLengths(static_cast<int>(r), lengths));
    received[r] = lengths[rank];
  }
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforeShardCopy));
  for (PlannedTable& table : plan_.tables()) {
    if (table.shared && !table.strips.empty()) continue;
    SHERD_RETURN_IF_ERROR(Pool(table));
  }
  SHERD_RETURN_IF_ERROR(plan_.messages().Run(*group_, collective(), place_,
                                             absl::MakeSpan(plan_.tables()),
                                             received, plan_.pool(), stats_));
  return Pass(FaultPoint::kAfterShardCopy);
}

absl::Status LookUpCall::Read() {
  absl::Status status = Renormalize();
  if (status.ok()) status = direct_ ? ReadDirectly() : ReadByMessages();
  if (status.ok() || group_ == nullptr) return status;
  // The other ranks rely on this one to continue, as agreed.
  if (!direct_ && group_->health().ok()) group_->Abort(status);
  return InOperation(LookUpOp::kName, status, group_->name());
}

void LookUpCall::KeepShards() const {
  if (group_ == nullptr || group_->health().ok() ||
      !group_->backend().ranks_are_threads) {
    return;
  }
  for (const TableLookUp& lookup : lookups_) {
    const auto* const table = std::get_if<ShardedTensor>(&lookup.table);
    if (table == nullptr || !table->defined()) continue;
    for (const Shard& shard : table->local_shards()) {
      internal::KeepForever(shard.tensor.storage());
    }
  }
}

absl::Status LookUpCall::Run() {
  absl::Status status = Prepare();
  if (group_ != nullptr) status = AgreeOnPath(status);
  if (status.ok()) {
    status = Read();
    internal::MarkUsed(place_.device, lookups_, plan_.tables());
  }
  if (!status.ok()) {
    KeepShards();
    return status;
  }
  for (size_t t = 0; t < outputs_.size(); ++t) {
    if (!outputs_[t].defined()) outputs_[t] = plan_.tables()[t].output;
  }
  if (options_.stats != nullptr) *options_.stats = stats_;
  return absl::OkStatus();
}

absl::Status LookUpTogether(const absl::Status& local,
                            absl::Span<const TableLookUp> lookups,
                            absl::Span<Tensor> outputs,
                            const LookUpOptions& options,
                            internal::TableNumbers numbers) {
  if (lookups.empty()) return local;
  const GroupPtr group = internal::GroupOf(lookups);
  if (group != nullptr) {
    SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, LookUpOp::kName));
  }
  LookUpPlans::Taken taken = LookUpPlans::Get().Take(group, lookups);
  LookUpCall call(local, lookups, outputs, options, numbers, group,
                  taken.front());
  absl::Status status = call.Run();
  taken.front().EndCall();
  if (call.planned()) LookUpPlans::Get().Return(group, std::move(taken));
  return status;
}

absl::Status LookUpChecked(const absl::Status& local,
                           absl::Span<const TableLookUp> lookups,
                           absl::Span<Tensor> outputs,
                           const LookUpOptions& options,
                           internal::TableNumbers numbers = {}) {
  if (!RegisteredSpecs<LookUpOp>().empty()) {
    const GroupPtr group = internal::GroupOf(lookups);
    absl::Status checked = local;
    checked.Update(internal::CheckGroups(lookups, group.get(), numbers));
    return internal::LookUpWithOwnOps(checked, group.get(), lookups, outputs,
                                      options, numbers, LookUpTogether);
  }
  return LookUpTogether(local, lookups, outputs, options, numbers);
}

}  // namespace

absl::string_view Name(BagMode mode) {
  switch (mode) {
    case BagMode::kSum:
      return "sum";
    case BagMode::kMean:
      return "mean";
    case BagMode::kMax:
      return "max";
    case BagMode::kNone:
      return "none";
  }
  return "(no mode)";
}

absl::Status LookUpInto(absl::Span<const TableLookUp> lookups,
                        absl::Span<Tensor> outputs,
                        const LookUpOptions& options) {
  if (lookups.size() != outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("look_up: expected an output for each of ", lookups.size(),
                     " tables, got ", outputs.size()));
  }
  return InOperation(LookUpOp::kName, LookUpChecked(absl::OkStatus(), lookups,
                                                    outputs, options));
}

absl::Status internal::LookUpAfter(const absl::Status& local,
                                   absl::Span<const TableLookUp> lookups,
                                   absl::Span<Tensor> outputs,
                                   TableNumbers numbers) {
  return LookUpChecked(local, lookups, outputs, {}, numbers);
}

absl::StatusOr<std::vector<Tensor>> LookUp(
    absl::Span<const TableLookUp> lookups, const LookUpOptions& options) {
  std::vector<Tensor> outputs(lookups.size());
  SHERD_RETURN_IF_ERROR(LookUpInto(lookups, absl::MakeSpan(outputs), options));
  return outputs;
}

}  // namespace sherd
