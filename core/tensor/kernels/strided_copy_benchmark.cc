#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

// Every case copies the same bytes between warm blocks; compare each with
// `memcpy` of its size.

namespace sherd {
namespace {

struct Buffers {
  std::shared_ptr<Storage> src;
  std::shared_ptr<Storage> dst;

  explicit Buffers(size_t bytes)
      : src(Storage::Allocate(bytes).value()),
        dst(Storage::Allocate(bytes).value()) {
    std::memset(src->data(), 1, bytes);
    std::memset(dst->data(), 2, bytes);
  }
};

void BM_Memcpy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) << 20;
  const Buffers buffers(bytes);
  for (auto _ : state) {
    std::memcpy(buffers.dst->data(), buffers.src->data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_Memcpy)->Arg(1)->Arg(16)->Arg(64)->Arg(256);

// The blocks that one of four ranks packs for the others when a matrix of
// `range(0)` MiB goes from rows to columns: four column slices of its rows.
void BM_RowsToColumnsPack(benchmark::State& state) {
  const int64_t rows = state.range(1);
  const int64_t bytes = state.range(0) << 20;
  const int64_t columns = bytes / 4 / rows;
  const int64_t part = columns / 4;
  const Buffers buffers(static_cast<size_t>(bytes));
  char* const dst = static_cast<char*>(buffers.dst->data());
  const char* const src = static_cast<const char*>(buffers.src->data());
  for (auto _ : state) {
    for (int64_t p = 0; p < 4; ++p) {
      StridedCopy(dst + p * rows * part * 4, {part, 1}, src + p * part * 4,
                  {columns, 1}, {rows, part}, 4);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(BM_RowsToColumnsPack)
    ->Args({16, 64})
    ->Args({16, 1024})
    ->Args({16, 16384})
    ->Args({16, 131072})
    ->Args({128, 1024})
    ->Args({128, 4096});

// The opposite: four messages become the columns of a matrix.
void BM_RowsToColumnsUnpack(benchmark::State& state) {
  const int64_t rows = state.range(1);
  const int64_t bytes = state.range(0) << 20;
  const int64_t columns = bytes / 4 / rows;
  const int64_t part = columns / 4;
  const Buffers buffers(static_cast<size_t>(bytes));
  char* const dst = static_cast<char*>(buffers.dst->data());
  const char* const src = static_cast<const char*>(buffers.src->data());
  for (auto _ : state) {
    for (int64_t p = 0; p < 4; ++p) {
      StridedCopy(dst + p * part * 4, {columns, 1}, src + p * rows * part * 4,
                  {part, 1}, {rows, part}, 4);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(BM_RowsToColumnsUnpack)
    ->Args({16, 1024})
    ->Args({128, 1024})
    ->Args({128, 4096})
    ->Args({128, 16384});

// Eight boxes of a cube, packed one after the other.
void BM_Boxes3d(benchmark::State& state) {
  const int64_t edge = state.range(0);
  const int64_t half = edge / 2;
  const int64_t bytes = edge * edge * edge * 4;
  const Buffers buffers(static_cast<size_t>(bytes));
  char* const dst = static_cast<char*>(buffers.dst->data());
  const char* const src = static_cast<const char*>(buffers.src->data());
  for (auto _ : state) {
    for (int64_t box = 0; box < 8; ++box) {
      const int64_t origin =
          ((box / 4 * edge + box / 2 % 2 * 1) * half * edge) + box % 2 * half;
      StridedCopy(dst + box * half * half * half * 4, {half * half, half, 1},
                  src + origin * 4, {edge * edge, edge, 1}, {half, half, half},
                  4);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(BM_Boxes3d)->Arg(64)->Arg(256);

// A matrix of elements of `range(1)` bytes becomes its transpose.
void BM_Transpose(benchmark::State& state) {
  const int64_t edge = state.range(0);
  const size_t element = static_cast<size_t>(state.range(1));
  const size_t bytes = static_cast<size_t>(edge * edge) * element;
  const Buffers buffers(bytes);
  for (auto _ : state) {
    StridedCopy(buffers.dst->data(), {edge, 1}, buffers.src->data(), {1, edge},
                {edge, edge}, element);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_Transpose)
    ->ArgsProduct({{256, 1000, 2048, 4096}, {1, 2, 4, 8, 16}});

// [n, 3] becomes [3, n].
void BM_Deinterleave(benchmark::State& state) {
  const int64_t count = state.range(0);
  const Buffers buffers(static_cast<size_t>(count) * 12);
  for (auto _ : state) {
    StridedCopy(buffers.dst->data(), {count, 1}, buffers.src->data(), {1, 3},
                {3, count}, 4);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * count * 12);
}
BENCHMARK(BM_Deinterleave)->Arg(1 << 20);

// The cost of a call that copies almost nothing.
void BM_SmallCall(benchmark::State& state) {
  const Buffers buffers(4096);
  for (auto _ : state) {
    StridedCopy(buffers.dst->data(), {4, 1}, buffers.src->data(), {8, 1},
                {4, 4}, 4);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_SmallCall);

}  // namespace
}  // namespace sherd
