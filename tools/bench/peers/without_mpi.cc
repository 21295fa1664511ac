#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/peers/mpi_peers.h"

namespace sherd {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "bench was built without Open MPI: apt-get install libopenmpi-dev "
      "openmpi-bin, and build again");
}

}  // namespace

bool HasOpenMpi() { return false; }

absl::StatusOr<std::unique_ptr<RankWork>> MakeOpenMpiCollective(
    RankContext&, const CollectiveShape&) {
  return Absent();
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiPackedMove(RankContext&,
                                                            const Move&) {
  return Absent();
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiTypedMove(RankContext&,
                                                           const Move&) {
  return Absent();
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiRootMove(RankContext&,
                                                          const Move&) {
  return Absent();
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeScalapackMove(RankContext&,
                                                            const Move&) {
  return Absent();
}

absl::Status FindScalapack() { return Absent(); }

}  // namespace sherd
