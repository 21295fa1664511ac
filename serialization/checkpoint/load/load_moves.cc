#include "sherd/serialization/checkpoint/load/load_moves.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

template <typename Memory>
void ListMemory(const ShardedTensor& tensor, int first,
                std::vector<Memory>& memory) {
  const absl::Span<const int> indices = tensor.local_shard_indices();
  for (size_t i = 0; i < indices.size(); ++i) {
    Tensor shard = tensor.local_shards()[i].tensor;
    if (shard.numel() == 0) continue;
    const size_t index = static_cast<size_t>(indices[i]);
    memory.push_back(
        {.shard = first + indices[i],
         .offsets = tensor.placed_boxes()[index].offsets,
         .strides = Dims(shard.strides().begin(), shard.strides().end()),
         .data = shard.data(),
         .owner = shard.storage(),
         .device = shard.device(),
         .storage = shard.storage().get()});
  }
}

bool HaveOneLayout(const ShardedTensor& a, const ShardedTensor& b) {
  const absl::Span<const PlacedBox> boxes = a.placed_boxes();
  // Of one tensor they are the same: all of its pieces ask.
  return a.size() == b.size() &&
         (boxes.data() == b.placed_boxes().data() || boxes == b.placed_boxes());
}

}  // namespace

absl::StatusOr<ReshardExecutor> MakeExecutor(MoveList moves,
                                             size_t element_size,
                                             const ProcessGroup& group,
                                             const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(ReshardPlan plan,
                         ReshardPlan::OfCopies(std::move(moves.copies),
                                               group.rank(), group.size()));
  return ReshardExecutor::Create(std::move(plan), element_size, group.size(),
                                 moves.sources, moves.destinations, options);
}

absl::StatusOr<int> ShardNumbers::Add(const ShardedTensor& tensor) {
  const size_t shards = tensor.placed_boxes().size();
  if (shards > static_cast<size_t>(std::numeric_limits<int>::max() - next_)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the tensors to load have more than ", std::numeric_limits<int>::max(),
        " shards; load them in several calls"));
  }
  const int first = next_;
  next_ += static_cast<int>(shards);
  return first;
}

void ListShards(const ShardedTensor& tensor, int first,
                std::vector<DestinationMemory>& memory) {
  ListMemory(tensor, first, memory);
}
void ListShards(const ShardedTensor& tensor, int first,
                std::vector<SourceMemory>& memory) {
  ListMemory(tensor, first, memory);
}

absl::Status LoadExchange::Add(int64_t number, const SavedLayout& saved,
                               const ShardedTensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(const int first, numbers_.Add(tensor));
  stream_.Add(saved);
  entries_.push_back({number, tensor, first});
  return absl::OkStatus();
}

const LoadExchange::WantedIndex& LoadExchange::IndexOf(
    const ShardedTensor& wanted) {
  for (const std::unique_ptr<WantedIndex>& known : indexes_) {
    if (known != nullptr && HaveOneLayout(known->tensor, wanted)) return *known;
  }
  const absl::Span<const PlacedBox> placed = wanted.placed_boxes();
  absl::flat_hash_map<BoxView, size_t> position;
  std::vector<Box> boxes;
  std::vector<std::vector<int>> holders;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (IsEmpty(placed[i])) continue;
    const auto [it, is_new] = position.try_emplace(placed[i], boxes.size());
    if (is_new) {
      boxes.push_back(placed[i]);
      holders.emplace_back();
    }
    holders[it->second].push_back(static_cast<int>(i));
  }
  auto index = std::make_unique<WantedIndex>();
  index->tensor = wanted;
  std::vector<int64_t> order;
  index->layout = SavedLayout::FromBoxes(
      Dims(wanted.size().begin(), wanted.size().end()), boxes, &order);
  for (const int64_t box : order) {
    const std::vector<int>& of_box = holders[static_cast<size_t>(box)];
    index->first.push_back(index->holders.size());
    index->holders.insert(index->holders.end(), of_box.begin(), of_box.end());
  }
  index->first.push_back(index->holders.size());
  std::unique_ptr<WantedIndex>& replaced = indexes_[next_index_];
  next_index_ = (next_index_ + 1) % indexes_.size();
  replaced = std::move(index);
  return *replaced;
}

