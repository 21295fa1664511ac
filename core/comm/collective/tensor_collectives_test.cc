#include "sherd/core/comm/tensor_collectives.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// first, first + 1, … as elements of a tensor of these sizes.
Tensor Counting(int64_t first, std::vector<int64_t> sizes,
                DType dtype = kInt64) {
  const int64_t count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1},
                                        std::multiplies<>());
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return Tensor::FromSpan<int64_t>(values, sizes)->To(dtype).value();
}

Tensor Blank(std::vector<int64_t> sizes, DType dtype = kInt64) {
  return Tensor::Full(sizes, 77, {.dtype = dtype}).value();
}

std::vector<int64_t> Values(const Tensor& tensor) {
  const Tensor wide = tensor.Contiguous()->To(kInt64).value();
  const int64_t* const data = wide.data_as<int64_t>();
  return std::vector<int64_t>(data, data + wide.numel());
}

Tensor Transposed() { return Counting(0, {2, 3}).Transpose(0, 1).value(); }

class TensorCollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, TensorCollectivesTest,
                         ::testing::Values(1, 2, 3, 5));

TEST_P(TensorCollectivesTest, BroadcastCopiesEveryRootsElements) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      Tensor tensor = Counting(100 * group.rank(), {2, 3});
      ASSERT_THAT(Broadcast(group, tensor, root), IsOk());
      EXPECT_EQ(Values(tensor), Values(Counting(100 * root, {2, 3})));
      Tensor later = Counting(10 * group.rank(), {4});
      ASSERT_THAT(BroadcastAsync(group, later, root).Wait(), IsOk());
      EXPECT_EQ(Values(later), Values(Counting(10 * root, {4})));
    }
  });
}

TEST_P(TensorCollectivesTest, AllReduceSumsTheElementsOfAllRanks) {
  const int64_t p = size();
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (const DType dtype : {kInt64, kFloat32, kBFloat16}) {
      // Element i is the sum over r of (r + i).
      const std::vector<int64_t> expected = {
          p * (p - 1) / 2, p * (p - 1) / 2 + p, p * (p - 1) / 2 + 2 * p};
      Tensor tensor = Counting(group.rank(), {3}, dtype);
      ASSERT_THAT(AllReduce(group, tensor, ReduceOp::kSum), IsOk());
      EXPECT_EQ(Values(tensor), expected) << dtype;
      Tensor later = Counting(group.rank(), {1, 3}, dtype);
      ASSERT_THAT(AllReduceAsync(group, later, ReduceOp::kSum).Wait(), IsOk());
      EXPECT_EQ(Values(later), expected) << dtype;
    }
  });
}

TEST_P(TensorCollectivesTest, ReduceLeavesOtherRanksTensorsAlone) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      const std::vector<int64_t> own = Values(Counting(group.rank(), {2}));
      const std::vector<int64_t> largest = {group.size() - 1, group.size()};
      const auto& expected = group.rank() == root ? largest : own;
      Tensor tensor = Counting(group.rank(), {2});
      ASSERT_THAT(Reduce(group, tensor, ReduceOp::kMax, root), IsOk());
      EXPECT_EQ(Values(tensor), expected);
      Tensor later = Counting(group.rank(), {2});
      ASSERT_THAT(ReduceAsync(group, later, ReduceOp::kMax, root).Wait(),
                  IsOk());
      EXPECT_EQ(Values(later), expected);
    }
  });
}

TEST_P(TensorCollectivesTest, AllGatherFillsAListWithTensorsOfAnyLength) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (const bool async : {false, true}) {
      const Tensor send = Counting(10 * group.rank(), {group.rank() + 1, 2});
      std::vector<Tensor> recvs;
      for (int r = 0; r < group.size(); ++r) {
        recvs.push_back(Blank({r + 1, 2}));
      }
      const absl::Span<Tensor> list = absl::MakeSpan(recvs);
      ASSERT_THAT(async ? AllGatherAsync(group, send, list).Wait()
                        : AllGather(group, send, list),
                  IsOk());
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_EQ(Values(recvs[r]), Values(Counting(10 * r, {r + 1, 2})));
      }
    }
  });
}

