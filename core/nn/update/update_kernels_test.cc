#include "sherd/core/nn/update/update_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/nn/lookup/request_message.h"
#include "sherd/core/nn/update/gradient_messages.h"
#include "sherd/core/nn/update/row_groups.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::RandomSeed;
using ::sherd::testing::TensorBitwiseEq;

Tensor Normal(const Dims& size, DType dtype, std::mt19937_64& random) {
  Tensor tensor = Tensor::Empty(size, {.dtype = kFloat64}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<double>()[i] =
        std::normal_distribution<double>()(random);
  }
  return tensor.To(dtype).value();
}

TEST(UpdateKernelsTest, EveryTargetComputesTheSameBits) {
  std::mt19937_64 random(RandomSeed());
  constexpr int64_t kRows = 3;
  for (const DType dtype : {kFloat64, kFloat32, kFloat16, kBFloat16}) {
    for (int64_t width = 1; width < 70; ++width) {
      const Tensor table = Normal({kRows, width}, dtype, random);
      const Tensor gradients =
          Normal({kRows, width}, AccumulatorOf(dtype), random);
      const Tensor factors = Normal({kRows}, AccumulatorOf(dtype), random);
      for (const bool adagrad : {false, true}) {
        std::vector<Tensor> tables;
        std::vector<Tensor> sums;
        for (const ReductionTarget target :
             {ReductionTarget::kBaseline, ReductionTarget::kAvx2,
              ReductionTarget::kAvx512}) {
          if (target > BestReductionTarget()) continue;
          tables.push_back(table.Clone().value());
          sums.push_back(
              Tensor::Ones({kRows, width}, {.dtype = AccumulatorOf(dtype)})
                  .value());
          std::vector<std::byte*> rows;
          std::vector<std::byte*> sum_rows;
          for (int64_t r = 0; r < kRows; ++r) {
            rows.push_back(static_cast<std::byte*>(tables.back().data()) +
                           r * width *
                               static_cast<int64_t>(table.element_size()));
            sum_rows.push_back(
                static_cast<std::byte*>(sums.back().data()) +
                r * width * static_cast<int64_t>(gradients.element_size()));
          }
          SubtractWith(target, dtype,
                       {.count = kRows,
                        .width = width,
                        .rows = rows.data(),
                        .gradients = gradients.data()},
                       factors.data(), adagrad ? sum_rows.data() : nullptr, 0.1,
                       1e-3);
          EXPECT_THAT(tables.back(), TensorBitwiseEq(tables[0]));
          EXPECT_THAT(sums.back(), TensorBitwiseEq(sums[0]));
        }
        EXPECT_FALSE(tables[0].BitwiseEqual(table));
      }
    }
  }
}

TEST(UpdateKernelsTest, SquaresOfRangesAddUpToThoseOfTheRow) {
  std::mt19937_64 random(RandomSeed());
  for (int i = 0; i < 500; ++i) {
    const auto columns = static_cast<int64_t>(1 + random() % 90);
    constexpr size_t kRows = 5;
    const Tensor gradients =
        Normal({static_cast<int64_t>(kRows), columns}, kFloat32, random);
    std::vector<ColumnRange> ranges;
    const int64_t step = random() % 2 == 0 ? 1 : 16;
    for (int64_t c = 0; c < columns;) {
      const int64_t width =
          std::min(columns - c, step * static_cast<int64_t>(1 + random() % 20));
      ranges.push_back({c, width, columns});
      c += width;
    }
    std::vector<std::vector<float>> squares;
    std::vector<const std::byte*> addresses;
    for (const ColumnRange& range : ranges) {
      const auto count = static_cast<size_t>(SquareCount(range));
      std::vector<float>& numbers = squares.emplace_back(kRows * count);
      for (size_t r = 0; r < kRows; ++r) {
        WriteSquares(range,
                     gradients.data_as<float>() +
                         static_cast<int64_t>(r) * columns + range.column,
                     &numbers[r * count]);
      }
      addresses.push_back(reinterpret_cast<const std::byte*>(numbers.data()));
    }
    std::vector<float> sums(kRows);
    AddSquares<float>(ranges, addresses, kRows, sums.data());
    for (size_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(sums[r], SumOfSquares(gradients.data_as<float>() +
                                          static_cast<int64_t>(r) * columns,
                                      columns));
    }
  }
}

