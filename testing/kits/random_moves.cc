#include "sherd/testing/kits/random_moves.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_statistics.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharded_tensor_transfer.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd::testing {
namespace {

// Ranks of the world, in an order of their own.
struct Team {
  std::vector<int> ranks;
  // A handle that is not a member, on ranks outside of it.
  std::shared_ptr<ProcessGroup> group;
};

std::vector<std::vector<int>> TeamsOf(int world_size) {
  std::vector<int> all = AllRanks(world_size);
  std::vector<std::vector<int>> teams = {all};
  if (world_size == 1) return teams;
  teams.emplace_back(all.rbegin(), all.rend());
  std::vector<int> even, odd;
  for (const int rank : all) (rank % 2 == 0 ? even : odd).push_back(rank);
  std::reverse(even.begin(), even.end());
  teams.push_back(std::move(even));
  teams.push_back(std::move(odd));
  if (world_size > 3) {
    teams.push_back({world_size - 1, 0, world_size / 2});
    teams.emplace_back(all.begin() + 1, all.end());
  }
  return teams;
}

// A tensor whose dimensions lie in memory in the opposite order, with gaps.
Tensor StridedTensor(absl::Span<const int64_t> size, DType dtype,
                     const Device& device) {
  Dims reversed(size.rbegin(), size.rend());
  if (!reversed.empty()) reversed.back() += 1;
  Tensor tensor =
      Tensor::Zeros(reversed, {.dtype = dtype, .device = device}).value();
  Dims order;
  for (size_t d = size.size(); d-- > 0;) {
    order.push_back(static_cast<int64_t>(d));
  }
  return tensor.Permute(order)
      .value()
      .Narrow(Dims(size.size(), 0), size)
      .value();
}

// A tensor of a case and its contents: the box at `origin` of the pattern of
// `whole_size`.
struct Subject {
  ShardedTensor tensor;
  Dims origin;
  Dims whole_size;
  uint64_t salt = 0;

  ::testing::AssertionResult HasItsElements(const ShardedTensor& other) const {
    return HasPattern(other, origin, whole_size, salt);
  }
  ::testing::AssertionResult HasItsElements() const {
    return HasItsElements(tensor);
  }
  ::testing::AssertionResult HasItsElements(const Tensor& whole) const {
    return HasPattern(whole, origin, whole_size, salt);
  }
  // In one process.
  Tensor Model() const {
    return PatternTensor(whole_size, tensor.dtype(), salt)
        .Narrow(origin, tensor.size())
        .value();
  }
};

// One case. All ranks draw the same numbers, in the same order.
class RandomCase {
 public:
  RandomCase(const std::shared_ptr<ProcessGroup>& world,
             const std::vector<Team>& teams, uint64_t seed,
             const RandomMovesOptions& options)
      : world_(world),
        teams_(teams),
        devices_(options.devices),
        random_(seed),
        draw_on_devices_(options.draw_on_devices) {
    size_ = RandomSize(4, 700, random_);
    dtype_ = static_cast<DType>(Below(kNumDTypes));
    team_ = &teams_[Below(teams_.size())];
    options_.direct = !options.messages_only;
    options_.stats = &stats_;
    const int64_t least = 4 * static_cast<int64_t>(SizeOf(dtype_)) *
                          std::max(world->size() - 1, 1);
    options_.max_staging_bytes =
        Coin() ? least + static_cast<int64_t>(Below(500)) : 1 << 20;
    if (Coin()) heap_ranks_ = random_();
    if (!devices_.empty()) places_ = static_cast<Places>(Below(4));
  }

