#include "sherd/core/nn/update/update_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/tensor/float_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sherd::internal {
namespace {

#define SHERD_VECTOR_BODY "sherd/core/nn/update/update_kernels.inc"
#include "sherd/core/tensor/kernels/vector_targets.inc"  // NOLINT(build/include)

template <typename Number>
Number AddBlock(const Number* x) {
  Number halves[8];
  for (int i = 0; i < 8; ++i) halves[i] = x[i] + x[i + 8];
  Number sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = halves[i] + halves[i + 4];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

template <typename Number>
Number SquareBlock(const Number* x, int64_t count) {
  Number squares[kSquareBlock] = {};
  for (int64_t i = 0; i < count; ++i) squares[i] = x[i] * x[i];
  return AddBlock(squares);
}

// Calls `visit` with the part of each block that lies in the range: its first
// column, its end, and whether it is the whole block.
template <typename Visitor>
void ForEachBlock(const ColumnRange& range, Visitor visit) {
  const int64_t end = range.column + range.width;
  for (int64_t c = range.column; c < end;) {
    const int64_t block = c - c % kSquareBlock;
    const int64_t block_end = std::min(block + kSquareBlock, range.columns);
    const int64_t next = std::min(block_end, end);
    visit(c, next, c == block && next == block_end);
    c = next;
  }
}

}  // namespace

void SubtractScaled(DType table, const UpdateBatch& batch,
                    const void* factors) {
  SubtractWith(RowTargetFor(table, batch.width), table, batch, factors, nullptr,
               0, 0);
}

void SubtractAdagrad(DType table, const UpdateBatch& batch,
                     std::byte* const* sums, double rate, double eps) {
  SubtractWith(RowTargetFor(table, batch.width), table, batch, nullptr, sums,
               rate, eps);
}

void SubtractWith(ReductionTarget target, DType table, const UpdateBatch& batch,
                  const void* factors, std::byte* const* sums, double rate,
                  double eps) {
  switch (target) {
#if defined(__x86_64__)
    case ReductionTarget::kAvx512:
      return avx512::SubtractAny(table, batch, factors, sums, rate, eps);
    case ReductionTarget::kAvx2:
      return avx2::SubtractAny(table, batch, factors, sums, rate, eps);
#endif
    default:
      return baseline::SubtractAny(table, batch, factors, sums, rate, eps);
  }
}

int64_t SquareCount(const ColumnRange& range) {
  int64_t count = 0;
  ForEachBlock(range, [&](int64_t begin, int64_t end, bool whole) {
    count += whole ? 1 : end - begin;
  });
  return count;
}

template <typename Number>
void WriteSquares(const ColumnRange& range, const Number* gradient,
                  Number* squares) {
  ForEachBlock(range, [&](int64_t begin, int64_t end, bool whole) {
    const Number* const x = gradient + (begin - range.column);
    if (whole) {
      *squares++ = SquareBlock(x, end - begin);
      return;
    }
    for (int64_t i = 0; i < end - begin; ++i) *squares++ = x[i] * x[i];
  });
}

template <typename Number>
void AddSquares(absl::Span<const ColumnRange> ranges,
                absl::Span<const std::byte* const> squares, size_t rows,
                Number* sums) {
  std::fill_n(sums, rows, Number{0});
  // Of a block that ranges share, for one row after the other.
  Number block[kSquareBlock] = {};
  const bool shared =
      std::any_of(ranges.begin(), ranges.end(), [](const ColumnRange& range) {
        const int64_t end = range.column + range.width;
        return range.column % kSquareBlock != 0 ||
               (end % kSquareBlock != 0 && end != range.columns);
      });
  for (size_t r = 0; r < ranges.size() && !shared; ++r) {
    const auto* const numbers = reinterpret_cast<const Number*>(squares[r]);
    const auto count = static_cast<size_t>(SquareCount(ranges[r]));
    for (size_t k = 0; k < count; ++k) {
      for (size_t i = 0; i < rows; ++i) sums[i] += numbers[i * count + k];
    }
  }
  for (size_t i = 0; i < rows && shared; ++i) {
    for (size_t r = 0; r < ranges.size(); ++r) {
      const Number* next = reinterpret_cast<const Number*>(squares[r]) +
                           i * static_cast<size_t>(SquareCount(ranges[r]));
      ForEachBlock(ranges[r], [&](int64_t begin, int64_t end, bool whole) {
        if (whole) {
          sums[i] += *next++;
          return;
        }
        std::copy_n(next, end - begin, block + begin % kSquareBlock);
        next += end - begin;
        if (end % kSquareBlock != 0 && end != ranges[r].columns) return;
        sums[i] += AddBlock(block);
        std::fill_n(block, kSquareBlock, Number{0});
      });
    }
  }
}

template <typename Number>
Number SumOfSquares(const Number* gradient, int64_t columns) {
  Number sum = 0;
  int64_t c = 0;
  for (; columns - c >= kSquareBlock; c += kSquareBlock) {
    sum += SquareBlock(gradient + c, kSquareBlock);
  }
  if (c < columns) sum += SquareBlock(gradient + c, columns - c);
  return sum;
}

template void WriteSquares(const ColumnRange&, const float*, float*);
template void WriteSquares(const ColumnRange&, const double*, double*);
template void AddSquares(absl::Span<const ColumnRange>,
                         absl::Span<const std::byte* const>, size_t, float*);
template void AddSquares(absl::Span<const ColumnRange>,
                         absl::Span<const std::byte* const>, size_t, double*);
template float SumOfSquares(const float*, int64_t);
template double SumOfSquares(const double*, int64_t);

}  // namespace sherd::internal
