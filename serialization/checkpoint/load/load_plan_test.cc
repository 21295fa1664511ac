#include "sherd/serialization/checkpoint/load/load_plan.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/serialization/checkpoint/load/load_exchange.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

constexpr int64_t kChunk = 100;

// Cuts [0, size) of the first dimension into equal chunks, one after the other
// in one file.
ManifestTensor Rows(const Dims& sizes, int64_t chunks) {
  std::vector<Box> boxes;
  const int64_t step = (sizes[0] + chunks - 1) / chunks;
  for (int64_t begin = 0; begin < sizes[0]; begin += step) {
    Box box = WholeBox(sizes);
    box.offsets[0] = begin;
    box.sizes[0] = std::min(step, sizes[0] - begin);
    boxes.push_back(box);
  }
  ManifestTensor tensor;
  tensor.name = "t";
  tensor.layout = SavedLayout::FromBoxes(sizes, boxes);
  int64_t offset = 0;
  for (int64_t i = 0; i < tensor.layout.size(); ++i) {
    const int64_t bytes = tensor.layout.VolumeAt(i) * 4;
    AppendPlace({.extents = {{.data_offset = offset, .bytes = bytes}}}, kChunk,
                tensor.runs);
    offset += bytes;
  }
  return tensor;
}

std::vector<PlacedBox> Columns(const Dims& sizes, int ranks) {
  std::vector<PlacedBox> boxes;
  const int64_t step = (sizes[1] + ranks - 1) / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t begin = std::min(sizes[1], rank * step);
    boxes.push_back(
        {{{0, begin}, {sizes[0], std::min(step, sizes[1] - begin)}}, rank});
  }
  return boxes;
}

ReadStrategy Choose(const ManifestTensor& saved,
                    absl::Span<const PlacedBox> wanted, int world_size,
                    int64_t min_read_bytes) {
  StrategyChooser chooser(world_size, min_read_bytes);
  return chooser.Choose(LargestSizes(saved.layout), LargestSizes(wanted), 4);
}

