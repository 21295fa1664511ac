#ifndef SHERD_TOOLS_BENCH_PEERS_COLLECTIVE_WORK_H_
#define SHERD_TOOLS_BENCH_PEERS_COLLECTIVE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

enum class BenchCollective {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kAllGather,
  kAllToAll
};

// The bytes that one collective moves; N is the size of the measurement, W the
// number of ranks:
//   broadcast    N from rank 0 to all
//   all_reduce   N of floats on each rank, out of place
//   all_gather   N/W from each rank, N to each
//   all_to_all   N/W on each rank, in W blocks
// The buffers of a rank, which all peers but `limit` share.
struct CollectiveShape {
  BenchCollective kind;
  int world;
  int64_t bytes;

  int64_t send_bytes() const;
  int64_t recv_bytes() const;
  // Why N does not fit the number of ranks, or OK.
  absl::Status Check() const;
};

// One peer's implementation of a collective. Fills, overwrites and compares the
// buffers; a subclass moves.
class CollectiveWork : public RankWork {
 public:
  absl::Status Prepare() override;
  absl::Status Check() override;

 protected:
  // Uses the buffers of the context, which the first peer creates.
  CollectiveWork(RankContext& context, const CollectiveShape& shape);
  // With buffers of its own.
  CollectiveWork(RankContext& context, const CollectiveShape& shape,
                 std::byte* send, std::byte* recv);

  absl::Span<std::byte> send() const;
  absl::Span<std::byte> recv() const;
  int rank() const { return rank_; }
  const CollectiveShape& shape() const { return shape_; }

 private:
  void FillSend();

  const CollectiveShape shape_;
  const int rank_;
  std::byte* send_;
  std::byte* recv_;
};

// A ProcessGroup over `backend`.
absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdCollective(
    RankContext& context, const CollectiveShape& shape,
    const std::string& backend);

// Gloo's own collectives.
absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooCollective(
    RankContext& context, const CollectiveShape& shape);

// memcpy and adding between buffers that all ranks map.
absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitCollective(
    RankContext& context, const CollectiveShape& shape);
int64_t LimitCollectiveBytes(const CollectiveShape& shape);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_COLLECTIVE_WORK_H_
