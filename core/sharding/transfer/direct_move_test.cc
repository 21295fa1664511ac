#include "sherd/core/sharding/transfer/direct_move.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::CallAt;
using ::sherd::testing::CountPassages;
using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FailAt;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

using Boxes = std::vector<PlacedBox>;

enum class Reach { kAll, kSourcesOnly, kDestinationsOnly, kNothing };

// Memory of ranks that are threads, accessible as far as a test allows it.
class ThreadMemory final : public PeerMemory {
 public:
  // Whether peers may reach what begins there.
  using Filter = std::function<bool(const void*)>;

  ThreadMemory(int rank, Filter filter)
      : rank_(rank), filter_(std::move(filter)) {}

  std::optional<MemoryHandle> Export(const void* data, size_t bytes) override {
    if (filter_ != nullptr && !filter_(data)) return std::nullopt;
    MemoryHandle handle;
    handle.words = {reinterpret_cast<uintptr_t>(data), bytes,
                    static_cast<uint64_t>(rank_)};
    return handle;
  }

  absl::StatusOr<absl::Span<std::byte>> Import(
      int peer, const MemoryHandle& handle) override {
    EXPECT_EQ(handle.words[2], static_cast<uint64_t>(peer));
    return absl::Span<std::byte>(reinterpret_cast<std::byte*>(handle.words[0]),
                                 handle.words[1]);
  }

 private:
  const int rank_;
  const Filter filter_;
};

// Counts the handles that are made and imported.
class CountedMemory final : public PeerMemory {
 public:
  explicit CountedMemory(int rank) : memory_(rank, nullptr) {}

  std::optional<MemoryHandle> Export(const void* data, size_t bytes) override {
    ++exports;
    return memory_.Export(data, bytes);
  }
  absl::StatusOr<absl::Span<std::byte>> Import(
      int peer, const MemoryHandle& handle) override {
    ++imports;
    return memory_.Import(peer, handle);
  }

  int exports = 0;
  int imports = 0;

 private:
  ThreadMemory memory_;
};

// Lacks the last byte of the memory that peers claim to export.
class ShortMemory final : public PeerMemory {
 public:
  explicit ShortMemory(int rank) : memory_(rank, nullptr) {}

  std::optional<MemoryHandle> Export(const void* data, size_t bytes) override {
    return memory_.Export(data, bytes);
  }
  absl::StatusOr<absl::Span<std::byte>> Import(
      int peer, const MemoryHandle& handle) override {
    return memory_.Import(peer, handle)->first(handle.words[1] - 1);
  }

 private:
  ThreadMemory memory_;
};

// How a shard's tensor lies in memory.
enum class Strides { kRowMajor, kColumnMajor, kGaps, kReversed };

// A tensor of `sizes` in int32, of two dimensions, and where element 0 is.
struct StridedShard {
  StridedShard(const Dims& sizes, Strides kind) {
    const int64_t rows = sizes[0];
    const int64_t cols = sizes[1];
    switch (kind) {
      case Strides::kRowMajor:
        strides = {cols, 1};
        break;
      case Strides::kColumnMajor:
        strides = {1, rows};
        break;
      case Strides::kGaps:
        strides = {3 * cols, 2};
        break;
      case Strides::kReversed:
        strides = {-cols, 1};
        break;
    }
    memory = std::make_shared<std::vector<int32_t>>(3 * rows * cols + 1, -7);
    first = memory->data() +
            (kind == Strides::kReversed && rows > 0 ? (rows - 1) * cols : 0);
  }

  int32_t& at(int64_t row, int64_t col) {
    return first[row * strides[0] + col * strides[1]];
  }

  std::shared_ptr<std::vector<int32_t>> memory;
  Dims strides;
  int32_t* first = nullptr;
};

struct Layout {
  Boxes boxes;
  Strides strides = Strides::kRowMajor;
};

