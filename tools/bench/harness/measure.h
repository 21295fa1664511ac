#ifndef SHERD_TOOLS_BENCH_HARNESS_MEASURE_H_
#define SHERD_TOOLS_BENCH_HARNESS_MEASURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/report.h"

namespace sherd {

// One cell of the table: some peers of a case at one size.
struct Measurement {
  const BenchCase* bench_case = nullptr;
  // Indices of the case's peers, in their order.
  std::vector<int> peers;
  int world = 1;
  // 0 if the case is not sized.
  int64_t bytes = 0;
  // Calls that count; 0: a number that suits the size.
  int calls = 0;
};

// "reshard_0_to_1, 4 ranks, 64 MiB".
std::string Describe(const Measurement& measurement);

// Returns OK if it can be measured here, otherwise the reason.
absl::Status CanMeasure(const Measurement& measurement);
// The same for one of the peers, by its index.
absl::Status CanMeasurePeer(const Measurement& measurement, int peer);

struct Measured {
  // In the order of the peers; of those with one name, the fastest.
  std::vector<BenchResult> results;
  // Errors of peers that do not run together with the others.
  std::vector<absl::Status> failures;
};

// Starts the ranks, lets the peers take turns and returns a result for each.
// Peers that need ranks of their own (another transport of MPI, a program) come
// after the others, one after another. Files are in a directory below TMPDIR,
// which is removed afterwards.
//
// Method. The same for all peers:
//   - ranks are processes, and nothing is pinned to a processor, as with users:
//     a pinned rank waits up to 4 ms for its processor if one of Gloo's threads
//     runs there, ten times as long as moving 1 MiB takes;
//   - private buffers come from Sherd's heap allocator, which asks for huge
//     pages, and are reused in each call; memory that ranks share is warm too
//     (the kernel decides about its page size);
//   - a call is timed from the first rank that enters to the last that leaves;
//     the ranks meet before it and after it (see SharedBarrier), so that calls
//     of some microseconds include the 50 us in which the ranks wake up;
//   - before each call its destinations are overwritten, and after each call
//     every element is compared, outside of the measured time;
//   - peers take turns: a first call of each, reported separately, then calls
//     that count: 51 up to 1 MiB, 15 up to 64 MiB, for starts, and where short
//     calls are timed in groups, 5 above;
//   - the first call of a move creates its result in untouched memory, and its
//     memory is measured: the growth from before to after it.
//
//   kDataLoss    A result was wrong; the message names peer and rank.
//   kCancelled   `stop_fd` became readable.
//   other        A peer failed, or a rank died.
absl::StatusOr<Measured> Measure(const Measurement& measurement, int stop_fd);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_MEASURE_H_
