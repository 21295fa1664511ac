#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/update/peer_bytes.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

// A rank of three passes what cannot be updated, has no memory, or fails: one
// error on every rank, and the tables are as before.

namespace sherd {
namespace {

using ::sherd::testing::FailAllocationAt;
using ::sherd::testing::FailAt;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::AllOf;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kNotDone = absl::StatusCode::kUnimplemented;
constexpr int kFailedRank = 1;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor Ids(const std::vector<int64_t>& ids, const Dims& size) {
  return Tensor::FromSpan(absl::MakeConstSpan(ids), size).value();
}

Tensor Whole() {
  Tensor tensor = Tensor::Empty({10, 4}).value();
  for (int64_t i = 0; i < 40; ++i) {
    tensor.mutable_data_as<float>()[i] = static_cast<float>(i);
  }
  return tensor;
}

ShardingSpecPtr Chunks(int dim) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(3)).value();
}

// The arguments of a call.
struct UpdateArguments {
  std::vector<TableLookUp> lookups;
  std::vector<Tensor> gradients;
  UpdateOptions options;
};

// Tables cut by rows and by columns, and one of each rank's own.
UpdateArguments Valid(bool direct) {
  const Bags bags = {Ids({1, 2, 9, 0}, {2, 2})};
  UpdateArguments call;
  call.lookups = {{ShardsOf(Whole(), Chunks(0)), bags, {.mode = BagMode::kSum}},
                  {ShardsOf(Whole(), Chunks(1)), bags},
                  {Whole(), bags}};
  call.gradients.assign(3, Tensor::Ones({2, 4}).value());
  call.options = {.rule = SparseRule::kRowWiseAdagrad, .direct = direct};
  return call;
}

absl::Status Step(const UpdateArguments& call) {
  return Update(call.lookups, call.gradients, call.options);
}

void ExpectUnchanged(const EmbeddingTable& table) {
  if (const auto* const tensor = std::get_if<Tensor>(&table)) {
    EXPECT_THAT(*tensor, TensorBitwiseEq(Whole()));
    return;
  }
  for (const Shard& shard : std::get<ShardedTensor>(table).local_shards()) {
    EXPECT_THAT(shard.tensor,
                TensorBitwiseEq(
                    Whole()
                        .Narrow(shard.metadata.offsets, shard.metadata.sizes)
                        .value()));
  }
}

struct Rejection {
  std::string name;
  std::function<void(UpdateArguments&)> spoil;
  absl::StatusCode code;
  std::string phrase;
};

