#include "sherd/core/sharding/transfer/reshard_executor.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/plan/message_rounds.h"
#include "sherd/core/sharding/transfer/box_copier.h"
#include "sherd/core/sharding/transfer/direct_move.h"
#include "sherd/core/sharding/transfer/message_move.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/memory_overlap.h"

namespace sherd {
namespace {

using internal::DirectMove;
using internal::DirectOffer;
using internal::MessageMove;
using internal::Reduction;
using internal::ShardTable;
using internal::TransferChooser;
using internal::TransferDecision;
using internal::TransferOffer;
using internal::TransferSituation;

using Offers = std::vector<DirectOffer>;

// The offer of a rank across hosts, where no rank reaches another one's memory.
struct ShortOffer {
  // TransferOffer::Ability.
  uint64_t abilities = 0;
  int64_t rounds = 0;

  operator TransferOffer() const {  // NOLINT(google-explicit-constructor)
    return {.abilities = abilities, .rounds = rounds};
  }
};

template <typename Offer>
TransferDecision Decide(const TransferSituation& situation,
                        const std::vector<Offer>& offers) {
  TransferChooser chooser(situation);
  for (const Offer& offer : offers) chooser.Add(offer);
  return chooser.Decide();
}

// Where this rank's shards in a move are.
class Places {
 public:
  void Add(const Device& place) {
    devices_ = devices_ || !place.is_cpu();
    several_ = several_ || (only_ && *only_ != place);
    only_ = place;
  }

  bool none() const { return !only_; }
  // Any device at all.
  bool devices() const { return devices_; }
  bool AllOn(const Device& place) const {
    return !several_ && only_ == std::optional<Device>(place);
  }

 private:
  std::optional<Device> only_;
  bool several_ = false;
  bool devices_ = false;
};

// Checks that every copy has its memory, so that later code need not check
// again.
template <typename Pointer>
absl::Status CheckMemory(absl::Span<const BoxCopy> copies,
                         int BoxCopy::*shard_of,
                         const ShardTable<Pointer>& shards, Places& places) {
  for (const BoxCopy& copy : copies) {
    SHERD_ASSIGN_OR_RETURN(const BasicShardMemory<Pointer>* shard,
                           shards.Find(copy.*shard_of, copy.sizes.size()));
    places.Add(internal::PlaceOf(*shard));
  }
  return absl::OkStatus();
}

// Marks the memory as used by queued work.
template <typename Memory>
void MarkUsed(const std::vector<Memory>& shards) {
  for (const Memory& shard : shards) {
    if (shard.storage == nullptr || shard.device.is_cpu()) continue;
    shard.storage->UsedOn(CurrentStream(shard.device));
  }
}

}  // namespace

class ReshardExecutor::Impl {
 public:
  // `reduction`: unset if elements are moved as they are.
  Impl(ReshardPlan plan, size_t element_size, const ReshardOptions& options,
       std::optional<Reduction> reduction = std::nullopt)
      : plan_(std::move(plan)),
        element_size_(element_size),
        options_(options),
        reduction_(reduction),
        messages_(element_size) {}

  absl::Status Prepare(int world_size, absl::Span<const SourceMemory> sources,
                       absl::Span<const DestinationMemory> destinations);

  const ReshardOptions& options() const { return options_; }

  // Fills in this rank's offer. `memory` may be null.
  absl::Status Describe(const ProcessGroup& group, PeerMemory* memory,
                        DirectOffer& offer);

  // Moves what all ranks have agreed on.
  absl::Status Move(ProcessGroup& group, PeerMemory* memory,
                    const OperationLabel& what, Offers offers);

  // The same by messages.
  absl::Status MoveByMessages(ProcessGroup& group, const OperationLabel& what,
                              const TransferDecision& decision);

  // The facts about the move that all ranks share.
  TransferSituation SituationIn(const ProcessGroup& group) const {
    return {.reduces = reduction_.has_value(),
            .direct = options_.direct,
            .one_host = group.one_host()};
  }

  // After an error that broke the group: keeps memory that another rank may be
  // reading or writing, since it may still continue the move. `strategy`: unset
  // if this rank does not know the agreed one.
  void GiveUp(const ProcessGroup& group,
              std::optional<TransferStrategy> strategy,
              const absl::Status& status);

 private:
  // A copy between two shards of this rank.
  struct LocalCopy {
    // Of both.
    Device place;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    const Dims* sizes = nullptr;
    const Dims* to_strides = nullptr;
    const Dims* from_strides = nullptr;
  };

