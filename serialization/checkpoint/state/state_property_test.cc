// Random states of random ranks, saved and loaded by others: each value, and
// each element, is what it was.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::CaseCount;
using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RandomMesh;
using sherd::testing::RandomSize;
using sherd::testing::RunLocalRanks;

enum class Kind { kTensor, kSharded, kValue, kRankTensor, kRankValue };

// A name of a state, before it is known who has it.
struct Drawn {
  std::string name;
  Kind kind = Kind::kValue;
  Dims size;
  DType dtype = kFloat32;
  int seed = 0;
  StateValue value;
};

// Who has a name, and how.
struct Held {
  // Ascending; not empty.
  std::vector<int> ranks;
  ShardingSpecPtr spec;
};

template <typename Random>
std::vector<int> DrawRanks(int count, Random& random) {
  std::vector<int> ranks;
  for (int r = 0; r < count; ++r) {
    if (random() % 3 != 0) ranks.push_back(r);
  }
  if (ranks.empty()) ranks.push_back(static_cast<int>(random() % count));
  return ranks;
}

template <typename Random>
StateValue DrawValue(int depth, Random& random) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return StateValue();
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int64_t>(random()) >> (random() % 64);
    case 3:
      return static_cast<double>(random());
    case 4:
      return std::string(random() % 300, 'x');
    case 5:
      return StateBytes{std::string(random() % 9, '\xff')};
    case 6: {
      StateDict map;
      for (uint64_t i = random() % 3; i > 0; --i) {
        EXPECT_THAT(map.Set(absl::StrCat("k", i), DrawValue(depth - 1, random)),
                    IsOk());
      }
      return map;
    }
    default: {
      StateList list;
      for (uint64_t i = random() % 3; i > 0; --i) {
        list.push_back(DrawValue(depth - 1, random));
      }
      return list;
    }
  }
}

class RandomState {
 public:
  explicit RandomState(uint64_t seed) : random_(seed) {
    for (uint64_t i = 1 + random_() % 8; i > 0; --i) {
      Drawn drawn;
      drawn.kind = static_cast<Kind>(random_() % 5);
      const bool per_rank =
          drawn.kind == Kind::kRankTensor || drawn.kind == Kind::kRankValue;
      drawn.name = absl::StrCat(per_rank        ? "own."
                                : random_() % 2 ? "a."
                                                : "",
                                random_() % 2 ? "m\\.x." : "", "n", i);
      drawn.size = RandomSize(3, 500, random_);
      drawn.dtype = static_cast<DType>(random_() % kNumDTypes);
      drawn.seed = static_cast<int>(i);
      drawn.value = DrawValue(2, random_);
      names_.push_back(std::move(drawn));
    }
  }

  // Who has what, of `count` ranks; per-rank names on those below `savers`.
  std::vector<Held> Draw(int count, int savers) {
    std::vector<Held> held;
    for (const Drawn& drawn : names_) {
      Held one;
      const bool per_rank =
          drawn.kind == Kind::kRankTensor || drawn.kind == Kind::kRankValue;
      one.ranks =
          DrawRanks(per_rank ? std::min(count, savers) : count, random_);
      if (per_rank) one.ranks.clear();
      for (int r = 0; per_rank && r < std::min(count, savers); ++r) {
        one.ranks.push_back(r);
      }
      one.spec = RandomMesh(drawn.size, one.ranks, random_);
      held.push_back(std::move(one));
    }
    return held;
  }

  // The state of this rank. Collective. With `blank`, of a load.
  StateDict Make(const std::vector<Held>& held, ProcessGroup& group,
                 bool blank) const {
    StateDict state;
    for (size_t i = 0; i < names_.size(); ++i) {
      const Drawn& drawn = names_[i];
      // Collective.
      const auto members = group.NewGroup(held[i].ranks);
      EXPECT_THAT(members, IsOk());
      if (!(*members)->is_member()) continue;
      EXPECT_THAT(state.Set(drawn.name, ValueOf(drawn, held[i], *members,
                                                group.rank(), blank)),
                  IsOk());
    }
    return state;
  }

 private:
  static StateValue ValueOf(const Drawn& drawn, const Held& held,
                            const std::shared_ptr<ProcessGroup>& members,
                            int rank, bool blank) {
    if (drawn.kind == Kind::kValue) {
      return blank ? StateValue(-1) : drawn.value;
    }
    if (drawn.kind == Kind::kRankValue) return blank ? -1 : 100 + rank;
    // All ranks agree; whole: the members are as many as hold it.
    if (drawn.kind == Kind::kSharded) {
      auto tensor = ShardedTensor::Zeros(
          held.spec, drawn.size, {.dtype = drawn.dtype, .group = members});
      EXPECT_THAT(tensor, IsOk());
      if (!blank) FillSample(*tensor, drawn.seed);
      return *std::move(tensor);
    }
    auto tensor = Tensor::Zeros(drawn.size, {.dtype = drawn.dtype});
    EXPECT_THAT(tensor, IsOk());
    const int seed =
        drawn.seed + (drawn.kind == Kind::kRankTensor ? 100 * rank : 0);
    if (blank) return *std::move(tensor);
    const size_t element = SizeOf(drawn.dtype);
    auto* const data = static_cast<std::byte*>(tensor->data());
    for (int64_t b = 0; b < tensor->nbytes(); ++b) {
      data[b] = SampleByte(seed, b / static_cast<int64_t>(element),
                           b % static_cast<int64_t>(element), drawn.dtype);
    }
    return *std::move(tensor);
  }

  std::mt19937_64 random_;
  std::vector<Drawn> names_;
};

TEST(StatePropertyTest, RandomStatesComeBackOnOtherRanks) {
  const LeaveOutSyncs no_syncs;
  const std::string path =
      JoinPath(::testing::TempDir(), "state_property_test");
  std::filesystem::remove_all(path);
  const uint64_t first = std::random_device()();
  const int64_t cases = CaseCount(60);
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const int savers = 1 + static_cast<int>(random() % 4);
    const int loaders = 1 + static_cast<int>(random() % 4);
    RandomState names(seed);
    const std::vector<Held> saved = names.Draw(savers, savers);
    const std::vector<Held> loaded = names.Draw(loaders, savers);
    RunLocalRanks(savers, [&](ProcessGroup& group) {
      const StateDict state = names.Make(saved, group, false);
      const SaveOptions options = {.check_replicas = seed % 2 == 0,
                                   .per_rank = {"own"}};
      EXPECT_THAT(SaveCheckpoint(path, state, nullptr, options), IsOk());
      // Once more, by the kept plan.
      EXPECT_THAT(SaveCheckpoint(path, state, nullptr, options), IsOk());
    });
    EXPECT_THAT(VerifyCheckpoint(path), IsOk());
    RunLocalRanks(loaders, [&](ProcessGroup& group) {
      StateDict state = names.Make(loaded, group, true);
      const StateDict expected = names.Make(loaded, group, false);
      // All that was saved, for a rank without names.
      if (state.empty()) {
        ASSERT_THAT(state.Set("unused", StateDict()), IsOk());
      }
      LoadReport report;
      EXPECT_THAT(LoadCheckpointInto(path, state, nullptr,
                                     {.strict = false, .report = &report}),
                  IsOk());
      EXPECT_TRUE(report.mismatched.empty());
      if (state.Contains("unused")) {
        EXPECT_THAT(state.Erase("unused"), IsOk());
      }
      EXPECT_EQ(state.Difference(expected), "");
    });
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
