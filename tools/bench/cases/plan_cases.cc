#include "sherd/tools/bench/cases/plan_cases.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/tools/bench/cases/metadata_work.h"

namespace sherd {
namespace {

using Shards = std::vector<ShardMetadata>;

constexpr int kRanks = 10'000;
// The rank whose plan is made.
constexpr int kPlannedRank = 7;
constexpr int64_t kBytesPerShard = 16;
constexpr int64_t kMaxShards = int64_t{1} << 22;

int64_t SideOf(int64_t shards) {
  int64_t side = 1;
  while (side * side < shards) side *= 2;
  return side;
}

// `count` boxes of `height` x `width`, `columns` in a row, dealt to the ranks.
// Every second row is moved to the right by `shift`.
Shards Rows(int64_t count, int64_t columns, int64_t height, int64_t width,
            int64_t shift = 0) {
  Shards shards;
  shards.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / columns;
    shards.push_back({{row * height, i % columns * width + row % 2 * shift},
                      {height, width},
                      Placement::OnRank(static_cast<int>(i % kRanks))});
  }
  return shards;
}

Shards Squares(int64_t count, int64_t shift = 0) {
  return Rows(count, SideOf(count), 4, 4, shift);
}

// Large and small squares in turn, none of whose edges goes through.
Shards Pinwheels(int64_t count) {
  Shards shards;
  const int64_t side = SideOf(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t pair = i / 2;
    const int64_t x = 2 * (pair / side) - pair % side + side;
    const int64_t y = pair / side + 2 * (pair % side);
    const bool large = i % 2 == 0;
    const int64_t size = large ? 2 : 1;
    shards.push_back({{large ? x : x + 2, y},
                      {size, size},
                      Placement::OnRank(static_cast<int>(i % kRanks))});
  }
  return shards;
}

// Chunks of one dimension in blocks of neighbours, as a chunk spec with several
// placements per rank has them.
Shards Chunks(int dim, int64_t count, int64_t rows, int64_t columns) {
  Shards shards;
  shards.reserve(static_cast<size_t>(count));
  const int64_t size = (dim == 0 ? rows : columns) / count;
  for (int64_t i = 0; i < count; ++i) {
    ShardMetadata shard = {{0, 0}, {rows, columns}, {}};
    shard.offsets[dim] = i * size;
    shard.sizes[dim] = size;
    shard.placement = Placement::OnRank(static_cast<int>(i * kRanks / count));
    shards.push_back(std::move(shard));
  }
  return shards;
}

struct Move {
  Shards from;
  Shards to;
  Replicas replicas = Replicas::kRefused;
};

Move RowsToColumns(int64_t shards) {
  const int64_t columns = std::min<int64_t>(shards, kRanks);
  return {Chunks(0, shards, shards, columns),
          Chunks(1, columns, shards, columns)};
}

Move GridToGrid(int64_t shards) {
  const int64_t side = SideOf(shards);
  const int64_t whole = shards / side * side;
  // Pairs of boxes that lie above one another, to pairs beside one another.
  return {Rows(whole / (2 * side) * 2 * side, side, 4, 4),
          Rows(whole / (2 * side) * 2 * side, 2 * side, 8, 2)};
}

Move BricksToBricks(int64_t shards) {
  Move move = {Squares(shards, 2), Squares(shards, 2)};
  for (size_t i = 0; i < move.to.size(); ++i) {
    move.to[i].placement =
        Placement::OnRank(static_cast<int>(i * kRanks / move.to.size()));
  }
  return move;
}

// Blocks of 4 x 4 dealt to a grid of 100 x 100 ranks, then of 8 x 2 dealt to
// one of 50 x 200.
Move CyclicToCyclic(int64_t shards) {
  Move move = GridToGrid(shards);
  const int64_t side = SideOf(shards);
  const auto deal = [](Shards& list, int64_t columns, int64_t grid_rows) {
    const int64_t grid_columns = kRanks / grid_rows;
    for (size_t i = 0; i < list.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / columns % grid_rows;
      const int64_t column = static_cast<int64_t>(i) % columns % grid_columns;
      list[i].placement =
          Placement::OnRank(static_cast<int>(row * grid_columns + column));
    }
  };
  deal(move.from, side, 100);
  deal(move.to, 2 * side, 50);
  return move;
}

// Every box on two ranks.
Move ReplicasToGrid(int64_t shards) {
  Move move = GridToGrid(shards / 2);
  move.replicas = Replicas::kAllowed;
  const size_t boxes = move.from.size();
  for (size_t i = 0; i < boxes; ++i) {
    ShardMetadata replica = move.from[i];
    replica.placement =
        Placement::OnRank((*replica.placement->rank() + kRanks / 2) % kRanks);
    move.from.push_back(std::move(replica));
  }
  return move;
}

class SherdValidation final : public MetadataWork {
 public:
  SherdValidation(RankContext& context, Shards shards)
      : MetadataWork(context), shards_(std::move(shards)) {}

 private:
  absl::Status Work() override { return ValidateNonOverlapping(shards_); }

  const Shards shards_;
};

// A line sweeps along the first dimension over intervals of the second one, in
// an ordered map: what there is to do, on plain numbers, without a message.
class PlainSweep final : public MetadataWork {
 public:
  PlainSweep(RankContext& context, const Shards& shards)
      : MetadataWork(context) {
    for (const ShardMetadata& shard : shards) {
      boxes_.push_back({{shard.offsets[0], shard.offsets[1]},
                        {shard.sizes[0], shard.sizes[1]}});
    }
  }

