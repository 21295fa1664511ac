#include "sherd/tools/bench/peers/bare_move.h"

#include <any>
#include <utility>

#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

std::shared_ptr<BareBuffers> BuffersOf(RankContext& context) {
  if (!context.common().has_value()) {
    context.common() = std::make_shared<BareBuffers>();
  }
  return std::any_cast<std::shared_ptr<BareBuffers>>(context.common());
}

// Has `memory` hold `words`, if it does not yet.
absl::Status EnsureWords(int64_t words, WordMemory& memory) {
  if (memory.words() != nullptr) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(memory, WordMemory::Allocate(words));
  return absl::OkStatus();
}

}  // namespace

BareMove::BareMove(RankContext& context, const Move& move)
    : move_(move), rank_(context.rank()), buffers_(BuffersOf(context)) {}

absl::Status BareMove::Init() {
  if (buffers_->source.words() != nullptr) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(
      EnsureWords(WordsOf(move_.from[rank_]), buffers_->source));
  Fill(move_.tensor, source());
  return absl::OkStatus();
}

uint32_t* BareMove::destination_words() const {
  return (first_ ? fresh_destination_ : buffers_->destination).words();
}

std::vector<StoredBox> BareMove::source() const {
  return StoreInTurn(move_.from[rank_], source_words());
}

std::vector<StoredBox> BareMove::destination() const {
  return StoreInTurn(move_.to[rank_], destination_words());
}

absl::Status BareMove::Prepare() {
  if (first_) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(
      EnsureWords(WordsOf(move_.to[rank_]), buffers_->destination));
  Spoil(move_.tensor, destination());
  return AllocateMore();
}

absl::Status BareMove::Run() {
  if (first_) {
    SHERD_ASSIGN_OR_RETURN(fresh_destination_,
                           WordMemory::Allocate(WordsOf(move_.to[rank_])));
    SHERD_RETURN_IF_ERROR(AllocateMore());
  }
  return Exchange();
}

absl::Status BareMove::Check() {
  SHERD_RETURN_IF_ERROR(sherd::Check(move_.tensor, destination()));
  first_ = false;
  fresh_destination_ = WordMemory();
  return absl::OkStatus();
}

std::optional<WorkFigures> BareMove::Figures() const {
  const RankBoxes& from = move_.from[rank_];
  const RankBoxes& to = move_.to[rank_];
  int64_t kept = 0;
  for (const Piece& piece : PiecesBetween(from, to)) kept += piece.box.bytes();
  constexpr int64_t kWord = sizeof(uint32_t);
  return WorkFigures{.bytes_sent = WordsOf(from) * kWord - kept,
                     .bytes_received = WordsOf(to) * kWord - kept};
}

PackedMove::PackedMove(RankContext& context, const Move& move)
    : BareMove(context, move),
      send_(SideOf(move.from[context.rank()], move.to,
                   /*own_is_source=*/true)),
      receive_(SideOf(move.to[context.rank()], move.from,
                      /*own_is_source=*/false)) {}

PackedMove::Side PackedMove::SideOf(const RankBoxes& own,
                                    const BoxLayout& others,
                                    bool own_is_source) {
  Side side;
  const std::vector<int64_t> starts = OffsetsInTurn(own);
  int64_t offset = 0;
  for (const RankBoxes& other : others) {
    side.pieces.push_back(own_is_source ? PiecesBetween(own, other)
                                        : PiecesBetween(other, own));
    side.counts.push_back(0);
    for (const Piece& piece : side.pieces.back()) {
      const int i = own_is_source ? piece.from : piece.to;
      const StoredBox box = DenseBox(own[i], nullptr);
      side.in_place &=
          box.IsRun(piece.box) && starts[i] + box.OffsetOf(piece.box) == offset;
      offset += piece.box.words();
      side.counts.back() += piece.box.words();
    }
  }
  return side;
}

absl::Status PackedMove::AllocateMore() {
  if (!send_.in_place) {
    SHERD_RETURN_IF_ERROR(
        EnsureWords(WordsOf(move().from[rank()]),
                    is_first() ? fresh_send_ : buffers().packed_source));
  }
  if (!receive_.in_place) {
    SHERD_RETURN_IF_ERROR(EnsureWords(
        WordsOf(move().to[rank()]),
        is_first() ? fresh_receive_ : buffers().packed_destination));
  }
  if (!is_first()) {
    fresh_send_ = WordMemory();
    fresh_receive_ = WordMemory();
  }
  return absl::OkStatus();
}

absl::Status PackedMove::Exchange() {
  uint32_t* send = source_words();
  if (!send_.in_place) {
    send = (is_first() ? fresh_send_ : buffers().packed_source).words();
    const std::vector<StoredBox> stored = source();
    uint32_t* to = send;
    for (const auto& pieces : send_.pieces) {
      for (const Piece& piece : pieces) {
        CopyPiece(DenseBox(piece.box, to), stored[piece.from], piece.box);
        to += piece.box.words();
      }
    }
  }
  uint32_t* receive = destination_words();
  if (!receive_.in_place) {
    receive =
        (is_first() ? fresh_receive_ : buffers().packed_destination).words();
  }
  SHERD_RETURN_IF_ERROR(Send(send, receive));
  if (receive_.in_place) return absl::OkStatus();
  const std::vector<StoredBox> stored = destination();
  uint32_t* from = receive;
  for (const auto& pieces : receive_.pieces) {
    for (const Piece& piece : pieces) {
      CopyPiece(stored[piece.to], DenseBox(piece.box, from), piece.box);
      from += piece.box.words();
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