std::vector<Rejection> Rejections() {
  return {
      {"a gradient less", [](UpdateArguments& c) { c.gradients.pop_back(); },
       kInvalid, "expected a gradient for each of 3 lookups, got 2"},
      {"no gradient", [](UpdateArguments& c) { c.gradients[1] = Tensor(); },
       kInvalid,
       "table 1: the gradient needs to be of float32 and size [2, 4]"},
      {"a gradient of another size",
       [](UpdateArguments& c) {
         c.gradients[0] = Tensor::Ones({2, 5}).value();
       },
       kInvalid,
       "table 0: the gradient needs to be of float32 and size [2, 4]"},
      {"a gradient of another dtype",
       [](UpdateArguments& c) {
         c.gradients[2] = Tensor::Ones({2, 4}, {.dtype = kFloat64}).value();
       },
       kInvalid, "got float64 and size [2, 4]"},
      {"a gradient on meta",
       [](UpdateArguments& c) {
         c.gradients[2] =
             Tensor::Empty({2, 4}, {.device = {DeviceType::kMeta}}).value();
       },
       kState, "table 2: the gradient is on meta"},
      {"mode max",
       [](UpdateArguments& c) { c.lookups[2].options.mode = BagMode::kMax; },
       kNotDone, "table 2: mode max has no gradient"},
      {"an id out of range",
       [](UpdateArguments& c) {
         c.lookups[0].bags.ids = Ids({1, 2, 10, 0}, {2, 2});
       },
       kInvalid, "table 0: Index out of range in Input: the id at position 2"},
      {"no table", [](UpdateArguments& c) { c.lookups[2].table = Tensor(); },
       kState, "table 2: the table was not created"},
      {"a table that may not be written to",
       [](UpdateArguments& c) {
         const Tensor whole = Whole();
         const auto storage =
             Storage::BorrowReadOnly(whole.data(), 160, whole.storage())
                 .value();
         c.lookups[2].table =
             Tensor::FromStorage(storage, 0, {10, 4}, kFloat32).value();
       },
       kState, "table 2: the table may not be written to"},
      {"no rule",
       [](UpdateArguments& c) { c.options.rule = static_cast<SparseRule>(7); },
       kInvalid, "expected a rule of SparseRule, got 7"},
      {"a learning rate that is NaN",
       [](UpdateArguments& c) { c.options.learning_rate = kNaN; }, kInvalid,
       "a finite learning rate and eps"},
      {"a negative eps", [](UpdateArguments& c) { c.options.eps = -1; },
       kInvalid, "a finite learning rate and eps"},
      {"an accumulator of another size",
       [](UpdateArguments& c) {
         SetAccumulator(c.lookups[0].table, Tensor::Zeros({10, 4}).value());
       },
       kInvalid,
       "table 0: the accumulator of a table for this rule needs to be of "
       "float32 and size [10, 1]"},
      {"an accumulator of another dtype",
       [](UpdateArguments& c) {
         SetAccumulator(c.lookups[2].table,
                        Tensor::Zeros({10, 1}, {.dtype = kFloat64}).value());
       },
       kInvalid, "table 2: the accumulator of a table"},
      // What only the comparison of ranks finds.
      {"another rule",
       [](UpdateArguments& c) { c.options.rule = SparseRule::kSgd; }, kInvalid,
       "rank 1 was called with other arguments"},
      {"another learning rate",
       [](UpdateArguments& c) { c.options.learning_rate = 0.5; }, kInvalid,
       "learning rate 0.5"},
      {"another eps", [](UpdateArguments& c) { c.options.eps = 0.5; }, kInvalid,
       "eps 0.5"},
      {"another layout",
       [](UpdateArguments& c) {
         c.lookups[0].table = ShardsOf(Whole(), Chunks(1));
       },
       kInvalid, "rank 1 was called with other arguments"},
      {"an accumulator on one rank",
       [](UpdateArguments& c) {
         SetAccumulator(c.lookups[0].table,
                        ShardedTensor::Zeros(Chunks(0), {10, 1}).value());
       },
       kInvalid, "rank 1 was called with other arguments"},
      {"a whole accumulator on one rank",
       [](UpdateArguments& c) {
         SetAccumulator(c.lookups[0].table, Tensor::Ones({10, 1}).value());
       },
       kInvalid, "an accumulator that is a Tensor"},
      {"one table twice",
       [](UpdateArguments& c) { c.lookups[1].table = c.lookups[0].table; },
       kInvalid, "rank 1 was called with other arguments"},
  };
}

TEST(UpdateErrorsTest, BadArgumentsOfOneRankAreTheSameErrorOnAll) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Rejection& rejection : Rejections()) {
      for (const bool direct : {true, false}) {
        SCOPED_TRACE(absl::StrCat(rejection.name, direct ? "" : ", messages"));
        UpdateArguments call = Valid(direct);
        if (group.rank() == kFailedRank) rejection.spoil(call);
        EXPECT_THAT(Step(call),
                    AllOf(StatusIs(rejection.code, rejection.phrase),
                          StatusIs(rejection.code, "update: rank 1")));
        for (const TableLookUp& lookup : call.lookups) {
          if (const auto* tensor = std::get_if<Tensor>(&lookup.table);
              tensor == nullptr || tensor->defined()) {
            ExpectUnchanged(lookup.table);
          }
          if (group.rank() == kFailedRank) continue;
          EXPECT_TRUE(GetAccumulator(lookup.table).is_none());
        }
        EXPECT_THAT(Step(Valid(direct)), IsOk());
      }
    }
  });
}

TEST(UpdateErrorsTest, WithoutAGroupTheErrorIsReturnedAtOnce) {
  const UpdateArguments call = {
      .lookups = {{Whole(), {Ids({1, 2, 9, 0}, {2, 2})}}},
      .gradients = {Tensor::Ones({2, 5}).value()}};
  EXPECT_THAT(Step(call), StatusIs(kInvalid, "update: table 0: the gradient"));
  EXPECT_THAT(Update({}, {}), IsOk());
  EXPECT_THAT(Update({}, call.gradients), StatusIs(kInvalid, "each of 0"));
}

