#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_workers.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::FakeWorkers;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(FromLocalShardsTest, PutsShardsOfAllRanksTogether) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    // Rank 1 has two shards, in reverse, rank 2 none.
    std::vector<Shard> shards;
    const std::vector<std::vector<int64_t>> rows = {{0}, {6, 3}, {}};
    for (const int64_t row : rows[group.rank()]) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          const Tensor tensor,
          Tensor::Zeros({row == 6 ? 2 : 3, 4}, {.dtype = kInt64}));
      SHERD_ASSERT_OK_AND_ASSIGN(
          shards.emplace_back(),
          Shard::FromTensorAndOffsets(tensor, {row, 0}, group.rank()));
      FillPattern(tensor, {row, 0}, {8, 4});
    }
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::FromLocalShards(
                                   shards, {8, 4}, {.requires_grad = true}));
    EXPECT_EQ(tensor.dtype(), kInt64);
    EXPECT_TRUE(tensor.requires_grad());
    EXPECT_EQ(
        *tensor.spec(),
        *ChunkShardingSpec::Create(0, {"rank:0", "rank:1", "rank:1"}).value());
    EXPECT_THAT(tensor.local_shards(), SizeIs(shards.size()));
    EXPECT_TRUE(HasPattern(tensor));
    if (group.rank() == 1) {
      // In the order of the metadata, and shared with the caller's.
      EXPECT_EQ(tensor.local_shards()[0].tensor.data(),
                shards[1].tensor.data());
    }
    ASSERT_THAT(tensor.Reshard(Chunks(1, 3)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

// The arguments of a rank: its half of a tensor.
struct LocalShardsCall {
  std::vector<Shard> shards;
  Dims size = {4, 4};
  ShardedTensorOptions options;
};

Tensor Zeros(absl::Span<const int64_t> size, DType dtype = kFloat32) {
  return Tensor::Zeros(size, {.dtype = dtype}).value();
}

// Rank 1 of 2 does something else than it should.
void ExpectLocalShardsError(const std::function<void(LocalShardsCall&)>& harm,
                            const std::string& phrase,
                            std::optional<int> error_rank) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(2);
  RunLocalRanks(2, [&](ProcessGroup& group) {
    LocalShardsCall call;
    call.shards = {Shard::FromTensorAndOffsets(
                       Zeros({2, 4}), {2 * group.rank(), 0}, group.rank())
                       .value()};
    if (group.rank() == 1) harm(call);
    statuses[group.rank()] =
        ShardedTensor::FromLocalShards(call.shards, call.size, call.options)
            .status();
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_THAT(statuses[0], StatusIs(kInvalid, phrase));
  EXPECT_EQ(ErrorRank(statuses[0]), error_rank);
}

TEST(FromLocalShardsTest, AWrongPlaceOnOneRankIsTheSameErrorOnAll) {
  const auto place = [](std::optional<Placement> placement) {
    return [placement](LocalShardsCall& call) {
      call.shards[0].metadata.placement = placement;
    };
  };
  ExpectLocalShardsError(place({}), "remote device is None", 1);
  ExpectLocalShardsError(place("rank:7"),
                         "Global rank 7 does not exist in input process group",
                         1);
  ExpectLocalShardsError(
      place("rank:0"), "rank does not match with the rank in its process group",
      1);
  ExpectLocalShardsError(place("rank:1/cuda:1"),
                         "Local shard tensor device does not match", 1);
}

TEST(FromLocalShardsTest, AWrongTensorOnOneRankIsTheSameErrorOnAll) {
  const auto tensor = [](const Tensor& tensor) {
    return [tensor](LocalShardsCall& call) { call.shards[0].tensor = tensor; };
  };
  ExpectLocalShardsError(
      tensor(Zeros({4, 2}).Transpose(0, 1).value()),
      "Only torch.contiguous_format memory_format is currently supported", 1);
  ExpectLocalShardsError(tensor(Zeros({2, 5})),
                         "Shard tensor size does not match", 1);
  ExpectLocalShardsError(tensor(Tensor()), "is undefined", 1);
  ExpectLocalShardsError(
      tensor(Zeros({2, 4}, kFloat64)),
      "from_local_shards: ShardedTensor dtype property does not match from "
      "different ranks! rank 1 passed float64; rank 0 passed float32",
      std::nullopt);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) {
        call.shards.push_back(call.shards[0]);
        call.shards[1].tensor = Zeros({2, 4}, kFloat64);
      },
      "Local shards' tensor dtype property need to be the same on rank:1", 1);
}

TEST(FromLocalShardsTest, PropertiesMustBeTheSameOnAllRanks) {
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.layout = Layout::kSparseCsr; },
      "Only torch.strided layout is currently supported", 1);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.requires_grad = true; },
      "ShardedTensor requires_grad property does not match", std::nullopt);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) { call.options.pin_memory = true; },
      "ShardedTensor pin_memory property does not match", std::nullopt);
  ExpectLocalShardsError(
      [](LocalShardsCall& call) {
        call.size = Dims{4, 5};
      },
      "ShardedTensor global_size property does not match", std::nullopt);
}

