#ifndef SHERD_TOOLS_BENCH_PEERS_BARE_MOVE_H_
#define SHERD_TOOLS_BENCH_PEERS_BARE_MOVE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/peers/box_layout.h"
#include "sherd/tools/bench/peers/move.h"
#include "sherd/tools/bench/peers/word_memory.h"

namespace sherd {

// Shared by peers without Sherd in a rank: each has its turn alone. Boxes are
// stored one after another.
struct BareBuffers {
  WordMemory source;
  // Created by the first peer that needs them. Warm.
  WordMemory destination;
  WordMemory packed_source;
  WordMemory packed_destination;
};

// A move over private memory. A subclass moves; a first call has untouched
// memory of its own.
class BareMove : public RankWork {
 public:
  absl::Status Prepare() final;
  absl::Status Run() final;
  absl::Status Check() final;
  // By construction, this peer moves only the necessary bytes.
  std::optional<WorkFigures> Figures() const final;

 protected:
  // Collective with the same peer of other ranks: shares RankContext::common().
  BareMove(RankContext& context, const Move& move);
  absl::Status Init();

  // Before a move, with all memory in place.
  virtual absl::Status AllocateMore() { return absl::OkStatus(); }
  virtual absl::Status Exchange() = 0;

  const Move& move() const { return move_; }
  int rank() const { return rank_; }
  int world() const { return static_cast<int>(move_.from.size()); }
  bool is_first() const { return first_; }
  BareBuffers& buffers() { return *buffers_; }

  uint32_t* source_words() const { return buffers_->source.words(); }
  uint32_t* destination_words() const;
  std::vector<StoredBox> source() const;
  std::vector<StoredBox> destination() const;

 private:
  const Move move_;
  const int rank_;
  const std::shared_ptr<BareBuffers> buffers_;
  bool first_ = true;
  WordMemory fresh_destination_;
};

// The same with messages of contiguous words, one for each pair of ranks.
class PackedMove : public BareMove {
 protected:
  PackedMove(RankContext& context, const Move& move);

  // Sends `send`, which has send_counts()[r] words for each rank r in turn, and
  // receives likewise.
  virtual absl::Status Send(const uint32_t* send, uint32_t* receive) = 0;

  const std::vector<int64_t>& send_counts() const { return send_.counts; }
  const std::vector<int64_t>& receive_counts() const { return receive_.counts; }

 private:
  struct Side {
    // By rank.
    std::vector<std::vector<Piece>> pieces;
    std::vector<int64_t> counts;
    // The pieces are already contiguous.
    bool in_place = true;
  };

  static Side SideOf(const RankBoxes& own, const BoxLayout& others,
                     bool own_is_source);

  absl::Status AllocateMore() final;
  absl::Status Exchange() final;

  const Side send_;
  const Side receive_;
  WordMemory fresh_send_;
  WordMemory fresh_receive_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_BARE_MOVE_H_
