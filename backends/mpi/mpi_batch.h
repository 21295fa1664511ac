#ifndef SHERD_BACKENDS_MPI_MPI_BATCH_H_
#define SHERD_BACKENDS_MPI_MPI_BATCH_H_

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/mpi/mpi_library.h"

namespace sherd::internal {

// Messages longer than this are cut: MPI counts with int.
inline constexpr uint64_t kMaxMpiBytes = uint64_t{1} << 30;

// Messages without data and with this tag announce that their sender aborted
// the group.
inline constexpr int kAbortTag = 1;

// The rank from which such a notice has arrived, or -1. Call it within a
// MpiLibrary::Scope.
int FindAbortNotice(MPI_Comm comm);

// The key in the group's store that is set once the rank has left.
std::string MpiLeftKey(int rank);

// The conditions that a wait checks while no message arrives.
struct MpiWait {
  // Where notices of abortion arrive; null if nowhere.
  MPI_Comm notices;
  // Null: ranks do not leave.
  const sherd_kv_v0* kv;
  const std::atomic<bool>& aborted;
  int64_t deadline;
};

// Non-blocking requests that are started together and awaited together. Reused,
// so that no batch allocates.
//
// Threads. One at a time, within a MpiLibrary::Scope.
class MpiBatch {
 public:
  // Sends data[0, bytes) to `peer`, or receives it; 0 bytes are a message too.
  void Send(const void* data, uint64_t bytes, int peer, int tag, MPI_Comm comm);
  void Receive(void* data, uint64_t bytes, int peer, int tag, MPI_Comm comm);

  // Starts a collective: `start` is a call of MPI that fills the request.
  template <typename Start>
  void Begin(Start start) {
    MPI_Request* const request = Add(-1, -1);
    Note(MpiLibrary::Get().Call([&] { return start(request); }));
  }

  // Waits until all requests have ended, and empties the batch.
  //   SHERD_INVALID_ARGUMENT  A message has an unexpected length.
  //   SHERD_TIMEOUT           error.peer is the peer of the first unfinished
  //                           message; -1 for a collective.
  //   SHERD_ABORTED           This rank aborted.
  //   SHERD_PEER_LOST         error.peer aborted the group, or left it.
  // After an error nothing uses the buffers any more, which may mean that MPI
  // was abandoned.
  sherd_code Await(const MpiWait& wait, sherd_error_v0* error);

 private:
  struct Part {
    int peer;   // -1: a collective
    int bytes;  // -1: not a receive
  };

  MPI_Request* Add(int peer, int bytes);
  void Note(int result);
  bool Poll();
  sherd_code Watch(const MpiWait& wait, int64_t now, sherd_error_v0* error);
  sherd_code Check(sherd_error_v0* error);
  int FirstUnfinishedPeer();
  // Whether the peer of the first unfinished message has left, long enough ago
  // that everything it sent has arrived.
  bool PeerHasLeft(const MpiWait& wait, int64_t now, int* peer);
  void GiveUp();

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Part> parts_;
  int result_ = MPI_SUCCESS;
  // State of the current wait: when to check next, and since when a peer is
  // known to have left.
  int64_t next_notice_ = 0;
  int64_t next_store_ = 0;
  int64_t left_since_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_MPI_MPI_BATCH_H_
