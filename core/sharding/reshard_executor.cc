#include "sherd/core/sharding/reshard_executor.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/agreement.h"
#include "sherd/core/sharding/message_rounds.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/strided_copy.h"

namespace sherd {
namespace {

using internal::BoxPiece;
using internal::MessageRound;

// What a rank sends in one round, at most: packed, sent, received and unpacked
// while it is in the cache. Larger rounds go to memory and back once more on
// each side, smaller ones wait for each other more often.
constexpr int64_t kRoundBytes = int64_t{8} << 20;
// With many peers a round may be larger, rather than messages very small.
constexpr int64_t kMinMessageBytes = int64_t{256} << 10;
// Two rounds are under way at once, each with messages out and in.
constexpr int kDepth = 2;
constexpr int64_t kStagingParts = 2 * kDepth;

// A piece at one of its ends.
struct PlacedPiece {
  std::byte* data = nullptr;
  Dims sizes;
  // Of the whole shard; outlives the piece.
  const Dims* strides = nullptr;
  int64_t bytes = 0;
};

// A message at one of its ends.
struct Message {
  int64_t bytes = 0;
  // Where the message lies in a shard as it is; null if it has to be packed.
  std::byte* direct = nullptr;
  std::vector<PlacedPiece> pieces;
};

// All messages to or from one peer, and where the packed ones are staged.
struct Channel {
  int peer = 0;
  std::vector<Message> messages;
  int64_t staged_bytes_per_round = 0;
  std::array<std::byte*, kDepth> staging = {};
};

template <typename Pointer>
using ShardTable = absl::flat_hash_map<int, const BasicShardMemory<Pointer>*>;

template <typename Pointer>
absl::StatusOr<ShardTable<Pointer>> Index(
    absl::Span<const BasicShardMemory<Pointer>> shards,
    absl::string_view side) {
  ShardTable<Pointer> table;
  for (const BasicShardMemory<Pointer>& shard : shards) {
    if (!table.try_emplace(shard.shard, &shard).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory of ", side, " shard ", shard.shard, " is given twice"));
    }
  }
  return table;
}

// Where the box at `offsets` begins in a shard.
template <typename Pointer>
std::byte* AddressIn(const BasicShardMemory<Pointer>& shard,
                     absl::Span<const int64_t> offsets, size_t element_size) {
  int64_t index = 0;
  for (size_t d = 0; d < offsets.size(); ++d) {
    index += (offsets[d] - shard.offsets[d]) * shard.strides[d];
  }
  // Sources are only read; one type serves both directions.
  return const_cast<std::byte*>(static_cast<const std::byte*>(shard.data)) +
         index * static_cast<int64_t>(element_size);
}

template <typename Pointer>
absl::StatusOr<const BasicShardMemory<Pointer>*> Find(
    const ShardTable<Pointer>& table, int shard, size_t dims,
    absl::string_view side) {
  const auto found = table.find(shard);
  if (found == table.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan needs memory of ", side, " shard ", shard, ", none given"));
  }
  if (found->second->offsets.size() != dims ||
      found->second->strides.size() != dims) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of ", side, " shard ", shard, " has ",
                     found->second->offsets.size(), " offsets and ",
                     found->second->strides.size(), " strides, expected ", dims,
                     " of each"));
  }
  return found->second;
}

// Decides whether a message is one run of memory already.
std::byte* FindRun(absl::Span<const PlacedPiece> pieces) {
  const std::byte* end = pieces[0].data;
  for (const PlacedPiece& piece : pieces) {
    if (piece.data != end || !IsContiguousRun(piece.sizes, *piece.strides)) {
      return nullptr;
    }
    end += piece.bytes;
  }
  return pieces[0].data;
}

// Bytes of a message at most: the same at both of its ends, since options and
// the number of peers are.
absl::StatusOr<int64_t> MessageBytes(int64_t max_staging_bytes, int max_peers,
                                     size_t element_size) {
  const int64_t element = static_cast<int64_t>(element_size);
  const int64_t peers = std::max(max_peers, 1);
  const int64_t bytes =
      std::min(std::max(kRoundBytes / peers, kMinMessageBytes),
               max_staging_bytes / (kStagingParts * peers)) /
      element * element;
  if (bytes >= element) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      "max_staging_bytes is ", max_staging_bytes, ", expected ",
      kStagingParts * peers * element, " at least: ", kStagingParts,
      " elements of ", element, " bytes for each of ", peers, " peers"));
}

