#include "sherd/core/sharding/transfer/message_move.h"

#include <algorithm>
#include <utility>

#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/kernels/strided_copy.h"

namespace sherd::internal {
namespace {

Deadline DeadlineOf(const ProcessGroup& group,
                    const CollectiveOptions& options) {
  return Deadline::After(options.timeout.value_or(group.timeout()));
}

}  // namespace

// Decides whether a message is one run of memory already, in the place where
// messages lie.
std::byte* MessageMove::FindRun(const std::vector<PlacedPiece>& pieces) const {
  const std::byte* end = pieces[0].data;
  for (const PlacedPiece& piece : pieces) {
    if (piece.data != end || piece.place != place_ ||
        !IsContiguousRun(piece.sizes, *piece.strides)) {
      return nullptr;
    }
    end += piece.bytes;
  }
  return pieces[0].data;
}

// The messages of one peer at this rank's end. `shard_of` is the member of a
// piece that holds its shard on this rank.
template <typename Pointer>
MessageMove::Channel MessageMove::BuildChannel(
    int peer, const std::vector<BoxCopy>& copies,
    const ShardTable<Pointer>& shards, int BoxPiece::*shard_of,
    int64_t message_bytes) {
  Channel channel;
  channel.peer = peer;
  for (const MessageRound& round :
       CutIntoRounds(copies, element_size_, message_bytes)) {
    Message& message = channel.messages.emplace_back();
    message.bytes = round.bytes;
    message.pieces.reserve(round.pieces.size());
    for (const BoxPiece& piece : round.pieces) {
      const auto shard = shards.Find(piece.*shard_of, piece.sizes.size());
      SHERD_CHECK(shard.ok());
      const Device place = PlaceOf(**shard);
      uses_devices_ = uses_devices_ || !place.is_cpu();
      message.pieces.push_back(
          {.data = AddressIn(**shard, piece.offsets, element_size_),
           .sizes = piece.sizes,
           .strides = &(*shard)->strides,
           .bytes = piece.bytes,
           .place = place});
    }
    message.direct = FindRun(message.pieces);
    if (message.direct != nullptr) continue;
    channel.staged_bytes_per_round =
        std::max(channel.staged_bytes_per_round, message.bytes);
  }
  return channel;
}

template <typename Pointer>
std::vector<MessageMove::Channel> MessageMove::BuildChannels(
    const std::vector<PeerCopies>& peers, const ShardTable<Pointer>& shards,
    int BoxPiece::*shard_of, int64_t message_bytes) {
  std::vector<Channel> channels;
  channels.reserve(peers.size());
  for (const PeerCopies& peer : peers) {
    channels.push_back(
        BuildChannel(peer.peer, peer.copies, shards, shard_of, message_bytes));
  }
  return channels;
}

absl::Status MessageMove::Prepare(const ReshardPlan& plan,
                                  const ShardTable<const void*>& sources,
                                  const ShardTable<void*>& destinations,
                                  int64_t message_bytes, const Device& place,
                                  const std::vector<BoxCopy>& across,
                                  int64_t across_bytes) {
  place_ = place;
  uses_devices_ = false;
  own_.reset();
  sends_ =
      BuildChannels(plan.sends(), sources, &BoxPiece::src_shard, message_bytes);
  receives_ = BuildChannels(plan.receives(), destinations, &BoxPiece::dst_shard,
                            message_bytes);
  across_out_.reset();
  across_in_.reset();
  if (!across.empty()) {
    across_out_ =
        BuildChannel(0, across, sources, &BoxPiece::src_shard, across_bytes);
    across_in_ = BuildChannel(0, across, destinations, &BoxPiece::dst_shard,
                              across_bytes);
  }
  return AllocateStaging();
}

absl::Status MessageMove::PrepareReduction(
    const ReshardPlan& plan, const ShardTable<const void*>& sources,
    const ShardTable<void*>& destinations, int64_t message_bytes,
    const Reduction& reduction) {
  place_ = Device();
  uses_devices_ = false;
  across_out_.reset();
  across_in_.reset();
  sends_ =
      BuildChannels(plan.sends(), sources, &BoxPiece::src_shard, message_bytes);
  own_.emplace(OwnShare{reduction,
                        BuildChannel(plan.rank(), plan.local(), sources,
                                     &BoxPiece::src_shard, message_bytes),
                        BuildChannel(plan.rank(), plan.local(), destinations,
                                     &BoxPiece::dst_shard, message_bytes)});
  SHERD_CHECK(!uses_devices_);
  // Summands of others have no place but staging memory.
  receives_.clear();
  for (const PeerCopies& peer : plan.receives()) {
    Channel& channel = receives_.emplace_back();
    channel.peer = peer.peer;
    for (const Message& result : own_->result.messages) {
      channel.messages.emplace_back().bytes = result.bytes;
      channel.staged_bytes_per_round =
          std::max(channel.staged_bytes_per_round, result.bytes);
    }
  }
  return AllocateStaging();
}

// Memory that both messages and all shards of this rank reach.
absl::StatusOr<Allocator*> MessageMove::StagingMemory() const {
  if (!uses_devices_) return &HeapAllocator();
  SHERD_ASSIGN_OR_RETURN(
      DeviceRuntime* const runtime,
      DeviceRuntime::For(place_.is_cpu() ? DeviceType::kCuda : place_.type));
  if (!place_.is_cpu()) return runtime->MemoryOf(place_.index);
  return runtime->PinnedMemory();
}

absl::Status MessageMove::AllocateStaging() {
  int64_t bytes = own_ ? own_->result.staged_bytes_per_round : 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      bytes += static_cast<int64_t>(flights()) * channel.staged_bytes_per_round;
    }
  }
  // Copies across memories are done before messages need the staging memory.
  if (across_out_) {
    for (const Message& message : across_out_->messages) {
      bytes = std::max(bytes, message.bytes);
    }
  }
  staging_bytes_ = bytes;
  // Release the memory of an earlier Prepare before allocating.
  staging_ = nullptr;
  if (bytes == 0) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(Allocator* const memory, StagingMemory());
  SHERD_ASSIGN_OR_RETURN(
      staging_, Storage::Allocate(static_cast<size_t>(bytes), *memory));
  std::byte* next = static_cast<std::byte*>(staging_->data());
  for (std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (Channel& channel : *channels) {
      for (size_t flight = 0; flight < flights(); ++flight) {
        channel.staging[flight] = next;
        next += channel.staged_bytes_per_round;
      }
    }
  }
  if (own_) own_->result.staging[0] = next;
  return absl::OkStatus();
}

