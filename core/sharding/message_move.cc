#include "sherd/core/sharding/message_move.h"

#include <algorithm>
#include <utility>

#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/strided_copy.h"

namespace sherd::internal {

// Decides whether a message is one run of memory already.
std::byte* MessageMove::FindRun(const std::vector<PlacedPiece>& pieces) {
  const std::byte* end = pieces[0].data;
  for (const PlacedPiece& piece : pieces) {
    if (piece.data != end || !IsContiguousRun(piece.sizes, *piece.strides)) {
      return nullptr;
    }
    end += piece.bytes;
  }
  return pieces[0].data;
}

// The messages of all peers at this rank's end. `shard_of` is the member of a
// piece that says which of this rank's shards it is in.
template <typename Pointer>
std::vector<MessageMove::Channel> MessageMove::BuildChannels(
    const std::vector<PeerCopies>& peers, const ShardTable<Pointer>& shards,
    int BoxPiece::*shard_of, int64_t message_bytes) const {
  std::vector<Channel> channels;
  channels.reserve(peers.size());
  for (const PeerCopies& peer : peers) {
    Channel& channel = channels.emplace_back();
    channel.peer = peer.peer;
    for (const MessageRound& round :
         CutIntoRounds(peer.copies, element_size_, message_bytes)) {
      Message& message = channel.messages.emplace_back();
      message.bytes = round.bytes;
      message.pieces.reserve(round.pieces.size());
      for (const BoxPiece& piece : round.pieces) {
        const auto shard = shards.Find(piece.*shard_of, piece.sizes.size());
        SHERD_CHECK(shard.ok());
        message.pieces.push_back(
            {.data = AddressIn(**shard, piece.offsets, element_size_),
             .sizes = piece.sizes,
             .strides = &(*shard)->strides,
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

absl::Status MessageMove::Prepare(const ReshardPlan& plan,
                                  const ShardTable<const void*>& sources,
                                  const ShardTable<void*>& destinations,
                                  int64_t message_bytes) {
  sends_ =
      BuildChannels(plan.sends(), sources, &BoxPiece::src_shard, message_bytes);
  receives_ = BuildChannels(plan.receives(), destinations, &BoxPiece::dst_shard,
                            message_bytes);
  return AllocateStaging();
}

absl::Status MessageMove::AllocateStaging() {
  int64_t bytes = 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      bytes += kRoundsInFlight * channel.staged_bytes_per_round;
    }
  }
  staging_bytes_ = bytes;
  // That of an earlier Prepare goes before new memory comes.
  staging_ = nullptr;
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

int64_t MessageMove::rounds() const {
  size_t rounds = 0;
  for (const std::vector<Channel>* channels : {&sends_, &receives_}) {
    for (const Channel& channel : *channels) {
      rounds = std::max(rounds, channel.messages.size());
    }
  }
  return static_cast<int64_t>(rounds);
}

void MessageMove::CopyOut(const PlacedPiece& piece, std::byte* bytes) const {
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(bytes, packed, piece.data, *piece.strides, piece.sizes,
              element_size_);
}

void MessageMove::CopyIn(const PlacedPiece& piece,
                         const std::byte* bytes) const {
  const Dims packed = ContiguousStrides(piece.sizes);
  StridedCopy(piece.data, *piece.strides, bytes, packed, piece.sizes,
              element_size_);
}

void MessageMove::Pack(int64_t round, Flight& flight) {
  const size_t index = static_cast<size_t>(round);
  std::fill(flight.sends.begin(), flight.sends.end(), ConstBytes());
  std::fill(flight.recvs.begin(), flight.recvs.end(), MutableBytes());
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    std::byte* const place = message.direct != nullptr
                                 ? message.direct
                                 : channel.staging[index % kRoundsInFlight];
    flight.recvs[channel.peer] =
        MutableBytes(place, static_cast<size_t>(message.bytes));
  }
  for (const Channel& channel : sends_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    std::byte* place = message.direct;
    if (place == nullptr) {
      place = channel.staging[index % kRoundsInFlight];
      std::byte* next = place;
      for (const PlacedPiece& piece : message.pieces) {
        CopyOut(piece, next);
        next += piece.bytes;
      }
      bytes_staged_ += message.bytes;
    }
    flight.sends[channel.peer] =
        ConstBytes(place, static_cast<size_t>(message.bytes));
  }
}

void MessageMove::Unpack(int64_t round) {
  const size_t index = static_cast<size_t>(round);
  for (const Channel& channel : receives_) {
    if (index >= channel.messages.size()) continue;
    const Message& message = channel.messages[index];
    if (message.direct != nullptr) continue;
    const std::byte* next = channel.staging[index % kRoundsInFlight];
    for (const PlacedPiece& piece : message.pieces) {
      CopyIn(piece, next);
      next += piece.bytes;
    }
    bytes_staged_ += message.bytes;
  }
}

absl::Status MessageMove::Run(
    ProcessGroup& group, int64_t rounds, const CollectiveOptions& options,
    absl::FunctionRef<void(int64_t round)> meanwhile) {
  SHERD_CHECK(rounds >= this->rounds());
  if (rounds > 1) return RunPipelined(group, rounds, options, meanwhile);
  if (rounds == 0) return absl::OkStatus();
  meanwhile(0);
  return RunOnce(group, options);
}

absl::Status MessageMove::RunOnce(ProcessGroup& group,
                                  const CollectiveOptions& options) {
  const size_t ranks = static_cast<size_t>(group.size());
  Flight flight = {std::vector<ConstBytes>(ranks),
                   std::vector<MutableBytes>(ranks), std::nullopt};
  Pack(0, flight);
  SHERD_RETURN_IF_ERROR(group.AllToAllV(flight.sends, flight.recvs, options));
  Unpack(0);
  return absl::OkStatus();
}

absl::Status MessageMove::RunPipelined(
    ProcessGroup& group, int64_t rounds, const CollectiveOptions& options,
    absl::FunctionRef<void(int64_t round)> meanwhile) {
  std::array<Flight, kRoundsInFlight> flights;
  for (Flight& flight : flights) {
    flight.sends.resize(static_cast<size_t>(group.size()));
    flight.recvs.resize(static_cast<size_t>(group.size()));
  }
  const auto start = [&](int64_t round) {
    Flight& flight = flights[static_cast<size_t>(round % kRoundsInFlight)];
    Pack(round, flight);
    flight.work = group.AllToAllVAsync(flight.sends, flight.recvs, options);
  };
  absl::Status status;
  start(0);
  for (int64_t round = 0; round < rounds; ++round) {
    if (status.ok() && round + 1 < rounds) start(round + 1);
    if (status.ok()) meanwhile(round);
    std::optional<Work>& work =
        flights[static_cast<size_t>(round % kRoundsInFlight)].work;
    if (!work) break;
    // Also after an error: the buffers are in use until the work ended.
    status.Update(work->Wait());
    work.reset();
    if (status.ok()) Unpack(round);
  }
  return status;
}

}  // namespace sherd::internal