TEST(FromLocalShardsTest, TheRankThatIsAloneWithAPropertyIsNamed) {
  for (const int odd : {0, 1, 2}) {
    RunLocalRanks(3, [odd](ProcessGroup& group) {
      const DType dtype = group.rank() == odd ? kInt8 : kFloat32;
      const Shard shard =
          Shard::FromTensorAndOffsets(Zeros({2, 4}, dtype),
                                      {2 * group.rank(), 0}, group.rank())
              .value();
      const absl::Status status =
          ShardedTensor::FromLocalShards({shard}, {6, 4}).status();
      EXPECT_THAT(status, StatusIs(kInvalid, absl::StrCat("rank ", odd,
                                                          " passed int8; ")));
      const ErrorInfo info = GetErrorInfo(status);
      EXPECT_EQ(info.failed_rank, odd);
      EXPECT_EQ(info.group, group.name());
      EXPECT_EQ(info.operation, "from_local_shards");
    });
  }
}

TEST(FromLocalShardsTest, ShardsOfAllRanksMustFitTogether) {
  const auto at_row = [](int64_t row) {
    return [row](LocalShardsCall& call) {
      call.shards[0].metadata.offsets = Dims{row, 0};
    };
  };
  ExpectLocalShardsError(at_row(1), "overlap", std::nullopt);
  ExpectLocalShardsError(at_row(3), "exceeds tensor dim", std::nullopt);
  ExpectLocalShardsError([](LocalShardsCall& call) { call.shards.clear(); },
                         "does not match tensor volume", std::nullopt);
}

TEST(FromLocalShardsTest, SomeRankMustHaveAShard) {
  RunLocalRanks(2, [](ProcessGroup&) {
    EXPECT_THAT(
        ShardedTensor::FromLocalShards({}, {4}),
        StatusIs(kInvalid, "ShardedTensor have no local shards on all ranks"));
  });
}

TEST(FromLocalShardsTest, RanksWithoutShardsHaveToKnowTheSize) {
  ExpectLocalShardsError(
      [](LocalShardsCall& call) {
        call.shards.clear();
        call.size = Dims{2, 5};
      },
      "ShardedTensor global_size property does not match", std::nullopt);
  // Its dtype does not count.
  RunLocalRanks(2, [](ProcessGroup& group) {
    std::vector<Shard> shards;
    if (group.rank() == 1) {
      shards = {Shard::FromTensorAndOffsets(Zeros({4}, kInt8), {0}, 1).value()};
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::FromLocalShards(
            shards, {4}, {.dtype = group.rank() == 0 ? kBool : kFloat64}));
    EXPECT_EQ(tensor.dtype(), kInt8);
  });
}

