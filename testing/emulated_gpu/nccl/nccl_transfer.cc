#include "sherd/testing/emulated_gpu/nccl/nccl_transfer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace sherd::testing {
namespace {

// A send answers a receive.
NcclMessageHeader AsSend(NcclMessageHeader header) {
  if (header.signature.function == static_cast<int>(NcclFunction::kRecv)) {
    header.signature.function = static_cast<int>(NcclFunction::kSend);
  }
  return header;
}

}  // namespace

NcclTransfer::Lane& NcclTransfer::LaneOf(int peer, bool sends) {
  for (Lane& lane : lanes_) {
    if (lane.peer == peer && lane.sends == sends) return lane;
  }
  const int own = waiting_.rank;
  Lane& lane = lanes_.emplace_back();
  lane.peer = peer;
  lane.sends = sends;
  lane.channel = &waiting_.segment->channel(traffic_, sends ? own : peer,
                                            sends ? peer : own);
  return lane;
}

void NcclTransfer::Send(int to, const NcclMessageHeader& header,
                        const void* data) {
  char* const bytes = const_cast<char*>(static_cast<const char*>(data));
  LaneOf(to, true).messages.push_back({header, {}, bytes, 0});
}

void NcclTransfer::Receive(int from, const NcclMessageHeader& header,
                           void* data) {
  LaneOf(from, false)
      .messages.push_back({AsSend(header), {}, static_cast<char*>(data), 0});
}

uint64_t NcclTransfer::Step(Lane& lane, Message& message) {
  constexpr uint64_t kHeader = sizeof(NcclMessageHeader);
  char* const header =
      reinterpret_cast<char*>(lane.sends ? &message.header : &message.other);
  const bool in_header = message.moved < kHeader;
  char* const at = in_header ? header + message.moved
                             : message.data + (message.moved - kHeader);
  const uint64_t left =
      (in_header ? kHeader : kHeader + message.header.bytes) - message.moved;
  if (left == 0) return 0;
  const uint64_t step =
      lane.sends ? lane.channel->Write(at, left) : lane.channel->Read(at, left);
  message.moved += step;
  if (!lane.sends && in_header && message.moved == kHeader &&
      message.other != message.header) {
    contradicted_ = true;
    waiting_.mismatch("rank " + std::to_string(lane.peer) + " sent " +
                      Describe(message.other.signature) + ", but rank " +
                      std::to_string(waiting_.rank) + " expected " +
                      Describe(message.header.signature));
  }
  return step;
}

bool NcclTransfer::Progress(Lane& lane) {
  uint64_t moved = 0;
  while (lane.next < lane.messages.size() && !contradicted_) {
    Message& message = lane.messages[lane.next];
    const uint64_t step = Step(lane, message);
    moved += step;
    if (message.moved == sizeof(NcclMessageHeader) + message.header.bytes) {
      ++lane.next;
    } else if (step == 0) {
      break;
    }
  }
  if (moved == 0) return false;
  moved_ += moved;
  waiting_.segment->Ring(lane.peer);
  if (moved_ >= waiting_.die_after) kill(getpid(), SIGKILL);
  return true;
}

bool NcclTransfer::IsDone(const Lane& lane, bool until_received) const {
  return lane.next == lane.messages.size() &&
         (!until_received || !lane.sends ||
          lane.channel->read.load() == lane.channel->written.load());
}

bool NcclTransfer::Run(bool until_received) {
  const NcclRankBlock& own = waiting_.segment->rank(waiting_.rank);
  for (int looks = 0;; ++looks) {
    const uint32_t seen = own.bell.load();
    bool moved = false;
    for (Lane& lane : lanes_) moved |= Progress(lane);
    if (!contradicted_ &&
        std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
          return IsDone(lane, until_received);
        })) {
      return true;
    }
    if (waiting_.ended()) return false;
    if (moved) {
      looks = 0;
      continue;
    }
    waiting_.segment->Pause(waiting_.rank, seen, looks);
  }
}

}  // namespace sherd::testing