// One rank's part of a move of int32 matrices, each element its index.
class MatrixMove {
 public:
  MatrixMove(int rank, Dims size, const Layout& from, const Layout& to)
      : rank_(rank), size_(std::move(size)), from_(from), to_(to) {
    for (size_t i = 0; i < from_.boxes.size(); ++i) {
      if (from_.boxes[i].rank != rank) continue;
      StridedShard shard(from_.boxes[i].sizes, from_.strides);
      ForEach(from_.boxes[i], [&](int64_t row, int64_t col, int32_t value) {
        shard.at(row, col) = value;
      });
      sources_.push_back({static_cast<int>(i), std::move(shard)});
    }
    for (size_t i = 0; i < to_.boxes.size(); ++i) {
      if (to_.boxes[i].rank != rank) continue;
      destinations_.push_back(
          {static_cast<int>(i), StridedShard(to_.boxes[i].sizes, to_.strides)});
    }
  }

  ThreadMemory::Filter Filter(Reach reach) const {
    return [this, reach](const void* data) {
      const bool is_source =
          std::any_of(sources_.begin(), sources_.end(), [&](const auto& shard) {
            const auto& memory = *shard.second.memory;
            return data >= memory.data() &&
                   data < memory.data() + memory.size();
          });
      return reach == Reach::kAll ||
             reach ==
                 (is_source ? Reach::kSourcesOnly : Reach::kDestinationsOnly);
    };
  }

  // By the memory of threads, as far as it reaches.
  absl::Status Run(ProcessGroup& group, Reach reach,
                   ReshardOptions options = {}) {
    return RunOver(group, std::make_shared<ThreadMemory>(rank_, Filter(reach)),
                   options);
  }

  absl::Status RunOver(ProcessGroup& group, std::shared_ptr<PeerMemory> memory,
                       ReshardOptions options = {}) {
    options.stats = &stats;
    std::vector<SourceMemory> from;
    for (auto& [index, shard] : sources_) {
      from.push_back({.shard = index,
                      .offsets = from_.boxes[index].offsets,
                      .strides = shard.strides,
                      .data = shard.first,
                      .owner = shard.memory});
    }
    std::vector<DestinationMemory> to;
    for (auto& [index, shard] : destinations_) {
      to.push_back({.shard = index,
                    .offsets = to_.boxes[index].offsets,
                    .strides = shard.strides,
                    .data = shard.first,
                    .owner = shard.memory});
    }
    absl::StatusOr<ReshardPlan> plan =
        ReshardPlan::Create(from_.boxes, to_.boxes, rank_);
    EXPECT_THAT(plan, IsOk());
    return internal::RunReshardOver(
        group, std::move(memory), "move",
        ReshardExecutor::Create(*std::move(plan), sizeof(int32_t), group.size(),
                                from, to, options),
        {.fingerprint = 1}, std::nullopt);
  }

  // Elements that are not what they have to be.
  int64_t CountWrong() {
    int64_t wrong = 0;
    for (auto& [index, shard] : destinations_) {
      wrong += CountWrongIn(shard, to_.boxes[index]);
    }
    return wrong + CountChangedSources();
  }
  int64_t CountChangedSources() {
    int64_t wrong = 0;
    for (auto& [index, shard] : sources_) {
      wrong += CountWrongIn(shard, from_.boxes[index]);
    }
    return wrong;
  }
  // Counts the elements that were written.
  int64_t CountWritten() const {
    int64_t written = 0;
    for (const auto& [index, shard] : destinations_) {
      written += static_cast<int64_t>(shard.memory->size()) -
                 std::count(shard.memory->begin(), shard.memory->end(), -7);
    }
    return written;
  }

  ReshardStats stats;

 private:
  int64_t CountWrongIn(StridedShard& shard, const PlacedBox& box) const {
    int64_t wrong = 0;
    ForEach(box, [&](int64_t row, int64_t col, int32_t value) {
      wrong += shard.at(row, col) != value ? 1 : 0;
    });
    return wrong;
  }

  template <typename Visit>
  void ForEach(const PlacedBox& box, Visit visit) const {
    for (int64_t row = 0; row < box.sizes[0]; ++row) {
      for (int64_t col = 0; col < box.sizes[1]; ++col) {
        visit(row, col,
              static_cast<int32_t>((box.offsets[0] + row) * size_[1] +
                                   box.offsets[1] + col));
      }
    }
  }

  const int rank_;
  const Dims size_;
  const Layout from_;
  const Layout to_;
  std::vector<std::pair<int, StridedShard>> sources_;
  std::vector<std::pair<int, StridedShard>> destinations_;
};

