#include "sherd/testing/emulated_gpu/driver/host_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/element_math.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/pool_math.h"

namespace sherd::internal {
namespace {

// As a GPU has it: an access that is not aligned ends everything.
struct HostMemory {
  template <typename Unit>
  static void* Check(uint64_t address) {
    if (address % sizeof(Unit) != 0) {
      std::fprintf(stderr, "a kernel's access to %zu bytes is misaligned: %p\n",
                   sizeof(Unit), reinterpret_cast<void*>(address));
      std::abort();
    }
    return reinterpret_cast<void*>(address);
  }

  template <typename Unit>
  Unit Load(uint64_t address) {
    Unit unit;
    std::memcpy(&unit, Check<Unit>(address), sizeof(unit));
    return unit;
  }
  template <typename Unit>
  void Store(uint64_t address, const Unit& unit) {
    std::memcpy(Check<Unit>(address), &unit, sizeof(unit));
  }
};

uint64_t Translate(AddressTranslator translate, void* context,
                   uint64_t address) {
  return translate == nullptr
             ? address
             : reinterpret_cast<uint64_t>(translate(context, address));
}

// Boxes and dimensions of a launch, copied from where the kernel has them.
struct Boxes {
  std::vector<CopyBox> boxes;
  std::vector<BoxDim> dims;

  Boxes(const void* table, uint32_t num_boxes, uint32_t num_dims)
      : boxes(num_boxes), dims(num_dims) {
    const size_t bytes = num_boxes * sizeof(CopyBox);
    std::memcpy(boxes.data(), table, bytes);
    std::memcpy(dims.data(), static_cast<const unsigned char*>(table) + bytes,
                num_dims * sizeof(BoxDim));
  }

  const BoxDim* DimsOf(const CopyBox& box) const {
    return dims.data() + box.first_dim;
  }
};

// Where a launch has its table in place of its parameter, or 0.
template <typename Params>
uint64_t TableOf(const Params& params) {
  if constexpr (std::is_same_v<Params, RandomParams>) {
    return 0;
  } else {
    return params.table_address;
  }
}

template <typename Params>
Boxes BoxesOf(const Params& params, AddressTranslator translate,
              void* context) {
  const uint64_t table = TableOf(params);
  return Boxes(table == 0 ? static_cast<const void*>(params.table)
                          : reinterpret_cast<const void*>(
                                Translate(translate, context, table)),
               params.num_boxes, params.num_dims);
}

// The memory of one side of a box.
class Ranges {
 public:
  Ranges(uint64_t address, uint64_t bytes) : address_(address), run_(bytes) {}

  void Add(const BoxDim& dim, int64_t stride) {
    const int64_t size = dim.size.divisor;
    if (size == 1 || stride == 0) return;
    if (stride < 0) {
      address_ += static_cast<uint64_t>((size - 1) * stride);
      stride = -stride;
    }
    dims_.emplace_back(static_cast<uint64_t>(stride),
                       static_cast<uint64_t>(size));
  }

  // Calls visit for each run of memory.
  void Visit(bool is_write, KernelAccessVisitor visit, void* context) {
    std::sort(dims_.begin(), dims_.end());
    size_t first = 0;
    for (; first < dims_.size() && dims_[first].first <= run_; ++first) {
      run_ += (dims_[first].second - 1) * dims_[first].first;
    }
    std::vector<uint64_t> index(dims_.size(), 0);
    uint64_t at = address_;
    while (true) {
      visit(context, {at, run_, is_write});
      size_t d = first;
      for (; d < dims_.size(); ++d) {
        at += dims_[d].first;
        if (++index[d] < dims_[d].second) break;
        at -= dims_[d].first * dims_[d].second;
        index[d] = 0;
      }
      if (d == dims_.size()) return;
    }
  }

 private:
  uint64_t address_;
  uint64_t run_;
  // Stride and size.
  std::vector<std::pair<uint64_t, uint64_t>> dims_;
};

// Copies and fills.

struct RowsRunner {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;