TEST(FromLocalShardsTest, GlobalRanksAreThoseOfASubGroup) {
  RunLocalRanks(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 2, 3}));
    if (!group->is_member()) {
      EXPECT_THAT(
          ShardedTensor::FromLocalShards({}, {6, 2}, {.group = group}),
          StatusIs(absl::StatusCode::kFailedPrecondition, "not a member"));
      return;
    }
    const int64_t row = 2 * (3 - all.rank());
    const Tensor tensor = Zeros({2, 2});
    FillPattern(tensor, {row, 0}, {6, 2});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard shard,
        Shard::FromTensorAndOffsets(tensor, {row, 0}, all.rank()));
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor joined,
        ShardedTensor::FromLocalShards({shard}, {6, 2}, {.group = group}));
    EXPECT_EQ(
        *joined.spec(),
        *ChunkShardingSpec::Create(0, {"rank:3", "rank:2", "rank:1"}).value());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, joined.Gather(2));
    EXPECT_EQ(whole.defined(), all.rank() == 3);
    if (whole.defined()) {
      EXPECT_TRUE(HasPattern(whole, {0, 0}, {6, 2}));
    }
  });
}

TEST(FromLocalShardsTest, WorkersAreKnownToAllRanksOrToNone) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto workers = FakeWorkers::Make({"trainer", "server"});
    std::vector<Shard> shards;
    if (group.rank() == 1) {
      shards = {{Zeros({4}), {{0}, {4}, "server/cpu"}}};
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::FromLocalShards(shards, {4}, {.workers = workers}));
    EXPECT_THAT(tensor.local_shards(), SizeIs(group.rank()));
    EXPECT_EQ(tensor.placed_boxes()[0].rank, 1);
    // The rank that knows none has no shard either.
    const absl::StatusOr<ShardedTensor> failed = ShardedTensor::FromLocalShards(
        shards, {4}, {.workers = group.rank() == 1 ? workers : nullptr});
    EXPECT_THAT(failed,
                StatusIs(absl::StatusCode::kFailedPrecondition, "rank 0: "));
    EXPECT_THAT(failed.status().message(),
                HasSubstr("RPC framework needs to be initialized"));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

// Unknown sizes

