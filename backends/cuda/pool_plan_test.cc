#include "sherd/backends/cuda/pool_plan.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/cuda/pool_cases.h"
#include "sherd/backends/device_abi.h"
#include "sherd/testing/emulated_gpu/driver/host_kernels.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::PoolCase;
using ::sherd::testing::RandomPoolCase;

sherd_pool_rows_v0 RequestOf(const DeviceRowPooling& pooling) {
  return {.struct_size = sizeof(sherd_pool_rows_v0),
          .mode = static_cast<int32_t>(pooling.mode),
          .table_dtype = static_cast<int32_t>(pooling.table_dtype),
          .out_dtype = static_cast<int32_t>(pooling.out_dtype),
          .out = pooling.out,
          .out_stride = pooling.out_stride,
          .table = pooling.table,
          .row_stride = pooling.row_stride,
          .row_alignment = pooling.row_alignment,
          .columns = pooling.columns,
          .bags = pooling.bags,
          .ends = pooling.ends,
          .rows = pooling.rows,
          .weights = pooling.weights,
          .divisors = pooling.divisors};
}

PoolParams ParamsOf(LaunchPlan& plan, size_t launch) {
  PoolParams params;
  std::memcpy(&params, plan.params(plan.launches()[launch]), sizeof(params));
  return params;
}

// Which bytes of some memory a launch declares to access.
struct Declared {
  const std::vector<std::byte>* memory;
  bool is_write;
  std::vector<bool> bytes;

  static void Visit(void* context, const KernelAccess& access) {
    auto& self = *static_cast<Declared*>(context);
    const auto begin = reinterpret_cast<uint64_t>(self.memory->data());
    if (access.is_write != self.is_write || access.address < begin ||
        access.address >= begin + self.memory->size()) {
      return;
    }
    for (uint64_t i = 0; i < access.bytes; ++i) {
      self.bytes.at(access.address - begin + i) = true;
    }
  }
};

std::vector<bool> DeclaredOf(LaunchPlan& plan,
                             const std::vector<std::byte>& memory,
                             bool is_write) {
  Declared declared = {&memory, is_write, std::vector<bool>(memory.size())};
  for (const KernelLaunch& launch : plan.launches()) {
    FindHostKernel(launch.kernel)
        ->visit_accesses(plan.params(launch), launch.grid, nullptr,
                         &Declared::Visit, &declared);
  }
  return declared.bytes;
}

// The bytes of the rows that bags name, and of the bags.
void CheckDeclared(PoolCase& c, LaunchPlan& plan) {
  std::vector<bool> read(c.table.size());
  std::vector<bool> written(c.out.size());
  const auto mark = [&](std::vector<bool>& bytes, size_t at, size_t count) {
    for (size_t i = 0; i < count; ++i) bytes.at(at + i) = true;
  };
  const auto columns = static_cast<size_t>(c.pooling.columns);
  for (const int64_t row : c.rows) {
    if (plan.launches().empty()) break;
    mark(read, c.table_skip + static_cast<size_t>(row * c.pooling.row_stride),
         columns * SizeOf(c.pooling.table_dtype));
  }
  for (int64_t b = 0; b < c.pooling.bags; ++b) {
    mark(written, c.out_skip + static_cast<size_t>(b * c.pooling.out_stride),
         columns * SizeOf(c.pooling.out_dtype));
  }
  EXPECT_TRUE(DeclaredOf(plan, c.table, /*is_write=*/false) == read);
  EXPECT_TRUE(DeclaredOf(plan, c.out, /*is_write=*/true) == written);
}