  void Run() {
    SCOPED_TRACE(absl::StrCat(Name(dtype_), FormatDims(size_), " places ",
                              static_cast<int>(places_), " on ranks ",
                              ::testing::PrintToString(team_->ranks),
                              " staging ", options_.max_staging_bytes));
    // Operations of all ranks of the world together.
    if (Below(8) == 0) return Transfer();
    if (!team_->group->is_member()) return;
    if (Below(10) == 0) return Reduce();
    if (Below(10) == 0) return DrawRandomNumbers();
    Subject subject;
    ASSERT_NO_FATAL_FAILURE(Create(subject));
    const uint64_t operations = 1 + Below(3);
    for (uint64_t i = 0; i < operations; ++i) {
      ASSERT_NO_FATAL_FAILURE(Operate(subject));
    }
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  bool Coin() { return Below(2) == 0; }
  int AnyRank() { return static_cast<int>(Below(team_->ranks.size())); }
  int rank() const { return team_->group->rank(); }
  int WorldRank(int rank) const {
    return team_->ranks[static_cast<size_t>(rank)];
  }

  ShardingSpecPtr AnySpec(absl::Span<const int64_t> size,
                          const std::vector<int>& ranks) {
    const ShardingSpecPtr spec = Below(4) == 0
                                     ? RandomMesh(size, ranks, random_)
                                     : RandomSpec(size, ranks, random_);
    if (places_ == Places::kHost) return spec;
    return spec->WithPlacements(
        [&](const Placement& placement) { return AnyPlace(placement); });
  }

  // Where a shard of a rank is in this case.
  Placement AnyPlace(const Placement& placement) {
    const int rank = placement.rank().value();
    return Placement::OnRank(rank, AnyDevice(rank));
  }
  Device AnyDevice(int rank) {
    const uint64_t choice = random_();
    if (places_ == Places::kHost) return Device();
    const std::vector<Device>& own = devices_[static_cast<size_t>(rank)];
    if (places_ == Places::kGroupsDevice) return own[0];
    if (places_ == Places::kMostlyDevices && choice % 8 != 0) return own[0];
    const uint64_t which = choice / 8 % (own.size() + 1);
    return which == own.size() ? Device() : own[which];
  }
  ShardingSpecPtr AnySpec() { return AnySpec(size_, team_->ranks); }

  // On some ranks memory that no other rank can access.
  Allocator* AnyAllocator() const {
    const bool heap = (heap_ranks_ >> (world_->rank() % 64) & 1) != 0;
    return heap ? &HeapAllocator() : nullptr;
  }

  ShardedTensorOptions Options() const {
    return {
        .dtype = dtype_, .group = team_->group, .allocator = AnyAllocator()};
  }

  // The transfer was minimal.
  void ExpectTheMinimum() const {
    EXPECT_EQ(stats_.bytes_received, stats_.lower_bound_bytes);
    EXPECT_LE(stats_.staging_bytes, options_.max_staging_bytes);
    if (!options_.direct) {
      EXPECT_THAT(
          stats_.strategy,
          ::testing::AnyOf(TransferStrategy::kNone, TransferStrategy::kMessages,
                           TransferStrategy::kDeviceMessages));
    }
    if (places_ == Places::kHost) {
      EXPECT_NE(stats_.strategy, TransferStrategy::kDeviceMessages);
    }
  }

  // Of transfers between shards, if nothing else is involved.
  void ExpectTheWayOfShards() const {
    ExpectTheMinimum();
    if (places_ != Places::kGroupsDevice || !team_->group->device()) return;
    EXPECT_THAT(stats_.strategy,
                ::testing::AnyOf(TransferStrategy::kNone,
                                 TransferStrategy::kDeviceMessages));
  }

  // Creation

  void Create(Subject& subject) {
    const ShardingSpecPtr spec = AnySpec();
    SCOPED_TRACE(absl::StrCat("created as ", spec->ToString()));
    subject.origin = Dims(size_.size(), 0);
    subject.whole_size = size_;
    switch (Below(3)) {
      case 0:
        ASSERT_NO_FATAL_FAILURE(Cut(spec, subject.tensor));
        break;
      case 1: {
        SHERD_ASSERT_OK_AND_ASSIGN(
            subject.tensor, ShardedTensor::Empty(spec, size_, Options()));
        FillPattern(subject.tensor);
        break;
      }
      default:
        ASSERT_NO_FATAL_FAILURE(PutTogether(subject.tensor));
    }
    EXPECT_EQ(subject.tensor.dtype(), dtype_);
    ASSERT_TRUE(subject.HasItsElements());
  }

  void Cut(const ShardingSpecPtr& spec, ShardedTensor& tensor) {
    const int source = AnyRank();
    const Device device = AnyDevice(WorldRank(source));
    Tensor whole;
    if (rank() == source) {
      SHERD_ASSERT_OK_AND_ASSIGN(whole,
                                 PatternTensor(size_, dtype_).To(device));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        tensor, ShardTensor(whole, spec, source, team_->group, options_));
    EXPECT_EQ(*tensor.spec(), *spec);
    ExpectTheMinimum();
  }

  void PutTogether(ShardedTensor& tensor) {
    std::vector<ShardMetadata> all = RandomShards(size_, team_->ranks, random_);
    std::vector<Shard> mine;
    for (ShardMetadata& shard : all) {
      shard.placement = AnyPlace(*shard.placement);
      if (shard.placement->rank() != world_->rank()) continue;
      SHERD_ASSERT_OK_AND_ASSIGN(
          Tensor local,
          Tensor::Empty(
              shard.sizes,
              {.dtype = dtype_,
               .device = shard.placement->device(),
               .allocator = shard.placement->device().is_cpu() ? AnyAllocator()
                                                               : nullptr}));
      FillPattern(local, shard.offsets, size_);
      mine.push_back({std::move(local), shard});
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        tensor, ShardedTensor::FromLocalShards(mine, size_, Options()));
    EXPECT_EQ(tensor.local_shards().size(), mine.size());
    EXPECT_EQ(tensor.metadata().shards.size(), all.size());
  }

  // Operations

  void Operate(Subject& subject) {
    switch (Below(9)) {
      case 0:
      case 1:
        return Reshard(subject);
      case 2:
        return MoveInto(subject);
      case 3:
        return Gather(subject);
      case 4:
        return AllGather(subject);
      case 5:
        return Narrow(subject);
      case 6:
        return Copy(subject);
      case 7:
        return Convert(subject);
      default:
        return Compute(subject);
    }
  }

  void Reshard(Subject& subject) {
    const ShardingSpecPtr spec = AnySpec(subject.tensor.size(), team_->ranks);
    SCOPED_TRACE(absl::StrCat("resharded from ", subject.tensor.ToString(),
                              " to ", spec->ToString()));
    const ShardedTensor before = subject.tensor;
    if (Coin()) {
      ASSERT_THAT(subject.tensor.Reshard(spec, options_), IsOk());
    } else {
      SHERD_ASSERT_OK_AND_ASSIGN(subject.tensor,
                                 before.Resharded(spec, options_));
    }
    ASSERT_TRUE(subject.HasItsElements());
    ASSERT_TRUE(subject.HasItsElements(before));
    EXPECT_EQ(*subject.tensor.spec(), *spec);
    EXPECT_EQ(subject.tensor.metadata(),
              spec->BuildMetadata(before.size(), before.metadata().properties)
                  .value());
    ExpectTheWayOfShards();
  }

  void MoveInto(const Subject& subject) {
    const ShardingSpecPtr spec = AnySpec(subject.tensor.size(), team_->ranks);
    SCOPED_TRACE(absl::StrCat("moved from ", subject.tensor.ToString(),
                              " into ", spec->ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor into,
        ShardedTensor::Zeros(spec, subject.tensor.size(), Options()));
    ASSERT_THAT(subject.tensor.ReshardInto(into, options_), IsOk());
    ASSERT_TRUE(subject.HasItsElements(into));
    ASSERT_TRUE(subject.HasItsElements());
    ExpectTheWayOfShards();
  }

  void Gather(const Subject& subject) {
    SCOPED_TRACE(absl::StrCat("gathered from ", subject.tensor.ToString()));
    const int destination = AnyRank();
    const bool strided = Coin();
    const Device device = AnyDevice(WorldRank(destination));
    Tensor out;
    if (rank() == destination && strided) {
      out =
          StridedTensor(subject.tensor.size(), subject.tensor.dtype(), device);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor whole, subject.tensor.Gather(destination, out, options_));
    ExpectTheMinimum();
    ASSERT_EQ(whole.defined(), rank() == destination);
    if (whole.defined()) ExpectTheWhole(subject, whole, out);
  }

  void AllGather(const Subject& subject) {
    SCOPED_TRACE(absl::StrCat("on all ranks from ", subject.tensor.ToString()));
    // Each rank as it likes.
    Tensor out;
    const Device device = AnyDevice(world_->rank());
    if ((random_() >> (world_->rank() % 64) & 1) != 0) {
      out =
          StridedTensor(subject.tensor.size(), subject.tensor.dtype(), device);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole,
                               subject.tensor.AllGather(out, options_));
    ExpectTheMinimum();
    ExpectTheWhole(subject, whole, out);
  }

  static void ExpectTheWhole(const Subject& subject, const Tensor& whole,
                             const Tensor& out) {
    EXPECT_EQ(whole.dtype(), subject.tensor.dtype());
    EXPECT_EQ(whole.sizes(), subject.tensor.size());
    ASSERT_TRUE(subject.HasItsElements(whole));
    if (out.defined()) {
      EXPECT_EQ(whole.data(), out.data());
    }
  }

  // Later operations use the view.
  void Narrow(Subject& subject) {
    Dims offsets, sizes;
    for (const int64_t n : subject.tensor.size()) {
      offsets.push_back(
          static_cast<int64_t>(Below(static_cast<uint64_t>(n) + 1)));
      const uint64_t most = static_cast<uint64_t>(n - offsets.back());
      // Seldom nothing.
      const uint64_t size = most == 0 ? 0 : 1 + Below(most);
      sizes.push_back(Below(20) == 0 ? 0 : static_cast<int64_t>(size));
    }
    SCOPED_TRACE(absl::StrCat("the ", FormatBox({offsets, sizes}), " of ",
                              subject.tensor.ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view,
                               subject.tensor.Narrow(offsets, sizes));
    for (size_t d = 0; d < offsets.size(); ++d) subject.origin[d] += offsets[d];
    subject.tensor = std::move(view);
    EXPECT_EQ(subject.tensor.size(), absl::MakeConstSpan(sizes));
    ASSERT_TRUE(subject.HasItsElements());
  }

  void Copy(Subject& subject) {
    SCOPED_TRACE(absl::StrCat("copied from ", subject.tensor.ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor clone,
                               subject.tensor.Clone(AnyAllocator()));
    EXPECT_EQ(clone.metadata(), subject.tensor.metadata());
    EXPECT_TRUE(clone.is_contiguous());
    ASSERT_TRUE(subject.HasItsElements(clone));
    // NaN equals nothing, and the model knows where it is.
    const Tensor model = subject.Model();
    EXPECT_THAT(Equal(subject.tensor, clone), IsOkAndHolds(model.Equal(model)));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor zeros, ZerosLike(clone));
    const bool any_not_zero = !model.Equal(
        Tensor::Zeros(model.sizes(), {.dtype = model.dtype()}).value());
    EXPECT_THAT(Equal(zeros, clone), IsOkAndHolds(!any_not_zero));
    ASSERT_THAT(zeros.CopyFrom(subject.tensor), IsOk());
    ASSERT_TRUE(subject.HasItsElements(zeros));
    // The copies share nothing with it.
    ASSERT_THAT(clone.Fill(0), IsOk());
    ASSERT_TRUE(subject.HasItsElements());
    subject.tensor = std::move(zeros);
  }

  // Every shard is the box of a tensor in one process.
  static void ExpectBoxesOf(const Tensor& model, const ShardedTensor& tensor) {
    for (const Shard& shard : tensor.local_shards()) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensor box,
          model.Narrow(shard.metadata.offsets, shard.metadata.sizes));
      EXPECT_THAT(shard.tensor.To(Device()), IsOkAndHolds(TensorEq(box)));
    }
  }

  void Convert(const Subject& subject) {
    const DType dtype = IsCarried(dtype_)
                            ? dtype_
                            : static_cast<DType>(Below(kNumComputedDTypes));
    SCOPED_TRACE(absl::StrCat("to ", Name(dtype)));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor converted,
                               subject.tensor.To(dtype));
    EXPECT_EQ(converted.dtype(), dtype);
    EXPECT_EQ(converted.metadata().shards, subject.tensor.metadata().shards);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor model, subject.Model().To(dtype));
    ExpectBoxesOf(model, converted);
  }

