#include "sherd/testing/conformance/conformance_data.h"

#include <complex>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::HasSubstr;

TEST(GuardedBufferTest, DetectsAChangedByteBesideIt) {
  for (const size_t shift : {0, 1, 7}) {
    for (const size_t size : {0, 1, 64, 1003}) {
      GuardedBuffer buffer(size, shift);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % 64,
                shift % 64);
      FillMessage(1, buffer.bytes());
      EXPECT_THAT(buffer.CheckCanaries(), IsOk());
      std::byte* const end = buffer.bytes().data() + size;
      const std::byte kept = *end;
      *end = std::byte{0};
      EXPECT_THAT(buffer.CheckCanaries(),
                  StatusIs(absl::StatusCode::kInternal, "past the end"));
      *end = kept;
      buffer.bytes().data()[-1] = std::byte{0};
      EXPECT_THAT(buffer.CheckCanaries(), StatusIs(absl::StatusCode::kInternal,
                                                   "before the beginning"));
    }
  }
}

TEST(CheckUntouchedTest, DetectsEachChangedByte) {
  GuardedBuffer buffer(9);
  EXPECT_THAT(CheckUntouched(buffer.bytes()), IsOk());
  buffer.bytes()[8] = std::byte{1};
  EXPECT_THAT(CheckUntouched(buffer.bytes()),
              StatusIs(absl::StatusCode::kInternal, "byte 8 of 9"));
}

TEST(MessageTest, DiffersByCallSenderReceiverAndPlace) {
  std::vector<std::byte> bytes(1003);
  FillMessage(MessageKey(7, 1, 2), absl::MakeSpan(bytes));
  EXPECT_THAT(CheckMessage(MessageKey(7, 1, 2), bytes), IsOk());
  for (const uint64_t key :
       {MessageKey(8, 1, 2), MessageKey(7, 2, 1), MessageKey(7, 1, 1)}) {
    EXPECT_FALSE(CheckMessage(key, bytes).ok());
  }
  EXPECT_FALSE(
      CheckMessage(MessageKey(7, 1, 2), absl::MakeConstSpan(bytes).subspan(8))
          .ok());
  bytes.back() ^= std::byte{1};
  EXPECT_THAT(CheckMessage(MessageKey(7, 1, 2), bytes),
              StatusIs(absl::StatusCode::kInternal, "byte 1002 of 1003"));
}

// The elements of a rank, as T.
template <typename T>
std::vector<T> Elements(ReduceOp op, int rank, size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  FillElements(DTypeOf<T>(), op, 5, rank, 0, absl::MakeSpan(bytes));
  std::vector<T> elements;
  for (size_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    elements.push_back(element);
  }
  return elements;
}

template <typename T>
absl::Status Check(ReduceOp op, int ranks, const std::vector<T>& result,
                   Rounding rounding = Rounding::kOnce) {
  return CheckReduced(
      DTypeOf<T>(), op, 5, ranks, 0, rounding,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(result.data()),
                          result.size() * sizeof(T)));
}

constexpr size_t kCount = 200;

// Adds up in Accumulator, from the last rank to the first.
template <typename T, typename Accumulator>
std::vector<T> Sum(int ranks) {
  std::vector<T> result;
  for (size_t i = 0; i < kCount; ++i) {
    auto sum = static_cast<Accumulator>(0);
    for (int r = ranks - 1; r >= 0; --r) {
      sum = static_cast<Accumulator>(sum + static_cast<Accumulator>(Elements<T>(
                                               ReduceOp::kSum, r, kCount)[i]));
    }
    result.push_back(static_cast<T>(sum));
  }
  return result;
}

TEST(ReducedTest, SumsAreExactWhateverTheOrder) {
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<float, float>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<double, double>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<uint8_t, uint32_t>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<int64_t, uint64_t>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<Float16, float>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<BFloat16, float>(8)), IsOk());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, Sum<Float8E4M3, float>(8)), IsOk());
}