  template <typename Unit, uint32_t kUnits>
  void Run() const {
    HostMemory memory;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      CopyRows<Unit, kUnits>(box, dims, block, thread, memory);
    }
  }
};

struct FillRunner {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;

  template <typename Unit, uint32_t kUnits>
  void Run() const {
    HostMemory memory;
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      FillRows<Unit, kUnits>(box, dims, block, thread, memory);
    }
  }
};

struct TileRunner {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;

  template <typename Word, uint32_t kSide, uint32_t kLogCells>
  void Run() const {
    static_assert((kSide << kLogCells) * sizeof(Word) <= kTileBytes);
    HostMemory memory;
    Word shared[kSide << kLogCells] = {};
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      LoadTile<Word, kSide, kLogCells>(box, dims, block, thread, shared,
                                       memory);
    }
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      StoreTile<Word, kSide, kLogCells>(box, dims, block, thread, shared,
                                        memory);
    }
  }
};

template <typename Params, bool kIsFill>
void RunCopies(const void* params, uint32_t grid, AddressTranslator translate,
               void* context) {
  Params copy;
  std::memcpy(&copy, params, sizeof(copy));
  Boxes boxes = BoxesOf(copy, translate, context);
  for (CopyBox& box : boxes.boxes) {
    box.dst = Translate(translate, context, box.dst);
    if (!kIsFill) box.src = Translate(translate, context, box.src);
  }
  for (uint32_t block = 0; block < grid; ++block) {
    const uint32_t number = FindBox(boxes.boxes.data(), copy.num_boxes, block);
    const CopyBox& box = boxes.boxes[number];
    const BoxDim* const dims = boxes.DimsOf(box);
    const uint32_t in_box = block - box.first_block;
    if (kIsFill) {
      DispatchRows(box.kind, FillRunner{box, dims, in_box});
    } else if (IsTile(box.kind)) {
      DispatchTiles(box.kind, TileRunner{box, dims, in_box});
    } else {
      DispatchRows(box.kind, RowsRunner{box, dims, in_box});
    }
  }
}

template <typename Params, bool kIsFill>
void VisitCopies(const void* params, uint32_t /*grid*/,
                 AddressTranslator translate, KernelAccessVisitor visit,
                 void* context) {
  Params copy;
  std::memcpy(&copy, params, sizeof(copy));
  if (copy.table_address != 0) {
    visit(context,
          {copy.table_address,
           copy.num_boxes * sizeof(CopyBox) + copy.num_dims * sizeof(BoxDim),
           /*is_write=*/false});
  }
  const Boxes boxes = BoxesOf(copy, translate, context);
  for (const CopyBox& box : boxes.boxes) {
    const BoxDim* const dims = boxes.DimsOf(box);
    for (const bool is_write : {false, true}) {
      if (kIsFill && !is_write) continue;
      Ranges ranges(is_write ? box.dst : box.src, UnitBytes(box.kind));
      for (uint32_t d = 0; d < box.num_dims; ++d) {
        if (IsTile(box.kind) && (d == 2 || d == 3)) continue;
        ranges.Add(dims[d], is_write ? dims[d].dst_stride : dims[d].src_stride);
      }
      ranges.Visit(is_write, visit, context);
    }
  }
}

// Random numbers.

struct RandomRunner {
  const CopyBox& box;
  const BoxDim* dims;
  uint32_t block;
  RandomStream stream;
  int32_t distribution;
  double a;
  double b;

  template <typename T>
  void Run() const {
    HostMemory memory;
    const UniformDraw<T> uniform(a, b);
    const NormalDraw<T> normal(a, b);
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      if (distribution == 0) {
        RandomRows<T>(stream, uniform, box, dims, block, thread, memory);
      } else {
        RandomRows<T>(stream, normal, box, dims, block, thread, memory);
      }
    }
  }
};