// `count` boxes along dimension `dim`, dealt out to the ranks.
Boxes Strips(const Dims& size, int dim, int count, int ranks) {
  Boxes boxes;
  const int64_t length = (size[dim] + count - 1) / count;
  for (int i = 0; i < count; ++i) {
    PlacedBox box = {WholeBox(size), i % ranks};
    box.offsets[dim] = std::min(i * length, size[dim]);
    box.sizes[dim] = std::min(length, size[dim] - box.offsets[dim]);
    boxes.push_back(box);
  }
  return boxes;
}

Boxes AllOn(const Dims& size, int rank) { return {{WholeBox(size), rank}}; }

// Of a move of equal amounts from and to each rank.
::testing::Matcher<TransferStrategy> StrategyOf(int ranks, Reach reach) {
  if (ranks == 1) return TransferStrategy::kNone;
  switch (reach) {
    case Reach::kAll:
      return ::testing::AnyOf(TransferStrategy::kPulled,
                              TransferStrategy::kPushed);
    case Reach::kSourcesOnly:
      return TransferStrategy::kPulled;
    case Reach::kDestinationsOnly:
      return TransferStrategy::kPushed;
    case Reach::kNothing:
      break;
  }
  return TransferStrategy::kMessages;
}

TEST(DirectMoveTest, MovesBetweenLayoutsAndStridesBothWays) {
  const Dims size = {37, 23};
  for (const int ranks : {1, 2, 3, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (const Strides from : {Strides::kRowMajor, Strides::kColumnMajor,
                                 Strides::kGaps, Strides::kReversed}) {
        for (const Strides to : {Strides::kRowMajor, Strides::kColumnMajor,
                                 Strides::kGaps, Strides::kReversed}) {
          for (const Reach reach :
               {Reach::kAll, Reach::kSourcesOnly, Reach::kDestinationsOnly,
                Reach::kNothing}) {
            // 40 strips are more than a note holds.
            for (const int strips : {ranks, 40}) {
              MatrixMove move(group.rank(), size,
                              {Strips(size, 0, ranks, ranks), from},
                              {Strips(size, 1, strips, ranks), to});
              ASSERT_THAT(move.Run(group, reach), IsOk());
              EXPECT_EQ(move.CountWrong(), 0);
              EXPECT_THAT(move.stats.strategy, StrategyOf(ranks, reach));
            }
          }
        }
      }
    });
  }
}

TEST(DirectMoveTest, WritesNothingButTheDestination) {
  const Dims size = {10, 6};
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Reach reach : {Reach::kSourcesOnly, Reach::kDestinationsOnly}) {
      MatrixMove move(group.rank(), size,
                      {Strips(size, 0, 3, 3), Strides::kReversed},
                      {Strips(size, 1, 3, 3), Strides::kGaps});
      ASSERT_THAT(move.Run(group, reach), IsOk());
      EXPECT_EQ(move.CountWrong(), 0);
      EXPECT_EQ(move.CountWritten(), 20);
    }
  });
}

TEST(DirectMoveTest, AGatherIsPushedAndAScatterPulled) {
  const Dims size = {12, 5};
  RunLocalRanks(4, [&](ProcessGroup& group) {
    MatrixMove gather(group.rank(), size, {Strips(size, 0, 4, 4)},
                      {AllOn(size, 2)});
    ASSERT_THAT(gather.Run(group, Reach::kAll), IsOk());
    EXPECT_EQ(gather.CountWrong(), 0);
    EXPECT_EQ(gather.stats.strategy, TransferStrategy::kPushed);
    EXPECT_EQ(gather.stats.bytes_sent, group.rank() == 2 ? 0 : 60);
    EXPECT_EQ(gather.stats.bytes_received, group.rank() == 2 ? 180 : 0);

    MatrixMove scatter(group.rank(), size, {AllOn(size, 2)},
                       {Strips(size, 0, 4, 4)});
    ASSERT_THAT(scatter.Run(group, Reach::kAll), IsOk());
    EXPECT_EQ(scatter.CountWrong(), 0);
    EXPECT_EQ(scatter.stats.strategy, TransferStrategy::kPulled);
  });
}

