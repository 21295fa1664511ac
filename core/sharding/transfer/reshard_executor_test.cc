#include "sherd/core/sharding/transfer/reshard_executor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

using Boxes = std::vector<PlacedBox>;

Dims StridesOf(const Tensor& tensor) {
  return Dims(tensor.strides().begin(), tensor.strides().end());
}

// One rank's part of a list of boxes: int32 tensors, if `transposed` with the
// last two dimensions swapped in memory.
struct Side {
  Side(const Boxes& boxes, int rank, bool transposed) {
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (boxes[i].rank != rank) continue;
      Dims sizes = boxes[i].sizes;
      const int64_t dims = static_cast<int64_t>(sizes.size());
      if (transposed) std::swap(sizes[dims - 1], sizes[dims - 2]);
      Tensor tensor = Tensor::Zeros(sizes, {.dtype = kInt32}).value();
      if (transposed) tensor = tensor.Transpose(-1, -2).value();
      tensors.push_back(tensor);
      offsets.push_back(boxes[i].offsets);
      indices.push_back(static_cast<int>(i));
    }
  }

  std::vector<SourceMemory> Sources() const {
    std::vector<SourceMemory> memory;
    for (size_t i = 0; i < tensors.size(); ++i) {
      memory.push_back({.shard = indices[i],
                        .offsets = offsets[i],
                        .strides = StridesOf(tensors[i]),
                        .data = tensors[i].data()});
    }
    return memory;
  }
  std::vector<DestinationMemory> Destinations() {
    std::vector<DestinationMemory> memory;
    for (size_t i = 0; i < tensors.size(); ++i) {
      memory.push_back({.shard = indices[i],
                        .offsets = offsets[i],
                        .strides = StridesOf(tensors[i]),
                        .data = tensors[i].data()});
    }
    return memory;
  }

  std::vector<Tensor> tensors;
  std::vector<Dims> offsets;
  std::vector<int> indices;
};

Boxes Rows(const Dims& size, int ranks) {
  Boxes boxes;
  const int64_t length = (size[0] + ranks - 1) / ranks;
  for (int r = 0; r < ranks; ++r) {
    const int64_t begin = std::min(r * length, size[0]);
    boxes.push_back(
        {{{begin, 0}, {std::min(length, size[0] - begin), size[1]}}, r});
  }
  return boxes;
}

Boxes Columns(const Dims& size, int ranks) {
  Boxes boxes = Rows({size[1], size[0]}, ranks);
  for (PlacedBox& box : boxes) {
    std::swap(box.offsets[0], box.offsets[1]);
    std::swap(box.sizes[0], box.sizes[1]);
  }
  return boxes;
}

struct Outcome {
  absl::Status status;
  ReshardStats stats;
};

// Moves the pattern from one layout to another, by messages by default, and
// checks every element.
Outcome Move(ProcessGroup& group, const Boxes& from, const Boxes& to,
             const Dims& size, bool transposed_from, bool transposed_to,
             int64_t max_staging_bytes, bool direct = false) {
  Side source(from, group.rank(), transposed_from);
  Side destination(to, group.rank(), transposed_to);
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    FillPattern(source.tensors[i], source.offsets[i], size);
  }
  Outcome outcome;
  const ReshardPlan plan = ReshardPlan::Create(from, to, group.rank()).value();
  outcome.status = RunReshard(
      group, "move",
      ReshardExecutor::Create(plan, sizeof(int32_t), group.size(),
                              source.Sources(), destination.Destinations(),
                              {.max_staging_bytes = max_staging_bytes,
                               .direct = direct,
                               .stats = &outcome.stats}),
      {.fingerprint = 1});
  if (!outcome.status.ok()) return outcome;
  for (size_t i = 0; i < destination.tensors.size(); ++i) {
    EXPECT_TRUE(
        HasPattern(destination.tensors[i], destination.offsets[i], size));
  }
  EXPECT_EQ(outcome.stats.bytes_sent, plan.bytes_sent(4));
  EXPECT_EQ(outcome.stats.bytes_received, plan.bytes_received(4));
  EXPECT_EQ(outcome.stats.bytes_local, plan.bytes_local(4));
  EXPECT_EQ(outcome.stats.lower_bound_bytes, outcome.stats.bytes_received);
  EXPECT_LE(outcome.stats.staging_bytes, max_staging_bytes);
  return outcome;
}

