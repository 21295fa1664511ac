#include "sherd/backends/cuda/copy_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/device_abi.h"
#include "sherd/testing/emulated_gpu/driver/host_kernels.h"

namespace sherd::internal {
namespace {

using Dims = std::vector<int64_t>;

// A copy and the memory of its two sides.
struct Case {
  Dims sizes, dst_strides, src_strides;
  uint32_t element_size = 1;
  std::vector<unsigned char> dst, src;
  int64_t dst_base = 0, src_base = 0;

  sherd_strided_copy_v0 Get() {
    return {dst.data() + dst_base, src.data() + src_base,
            sizes.data(),          dst_strides.data(),
            src_strides.data(),    static_cast<int32_t>(sizes.size()),
            element_size};
  }

  // Gives both sides memory for all elements, `shift` bytes into an aligned
  // block, and the source bytes that differ.
  void Allocate(int64_t dst_shift, int64_t src_shift, std::mt19937_64& random) {
    const auto allocate = [&](const Dims& strides, int64_t shift,
                              std::vector<unsigned char>& data, int64_t& base) {
      int64_t low = 0, high = 0;
      for (size_t d = 0; d < sizes.size(); ++d) {
        const int64_t last = strides[d] * std::max<int64_t>(0, sizes[d] - 1);
        (last < 0 ? low : high) += last;
      }
      data.assign((high - low + 1) * element_size + 96, 0xee);
      const int64_t aligned =
          -reinterpret_cast<int64_t>(data.data()) & int64_t{15};
      base = aligned + (-low * element_size + 15) / 16 * 16 + shift;
      EXPECT_LE(base + (high + 1) * element_size,
                static_cast<int64_t>(data.size()));
    };
    allocate(dst_strides, dst_shift, dst, dst_base);
    allocate(src_strides, src_shift, src, src_base);
    for (unsigned char& byte : src) {
      byte = static_cast<unsigned char>(random());
    }
  }

  // The expected contents of dst, one element after the other.
  std::vector<unsigned char> Expected() const {
    std::vector<unsigned char> expected = dst;
    if (std::count(sizes.begin(), sizes.end(), 0) > 0) return expected;
    Dims index(sizes.size(), 0);
    while (true) {
      int64_t to = dst_base, from = src_base;
      for (size_t d = 0; d < sizes.size(); ++d) {
        to += index[d] * dst_strides[d] * element_size;
        from += index[d] * src_strides[d] * element_size;
      }
      std::memcpy(&expected[to], &src[from], element_size);
      size_t d = 0;
      while (d < sizes.size() && ++index[d] == sizes[d]) index[d++] = 0;
      if (d == sizes.size()) return expected;
    }
  }
};

// Memory that counts what is written, and accesses that are wrong.
struct CountingMemory {
  std::vector<int>* counts;
  uint64_t first;
  int wrong = 0;

  template <typename Unit>
  Unit Load(uint64_t address) {
    if (address % sizeof(Unit) != 0) ++wrong;
    Unit unit;
    std::memcpy(&unit, reinterpret_cast<const void*>(address), sizeof(unit));
    return unit;
  }
  template <typename Unit>
  void Store(uint64_t address, const Unit& unit) {
    if (address % sizeof(Unit) != 0 || address < first ||
        address + sizeof(Unit) > first + counts->size()) {
      ++wrong;
      return;
    }
    for (size_t i = 0; i < sizeof(Unit); ++i) ++(*counts)[address - first + i];
    std::memcpy(reinterpret_cast<void*>(address), &unit, sizeof(unit));
  }
};

struct Rows {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;
  CountingMemory& memory;

  template <typename Unit, uint32_t kUnits>
  void Run() const {
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      CopyRows<Unit, kUnits>(box, dims, block, thread, memory);
    }
  }
};

struct Tiles {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;
  CountingMemory& memory;

  template <typename Word, uint32_t kSide, uint32_t kLogCells>
  void Run() const {
    std::vector<Word> shared(kSide << kLogCells);
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      LoadTile<Word, kSide, kLogCells>(box, dims, block, thread, shared.data(),
                                       memory);
    }
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      StoreTile<Word, kSide, kLogCells>(box, dims, block, thread, shared.data(),
                                        memory);
    }
  }
};

// Boxes of a launch of any size of parameter.
struct Table {
  std::vector<CopyBox> boxes;
  std::vector<BoxDim> dims;