  absl::Status ChooseMessageSizes(int world_size);
  absl::Status PrepareLocal();
  // `place`: where the messages lie.
  absl::Status PrepareMessages(const Device& place);
  // Whether this rank can do its part on `device`.
  bool FitsDevice(const ProcessGroup& group,
                  const std::optional<Device>& device) const;
  absl::Status MoveDirectly(ProcessGroup& group, PeerMemory* memory,
                            const OperationLabel& what,
                            TransferStrategy strategy, Offers offers);
  // Copies part `part` of `parts` of the local copies, which are not cut: large
  // ones bypass the cache, which holds the messages. Copies on devices are
  // added to `copier`.
  void CopyLocal(int64_t part, int64_t parts,
                 internal::BoxCopier& copier) const;
  absl::Status RunMessages(ProcessGroup& group,
                           const TransferDecision& decision);
  void Succeed(const TransferDecision& decision);

  // To be copied between shards of this rank.
  int64_t local_bytes() const {
    return stats_.bytes_local - stats_.bytes_in_place;
  }

  CollectiveOptions collective() const { return {.timeout = options_.timeout}; }

  const ReshardPlan plan_;
  const size_t element_size_;
  const ReshardOptions options_;
  const std::optional<Reduction> reduction_;
  int64_t message_bytes_ = 0;
  int64_t device_message_bytes_ = 0;
  Places places_;
  std::vector<SourceMemory> sources_;
  std::vector<DestinationMemory> destinations_;
  // Of the two lists above.
  std::optional<ShardTable<const void*>> from_;
  std::optional<ShardTable<void*>> to_;
  std::vector<LocalCopy> local_;
  // Local copies between different memory.
  std::vector<BoxCopy> across_;
  std::optional<DirectMove> direct_;
  MessageMove messages_;
  // Of this rank, where others may reach its memory.
  TransferOffer offer_;
  ReshardStats stats_;
};

absl::Status ReshardExecutor::Impl::ChooseMessageSizes(int world_size) {
  if (reduction_) {
    SHERD_ASSIGN_OR_RETURN(message_bytes_, internal::MaxReductionMessageBytes(
                                               options_.max_staging_bytes,
                                               world_size, element_size_));
    return absl::OkStatus();
  }
  SHERD_ASSIGN_OR_RETURN(message_bytes_, internal::MaxMessageBytes(
                                             options_.max_staging_bytes,
                                             plan_.max_peers(), element_size_));
  SHERD_ASSIGN_OR_RETURN(
      device_message_bytes_,
      internal::MaxDeviceMessageBytes(options_.max_staging_bytes,
                                      plan_.max_peers(), element_size_));
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::Prepare(
    int world_size, absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations) {
  SHERD_RETURN_IF_ERROR(ChooseMessageSizes(world_size));
  // Peers ascend.
  for (const std::vector<PeerCopies>* peers :
       {&plan_.sends(), &plan_.receives()}) {
    if (peers->empty() || peers->back().peer < world_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the plan needs rank ", peers->back().peer,
                     " in a group of ", world_size));
  }
  sources_.assign(sources.begin(), sources.end());
  destinations_.assign(destinations.begin(), destinations.end());
  SHERD_ASSIGN_OR_RETURN(from_,
                         ShardTable<const void*>::Create(sources_, "source"));
  SHERD_ASSIGN_OR_RETURN(
      to_, ShardTable<void*>::Create(destinations_, "destination"));
  for (const PeerCopies& peer : plan_.sends()) {
    SHERD_RETURN_IF_ERROR(CheckMemory<const void*>(
        peer.copies, &BoxCopy::src_shard, *from_, places_));
  }
  for (const PeerCopies& peer : plan_.receives()) {
    SHERD_RETURN_IF_ERROR(
        CheckMemory<void*>(peer.copies, &BoxCopy::dst_shard, *to_, places_));
  }
  stats_.lower_bound_bytes = plan_.lower_bound_bytes(element_size_);
  stats_.bytes_sent = plan_.bytes_sent(element_size_);
  stats_.bytes_received = plan_.bytes_received(element_size_);
  stats_.bytes_local = plan_.bytes_local(element_size_);
  SHERD_RETURN_IF_ERROR(PrepareLocal());
  if (reduction_ && places_.devices()) {
    return absl::InvalidArgumentError(
        "a reduction needs its summands and results in host memory, got some "
        "on a device; copy them to the host first");
  }
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::PrepareLocal() {
  local_.reserve(plan_.local().size());
  for (const BoxCopy& copy : plan_.local()) {
    SHERD_ASSIGN_OR_RETURN(const SourceMemory* from,
                           from_->Find(copy.src_shard, copy.sizes.size()));
    SHERD_ASSIGN_OR_RETURN(const DestinationMemory* to,
                           to_->Find(copy.dst_shard, copy.sizes.size()));
    const Device place = internal::PlaceOf(*from);
    places_.Add(place);
    places_.Add(internal::PlaceOf(*to));
    // There, MessageMove reduces.
    if (reduction_) continue;
    if (place != internal::PlaceOf(*to)) {
      across_.push_back(copy);
      continue;
    }
    const LocalCopy local = {
        .place = place,
        .to = internal::AddressIn(*to, copy.offsets, element_size_),
        .from = internal::AddressIn(*from, copy.offsets, element_size_),
        .sizes = &copy.sizes,
        .to_strides = &to->strides,
        .from_strides = &from->strides};
    const internal::MemoryAccess read = {.data = local.from,
                                         .element_size = element_size_,
                                         .sizes = copy.sizes,
                                         .strides = from->strides};
    const internal::MemoryAccess write = {.access = internal::Access::kWrite,
                                          .data = local.to,
                                          .element_size = element_size_,
                                          .sizes = copy.sizes,
                                          .strides = to->strides};
    if (!internal::IsSameMemory(read, write)) {
      local_.push_back(local);
      continue;
    }
    stats_.bytes_in_place += Volume(copy) * static_cast<int64_t>(element_size_);
  }
  return absl::OkStatus();
}

void ReshardExecutor::Impl::CopyLocal(int64_t part, int64_t parts,
                                      internal::BoxCopier& copier) const {
  const int64_t n = static_cast<int64_t>(local_.size());
  for (int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) {
    const LocalCopy& copy = local_[static_cast<size_t>(i)];
    if (!copy.place.is_cpu()) {
      copier.Add(copy.place, copy.to, *copy.to_strides, copy.from,
                 *copy.from_strides, *copy.sizes);
      continue;
    }
    StridedCopy(copy.to, *copy.to_strides, copy.from, *copy.from_strides,
                *copy.sizes, element_size_, static_cast<size_t>(local_bytes()));
  }
}

absl::Status ReshardExecutor::Impl::PrepareMessages(const Device& place) {
  if (reduction_) {
    return messages_.PrepareReduction(plan_, *from_, *to_, message_bytes_,
                                      *reduction_);
  }
  // Copies across memories on this rank may use as much as messages, but not
  // much at once.
  constexpr int64_t kMaxAcrossBytes = int64_t{16} << 20;
  const int64_t element = static_cast<int64_t>(element_size_);
  const int64_t across_bytes =
      std::min(options_.max_staging_bytes, kMaxAcrossBytes) / element * element;
  return messages_.Prepare(
      plan_, *from_, *to_,
      place.is_cpu() ? message_bytes_ : device_message_bytes_, place, across_,
      std::max(across_bytes, element));
}

bool ReshardExecutor::Impl::FitsDevice(
    const ProcessGroup& group, const std::optional<Device>& device) const {
  if (!device || (!places_.none() && !places_.AllOn(*device))) return false;
  return group.PathOf(CollectiveOp::kAllToAllV, DType::kUInt8, ReduceOp::kSum,
                      device->type) != OperationPath::kUnsupported;
}

absl::Status ReshardExecutor::Impl::Describe(const ProcessGroup& group,
                                             PeerMemory* memory,
                                             DirectOffer& offer) {
  if (reduction_) {
    SHERD_RETURN_IF_ERROR(PrepareMessages(Device()));
    offer.abilities |= TransferOffer::kMessagesReady;
    offer.rounds = messages_.rounds();
    return absl::OkStatus();
  }
  offer.bytes_sent = stats_.bytes_sent;
  offer.bytes_received = stats_.bytes_received;
  offer.bytes_local = local_bytes();
  if (!places_.none()) offer.abilities |= TransferOffer::kHasShards;
  const std::optional<Device> device = group.device();
  if (FitsDevice(group, device)) {
    offer.abilities |= TransferOffer::kDeviceReady;
    if (!places_.none()) {
      SHERD_RETURN_IF_ERROR(PrepareMessages(*device));
      offer.rounds = messages_.rounds();
      return absl::OkStatus();
    }
  }
  if (options_.direct && !places_.devices()) {
    direct_.emplace(plan_, element_size_, *from_, *to_);
    direct_->Describe(memory, offer);
  }
  offer_ = static_cast<const TransferOffer&>(offer);
  const bool moves = stats_.bytes_sent > 0 || stats_.bytes_received > 0;
  if (moves && (offer.can(TransferOffer::kSourcesReachable) ||
                offer.can(TransferOffer::kDestinationsReachable))) {
    // Staging memory is not taken before it is clear that messages are needed.
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(PrepareMessages(Device()));
  offer.abilities |= TransferOffer::kMessagesReady;
  offer.rounds = messages_.rounds();
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::Move(ProcessGroup& group,
                                         PeerMemory* memory,
                                         const OperationLabel& what,
                                         Offers offers) {
  TransferDecision decision = Decide(SituationIn(group), offers);
  if (decision.direct()) {
    const absl::Status status =
        MoveDirectly(group, memory, what, decision.strategy, std::move(offers));
    if (status.ok()) {
      Succeed(decision);
      return status;
    }
    if (!group.health().ok()) {
      GiveUp(group, decision.strategy, status);
      return InOperation(what, status);
    }
    // Every rank has the same error, and the sources are as they were.
    if (absl::IsInternal(status)) return status;
    SHERD_LOG(kWarning) << "moving by messages instead: " << status;
    decision = internal::FallBackToMessages(decision);
  }
  return MoveByMessages(group, what, decision);
}

absl::Status ReshardExecutor::Impl::MoveDirectly(ProcessGroup& group,
                                                 PeerMemory* memory,
                                                 const OperationLabel& what,
                                                 TransferStrategy strategy,
                                                 Offers offers) {
  SHERD_RETURN_IF_ERROR(
      direct_->Complete(group, std::move(offers), collective()));
  internal::BoxCopier copier(element_size_);
  CopyLocal(0, 1, copier);
  // A failure on one rank is a failure on all, and after this no rank accesses
  // another rank's shards.
  return Agree(group, what,
               direct_->Copy(group, memory, strategy, local_bytes()), {},
               collective());
}

void ReshardExecutor::Impl::GiveUp(const ProcessGroup& group,
                                   std::optional<TransferStrategy> strategy,
                                   const absl::Status& status) {
  const bool threads = group.backend().ranks_are_threads;
  // Memory of another process stays mapped, so reading is harmless.
  if (threads && offer_.can(TransferOffer::kSourcesReachable) &&
      strategy != TransferStrategy::kPushed) {
    for (const SourceMemory& shard : sources_)
      internal::KeepForever(shard.owner);
  }
  // If a rank died before it agreed, no other rank continues either.
  if (offer_.can(TransferOffer::kDestinationsReachable) &&
      strategy != TransferStrategy::kPulled &&
      (strategy || threads || !absl::IsUnavailable(status))) {
    // Other ranks may still be at it; see BasicShardMemory.
    for (const DestinationMemory& shard : destinations_) {
      internal::KeepForever(shard.owner);
    }
  }
}

absl::Status ReshardExecutor::Impl::MoveByMessages(
    ProcessGroup& group, const OperationLabel& what,
    const TransferDecision& decision) {
  TransferDecision agreed = decision;
  if (agreed.on_devices) {
    const Device device = *group.device();
    if (messages_.place() != device) {
      // Without shards there is nothing to allocate.
      SHERD_RETURN_IF_ERROR(PrepareMessages(device));
    }
  } else if (!agreed.prepared) {
    const absl::Status prepared = PrepareMessages(Device());
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t needed,
        AgreeOnMaximum(group, what, prepared, {},
                       static_cast<uint64_t>(messages_.rounds()),
                       collective()));
    agreed.rounds = static_cast<int64_t>(needed);
  }
  return InOperation(what, RunMessages(group, agreed));
}

absl::Status ReshardExecutor::Impl::RunMessages(
    ProcessGroup& group, const TransferDecision& decision) {
  const absl::Status status = messages_.Run(
      group, decision.rounds, collective(),
      [&](int64_t part, int64_t parts, internal::BoxCopier& copier) {
        CopyLocal(part, parts, copier);
      });
  if (places_.devices()) {
    MarkUsed(sources_);
    MarkUsed(destinations_);
  }
  SHERD_RETURN_IF_ERROR(status);
  stats_.bytes_staged = messages_.bytes_staged();
  stats_.staging_bytes = messages_.staging_bytes();
  stats_.rounds = decision.rounds;
  Succeed(decision);
  return absl::OkStatus();
}

void ReshardExecutor::Impl::Succeed(const TransferDecision& decision) {
  stats_.strategy = decision.strategy;
  stats_.reason = decision.reason;
  if (options_.stats != nullptr) *options_.stats = stats_;
}

absl::StatusOr<ReshardExecutor> ReshardExecutor::Create(
    ReshardPlan plan, size_t element_size, int world_size,
    absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations,
    const ReshardOptions& options) {
  SHERD_CHECK(element_size > 0 && world_size > 0);
  auto impl = std::make_unique<Impl>(std::move(plan), element_size, options);
  SHERD_RETURN_IF_ERROR(impl->Prepare(world_size, sources, destinations));
  return ReshardExecutor(std::move(impl));
}

absl::StatusOr<ReshardExecutor> ReshardExecutor::CreateReduction(
    ReshardPlan plan, ReduceOp op, DType dtype, int world_size,
    absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations,
    const ReshardOptions& options) {
  SHERD_CHECK(world_size > 0 && plan.max_peers() == world_size - 1);
  const size_t summands = plan.receives().size() + 1;
  SHERD_CHECK(plan.local().empty() ||
              summands == static_cast<size_t>(world_size));
  SHERD_RETURN_IF_ERROR(CheckReduction(op, dtype));
  auto impl = std::make_unique<Impl>(std::move(plan), SizeOf(dtype), options,
                                     Reduction{op, dtype});
  SHERD_RETURN_IF_ERROR(impl->Prepare(world_size, sources, destinations));
  return ReshardExecutor(std::move(impl));
}

ReshardExecutor::ReshardExecutor(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
ReshardExecutor::ReshardExecutor(ReshardExecutor&&) noexcept = default;
ReshardExecutor& ReshardExecutor::operator=(ReshardExecutor&&) noexcept =
    default;
ReshardExecutor::~ReshardExecutor() = default;

absl::Status internal::RunReshardOver(ProcessGroup& group,
                                      std::shared_ptr<PeerMemory> memory,
                                      const OperationLabel& what,
                                      absl::StatusOr<ReshardExecutor> executor,
                                      const AgreedValue& value,
                                      std::optional<absl::Duration> timeout) {
  ReshardExecutor::Impl* const impl =
      executor.ok() ? executor->impl_.get() : nullptr;
  absl::Status status = executor.status();
  // Then all ranks use messages, whatever memory a backend reaches elsewhere.
  if (!group.one_host()) memory = nullptr;
  DirectOffer offer;
  Fingerprint fingerprint;
  fingerprint.Add(static_cast<int64_t>(value.fingerprint));
  if (impl != nullptr) {
    timeout = impl->options().timeout;
    fingerprint.Add(impl->options().max_staging_bytes)
        .Add(impl->options().direct ? 1 : 0);
    status = impl->Describe(group, memory.get(), offer);
  }
  const auto describe = [&] {
    std::string text = value.describe();
    if (impl == nullptr) return text;
    return absl::StrCat(text, "\nmax_staging_bytes ",
                        impl->options().max_staging_bytes, "\ndirect ",
                        impl->options().direct ? "true" : "false");
  };
  const AgreedValue arguments = {fingerprint.value(), describe};
  const CollectiveOptions collective = {.timeout = timeout};
  // The form of the agreement depends only on facts that all ranks share; a
  // rank's own `memory` is not one of them.
  if (!group.one_host()) {
    SHERD_ASSIGN_OR_RETURN(
        const std::vector<ShortOffer> offers,
        AgreeAndGather(group, what, status, arguments,
                       ShortOffer{offer.abilities, offer.rounds}, collective));
    return impl->MoveByMessages(group, what,
                                Decide(impl->SituationIn(group), offers));
  }
  absl::StatusOr<Offers> offers =
      AgreeAndGather(group, what, status, arguments, offer, collective);
  if (offers.ok())
    return impl->Move(group, memory.get(), what, *std::move(offers));
  if (impl != nullptr && !group.health().ok()) {
    impl->GiveUp(group, std::nullopt, offers.status());
  }
  return offers.status();
}

absl::Status RunReshard(ProcessGroup& group, const OperationLabel& what,
                        absl::StatusOr<ReshardExecutor> executor,
                        const AgreedValue& value,
                        std::optional<absl::Duration> timeout) {
  return internal::RunReshardOver(group, group.peer_memory(), what,
                                  std::move(executor), value, timeout);
}

}  // namespace sherd