 private:
  struct PlainRectangle {
    int64_t offsets[2];
    int64_t sizes[2];
  };

  absl::Status Work() override {
    struct Event {
      int64_t at;
      bool begins;
      uint32_t box;
    };
    std::vector<Event> events;
    events.reserve(2 * boxes_.size());
    for (uint32_t i = 0; i < boxes_.size(); ++i) {
      const PlainRectangle& box = boxes_[i];
      events.push_back({box.offsets[0], true, i});
      events.push_back({box.offsets[0] + box.sizes[0], false, i});
    }
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return a.at != b.at ? a.at < b.at : a.begins < b.begins;
    });
    std::map<int64_t, int64_t> crossed;
    for (const Event& event : events) {
      const int64_t lo = boxes_[event.box].offsets[1];
      const int64_t hi = lo + boxes_[event.box].sizes[1];
      if (!event.begins) {
        crossed.erase(lo);
        continue;
      }
      const auto next = crossed.lower_bound(lo);
      if ((next != crossed.end() && next->first < hi) ||
          (next != crossed.begin() && std::prev(next)->second > lo)) {
        return absl::InvalidArgumentError("boxes overlap");
      }
      crossed.emplace_hint(next, lo, hi);
    }
    return absl::OkStatus();
  }

  std::vector<PlainRectangle> boxes_;
};

class SherdPlanning final : public MetadataWork {
 public:
  SherdPlanning(RankContext& context, Move move)
      : MetadataWork(context), move_(std::move(move)) {
    for (const ShardMetadata& shard : move_.to) {
      if (shard.placement->rank() != kPlannedRank) continue;
      wanted_ += shard.sizes[0] * shard.sizes[1];
    }
  }

 private:
  absl::Status Work() override {
    SHERD_RETURN_IF_ERROR(ValidateNonOverlapping(move_.from, move_.replicas));
    SHERD_RETURN_IF_ERROR(ValidateNonOverlapping(move_.to));
    const std::vector<int> ranks = AllRanks(kRanks);
    SHERD_ASSIGN_OR_RETURN(const auto from, PlacedBoxes(move_.from, ranks));
    SHERD_ASSIGN_OR_RETURN(const auto to, PlacedBoxes(move_.to, ranks));
    SHERD_ASSIGN_OR_RETURN(const ReshardPlan plan,
                           ReshardPlan::Create(from, to, kPlannedRank));
    if (plan.elements_received() + plan.elements_local() == wanted_ &&
        plan.elements_received() == plan.lower_bound_elements()) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        "the plan receives ", plan.elements_received(), " and keeps ",
        plan.elements_local(), " of ", wanted_, " elements"));
  }

  const Move move_;
  int64_t wanted_ = 0;
};

absl::Status CheckShards(int world, int64_t bytes, const std::string&) {
  const int64_t shards = bytes / kBytesPerShard;
  if (world == 1 && shards >= 64 && shards <= kMaxShards) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("measured on one rank, others being simulated, and from ",
                   64 * kBytesPerShard, " to ", kMaxShards * kBytesPerShard,
                   " bytes, a shard for each ", kBytesPerShard));
}

// So that memory is reported; what a plan would move does not matter.
int64_t NothingMoves(int, int64_t) { return 0; }

BenchCase Validation(const char* name, const char* help,
                     Shards (*make)(int64_t)) {
  const auto shards = [make](const RankContext& context) {
    return make(context.bytes() / kBytesPerShard);
  };
  return {.name = name,
          .help = help,
          .peers = {{.name = "sherd",
                     .help = "ValidateNonOverlapping",
                     .make = [shards](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       return std::make_unique<SherdValidation>(
                           context, shards(context));
                     }},
                    {.name = "limit",
                     .help = "a sweep over plain numbers",
                     .make = [shards](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       return std::make_unique<PlainSweep>(context,
                                                           shards(context));
                     }}},
          .check = CheckShards,
          .lower_bound = NothingMoves};
}

BenchCase Planning(const char* name, const char* help, Move (*make)(int64_t)) {
  return {.name = name,
          .help = help,
          .peers = {{.name = "sherd",
                     .help = "validation, owners, ReshardPlan::Create",
                     .make = [make](RankContext& context)
                         -> absl::StatusOr<std::unique_ptr<RankWork>> {
                       return std::make_unique<SherdPlanning>(
                           context, make(context.bytes() / kBytesPerShard));
                     }}},
          .check = CheckShards,
          .lower_bound = NothingMoves};
}

}  // namespace

std::vector<BenchCase> PlanCases() {
  return {
      Validation("validate_grid", "a shard per 16 bytes, a grid of squares",
                 [](int64_t shards) { return Squares(shards); }),
      Validation("validate_bricks", "the same, every second row shifted",
                 [](int64_t shards) { return Squares(shards, 2); }),
      Validation("validate_pinwheels", "squares of two sizes, no plane cuts",
                 Pinwheels),
      Planning("plan_rows_columns", "a row per 16 bytes to 10,000 columns",
               RowsToColumns),
      Planning("plan_grids", "a shard per 16 bytes, grid to grid", GridToGrid),
      Planning("plan_bricks", "every second row shifted", BricksToBricks),
      Planning("plan_cyclic", "block-cyclic to block-cyclic", CyclicToCyclic),
      Planning("plan_replicas", "a grid of which each box is on two ranks",
               ReplicasToGrid)};
}

}  // namespace sherd
