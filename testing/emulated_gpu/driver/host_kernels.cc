#include "sherd/testing/emulated_gpu/driver/host_kernels.h"

#include <algorithm>
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

template <typename Params, bool kIsFill = false>
constexpr HostKernel CopyKernel(const char* name) {
  return {name, sizeof(Params), &RunCopies<Params, kIsFill>,
          &VisitCopies<Params, kIsFill>};
}
template <typename T>
constexpr HostKernel ReduceKernel(const char* name) {
  return {name, sizeof(ReduceParams), &RunReduce<T>, &VisitReduce<T>};
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
};

}  // namespace

const HostKernel* FindHostKernel(absl::string_view name) {
  for (const HostKernel& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace sherd::internal
