#include <cstddef>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

// Throughput counts what moves: every input read once, the output written
// once. Compare with `memcpy`, which moves 2 bytes per byte.

namespace sherd {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Filled(size_t bytes, int value) {
  return Bytes(bytes, static_cast<std::byte>(value));
}

void BM_Memcpy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) << 10;
  Bytes src = Filled(bytes, 1);
  Bytes dst = Filled(bytes, 2);
  for (auto _ : state) {
    std::memcpy(dst.data(), src.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_Memcpy)->Arg(64)->Arg(1 << 10)->Arg(4 << 10)->Arg(16 << 10);

// A plain loop of additions, as a compiler makes it for two float32 arrays.
void BM_PlainLoop(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0)) << 10;
  Bytes a = Filled(bytes, 1);
  Bytes b = Filled(bytes, 1);
  Bytes out = Filled(bytes, 2);
  const float* const x = reinterpret_cast<const float*>(a.data());
  const float* const y = reinterpret_cast<const float*>(b.data());
  float* const z = reinterpret_cast<float*>(out.data());
  for (auto _ : state) {
    for (size_t i = 0; i < bytes / sizeof(float); ++i) z[i] = x[i] + y[i];
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 3 * static_cast<int64_t>(bytes));
}
BENCHMARK(BM_PlainLoop)->Arg(64)->Arg(1 << 10)->Arg(16 << 10);

void RunReduce(benchmark::State& state, ReduceOp op, DType dtype,
               size_t num_ins, size_t bytes, bool in_place) {
  std::vector<Bytes> storages;
  std::vector<const void*> ins;
  for (size_t k = 0; k < num_ins; ++k) {
    storages.push_back(Filled(bytes, 1));
    ins.push_back(storages.back().data());
  }
  Bytes separate = Filled(in_place ? 1 : bytes, 2);
  void* const out = in_place ? storages[0].data() : separate.data();
  for (auto _ : state) {
    Reduce(op, dtype, out, ins, bytes / SizeOf(dtype), 3);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>((num_ins + 1) * bytes));
}

// Arguments: inputs, KiB of each.
template <DType kDType>
void BM_Sum(benchmark::State& state) {
  RunReduce(state, ReduceOp::kSum, kDType, static_cast<size_t>(state.range(0)),
            static_cast<size_t>(state.range(1)) << 10, /*in_place=*/false);
}
BENCHMARK(BM_Sum<kFloat32>)
    ->ArgsProduct({{2, 4, 8}, {64, 1 << 10, 4 << 10, 16 << 10}});
BENCHMARK(BM_Sum<kFloat64>)->ArgsProduct({{2, 4}, {64, 4 << 10}});
BENCHMARK(BM_Sum<kBFloat16>)->ArgsProduct({{2, 4}, {64, 4 << 10}});
BENCHMARK(BM_Sum<kFloat16>)->ArgsProduct({{2, 4}, {64, 4 << 10}});
BENCHMARK(BM_Sum<kFloat8E4M3>)->ArgsProduct({{2, 4}, {64, 4 << 10}});
BENCHMARK(BM_Sum<kInt64>)->ArgsProduct({{2, 4}, {64, 4 << 10}});
BENCHMARK(BM_Sum<kBool>)->ArgsProduct({{2, 4}, {64, 4 << 10}});

void BM_SumInPlace(benchmark::State& state) {
  RunReduce(state, ReduceOp::kSum, kFloat32,
            static_cast<size_t>(state.range(0)),
            static_cast<size_t>(state.range(1)) << 10, /*in_place=*/true);
}
BENCHMARK(BM_SumInPlace)->ArgsProduct({{2, 4}, {64, 4 << 10}});

template <ReduceOp kOp, DType kDType>
void BM_Other(benchmark::State& state) {
  RunReduce(state, kOp, kDType, 4, static_cast<size_t>(state.range(0)) << 10,
            /*in_place=*/false);
}
BENCHMARK(BM_Other<ReduceOp::kMax, kFloat32>)->Arg(64)->Arg(4 << 10);
BENCHMARK(BM_Other<ReduceOp::kAvg, kFloat32>)->Arg(64)->Arg(4 << 10);
BENCHMARK(BM_Other<ReduceOp::kProduct, kFloat32>)->Arg(64)->Arg(4 << 10);
BENCHMARK(BM_Other<ReduceOp::kProduct, kComplex64>)->Arg(64)->Arg(4 << 10);
BENCHMARK(BM_Other<ReduceOp::kAvg, kInt32>)->Arg(64)->Arg(4 << 10);
BENCHMARK(BM_Other<ReduceOp::kBxor, kUInt8>)->Arg(64)->Arg(4 << 10);

void BM_Latency(benchmark::State& state) {
  std::byte a[64] = {}, b[64] = {};
  const void* const ins[] = {a, b};
  for (auto _ : state) {
    Reduce(ReduceOp::kSum, kFloat32, a, ins,
           static_cast<size_t>(state.range(0)), 1);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_Latency)->Arg(1)->Arg(16);

}  // namespace
}  // namespace sherd
