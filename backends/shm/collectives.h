#ifndef SHERD_BACKENDS_SHM_COLLECTIVES_H_
#define SHERD_BACKENDS_SHM_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/direct_read.h"
#include "sherd/backends/shm/segment.h"
#include "sherd/backends/shm/waiting.h"

namespace sherd::internal {

// One rank's part in the collectives of a group.
//
// Every operation begins with a synchronization of all ranks, at which the
// calls are compared. Data passes through the ranks' outboxes: each rank fills
// its own, and empties those of the others after the next synchronization. Data
// that fits into one box is put there before the first synchronization and
// needs no other; longer data goes in rounds, each with a synchronization,
// alternating between two boxes.
//
// Data of medium length, which the caches hold, is copied once instead if the
// system lets ranks read each other's processes: each rank reads directly from
// the others' buffers, and a second synchronization ends the operation.
//
// Reductions have one more stage: each rank reduces its slice of all ranks'
// chunks, and all collect the slices; every rank reduces short ones completely.
//
// Elements are always reduced in the order of ranks, so that all ranks get the
// same bits.
//
// Threads. One call at a time.
class ShmCollectives {
 public:
  ShmCollectives(const ShmSegment& segment, ShmWaiting& waiting, int rank,
                 const sherd_host_v0& host);

  // Runs any operation but SEND and RECV. No other rank ever writes to the
  // caller's buffers.
  //   SHERD_INVALID_ARGUMENT  The ranks called different operations; nothing
  //                           was written to the buffers.
  //   others                  As for ShmWaiting::Await.
  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error);

 private:
  // The ranks whose rounds a rank waits for: those that read its data, and
  // those whose data it reads.
  enum class Partners { kAll, kRoot };

  sherd_code Dispatch(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code Meet(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code MeetAgain(const sherd_op_v0& op, uint64_t round, Partners partners,
                       sherd_error_v0* error);
  // `body(s)` is this rank's work between synchronizations s - 1 and s; it
  // reads the data written before s - 1, and writes box s. `chunk` bytes of
  // each entry pass per round; `stages` counts the synchronizations between the
  // writing of a chunk and its last use.
  template <typename Body>
  sherd_code RunRounds(const sherd_op_v0& op, uint64_t chunk, Partners partners,
                       int stages, const Body& body, sherd_error_v0* error);

  // Operations that copy: the data that this rank sends to all others, or to
  // one of them; and the data that it receives from one.
  sherd_bytes_v0 Given(const sherd_op_v0& op) const;
  sherd_bytes_v0 Given(const sherd_op_v0& op, int to) const;
  sherd_bytes_v0 Wanted(const sherd_op_v0& op, int from) const;
  uint64_t ChunkOf(const sherd_op_v0& op) const;
  sherd_code Move(const sherd_op_v0& op, sherd_error_v0* error);
  void Give(const sherd_op_v0& op, uint64_t s, uint64_t chunk);
  void Take(const sherd_op_v0& op, uint64_t s, uint64_t chunk, bool streamed);

  // The same without boxes. This rank's arrival records whether its data takes
  // this path.
  bool IsReadDirectly(int rank) const;
  bool OfferDirectly(const sherd_op_v0& op);
  sherd_code TakeDirectly(const sherd_op_v0& op, uint64_t first_round,
                          Partners partners, sherd_error_v0* error);
  sherd_code ReadFrom(const sherd_op_v0& op, int from, uint64_t address,
                      sherd_error_v0* error);

  sherd_code ReduceScatter(const sherd_op_v0& op, sherd_error_v0* error);
  // ALL_REDUCE and REDUCE.
  sherd_code ReduceWhole(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code ReduceSlices(const sherd_op_v0& op, sherd_error_v0* error);
  void ReduceSlice(const sherd_op_v0& op, uint64_t s, uint64_t chunk);
  void CollectSlices(const sherd_op_v0& op, uint64_t s, uint64_t chunk) const;
  void Reduce(const sherd_op_v0& op, void* out, uint64_t bytes);

  int size() const { return segment_.ranks(); }
  // The k-th peer of this rank. Each rank begins with a different one, so that
  // not all read the same rank's box at once.
  int Peer(int k) const { return (rank_ + k) % size(); }
  bool IsRoot(const sherd_op_v0& op) const { return rank_ == op.root; }

  // Where `rank` puts, in step `s`, the data that all others read; the whole
  // operation has `bytes` of it.
  unsigned char* Box(uint64_t s, int rank, uint64_t bytes) const;
  // The entry for `to` in the box of `from`, which has one entry per other
  // rank.
  unsigned char* Entry(uint64_t s, int from, int to) const;
  uint64_t entry_bytes() const;

  const ShmSegment& segment_;
  ShmWaiting& waiting_;
  const int rank_;
  const sherd_host_v0& host_;
  // Operations and rounds since the group was created; the same on all ranks.
  uint64_t operation_ = 0;
  uint64_t round_ = 0;
  ReadableMemory readable_;
  // Inputs of a reduction, one per rank.
  std::vector<const void*> inputs_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_COLLECTIVES_H_