  Table(LaunchPlan& plan, const KernelLaunch& launch) {
    const unsigned char* at =
        static_cast<const unsigned char*>(plan.params(launch));
    uint32_t counts[2];
    std::memcpy(counts, at, sizeof(counts));
    at = launch.table_bytes > 0
             ? static_cast<const unsigned char*>(plan.table(launch))
             : at + offsetof(SmallCopyParams, table);
    boxes.resize(counts[0]);
    dims.resize(counts[1]);
    std::memcpy(boxes.data(), at, boxes.size() * sizeof(CopyBox));
    std::memcpy(dims.data(), at + boxes.size() * sizeof(CopyBox),
                dims.size() * sizeof(BoxDim));
  }
};

// Runs a plan thread by thread; `counts` are the writes to each byte from
// `first` on.
void RunCounting(LaunchPlan& plan, uint64_t first, std::vector<int>& counts) {
  CountingMemory memory = {&counts, first};
  for (uint64_t i = 0; i < plan.copy_bytes; ++i) {
    memory.Store(plan.copy_dst + i, memory.Load<uint8_t>(plan.copy_src + i));
  }
  for (const KernelLaunch& launch : plan.launches()) {
    const Table table(plan, launch);
    for (uint32_t block = 0; block < launch.grid; ++block) {
      const CopyBox& box =
          table
              .boxes[FindBox(table.boxes.data(),
                             static_cast<uint32_t>(table.boxes.size()), block)];
      const BoxDim* const dims = &table.dims[box.first_dim];
      const uint32_t in_box = block - box.first_block;
      if (IsTile(box.kind)) {
        DispatchTiles(box.kind, Tiles{box, dims, in_box, memory});
      } else {
        DispatchRows(box.kind, Rows{box, dims, in_box, memory});
      }
    }
  }
  EXPECT_EQ(memory.wrong, 0) << "misaligned, or outside";
}

// Runs a plan as an emulated GPU does.
void RunPlan(LaunchPlan& plan) {
  if (plan.copy_bytes > 0) {
    std::memcpy(reinterpret_cast<void*>(plan.copy_dst),
                reinterpret_cast<const void*>(plan.copy_src), plan.copy_bytes);
  }
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

// How often a plan declares that it writes each byte from `first` on.
std::vector<int> WritesOf(LaunchPlan& plan, uint64_t first, size_t size) {
  struct Context {
    uint64_t first;
    std::vector<int> counts;
  } context = {first, std::vector<int>(size, 0)};
  for (const KernelLaunch& launch : plan.launches()) {
    if (launch.table_bytes > 0) {
      plan.SetTable(launch, reinterpret_cast<uint64_t>(plan.table(launch)));
    }
    FindHostKernel(launch.kernel)
        ->visit_accesses(
            plan.params(launch), launch.grid, nullptr,
            [](void* opaque, const KernelAccess& access) {
              Context& to = *static_cast<Context*>(opaque);
              if (!access.is_write) return;
              for (uint64_t i = 0; i < access.bytes; ++i) {
                ++to.counts.at(access.address - to.first + i);
              }
            },
            &context);
  }
  return context.counts;
}

// Plans a case, runs it, and compares with the naive copy; returns the kinds of
// its boxes.
std::set<uint32_t> Check(Case& test_case) {
  const std::vector<unsigned char> expected = test_case.Expected();
  const std::vector<unsigned char> before = test_case.dst;
  const sherd_strided_copy_v0 copy = test_case.Get();
  LaunchPlan plan;
  EXPECT_EQ(PlanCopies(&copy, 1, plan), nullptr);
  EXPECT_LE(plan.launches().size(), 1u);
  std::vector<int> counts(test_case.dst.size(), 0);
  const uint64_t first = reinterpret_cast<uint64_t>(test_case.dst.data());
  RunCounting(plan, first, counts);
  EXPECT_EQ(test_case.dst, expected);
  const int64_t total = std::accumulate(
      test_case.sizes.begin(), test_case.sizes.end(),
      int64_t{test_case.element_size}, std::multiplies<int64_t>());
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), total);
  if (total > 0) {
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 1);
  }
  test_case.dst = before;
  RunPlan(plan);
  EXPECT_EQ(test_case.dst, expected);
  std::set<uint32_t> kinds;
  for (const KernelLaunch& launch : plan.launches()) {
    for (const CopyBox& box : Table(plan, launch).boxes) kinds.insert(box.kind);
  }
  if (!plan.launches().empty()) {
    EXPECT_EQ(WritesOf(plan, first, counts.size()), counts);
  }
  return kinds;
}

Dims Contiguous(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
  }
  return strides;
}