// Each of `ranks` has `shards` rows of one byte each in one storage, `pitch`
// bytes apart and in falling order, and gets all columns of the others as
// shards of their own.
absl::Status SwapRows(ProcessGroup& group, int shards, int64_t pitch,
                      CountedMemory& counted, ReshardStats& stats) {
  const int ranks = group.size();
  const int64_t rows = int64_t{ranks} * shards;
  const Dims size = {rows, ranks};
  const Boxes from = Strips(size, 0, static_cast<int>(rows), ranks);
  Boxes to;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t row = 0; row < rows; ++row) {
      to.push_back({{{row, rank}, {1, 1}}, rank});
    }
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::shared_ptr<Storage> storage,
      Storage::Allocate(static_cast<size_t>(shards * pitch), HeapAllocator()));
  auto* const bytes = static_cast<uint8_t*>(storage->data());
  std::vector<SourceMemory> sources;
  for (int i = 0; i < shards; ++i) {
    const int row = i * ranks + group.rank();
    uint8_t* const data = bytes + (shards - 1 - i) * pitch;
    for (int c = 0; c < ranks; ++c) data[c] = static_cast<uint8_t>(row + 3 * c);
    sources.push_back({.shard = row,
                       .offsets = from[row].offsets,
                       .strides = {ranks, 1},
                       .data = data,
                       .owner = storage,
                       .storage = storage.get()});
  }
  std::vector<uint8_t> got(static_cast<size_t>(rows), 0xff);
  std::vector<DestinationMemory> destinations;
  for (int64_t row = 0; row < rows; ++row) {
    const int index = static_cast<int>(group.rank() * rows + row);
    destinations.push_back({.shard = index,
                            .offsets = to[index].offsets,
                            .strides = {1, 1},
                            .data = &got[row]});
  }
  SHERD_ASSIGN_OR_RETURN(ReshardPlan plan,
                         ReshardPlan::Create(from, to, group.rank()));
  SHERD_RETURN_IF_ERROR(internal::RunReshardOver(
      group, std::shared_ptr<PeerMemory>(std::shared_ptr<void>(), &counted),
      "move",
      ReshardExecutor::Create(std::move(plan), 1, ranks, sources, destinations,
                              {.stats = &stats}),
      {.fingerprint = 1}, std::nullopt));
  for (int64_t row = 0; row < rows; ++row) {
    EXPECT_EQ(got[row], static_cast<uint8_t>(row + 3 * group.rank()));
  }
  return absl::OkStatus();
}

TEST(DirectMoveTest, ShardsThatLieTogetherHaveOneHandle) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    ReshardStats stats;
    // Few enough destinations to be written to: a handle each.
    CountedMemory few(group.rank());
    ASSERT_THAT(SwapRows(group, 20, 40, few, stats), IsOk());
    EXPECT_EQ(few.exports, 1 + 40);
    EXPECT_EQ(few.imports, 2);
    EXPECT_EQ(stats.strategy, TransferStrategy::kPulled);
    // Beyond that a rank is only read from.
    CountedMemory many(group.rank());
    ASSERT_THAT(SwapRows(group, 40, 40, many, stats), IsOk());
    EXPECT_EQ(many.exports, 1);
    EXPECT_EQ(many.imports, 2);
    EXPECT_EQ(stats.strategy, TransferStrategy::kPulled);
    EXPECT_EQ(stats.reason, TransferReason::kOnlySourcesReachable);
    // Pages between shards that lie far apart are not mapped.
    CountedMemory apart(group.rank());
    ASSERT_THAT(SwapRows(group, 40, 1 << 20, apart, stats), IsOk());
    EXPECT_EQ(apart.exports, 40);
    EXPECT_EQ(apart.imports, 80);
  });
}

