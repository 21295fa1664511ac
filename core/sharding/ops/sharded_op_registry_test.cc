#include "sherd/core/sharding/sharded_op_registry.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;

// Specs of users: everything on rank 0.
class UserSpec : public ShardingSpec {
 public:
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    return ShardedTensorMetadata{
        .shards = {{Dims(size.size(), 0), Dims(size.begin(), size.end()),
                    Placement("rank:0/cpu")}},
        .size = Dims(size.begin(), size.end()),
        .properties = properties};
  }
  std::string ToString() const override { return "UserSpec"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return true; }
};
class ChildSpec : public UserSpec {};
class GrandchildSpec : public ChildSpec {};
struct Named {
  virtual ~Named() = default;
};
class MixedSpec : public Named, public ChildSpec {};
class StrangerSpec : public UserSpec {};

// As many operations as there are tests: what is registered stays.
template <int kNumber>
struct Which {
  static constexpr absl::string_view kName = "which";
  using Signature = absl::StatusOr<std::string>(const ShardedTensor&, double);
};

template <typename Spec>
ShardedTensor TensorWith() {
  return ShardedTensor::Zeros(std::make_shared<const Spec>(), {2}).value();
}

template <typename Op, typename Spec>
void Register(const std::string& answer) {
  RegisterShardedOp<Op, Spec>(
      [answer](const Spec&, const ShardedTensor&,
               double) -> absl::StatusOr<std::string> { return answer; });
}

TEST(ShardedOpRegistryTest, RunsTheImplementationForTheTypeOfTheSpec) {
  using Op = Which<0>;
  RegisterShardedOp<Op, ChunkShardingSpec>(
      [](const ChunkShardingSpec& spec, const ShardedTensor& tensor,
         double factor) -> absl::StatusOr<std::string> {
        return absl::StrCat("dim ", spec.dim(), " of ", tensor.dim(), " times ",
                            factor);
      });
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        ChunkShardingSpec::Create(1, {"rank:0/cpu", "rank:1/cpu"}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Ones(spec, {3, 4}));
    EXPECT_THAT(CallShardedOp<Op>(tensor, 2.5),
                IsOkAndHolds("dim 1 of 2 times 2.5"));
    // An int is a double, as for any function.
    EXPECT_THAT(CallShardedOp<Op>(tensor, 2), IsOk());
    EXPECT_THAT(
        CallShardedOp<Op>(TensorWith<UserSpec>(), 1),
        StatusIs(kState, AllOf(HasSubstr("which with "), HasSubstr("UserSpec"),
                               HasSubstr("registered for: ChunkShardingSpec"),
                               ::testing::EndsWith(
                                   "not supported for ShardedTensor!"))));
    EXPECT_THAT(CallShardedOp<Which<99>>(tensor, 1),
                StatusIs(kState, "registered for: no spec"));
  });
  EXPECT_THAT(RegisteredSpecs<Op>(), ElementsAre("ChunkShardingSpec"));
  EXPECT_THAT(RegisteredSpecs<Which<99>>(), IsEmpty());
}

TEST(ShardedOpRegistryTest, TheNearestClassWinsAndOthersInherit) {
  using Op = Which<1>;
  RunLocalRanks(1, [](ProcessGroup&) {
    const auto call = [](const ShardedTensor& tensor) {
      return CallShardedOp<Op>(tensor, 1);
    };
    Register<Op, UserSpec>("user");
    EXPECT_THAT(call(TensorWith<UserSpec>()), IsOkAndHolds("user"));
    EXPECT_THAT(call(TensorWith<GrandchildSpec>()), IsOkAndHolds("user"));
    Register<Op, ChildSpec>("child");
    EXPECT_THAT(call(TensorWith<UserSpec>()), IsOkAndHolds("user"));
    EXPECT_THAT(call(TensorWith<ChildSpec>()), IsOkAndHolds("child"));
    EXPECT_THAT(call(TensorWith<GrandchildSpec>()), IsOkAndHolds("child"));
    EXPECT_THAT(call(TensorWith<MixedSpec>()), IsOkAndHolds("child"));
    EXPECT_THAT(call(TensorWith<StrangerSpec>()), IsOkAndHolds("user"));
    Register<Op, GrandchildSpec>("grandchild");
    EXPECT_THAT(call(TensorWith<GrandchildSpec>()), IsOkAndHolds("grandchild"));
    EXPECT_THAT(call(TensorWith<ChildSpec>()), IsOkAndHolds("child"));
    // For all that have none.
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor chunked,
        ShardedTensor::Zeros(
            ChunkShardingSpec::Create(0, {"rank:0/cpu"}).value(), {2}));
    EXPECT_THAT(call(chunked), StatusIs(kState));
    Register<Op, ShardingSpec>("any");
    EXPECT_THAT(call(chunked), IsOkAndHolds("any"));
    EXPECT_THAT(call(TensorWith<StrangerSpec>()), IsOkAndHolds("user"));
    EXPECT_TRUE((UnregisterShardedOp<Op, ChildSpec>()));
    EXPECT_FALSE((UnregisterShardedOp<Op, ChildSpec>()));
    EXPECT_THAT(call(TensorWith<MixedSpec>()), IsOkAndHolds("user"));
  });
}