  // A result computed in one layout equals that of another layout.
  void Compute(Subject& subject) {
    SCOPED_TRACE("computed");
    const DType dtype = subject.tensor.dtype();
    if (!IsComplex(dtype) && !IsCarried(dtype) && subject.tensor.numel() > 0) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor least, Min(subject.tensor));
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor most, Max(subject.tensor));
      ASSERT_NO_FATAL_FAILURE(Reshard(subject));
      EXPECT_THAT(Min(subject.tensor), IsOkAndHolds(TensorEq(least)));
      EXPECT_THAT(Max(subject.tensor), IsOkAndHolds(TensorEq(most)));
    }
    const auto sum = Sum(subject.tensor);
    ASSERT_NO_FATAL_FAILURE(Reshard(subject));
    const auto again = Sum(subject.tensor);
    ASSERT_EQ(sum.status(), again.status());
    if (sum.ok()) {
      EXPECT_THAT(*again, TensorEq(*sum));
    }
  }

  // Further sources of a tensor.

  // Each rank has a summand; integers, so that the model is exact.
  void Reduce() {
    constexpr DType kDTypes[] = {kInt8, kUInt16, kInt32, kUInt64, kInt64};
    const DType dtype = kDTypes[Below(std::size(kDTypes))];
    const ShardingSpecPtr spec = AnySpec();
    SCOPED_TRACE(
        absl::StrCat("summed as ", Name(dtype), " in ", spec->ToString()));
    Tensor model = PatternTensor(size_, dtype, 0);
    for (int r = 1; r < team_->group->size(); ++r) {
      const uint64_t salt = static_cast<uint64_t>(r);
      ASSERT_THAT(ApplyInPlace(BinaryOp::kAdd, model,
                               PatternTensor(size_, dtype, salt)),
                  IsOk());
    }
    const Device device = AnyDevice(world_->rank());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor summand,
        PatternTensor(size_, dtype, static_cast<uint64_t>(rank())).To(device));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(summand, ReduceOp::kSum, team_->group));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor sum,
        partial.Reshard(spec, {.max_staging_bytes = std::max<int64_t>(
                                   options_.max_staging_bytes, 256)}));
    EXPECT_EQ(*sum.spec(), *spec);
    ExpectBoxesOf(model, sum);
    EXPECT_TRUE(HasPattern(partial.local(), Dims(size_.size(), 0), size_,
                           static_cast<uint64_t>(rank())));
  }

  // The same numbers in every layout.
  void DrawRandomNumbers() {
    constexpr DType kDTypes[] = {kFloat16, kBFloat16, kFloat32, kFloat64,
                                 kComplex64};
    const DType dtype = kDTypes[Below(std::size(kDTypes))];
    const uint64_t seed = random_();
    if (!draw_on_devices_) places_ = Places::kHost;
    // On devices the logarithm differs in the last bits.
    const bool normal = Coin() && places_ == Places::kHost;
    const auto draw = [&](const ShardingSpecPtr& spec) {
      Generator generator(seed);
      const RandomOptions random = {.stream = RandomStream::kGlobal,
                                    .generator = &generator};
      const ShardedTensorOptions options = {.dtype = dtype,
                                            .group = team_->group};
      return normal ? ShardedTensor::Randn(spec, size_, options, random)
                    : ShardedTensor::Rand(spec, size_, options, random);
    };
    const ShardingSpecPtr first = AnySpec();
    const ShardingSpecPtr second = AnySpec();
    SCOPED_TRACE(absl::StrCat("random numbers in ", first->ToString(), " and ",
                              second->ToString()));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor a, draw(first));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor b, draw(second));
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole, a.AllGather());
    SHERD_ASSERT_OK_AND_ASSIGN(whole, whole.To(Device()));
    ASSERT_NO_FATAL_FAILURE(ExpectBoxesOf(whole, a));
    ExpectBoxesOf(whole, b);
  }

  // From one group to another, with all ranks of the world.
  void Transfer() {
    const Team& target = teams_[Below(teams_.size())];
    const ShardingSpecPtr spec = AnySpec();
    const ShardingSpecPtr there = AnySpec(size_, target.ranks);
    SCOPED_TRACE(absl::StrCat("from ", spec->ToString(), " to ranks ",
                              ::testing::PrintToString(target.ranks), " as ",
                              there->ToString()));
    ShardedTensor source;
    if (team_->group->is_member()) {
      SHERD_ASSERT_OK_AND_ASSIGN(source,
                                 ShardedTensor::Empty(spec, size_, Options()));
      FillPattern(source);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor arrived,
        TransferBetweenGroups(*world_, source, target.group, there, options_));
    ExpectTheMinimum();
    if (source.defined()) {
      EXPECT_TRUE(HasPattern(source));
    }
    ASSERT_EQ(arrived.defined(), target.group->is_member());
    if (!arrived.defined()) return;
    EXPECT_EQ(arrived.dtype(), dtype_);
    EXPECT_EQ(*arrived.spec(), *there);
    EXPECT_EQ(arrived.group(), target.group);
    EXPECT_TRUE(HasPattern(arrived));
  }

  const std::shared_ptr<ProcessGroup>& world_;
  const std::vector<Team>& teams_;
  const std::vector<std::vector<Device>>& devices_;
  std::mt19937_64 random_;
  const bool draw_on_devices_;
  Dims size_;
  DType dtype_;
  const Team* team_;
  ReshardStats stats_;
  ReshardOptions options_;
  // The devices of this case: at each place one of a rank's devices or the
  // host, or the group's device except for a few.
  enum class Places { kHost, kGroupsDevice, kMostlyDevices, kAnywhere };
  Places places_ = Places::kHost;
  // Bit r: rank r of the world takes its memory from the heap.
  uint64_t heap_ranks_ = 0;
};

}  // namespace