// Strides of a box in a larger array whose dimensions lie in random order, some
// of them backwards.
Dims RandomStrides(const Dims& sizes, bool may_repeat,
                   std::mt19937_64& random) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  Dims strides(sizes.size());
  int64_t stride = random() % 4 == 0 ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    strides[d] = stride;
    stride *= std::max<int64_t>(1, sizes[d]);
    if (random() % 3 == 0) stride += static_cast<int64_t>(random() % 5);
    if (random() % 8 == 0) strides[d] = -strides[d];
    if (may_repeat && random() % 8 == 0) strides[d] = 0;
  }
  return strides;
}

TEST(CopyPlanTest, RandomBoxesAreCopiedAsElementByElement) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::vector<uint32_t> element_sizes = {1, 2, 4,  8,  16, 3,
                                               5, 6, 12, 24, 32, 40};
  for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
    Case test_case;
    const size_t rank = random() % 6;
    int64_t elements = 1;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t most = std::max<int64_t>(1, 8000 / elements);
      const int64_t size =
          1 + static_cast<int64_t>(random() % std::min<int64_t>(most, 99));
      test_case.sizes.push_back(size);
      elements *= size;
    }
    test_case.element_size = element_sizes[random() % element_sizes.size()];
    test_case.dst_strides = RandomStrides(test_case.sizes, false, random);
    test_case.src_strides = RandomStrides(test_case.sizes, true, random);
    const int64_t dst_shift = random() % 3 == 0 ? random() % 16 : 0;
    const int64_t src_shift = random() % 3 == 0 ? random() % 16 : 0;
    test_case.Allocate(dst_shift, src_shift, random);
    Check(test_case);
  }
}

TEST(CopyPlanTest, TranspositionsOfEveryElementSizeAreTiles) {
  std::mt19937_64 random(1);
  struct Row {
    uint32_t element_size;
    int64_t rows, columns;
    int64_t dst_pad, src_pad;
    uint32_t kind;
  };
  const Row rows[] = {
      {16, 70, 45, 0, 0, kTile16},    {8, 70, 45, 0, 0, kTile8},
      {4, 70, 45, 0, 0, kTile4},      {4, 200, 9, 0, 0, kTile4},
      {4, 9, 300, 0, 0, kTile4},      {2, 130, 70, 0, 0, kTile2By4},
      {2, 131, 70, 0, 0, kTile2},     {2, 130, 70, 1, 0, kTile2},
      {2, 130, 70, 0, 1, kTile2},     {2, 130, 70, 2, 4, kTile2By4},
      {1, 140, 136, 0, 0, kTile1By4}, {1, 140, 135, 0, 0, kTile1},
      {1, 500, 32, 0, 0, kTile1By4},  {1, 32, 500, 4, 0, kTile1By4},
      {4, 70, 5, 0, 0, kRows4},       {4, 12, 12, 0, 0, kRows4},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::to_string(row.element_size) + " bytes, " +
                 std::to_string(row.rows) + " x " +
                 std::to_string(row.columns));
    Case test_case;
    test_case.element_size = row.element_size;
    test_case.sizes = {3, row.rows, row.columns};
    const int64_t pitch = row.rows + row.dst_pad;
    const int64_t src_pitch = row.columns + row.src_pad;
    test_case.src_strides = {src_pitch * row.rows, src_pitch, 1};
    test_case.dst_strides = {pitch * row.columns, 1, pitch};
    test_case.Allocate(0, 0, random);
    EXPECT_EQ(Check(test_case), std::set<uint32_t>({row.kind}));
  }
}

TEST(CopyPlanTest, UnitsAreAsWideAsBothSidesAreAligned) {
  std::mt19937_64 random(2);
  struct Row {
    uint32_t element_size;
    int64_t columns, pitch, dst_shift, src_shift;
    uint32_t kind;
  };
  const Row rows[] = {
      {4, 8, 12, 0, 0, kRows16}, {4, 8, 12, 8, 0, kRows8},
      {4, 8, 12, 0, 4, kRows4},  {4, 8, 11, 0, 0, kRows4},
      {2, 8, 11, 0, 0, kRows2},  {1, 8, 9, 0, 0, kRows1},
      {4, 8, 12, 0, 2, kRows2},  {8, 3, 4, 0, 0, kRows8},
      {16, 3, 4, 0, 0, kRows16}, {3, 16, 32, 0, 0, kRows16},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::PrintToString(row.kind) + " " +
                 std::to_string(row.pitch));
    Case test_case;
    test_case.element_size = row.element_size;
    test_case.sizes = {9, row.columns};
    test_case.src_strides = {row.pitch, 1};
    test_case.dst_strides = {row.columns, 1};
    test_case.Allocate(row.dst_shift, row.src_shift, random);
    EXPECT_EQ(Check(test_case), std::set<uint32_t>({row.kind}));
  }
}