void LoadExchange::ListSends(const ExchangeStream::Piece& piece,
                             MoveList& moves) {
  const Entry& entry = entries_[piece.tensor];
  const WantedIndex& index = IndexOf(entry.tensor);
  index.layout.ForEachIn(piece.box, [&](int64_t i) {
    const auto box = static_cast<size_t>(i);
    for (size_t h = index.first[box]; h < index.first[box + 1]; ++h) {
      const int shard = index.holders[h];
      const PlacedBox& wanted = entry.tensor.placed_boxes()[shard];
      BoxCopy& copy = moves.copies.emplace_back();
      static_cast<Box&>(copy) = *Intersect(piece.box, wanted);
      copy.src_rank = piece.rank;
      copy.src_shard = static_cast<int>(piece.position);
      copy.dst_rank = wanted.rank;
      copy.dst_shard = entry.first_shard + shard;
    }
    return true;
  });
}

void LoadExchange::ListReceives(int64_t round, size_t tensor,
                                MoveList& moves) const {
  const Entry& entry = entries_[tensor];
  for (const int shard : entry.tensor.local_shard_indices()) {
    const PlacedBox& wanted = entry.tensor.placed_boxes()[shard];
    if (IsEmpty(wanted)) continue;
    stream_.ForEachIn(round, tensor, wanted,
                      [&](const ExchangeStream::Piece& piece) {
                        // ListSends has this rank's own pieces.
                        if (piece.rank == group_.rank()) return;
                        BoxCopy& copy = moves.copies.emplace_back();
                        static_cast<Box&>(copy) = *Intersect(piece.box, wanted);
                        copy.src_rank = piece.rank;
                        copy.src_shard = static_cast<int>(piece.position);
                        copy.dst_rank = group_.rank();
                        copy.dst_shard = entry.first_shard + shard;
                      });
  }
}

absl::StatusOr<MoveList> LoadExchange::PlanRound(int64_t round, bool ahead,
                                                 ReadFn read) {
  if (ahead) turn_ = 1 - turn_;
  std::shared_ptr<Storage>& memory = staging_[turn_];
  if (memory == nullptr) {
    SHERD_ASSIGN_OR_RETURN(
        memory, Storage::Allocate(static_cast<size_t>(stream_.max_part_bytes()),
                                  group_.shard_allocator()));
  }
  auto* const staging = static_cast<std::byte*>(memory->data());
  MoveList moves;
  moves.copies.reserve(copies_);
  SHERD_RETURN_IF_ERROR(stream_.ForEachOf(
      round, group_.rank(),
      [&](const ExchangeStream::Piece& piece) -> absl::Status {
        std::byte* const data = staging + piece.position;
        std::byte* next = data;
        SHERD_RETURN_IF_ERROR(stream_.ForEachShardIn(
            piece, [&](const ExchangeStream::ShardPart& part) {
              const auto bytes = static_cast<size_t>(part.bytes);
              std::byte* const to = std::exchange(next, next + bytes);
              return read(entries_[piece.tensor].number, part,
                          absl::MakeSpan(to, bytes));
            }));
        moves.sources.push_back({.shard = static_cast<int>(piece.position),
                                 .offsets = piece.box.offsets,
                                 .strides = ContiguousStrides(piece.box.sizes),
                                 .data = data,
                                 .owner = memory,
                                 .storage = memory.get()});
        ListSends(piece, moves);
        return absl::OkStatus();
      }));
  const auto [first, last] = stream_.TensorsIn(round);
  for (size_t t = first; t < last; ++t) {
    ListReceives(round, t, moves);
    const Entry& entry = entries_[t];
    ListShards(entry.tensor, entry.first_shard, moves.destinations);
  }
  copies_ = moves.copies.size();
  return moves;
}

}  // namespace sherd