// Rank 0 has rows 0 and 1-2, rank 1 none, rank 2 rows 3-6, of 7; or columns.
void ExpectLinedUp(size_t along, absl::Span<const int64_t> size) {
  SCOPED_TRACE(along);
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const std::vector<std::vector<int64_t>> starts = {{0, 1}, {}, {3}};
    const std::vector<std::vector<int64_t>> lengths = {{1, 2}, {}, {4}};
    Dims whole = {5, 5};
    whole[along] = 7;
    std::vector<Shard> shards;
    for (size_t i = 0; i < starts[group.rank()].size(); ++i) {
      Dims sizes = whole;
      sizes[along] = lengths[group.rank()][i];
      Dims offsets(2, 0);
      offsets[along] = starts[group.rank()][i];
      const Tensor tensor = Zeros(sizes);
      FillPattern(tensor, offsets, whole);
      // The offsets are anything.
      shards.push_back(
          Shard::FromTensorAndOffsets(tensor, {9, 9}, group.rank()).value());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::FromLocalShards(shards, size));
    EXPECT_EQ(tensor.size(), absl::MakeConstSpan(whole));
    EXPECT_THAT(tensor.local_shards(), SizeIs(shards.size()));
    EXPECT_TRUE(HasPattern(tensor));
    ASSERT_THAT(tensor.Reshard(Chunks(0, 3)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(FromLocalShardsTest, ComputesOffsetsAndSizesThatAreUnknown) {
  ExpectLinedUp(0, {kUnknownSize, 5});
  ExpectLinedUp(0, {kUnknownSize, kUnknownSize});
  ExpectLinedUp(1, {5, kUnknownSize});
}

TEST(FromLocalShardsTest, ShardsOfUnknownOffsetsMustFitTogether) {
  const auto with_unknown = [](std::vector<Shard> shards) {
    return [shards = std::move(shards)](LocalShardsCall& call) {
      call.size = Dims{kUnknownSize, kUnknownSize};
      if (!shards.empty()) call.shards = shards;
    };
  };
  // One rank has the size, the other does not.
  ExpectLocalShardsError(with_unknown({}),
                         "ShardedTensor global_size property does not match",
                         std::nullopt);
  const auto expect = [](absl::Span<const int64_t> size, Tensor second,
                         const std::string& phrase) {
    SCOPED_TRACE(phrase);
    RunLocalRanks(2, [&](ProcessGroup& group) {
      const Tensor tensor = group.rank() == 0 ? Zeros({2, 4}) : second;
      const Shard shard =
          Shard::FromTensorAndOffsets(
              tensor, Dims(tensor.sizes().size(), 2 * group.rank()),
              group.rank())
              .value();
      EXPECT_THAT(ShardedTensor::FromLocalShards({shard}, size),
                  StatusIs(kInvalid, phrase));
      EXPECT_THAT(group.Barrier(), IsOk());
    });
  };
  expect({kUnknownSize, kUnknownSize}, Zeros({2, 3}),
         "does not match tensor volume");
  expect({kUnknownSize, 4}, Zeros({2, 5}), "exceeds tensor dim");
  expect({kUnknownSize, 4}, Zeros({2}),
         "Rank of tensor is 2, but shards rank is 1");
  expect({}, Zeros({2, 4}), "Rank of tensor is 0, but shards rank is 2");
}

// From a local tensor

TEST(FromLocalTensorTest, IsTheOnlyShardOfItsRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:2", "rank:0"}).value();
    Tensor local;
    if (group.rank() != 1) {
      local = Zeros({2, 3}, kInt32);
      FillPattern(local, {group.rank() == 0 ? 2 : 0, 0}, {4, 3});
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::FromLocalTensor(local, spec, {4, 3}, {.dtype = kInt32}));
    EXPECT_EQ(*tensor.spec(), *spec);
    EXPECT_EQ(tensor.dtype(), kInt32);
    if (group.rank() != 1) {
      EXPECT_EQ(tensor.local_shards()[0].tensor.data(), local.data());
    }
    ASSERT_THAT(tensor.Reshard(Chunks(1, 3)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(FromLocalTensorTest, RefusesWhatTheSpecDoesNotSay) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto make = [](const Tensor& local, const ShardingSpecPtr& spec) {
      return ShardedTensor::FromLocalTensor(local, spec, {4, 3}).status();
    };
    const ShardingSpecPtr rows = Chunks(0, 2);
    EXPECT_THAT(make(Zeros({3, 2}).Transpose(0, 1).value(), rows),
                StatusIs(kInvalid, "local_tensor is not a contiguous Tensor."));
    EXPECT_THAT(make(Zeros({2, 2}), rows),
                StatusIs(kInvalid, "Shard tensor size does not match"));
    EXPECT_THAT(make(Zeros({2, 3}), nullptr),
                StatusIs(kInvalid, "Expecting ShardingSpec"));
    EXPECT_THAT(make(Tensor(), rows), StatusIs(kInvalid, "by ChunkSharding"));
    EXPECT_THAT(
        make(Zeros({2, 3}), ChunkShardingSpec::Create(
                                0, {"rank:0", "rank:0", "rank:1", "rank:1"})
                                .value()),
        StatusIs(kInvalid, "but has 2 by"));
    EXPECT_THAT(make(Zeros({2, 3}), EnumerableShardingSpec::Create(
                                        {{{0, 0}, {2, 3}, Placement("rank:0")},
                                         {{2, 0}, {1, 3}, Placement("rank:1")}})
                                        .value()),
                StatusIs(kInvalid, "does not match tensor volume"));
  });
}

// From local shards and the metadata of all

ShardedTensorMetadata TwoRows(DType dtype = kFloat32) {
  return {.shards = {{{0, 0}, {2, 4}, Placement("rank:0/cpu")},
                     {{2, 0}, {2, 4}, Placement("rank:1/cpu")}},
          .size = {4, 4},
          .properties = {.dtype = dtype}};
}

TEST(FromLocalShardsAndMetadataTest, AttachesTheShards) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    ShardedTensorMetadata metadata = TwoRows(kInt64);
    metadata.properties.requires_grad = true;
    const Tensor local = Zeros({2, 4}, kInt64);
    FillPattern(local, {2 * group.rank(), 0}, {4, 4});
    const std::vector<Shard> shards = {{local, metadata.shards[group.rank()]}};
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::FromLocalShardsAndMetadata(shards, metadata));
    EXPECT_EQ(tensor.metadata(), metadata);
    EXPECT_EQ(*tensor.spec(), *Chunks(0, 2));
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(), local.data());
    // With a given spec, the result is what that builds.
    const auto listed = EnumerableShardingSpec::Create(metadata.shards).value();
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor other,
                               ShardedTensor::FromLocalShardsAndMetadata(
                                   shards, metadata, {}, listed));
    EXPECT_EQ(*other.spec(), *listed);
    ASSERT_THAT(tensor.Reshard(Chunks(1, 2)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(FromLocalShardsAndMetadataTest, RefusesInTheOrderOfTheReference) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    struct Call {
      std::vector<Shard> shards;
      ShardedTensorMetadata metadata;
    };
    struct Case {
      std::function<void(Call&)> harm;
      absl::StatusCode code;
      const char* phrase;
    };
    // Each also has the errors of those later cases from which it is
    // distinguishable.
    const Case cases[] = {
        {[](Call& c) {
           c.metadata.shards[1].placement.reset();
           c.shards.clear();
         },
         kInvalid, "remote device is None"},
        {[](Call& c) { c.metadata.shards[0].placement = "rank:5/cpu"; },
         kInvalid, "Global rank 5 does not exist in input process group"},
        {[](Call& c) {
           c.shards.push_back(c.shards[0]);
           c.metadata.properties.layout = Layout::kSparseCoo;
         },
         absl::StatusCode::kFailedPrecondition,
         "Number of local shards (2) does not match number of local shards "
         "metadata"},
        {[](Call& c) {
           c.shards.clear();
           c.metadata.shards.clear();
           c.metadata.properties.layout = Layout::kSparseCoo;
         },
         kInvalid, "shards_metadata must not be empty!"},
        {[](Call& c) {
           c.metadata.properties.layout = Layout::kSparseCoo;
           c.metadata.shards[1].offsets = Dims{1, 0};
         },
         kInvalid, "Only torch.strided layout is currently supported"},
        {[](Call& c) {
           c.metadata.shards[1].offsets = Dims{1, 0};
           c.shards[0].tensor = Zeros({4, 2}).Transpose(0, 1).value();
         },
         kInvalid, "overlap"},
        {[](Call& c) {
           c.metadata.properties.memory_format = MemoryFormat::kPreserve;
         },
         kInvalid,
         "Only torch.contiguous_format memory_format is currently supported"},
        {[](Call& c) {
           c.shards[0].tensor = Zeros({4, 2}).Transpose(0, 1).value();
         },
         kInvalid,
         "Only torch.contiguous_format memory_format is currently supported"},
        {[](Call& c) {
           c.shards[0].tensor = Zeros({2, 3}, kInt8);
         },
         kInvalid, "Local shards' tensor size property is incompatible with"},
        {[](Call& c) {
           c.shards[0].tensor =
               Tensor::Empty({2, 4},
                             {.dtype = kInt8, .device = {DeviceType::kMeta}})
                   .value();
         },
         kInvalid, "Local shards' tensor device property is incompatible with"},
        {[](Call& c) {
           c.metadata.properties.pin_memory = true;
           c.shards[0].tensor =
               Tensor::Empty({2, 4}, {.device = {DeviceType::kMeta}}).value();
         },
         kInvalid,
         "Local shards' tensor pin_memory property is incompatible with"},
        {[](Call& c) {
           c.shards[0].tensor = Zeros({2, 4}, kInt8);
         },
         kInvalid, "Local shards' tensor dtype property is incompatible with"},
        {[](Call& c) { c.shards[0].tensor = Tensor(); }, kInvalid,
         "is undefined"},
        {[](Call& c) {
           c.shards[0].metadata.offsets = Dims{1, 0};
         },
         kInvalid,
         "Local shards' tensor offsets property is incompatible with"},
        {[](Call& c) {
           c.metadata.size = Dims{5, 4};
         },
         kInvalid, ""},
    };
    for (const Case& c : cases) {
      SCOPED_TRACE(c.phrase);
      Call call = {.metadata = TwoRows()};
      call.shards = {{Zeros({2, 4}), call.metadata.shards[group.rank()]}};
      c.harm(call);
      EXPECT_THAT(
          ShardedTensor::FromLocalShardsAndMetadata(call.shards, call.metadata),
          StatusIs(c.code, c.phrase));
    }
  });
}