int64_t MessageMove::rounds() const {
  size_t rounds = 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      rounds = std::max(rounds, channel.messages.size());
    }
  }
  if (own_) rounds = std::max(rounds, own_->result.messages.size());
  return static_cast<int64_t>(rounds);
}

void MessageMove::CopyOut(const PlacedPiece& piece, std::byte* bytes) {
  if (!piece.place.is_cpu()) {
    copier_.Pack(piece.place, bytes, piece.data, *piece.strides, piece.sizes);
    return;
  }
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(bytes, packed, piece.data, *piece.strides, piece.sizes,
              element_size_);
}

void MessageMove::CopyIn(const PlacedPiece& piece, const std::byte* bytes) {
  if (!piece.place.is_cpu()) {
    copier_.Unpack(piece.place, piece.data, *piece.strides, bytes, piece.sizes);
    return;
  }
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(piece.data, *piece.strides, bytes, packed, piece.sizes,
              element_size_);
}

void MessageMove::PackMessage(const Message& message, std::byte* to) {
  for (const PlacedPiece& piece : message.pieces) {
    CopyOut(piece, to);
    to += piece.bytes;
  }
  bytes_staged_ += message.bytes;
}

void MessageMove::UnpackMessage(const Message& message, const std::byte* from) {
  for (const PlacedPiece& piece : message.pieces) {
    CopyIn(piece, from);
    from += piece.bytes;
  }
  bytes_staged_ += message.bytes;
}