TEST(ReshardExecutorTest, MovesBetweenLayoutsStridesAndStagingLimits) {
  const Dims size = {37, 23};
  for (const int ranks : {1, 2, 3, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      const Boxes rows = Rows(size, ranks);
      const Boxes columns = Columns(size, ranks);
      for (const bool transposed_from : {false, true}) {
        for (const bool transposed_to : {false, true}) {
          // One element per message, some odd sizes, and everything at once.
          for (const int64_t staging : {64, 400, 1000, 1 << 20}) {
            if (staging < 16 * (ranks - 1)) continue;
            for (const bool direct : {false, true}) {
              EXPECT_THAT(Move(group, rows, columns, size, transposed_from,
                               transposed_to, staging, direct)
                              .status,
                          IsOk());
              EXPECT_THAT(Move(group, columns, rows, size, transposed_from,
                               transposed_to, staging, direct)
                              .status,
                          IsOk());
            }
          }
        }
      }
    });
  }
}

// Adds the copies of a plan, with `first` added to the numbers of its shards.
void AddCopies(const ReshardPlan& plan, int first,
               std::vector<BoxCopy>& copies) {
  const auto add = [&](absl::Span<const BoxCopy> more) {
    for (BoxCopy copy : more) {
      copy.src_shard += first;
      copy.dst_shard += first;
      copies.push_back(std::move(copy));
    }
  };
  for (const PeerCopies& peer : plan.sends()) add(peer.copies);
  for (const PeerCopies& peer : plan.receives()) add(peer.copies);
  add(plan.local());
}

template <typename Memory>
void AddShards(std::vector<Memory> shards, int first,
               std::vector<Memory>& all) {
  for (Memory& shard : shards) {
    shard.shard += first;
    all.push_back(std::move(shard));
  }
}

TEST(ReshardExecutorTest, TensorsOfDifferentDimensionsMoveInOneRun) {
  constexpr int kRanks = 3;
  const std::vector<Dims> sizes = {{37, 23}, {5, 64}, {400}};
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    for (const bool direct : {false, true}) {
      std::vector<BoxCopy> copies;
      std::vector<SourceMemory> sources;
      std::vector<DestinationMemory> destinations;
      std::vector<Side> from, to;
      for (const Dims& size : sizes) {
        Boxes before = {{WholeBox(size), 1}};
        Boxes after = {{WholeBox(size), 2}};
        if (size.size() == 2) {
          before = Rows(size, kRanks);
          after = Columns(size, kRanks);
        }
        Side& source = from.emplace_back(before, group.rank(), false);
        for (size_t i = 0; i < source.tensors.size(); ++i) {
          FillPattern(source.tensors[i], source.offsets[i], size);
        }
        Side& destination = to.emplace_back(after, group.rank(), false);
        const int first = 10 * static_cast<int>(from.size());
        AddCopies(ReshardPlan::Create(before, after, group.rank()).value(),
                  first, copies);
        AddShards(source.Sources(), first, sources);
        AddShards(destination.Destinations(), first, destinations);
      }
      std::reverse(copies.begin(), copies.end());
      SHERD_ASSERT_OK_AND_ASSIGN(
          ReshardPlan plan,
          ReshardPlan::OfCopies(std::move(copies), group.rank(), group.size()));
      EXPECT_THAT(RunReshard(group, "move",
                             ReshardExecutor::Create(
                                 std::move(plan), sizeof(int32_t), group.size(),
                                 sources, destinations,
                                 {.max_staging_bytes = 1000, .direct = direct}),
                             {.fingerprint = 1}),
                  IsOk());
      for (size_t t = 0; t < sizes.size(); ++t) {
        for (size_t i = 0; i < to[t].tensors.size(); ++i) {
          EXPECT_TRUE(HasPattern(to[t].tensors[i], to[t].offsets[i], sizes[t]));
        }
      }
    }
  });
}

TEST(ReshardExecutorTest, StagesOnlyWhereRunsAreNotContiguous) {
  const Dims size = {8, 8};
  RunLocalRanks(2, [&](ProcessGroup& group) {
    // Whole rows change ranks: in place at both ends.
    Boxes swapped = Rows(size, 2);
    std::swap(swapped[0].rank, swapped[1].rank);
    const Outcome direct =
        Move(group, Rows(size, 2), swapped, size, false, false, 1 << 20);
    EXPECT_THAT(direct.status, IsOk());
    EXPECT_EQ(direct.stats.bytes_sent, 128);
    EXPECT_EQ(direct.stats.bytes_staged, 0);
    EXPECT_EQ(direct.stats.staging_bytes, 0);
    EXPECT_EQ(direct.stats.rounds, 1);
    // Rows to columns: packed at the source, in place at the destination.
    const Outcome packed = Move(group, Rows(size, 2), Columns(size, 2), size,
                                false, false, 1 << 20);
    EXPECT_THAT(packed.status, IsOk());
    EXPECT_EQ(packed.stats.bytes_staged, 64);
    // Columns to rows: the other way round.
    const Outcome unpacked = Move(group, Columns(size, 2), Rows(size, 2), size,
                                  false, false, 1 << 20);
    EXPECT_THAT(unpacked.status, IsOk());
    EXPECT_EQ(unpacked.stats.bytes_staged, 64);
  });
}