// The messages of all peers at this rank's end. `shard_of` is the member of a
// piece that says which of this rank's shards it is in.
template <typename Pointer>
absl::StatusOr<std::vector<Channel>> BuildChannels(
    absl::Span<const PeerCopies> peers, const ShardTable<Pointer>& shards,
    int BoxPiece::*shard_of, absl::string_view side, size_t element_size,
    int64_t message_bytes) {
  std::vector<Channel> channels;
  channels.reserve(peers.size());
  for (const PeerCopies& peer : peers) {
    Channel& channel = channels.emplace_back();
    channel.peer = peer.peer;
    for (const MessageRound& round :
         internal::CutIntoRounds(peer.copies, element_size, message_bytes)) {
      Message& message = channel.messages.emplace_back();
      message.bytes = round.bytes;
      message.pieces.reserve(round.pieces.size());
      for (const BoxPiece& piece : round.pieces) {
        SHERD_ASSIGN_OR_RETURN(
            const BasicShardMemory<Pointer>* shard,
            Find(shards, piece.*shard_of, piece.sizes.size(), side));
        message.pieces.push_back(
            {.data = AddressIn(*shard, piece.offsets, element_size),
             .sizes = piece.sizes,
             .strides = &shard->strides,
             .bytes = piece.bytes});
      }
      message.direct = FindRun(message.pieces);
      if (message.direct != nullptr) continue;
      channel.staged_bytes_per_round =
          std::max(channel.staged_bytes_per_round, message.bytes);
    }
  }
  return channels;
}

}  // namespace

class ReshardExecutor::Impl {
 public:
  Impl(size_t element_size, const ReshardOptions& options)
      : element_size_(element_size), options_(options) {}

  absl::Status Prepare(const ReshardPlan& plan, int world_size,
                       absl::Span<const SourceMemory> sources,
                       absl::Span<const DestinationMemory> destinations);

  int64_t rounds() const;

  absl::Status Run(ProcessGroup& group, int64_t rounds_of_all);

 private:
  // A copy between two shards of this rank.
  struct LocalCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    Dims sizes;
    const Dims* to_strides = nullptr;
    const Dims* from_strides = nullptr;
  };

  // The buffers of one round, for as long as it is under way.
  struct Flight {
    explicit Flight(int size)
        : sends(static_cast<size_t>(size)), recvs(static_cast<size_t>(size)) {}

    std::vector<ConstBytes> sends;
    std::vector<MutableBytes> recvs;
    std::optional<Work> work;
  };

  absl::Status PrepareLocal(const ReshardPlan& plan,
                            const ShardTable<const void*>& sources,
                            const ShardTable<void*>& destinations);
  absl::Status AllocateStaging();

  absl::Status RunOnce(ProcessGroup& group);
  absl::Status RunPipelined(ProcessGroup& group, int64_t rounds);
  void Pack(int64_t round, Flight& flight);
  void Unpack(int64_t round);
  // Row-major bytes of a piece, of which the message has them at `bytes`.
  void CopyOut(const PlacedPiece& piece, std::byte* bytes);
  void CopyIn(const PlacedPiece& piece, const std::byte* bytes);
  // A share of the local copies, so that they end with the last round. They
  // are not cut: large ones go past the cache, which the messages are in.
  void CopyLocal(int64_t round, int64_t rounds);

  const size_t element_size_;
  const ReshardOptions options_;
  // Strides are referred to by the pieces.
  std::vector<SourceMemory> sources_;
  std::vector<DestinationMemory> destinations_;
  std::vector<Channel> sends_;
  std::vector<Channel> receives_;
  std::vector<LocalCopy> local_;
  std::shared_ptr<Storage> staging_;
  ReshardStats stats_;
};

