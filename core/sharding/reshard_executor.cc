#include "sherd/core/sharding/reshard_executor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/agreement.h"
#include "sherd/core/sharding/message_move.h"
#include "sherd/core/sharding/message_rounds.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/strided_copy.h"

namespace sherd {
namespace {

using internal::DirectMove;
using internal::MessageMove;
using internal::MoveNote;
using internal::ShardTable;

using Notes = std::vector<MoveNote>;

// Memory that other ranks may still be at; see BasicShardMemory.
void KeepForever(std::shared_ptr<const void> owner) {
  struct Kept {
    absl::Mutex mutex;
    std::vector<std::shared_ptr<const void>> owners ABSL_GUARDED_BY(mutex);
  };
  static Kept* const kept = new Kept;
  if (owner == nullptr) return;
  absl::MutexLock lock(&kept->mutex);
  kept->owners.push_back(std::move(owner));
}

// Whether two boxes of these sizes are the same memory, element by element.
bool IsSameMemory(const std::byte* a, absl::Span<const int64_t> a_strides,
                  const std::byte* b, absl::Span<const int64_t> b_strides,
                  absl::Span<const int64_t> sizes) {
  if (a != b) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && a_strides[d] != b_strides[d]) return false;
  }
  return true;
}

// That every copy has its memory, so that nobody needs to ask again.
template <typename Pointer>
absl::Status CheckMemory(absl::Span<const BoxCopy> copies,
                         int BoxCopy::*shard_of,
                         const ShardTable<Pointer>& shards) {
  for (const BoxCopy& copy : copies) {
    SHERD_RETURN_IF_ERROR(
        shards.Find(copy.*shard_of, copy.sizes.size()).status());
  }
  return absl::OkStatus();
}

}  // namespace

class ReshardExecutor::Impl {
 public:
  Impl(ReshardPlan plan, size_t element_size, const ReshardOptions& options)
      : plan_(std::move(plan)),
        element_size_(element_size),
        options_(options),
        messages_(element_size) {}

  absl::Status Prepare(int world_size, absl::Span<const SourceMemory> sources,
                       absl::Span<const DestinationMemory> destinations);

  const ReshardOptions& options() const { return options_; }

  // Says what this rank can do. `memory` may be null.
  absl::Status Describe(PeerMemory* memory, MoveNote& note);

  // Moves what all ranks have agreed on.
  absl::Status Move(ProcessGroup& group, PeerMemory* memory,
                    absl::string_view what, Notes notes);

  // The same if all ranks are ready for messages, and for nothing else.
  absl::Status MoveByMessages(ProcessGroup& group, int64_t rounds);

  // After an error that broke the group: keeps memory that another rank may be
  // reading or writing, since it believes that the move goes on. `way`: unset
  // if this rank has not heard what was agreed.
  void GiveUp(const ProcessGroup& group, std::optional<ReshardWay> way,
              const absl::Status& status);

 private:
  // A copy between two shards of this rank.
  struct LocalCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    const Dims* sizes = nullptr;
    const Dims* to_strides = nullptr;
    const Dims* from_strides = nullptr;
  };

  absl::Status PrepareLocal();
  absl::Status PrepareMessages();
  absl::Status MoveDirectly(ProcessGroup& group, PeerMemory* memory,
                            absl::string_view what, ReshardWay way,
                            Notes notes);
  // Part `part` of so many of the local copies. They are not cut: large ones go
  // past the cache, which the messages are in.
  void CopyLocal(int64_t part, int64_t parts) const;
  void Succeed(ReshardWay way);

  // To be copied between shards of this rank.
  int64_t local_bytes() const {
    return stats_.bytes_local - stats_.bytes_in_place;
  }

  CollectiveOptions collective() const { return {.timeout = options_.timeout}; }

  const ReshardPlan plan_;
  const size_t element_size_;
  const ReshardOptions options_;
  int64_t message_bytes_ = 0;
  std::vector<SourceMemory> sources_;
  std::vector<DestinationMemory> destinations_;
  // Of the two lists above.
  std::optional<ShardTable<const void*>> from_;
  std::optional<ShardTable<void*>> to_;
  std::vector<LocalCopy> local_;
  std::optional<DirectMove> direct_;
  MessageMove messages_;
  // MoveNote::Flags of this rank.
  uint64_t told_ = 0;
  ReshardStats stats_;
};