TEST(ShardedOpRegistryTest, RegisteringAgainReplaces) {
  using Op = Which<2>;
  RunLocalRanks(1, [](ProcessGroup&) {
    Register<Op, UserSpec>("old");
    Register<Op, UserSpec>("new");
    EXPECT_THAT(CallShardedOp<Op>(TensorWith<UserSpec>(), 1),
                IsOkAndHolds("new"));
  });
  EXPECT_EQ(RegisteredSpecs<Op>().size(), 1);
}

// Two classes of one name, as two libraries might have.
namespace one {
struct Op {
  static constexpr absl::string_view kName = "op";
  using Signature = absl::StatusOr<int>(const ShardedTensor&);
};
class Spec : public UserSpec {};
}  // namespace one
namespace two {
struct Op {
  static constexpr absl::string_view kName = "op";
  using Signature = absl::StatusOr<int>(const ShardedTensor&);
};
class Spec : public UserSpec {};
}  // namespace two

TEST(ShardedOpRegistryTest, TypesWithOneNameAreDifferentTypes) {
  RegisterShardedOp<one::Op, one::Spec>(
      [](const one::Spec&, const ShardedTensor&) -> absl::StatusOr<int> {
        return 1;
      });
  RegisterShardedOp<one::Op, two::Spec>(
      [](const two::Spec&, const ShardedTensor&) -> absl::StatusOr<int> {
        return 2;
      });
  RunLocalRanks(1, [](ProcessGroup&) {
    EXPECT_THAT(CallShardedOp<one::Op>(TensorWith<one::Spec>()),
                IsOkAndHolds(1));
    EXPECT_THAT(CallShardedOp<one::Op>(TensorWith<two::Spec>()),
                IsOkAndHolds(2));
    EXPECT_THAT(CallShardedOp<two::Op>(TensorWith<one::Spec>()),
                StatusIs(kState));
  });
}

struct CountTensors {
  static constexpr absl::string_view kName = "count_tensors";
  using Signature = absl::StatusOr<size_t>(absl::Span<const ShardedTensor>,
                                           const PartialTensor&);
};

TEST(ShardedOpRegistryTest, ChecksAllTensorsOfACall) {
  RegisterShardedOp<CountTensors, ShardingSpec>(
      [](const ShardingSpec&, absl::Span<const ShardedTensor> tensors,
         const PartialTensor&) -> absl::StatusOr<size_t> {
        return tensors.size();
      });
  RunLocalRanks(2, [](ProcessGroup& group) {
    const std::vector<int> both = {0, 1};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> other,
                               group.NewGroup(both));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const PartialTensor partial,
        PartialTensor::Create(Tensor::Ones({2}).value()));
    SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor elsewhere,
                               PartialTensor::Create(Tensor::Ones({2}).value(),
                                                     ReduceOp::kSum, other));
    const ShardedTensor here = TensorWith<UserSpec>();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor there,
        ShardedTensor::Zeros(std::make_shared<const UserSpec>(), {2},
                             {.group = other}));
    using Tensors = std::vector<ShardedTensor>;
    EXPECT_THAT(CallShardedOp<CountTensors>(Tensors{here, here}, partial),
                IsOkAndHolds(2));
    constexpr char kGroups[] =
        "All distributed tensors should use the same ProcessGroup";
    EXPECT_THAT(CallShardedOp<CountTensors>(Tensors{here, there}, partial),
                StatusIs(kState, kGroups));
    EXPECT_THAT(CallShardedOp<CountTensors>(Tensors{here}, elsewhere),
                StatusIs(kState, kGroups));
    EXPECT_THAT(
        CallShardedOp<CountTensors>(Tensors{here, ShardedTensor()}, partial),
        StatusIs(kState, "not created"));
    EXPECT_THAT(CallShardedOp<CountTensors>(Tensors{here}, PartialTensor()),
                StatusIs(kState, "not created"));
    EXPECT_THAT(CallShardedOp<CountTensors>(Tensors{}, partial),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "called without any distributed tensor"));
  });
}