void RunRandom(const void* params, uint32_t grid, AddressTranslator translate,
               void* context) {
  RandomParams random;
  std::memcpy(&random, params, sizeof(random));
  Boxes boxes = BoxesOf(random, translate, context);
  for (CopyBox& box : boxes.boxes) {
    box.dst = Translate(translate, context, box.dst);
  }
  for (uint32_t block = 0; block < grid; ++block) {
    const CopyBox& box =
        boxes.boxes[FindBox(boxes.boxes.data(), random.num_boxes, block)];
    DispatchReal(random.dtype, RandomRunner{box,
                                            boxes.DimsOf(box),
                                            block - box.first_block,
                                            {random.seed, random.position},
                                            random.distribution,
                                            random.a,
                                            random.b});
  }
}

struct SizeOfReal {
  uint64_t& bytes;

  template <typename T>
  void Run() const {
    bytes = sizeof(T);
  }
};

void VisitRandom(const void* params, uint32_t /*grid*/,
                 AddressTranslator translate, KernelAccessVisitor visit,
                 void* context) {
  RandomParams random;
  std::memcpy(&random, params, sizeof(random));
  uint64_t bytes = 0;
  DispatchReal(random.dtype, SizeOfReal{bytes});
  const Boxes boxes = BoxesOf(random, translate, context);
  for (const CopyBox& box : boxes.boxes) {
    const BoxDim* const dims = boxes.DimsOf(box);
    Ranges ranges(box.dst, bytes);
    for (uint32_t d = 0; d < box.num_dims; ++d) {
      if (d != 1) ranges.Add(dims[d], dims[d].dst_stride);
    }
    ranges.Visit(/*is_write=*/true, visit, context);
  }
}

// Reductions.

std::vector<uint64_t> InputsOf(const ReduceParams& params,
                               AddressTranslator translate, void* context) {
  std::vector<uint64_t> inputs(params.num_ins);
  const void* const from = params.inputs_table == 0
                               ? static_cast<const void*>(params.inputs)
                               : reinterpret_cast<const void*>(Translate(
                                     translate, context, params.inputs_table));
  std::memcpy(inputs.data(), from, params.num_ins * sizeof(inputs[0]));
  return inputs;
}

template <typename T>
void RunReduce(const void* params, uint32_t grid, AddressTranslator translate,
               void* context) {
  ReduceParams reduce;
  std::memcpy(&reduce, params, sizeof(reduce));
  std::vector<uint64_t> inputs = InputsOf(reduce, translate, context);
  for (uint64_t& input : inputs) input = Translate(translate, context, input);
  reduce.out = Translate(translate, context, reduce.out);
  HostMemory memory;
  const uint64_t threads = uint64_t{grid} * kThreads;
  for (uint64_t thread = 0; thread < threads; ++thread) {
    ReduceThread<T>(reduce, inputs.data(), thread, threads, memory);
  }
}

template <typename T>
void VisitReduce(const void* params, uint32_t /*grid*/,
                 AddressTranslator translate, KernelAccessVisitor visit,
                 void* context) {
  ReduceParams reduce;
  std::memcpy(&reduce, params, sizeof(reduce));
  const uint64_t bytes = reduce.count * sizeof(T);
  if (reduce.inputs_table != 0) {
    visit(context, {reduce.inputs_table, reduce.num_ins * sizeof(uint64_t),
                    /*is_write=*/false});
  }
  for (const uint64_t input : InputsOf(reduce, translate, context)) {
    visit(context, {input, bytes, /*is_write=*/false});
  }
  visit(context, {reduce.out, bytes, /*is_write=*/true});
}

// Pooled rows.

PoolParams PoolParamsOf(const void* params) {
  PoolParams pool;
  std::memcpy(&pool, params, sizeof(pool));
  return pool;
}