TEST(LoadPlanTest, OnlyManyShortPiecesAreExchanged) {
  // 4096 x 4096 float32 from rows to 4 columns: 4096 runs of 4 KiB a rank.
  const Dims size = {4096, 4096};
  const ManifestTensor saved = Rows(size, 4);
  EXPECT_EQ(Choose(saved, Columns(size, 4), 4, 4096), ReadStrategy::kPieces);
  EXPECT_EQ(Choose(saved, Columns(size, 4), 4, 4097), ReadStrategy::kExchange);
  // One rank has no peer to exchange with.
  EXPECT_EQ(Choose(saved, Columns(size, 1), 1, 1 << 30), ReadStrategy::kPieces);
  // The same boxes need no exchange, however small they are.
  const Dims tall = {40'000, 1};
  EXPECT_EQ(Choose(Rows(tall, 20'000), {{WholeBox({2, 1}), 0}}, 4, 1024),
            ReadStrategy::kPieces);
}

TEST(LoadPlanTest, ShortPiecesAreFewOnlyIfThoseOfAllTensorsAre) {
  const Dims size = {512, 16};
  const ManifestTensor saved = Rows(size, 4);
  const Dims from = LargestSizes(saved.layout);
  const Dims to = LargestSizes(Columns(size, 4));
  StrategyChooser chooser(4, 1024);
  EXPECT_EQ(chooser.Choose(from, to, 4), ReadStrategy::kPieces);
  EXPECT_EQ(chooser.Choose(from, to, 4), ReadStrategy::kPieces);
  EXPECT_EQ(chooser.Choose(from, to, 4), ReadStrategy::kExchange);
}

TEST(LoadPlanTest, TheReadsOfAllRanksAreEveryElementOnce) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    const Dims size = {1 + static_cast<int64_t>(random() % 20),
                       1 + static_cast<int64_t>(random() % 20)};
    const ManifestTensor saved = Rows(size, 1 + random() % 5);
    const std::vector<PlacedBox> wanted =
        Columns(size, 1 + static_cast<int>(random() % 5));
    std::vector<ShardRead> reads;
    for (size_t i = 0; i < wanted.size(); ++i) {
      PlanReads(saved, kChunk, 0, wanted[i], static_cast<int32_t>(i), reads);
    }
    SortReads(reads);
    std::vector<int> times(size[0] * size[1], 0);
    int64_t before = 0;
    for (const ShardRead& read : reads) {
      EXPECT_GE(read.data_offset, before);
      before = read.data_offset;
      const auto common =
          Intersect(saved.layout.BoxAt(read.saved), wanted[read.wanted]);
      ASSERT_TRUE(common.has_value());
      // Rows follow one another in the file.
      EXPECT_EQ(read.data_offset,
                4 * (common->offsets[0] * size[1] + common->offsets[1]));
      for (int64_t i = 0; i < common->sizes[0]; ++i) {
        for (int64_t j = 0; j < common->sizes[1]; ++j) {
          ++times[(common->offsets[0] + i) * size[1] + common->offsets[1] + j];
        }
      }
    }
    EXPECT_EQ(std::count(times.begin(), times.end(), 1),
              static_cast<int64_t>(times.size()));
  }
}

// Marks, for each rank, the elements of `box` in a tensor of `columns` columns.
void Mark(const BoxView& box, int rank, int64_t columns,
          std::vector<std::vector<int>>& times) {
  for (int64_t i = 0; i < box.sizes[0]; ++i) {
    for (int64_t j = 0; j < box.sizes[1]; ++j) {
      ++times[static_cast<size_t>(rank)][static_cast<size_t>(
          (box.offsets[0] + i) * columns + box.offsets[1] + j)];
    }
  }
}

TEST(LoadPlanTest, EveryElementOfReplicasIsReadOnceAndReachesAllThatHoldIt) {
  // Two column blocks on three ranks each, large enough to be read in parts;
  // an empty one; and one that has no replica.
  const Dims size = {100, 3};
  const std::vector<PlacedBox> wanted = {
      {{{0, 0}, {100, 1}}, 0}, {{{0, 1}, {100, 1}}, 1},
      {{{0, 0}, {100, 1}}, 2}, {{{0, 1}, {100, 1}}, 0},
      {{{100, 0}, {0, 3}}, 3}, {{{0, 0}, {100, 1}}, 3},
      {{{0, 1}, {100, 1}}, 3}, {{{100, 0}, {0, 3}}, 3},
      {{{0, 2}, {100, 1}}, 1}};
  EXPECT_TRUE(HasReplicas(size, wanted));
  EXPECT_FALSE(HasReplicas(size, Columns(size, 2)));
  std::vector<std::vector<int>> times(4, std::vector<int>(300));
  size_t reads = 0;
  std::vector<BoxCopy> sent, received;
  for (int rank = 0; rank < 4; ++rank) {
    // Of 1 MiB per element the parts are of four elements at least.
    std::vector<int64_t> load(4);
    const ReplicaWork work =
        PlanReplicas(wanted, size_t{1} << 20, rank, absl::MakeSpan(load));
    for (const WantedBox& read : work.reads) {
      EXPECT_EQ(wanted[read.shard].rank, rank);
      Mark(read.In(wanted), rank, 3, times);
    }
    reads += work.reads.size();
    for (const BoxCopy& copy : work.copies) {
      EXPECT_EQ(wanted[static_cast<size_t>(copy.src_shard)].rank,
                copy.src_rank);
      EXPECT_EQ(wanted[static_cast<size_t>(copy.dst_shard)].rank,
                copy.dst_rank);
      if (copy.src_rank == rank) sent.push_back(copy);
      if (copy.dst_rank == rank) received.push_back(copy);
    }
  }
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(times[0][i] + times[1][i] + times[2][i] + times[3][i], 1);
  }
  // Both ends of a copy know of it.
  const auto order = [](const BoxCopy& a, const BoxCopy& b) {
    return std::tie(a.src_rank, a.src_shard, a.dst_rank, a.dst_shard) <
           std::tie(b.src_rank, b.src_shard, b.dst_rank, b.dst_shard);
  };
  std::sort(sent.begin(), sent.end(), order);
  std::sort(received.begin(), received.end(), order);
  EXPECT_EQ(sent, received);
  for (const BoxCopy& copy : sent) Mark(copy, copy.dst_rank, 3, times);
  std::vector<std::vector<int>> expected(4, std::vector<int>(300));
  for (const PlacedBox& box : wanted) Mark(box, box.rank, 3, expected);
  EXPECT_EQ(times, expected);
  EXPECT_GT(reads, wanted.size() - 4);
}