TEST(PoolPlanTest, RandomCasesEqualTheDefinition) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  int vectors = 0;
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    PoolCase c = RandomPoolCase(random);
    SCOPED_TRACE(c.ToText());
    std::vector<int64_t> rows = c.RowsFor(c.table.data());
    LaunchPlan plan;
    ASSERT_EQ(PlanPoolRows(RequestOf(c.At({.table = c.table.data(),
                                           .out = c.out.data(),
                                           .rows = rows.data(),
                                           .ends = c.ends.data(),
                                           .divisors = c.divisors.data(),
                                           .weights = c.weights.data()})),
                           plan),
              nullptr);
    CheckDeclared(c, plan);
    for (const KernelLaunch& launch : plan.launches()) {
      const HostKernel* const kernel = FindHostKernel(launch.kernel);
      ASSERT_NE(kernel, nullptr) << launch.kernel;
      ASSERT_EQ(kernel->params_size, launch.params_size);
      kernel->run(plan.params(launch), launch.grid, nullptr, nullptr);
      vectors += ParamsOf(plan, 0).is_vector != 0 ? 1 : 0;
    }
    EXPECT_EQ(FindDifference(c, c.out), -1);
  }
  EXPECT_GT(vectors, 100);
}

alignas(16) std::byte memory[64];

// 2 bags of 4 columns of float32 by number.
sherd_pool_rows_v0 ValidRequest() {
  static int64_t indices[2];
  sherd_pool_rows_v0 pool = {};
  pool.struct_size = sizeof(pool);
  pool.mode = SHERD_POOL_SUM;
  pool.table_dtype = SHERD_FLOAT32;
  pool.out_dtype = SHERD_FLOAT32;
  pool.out = memory;
  pool.out_stride = 16;
  pool.table = memory + 32;
  pool.row_stride = 16;
  pool.row_alignment = 16;
  pool.columns = 4;
  pool.bags = 2;
  pool.ends = indices;
  pool.rows = indices;
  return pool;
}

TEST(PoolPlanTest, SoManyBagsThatALaunchCannotCountTheirUnitsTakeSeveral) {
  sherd_pool_rows_v0 pool = ValidRequest();
  pool.columns = 3;
  pool.bags = (int64_t{5} << 31) / 3;
  LaunchPlan plan;
  ASSERT_EQ(PlanPoolRows(pool, plan), nullptr);
  ASSERT_EQ(plan.launches().size(), 6u);
  uint64_t next = 0;
  for (size_t i = 0; i < plan.launches().size(); ++i) {
    const PoolParams params = ParamsOf(plan, i);
    EXPECT_EQ(params.first_bag, next);
    next += params.num_bags;
    const uint64_t threads = uint64_t{plan.launches()[i].grid} * kThreads;
    EXPECT_LE(threads, kIndexLimit);
    EXPECT_GE(threads, uint64_t{params.num_bags} * 3);
  }
  EXPECT_EQ(next, static_cast<uint64_t>(pool.bags));

  // Parts of the bags compute what all of them do.
  std::mt19937_64 random(20240607);
  PoolCase c = RandomPoolCase(random);
  while (c.pooling.bags < 5 || c.ends.empty() || c.pooling.columns == 0) {
    c = RandomPoolCase(random);
  }
  std::vector<int64_t> rows = c.RowsFor(c.table.data());
  ASSERT_EQ(PlanPoolRows(RequestOf(c.At({.table = c.table.data(),
                                         .out = c.out.data(),
                                         .rows = rows.data(),
                                         .ends = c.ends.data(),
                                         .divisors = c.divisors.data(),
                                         .weights = c.weights.data()})),
                         plan),
            nullptr);
  ASSERT_EQ(plan.launches().size(), 1u);
  const KernelLaunch& launch = plan.launches()[0];
  PoolParams part = ParamsOf(plan, 0);
  const uint64_t bags = part.num_bags;
  for (const auto& [first, last] :
       {std::pair<uint64_t, uint64_t>{0, 2}, {2, 3}, {3, bags}}) {
    part.first_bag = first;
    part.num_bags = static_cast<uint32_t>(last - first);
    FindHostKernel(launch.kernel)->run(&part, launch.grid, nullptr, nullptr);
  }
  EXPECT_EQ(FindDifference(c, c.out), -1);
}