// Reduces the contributions of all ranks for this one in a round into its
// shards.
void MessageMove::ReduceRound(size_t index) {
  if (index >= own_->result.messages.size()) return;
  const Message& result = own_->result.messages[index];
  const Message& summand = own_->summand.messages[index];
  std::byte* const to =
      result.direct != nullptr ? result.direct : own_->result.staging[0];
  const std::byte* own = summand.direct;
  if (own == nullptr) {
    // The result may overwrite an input.
    PackMessage(summand, to);
    own = to;
  }
  std::vector<const void*> inputs(receives_.size() + 1);
  for (const Channel& channel : receives_) {
    inputs[static_cast<size_t>(channel.peer)] = channel.staging[0];
  }
  inputs[static_cast<size_t>(own_->result.peer)] = own;
  Reduce(own_->reduction.op, own_->reduction.dtype, to, inputs,
         static_cast<size_t>(result.bytes) / element_size_,
         static_cast<int>(inputs.size()));
  if (result.direct == nullptr) UnpackMessage(result, to);
}

void MessageMove::ListBuffers(size_t index, Flight& flight) const {
  std::fill(flight.sends.begin(), flight.sends.end(), ConstBytes());
  std::fill(flight.recvs.begin(), flight.recvs.end(), MutableBytes());
  const auto place_of = [&](const Channel& channel, const Message& message) {
    return message.direct != nullptr ? message.direct
                                     : channel.staging[index % flights()];
  };
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    flight.recvs[channel.peer] = MutableBytes(
        place_of(channel, message), static_cast<size_t>(message.bytes));
  }
  for (const Channel& channel : sends_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    flight.sends[channel.peer] = ConstBytes(place_of(channel, message),
                                            static_cast<size_t>(message.bytes));
  }
}

void MessageMove::PackRound(int64_t round) {
  const size_t index = static_cast<size_t>(round);
  for (const Channel& channel : sends_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    if (message.direct != nullptr) continue;
    PackMessage(message, channel.staging[index % flights()]);
  }
}

void MessageMove::Unpack(int64_t round) {
  const size_t index = static_cast<size_t>(round);
  if (own_) return ReduceRound(index);
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    if (message.direct != nullptr) continue;
    UnpackMessage(message, channel.staging[index % flights()]);
  }
}

absl::Status MessageMove::Launch(Deadline deadline) {
  absl::Status status = copier_.Launch();
  // On a device the next step is queued behind this one. Otherwise the host
  // sends what was packed, and overwrites what was unpacked.
  if (!place_.is_cpu() || staging_ == nullptr) return status;
  if (status.ok()) status = copier_.Wait(deadline);
  if (!status.ok()) copier_.UsesStill(*staging_);
  return status;
}

absl::Status MessageMove::CopyAcross(Deadline deadline) {
  auto* const staging = static_cast<std::byte*>(staging_->data());
  for (size_t i = 0; i < across_out_->messages.size(); ++i) {
    PackMessage(across_out_->messages[i], staging);
    SHERD_RETURN_IF_ERROR(Launch(deadline));
    UnpackMessage(across_in_->messages[i], staging);
    SHERD_RETURN_IF_ERROR(Launch(deadline));
  }
  return absl::OkStatus();
}