// A request of bags of the lengths, whose ids are in memory.
RequestView ViewOf(const std::vector<int64_t>& ids,
                   const std::vector<uint32_t>& lengths) {
  RequestView view;
  view.bags = lengths.size();
  view.ids = IndexList(ids.data(), static_cast<int64_t>(ids.size()), true);
  view.lengths = lengths.data();
  return view;
}

TEST(RowGroupsTest, GradientsAreSortedByRowInTheOrderOfTheSources) {
  std::mt19937_64 random(RandomSeed());
  RowGroups groups;
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = static_cast<int64_t>(random() % 1000);
    const auto span =
        static_cast<int64_t>(1 + (random() >> (24 + random() % 40)));
    struct Term {
      int64_t row;
      const std::byte* gradient;
      float factor;
    };
    std::vector<Term> expected;
    std::vector<GradientSource> sources;
    const size_t ranks = 1 + random() % 3;
    std::vector<std::vector<int64_t>> ids(ranks);
    std::vector<std::vector<uint32_t>> lengths(ranks);
    std::vector<std::vector<float>> factors(ranks);
    std::vector<std::byte> gradients(1 << 16);
    for (size_t r = 0; r < ranks; ++r) {
      const size_t bags = random() % 300;
      for (size_t b = 0; b < bags; ++b) {
        lengths[r].push_back(static_cast<uint32_t>(random() % 5));
        for (uint32_t k = 0; k < lengths[r].back(); ++k) {
          ids[r].push_back(
              begin - 3 +
              static_cast<int64_t>(random() % static_cast<uint64_t>(span + 6)));
          factors[r].push_back(static_cast<float>(random() % 1000));
          if (ids[r].back() < begin || ids[r].back() >= begin + span) continue;
          expected.push_back(
              {ids[r].back(), &gradients[b * 16 + r], factors[r].back()});
        }
      }
      sources.push_back(
          {.request = ViewOf(ids[r], lengths[r]),
           .gradients = &gradients[r],
           .stride = 16,
           .factors = reinterpret_cast<const std::byte*>(factors[r].data()),
           .factor_stride = sizeof(float)});
    }
    std::stable_sort(
        expected.begin(), expected.end(),
        [](const Term& a, const Term& b) { return a.row < b.row; });
    ASSERT_TRUE(groups.Set(sources, begin, begin + span, sizeof(float), false));
    size_t at = 0;
    for (size_t row = 0; row < groups.rows().size(); ++row) {
      for (; at < static_cast<size_t>(groups.first(row + 1)); ++at) {
        ASSERT_LT(at, expected.size());
        ASSERT_EQ(expected[at].row, groups.rows()[row]);
        ASSERT_EQ(groups.gradients()[at], expected[at].gradient);
        float factor = 0;
        std::memcpy(&factor, groups.factors() + at * sizeof(float),
                    sizeof(factor));
        ASSERT_EQ(factor, expected[at].factor);
      }
    }
    ASSERT_EQ(at, expected.size());
  }
}