TEST(PoolPlanTest, BadArgumentsAreRefused) {
  struct Bad {
    const char* name;
    std::function<void(sherd_pool_rows_v0&)> change;
    const char* why;
  };
  constexpr char kDTypes[] = "dtypes that are not pooled";
  constexpr char kUnaligned[] = "memory that is not aligned to its elements";
  const Bad bads[] = {
      {"integers", [](auto& p) { p.table_dtype = p.out_dtype = SHERD_INT32; },
       kDTypes},
      {"a dtype that there is not", [](auto& p) { p.table_dtype = 99; },
       kDTypes},
      {"float64 to float32", [](auto& p) { p.table_dtype = SHERD_FLOAT64; },
       kDTypes},
      {"16 bits to other 16",
       [](auto& p) {
         p.table_dtype = SHERD_FLOAT16;
         p.out_dtype = SHERD_BFLOAT16;
       },
       kDTypes},
      {"a mode below", [](auto& p) { p.mode = -1; },
       "a mode that there is not"},
      {"a mode above", [](auto& p) { p.mode = 4; }, "a mode that there is not"},
      {"a sum without ends", [](auto& p) { p.ends = nullptr; },
       "ends of bags with rows that are not pooled, or none of others"},
      {"copies with ends", [](auto& p) { p.mode = SHERD_POOL_NONE; },
       "ends of bags with rows that are not pooled, or none of others"},
      {"copies into another dtype",
       [](auto& p) {
         p.mode = SHERD_POOL_NONE;
         p.ends = nullptr;
         p.out_dtype = SHERD_FLOAT16;
       },
       "rows that are copied into another dtype"},
      {"a weighted maximum",
       [](auto& p) {
         p.mode = SHERD_POOL_MAX;
         p.weights = memory;
       },
       "weights of another mode than the sum"},
      {"a divided sum", [](auto& p) { p.divisors = p.ends; },
       "divisors of another mode than the mean"},
      {"negative columns", [](auto& p) { p.columns = -1; }, "a negative size"},
      {"negative bags", [](auto& p) { p.bags = -1; }, "a negative size"},
      {"rows less aligned than elements", [](auto& p) { p.row_alignment = 2; },
       kUnaligned},
      {"an alignment that is no power of two",
       [](auto& p) { p.row_alignment = 12; }, kUnaligned},
      {"an odd result", [](auto& p) { p.out = memory + 1; }, kUnaligned},
      {"an odd stride", [](auto& p) { p.out_stride = 18; }, kUnaligned},
      {"odd weights", [](auto& p) { p.weights = memory + 2; }, kUnaligned},
      {"odd rows",
       [](auto& p) { p.rows = reinterpret_cast<const int64_t*>(memory + 4); },
       kUnaligned},
      {"rows of the result that overlap", [](auto& p) { p.out_stride = 12; },
       "rows of the result that overlap"},
      {"a negative stride of the result", [](auto& p) { p.out_stride = -16; },
       "rows of the result that overlap"},
      {"a row of more bytes than there are",
       [](auto& p) { p.columns = INT64_MAX; },
       "rows of the result that overlap"},
      {"more columns than a launch counts",
       [](auto& p) {
         p.columns = int64_t{1} << 33;
         p.out_stride = int64_t{1} << 35;
       },
       "more columns than a launch can count"},
  };
  LaunchPlan plan;
  for (const Bad& bad : bads) {
    SCOPED_TRACE(bad.name);
    sherd_pool_rows_v0 pool = ValidRequest();
    ASSERT_EQ(PlanPoolRows(pool, plan), nullptr);
    EXPECT_EQ(plan.launches().size(), 1u);
    bad.change(pool);
    EXPECT_STREQ(PlanPoolRows(pool, plan), bad.why);
    EXPECT_TRUE(plan.launches().empty());
  }
}

}  // namespace
}  // namespace sherd::internal