absl::Status ReshardExecutor::Impl::Prepare(
    int world_size, absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations) {
  SHERD_ASSIGN_OR_RETURN(message_bytes_, internal::MaxMessageBytes(
                                             options_.max_staging_bytes,
                                             plan_.max_peers(), element_size_));
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
    SHERD_RETURN_IF_ERROR(
        CheckMemory<const void*>(peer.copies, &BoxCopy::src_shard, *from_));
  }
  for (const PeerCopies& peer : plan_.receives()) {
    SHERD_RETURN_IF_ERROR(
        CheckMemory<void*>(peer.copies, &BoxCopy::dst_shard, *to_));
  }
  stats_.lower_bound_bytes = plan_.lower_bound_bytes(element_size_);
  stats_.bytes_sent = plan_.bytes_sent(element_size_);
  stats_.bytes_received = plan_.bytes_received(element_size_);
  stats_.bytes_local = plan_.bytes_local(element_size_);
  return PrepareLocal();
}

absl::Status ReshardExecutor::Impl::PrepareLocal() {
  local_.reserve(plan_.local().size());
  for (const BoxCopy& copy : plan_.local()) {
    SHERD_ASSIGN_OR_RETURN(const SourceMemory* from,
                           from_->Find(copy.src_shard, copy.sizes.size()));
    SHERD_ASSIGN_OR_RETURN(const DestinationMemory* to,
                           to_->Find(copy.dst_shard, copy.sizes.size()));
    const LocalCopy local = {
        .to = internal::AddressIn(*to, copy.offsets, element_size_),
        .from = internal::AddressIn(*from, copy.offsets, element_size_),
        .sizes = &copy.sizes,
        .to_strides = &to->strides,
        .from_strides = &from->strides};
    if (!IsSameMemory(local.from, from->strides, local.to, to->strides,
                      copy.sizes)) {
      local_.push_back(local);
      continue;
    }
    int64_t bytes = static_cast<int64_t>(element_size_);
    for (const int64_t size : copy.sizes) bytes *= size;
    stats_.bytes_in_place += bytes;
  }
  return absl::OkStatus();
}

void ReshardExecutor::Impl::CopyLocal(int64_t part, int64_t parts) const {
  const int64_t n = static_cast<int64_t>(local_.size());
  for (int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) {
    const LocalCopy& copy = local_[static_cast<size_t>(i)];
    StridedCopy(copy.to, *copy.to_strides, copy.from, *copy.from_strides,
                *copy.sizes, element_size_, static_cast<size_t>(local_bytes()));
  }
}

absl::Status ReshardExecutor::Impl::PrepareMessages() {
  return messages_.Prepare(plan_, *from_, *to_, message_bytes_);
}