// `whole` in two shards of this process, the first with `first` rows.
ShardedTensor WithoutGroup(const Tensor& whole, int64_t first) {
  ShardedTensorMetadata metadata;
  metadata.size = {10, whole.sizes()[1]};
  std::vector<Shard> shards;
  for (const int64_t begin : {int64_t{0}, first}) {
    const int64_t rows = begin == 0 ? first : 10 - first;
    metadata.shards.push_back({.offsets = {begin, 0},
                               .sizes = {rows, whole.sizes()[1]},
                               .placement = "rank:0/cpu"});
    shards.push_back({whole.Narrow(0, begin, rows)->Clone().value(),
                      metadata.shards.back()});
  }
  return ShardedTensor::WithoutGroup(shards, metadata).value();
}

TEST(UpdateErrorsTest, RowsThatCoincideAreRefusedBeforeAnotherTableChanges) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    UpdateArguments call = Valid(/*direct=*/true);
    const auto storage = Storage::Allocate(16).value();
    if (group.rank() == 1) {
      call.lookups[2].table =
          Tensor::FromStorageStrided(storage, 0, {10, 4}, {0, 1}, kFloat32)
              .value();
    }
    EXPECT_THAT(Step(call),
                StatusIs(kInvalid, "rank 1: table 2: rows of the table"));
    ExpectUnchanged(call.lookups[0].table);
    ExpectUnchanged(call.lookups[1].table);
  });
}

TEST(UpdateErrorsTest, ShardsThatShareMemoryAreRefused) {
  const Tensor half = Tensor::Ones({5, 4}).value();
  ShardedTensorMetadata metadata = {.size = {10, 4}};
  std::vector<Shard> shards;
  for (const int64_t first : {0, 5}) {
    metadata.shards.push_back(
        {.offsets = {first, 0}, .sizes = {5, 4}, .placement = "rank:0/cpu"});
    shards.push_back({half, metadata.shards.back()});
  }
  const ShardedTensor table =
      ShardedTensor::WithoutGroup(shards, metadata).value();
  EXPECT_THAT(
      Update({{table, {Ids({1, 6}, {1, 2})}}}, {Tensor::Ones({1, 4}).value()}),
      StatusIs(kInvalid, "update: tables: destinations"));
  EXPECT_THAT(half, TensorBitwiseEq(Tensor::Ones({5, 4}).value()));
}

TEST(UpdateErrorsTest, TablesThatShareMemoryAreRefused) {
  const Bags bags = {Ids({1, 3}, {1, 2})};
  const Tensor ones = Tensor::Ones({1, 4}).value();
  const Tensor whole = Whole();
  const Tensor apart = Whole();
  const auto rows = [&](int64_t first, int64_t count) {
    return whole.Narrow(0, first, count).value();
  };
  // All have one plan, which has the sizes of Tensors but not their memory.
  EXPECT_THAT(Update({{apart, bags}, {Whole(), bags}}, {ones, ones}), IsOk());
  for (const auto& [a, b] : {std::pair(rows(0, 5), rows(4, 5)),
                             std::pair(rows(0, 10), rows(3, 5))}) {
    EXPECT_THAT(Update({{apart, bags}, {apart, bags}}, {ones, ones}), IsOk());
    EXPECT_THAT(Update({{a, bags}, {b, bags}}, {ones, ones}),
                StatusIs(kInvalid, "update: tables: destinations"));
    ExpectUnchanged(whole);
  }
  EXPECT_THAT(Update({{rows(0, 5), bags}, {rows(5, 5), bags}}, {ones, ones}),
              IsOk());
  RunLocalRanks(2, [&](ProcessGroup&) {
    const ShardedTensor table = ShardsOf(
        Whole(), ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value());
    for (const int64_t columns : {4, 2}) {
      const ShardedTensor view = table.Narrow({0, 0}, {10, columns}).value();
      EXPECT_THAT(Update({{table, bags}, {view, bags}},
                         {ones, Tensor::Ones({1, columns}).value()}),
                  StatusIs(kInvalid, "tables: destinations"));
      ExpectUnchanged(table);
    }
    EXPECT_THAT(Update({{table, bags}, {table, bags}}, {ones, ones}), IsOk());
  });
}