TEST_P(TensorCollectivesTest, AllGatherIntoTensorConcatenatesOrStacks) {
  const int64_t p = size();
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    const Tensor send = Counting(6 * group.rank(), {2, 3});
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{2 * p, 3}, std::vector<int64_t>{p, 2, 3}}) {
      for (const bool async : {false, true}) {
        Tensor recv = Blank(sizes);
        ASSERT_THAT(async ? AllGatherIntoTensorAsync(group, send, recv).Wait()
                          : AllGatherIntoTensor(group, send, recv),
                    IsOk());
        EXPECT_EQ(Values(recv), Values(Counting(0, {6 * p})));
      }
    }
    const Tensor scalar = Counting(group.rank(), {});
    Tensor recv = Blank({p});
    ASSERT_THAT(AllGatherIntoTensor(group, scalar, recv), IsOk());
    EXPECT_EQ(Values(recv), Values(Counting(0, {p})));
  });
}

TEST_P(TensorCollectivesTest, GatherFillsTheListOfRoot) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const bool async : {false, true}) {
        const Tensor send = Counting(10 * group.rank(), {3});
        std::vector<Tensor> recvs;
        if (group.rank() == root) {
          for (int r = 0; r < group.size(); ++r) recvs.push_back(Blank({3}));
        }
        const absl::Span<Tensor> list = absl::MakeSpan(recvs);
        ASSERT_THAT(async ? GatherAsync(group, send, list, root).Wait()
                          : Gather(group, send, list, root),
                    IsOk());
        for (size_t r = 0; r < recvs.size(); ++r) {
          EXPECT_EQ(Values(recvs[r]),
                    Values(Counting(10 * static_cast<int64_t>(r), {3})));
        }
      }
    }
  });
}

TEST_P(TensorCollectivesTest, ScatterGivesEveryRankItsEntry) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const bool async : {false, true}) {
        std::vector<Tensor> sends;
        if (group.rank() == root) {
          for (int r = 0; r < group.size(); ++r) {
            sends.push_back(Counting(100 * root + 10 * r, {3}));
          }
        }
        Tensor recv = Blank({3});
        ASSERT_THAT(async ? ScatterAsync(group, sends, recv, root).Wait()
                          : Scatter(group, sends, recv, root),
                    IsOk());
        EXPECT_EQ(Values(recv),
                  Values(Counting(100 * root + 10 * group.rank(), {3})));
      }
    }
  });
}

TEST_P(TensorCollectivesTest, ReduceScatterReducesListsAndTensors) {
  const int64_t p = size();
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    const int64_t rank = group.rank();
    // Element i of part k is 10 k + i on rank 0, one more on rank 1, ….
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 2; ++i) {
      expected.push_back(p * (10 * rank + i) + p * (p - 1) / 2);
    }
    std::vector<Tensor> sends;
    Tensor stacked = Blank({p, 2});
    for (int64_t k = 0; k < p; ++k) {
      sends.push_back(Counting(10 * k + rank, {2}));
      ASSERT_THAT(stacked.Select(0, k)->CopyFrom(sends.back()), IsOk());
    }
    const Tensor joined = stacked.Reshape({2 * p}).value();
    const ReduceOp op = ReduceOp::kSum;
    for (const bool async : {false, true}) {
      Tensor recv = Blank({2});
      ASSERT_THAT(async ? ReduceScatterAsync(group, sends, recv, op).Wait()
                        : ReduceScatter(group, sends, recv, op),
                  IsOk());
      EXPECT_EQ(Values(recv), expected);
      for (const Tensor& send : {stacked, joined}) {
        Tensor part = Blank({2});
        ASSERT_THAT(async
                        ? ReduceScatterTensorAsync(group, send, part, op).Wait()
                        : ReduceScatterTensor(group, send, part, op),
                    IsOk());
        EXPECT_EQ(Values(part), expected);
      }
    }
  });
}