// The elements [first, last) of an array of a launch, at their positions.
std::vector<int64_t> ReadArray(uint64_t array, uint64_t first, uint64_t last,
                               AddressTranslator translate, void* context) {
  std::vector<int64_t> values(last);
  if (first == last) return values;
  const uint64_t from =
      Translate(translate, context, array + first * sizeof(int64_t));
  std::memcpy(&values[first], reinterpret_cast<const void*>(from),
              (last - first) * sizeof(int64_t));
  return values;
}

// The rows of a launch, and their addresses: those from first on.
struct PooledRows {
  uint64_t first = 0;
  std::vector<int64_t> ends;
  std::vector<int64_t> addresses;

  PooledRows(const PoolParams& pool, AddressTranslator translate,
             void* context) {
    const uint64_t last_bag = pool.first_bag + pool.num_bags;
    uint64_t last = last_bag;
    first = pool.first_bag;
    if (pool.ends != 0) {
      ends = ReadArray(pool.ends, first == 0 ? 0 : first - 1, last_bag,
                       translate, context);
      first = first == 0 ? 0 : static_cast<uint64_t>(ends[first - 1]);
      last = static_cast<uint64_t>(ends.back());
    }
    addresses = ReadArray(pool.rows, first, last, translate, context);
    for (uint64_t k = first; k < last; ++k) {
      addresses[k] = static_cast<int64_t>(
          pool.table + static_cast<uint64_t>(addresses[k]) *
                           static_cast<uint64_t>(pool.row_stride));
    }
  }

  uint64_t last() const { return addresses.size(); }
};

template <typename In, typename Out>
void RunPool(const void* params, uint32_t grid, AddressTranslator translate,
             void* context) {
  PoolParams pool = PoolParamsOf(params);
  PooledRows rows(pool, translate, context);
  for (uint64_t k = rows.first; k < rows.last(); ++k) {
    rows.addresses[k] = static_cast<int64_t>(Translate(
        translate, context, static_cast<uint64_t>(rows.addresses[k])));
  }
  // Rows need not be neighbours in this process.
  pool.table = 0;
  pool.row_stride = 1;
  pool.rows = reinterpret_cast<uint64_t>(rows.addresses.data());
  if (pool.ends != 0) pool.ends = reinterpret_cast<uint64_t>(rows.ends.data());
  for (uint64_t* address : {&pool.out, &pool.weights, &pool.divisors}) {
    if (*address != 0) *address = Translate(translate, context, *address);
  }
  HostMemory memory;
  for (uint32_t thread = 0; thread < grid * kThreads; ++thread) {
    PoolThread<In, Out>(pool, thread, memory);
  }
}

template <typename In, typename Out>
void VisitPool(const void* params, uint32_t /*grid*/,
               AddressTranslator translate, KernelAccessVisitor visit,
               void* context) {
  const PoolParams pool = PoolParamsOf(params);
  const auto read = [&](uint64_t array, uint64_t first, uint64_t last,
                        uint64_t bytes) {
    if (array == 0 || first == last) return;
    visit(context, {array + first * bytes, (last - first) * bytes,
                    /*is_write=*/false});
  };
  const uint64_t last_bag = pool.first_bag + pool.num_bags;
  read(pool.ends, pool.first_bag == 0 ? 0 : pool.first_bag - 1, last_bag,
       sizeof(int64_t));
  PooledRows rows(pool, translate, context);
  read(pool.rows, rows.first, rows.last(), sizeof(int64_t));
  read(pool.weights, rows.first, rows.last(), sizeof(Accumulator<In>));
  read(pool.divisors, pool.first_bag, last_bag, sizeof(int64_t));
  const uint64_t columns = uint64_t{pool.units.divisor} *
                           (pool.is_vector != 0 ? PoolLanes<In, Out>() : 1);
  // Once for many bags, and in order, so that neighbours join.
  const auto first =
      rows.addresses.begin() + static_cast<ptrdiff_t>(rows.first);
  std::sort(first, rows.addresses.end());
  rows.addresses.erase(std::unique(first, rows.addresses.end()),
                       rows.addresses.end());
  for (uint64_t k = rows.first; k < rows.last(); ++k) {
    visit(context, {static_cast<uint64_t>(rows.addresses[k]),
                    columns * sizeof(In), /*is_write=*/false});
  }
  for (uint64_t b = pool.first_bag; b < last_bag; ++b) {
    visit(context, {pool.out + b * static_cast<uint64_t>(pool.out_stride),
                    columns * sizeof(Out), /*is_write=*/true});
  }
}

