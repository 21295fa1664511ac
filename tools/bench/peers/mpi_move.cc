#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/peers/bare_move.h"
#include "sherd/tools/bench/peers/bare_mpi.h"
#include "sherd/tools/bench/peers/move.h"
#include "sherd/tools/bench/peers/mpi_peers.h"

namespace sherd {
namespace {

template <typename Work>
absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context,
                                               const Move& move) {
  StartMpi();
  auto work = std::make_unique<Work>(context, move);
  SHERD_RETURN_IF_ERROR(work->Init());
  return work;
}

// As MPI has them: counts, and where each rank's words begin.
struct Counts {
  explicit Counts(const std::vector<int64_t>& by_rank) {
    int64_t end = 0;
    for (const int64_t count : by_rank) {
      counts.push_back(static_cast<int>(count));
      starts.push_back(static_cast<int>(end));
      end += count;
    }
  }

  std::vector<int> counts;
  std::vector<int> starts;
};

class MpiPackedMove final : public PackedMove {
 public:
  MpiPackedMove(RankContext& context, const Move& move)
      : PackedMove(context, move),
        send_(send_counts()),
        receive_(receive_counts()) {}
  using BareMove::Init;

 private:
  absl::Status Send(const uint32_t* send, uint32_t* receive) override {
    return StatusOfMpi(
        MPI_Alltoallv(send, send_.counts.data(), send_.starts.data(),
                      MPI_UINT32_T, receive, receive_.counts.data(),
                      receive_.starts.data(), MPI_UINT32_T, MPI_COMM_WORLD));
  }

  const Counts send_;
  const Counts receive_;
};

// A datatype for pieces of `boxes`, which are stored one after another.
class PieceType {
 public:
  PieceType(const std::vector<Piece>& pieces, const RankBoxes& boxes,
            bool of_source) {
    if (pieces.empty()) return;
    const std::vector<int64_t> offsets = OffsetsInTurn(boxes);
    std::vector<int> lengths(pieces.size(), 1);
    std::vector<MPI_Aint> starts;
    std::vector<MPI_Datatype> types;
    for (const Piece& piece : pieces) {
      const int i = of_source ? piece.from : piece.to;
      starts.push_back(offsets[i] * int64_t{sizeof(uint32_t)});
      types.push_back(TypeIn(boxes[i], piece.box));
    }
    MPI_Type_create_struct(static_cast<int>(pieces.size()), lengths.data(),
                           starts.data(), types.data(), &type_);
    MPI_Type_commit(&type_);
    count_ = 1;
    for (MPI_Datatype& type : types) MPI_Type_free(&type);
  }
  PieceType(const PieceType&) = delete;
  PieceType& operator=(const PieceType&) = delete;
  // Types live as long as the process: this may outlive MPI.

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  static MPI_Datatype TypeIn(const WordBox& box, const WordBox& piece) {
    std::array<int, 3> sizes;
    std::array<int, 3> subsizes;
    std::array<int, 3> starts;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      sizes[dim] = static_cast<int>(box.sizes[dim]);
      subsizes[dim] = static_cast<int>(piece.sizes[dim]);
      starts[dim] = static_cast<int>(piece.offsets[dim] - box.offsets[dim]);
    }
    MPI_Datatype type;
    MPI_Type_create_subarray(3, sizes.data(), subsizes.data(), starts.data(),
                             MPI_ORDER_C, MPI_UINT32_T, &type);
    return type;
  }

  int count_ = 0;
  MPI_Datatype type_ = MPI_UINT32_T;
};

class MpiTypedMove final : public BareMove {
 public:
  MpiTypedMove(RankContext& context, const Move& move)
      : BareMove(context, move), starts_(world(), 0) {
    const RankBoxes& from = move.from[rank()];
    const RankBoxes& to = move.to[rank()];
    for (int peer = 0; peer < world(); ++peer) {
      const PieceType send(PiecesBetween(from, move.to[peer]), from,
                           /*of_source=*/true);
      const PieceType receive(PiecesBetween(move.from[peer], to), to,
                              /*of_source=*/false);
      send_counts_.push_back(send.count());
      send_types_.push_back(send.type());
      receive_counts_.push_back(receive.count());
      receive_types_.push_back(receive.type());
    }
  }
  using BareMove::Init;

 private:
  absl::Status Exchange() override {
    return StatusOfMpi(MPI_Alltoallw(
        source_words(), send_counts_.data(), starts_.data(), send_types_.data(),
        destination_words(), receive_counts_.data(), starts_.data(),
        receive_types_.data(), MPI_COMM_WORLD));
  }

  const std::vector<int> starts_;
  std::vector<int> send_counts_;
  std::vector<MPI_Datatype> send_types_;
  std::vector<int> receive_counts_;
  std::vector<MPI_Datatype> receive_types_;
};

// Shards of rows are runs of the whole.
class MpiRootMove final : public BareMove {
 public:
  MpiRootMove(RankContext& context, const Move& move)
      : BareMove(context, move), shards_(ShardWords(move)) {}
  using BareMove::Init;

 private:
  static std::vector<int64_t> ShardWords(const Move& move) {
    std::vector<int64_t> words;
    for (const RankBoxes& boxes :
         move.verb == MoveVerb::kGather ? move.from : move.to) {
      words.push_back(WordsOf(boxes));
    }
    return words;
  }

  absl::Status Exchange() override {
    const int own = shards_.counts[rank()];
    return StatusOfMpi(
        move().verb == MoveVerb::kGather
            ? MPI_Gatherv(source_words(), own, MPI_UINT32_T,
                          destination_words(), shards_.counts.data(),
                          shards_.starts.data(), MPI_UINT32_T, /*root=*/0,
                          MPI_COMM_WORLD)
            : MPI_Scatterv(source_words(), shards_.counts.data(),
                           shards_.starts.data(), MPI_UINT32_T,
                           destination_words(), own, MPI_UINT32_T, /*root=*/0,
                           MPI_COMM_WORLD));
  }

  const Counts shards_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiPackedMove(
    RankContext& context, const Move& move) {
  return Make<MpiPackedMove>(context, move);
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiTypedMove(RankContext& context,
                                                           const Move& move) {
  return Make<MpiTypedMove>(context, move);
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeMpiRootMove(RankContext& context,
                                                          const Move& move) {
  return Make<MpiRootMove>(context, move);
}

}  // namespace sherd