TEST(RowGroupsTest, MalformedRequestsAreRefused) {
  RowGroups groups;
  const std::vector<int64_t> ids = {4, 5, 6};
  std::vector<std::byte> gradients(64);
  const auto set = [&](const std::vector<uint32_t>& lengths, int64_t end,
                       bool all) {
    const GradientSource source = {.request = ViewOf(ids, lengths),
                                   .gradients = gradients.data(),
                                   .stride = 4};
    return groups.Set({&source, 1}, 4, end, 0, all);
  };
  EXPECT_TRUE(set({1, 2}, 7, true));
  EXPECT_FALSE(set({1, 1}, 7, true));
  EXPECT_FALSE(set({1, 3}, 7, true));
  EXPECT_FALSE(set({1, 4294967295}, 7, true));
  EXPECT_FALSE(set({1, 2}, 6, true));
  EXPECT_TRUE(set({1, 2}, 6, false));
  EXPECT_EQ(groups.rows().size(), 2U);
  // Far below the rows: a sanitizer finds a difference that overflows.
  const std::vector<int64_t> lowest = {std::numeric_limits<int64_t>::min()};
  const std::vector<uint32_t> one = {1};
  const GradientSource source = {.request = ViewOf(lowest, one),
                                 .gradients = gradients.data(),
                                 .stride = 4};
  EXPECT_FALSE(groups.Set({&source, 1}, 4, 7, 0, true));
}

TEST(GradientMessagesTest, MalformedMessagesAreRefusedOrDescribeTheirBytes) {
  std::mt19937_64 random(RandomSeed());
  std::vector<PlannedTable> tables(2);
  std::vector<Tensor> gradients;
  for (size_t t = 0; t < tables.size(); ++t) {
    const Tensor ids =
        Tensor::FromSpan<int64_t>({0, 1, 2, 3, 4, 5}, {3, 2}).value();
    tables[t].options.mode = t == 0 ? BagMode::kSum : BagMode::kMean;
    ASSERT_TRUE(tables[t].Set(Tensor::Ones({7, 3}).value(), 0).ok());
    ASSERT_TRUE(tables[t].bags.Set(kFloat32, 7, {ids}, tables[t].options).ok());
    gradients.push_back(Tensor::Ones({3, 3}).value());
  }
  GradientMessages messages;
  messages.Plan(tables, /*rank=*/0, /*ranks=*/1, /*for_all=*/true);
  messages.Collect(tables);
  const size_t length = messages.lengths()[0];
  std::vector<uint64_t> valid(length / sizeof(uint64_t));
  ASSERT_EQ(valid.size() * sizeof(uint64_t), length);
  auto* const bytes = reinterpret_cast<std::byte*>(valid.data());
  messages.Write(tables, gradients, {bytes});
  // Whether the owner accepts the message.
  const auto accepts = [&](const std::vector<uint64_t>& message, size_t size) {
    const absl::Span<const std::byte> span(
        reinterpret_cast<const std::byte*>(message.data()), size);
    if (!messages.Read(tables, 0, span).ok()) return false;
    RowGroups groups;
    for (size_t t = 0; t < tables.size(); ++t) {
      std::vector<GradientSource> sources;
      messages.FindSources(tables, t, 0, sources);
      if (!groups.Set(sources, 0, 7, t == 0 ? 0 : sizeof(float), false)) {
        return false;
      }
      for (int64_t i = 0; i < groups.first(groups.rows().size()); ++i) {
        const std::byte* const gradient = groups.gradients()[i];
        EXPECT_GE(gradient, span.data());
        EXPECT_LE(gradient + 12, span.data() + size);
      }
    }
    return true;
  };
  EXPECT_TRUE(accepts(valid, length));
  for (size_t cut = 1; cut < length; ++cut) {
    // In memory of its own, so that a sanitizer finds what reads too far.
    std::vector<uint64_t> part((cut + 7) / 8);
    std::memcpy(part.data(), bytes, cut);
    EXPECT_FALSE(accepts(part, cut)) << cut;
  }
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint64_t> changed = valid;
    for (uint64_t k = 0; k <= random() % 3; ++k) {
      auto* const at =
          reinterpret_cast<std::byte*>(changed.data()) + random() % length;
      *at = static_cast<std::byte>(random());
    }
    accepts(changed, length);
  }
}

}  // namespace
}  // namespace sherd::internal