TEST_P(TensorCollectivesTest, AllToAllTransposesTheLists) {
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    // From rank a to rank b go a + 1 elements from 100 a + 10 b on.
    for (const bool async : {false, true}) {
      std::vector<Tensor> sends, recvs;
      for (int r = 0; r < group.size(); ++r) {
        sends.push_back(
            Counting(100 * group.rank() + 10 * r, {group.rank() + 1}));
        recvs.push_back(Blank({1, r + 1}));
      }
      const absl::Span<Tensor> list = absl::MakeSpan(recvs);
      ASSERT_THAT(async ? AllToAllAsync(group, sends, list).Wait()
                        : AllToAll(group, sends, list),
                  IsOk());
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_EQ(Values(recvs[r]),
                  Values(Counting(100 * r + 10 * group.rank(), {r + 1})));
      }
    }
  });
}

TEST_P(TensorCollectivesTest, AllToAllSingleSplitsTheFirstDimension) {
  const int64_t p = size();
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    const int64_t rank = group.rank();
    // Equal slices: two rows of two for each rank.
    const Tensor even = Counting(100 * rank, {2 * p, 2});
    std::vector<int64_t> expected;
    for (int64_t r = 0; r < p; ++r) {
      for (int64_t i = 0; i < 4; ++i)
        expected.push_back(100 * r + 4 * rank + i);
    }
    for (const bool async : {false, true}) {
      Tensor recv = Blank({2 * p, 2});
      ASSERT_THAT(async ? AllToAllSingleAsync(group, even, recv).Wait()
                        : AllToAllSingle(group, even, recv),
                  IsOk());
      EXPECT_EQ(Values(recv), expected);
    }
    // Splits: rank a sends b rows to rank b.
    std::vector<int64_t> send_splits, recv_splits(p, rank);
    expected.clear();
    for (int64_t r = 0; r < p; ++r) {
      send_splits.push_back(r);
      for (int64_t i = 0; i < rank; ++i) {
        expected.push_back(100 * r + rank * (rank - 1) / 2 + i);
      }
    }
    const Tensor uneven = Counting(100 * rank, {p * (p - 1) / 2});
    for (const bool async : {false, true}) {
      Tensor recv = Blank({p * rank});
      const Splits splits = {send_splits, recv_splits};
      ASSERT_THAT(async
                      ? AllToAllSingleAsync(group, uneven, recv, splits).Wait()
                      : AllToAllSingle(group, uneven, recv, splits),
                  IsOk());
      EXPECT_EQ(Values(recv), expected);
    }
  });
}

TEST_P(TensorCollectivesTest, TensorsPassAroundARing) {
  if (size() == 1) GTEST_SKIP() << "a rank sends nothing to itself";
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.size();
    const int previous = (group.rank() + group.size() - 1) % group.size();
    const Tensor send = Counting(10 * group.rank(), {2, 2});
    Tensor recv = Blank({4});
    Work sent = SendAsync(group, send, next, 5);
    ASSERT_THAT(Recv(group, recv, previous, 5), IsOk());
    ASSERT_THAT(sent.Wait(), IsOk());
    EXPECT_EQ(Values(recv), Values(Counting(10 * previous, {4})));
    Work received = RecvAsync(group, recv, next, 6);
    ASSERT_THAT(Send(group, send, previous, 6), IsOk());
    ASSERT_THAT(received.Wait(), IsOk());
    EXPECT_EQ(Values(recv), Values(Counting(10 * next, {4})));
  });
}

TEST_P(TensorCollectivesTest, TensorsWithoutElementsTakePart) {
  const int64_t p = size();
  RunLocalRanks(size(), [&](ProcessGroup& group) {
    Tensor empty = Blank({0, 3});
    EXPECT_THAT(Broadcast(group, empty, 0), IsOk());
    EXPECT_THAT(AllReduce(group, empty, ReduceOp::kSum), IsOk());
    Tensor joined = Blank({0, 3});
    EXPECT_THAT(AllGatherIntoTensor(group, empty, joined), IsOk());
    EXPECT_THAT(AllToAllSingle(group, empty, joined), IsOk());
    Tensor one = Counting(group.rank(), {1});
    ASSERT_THAT(AllReduce(group, one, ReduceOp::kSum), IsOk());
    EXPECT_EQ(Values(one), (std::vector<int64_t>{p * (p - 1) / 2}));
  });
}