absl::Status ReshardExecutor::Impl::Prepare(
    const ReshardPlan& plan, int world_size,
    absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations) {
  SHERD_ASSIGN_OR_RETURN(const int64_t message_bytes,
                         MessageBytes(options_.max_staging_bytes,
                                      plan.max_peers(), element_size_));
  // Peers ascend.
  for (const std::vector<PeerCopies>* peers :
       {&plan.sends(), &plan.receives()}) {
    if (peers->empty() || peers->back().peer < world_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the plan needs rank ", peers->back().peer,
                     " in a group of ", world_size));
  }
  sources_.assign(sources.begin(), sources.end());
  destinations_.assign(destinations.begin(), destinations.end());
  SHERD_ASSIGN_OR_RETURN(const ShardTable<const void*> from,
                         Index(absl::MakeConstSpan(sources_), "source"));
  SHERD_ASSIGN_OR_RETURN(
      const ShardTable<void*> to,
      Index(absl::MakeConstSpan(destinations_), "destination"));
  SHERD_ASSIGN_OR_RETURN(
      sends_, BuildChannels(plan.sends(), from, &BoxPiece::src_shard, "source",
                            element_size_, message_bytes));
  SHERD_ASSIGN_OR_RETURN(
      receives_, BuildChannels(plan.receives(), to, &BoxPiece::dst_shard,
                               "destination", element_size_, message_bytes));
  SHERD_RETURN_IF_ERROR(PrepareLocal(plan, from, to));
  stats_.lower_bound_bytes = plan.lower_bound_bytes(element_size_);
  return AllocateStaging();
}

absl::Status ReshardExecutor::Impl::PrepareLocal(
    const ReshardPlan& plan, const ShardTable<const void*>& sources,
    const ShardTable<void*>& destinations) {
  local_.reserve(plan.local().size());
  for (const BoxCopy& copy : plan.local()) {
    SHERD_ASSIGN_OR_RETURN(
        const SourceMemory* from,
        Find(sources, copy.src_shard, copy.sizes.size(), "source"));
    SHERD_ASSIGN_OR_RETURN(
        const DestinationMemory* to,
        Find(destinations, copy.dst_shard, copy.sizes.size(), "destination"));
    local_.push_back({.to = AddressIn(*to, copy.offsets, element_size_),
                      .from = AddressIn(*from, copy.offsets, element_size_),
                      .sizes = copy.sizes,
                      .to_strides = &to->strides,
                      .from_strides = &from->strides});
  }
  stats_.bytes_local = plan.bytes_local(element_size_);
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::AllocateStaging() {
  int64_t bytes = 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      bytes += kDepth * channel.staged_bytes_per_round;
    }
  }
  stats_.staging_bytes = bytes;
  if (bytes == 0) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(staging_,
                         Storage::Allocate(static_cast<size_t>(bytes)));
  std::byte* next = static_cast<std::byte*>(staging_->data());
  for (std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (Channel& channel : *channels) {
      for (std::byte*& part : channel.staging) {
        part = next;
        next += channel.staged_bytes_per_round;
      }
    }
  }
  return absl::OkStatus();
}

int64_t ReshardExecutor::Impl::rounds() const {
  size_t rounds = 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      rounds = std::max(rounds, channel.messages.size());
    }
  }
  return static_cast<int64_t>(rounds);
}

void ReshardExecutor::Impl::CopyOut(const PlacedPiece& piece,
                                    std::byte* bytes) {
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(bytes, packed, piece.data, *piece.strides, piece.sizes,
              element_size_);
}

void ReshardExecutor::Impl::CopyIn(const PlacedPiece& piece,
                                   const std::byte* bytes) {
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(piece.data, *piece.strides, bytes, packed, piece.sizes,
              element_size_);
}

void ReshardExecutor::Impl::Pack(int64_t round, Flight& flight) {
  const size_t index = static_cast<size_t>(round);
  std::fill(flight.sends.begin(), flight.sends.end(), ConstBytes());
  std::fill(flight.recvs.begin(), flight.recvs.end(), MutableBytes());
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    std::byte* const place = message.direct != nullptr
                                 ? message.direct
                                 : channel.staging[index % kDepth];
    flight.recvs[channel.peer] =
        MutableBytes(place, static_cast<size_t>(message.bytes));
    stats_.bytes_received += message.bytes;
  }
  for (const Channel& channel : sends_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    std::byte* place = message.direct;
    if (place == nullptr) {
      place = channel.staging[index % kDepth];
      std::byte* next = place;
      for (const PlacedPiece& piece : message.pieces) {
        CopyOut(piece, next);
        next += piece.bytes;
      }
      stats_.bytes_staged += message.bytes;
    }
    flight.sends[channel.peer] =
        ConstBytes(place, static_cast<size_t>(message.bytes));
    stats_.bytes_sent += message.bytes;
  }
}