TEST(UpdateErrorsTest, WithoutAGroupAccumulatorsHaveTheTablesLayout) {
  for (const SparseRule rule :
       {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
    const Tensor zeros =
        Tensor::Zeros({10, rule == SparseRule::kAdagrad ? 4 : 1}).value();
    const ShardedTensor table = WithoutGroup(Whole(), 5);
    const UpdateArguments call = {
        .lookups = {{table, {Ids({1, 2, 9, 0}, {2, 2})}}},
        .gradients = {Tensor::Ones({2, 4}).value()},
        .options = {.rule = rule}};
    for (const int64_t first : {3, 7}) {
      SetAccumulator(table, WithoutGroup(zeros, first));
      EXPECT_THAT(Step(call), StatusIs(kInvalid, "with the table's layout"));
      ExpectUnchanged(table);
    }
    SetAccumulator(table, WithoutGroup(zeros, 5));
    EXPECT_THAT(Step(call), IsOk());
  }
}

// Of each allocation in turn: accumulators, messages and sums of squares.
TEST(UpdateErrorsTest, ARankWithoutMemoryIsTheSameErrorOnAll) {
  for (const bool direct : {true, false}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      for (int64_t nth = 1;; ++nth) {
        const UpdateArguments call = Valid(direct);
        absl::Status status;
        ASSERT_THAT(group.Barrier(), IsOk());
        {
          FailAllocationAt fault(
              {.nth = nth, .rank = kFailedRank, .optional = true});
          ASSERT_THAT(group.Barrier(), IsOk());
          status = Step(call);
          ASSERT_THAT(group.Barrier(), IsOk());
        }
        if (status.ok()) {
          EXPECT_GT(nth, 4);
          return;
        }
        EXPECT_THAT(status, AllOf(StatusIs(absl::StatusCode::kResourceExhausted,
                                           "rank 1"),
                                  HasErrorRank(kFailedRank)));
        for (const TableLookUp& lookup : call.lookups) {
          ExpectUnchanged(lookup.table);
        }
        EXPECT_THAT(Step(call), IsOk());
      }
    });
  }
}

TEST(UpdateErrorsTest, ARankAloneWithoutMemoryKeepsItsGroup) {
  RunLocalRanks(1, [&](ProcessGroup& group) {
    const auto columns =
        EnumerableShardingSpec::Create(
            {{{0, 0}, {10, 1}, "rank:0/cpu"}, {{0, 1}, {10, 3}, "rank:0/cpu"}})
            .value();
    for (int64_t nth = 1;; ++nth) {
      const UpdateArguments call = {
          .lookups = {{ShardsOf(Whole(), columns), {Ids({1, 2}, {2, 1})}}},
          .gradients = {Tensor::Ones({2, 4}).value()},
          .options = {.rule = SparseRule::kRowWiseAdagrad}};
      absl::Status status;
      {
        FailAllocationAt fault({.nth = nth, .optional = true});
        status = Step(call);
      }
      EXPECT_THAT(group.health(), IsOk());
      if (status.ok()) {
        // An accumulator, messages and sums.
        EXPECT_GE(nth, 4);
        return;
      }
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
      ExpectUnchanged(call.lookups[0].table);
    }
  });
}

TEST(PeerBytesTest, ALengthBeyondTheMemoryOfAPeerIsRefused) {
  using internal::PeerBytes;
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    constexpr size_t kWords = PeerBytes::kWords;
    std::vector<std::vector<uint64_t>> parts(2, std::vector<uint64_t>(kWords));
    std::vector<MutableBytes> recvs;
    for (std::vector<uint64_t>& part : parts) {
      recvs.emplace_back(reinterpret_cast<std::byte*>(part.data()),
                         kWords * sizeof(uint64_t));
    }
    PeerBytes bytes;
    ASSERT_THAT(bytes.Resize(&group, 104), IsOk());
    bytes.WriteNote(absl::MakeSpan(parts[rank]));
    ASSERT_THAT(group.AllGatherV(recvs[rank], recvs), IsOk());
    std::vector<uint64_t> notes = parts[0];
    notes.insert(notes.end(), parts[1].begin(), parts[1].end());
    ASSERT_THAT(bytes.Map(group, notes, kWords), IsOk());
    std::vector<absl::Span<const std::byte>> found;
    ASSERT_THAT(bytes.Read(group.rank(), notes, kWords, found), IsOk());
    EXPECT_EQ(found[0].size(), 104U);
    EXPECT_EQ(found[1].size(), 104U);
    // Every word that says so.
    for (uint64_t& word : notes) word = word == 104 ? uint64_t{1} << 40 : word;
    EXPECT_THAT(bytes.Read(group.rank(), notes, kWords, found),
                AllOf(StatusIs(absl::StatusCode::kDataLoss, "the length"),
                      HasErrorRank(1 - group.rank())));
    // No rank frees what the other one reads.
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(UpdateErrorsTest, ARankThatCannotMapGradientsMakesAllUseMessages) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const UpdateArguments call = Valid(true);
    const UpdateArguments other = Valid(false);
    {
      FailAt fault("sharding/import", absl::ResourceExhaustedError("full"),
                   {.rank = kFailedRank, .subject = "update"});
      ASSERT_THAT(group.Barrier(), IsOk());
      ASSERT_THAT(Step(call), IsOk());
      ASSERT_THAT(group.Barrier(), IsOk());
    }
    ASSERT_THAT(Step(call), IsOk());
    for (int step = 0; step < 2; ++step) ASSERT_THAT(Step(other), IsOk());
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_THAT(
          std::get<ShardedTensor>(call.lookups[t].table).AllGather().value(),
          TensorBitwiseEq(std::get<ShardedTensor>(other.lookups[t].table)
                              .AllGather()
                              .value()));
    }
  });
}