// Mistakes of a caller: they fail on every rank alike, nothing is written, and
// the group stays usable.

struct Rejection {
  std::string what;
  std::string operation;
  std::string message;
  std::function<Work(ProcessGroup&)> call;
};

std::vector<Tensor> ManyBlank(int count, std::vector<int64_t> sizes,
                              DType dtype = kInt64) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(Blank(sizes, dtype));
  return tensors;
}

Tensor ReadOnly() {
  static const int64_t kData[2] = {1, 2};
  return Tensor::FromStorage(
             Storage::BorrowReadOnly(kData, sizeof(kData)).value(), 0, {2},
             kInt64)
      .value();
}

// For 3 ranks; ops with a root have it at this rank, so that all check lists.
std::vector<Rejection> TensorRejections() {
  return {
      {"undefined", "all_reduce",
       "the tensor is undefined; make it with Tensor::Empty",
       [](ProcessGroup& group) {
         Tensor tensor;
         return AllReduceAsync(group, tensor, ReduceOp::kSum);
       }},
      {"meta", "all_reduce", "the tensor is on device meta, expected cpu",
       [](ProcessGroup& group) {
         Tensor tensor =
             Tensor::Empty({2}, {.device = {DeviceType::kMeta}}).value();
         return AllReduceAsync(group, tensor, ReduceOp::kSum);
       }},
      {"strided in place", "all_reduce",
       "the tensor has strides [1, 3] for sizes [3, 2], expected a contiguous "
       "one: pass Contiguous() and copy the result back with CopyFrom",
       [](ProcessGroup& group) {
         Tensor tensor = Transposed();
         return AllReduceAsync(group, tensor, ReduceOp::kSum);
       }},
      {"strided send", "all_gather",
       "the send tensor has strides [1, 3] for sizes [3, 2], expected a "
       "contiguous one: pass Contiguous()",
       [](ProcessGroup& group) {
         Tensor recv = Blank({9, 2});
         return AllGatherIntoTensorAsync(group, Transposed(), recv);
       }},
      {"strided entry", "all_to_all_v", "receive entry 1 has strides [1, 3]",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(3, {6});
         recvs[1] = Transposed();
         return AllToAllAsync(group, ManyBlank(3, {6}), absl::MakeSpan(recvs));
       }},
      {"read-only", "broadcast", "the tensor may not be written to",
       [](ProcessGroup& group) {
         Tensor tensor = ReadOnly();
         return BroadcastAsync(group, tensor, (group.rank() + 1) % 3);
       }},
      {"dtypes of send and receive", "all_gather",
       "tensors with different dtypes: the send tensor is int64 and the "
       "receive tensor is float32",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3}, kFloat32);
         return AllGatherIntoTensorAsync(group, Blank({1}), recv);
       }},
      {"dtypes in a list", "all_gather_v",
       "tensors with different dtypes: the send tensor is int64 and receive "
       "entry 2 is int8",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(3, {1});
         recvs[2] = Blank({1}, kInt8);
         return AllGatherAsync(group, Blank({1}), absl::MakeSpan(recvs));
       }},
      {"no reduction", "all_reduce", "the reduction band is not defined",
       [](ProcessGroup& group) {
         Tensor tensor = Blank({2}, kFloat32);
         return AllReduceAsync(group, tensor, ReduceOp::kBand);
       }},
      {"reduce to no rank", "reduce", "root is 3, expected 0 to 2",
       [](ProcessGroup& group) {
         Tensor tensor = Blank({2});
         return ReduceAsync(group, tensor, ReduceOp::kSum, 3);
       }},
      {"send to itself", "send", "which is this rank",
       [](ProcessGroup& group) {
         return SendAsync(group, Blank({2}), group.rank());
       }},
      {"receive into strides", "recv", "the receive tensor has strides",
       [](ProcessGroup& group) {
         Tensor tensor = Transposed();
         return RecvAsync(group, tensor, (group.rank() + 1) % 3);
       }},
  };
}