absl::Status MessageMove::Run(ProcessGroup& group, int64_t rounds,
                              const CollectiveOptions& options,
                              LocalCopies local) {
  SHERD_CHECK(rounds >= this->rounds());
  CollectiveOptions placed = options;
  placed.device = place_;
  const auto run = [&]() -> absl::Status {
    const Deadline deadline = DeadlineOf(group, options);
    if (across_out_) SHERD_RETURN_IF_ERROR(CopyAcross(deadline));
    if (rounds > 1 && !own_) return RunPipelined(group, rounds, placed, local);
    if (rounds > 0) return RunInTurn(group, rounds, placed, local);
    local(0, 1, copier_);
    return Launch(deadline);
  };
  absl::Status status = run();
  // The other ranks rely on this one to continue, as agreed.
  if (!status.ok() && group.health().ok()) group.Abort(status);
  return status;
}

// One round after the other.
absl::Status MessageMove::RunInTurn(ProcessGroup& group, int64_t rounds,
                                    const CollectiveOptions& options,
                                    LocalCopies local) {
  const size_t ranks = static_cast<size_t>(group.size());
  Flight flight = {std::vector<ConstBytes>(ranks),
                   std::vector<MutableBytes>(ranks), std::nullopt};
  for (int64_t round = 0; round < rounds; ++round) {
    const Deadline deadline = DeadlineOf(group, options);
    if (round == 0) local(0, 1, copier_);
    ListBuffers(static_cast<size_t>(round), flight);
    PackRound(round);
    SHERD_RETURN_IF_ERROR(Launch(deadline));
    SHERD_RETURN_IF_ERROR(group.AllToAllV(flight.sends, flight.recvs, options));
    Unpack(round);
    SHERD_RETURN_IF_ERROR(Launch(deadline));
  }
  return absl::OkStatus();
}

// Waits for the messages of a round and unpacks them, unless an error has
// occurred already.
absl::Status MessageMove::EndRound(Flight& flight, int64_t round,
                                   const absl::Status& sofar,
                                   Deadline deadline) {
  // Also after an error: the buffers are in use until the work ended.
  absl::Status status;
  if (sofar.ok() && !place_.is_cpu()) status = flight.work->WaitOnStream();
  if (!sofar.ok() || !status.ok() || place_.is_cpu()) {
    status.Update(flight.work->Wait());
  }
  flight.work.reset();
  if (!sofar.ok() || !status.ok()) return status;
  Unpack(round);
  // In host memory the next messages may be received into the same memory at
  // once.
  return Launch(deadline);
}

absl::Status MessageMove::RunPipelined(ProcessGroup& group, int64_t rounds,
                                       const CollectiveOptions& options,
                                       LocalCopies local) {
  const bool on_device = !place_.is_cpu();
  std::array<Flight, kRoundsInFlight> flights;
  for (Flight& flight : flights) {
    flight.sends.resize(static_cast<size_t>(group.size()));
    flight.recvs.resize(static_cast<size_t>(group.size()));
  }
  const auto start = [&](int64_t round) -> absl::Status {
    Flight& flight = flights[static_cast<size_t>(round % kRoundsInFlight)];
    ListBuffers(static_cast<size_t>(round), flight);
    // Local copies on a device are queued with the packing, during a transfer.
    if (on_device && round > 0) local(round - 1, rounds - 1, copier_);
    PackRound(round);
    SHERD_RETURN_IF_ERROR(Launch(DeadlineOf(group, options)));
    flight.work = group.AllToAllVAsync(flight.sends, flight.recvs, options);
    return absl::OkStatus();
  };
  absl::Status status = start(0);
  for (int64_t round = 0; round < rounds; ++round) {
    if (status.ok() && round + 1 < rounds) status = start(round + 1);
    if (status.ok() && !on_device) local(round, rounds, copier_);
    // Aborts, so that messages in transit do not wait for this rank.
    if (!status.ok() && group.health().ok()) group.Abort(status);
    Flight& flight = flights[static_cast<size_t>(round % kRoundsInFlight)];
    if (!flight.work) break;
    status.Update(EndRound(flight, round, status, DeadlineOf(group, options)));
  }
  return status;
}

}  // namespace sherd::internal