template <typename Params, bool kIsFill = false>
constexpr HostKernel CopyKernel(const char* name) {
  return {name, sizeof(Params), &RunCopies<Params, kIsFill>,
          &VisitCopies<Params, kIsFill>};
}
template <typename T>
constexpr HostKernel ReduceKernel(const char* name) {
  return {name, sizeof(ReduceParams), &RunReduce<T>, &VisitReduce<T>};
}

template <typename In, typename Out>
constexpr HostKernel PoolKernel(const char* name) {
  return {name, sizeof(PoolParams), &RunPool<In, Out>, &VisitPool<In, Out>};
}

constexpr HostKernel kKernels[] = {
    CopyKernel<SmallCopyParams>("sherd_copy_rows_small"),
    CopyKernel<LargeCopyParams>("sherd_copy_rows_large"),
    CopyKernel<SmallCopyParams>("sherd_copy_tiles_small"),
    CopyKernel<LargeCopyParams>("sherd_copy_tiles_large"),
    CopyKernel<LargeCopyParams>("sherd_copy_mixed_large"),
    CopyKernel<SmallCopyParams, /*kIsFill=*/true>("sherd_fill_small"),
    CopyKernel<LargeCopyParams, /*kIsFill=*/true>("sherd_fill_large"),
    {"sherd_random", sizeof(RandomParams), &RunRandom, &VisitRandom},
    ReduceKernel<BoolByte>("sherd_reduce_bool"),
    ReduceKernel<uint8_t>("sherd_reduce_uint8"),
    ReduceKernel<int8_t>("sherd_reduce_int8"),
    ReduceKernel<uint16_t>("sherd_reduce_uint16"),
    ReduceKernel<int16_t>("sherd_reduce_int16"),
    ReduceKernel<uint32_t>("sherd_reduce_uint32"),
    ReduceKernel<int32_t>("sherd_reduce_int32"),
    ReduceKernel<uint64_t>("sherd_reduce_uint64"),
    ReduceKernel<int64_t>("sherd_reduce_int64"),
    ReduceKernel<Float8E4M3>("sherd_reduce_float8_e4m3fn"),
    ReduceKernel<Float8E5M2>("sherd_reduce_float8_e5m2"),
    ReduceKernel<Float16>("sherd_reduce_float16"),
    ReduceKernel<BFloat16>("sherd_reduce_bfloat16"),
    ReduceKernel<float>("sherd_reduce_float32"),
    ReduceKernel<double>("sherd_reduce_float64"),
    ReduceKernel<ComplexPair<float>>("sherd_reduce_complex64"),
    ReduceKernel<ComplexPair<double>>("sherd_reduce_complex128"),
    PoolKernel<double, double>("sherd_pool_float64_float64"),
    PoolKernel<float, float>("sherd_pool_float32_float32"),
    PoolKernel<Float16, Float16>("sherd_pool_float16_float16"),
    PoolKernel<BFloat16, BFloat16>("sherd_pool_bfloat16_bfloat16"),
    PoolKernel<Float16, float>("sherd_pool_float16_float32"),
    PoolKernel<BFloat16, float>("sherd_pool_bfloat16_float32"),
    PoolKernel<float, Float16>("sherd_pool_float32_float16"),
    PoolKernel<float, BFloat16>("sherd_pool_float32_bfloat16"),
};

}  // namespace

const HostKernel* FindHostKernel(absl::string_view name) {
  for (const HostKernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace sherd::internal