TEST(DirectMoveTest, NeedsNoStagingMemory) {
  const Dims size = {16, 16};
  RunLocalRanks(2, [&](ProcessGroup& group) {
    // Of int32 in one message of one element.
    for (const Reach reach : {Reach::kSourcesOnly, Reach::kDestinationsOnly}) {
      MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                      {Strips(size, 1, 2, 2)});
      CountPassages allocations("tensor/allocate",
                                {.this_thread = true, .optional = true});
      ASSERT_THAT(move.Run(group, reach, {.max_staging_bytes = 16}), IsOk());
      EXPECT_EQ(allocations.count(), 0);
      EXPECT_EQ(move.CountWrong(), 0);
      EXPECT_EQ(move.stats.staging_bytes, 0);
      EXPECT_EQ(move.stats.bytes_staged, 0);
      EXPECT_EQ(move.stats.rounds, 0);
      EXPECT_EQ(move.stats.bytes_received, move.stats.lower_bound_bytes);
    }
  });
}

TEST(DirectMoveTest, OneRankWithoutReachableMemoryMakesAllUseMessages) {
  const Dims size = {16, 16};
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Reach others : {Reach::kAll, Reach::kSourcesOnly}) {
      MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                      {Strips(size, 1, 3, 3)});
      ASSERT_THAT(move.Run(group, group.rank() == 1 ? Reach::kNothing : others),
                  IsOk());
      EXPECT_EQ(move.CountWrong(), 0);
      EXPECT_EQ(move.stats.strategy, TransferStrategy::kMessages);
      EXPECT_EQ(move.stats.reason, TransferReason::kShardsOutOfReach);
      EXPECT_GT(move.stats.staging_bytes, 0);
    }
    // Without any peer memory on one rank, too.
    MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                    {Strips(size, 1, 3, 3)});
    std::shared_ptr<PeerMemory> memory;
    if (group.rank() != 1) {
      memory = std::make_shared<ThreadMemory>(group.rank(), nullptr);
    }
    ASSERT_THAT(move.RunOver(group, memory), IsOk());
    EXPECT_EQ(move.CountWrong(), 0);
    EXPECT_EQ(move.stats.strategy, TransferStrategy::kMessages);
  });
}

TEST(DirectMoveTest, ARankWithNothingToDoNeedsNoPeerMemory) {
  const Dims size = {16, 16};
  RunLocalRanks(3, [&](ProcessGroup& group) {
    MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                    {Strips(size, 1, 2, 2)});
    std::shared_ptr<PeerMemory> memory;
    if (group.rank() != 2) {
      memory = std::make_shared<ThreadMemory>(group.rank(), nullptr);
    }
    ASSERT_THAT(move.RunOver(group, memory), IsOk());
    EXPECT_EQ(move.CountWrong(), 0);
    EXPECT_EQ(move.stats.strategy, TransferStrategy::kPulled);
  });
}