// NOLINTNEXTLINE(readability-function-size): a table.
std::vector<Rejection> ListRejections() {
  return {
      {"short list", "all_gather_v",
       "the receive list has 2 tensors, expected 3, one per rank",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(2, {1});
         return AllGatherAsync(group, Blank({1}), absl::MakeSpan(recvs));
       }},
      {"root without list", "scatter",
       "the send list has 0 tensors, expected 3, one per rank",
       [](ProcessGroup& group) {
         Tensor recv = Blank({1});
         return ScatterAsync(group, {}, recv, group.rank());
       }},
      {"list on another rank", "gather",
       "passes a receive list, expected an empty one here, not one of 3",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(3, {1});
         return GatherAsync(group, Blank({1}), absl::MakeSpan(recvs),
                            (group.rank() + 1) % 3);
       }},
      {"own entry", "all_gather_v",
       "the send tensor has sizes [2] and receive entry",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(3, {3});
         return AllGatherAsync(group, Blank({2}), absl::MakeSpan(recvs));
       }},
      {"one tensor as two entries", "all_gather_v",
       "receive entry 1 overlaps receive entry 0, expected memory of its own",
       [](ProcessGroup& group) {
         std::vector<Tensor> recvs = ManyBlank(3, {2});
         recvs[1] = recvs[0];
         return AllGatherAsync(group, Blank({2}), absl::MakeSpan(recvs));
       }},
      {"one list twice", "all_to_all_v", "overlaps receive entry",
       [](ProcessGroup& group) {
         std::vector<Tensor> both = ManyBlank(3, {2});
         return AllToAllAsync(group, both, absl::MakeSpan(both));
       }},
      {"a part that another rank's block overlaps", "scatter",
       "overlaps the receive buffer",
       [](ProcessGroup& group) {
         std::vector<Tensor> sends = ManyBlank(3, {2});
         Tensor recv = sends[(group.rank() + 1) % 3];
         return ScatterAsync(group, sends, recv, group.rank());
       }},
      {"joined sizes", "all_gather",
       "the receive tensor has sizes [2, 6], expected [6, 2] or [3, 2, 2]: 3 "
       "ranks times the sizes [2, 2] of the send tensor",
       [](ProcessGroup& group) {
         Tensor recv = Blank({2, 6});
         return AllGatherIntoTensorAsync(group, Blank({2, 2}), recv);
       }},
      {"parts", "reduce_scatter",
       "the send tensor has sizes [5], expected [6] or [3, 2]",
       [](ProcessGroup& group) {
         Tensor recv = Blank({2});
         return ReduceScatterTensorAsync(group, Blank({5}), recv,
                                         ReduceOp::kSum);
       }},
      {"uneven", "all_to_all_v",
       "the send tensor's dim 0 of 4 does not divide equally across group size "
       "3; pass splits",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         return AllToAllSingleAsync(group, Blank({4}), recv);
       }},
      {"number of splits", "all_to_all_v",
       "there are 2 send splits, expected 3",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         const std::vector<int64_t> two = {1, 2};
         return AllToAllSingleAsync(group, Blank({3}), recv, {two, {}});
       }},
      {"sum of splits", "all_to_all_v",
       "the receive splits add up to 4, expected the 3 of dim 0",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         const std::vector<int64_t> four = {1, 2, 1};
         return AllToAllSingleAsync(group, Blank({3}), recv, {{}, four});
       }},
      {"negative split", "all_to_all_v", "a send split is -1, expected 0 to",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         const std::vector<int64_t> splits = {-1, 2, 2};
         return AllToAllSingleAsync(group, Blank({3}), recv, {splits, {}});
       }},
      {"overflowing splits", "all_to_all_v", "a send split is 9223372036854775",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         const std::vector<int64_t> splits = {INT64_MAX, INT64_MAX, 5};
         return AllToAllSingleAsync(group, Blank({3}), recv, {splits, {}});
       }},
      {"scalar split", "all_to_all_v", "the send tensor has no dimension",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3});
         return AllToAllSingleAsync(group, Blank({}), recv);
       }},
      {"rows of other lengths", "all_to_all_v",
       "the send tensor has sizes [3, 2] and the receive tensor [3, 4], "
       "expected equal ones after dim 0",
       [](ProcessGroup& group) {
         Tensor recv = Blank({3, 4});
         return AllToAllSingleAsync(group, Blank({3, 2}), recv);
       }},
  };
}