TEST(CopyPlanTest, OneRunOfBytesIsACopyAndNotALaunch) {
  std::mt19937_64 random(3);
  for (const Dims& sizes : {Dims{}, Dims{7}, Dims{3, 1, 5, 4}, Dims{2, 0, 3}}) {
    Case test_case;
    test_case.element_size = 4;
    test_case.sizes = sizes;
    test_case.dst_strides = test_case.src_strides = Contiguous(sizes);
    test_case.Allocate(0, 4, random);
    EXPECT_TRUE(Check(test_case).empty());
  }
}

TEST(CopyPlanTest, SixtyFourDimensionsAreMergedOrWalked) {
  std::mt19937_64 random(4);
  Case test_case;
  test_case.element_size = 2;
  test_case.sizes.assign(64, 1);
  for (int d = 0; d < 12; ++d) test_case.sizes[5 * d + 1] = 2;
  test_case.src_strides = Contiguous(test_case.sizes);
  test_case.dst_strides.assign(64, 77);
  // Bits in reverse order: nothing merges.
  for (int d = 0; d < 12; ++d) {
    test_case.dst_strides[5 * d + 1] = int64_t{1} << d;
  }
  test_case.Allocate(0, 0, random);
  EXPECT_FALSE(Check(test_case).empty());
  test_case.dst_strides = test_case.src_strides;
  EXPECT_TRUE(Check(test_case).empty());
}

// Copies many boxes at once: rows of a matrix to as many places.
TEST(CopyPlanTest, ManyBoxesAreOneLaunchWhateverTheirNumberAndKind) {
  std::mt19937_64 random(5);
  for (const int peers : {2, 8, 15, 60, 71, 400}) {
    for (const bool is_mixed : {false, true}) {
      SCOPED_TRACE(std::to_string(peers) + (is_mixed ? " mixed" : " alike"));
      std::vector<Case> cases(peers);
      std::vector<sherd_strided_copy_v0> copies;
      std::vector<std::vector<unsigned char>> expected;
      for (int i = 0; i < peers; ++i) {
        Case& test_case = cases[i];
        test_case.element_size = 4;
        test_case.sizes = {5, 8 + (is_mixed ? i % 3 : 0)};
        test_case.src_strides = {13, 1};
        test_case.dst_strides = Contiguous(test_case.sizes);
        if (is_mixed && i % 4 == 0) {
          test_case.sizes = {60, 40};
          test_case.src_strides = {40, 1};
          test_case.dst_strides = {1, 60};
        }
        if (is_mixed && i % 7 == 1) test_case.sizes[0] = 0;
        test_case.Allocate(0, 0, random);
        copies.push_back(test_case.Get());
        expected.push_back(test_case.Expected());
      }
      LaunchPlan plan;
      ASSERT_EQ(PlanCopies(copies.data(), copies.size(), plan), nullptr);
      ASSERT_EQ(plan.launches().size(), 1u);
      EXPECT_EQ(plan.launches()[0].table_bytes > 0,
                peers >= (is_mixed ? 60 : 71));
      RunPlan(plan);
      for (int i = 0; i < peers; ++i) EXPECT_EQ(cases[i].dst, expected[i]);
    }
  }
}