TEST(UpdateErrorsTest, ARankThatCannotMapSumsMakesLaterCallsUseMessages) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const UpdateArguments call = Valid(true);
    // The gradients of both peers are mapped before.
    FailAt fault(
        "sharding/import", absl::ResourceExhaustedError("full"),
        {.nth = 3, .times = 100, .rank = kFailedRank, .subject = "update"});
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(Step(call),
                AllOf(StatusIs(absl::StatusCode::kResourceExhausted, "full"),
                      HasErrorRank(kFailedRank)));
    for (const TableLookUp& lookup : call.lookups) {
      ExpectUnchanged(lookup.table);
    }
    EXPECT_THAT(Step(call), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// The ranks agreed that all proceed: the group cannot be used any more.
TEST(UpdateErrorsTest, ARankThatFailsAfterTheAgreementEndsTheCallOnAll) {
  for (const char* const point :
       {"sharding/before_copy", "sharding/after_copy"}) {
    for (const bool direct : {true, false}) {
      RunLocalRanks(3, [&](ProcessGroup& group) {
        UpdateArguments call = Valid(direct);
        call.options.timeout = absl::Seconds(20);
        FailAt fault(
            point, absl::DataLossError("gone"),
            {.rank = kFailedRank, .subject = "update", .optional = true});
        const absl::Status status = Step(call);
        if (group.rank() == kFailedRank) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "gone"));
        }
        EXPECT_FALSE(Step(call).ok());
        EXPECT_FALSE(group.health().ok());
      });
    }
  }
}

TEST(UpdateErrorsTest, ARankThatStaysAwayIsNamed) {
  for (const bool direct : {true, false}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      UpdateArguments call = Valid(direct);
      call.options.timeout = absl::Seconds(20);
      ASSERT_THAT(Step(call), IsOk());
      if (group.rank() == kFailedRank) return;
      EXPECT_THAT(Step(call), HasErrorRank(kFailedRank));
    });
  }
}

TEST(UpdateErrorsTest, MakeAccumulatorRefusesWhatUpdateWould) {
  const Tensor whole = Whole();
  SetAccumulator(whole, Tensor::Ones({10, 1}).value());
  const struct {
    EmbeddingTable table;
    SparseRule rule;
    absl::StatusCode code;
    const char* phrase;
  } cases[] = {
      {whole, SparseRule::kAdagrad, kInvalid,
       "for this rule needs to be of float32 and size [10, 4]"},
      {Whole(), static_cast<SparseRule>(3), kInvalid,
       "expected a rule of SparseRule, got 3"},
      {Tensor::Ones({10}).value(), SparseRule::kAdagrad, kInvalid,
       "Weight needs to have exactly 2 dims"},
      {Tensor(), SparseRule::kAdagrad, kState, "the table was not created"},
      {ShardedTensor(), SparseRule::kAdagrad, kState,
       "the table was not created"},
      {Tensor::Empty({10, 4}, {.device = DeviceType::kMeta}).value(),
       SparseRule::kAdagrad, kState, "the table is on meta"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(MakeAccumulator(c.table, c.rule), StatusIs(c.code, c.phrase));
  }
  EXPECT_THAT(GetAccumulator(whole).Get<Tensor>().value(),
              TensorBitwiseEq(Tensor::Ones({10, 1}).value()));
  const Tensor no_memory = Whole();
  const FailAllocationAt fault;
  EXPECT_THAT(MakeAccumulator(no_memory, SparseRule::kAdagrad),
              StatusIs(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_TRUE(GetAccumulator(no_memory).is_none());
}

}  // namespace
}  // namespace sherd
