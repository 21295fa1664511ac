#include "sherd/backends/cuda/element_plan.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/device_abi.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/emulated_gpu/driver/host_kernels.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;

// Runs a plan as an emulated GPU does.
void RunPlan(LaunchPlan& plan) {
  for (const KernelLaunch& launch : plan.launches()) {
    if (launch.table_bytes > 0) {
      plan.SetTable(launch, reinterpret_cast<uint64_t>(plan.table(launch)));
    }
    const HostKernel* const kernel = FindHostKernel(launch.kernel);
    ASSERT_NE(kernel, nullptr) << launch.kernel;
    ASSERT_EQ(kernel->params_size, launch.params_size);
    kernel->run(plan.params(launch), launch.grid, nullptr, nullptr);
  }
}

// The bytes of `memory` that a plan declares to write.
std::vector<bool> Writes(LaunchPlan& plan, const std::vector<uint8_t>& memory) {
  struct Context {
    uint64_t first;
    std::vector<bool> bytes;
  } context = {reinterpret_cast<uint64_t>(memory.data()),
               std::vector<bool>(memory.size())};
  for (const KernelLaunch& launch : plan.launches()) {
    FindHostKernel(launch.kernel)
        ->visit_accesses(
            plan.params(launch), launch.grid, nullptr,
            [](void* opaque, const KernelAccess& access) {
              Context& to = *static_cast<Context*>(opaque);
              if (!access.is_write) return;
              for (uint64_t i = 0; i < access.bytes; ++i) {
                to.bytes.at(access.address - to.first + i) = true;
              }
            },
            &context);
  }
  return context.bytes;
}

// Fills.

struct FillCase {
  std::vector<int64_t> sizes, strides;
  uint32_t element_size;
  size_t shift;
};

void CheckFill(const FillCase& test_case) {
  int64_t reach = 1;
  for (size_t d = 0; d < test_case.sizes.size(); ++d) {
    reach += std::abs(test_case.strides[d]) * test_case.sizes[d];
  }
  const size_t bytes = static_cast<size_t>(reach) * test_case.element_size;
  std::vector<uint8_t> memory(2 * bytes + 64, 0xee);
  size_t base = -reinterpret_cast<uintptr_t>(memory.data()) % 16 +
                (bytes + 15) / 16 * 16 + test_case.shift;
  sherd_fill_v0 fill = {};
  fill.struct_size = sizeof(fill);
  fill.rank = static_cast<int32_t>(test_case.sizes.size());
  fill.data = memory.data() + base;
  fill.sizes = test_case.sizes.data();
  fill.strides = test_case.strides.data();
  fill.element_size = test_case.element_size;
  for (uint8_t i = 0; i < 16; ++i) fill.value[i] = i + 1;

  std::vector<uint8_t> expected = memory;
  std::vector<bool> written(memory.size());
  std::vector<int64_t> index(test_case.sizes.size(), 0);
  const bool is_empty =
      std::count(test_case.sizes.begin(), test_case.sizes.end(), 0) > 0;
  while (!is_empty) {
    int64_t at = static_cast<int64_t>(base);
    for (size_t d = 0; d < index.size(); ++d) {
      at += index[d] * test_case.strides[d] * test_case.element_size;
    }
    std::memcpy(&expected[at], fill.value, fill.element_size);
    std::fill_n(written.begin() + at, fill.element_size, true);
    size_t d = 0;
    while (d < index.size() && ++index[d] == test_case.sizes[d]) index[d++] = 0;
    if (d == index.size()) break;
  }

  LaunchPlan plan;
  ASSERT_EQ(PlanFill(fill, plan), nullptr);
  EXPECT_EQ(plan.launches().size(), is_empty ? 0u : 1u);
  EXPECT_EQ(Writes(plan, memory), written);
  RunPlan(plan);
  EXPECT_EQ(memory, expected);
}