void ReshardExecutor::Impl::Unpack(int64_t round) {
  const size_t index = static_cast<size_t>(round);
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    if (message.direct != nullptr) continue;
    const std::byte* next = channel.staging[index % kDepth];
    for (const PlacedPiece& piece : message.pieces) {
      CopyIn(piece, next);
      next += piece.bytes;
    }
    stats_.bytes_staged += message.bytes;
  }
}

void ReshardExecutor::Impl::CopyLocal(int64_t round, int64_t rounds) {
  const int64_t n = static_cast<int64_t>(local_.size());
  for (int64_t i = n * round / rounds; i < n * (round + 1) / rounds; ++i) {
    const LocalCopy& copy = local_[static_cast<size_t>(i)];
    StridedCopy(copy.to, *copy.to_strides, copy.from, *copy.from_strides,
                copy.sizes, element_size_);
  }
}

absl::Status ReshardExecutor::Impl::Run(ProcessGroup& group,
                                        int64_t rounds_of_all) {
  SHERD_CHECK(rounds_of_all >= rounds());
  stats_.rounds = rounds_of_all;
  if (rounds_of_all > 1) {
    SHERD_RETURN_IF_ERROR(RunPipelined(group, rounds_of_all));
  } else {
    CopyLocal(0, 1);
    if (rounds_of_all == 1) SHERD_RETURN_IF_ERROR(RunOnce(group));
  }
  if (options_.stats != nullptr) *options_.stats = stats_;
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::RunOnce(ProcessGroup& group) {
  Flight flight(group.size());
  Pack(0, flight);
  SHERD_RETURN_IF_ERROR(group.AllToAllV(flight.sends, flight.recvs,
                                        {.timeout = options_.timeout}));
  Unpack(0);
  return absl::OkStatus();
}

absl::Status ReshardExecutor::Impl::RunPipelined(ProcessGroup& group,
                                                 int64_t rounds) {
  std::array<Flight, kDepth> flights = {Flight(group.size()),
                                        Flight(group.size())};
  const auto start = [&](int64_t round) {
    Flight& flight = flights[static_cast<size_t>(round % kDepth)];
    Pack(round, flight);
    flight.work = group.AllToAllVAsync(flight.sends, flight.recvs,
                                       {.timeout = options_.timeout});
  };
  absl::Status status;
  start(0);
  for (int64_t round = 0; round < rounds; ++round) {
    if (status.ok() && round + 1 < rounds) start(round + 1);
    if (status.ok()) CopyLocal(round, rounds);
    std::optional<Work>& work =
        flights[static_cast<size_t>(round % kDepth)].work;
    if (!work) break;
    // Also after an error: the buffers are in use until the work ended.
    status.Update(work->Wait());
    work.reset();
    if (status.ok()) Unpack(round);
  }
  return status;
}

absl::StatusOr<ReshardExecutor> ReshardExecutor::Create(
    const ReshardPlan& plan, size_t element_size, int world_size,
    absl::Span<const SourceMemory> sources,
    absl::Span<const DestinationMemory> destinations,
    const ReshardOptions& options) {
  SHERD_CHECK(element_size > 0 && world_size > 0);
  auto impl = std::make_unique<Impl>(element_size, options);
  SHERD_RETURN_IF_ERROR(impl->Prepare(plan, world_size, sources, destinations));
  return ReshardExecutor(std::move(impl));
}

ReshardExecutor::ReshardExecutor(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
ReshardExecutor::ReshardExecutor(ReshardExecutor&&) noexcept = default;
ReshardExecutor& ReshardExecutor::operator=(ReshardExecutor&&) noexcept =
    default;
ReshardExecutor::~ReshardExecutor() = default;

int64_t ReshardExecutor::rounds() const { return impl_->rounds(); }

absl::Status ReshardExecutor::Run(ProcessGroup& group, int64_t rounds_of_all) {
  return impl_->Run(group, rounds_of_all);
}

absl::Status RunReshard(ProcessGroup& group, absl::string_view what,
                        absl::StatusOr<ReshardExecutor> executor,
                        uint64_t fingerprint) {
  const uint64_t rounds =
      executor.ok() ? static_cast<uint64_t>(executor->rounds()) : 0;
  SHERD_ASSIGN_OR_RETURN(
      const uint64_t rounds_of_all,
      AgreeOnMaximum(group, what, executor.status(), fingerprint, rounds));
  return Annotate(executor->Run(group, static_cast<int64_t>(rounds_of_all)),
                  what);
}

}  // namespace sherd