// A backend that computes in less than it has to is found out.
TEST(ReducedTest, DetectsLessPrecision) {
  std::vector<double> rough;
  for (const float sum : Sum<double, float>(3)) rough.push_back(sum);
  EXPECT_THAT(Check(ReduceOp::kSum, 3, rough),
              StatusIs(absl::StatusCode::kInternal, "wrong result"));

  std::vector<BFloat16> stepwise;
  for (size_t i = 0; i < kCount; ++i) {
    BFloat16 sum(0.0f);
    for (int r = 0; r < 8; ++r) {
      sum = BFloat16(
          static_cast<float>(sum) +
          static_cast<float>(Elements<BFloat16>(ReduceOp::kSum, r, kCount)[i]));
    }
    stepwise.push_back(sum);
  }
  EXPECT_FALSE(Check(ReduceOp::kSum, 8, stepwise).ok());
  EXPECT_THAT(Check(ReduceOp::kSum, 8, stepwise, Rounding::kEachStep), IsOk());
}

TEST(ReducedTest, AnAverageMayBeTheSumOfShares) {
  constexpr int kRanks = 7;
  std::vector<float> average(kCount);
  for (int r = 0; r < kRanks; ++r) {
    const std::vector<float> own = Elements<float>(ReduceOp::kAvg, r, kCount);
    for (size_t i = 0; i < kCount; ++i) average[i] += own[i] * (1.0f / kRanks);
  }
  EXPECT_FALSE(Check(ReduceOp::kAvg, kRanks, average).ok());
  EXPECT_THAT(Check(ReduceOp::kAvg, kRanks, average, Rounding::kEachStep),
              IsOk());
  average[0] += 1e-5f;
  EXPECT_FALSE(
      Check(ReduceOp::kAvg, kRanks, average, Rounding::kEachStep).ok());
}

TEST(ReducedTest, EveryBitOfEveryElementCounts) {
  std::vector<int32_t> sum = Sum<int32_t, uint32_t>(4);
  ASSERT_THAT(Check(ReduceOp::kSum, 4, sum), IsOk());
  sum.back() ^= 1;
  EXPECT_THAT(Check(ReduceOp::kSum, 4, sum),
              StatusIs(absl::StatusCode::kInternal, "element 199 of 200"));
  EXPECT_FALSE(Check(ReduceOp::kSum, 3, Sum<int32_t, uint32_t>(4)).ok());
}

// The input of one rank is not a result of two: a backend that forgets one is
// detected, for every type and reduction.
TEST(ReducedTest, DetectsAForgottenRank) {
  for (int dtype = 0; dtype < kNumComputedDTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const auto type = static_cast<DType>(dtype);
      const auto reduction = static_cast<ReduceOp>(op);
      if (!HasReduction(type, reduction)) continue;
      std::vector<std::byte> bytes(kCount * SizeOf(type));
      FillElements(type, reduction, 5, 0, 0, absl::MakeSpan(bytes));
      EXPECT_THAT(
          CheckReduced(type, reduction, 5, 1, 0, Rounding::kOnce, bytes),
          IsOk())
          << Name(type) << " " << Name(reduction);
      EXPECT_FALSE(
          CheckReduced(type, reduction, 5, 2, 0, Rounding::kEachStep, bytes)
              .ok())
          << Name(type) << " " << Name(reduction);
    }
  }
}

// The suite and the host agree about what there is.
TEST(HasReductionTest, IsTheHostsTable) {
  for (int dtype = 0; dtype < kNumComputedDTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const auto type = static_cast<DType>(dtype);
      const auto reduction = static_cast<ReduceOp>(op);
      EXPECT_EQ(HasReduction(type, reduction),
                CheckReduction(reduction, type).ok())
          << Name(type) << " " << Name(reduction);
    }
  }
}

// The host's own arithmetic, against which emulated operations are compared.
TEST(ReducedTest, TheHostsReductionsAreRight) {
  for (int dtype = 0; dtype < kNumComputedDTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const auto type = static_cast<DType>(dtype);
      const auto reduction = static_cast<ReduceOp>(op);
      if (!HasReduction(type, reduction)) continue;
      std::vector<std::vector<std::byte>> ranks;
      std::vector<const void*> ins;
      for (int r = 0; r < 5; ++r) {
        ranks.emplace_back(kCount * SizeOf(type));
        FillElements(type, reduction, 9, r, 0, absl::MakeSpan(ranks.back()));
      }
      for (const auto& rank : ranks) ins.push_back(rank.data());
      std::vector<std::byte> out(kCount * SizeOf(type));
      Reduce(reduction, type, out.data(), ins, kCount, 5);
      EXPECT_THAT(CheckReduced(type, reduction, 9, 5, 0, Rounding::kOnce, out),
                  IsOk())
          << Name(type) << " " << Name(reduction);
    }
  }
}

}  // namespace
}  // namespace sherd::testing::internal