absl::Status ReshardExecutor::Impl::Describe(PeerMemory* memory,
                                             MoveNote& note) {
  note.bytes_sent = stats_.bytes_sent;
  note.bytes_received = stats_.bytes_received;
  note.bytes_local = local_bytes();
  if (options_.direct) {
    direct_.emplace(plan_, element_size_, *from_, *to_);
    direct_->Describe(memory, note);
  }
  told_ = note.flags;
  const bool moves = stats_.bytes_sent > 0 || stats_.bytes_received > 0;
  if (moves && note.flags != 0) {
    // Staging memory is not taken before it is clear that messages are needed.
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(PrepareMessages());
  note.flags |= MoveNote::kMessagesReady;
  note.rounds = messages_.rounds();
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::Move(ProcessGroup& group,
                                         PeerMemory* memory,
                                         absl::string_view what, Notes notes) {
  int64_t rounds = 0;
  bool ready = true;
  for (const MoveNote& note : notes) {
    rounds = std::max(rounds, note.rounds);
    ready = ready && (note.flags & MoveNote::kMessagesReady) != 0;
  }
  const ReshardWay way = DirectMove::Choose(notes);
  if (way == ReshardWay::kPulled || way == ReshardWay::kPushed) {
    const absl::Status status =
        MoveDirectly(group, memory, what, way, std::move(notes));
    if (status.ok()) {
      Succeed(way);
      return status;
    }
    if (!group.health().ok()) {
      GiveUp(group, way, status);
      return Annotate(status, what);
    }
    // Every rank has the same error, and the sources are as they were.
    if (absl::IsInternal(status)) return status;
    SHERD_LOG(kWarning) << "moving by messages instead: " << status;
    ready = false;
  }
  if (!ready) {
    const absl::Status prepared = PrepareMessages();
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t needed,
        AgreeOnMaximum(group, what, prepared, 0,
                       static_cast<uint64_t>(messages_.rounds()),
                       collective()));
    rounds = static_cast<int64_t>(needed);
  }
  return Annotate(MoveByMessages(group, rounds), what);
}

absl::Status ReshardExecutor::Impl::MoveDirectly(ProcessGroup& group,
                                                 PeerMemory* memory,
                                                 absl::string_view what,
                                                 ReshardWay way, Notes notes) {
  SHERD_RETURN_IF_ERROR(
      direct_->Complete(group, std::move(notes), collective()));
  CopyLocal(0, 1);
  // What fails on one rank fails on all, and after this nobody reads or writes
  // another rank's shards.
  return Agree(group, what, direct_->Copy(group, memory, way, local_bytes()), 0,
               collective());
}

void ReshardExecutor::Impl::GiveUp(const ProcessGroup& group,
                                   std::optional<ReshardWay> way,
                                   const absl::Status& status) {
  const bool threads = group.backend().ranks_are_threads;
  // Of another process what is mapped stays mapped, so reading is harmless.
  if (threads && (told_ & MoveNote::kSourcesReachable) != 0 &&
      way != ReshardWay::kPushed) {
    for (const SourceMemory& shard : sources_) KeepForever(shard.owner);
  }
  // Where a rank died before it agreed, no other one goes on either.
  if ((told_ & MoveNote::kDestinationsReachable) != 0 &&
      way != ReshardWay::kPulled &&
      (way || threads || !absl::IsUnavailable(status))) {
    for (const DestinationMemory& shard : destinations_) {
      KeepForever(shard.owner);
    }
  }
}

absl::Status ReshardExecutor::Impl::MoveByMessages(ProcessGroup& group,
                                                   int64_t rounds) {
  if (rounds == 0) CopyLocal(0, 1);
  SHERD_RETURN_IF_ERROR(
      messages_.Run(group, rounds, collective(),
                    [&](int64_t round) { CopyLocal(round, rounds); }));
  stats_.bytes_staged = messages_.bytes_staged();
  stats_.staging_bytes = messages_.staging_bytes();
  stats_.rounds = rounds;
  Succeed(rounds == 0 ? ReshardWay::kNone : ReshardWay::kMessages);
  return absl::OkStatus();
}

void ReshardExecutor::Impl::Succeed(ReshardWay way) {
  stats_.way = way;
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

ReshardExecutor::ReshardExecutor(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
ReshardExecutor::ReshardExecutor(ReshardExecutor&&) noexcept = default;
ReshardExecutor& ReshardExecutor::operator=(ReshardExecutor&&) noexcept =
    default;
ReshardExecutor::~ReshardExecutor() = default;

absl::Status internal::RunReshardOver(ProcessGroup& group,
                                      std::shared_ptr<PeerMemory> memory,
                                      absl::string_view what,
                                      absl::StatusOr<ReshardExecutor> executor,
                                      uint64_t fingerprint,
                                      std::optional<absl::Duration> timeout) {
  ReshardExecutor::Impl* const impl =
      executor.ok() ? executor->impl_.get() : nullptr;
  absl::Status status = executor.status();
  // Then all ranks go on by messages, whatever a backend reaches elsewhere.
  if (!group.one_host()) memory = nullptr;
  MoveNote note;
  Fingerprint arguments;
  arguments.Add(static_cast<int64_t>(fingerprint));
  if (impl != nullptr) {
    timeout = impl->options().timeout;
    arguments.Add(impl->options().max_staging_bytes)
        .Add(impl->options().direct ? 1 : 0);
    status = impl->Describe(memory.get(), note);
  }
  const CollectiveOptions collective = {.timeout = timeout};
  // The form of the agreement depends on what all ranks know alike, which a
  // rank's own `memory` is not.
  if (!group.one_host()) {
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t rounds,
        AgreeOnMaximum(group, what, status, arguments.value(),
                       static_cast<uint64_t>(note.rounds), collective));
    return Annotate(impl->MoveByMessages(group, static_cast<int64_t>(rounds)),
                    what);
  }
  absl::StatusOr<Notes> notes =
      AgreeAndTell(group, what, status, arguments.value(), note, collective);
  if (notes.ok())
    return impl->Move(group, memory.get(), what, *std::move(notes));
  if (impl != nullptr && !group.health().ok()) {
    impl->GiveUp(group, std::nullopt, notes.status());
  }
  return notes.status();
}

absl::Status RunReshard(ProcessGroup& group, absl::string_view what,
                        absl::StatusOr<ReshardExecutor> executor,
                        uint64_t fingerprint,
                        std::optional<absl::Duration> timeout) {
  return internal::RunReshardOver(group, group.peer_memory(), what,
                                  std::move(executor), fingerprint, timeout);
}

}  // namespace sherd