TEST(ElementPlanTest, FillsElementsOfEverySizeWhateverTheirLayout) {
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>
      layouts = {{{}, {}},
                 {{1000}, {1}},
                 {{5000}, {1}},
                 {{33}, {3}},
                 {{7, 9}, {9, 1}},
                 {{7, 9}, {11, 1}},
                 {{7, 9}, {1, 8}},
                 {{7, 8}, {-8, 1}},
                 {{5, 4, 3}, {40, -10, 2}},
                 {{3, 0, 2}, {2, 2, 1}}};
  for (const uint32_t element_size : {1, 2, 4, 8, 16}) {
    for (const auto& [sizes, strides] : layouts) {
      for (const size_t shift : {0, 1, 2, 4, 8}) {
        SCOPED_TRACE(::testing::PrintToString(sizes) + " of " +
                     std::to_string(element_size) + " at " +
                     std::to_string(shift));
        CheckFill({sizes, strides, element_size, shift});
      }
    }
  }
}

TEST(ElementPlanTest, FillsOfBadArgumentsAreRefused) {
  LaunchPlan plan;
  uint8_t bytes[64];
  const int64_t sizes[1] = {2}, strides[1] = {1};
  sherd_fill_v0 fill = {};
  fill.rank = 1;
  fill.data = bytes;
  fill.sizes = sizes;
  fill.strides = strides;
  for (const uint32_t element_size : {0u, 3u, 32u}) {
    fill.element_size = element_size;
    EXPECT_NE(PlanFill(fill, plan), nullptr) << element_size;
  }
  fill.element_size = 4;
  EXPECT_EQ(PlanFill(fill, plan), nullptr);
  fill.rank = 70;
  EXPECT_NE(PlanFill(fill, plan), nullptr);
  EXPECT_TRUE(plan.launches().empty());
}

// Random numbers.

// Draws on the host what a device would draw into `tensor`.
const char* DrawAsDevice(Tensor& tensor, int32_t distribution, double a,
                         double b, const Generator::State& state,
                         const RandomRegion& region) {
  sherd_random_v0 random = {};
  random.struct_size = sizeof(random);
  random.distribution = distribution;
  random.dtype = static_cast<int32_t>(tensor.dtype());
  random.rank = static_cast<int32_t>(tensor.dim());
  random.a = a;
  random.b = b;
  random.seed = state.seed;
  random.position = state.position;
  random.data = tensor.data();
  random.sizes = tensor.sizes().data();
  random.strides = tensor.strides().data();
  random.global_sizes = region.global_sizes.data();
  random.offsets = region.offsets.data();
  LaunchPlan plan;
  const char* const wrong = PlanRandom(random, plan);
  if (wrong == nullptr) RunPlan(plan);
  return wrong;
}

struct RandomCase {
  Dims global_sizes, offsets, sizes;
  bool is_transposed = false;
};

Tensor MakeTensor(const RandomCase& test_case, DType dtype) {
  Dims sizes = test_case.sizes;
  if (test_case.is_transposed) std::reverse(sizes.begin(), sizes.end());
  Tensor tensor = *Tensor::Zeros(sizes, {.dtype = dtype});
  if (!test_case.is_transposed) return tensor;
  std::vector<int64_t> order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) {
    order[d] = static_cast<int64_t>(order.size() - 1 - d);
  }
  return *tensor.Permute(order);
}

