#include <mpi.h>

#include <memory>

#include "sherd/tools/bench/harness/mpirun.h"
#include "sherd/tools/bench/peers/bare_mpi.h"
#include "sherd/tools/bench/peers/collective_work.h"
#include "sherd/tools/bench/peers/mpi_peers.h"

namespace sherd {
namespace {

class OpenMpiCollective final : public CollectiveWork {
 public:
  using CollectiveWork::CollectiveWork;
  OpenMpiCollective(RankContext& context, const CollectiveShape& shape)
      : CollectiveWork(context, shape) {}

  absl::Status Run() override { return StatusOfMpi(Move()); }

 private:
  int Move() {
    switch (shape().kind) {
      case BenchCollective::kBarrier:
        return MPI_Barrier(MPI_COMM_WORLD);
      case BenchCollective::kBroadcast:
        return MPI_Bcast(recv().data(), static_cast<int>(recv().size()),
                         MPI_BYTE, 0, MPI_COMM_WORLD);
      case BenchCollective::kAllReduce:
        return MPI_Allreduce(send().data(), recv().data(),
                             static_cast<int>(send().size() / sizeof(float)),
                             MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      case BenchCollective::kAllGather: {
        const int block = static_cast<int>(send().size());
        return MPI_Allgather(send().data(), block, MPI_BYTE, recv().data(),
                             block, MPI_BYTE, MPI_COMM_WORLD);
      }
      case BenchCollective::kAllToAll: {
        const int block = static_cast<int>(send().size()) / shape().world;
        return MPI_Alltoall(send().data(), block, MPI_BYTE, recv().data(),
                            block, MPI_BYTE, MPI_COMM_WORLD);
      }
    }
    return MPI_ERR_OTHER;
  }
};

}  // namespace

bool HasOpenMpi() { return !FindMpirun().empty(); }

absl::StatusOr<std::unique_ptr<RankWork>> MakeOpenMpiCollective(
    RankContext& context, const CollectiveShape& shape) {
  StartMpi();
  return std::make_unique<OpenMpiCollective>(context, shape);
}

}  // namespace sherd
