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
void Mark(const Box& box, int rank, int64_t columns,
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
      Mark(read, rank, 3, times);
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
  return {piece.tensor, piece.shard, piece.offset,
          piece.bytes,  piece.rank,  piece.position};
}

// Checks all pieces of a stream: that they are the bytes of the shards, in
// order and once; stay in their part; and are found by any box.
void CheckStream(const ExchangeStream& stream,
                 const std::vector<SavedLayout>& layouts, int ranks,
                 std::mt19937_64& random) {
  const auto element = static_cast<int64_t>(stream.element_size());
  size_t tensor = 0;
  int64_t shard = 0;
  int64_t offset = 0;
  const auto skip_complete = [&] {
    while (tensor < layouts.size()) {
      if (shard == layouts[tensor].size()) {
        ++tensor;
        shard = 0;
      } else if (offset == layouts[tensor].VolumeAt(shard) * element) {
        ++shard;
        offset = 0;
      } else {
        break;
      }
    }
  };
  for (int64_t round = 0; round < stream.rounds(); ++round) {
    std::vector<std::vector<PieceKey>> of_tensor(layouts.size());
    std::vector<std::vector<Box>> boxes(layouts.size());
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t end = 0;
      ASSERT_THAT(stream.ForEachOf(
                      round, rank,
                      [&](const ExchangeStream::Piece& piece) {
                        skip_complete();
                        EXPECT_EQ(piece.tensor, tensor);
                        EXPECT_EQ(piece.shard, shard);
                        EXPECT_EQ(piece.offset, offset);
                        EXPECT_EQ(piece.rank, rank);
                        EXPECT_EQ(piece.bytes, Volume(piece.box) * element);
                        EXPECT_GE(piece.position, end);
                        offset += piece.bytes;
                        end = piece.position + piece.bytes;
                        EXPECT_LE(end, stream.max_part_bytes());
                        // Contiguous in the shard, at that offset.
                        const Box in = RelativeTo(
                            layouts[piece.tensor].BoxAt(piece.shard).offsets,
                            piece.box);
                        const Dims sizes =
                            layouts[piece.tensor].BoxAt(shard).sizes;
                        int64_t first = 0;
                        bool inner = false;
                        for (size_t d = 0; d < sizes.size(); ++d) {
                          first = first * sizes[d] + in.offsets[d];
                          EXPECT_TRUE(!inner || in.sizes[d] == sizes[d]);
                          inner |= in.sizes[d] != 1;
                        }
                        EXPECT_EQ(first * element, piece.offset);
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
      for (const Box& wanted : {box, whole}) {
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
  skip_complete();
  EXPECT_EQ(tensor, layouts.size());
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
      const Dims size = sherd::testing::RandomSize(4, 60'000, random);
      std::vector<Box> boxes;
      for (const ShardMetadata& shard : sherd::testing::RandomShards(
               size, 1 + static_cast<int>(random() % 6), random)) {
        boxes.push_back({shard.offsets, shard.sizes});
      }
      layouts.push_back(random() % 2 == 0 ? SavedLayout::FromBoxes(size, boxes)
                                          : SavedLayout::Boxes(size, boxes));
    }
    ExchangeStream stream(size_t{1} << random() % 5, ranks,
                          4096 << random() % 6);
    for (const SavedLayout& layout : layouts) stream.Add(layout);
    stream.Finish();
    CheckStream(stream, layouts, ranks, random);
  }
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