// A box of more than 2^31 elements, looked at here and there.
TEST(CopyPlanTest, IndicesBeyondTwoToTheThirtyOneAreRight) {
  constexpr int64_t kRows = 70000, kColumns = 90001, kDepth = 3;
  constexpr uint64_t kDst = uint64_t{1} << 44, kSrc = uint64_t{1} << 45;
  std::mt19937_64 random(6);
  for (const bool is_transposed : {false, true}) {
    const Dims sizes = {kDepth, kRows, kColumns};
    const Dims src_strides = {kRows * kColumns * 2, kColumns * 2, 2};
    // From every second column to rows of memory, or to columns.
    const Dims dst_strides =
        is_transposed ? Dims{kRows * kColumns, 1, kRows} : Contiguous(sizes);
    const Dims unit_strides = {kRows * kColumns, kColumns, 1};
    const sherd_strided_copy_v0 copy = {
        reinterpret_cast<void*>(kDst),
        reinterpret_cast<const void*>(kSrc),
        sizes.data(),
        dst_strides.data(),
        is_transposed ? unit_strides.data() : src_strides.data(),
        3,
        4};
    LaunchPlan plan;
    ASSERT_EQ(PlanCopies(&copy, 1, plan), nullptr);
    ASSERT_EQ(plan.launches().size(), 1u);
    const Table table(plan, plan.launches()[0]);
    uint64_t units = 0;
    for (const CopyBox& box : table.boxes) {
      EXPECT_LT(box.units, kIndexLimit);
      const BoxDim* const dims = &table.dims[box.first_dim];
      if (is_transposed) {
        units += uint64_t{dims[0].size.divisor} * dims[1].size.divisor *
                 (box.num_dims > 4 ? dims[4].size.divisor : 1);
      } else {
        units += box.units;
      }
      for (int i = 0; i < 200; ++i) {
        const uint32_t unit = static_cast<uint32_t>(random() % box.units);
        Offsets offsets = {};
        if (is_transposed) {
          const Tile tile = FindTile(box, dims, unit, 1);
          offsets = {static_cast<int64_t>(tile.dst - box.dst),
                     static_cast<int64_t>(tile.src - box.src)};
        } else {
          offsets = Locate(unit, dims, box.num_dims);
        }
        const int64_t dst = (box.dst + offsets.dst - kDst) / 4;
        const int64_t plane = dst / (kRows * kColumns);
        const int64_t rest = dst % (kRows * kColumns);
        const int64_t row = is_transposed ? rest % kRows : rest / kColumns;
        const int64_t column = is_transposed ? rest / kRows : rest % kColumns;
        int64_t src = (plane * kRows + row) * kColumns + column;
        if (!is_transposed) src *= 2;
        EXPECT_EQ(box.src + offsets.src - kSrc, static_cast<uint64_t>(src * 4));
      }
    }
    EXPECT_EQ(units, static_cast<uint64_t>(kRows * kColumns * kDepth));
  }
}

TEST(CopyPlanTest, DivisionByMultiplicationIsExact) {
  std::mt19937_64 random(7);
  std::vector<uint32_t> numbers = {1,
                                   2,
                                   3,
                                   5,
                                   7,
                                   10,
                                   641,
                                   65535,
                                   65536,
                                   65537,
                                   (1u << 30) - 1,
                                   1u << 30,
                                   (1u << 30) + 1,
                                   (1u << 31) - 2,
                                   (1u << 31) - 1};
  for (int i = 0; i < 300; ++i) {
    numbers.push_back(1 + static_cast<uint32_t>(random() >> 33) %
                              ((1u << (1 + i % 31)) - 1));
  }
  for (const uint32_t divisor : numbers) {
    const Divisor by = MakeDivisor(divisor);
    const auto check = [&](uint64_t n) {
      if (n >= kIndexLimit) return;
      EXPECT_EQ(Divide(static_cast<uint32_t>(n), by), n / divisor)
          << n << " / " << divisor;
    };
    for (const uint64_t n : numbers) {
      check(n);
      check(n * divisor);
      check(n * divisor - 1);
      check(kIndexLimit - n);
    }
    check(0);
  }
}

TEST(CopyPlanTest, ArgumentsThatMakeNoBoxAreRefused) {
  unsigned char bytes[64] = {};
  const int64_t sizes[2] = {2, 2}, strides[2] = {2, 1}, negative[2] = {2, -1};
  const int64_t huge[2] = {int64_t{1} << 40, int64_t{1} << 40};
  const int64_t far[2] = {INT64_MIN, 1}, zero[2] = {2, 0};
  const sherd_strided_copy_v0 bad[] = {
      {bytes, bytes + 32, negative, strides, strides, 2, 1},
      {bytes, bytes + 32, huge, strides, strides, 2, 1},
      {bytes, bytes + 32, sizes, far, strides, 2, 1},
      {bytes, bytes + 32, sizes, huge, strides, 2, 1u << 31},
      {bytes, bytes + 32, sizes, strides, nullptr, 2, 1},
      {bytes, bytes + 32, nullptr, strides, strides, 2, 1},
      {bytes, bytes + 32, sizes, strides, strides, 65, 1},
      {bytes, bytes + 32, sizes, strides, strides, -1, 1},
      {bytes, bytes + 32, sizes, strides, strides, 2, 0},
  };
  LaunchPlan plan;
  for (const sherd_strided_copy_v0& copy : bad) {
    EXPECT_NE(PlanCopies(&copy, 1, plan), nullptr) << &copy - bad;
    EXPECT_TRUE(plan.launches().empty());
    EXPECT_EQ(plan.copy_bytes, 0u);
  }
  // No elements: nothing is looked at.
  const sherd_strided_copy_v0 empty = {nullptr, nullptr, zero, far, far, 2, 1};
  EXPECT_EQ(PlanCopies(&empty, 1, plan), nullptr);
  EXPECT_EQ(PlanCopies(nullptr, 0, plan), nullptr);
  EXPECT_TRUE(plan.launches().empty());
}

}  // namespace
}  // namespace sherd::internal