TEST(ReshardExecutorTest, CutsTheTransferIntoRoundsThatFitTheStaging) {
  const Dims size = {64, 64};
  RunLocalRanks(2, [&](ProcessGroup& group) {
    // 4 KiB to send; messages of 512 bytes at most, two out and two in.
    const Outcome outcome =
        Move(group, Rows(size, 2), Columns(size, 2), size, false, false, 2048);
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.stats.rounds, 8);
    EXPECT_EQ(outcome.stats.staging_bytes, 1024);
  });
}

TEST(ReshardExecutorTest, RanksWithNothingToMoveTakePartInAllRounds) {
  const Dims size = {16, 16};
  RunLocalRanks(3, [&](ProcessGroup& group) {
    Boxes from = Rows(size, 2);
    Boxes to = Columns(size, 2);
    for (PlacedBox& box : to) box.rank = 1 - box.rank;
    const Outcome outcome = Move(group, from, to, size, false, false, 256);
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_GT(outcome.stats.rounds, 2);
    EXPECT_EQ(outcome.stats.bytes_sent == 0, group.rank() == 2);
    // All ranks are at the same place afterwards.
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(ReshardExecutorTest, ReplicatedSourcesAndDestinations) {
  const Dims size = {6, 4};
  RunLocalRanks(4, [&](ProcessGroup& group) {
    Boxes from = Rows(size, 2);
    for (PlacedBox box : Rows(size, 2)) {
      box.rank += 2;
      from.push_back(box);
    }
    Boxes to;
    for (int rank = 0; rank < 4; ++rank) to.push_back({{{0, 0}, {6, 4}}, rank});
    const Outcome outcome = Move(group, from, to, size, false, false, 1 << 20);
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.stats.bytes_received, 48);
  });
}

// Reduces on each rank its part of a whole in which element i is i times the
// rank's number, from 1.
Outcome ReduceColumns(ProcessGroup& group, const Dims& size, DType dtype,
                      int64_t max_staging_bytes, const Device& device = {}) {
  const Boxes boxes = Columns(size, group.size());
  Tensor summand = Tensor::Zeros(size, {.dtype = kInt32}).value();
  int32_t* const values = summand.mutable_data_as<int32_t>();
  for (int64_t i = 0; i < summand.numel(); ++i) {
    values[i] = static_cast<int32_t>(i) * (group.rank() + 1);
  }
  Side result(boxes, group.rank(), /*transposed=*/false);
  const SourceMemory source = {.offsets = Dims(size.size(), 0),
                               .strides = StridesOf(summand),
                               .data = summand.data(),
                               .device = device};
  Outcome outcome;
  outcome.status = RunReshard(
      group, "reduce",
      ReshardExecutor::CreateReduction(
          ReshardPlan::CreateReduction(boxes, group.rank(), group.size())
              .value(),
          ReduceOp::kMax, dtype, group.size(), {&source, 1},
          result.Destinations(),
          {.max_staging_bytes = max_staging_bytes, .stats = &outcome.stats}),
      {.fingerprint = 1});
  if (!outcome.status.ok()) return outcome;
  for (size_t i = 0; i < result.tensors.size(); ++i) {
    const int32_t* const got = result.tensors[i].data_as<int32_t>();
    const Dims& sizes = boxes[static_cast<size_t>(result.indices[i])].sizes;
    for (int64_t row = 0; row < sizes[0]; ++row) {
      for (int64_t column = 0; column < sizes[1]; ++column) {
        const int64_t at = row * size[1] + result.offsets[i][1] + column;
        EXPECT_EQ(got[row * sizes[1] + column], at * group.size());
      }
    }
  }
  return outcome;
}

TEST(ReshardExecutorTest, ReducesWhatRanksHaveOfABox) {
  for (const int ranks : {1, 2, 3, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      const Dims size = {12, 10};
      const Outcome whole = ReduceColumns(group, size, kInt32, 1 << 20);
      ASSERT_THAT(whole.status, IsOk());
      EXPECT_EQ(whole.stats.strategy, TransferStrategy::kMessages);
      EXPECT_EQ(whole.stats.reason, TransferReason::kReduces);
      EXPECT_EQ(whole.stats.rounds, 1);
      EXPECT_EQ(whole.stats.bytes_received, whole.stats.lower_bound_bytes);
      const int64_t bound = ranks * 4 * 4;
      const Outcome little = ReduceColumns(group, size, kInt32, bound);
      ASSERT_THAT(little.status, IsOk());
      EXPECT_GT(little.stats.rounds, 5);
      EXPECT_LE(little.stats.staging_bytes, bound);
      EXPECT_EQ(little.stats.bytes_received, whole.stats.bytes_received);
    });
  }
}

TEST(ReshardExecutorTest, RefusesReductionsThatItCannotMake) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const bool errs = group.rank() == 1;
    EXPECT_THAT(ReduceColumns(group, {2, 4}, kInt32, errs ? 15 : 1024).status,
                StatusIs(kInvalid, "expected at least 16 for 2 ranks"));
    EXPECT_THAT(ReduceColumns(group, {2, 4}, kInt32, errs ? 16 : 1024).status,
                StatusIs(kInvalid, "max_staging_bytes 16"));
    EXPECT_THAT(
        ReduceColumns(group, {2, 4}, errs ? kComplex64 : kInt32, 1024).status,
        StatusIs(kInvalid, "complex64"));
    EXPECT_THAT(ReduceColumns(group, {2, 4}, kInt32, 1024,
                              errs ? Device{DeviceType::kCuda, 0} : Device())
                    .status,
                StatusIs(kInvalid,
                         "a reduction needs its summands and results in "
                         "host memory"));
    EXPECT_THAT(ReduceColumns(group, {2, 4}, kInt32, 1024).status, IsOk());
  });
}

