#include <cstdint>
#include <cstring>
#include <string>

#include "benchmark/benchmark.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/elementwise.h"
#include "sherd/core/tensor/kernels/exact_sum.h"
#include "sherd/core/tensor/kernels/tensor_statistics.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

// Bytes are those that are read and written; compare with BM_Memory at the same
// size.

constexpr int64_t kSmall = int64_t{1} << 18;
constexpr int64_t kLarge = int64_t{1} << 27;

Tensor Filled(DType dtype, int64_t bytes) {
  Tensor tensor = Tensor::Empty({bytes / static_cast<int64_t>(SizeOf(dtype))},
                                {.dtype = dtype})
                      .value();
  (void)tensor.Fill(1);
  return tensor;
}

void BM_Memory(benchmark::State& state) {
  const Tensor from = Filled(kFloat32, state.range(0));
  Tensor to = Filled(kFloat32, state.range(0));
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(from.nbytes()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * from.nbytes());
}
BENCHMARK(BM_Memory)->Arg(kSmall)->Arg(kLarge);

void BM_Binary(benchmark::State& state) {
  const auto op = static_cast<BinaryOp>(state.range(0));
  const auto dtype = static_cast<DType>(state.range(1));
  const Tensor a = Filled(dtype, state.range(2));
  const Tensor b = Filled(dtype, state.range(2));
  Tensor out = Filled(dtype, state.range(2));
  for (auto _ : state) {
    if (!ApplyInto(op, a, b, out).ok()) state.SkipWithError("refused");
  }
  state.SetBytesProcessed(state.iterations() * 3 * a.nbytes());
  state.SetLabel(std::string(Name(op)) + " " + std::string(Name(dtype)));
}
BENCHMARK(BM_Binary)->ArgsProduct(
    {{static_cast<int>(BinaryOp::kAdd), static_cast<int>(BinaryOp::kDiv),
      static_cast<int>(BinaryOp::kMax)},
     {static_cast<int>(kFloat32), static_cast<int>(kFloat16),
      static_cast<int>(kBFloat16), static_cast<int>(kFloat64),
      static_cast<int>(kInt32), static_cast<int>(kInt8)},
     {kSmall, kLarge}});

void BM_UnaryInPlace(benchmark::State& state) {
  const auto op = static_cast<UnaryOp>(state.range(0));
  const auto dtype = static_cast<DType>(state.range(1));
  Tensor a = Filled(dtype, state.range(2));
  for (auto _ : state) {
    if (!ApplyInPlace(op, a).ok()) state.SkipWithError("refused");
  }
  state.SetBytesProcessed(state.iterations() * 2 * a.nbytes());
  state.SetLabel(std::string(Name(op)) + " " + std::string(Name(dtype)));
}
BENCHMARK(BM_UnaryInPlace)
    ->ArgsProduct(
        {{static_cast<int>(UnaryOp::kNeg), static_cast<int>(UnaryOp::kSqrt),
          static_cast<int>(UnaryOp::kExp), static_cast<int>(UnaryOp::kTanh)},
         {static_cast<int>(kFloat32), static_cast<int>(kFloat64)},
         {kSmall, kLarge}});

void BM_Sum(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const Tensor a = Filled(dtype, state.range(1));
  for (auto _ : state) {
    ExactSum real;
    ExactSum imaginary;
    if (!AddElements(a, real, imaginary).ok()) state.SkipWithError("refused");
    benchmark::DoNotOptimize(real.Round());
  }
  state.SetBytesProcessed(state.iterations() * a.nbytes());
  state.SetLabel(std::string(Name(dtype)));
}
BENCHMARK(BM_Sum)->ArgsProduct(
    {{static_cast<int>(kFloat32), static_cast<int>(kFloat64),
      static_cast<int>(kBFloat16), static_cast<int>(kInt32)},
     {kSmall, kLarge}});

}  // namespace
}  // namespace sherd