TEST(DirectMoveTest, IsLeftOutOnDemand) {
  const Dims size = {16, 16};
  RunLocalRanks(2, [&](ProcessGroup& group) {
    MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                    {Strips(size, 1, 2, 2)});
    ASSERT_THAT(move.Run(group, Reach::kAll, {.direct = false}), IsOk());
    EXPECT_EQ(move.CountWrong(), 0);
    EXPECT_EQ(move.stats.strategy, TransferStrategy::kMessages);
    EXPECT_EQ(move.stats.reason, TransferReason::kDirectIsOff);

    MatrixMove mixed(group.rank(), size, {Strips(size, 0, 2, 2)},
                     {Strips(size, 1, 2, 2)});
    EXPECT_THAT(
        mixed.Run(group, Reach::kAll, {.direct = group.rank() == 0}),
        StatusIs(absl::StatusCode::kInvalidArgument, "other arguments"));
    EXPECT_EQ(mixed.CountWritten(), 0);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(DirectMoveTest, TakesOneRoundBeforeAndOneAfter) {
  const Dims size = {16, 16};
  RunLocalRanks(3, [&](ProcessGroup& group) {
    MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                    {Strips(size, 1, 3, 3)});
    CountPassages collectives("comm/after_completion",
                              {.rank = group.rank(), .this_thread = true});
    ASSERT_THAT(move.Run(group, Reach::kAll), IsOk());
    EXPECT_EQ(collectives.count(), 2);
  });
}

TEST(DirectMoveTest, ShardsInPlaceAreNotCopied) {
  RunLocalRanks(1, [&](ProcessGroup& group) {
    std::vector<int32_t> data = {1, 2, 3, 4, 5, 6};
    std::vector<int32_t> other(3);
    const Boxes from = {{{{0, 0}, {2, 3}}, 0}, {{{2, 0}, {1, 3}}, 0}};
    const Boxes to = {{{{0, 0}, {2, 3}}, 0}, {{{2, 0}, {1, 3}}, 0}};
    std::vector<int32_t> last = {7, 8, 9};
    ReshardStats stats;
    ASSERT_THAT(
        RunReshard(group, "move",
                   ReshardExecutor::Create(
                       ReshardPlan::Create(from, to, 0).value(), 4, 1,
                       {{.shard = 0,
                         .offsets = {0, 0},
                         .strides = {3, 1},
                         .data = data.data()},
                        {.shard = 1,
                         .offsets = {2, 0},
                         .strides = {3, 1},
                         .data = last.data()}},
                       // The stride of a dimension of size 1 does not matter.
                       {{.shard = 0,
                         .offsets = {0, 0},
                         .strides = {3, 1},
                         .data = data.data()},
                        {.shard = 1,
                         .offsets = {2, 0},
                         .strides = {1, 1},
                         .data = other.data()}},
                       {.stats = &stats}),
                   {.fingerprint = 1}),
        IsOk());
    EXPECT_EQ(stats.bytes_local, 36);
    EXPECT_EQ(stats.bytes_in_place, 24);
    EXPECT_EQ(stats.strategy, TransferStrategy::kNone);
    EXPECT_THAT(data, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(other, ::testing::ElementsAre(7, 8, 9));
  });
}

TEST(DirectMoveTest, ARankThatCannotMapAnotherMovesByMessagesWithAll) {
  const Dims size = {16, 16};
  for (const Reach reach : {Reach::kSourcesOnly, Reach::kDestinationsOnly}) {
    FailAt fault("sharding/import", absl::ResourceExhaustedError("no space"),
                 {.nth = 2, .rank = 1});
    RunLocalRanks(3, [&](ProcessGroup& group) {
      MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                      {Strips(size, 1, 3, 3)});
      ASSERT_THAT(move.Run(group, reach), IsOk());
      EXPECT_EQ(move.CountWrong(), 0);
      EXPECT_EQ(move.stats.strategy, TransferStrategy::kMessages);
      EXPECT_THAT(group.Barrier(), IsOk());
    });
  }
}

TEST(DirectMoveTest, AnotherErrorWhileCopyingIsTheSameOnAll) {
  const Dims size = {16, 16};
  for (const char* point : {"sharding/before_copy", "sharding/after_copy"}) {
    std::vector<absl::Status> statuses(3);
    FailAt fault(point, absl::InternalError("planted"), {.rank = 1});
    RunLocalRanks(3, [&](ProcessGroup& group) {
      MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                      {Strips(size, 1, 3, 3)});
      statuses[group.rank()] = move.Run(group, Reach::kAll);
      EXPECT_EQ(move.CountChangedSources(), 0);
      EXPECT_THAT(group.Barrier(), IsOk());
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, statuses[0]);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   "move: rank 1: planted"));
      EXPECT_EQ(ErrorRank(status), 1);
    }
  }
}

TEST(DirectMoveTest, ABoxOutsideOfThePeersExportIsNotTouched) {
  const Dims size = {16, 16};
  for (const Strides strides : {Strides::kRowMajor, Strides::kReversed}) {
    std::vector<absl::Status> statuses(3);
    RunLocalRanks(3, [&](ProcessGroup& group) {
      MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3), strides},
                      {Strips(size, 1, 3, 3)});
      statuses[group.rank()] =
          move.RunOver(group, std::make_shared<ShortMemory>(group.rank()));
      EXPECT_EQ(move.CountChangedSources(), 0);
      EXPECT_THAT(group.Barrier(), IsOk());
    });
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status, statuses[0]);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   "sent a malformed list of handles"));
    }
  }
}