struct Touch {
  static constexpr absl::string_view kName = "touch";
  using Signature = absl::Status(ShardedTensor&, std::unique_ptr<int>);
};

TEST(ShardedOpRegistryTest, PassesArgumentsOnAsTheyAre) {
  RegisterShardedOp<Touch, UserSpec>(
      [](const UserSpec&, ShardedTensor& tensor, std::unique_ptr<int> value) {
        return tensor.Fill(*value);
      });
  RunLocalRanks(1, [](ProcessGroup&) {
    ShardedTensor tensor = TensorWith<UserSpec>();
    ASSERT_THAT(CallShardedOp<Touch>(tensor, std::make_unique<int>(7)), IsOk());
    EXPECT_THAT(tensor.local_tensor()->At<float>({1}), IsOkAndHolds(7.0f));
    RegisterShardedOp<Touch, UserSpec>(
        [](const UserSpec&, ShardedTensor&, std::unique_ptr<int>) {
          return absl::CancelledError("no");
        });
    EXPECT_THAT(CallShardedOp<Touch>(tensor, nullptr),
                StatusIs(absl::StatusCode::kCancelled, "no"));
  });
}

TEST(ShardedOpRegistryTest, MayBeUsedByManyThreads) {
  using Op = Which<3>;
  Register<Op, UserSpec>("first");
  RunLocalRanks(1, [](ProcessGroup&) {
    const ShardedTensor tensor = TensorWith<ChildSpec>();
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          if (t == 0) Register<Op, ChildSpec>("second");
          if (t == 1) UnregisterShardedOp<Op, ChildSpec>();
          const absl::StatusOr<std::string> answer =
              CallShardedOp<Op>(tensor, 1);
          if (!answer.ok() || (*answer != "first" && *answer != "second")) {
            ++wrong;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  });
}

// The compiler finds errors that the reference reports when it registers or
// calls.

template <typename F>
concept IsImplementation =
    ShardedOpImplementation<F, Which<0>, ChunkShardingSpec>;
using Text = absl::StatusOr<std::string>;
static_assert(IsImplementation<Text (*)(const ChunkShardingSpec&,
                                        const ShardedTensor&, double)>);
static_assert(IsImplementation<Text (*)(const ChunkShardingSpec&, ShardedTensor,
                                        const double&)>);
// Too few, too many, others, converted ones.
static_assert(!IsImplementation<Text (*)(const ChunkShardingSpec&,
                                         const ShardedTensor&)>);
static_assert(!IsImplementation<Text (*)(const ShardedTensor&, double)>);
static_assert(!IsImplementation<Text (*)(const ChunkShardingSpec&,
                                         const ShardedTensor&, double, int)>);
static_assert(!IsImplementation<Text (*)(const ChunkShardingSpec&,
                                         const ShardedTensor&, std::string)>);
static_assert(!IsImplementation<Text (*)(const ChunkShardingSpec&,
                                         const ShardedTensor&, int)>);
static_assert(!IsImplementation<Text (*)(const ChunkShardingSpec&,
                                         ShardedTensor&, double)>);
// Another spec, another result.
static_assert(!IsImplementation<Text (*)(const EnumerableShardingSpec&,
                                         const ShardedTensor&, double)>);
static_assert(!IsImplementation<std::string (*)(const ChunkShardingSpec&,
                                                const ShardedTensor&, double)>);
static_assert(!IsImplementation<int>);
// No spec, no operation.
static_assert(
    !ShardedOpImplementation<Text (*)(const int&, const ShardedTensor&, double),
                             Which<0>, int>);

struct WithoutTensor {
  static constexpr absl::string_view kName = "without_tensor";
  using Signature = absl::Status(int);
};
struct WithoutStatus {
  static constexpr absl::string_view kName = "without_status";
  using Signature = int(const ShardedTensor&);
};
struct WithoutName {
  using Signature = absl::Status(const ShardedTensor&);
};
static_assert(ShardedOp<Which<0>> && ShardedOp<CountTensors>);
static_assert(!ShardedOp<WithoutTensor> && !WithoutTensor::kName.empty());
static_assert(!ShardedOp<WithoutStatus> && !WithoutStatus::kName.empty());
static_assert(!ShardedOp<WithoutName>);
static_assert(!ShardedOp<int>);

template <typename... Args>
concept CanCall = requires(Args... args) {
  CallShardedOp<Which<0>>(args...);
};
static_assert(CanCall<ShardedTensor, double>);
static_assert(!CanCall<ShardedTensor>);
static_assert(!CanCall<ShardedTensor, std::string>);
static_assert(!CanCall<Tensor, double>);
static_assert(!CanCall<ShardedTensor, double, double>);

}  // namespace
}  // namespace sherd