// The numbers of a piece, to be compared.
using PieceKey = std::tuple<size_t, int64_t, int64_t, int64_t, int, int64_t>;
PieceKey KeyOf(const ExchangeStream::Piece& piece) {
  return {piece.tensor, piece.block, piece.offset,
          piece.bytes,  piece.rank,  piece.position};
}

// The elements of `box`, row-major, by their positions in a tensor of `sizes`.
std::vector<int64_t> ElementsOf(const Box& box, const Dims& sizes) {
  std::vector<int64_t> elements;
  const Dims strides = ContiguousStrides(sizes);
  for (int64_t i = 0; i < Volume(box); ++i) {
    int64_t left = i;
    int64_t at = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      at += (box.offsets[d] + left % box.sizes[d]) * strides[d];
      left /= box.sizes[d];
    }
    elements.push_back(at);
  }
  return elements;
}

// How far the pieces of a stream have come.
class StreamPosition {
 public:
  explicit StreamPosition(const std::vector<SavedLayout>& layouts)
      : layouts_(layouts) {}

  // Expects that the bytes of `piece` are the next ones of the stream, and its
  // elements those of its box.
  void Advance(const ExchangeStream& stream,
               const ExchangeStream::Piece& piece) {
    const auto element = static_cast<int64_t>(stream.element_size());
    const Dims& sizes = layouts_[piece.tensor].sizes();
    std::vector<int64_t> elements;
    EXPECT_THAT(stream.ForEachShardIn(
                    piece,
                    [&](const ExchangeStream::ShardPart& part) {
                      SkipComplete(element);
                      EXPECT_EQ(piece.tensor, tensor_);
                      EXPECT_EQ(part.shard, shard_);
                      EXPECT_EQ(part.offset, offset_);
                      EXPECT_GT(part.bytes, 0);
                      offset_ += part.bytes;
                      const std::vector<int64_t> of_shard = ElementsOf(
                          layouts_[piece.tensor].BoxAt(part.shard), sizes);
                      const auto first =
                          of_shard.begin() + part.offset / element;
                      elements.insert(elements.end(), first,
                                      first + part.bytes / element);
                      return absl::OkStatus();
                    }),
                ::sherd::testing::IsOk());
    EXPECT_EQ(static_cast<int64_t>(elements.size()) * element, piece.bytes);
    EXPECT_EQ(elements, ElementsOf(piece.box, sizes));
  }

  bool AtEnd(int64_t element) {
    SkipComplete(element);
    return tensor_ == layouts_.size();
  }

 private:
  void SkipComplete(int64_t element) {
    while (tensor_ < layouts_.size()) {
      if (shard_ == layouts_[tensor_].size()) {
        ++tensor_;
        shard_ = 0;
      } else if (offset_ == layouts_[tensor_].VolumeAt(shard_) * element) {
        ++shard_;
        offset_ = 0;
      } else {
        break;
      }
    }
  }

  const std::vector<SavedLayout>& layouts_;
  size_t tensor_ = 0;
  int64_t shard_ = 0;
  int64_t offset_ = 0;
};