TEST(TensorCollectivesRejectionTest,
     WrongArgumentsAreNamedAndTheGroupStaysUsable) {
  std::vector<Rejection> rejections = TensorRejections();
  for (Rejection& rejection : ListRejections()) {
    rejections.push_back(std::move(rejection));
  }
  RunLocalRanks(3, [&](ProcessGroup& group) {
    for (const Rejection& rejection : rejections) {
      const absl::Status status = rejection.call(group).Wait();
      EXPECT_THAT(
          status,
          StatusIs(kInvalid,
                   AllOf(HasSubstr(rejection.message),
                         HasSubstr(absl::StrCat("group \"", group.name(),
                                                "\", rank ", group.rank(), ", ",
                                                rejection.operation)))))
          << rejection.what;
      EXPECT_EQ(GetErrorInfo(status).operation, rejection.operation)
          << rejection.what;
      EXPECT_EQ(GetErrorInfo(status).group, group.name()) << rejection.what;
    }
    Tensor tensor = Counting(group.rank(), {2});
    ASSERT_THAT(AllReduce(group, tensor, ReduceOp::kSum), IsOk());
    EXPECT_EQ(Values(tensor), (std::vector<int64_t>{3, 6}));
  });
}

// The synchronous forms make the same checks. The same number of bytes of
// another type is a different call.
TEST(TensorCollectivesRejectionTest, RanksWithAnotherDtypeAreNamed) {
  for (const bool broadcasts : {true, false}) {
    RunLocalRanks(3, [&](ProcessGroup& group) {
      Tensor own = Counting(1, {4}, group.rank() == 1 ? kInt32 : kFloat32);
      Tensor all = Blank({12}, own.dtype());
      const absl::Status status = broadcasts
                                      ? Broadcast(group, own, 0)
                                      : AllGatherIntoTensor(group, own, all);
      EXPECT_THAT(status, StatusIs(kInvalid, AllOf(HasSubstr("rank 1"),
                                                   HasSubstr("int32"),
                                                   HasSubstr("float32"))));
      EXPECT_EQ(FailedRank(status), 1);
    });
  }
}

TEST(TensorCollectivesRejectionTest, ATypeFitsACallByBytes) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Tensor tensor = Counting(group.rank(), {2});
    std::vector<int64_t> values(2);
    if (group.rank() == 1) {
      EXPECT_THAT(
          group.Broadcast(
              MutableBytes(reinterpret_cast<std::byte*>(values.data()), 16), 2),
          IsOk());
      EXPECT_EQ(values, (std::vector<int64_t>{2, 3}));
    } else {
      EXPECT_THAT(Broadcast(group, tensor, 2), IsOk());
      EXPECT_EQ(Values(tensor), (std::vector<int64_t>{2, 3}));
    }
  });
}