TEST(FromLocalShardsAndMetadataTest, AGivenSpecHasToFitTheShards) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const ShardedTensorMetadata metadata = TwoRows();
    const std::vector<Shard> shards = {
        {Zeros({2, 4}), metadata.shards[group.rank()]}};
    EXPECT_THAT(ShardedTensor::FromLocalShardsAndMetadata(shards, metadata, {},
                                                          Chunks(1, 2)),
                StatusIs(kInvalid, "not one of its local shards"));
  });
}

// Without a group

TEST(WithoutGroupTest, HoldsAllShardsInOneProcess) {
  const ShardedTensorMetadata metadata = TwoRows(kInt16);
  std::vector<Shard> shards;
  for (const int i : {1, 0}) {
    const Tensor tensor = Zeros({2, 4}, kInt16);
    FillPattern(tensor, {2 * i, 0}, {4, 4});
    shards.push_back({tensor, metadata.shards[i]});
  }
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::WithoutGroup(shards, metadata));
  EXPECT_EQ(tensor.metadata(), metadata);
  EXPECT_EQ(tensor.group(), nullptr);
  EXPECT_EQ(tensor.rank(), 0);
  EXPECT_THAT(tensor.local_shard_indices(), ElementsAre(0, 1));
  EXPECT_TRUE(HasPattern(tensor));
  EXPECT_THAT(tensor.placed_boxes(), IsEmpty());

  // Operations that need no other rank work,
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
  EXPECT_TRUE(HasPattern(copy));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor row, tensor.Narrow(0, 1, 1));
  EXPECT_THAT(row.local_shards(), SizeIs(1));
  EXPECT_TRUE(HasPattern(row, {1, 0}, {4, 4}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor wide, tensor.To(kFloat64));
  EXPECT_EQ(wide.dtype(), kFloat64);
  EXPECT_THAT(tensor.Fill(0), IsOk());
  EXPECT_THAT(tensor.CopyFrom(copy), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
  // and the others return an error.
  constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(tensor.Gather(),
              StatusIs(kRuntime,
                       "gather: the ShardedTensor has no process "
                       "group"));
  EXPECT_THAT(tensor.AllGather(), StatusIs(kRuntime, "no process group"));
  EXPECT_THAT(tensor.Reshard(Chunks(1, 2)),
              StatusIs(kRuntime, "no process group"));
  EXPECT_THAT(tensor.Resharded(Chunks(1, 2)),
              StatusIs(kRuntime, "no process group"));
  ShardedTensor other = copy;
  EXPECT_THAT(tensor.ReshardInto(other),
              StatusIs(kRuntime, "no process group"));
}

TEST(WithoutGroupTest, TakesStridedShardsAndAnyDevice) {
  ShardedTensorMetadata metadata = TwoRows();
  metadata.shards[1].placement = "rank:1/cuda:0";
  const Tensor turned = Zeros({4, 2}).Transpose(0, 1).value();
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::WithoutGroup(
          {{turned, metadata.shards[0]}, {turned, metadata.shards[1]}},
          metadata));
  EXPECT_FALSE(tensor.is_contiguous());
  // Some of the shards are enough.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor part,
      ShardedTensor::WithoutGroup({{turned, metadata.shards[1]}}, metadata));
  EXPECT_THAT(part.local_shard_indices(), ElementsAre(1));
}

