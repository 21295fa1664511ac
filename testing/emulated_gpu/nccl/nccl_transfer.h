#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_TRANSFER_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/testing/emulated_gpu/nccl/nccl_segment.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {

// Precedes each message, so that the receiver can check the sender's call.
struct NcclMessageHeader {
  NcclSignature signature;
  // Of collectives: its number in the communicator, and the number of the
  // message.
  uint64_t sequence = 0;
  uint64_t step = 0;
  uint64_t bytes = 0;

  friend bool operator==(const NcclMessageHeader&,
                         const NcclMessageHeader&) = default;
};

// How a rank waits while it moves data.
struct NcclWaiting {
  const NcclSegment* segment = nullptr;
  int rank = 0;
  // Whether to give up: the communicator was aborted or revoked.
  std::function<bool()> ended;
  // Reports that ranks contradict each other.
  std::function<void(const std::string&)> mismatch;
  // The process is killed once it has moved so many bytes; for tests.
  uint64_t die_after = UINT64_MAX;
};

// Moves messages between this rank and others, all at the same time; those of
// one direction and peer in order. Memory is that of the host.
//
// Threads. One for each rank and kind of traffic.
class NcclTransfer {
 public:
  NcclTransfer(NcclTraffic traffic, const NcclWaiting& waiting)
      : traffic_(traffic), waiting_(waiting) {}

  void Send(int to, const NcclMessageHeader& header, const void* data);
  void Receive(int from, const NcclMessageHeader& header, void* data);

  // Returns true once all are received, and sent: handed over, or with
  // `until_received` taken by the receivers. Returns false if it gave up.
  bool Run(bool until_received);

 private:
  struct Message {
    NcclMessageHeader header;
    // The header that was received.
    NcclMessageHeader other;
    char* data = nullptr;
    // Of header and data together.
    uint64_t moved = 0;
  };
  struct Lane {
    int peer = 0;
    bool sends = false;
    NcclChannel* channel = nullptr;
    size_t next = 0;
    std::vector<Message> messages;
  };

  Lane& LaneOf(int peer, bool sends);
  bool Progress(Lane& lane);
  // Bytes moved.
  uint64_t Step(Lane& lane, Message& message);
  bool IsDone(const Lane& lane, bool until_received) const;

  const NcclTraffic traffic_;
  const NcclWaiting& waiting_;
  std::vector<Lane> lanes_;
  uint64_t moved_ = 0;
  bool contradicted_ = false;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_TRANSFER_H_