TEST(TensorCollectivesRejectionTest, SynchronousCallsAreCheckedToo) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const Tensor strided = Transposed();
    Tensor out = Transposed();
    std::vector<Tensor> sends(2, strided), recvs(2, out);
    const absl::Span<Tensor> list = absl::MakeSpan(recvs);
    const auto expect_refused = [](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(kInvalid, "has strides [1, 3]"));
    };
    expect_refused(Broadcast(group, out, 0));
    expect_refused(AllReduce(group, out, ReduceOp::kSum));
    expect_refused(Reduce(group, out, ReduceOp::kSum, 0));
    expect_refused(AllGather(group, strided, list));
    expect_refused(AllGatherIntoTensor(group, strided, out));
    expect_refused(Gather(group, strided, list, 0));
    expect_refused(Scatter(group, sends, out, 0));
    expect_refused(ReduceScatter(group, sends, out, ReduceOp::kSum));
    expect_refused(ReduceScatterTensor(group, strided, out, ReduceOp::kSum));
    expect_refused(AllToAll(group, sends, list));
    expect_refused(AllToAllSingle(group, strided, out));
    expect_refused(Send(group, strided, 1 - group.rank()));
    expect_refused(Recv(group, out, 1 - group.rank()));
    EXPECT_EQ(Values(out), (std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST(TensorCollectivesRejectionTest, AProcessThatIsNotAMemberGetsAnError) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({0}));
    if (world.rank() == 0) return;
    ASSERT_FALSE(group->is_member());
    Tensor tensor = Blank({1});
    std::vector<Tensor> list = {Blank({1})};
    const auto expect_refused = [](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "not a member of the group"));
    };
    expect_refused(Broadcast(*group, tensor, 0));
    expect_refused(AllReduce(*group, tensor, ReduceOp::kSum));
    expect_refused(AllGather(*group, tensor, absl::MakeSpan(list)));
    expect_refused(AllGatherIntoTensor(*group, tensor, tensor));
    expect_refused(Gather(*group, tensor, absl::MakeSpan(list), 0));
    expect_refused(Scatter(*group, list, tensor, 0));
    expect_refused(ReduceScatter(*group, list, tensor, ReduceOp::kSum));
    expect_refused(AllToAll(*group, list, absl::MakeSpan(list)));
    expect_refused(AllToAllSingle(*group, tensor, tensor));
    expect_refused(SendAsync(*group, tensor, 0).Wait());
    expect_refused(RecvAsync(*group, tensor, 0).Wait());
  });
}

// Watches when a tensor's memory is given back.
struct Watched {
  std::shared_ptr<std::vector<int64_t>> memory;
  std::weak_ptr<std::vector<int64_t>> alive;
  Tensor tensor;

  explicit Watched(std::vector<int64_t> values)
      : memory(std::make_shared<std::vector<int64_t>>(std::move(values))),
        alive(memory),
        tensor(Tensor::FromBorrowed(memory->data(),
                                    {static_cast<int64_t>(memory->size())},
                                    kInt64, memory)
                   .value()) {
    memory.reset();
  }
};

TEST(TensorCollectivesLifetimeTest, DroppedTensorsLiveUntilTheOperationEnded) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    Watched watched({group.rank() + 1, 2});
    if (group.rank() == 1) {
      // Rank 0 waits for this rank, with its tensor dropped, until here.
      Tensor go = Blank({1});
      ASSERT_THAT(Recv(group, go, 0), IsOk());
      ASSERT_THAT(AllReduce(group, watched.tensor, ReduceOp::kSum), IsOk());
      EXPECT_EQ(Values(watched.tensor), (std::vector<int64_t>{3, 4}));
      return;
    }
    Work work = AllReduceAsync(group, watched.tensor, ReduceOp::kSum);
    watched.tensor = Tensor();
    EXPECT_FALSE(watched.alive.expired());
    ASSERT_THAT(Send(group, Blank({1}), 1), IsOk());
    ASSERT_THAT(work.Wait(), IsOk());
    EXPECT_TRUE(watched.alive.expired());
  });
}

TEST(TensorCollectivesLifetimeTest, ADroppedWorkStillDeliversItsData) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    Tensor tensor = Counting(group.rank(), {1000});
    { Work dropped = AllReduceAsync(group, tensor, ReduceOp::kMax); }
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_EQ(Values(tensor), Values(Counting(2, {1000})));
  });
}

}  // namespace
}  // namespace sherd