TEST(WithoutGroupTest, RefusesShardsThatDoNotFormATensor) {
  const auto status = [](std::vector<Shard> shards,
                         const ShardedTensorMetadata& metadata,
                         const ShardingSpecPtr& spec = nullptr) {
    return ShardedTensor::WithoutGroup(std::move(shards), metadata, spec)
        .status();
  };
  const ShardedTensorMetadata good = TwoRows();
  EXPECT_THAT(status({}, {}),
              StatusIs(kInvalid, "shards_metadata must not be empty!"));
  ShardedTensorMetadata bad = good;
  bad.properties.layout = Layout::kSparseCoo;
  EXPECT_THAT(status({}, bad), StatusIs(kInvalid, "Only torch.strided layout"));
  bad = good;
  bad.shards[1].offsets = Dims{1, 0};
  EXPECT_THAT(status({}, bad), StatusIs(kInvalid, "overlap"));
  bad = good;
  bad.shards[1].sizes = Dims{1, 4};
  EXPECT_THAT(status({}, bad),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_THAT(status({}, good, Chunks(2, 2)),
              StatusIs(kInvalid, "Invalid sharding dim"));
  EXPECT_THAT(status({{Zeros({2, 4}), {{1, 0}, {2, 4}, "rank:0/cpu"}}}, good),
              StatusIs(kInvalid, "is not in the metadata"));
  const Shard first = {Zeros({2, 4}), good.shards[0]};
  EXPECT_THAT(status({first, first}, good),
              StatusIs(kInvalid, "is not in the metadata"));
  EXPECT_THAT(status({{Zeros({2, 3}), good.shards[0]}}, good),
              StatusIs(kInvalid, "has size [2, 3] and dtype float32"));
  EXPECT_THAT(status({{Zeros({2, 4}, kInt8), good.shards[0]}}, good),
              StatusIs(kInvalid, "and dtype int8"));
  EXPECT_THAT(status({{Tensor(), good.shards[0]}}, good), StatusIs(kInvalid));
}

TEST(WithoutGroupTest, JoinsAGroupWithTheShardsOfItsRank) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const ShardedTensorMetadata metadata = TwoRows();
    const Tensor local = Zeros({2, 4});
    FillPattern(local, {2 * group.rank(), 0}, {4, 4});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor alone,
        ShardedTensor::WithoutGroup({{local, metadata.shards[group.rank()]}},
                                    metadata));
    const auto shared = DefaultGroup().value();
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor joined, alone.To(shared));
    EXPECT_EQ(joined.group(), shared);
    ASSERT_THAT(joined.Reshard(Chunks(1, 2)), IsOk());
    EXPECT_TRUE(HasPattern(joined));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor both,
        ShardedTensor::WithoutGroup(
            {{local, metadata.shards[0]}, {local, metadata.shards[1]}},
            metadata));
    EXPECT_THAT(both.To(shared), StatusIs(kInvalid, "this process has 2"));
  });
}

}  // namespace
}  // namespace sherd