void RunRandomMoves(const std::shared_ptr<ProcessGroup>& world,
                    const RandomMovesOptions& options) {
  std::vector<Team> teams;
  for (std::vector<int>& ranks : TeamsOf(world->size())) {
    Team& team = teams.emplace_back(Team{std::move(ranks), world});
    if (teams.size() == 1) continue;
    const auto place =
        std::find(team.ranks.begin(), team.ranks.end(), world->rank());
    const int key = static_cast<int>(place - team.ranks.begin());
    SHERD_ASSERT_OK_AND_ASSIGN(
        team.group, world->Split(place == team.ranks.end() ? -1 : 0, key));
  }
  for (int64_t i = 0; i < options.cases; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    SCOPED_TRACE(absl::StrCat("repeat with SHERD_TEST_SEED=", seed,
                              " SHERD_TEST_CASES=1"));
    RandomCase(world, teams, seed, options).Run();
    if (::testing::Test::HasFailure()) return;
  }
  for (const Team& team : teams) {
    if (team.group == world || !team.group->is_member()) continue;
    EXPECT_THAT(team.group->Destroy(), IsOk());
  }
}

uint64_t SameOnAllRanks(ProcessGroup& world, uint64_t number) {
  const MutableBytes bytes(reinterpret_cast<std::byte*>(&number),
                           sizeof(number));
  const absl::Status status = world.Broadcast(bytes, 0);
  EXPECT_THAT(status, IsOk());
  return number;
}

}  // namespace sherd::testing