TEST(ElementPlanTest, DrawsTheSameBitsAsTheHost) {
  const std::vector<RandomCase> cases = {
      {{}, {}, {}},
      {{1}, {0}, {1}},
      {{5000}, {0}, {5000}},
      {{1001}, {3}, {700}},
      {{40, 33}, {0, 0}, {40, 33}},
      {{40, 33}, {5, 7}, {11, 13}},
      {{40, 32}, {5, 6}, {11, 13}},
      {{40, 33}, {2, 9}, {30, 1}},
      {{6, 5, 9}, {1, 2, 3}, {4, 2, 5}},
      {{6, 5, 9}, {1, 2, 3}, {4, 2, 5}, true},
      {{60, 50}, {0, 0}, {60, 50}, true},
      {{4, 4}, {4, 0}, {0, 4}},
  };
  // An odd place in the stream, whose low half is about to wrap.
  const Generator::State state = {0x123456789abcdefULL, 0xffffffffULL};
  for (const DType dtype : {kFloat8E4M3, kFloat8E5M2, kFloat16, kBFloat16,
                            kFloat32, kFloat64, kComplex64, kComplex128}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const RandomCase& test_case = cases[i];
      SCOPED_TRACE(std::string(Name(dtype)) + " case " + std::to_string(i));
      const RandomRegion region = {test_case.global_sizes, test_case.offsets};
      Tensor expected = MakeTensor(test_case, dtype);
      Tensor drawn = MakeTensor(test_case, dtype);
      Generator generator;
      generator.SetState(state);
      ASSERT_THAT(FillUniform(expected, -1.5, 2.25, generator, &region),
                  IsOk());
      ASSERT_EQ(DrawAsDevice(drawn, SHERD_UNIFORM, -1.5, 2.25, state, region),
                nullptr);
      EXPECT_TRUE(drawn.BitwiseEqual(expected))
          << drawn.ToString() << " is not " << expected.ToString();
      generator.SetState(state);
      ASSERT_THAT(FillNormal(expected, 0.5, 2, generator, &region), IsOk());
      ASSERT_EQ(DrawAsDevice(drawn, SHERD_NORMAL, 0.5, 2, state, region),
                nullptr);
      EXPECT_TRUE(drawn.AllClose(expected, 1e-5, 1e-5))
          << drawn.ToString() << " is not " << expected.ToString();
    }
  }
}

TEST(ElementPlanTest, RandomNumbersOfBadArgumentsAreRefused) {
  Tensor tensor = *Tensor::Zeros({4, 4}, {.dtype = kFloat32});
  const Dims global = {4, 4}, small = {3, 4}, origin = {0, 0}, behind = {1, 0},
             before = {-1, 0}, huge = {int64_t{1} << 40, int64_t{1} << 40};
  const auto draw = [&](Tensor& to, int32_t distribution, const Dims& sizes,
                        const Dims& offsets) {
    return DrawAsDevice(to, distribution, 0, 1, {}, {sizes, offsets});
  };
  EXPECT_EQ(draw(tensor, 0, global, origin), nullptr);
  EXPECT_NE(draw(tensor, 2, global, origin), nullptr);
  EXPECT_NE(draw(tensor, 0, small, origin), nullptr);
  EXPECT_NE(draw(tensor, 0, global, behind), nullptr);
  EXPECT_NE(draw(tensor, 0, global, before), nullptr);
  EXPECT_NE(draw(tensor, 0, huge, origin), nullptr);
  Tensor integers = *Tensor::Zeros({4, 4}, {.dtype = kInt32});
  EXPECT_NE(draw(integers, 0, global, origin), nullptr);
}

// Reductions.

// Bytes that are numbers of every kind: zeros of both signs, subnormal ones,
// infinities and NaNs among them.
std::vector<uint8_t> RandomBytes(DType dtype, size_t count,
                                 std::mt19937_64& random) {
  std::vector<uint8_t> bytes(count * SizeOf(dtype) + 32);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      for (size_t i = 0; i < count; ++i) {
        // Numbers that add up, so that not all become infinite.
        if (random() % 8 == 0) continue;
        const int quarters = static_cast<int>(random() % 201) - 100;
        T value;
        if constexpr (std::is_integral_v<T>) {
          value = static_cast<T>(quarters / 4);
        } else {
          value = static_cast<T>(static_cast<float>(quarters) / 4);
        }
        std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
      }
    }
  });
  return bytes;
}

// Whether two elements are the same bits, or NaN both.
template <typename T>
bool SameElement(const T& a, const T& b) {
  if constexpr (std::is_integral_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  } else {
    if (std::memcmp(&a, &b, sizeof(T)) == 0) return true;
    return a != a && b != b;
  }
}
template <typename T>
bool SameElement(const std::complex<T>& a, const std::complex<T>& b) {
  return SameElement(a.real(), b.real()) && SameElement(a.imag(), b.imag());
}

// The first element that differs, or -1.
int64_t FindDifference(DType dtype, const uint8_t* a, const uint8_t* b,
                       size_t count) {
  return DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < count; ++i) {
      T x, y;
      std::memcpy(&x, a + i * sizeof(T), sizeof(T));
      std::memcpy(&y, b + i * sizeof(T), sizeof(T));
      if (!SameElement(x, y)) return static_cast<int64_t>(i);
    }
    return int64_t{-1};
  });
}