// Checks all pieces of a stream: that they are the bytes of the shards, in
// order and once; stay in their part; and are found by any box.
void CheckStream(const ExchangeStream& stream,
                 const std::vector<SavedLayout>& layouts, int ranks,
                 std::mt19937_64& random) {
  StreamPosition position(layouts);
  for (int64_t round = 0; round < stream.rounds(); ++round) {
    std::vector<std::vector<PieceKey>> of_tensor(layouts.size());
    std::vector<std::vector<Box>> boxes(layouts.size());
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t end = 0;
      ASSERT_THAT(
          stream.ForEachOf(round, rank,
                           [&](const ExchangeStream::Piece& piece) {
                             position.Advance(stream, piece);
                             EXPECT_EQ(piece.rank, rank);
                             EXPECT_GE(piece.position, end);
                             end = piece.position + piece.bytes;
                             EXPECT_LE(end, stream.max_part_bytes());
                             of_tensor[piece.tensor].push_back(KeyOf(piece));
                             boxes[piece.tensor].push_back(piece.box);
                             return absl::OkStatus();
                           }),
          ::sherd::testing::IsOk());
    }
    const auto [first, last] = stream.TensorsIn(round);
    for (size_t t = 0; t < layouts.size(); ++t) {
      EXPECT_TRUE(of_tensor[t].empty() || (first <= t && t < last));
      const int64_t any = static_cast<int64_t>(random() % layouts[t].size());
      const Box box = layouts[t].BoxAt(any);
      const Box whole = WholeBox(layouts[t].sizes());
      Box inner = whole;
      for (size_t d = 0; d < inner.sizes.size() && !IsEmpty(whole); ++d) {
        const auto size = static_cast<uint64_t>(whole.sizes[d]);
        inner.offsets[d] = static_cast<int64_t>(random() % size);
        const uint64_t left = size - static_cast<uint64_t>(inner.offsets[d]);
        inner.sizes[d] = static_cast<int64_t>(1 + random() % left);
      }
      for (const Box& wanted : {box, whole, inner}) {
        if (IsEmpty(wanted)) continue;
        std::vector<PieceKey> expected, found;
        for (size_t i = 0; i < boxes[t].size(); ++i) {
          if (CommonVolume(boxes[t][i], wanted) > 0) {
            expected.push_back(of_tensor[t][i]);
          }
        }
        stream.ForEachIn(round, t, wanted,
                         [&](const ExchangeStream::Piece& piece) {
                           found.push_back(KeyOf(piece));
                         });
        EXPECT_EQ(found, expected);
      }
    }
  }
  EXPECT_TRUE(position.AtEnd(static_cast<int64_t>(stream.element_size())));
}

TEST(ExchangeStreamTest, PiecesAreAllBytesOnceAndEveryRankFindsThem) {
  const uint64_t seed = sherd::testing::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60 && !::testing::Test::HasFailure(); ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    std::vector<SavedLayout> layouts;
    const size_t tensors = random() % 6;
    for (size_t t = 0; t < tensors; ++t) {
      const Dims size = sherd::testing::RandomSize(4, 20'000, random);
      std::vector<Box> boxes;
      for (const ShardMetadata& shard : sherd::testing::RandomShards(
               size, 1 + static_cast<int>(random() % 6), random)) {
        boxes.push_back({shard.offsets, shard.sizes});
      }
      if (size.empty() || random() % 2 == 0) {
        layouts.push_back(random() % 2 == 0
                              ? SavedLayout::FromBoxes(size, boxes)
                              : SavedLayout::Boxes(size, boxes));
        continue;
      }
      // Cut in one dimension, perhaps with empty cells: evenly, or anywhere.
      std::vector<SavedLayout::Axis> axes(size.size());
      const size_t dim = random() % size.size();
      const auto cells = static_cast<int64_t>(1 + random() % 9);
      SavedLayout::Axis& axis = axes[dim];
      axis.cells = cells;
      if (random() % 2 == 0) {
        axis.step = std::max<int64_t>((size[dim] + cells - 1) / cells, 1);
      } else {
        axis.cuts = {0, size[dim]};
        for (int64_t i = 1; i < cells; ++i) {
          axis.cuts.push_back(static_cast<int64_t>(
              random() % (static_cast<uint64_t>(size[dim]) + 1)));
        }
        std::sort(axis.cuts.begin(), axis.cuts.end());
      }
      layouts.push_back(SavedLayout::Grid(size, std::move(axes)));
    }
    ExchangeStream stream(size_t{1} << random() % 5, ranks,
                          4096 << random() % 6);
    for (const SavedLayout& layout : layouts) stream.Add(layout);
    stream.Finish();
    CheckStream(stream, layouts, ranks, random);
  }
}