TEST(ReshardExecutorTest, RefusesMemoryThatDoesNotFitThePlan) {
  const Boxes from = {{{{0}, {4}}, 0}};
  const Boxes to = {{{{0}, {4}}, 1}};
  const ReshardPlan plan = ReshardPlan::Create(from, to, 0).value();
  std::vector<int32_t> data(4);
  const SourceMemory good = {
      .shard = 0, .offsets = {0}, .strides = {1}, .data = data.data()};
  const auto create = [&](const std::vector<SourceMemory>& sources,
                          int world_size = 2, int64_t staging = 1024) {
    return ReshardExecutor::Create(plan, 4, world_size, sources, {},
                                   {.max_staging_bytes = staging})
        .status();
  };
  EXPECT_THAT(create({good}), IsOk());
  EXPECT_THAT(create({}),
              StatusIs(kInvalid, "needs memory of source shard 0, none given"));
  EXPECT_THAT(create({good, good}),
              StatusIs(kInvalid, "source shard 0 is given twice"));
  SourceMemory bad = good;
  bad.strides = {1, 1};
  EXPECT_THAT(create({bad}), StatusIs(kInvalid, "expected 1 of each"));
  EXPECT_THAT(create({good}, 1),
              StatusIs(kInvalid, "needs rank 1 in a group of 1"));
  EXPECT_THAT(create({good}, 2, 15),
              StatusIs(kInvalid, "max_staging_bytes is 15, expected 16"));
  EXPECT_THAT(create({good}, 2, -1), StatusIs(kInvalid, "max_staging_bytes"));
}

TEST(ReshardExecutorTest, AnErrorOnOneRankIsTheSameOnAll) {
  std::vector<absl::Status> statuses(3);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const Dims size = {6, 6};
    const int64_t staging = group.rank() == 1 ? 3 : 1000;
    statuses[group.rank()] = Move(group, Rows(size, 3), Columns(size, 3), size,
                                  false, false, staging)
                                 .status;
    // The group stays usable.
    EXPECT_THAT(
        Move(group, Rows(size, 3), Columns(size, 3), size, false, false, 1000)
            .status,
        IsOk());
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(kInvalid,
                                 HasSubstr("move: rank 1: max_staging_bytes")));
    EXPECT_EQ(ErrorRank(status), 1);
  }
}

TEST(ReshardExecutorTest, ARankThatLeavesIsNamedByTheOthers) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    if (group.rank() == 2) return;
    const Dims size = {6, 6};
    const absl::Status status =
        Move(group, Rows(size, 3), Columns(size, 3), size, false, false, 1000)
            .status;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(ErrorRank(status), 2) << status;
  });
}

}  // namespace
}  // namespace sherd