void CheckReduce(ReduceOp op, DType dtype, size_t num_ins, size_t count,
                 size_t shift, bool in_place, std::mt19937_64& random) {
  std::vector<std::vector<uint8_t>> inputs;
  std::vector<const void*> ins;
  for (size_t k = 0; k < num_ins; ++k) {
    inputs.push_back(RandomBytes(dtype, count, random));
  }
  for (std::vector<uint8_t>& input : inputs) {
    const size_t base = -reinterpret_cast<uintptr_t>(input.data()) % 16;
    std::memmove(input.data() + base + shift, input.data(),
                 count * SizeOf(dtype));
    ins.push_back(input.data() + base + shift);
  }
  std::vector<uint8_t> expected(count * SizeOf(dtype) + 1);
  Reduce(op, dtype, expected.data(), ins, count, 3);
  std::vector<uint8_t> separate(count * SizeOf(dtype) + 32);
  const size_t base = -reinterpret_cast<uintptr_t>(separate.data()) % 16;
  uint8_t* const out =
      in_place ? const_cast<uint8_t*>(static_cast<const uint8_t*>(ins.back()))
               : separate.data() + base + shift;
  LaunchPlan plan;
  ASSERT_EQ(PlanReduce(static_cast<int32_t>(dtype), static_cast<int32_t>(op),
                       out, ins.data(), static_cast<int32_t>(num_ins), count, 3,
                       /*multiprocessors=*/1, plan),
            nullptr);
  ASSERT_EQ(plan.launches().size(), count == 0 ? 0u : 1u);
  RunPlan(plan);
  EXPECT_EQ(FindDifference(dtype, out, expected.data(), count), -1);
}

TEST(ElementPlanTest, ReducesBitByBitAsTheHostDoes) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  int defined = 0;
  for (int32_t type = 0; type < kNumDTypes; ++type) {
    const DType dtype = static_cast<DType>(type);
    for (int32_t number = 0; number < kNumReduceOps; ++number) {
      const ReduceOp op = static_cast<ReduceOp>(number);
      SCOPED_TRACE(std::string(Name(op)) + " of " + std::string(Name(dtype)));
      if (!CheckReduction(op, dtype).ok()) {
        LaunchPlan plan;
        const void* const in = &plan;
        EXPECT_NE(PlanReduce(type, number, &plan, &in, 1, 1, 1, 1, plan),
                  nullptr);
        continue;
      }
      ++defined;
      CheckReduce(op, dtype, 1, 5, 0, false, random);
      CheckReduce(op, dtype, 2, 1003, 0, false, random);
      CheckReduce(op, dtype, 3, 200, 0, true, random);
      CheckReduce(op, dtype, 3, 50, AlignmentOf(dtype), false, random);
      CheckReduce(op, dtype, 5, 0, 0, false, random);
      CheckReduce(op, dtype, kMaxInlineInputs + 3, 20, 0, false, random);
    }
  }
  EXPECT_GT(defined, 80);
}

TEST(ElementPlanTest, ReductionsOfBadArgumentsAreRefused) {
  LaunchPlan plan;
  alignas(16) uint8_t bytes[64] = {};
  const void* const in = bytes;
  const void* const odd = bytes + 1;
  const int32_t f32 = static_cast<int32_t>(kFloat32);
  const int32_t avg = static_cast<int32_t>(ReduceOp::kAvg);
  EXPECT_EQ(PlanReduce(f32, avg, bytes, &in, 1, 4, 1, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(f32, avg, bytes, &in, 1, 4, 0, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(f32, avg, bytes, &in, 0, 4, 1, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(f32, avg, bytes, &odd, 1, 4, 1, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(17, 0, bytes, &in, 1, 4, 1, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(-1, 0, bytes, &in, 1, 4, 1, 1, plan), nullptr);
  EXPECT_NE(PlanReduce(f32, 8, bytes, &in, 1, 4, 1, 1, plan), nullptr);
  EXPECT_TRUE(plan.launches().empty());
}

}  // namespace
}  // namespace sherd::internal