// One index a cell.
SavedLayout::Axis Even(int64_t cells) {
  SavedLayout::Axis axis;
  axis.cells = cells;
  axis.step = 1;
  return axis;
}

TEST(ExchangeStreamTest, ShardsThatFollowOneAnotherAreOnePieceOfAPart) {
  // Two tensors of 4 MiB, each of 1024 shards of 4 KiB; a part has half of one.
  const SavedLayout rows =
      SavedLayout::Grid({1, 1024, 1024}, {{}, Even(1024), {}});
  // Columns do not: each shard is a piece.
  const SavedLayout columns = SavedLayout::Grid({1024, 16}, {{}, Even(16)});
  ExchangeStream stream(4, 2, 2 << 20);
  stream.Add(rows);
  stream.Add(rows);
  stream.Finish();
  ASSERT_EQ(stream.rounds(), 2);
  std::vector<ExchangeStream::Piece> pieces;
  const auto keep = [&](const ExchangeStream::Piece& piece) {
    pieces.push_back(piece);
    return absl::OkStatus();
  };
  ASSERT_THAT(stream.ForEachOf(1, 1, keep), ::sherd::testing::IsOk());
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].tensor, 1u);
  EXPECT_EQ(pieces[0].box, (Box{{0, 512, 0}, {1, 512, 1024}}));
  int64_t shard = 512;
  ASSERT_THAT(stream.ForEachShardIn(pieces[0],
                                    [&](const ExchangeStream::ShardPart& part) {
                                      EXPECT_EQ(part.shard, shard++);
                                      EXPECT_EQ(part.offset, 0);
                                      EXPECT_EQ(part.bytes, 4096);
                                      return absl::OkStatus();
                                    }),
              ::sherd::testing::IsOk());
  EXPECT_EQ(shard, 1024);

  ExchangeStream other(4, 1, 2 << 20);
  other.Add(columns);
  other.Finish();
  pieces.clear();
  ASSERT_THAT(other.ForEachOf(0, 0, keep), ::sherd::testing::IsOk());
  EXPECT_EQ(pieces.size(), 16u);
}

TEST(ExchangeStreamTest, PartsAreEvenAndWithinTheirLimit) {
  // One tensor of 100 MB whose first dimension has two rows.
  const SavedLayout layout = SavedLayout::Whole({2, 50'000'000});
  ExchangeStream stream(1, 3, 1 << 20);
  stream.Add(layout);
  stream.Finish();
  EXPECT_EQ(stream.rounds(), 32);
  EXPECT_LE(stream.max_part_bytes(), (1 << 20) * 9 / 8 + 4096);
  std::vector<int64_t> bytes(3);
  for (int64_t round = 0; round < stream.rounds(); ++round) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(stream.ForEachOf(round, rank,
                                   [&](const ExchangeStream::Piece& piece) {
                                     bytes[rank] += piece.bytes;
                                     return absl::OkStatus();
                                   }),
                  ::sherd::testing::IsOk());
    }
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most - *least, 2 << 20);
}

}  // namespace
}  // namespace sherd