TEST(DirectMoveTest, NoMemoryForMessagesAfterAllIsTheSameErrorOnAll) {
  const Dims size = {16, 16};
  std::vector<absl::Status> statuses(3);
  FailAt fault("sharding/import", absl::ResourceExhaustedError("no space"),
               {.rank = 1});
  FailAllocationAt memory({.rank = 2});
  RunLocalRanks(3, [&](ProcessGroup& group) {
    MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                    {Strips(size, 1, 3, 3)});
    statuses[group.rank()] = move.Run(group, Reach::kSourcesOnly);
    EXPECT_EQ(move.CountChangedSources(), 0);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 "move: rank 2: "));
    EXPECT_EQ(ErrorRank(status), 2);
  }
}

TEST(DirectMoveTest, NothingIsWrittenBeforeAllHaveAgreed) {
  const Dims size = {16, 16};
  std::vector<absl::Status> statuses(3);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                    {Strips(size, 1, 3, 3)});
    const int64_t staging = group.rank() == 1 ? 3 : 1000;
    statuses[group.rank()] =
        move.Run(group, Reach::kAll, {.max_staging_bytes = staging});
    EXPECT_EQ(move.CountWritten(), 0);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 "move: rank 1: max_staging_bytes"));
  }
}

// If a rank leaves the group at a point, as if it had died there, the others
// report it as the failed rank, and their sources are unchanged.
TEST(DirectMoveTest, ARankThatLeavesIsNamedByTheOthers) {
  const Dims size = {16, 16};
  for (const char* point : {"comm/before_post", "sharding/before_copy",
                            "sharding/import", "sharding/after_copy"}) {
    for (const Reach reach : {Reach::kSourcesOnly, Reach::kDestinationsOnly}) {
      RunLocalRanks(3, [&](ProcessGroup& group) {
        MatrixMove move(group.rank(), size, {Strips(size, 0, 3, 3)},
                        {Strips(size, 1, 3, 3)});
        std::optional<CallAt> fault;
        if (group.rank() == 2) {
          fault.emplace(
              point,
              [&] { group.Abort(absl::CancelledError("rank 2 had enough")); },
              testing::FaultOptions{.rank = 2, .this_thread = true});
        }
        const absl::Status status = move.Run(group, reach);
        EXPECT_FALSE(status.ok()) << point;
        EXPECT_EQ(move.CountChangedSources(), 0);
        if (group.rank() == 2) {
          EXPECT_THAT(status.message(), HasSubstr("rank 2 had enough"));
        } else {
          EXPECT_EQ(ErrorRank(status), 2) << point << ": " << status;
        }
      });
    }
  }
}

// Rank 0 gives up while rank 1 is still copying from it, and drops its tensors.
TEST(DirectMoveTest, MemoryThatOthersStillReadIsKept) {
  const Dims size = {16, 16};
  for (const Reach reach : {Reach::kSourcesOnly, Reach::kDestinationsOnly}) {
    absl::Notification gave_up;
    CallAt late("sharding/import", [&] { gave_up.WaitForNotification(); },
                {.rank = 1});
    RunLocalRanks(2, [&](ProcessGroup& group) {
      std::optional<CallAt> abort;
      if (group.rank() == 0) {
        abort.emplace(
            "sharding/after_copy",
            [&] { group.Abort(absl::CancelledError("enough")); },
            testing::FaultOptions{.rank = 0});
      }
      absl::Status status;
      {
        MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                        {Strips(size, 1, 2, 2)});
        status = move.Run(group, reach);
      }
      EXPECT_FALSE(status.ok());
      if (group.rank() == 0) gave_up.Notify();
    });
  }
}

TEST(DirectMoveTest, TheTimeoutCoversTheAgreement) {
  const Dims size = {16, 16};
  RunLocalRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return;
    // Long enough for rank 1 to exit, if it is not waited for.
    MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                    {Strips(size, 1, 2, 2)});
    EXPECT_EQ(ErrorRank(move.Run(group, Reach::kAll)), 1);
  });
  absl::Notification timed_out;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) {
      timed_out.WaitForNotification();
      return;
    }
    MatrixMove move(group.rank(), size, {Strips(size, 0, 2, 2)},
                    {Strips(size, 1, 2, 2)});
    const absl::Status status =
        move.Run(group, Reach::kAll, {.timeout = absl::Milliseconds(20)});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(ErrorRank(status), 1);
    timed_out.Notify();
  });
}

}  // namespace
}  // namespace sherd
