#include "sherd/backends/cuda/element_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <numbers>

#include "sherd/backends/cuda/box_launches.h"
#include "sherd/backends/cuda/box_table.h"
#include "sherd/backends/cuda/element_math.h"
#include "sherd/backends/cuda/kernel_params.h"

namespace sherd::internal {
namespace {

// Of core/tensor/dtype.h.
enum DTypeNumber : int32_t {
  kFirstUnsigned = 1,
  kUInt64Number = 7,
  kLastSigned = 8,
  kFirstFloat = 9,
  kFloat32Number = 13,
  kComplex64Number = 15,
  kComplex128Number = 16,
};

struct TypeInfo {
  const char* reduce;
  int64_t bytes;
};

constexpr TypeInfo kTypes[] = {
    {"sherd_reduce_bool", 1},        {"sherd_reduce_uint8", 1},
    {"sherd_reduce_int8", 1},        {"sherd_reduce_uint16", 2},
    {"sherd_reduce_int16", 2},       {"sherd_reduce_uint32", 4},
    {"sherd_reduce_int32", 4},       {"sherd_reduce_uint64", 8},
    {"sherd_reduce_int64", 8},       {"sherd_reduce_float8_e4m3fn", 1},
    {"sherd_reduce_float8_e5m2", 1}, {"sherd_reduce_float16", 2},
    {"sherd_reduce_bfloat16", 2},    {"sherd_reduce_float32", 4},
    {"sherd_reduce_float64", 8},     {"sherd_reduce_complex64", 8},
    {"sherd_reduce_complex128", 16},
};

bool IsDType(int32_t dtype) {
  return dtype >= 0 && dtype < static_cast<int32_t>(std::size(kTypes));
}

bool IsComplexNumber(int32_t dtype) { return dtype >= kComplex64Number; }

// The row-major strides of `sizes`, in units of `scale`; false if there are
// more elements than memory holds.
bool MakeStrides(const int64_t* sizes, int32_t rank, int64_t scale,
                 int64_t* strides) {
  int64_t stride = scale;
  for (int32_t d = rank - 1; d >= 0; --d) {
    strides[d] = stride;
    if (sizes[d] > 1 && __builtin_mul_overflow(stride, sizes[d], &stride)) {
      return false;
    }
  }
  return true;
}

// Replaces `dtype` and `reduction` by a type that has a kernel, and a reduction
// of that kernel, with the same result.
bool ChooseReduction(int32_t& dtype, int32_t& reduction, uint64_t& count) {
  if (!IsDType(dtype) || reduction < kReduceSum || reduction > kReduceBxor) {
    return false;
  }
  const bool is_bitwise = reduction >= kReduceBand;
  if (dtype == 0) {
    constexpr int32_t kOfBool[] = {kReduceBor,  -1,         kReduceBand,
                                   kReduceBand, kReduceBor, kReduceBand,
                                   kReduceBor,  kReduceBxor};
    reduction = kOfBool[reduction];
    return reduction >= 0;
  }
  if (dtype >= kFirstUnsigned && dtype <= kLastSigned) {
    if (is_bitwise) {
      count *= static_cast<uint64_t>(kTypes[dtype].bytes);
      dtype = kFirstUnsigned;
      return true;
    }
    const bool knows_sign = reduction == kReduceMin ||
                            reduction == kReduceMax || reduction == kReduceAvg;
    if (!knows_sign && dtype % 2 == 0) --dtype;
    return true;
  }
  if (is_bitwise) return false;
  if (IsComplexNumber(dtype)) {
    if (reduction == kReduceMin || reduction == kReduceMax) return false;
    if (reduction != kReduceProduct) {
      dtype -= kComplex64Number - kFloat32Number;
      count *= 2;
    }
  }
  return true;
}

}  // namespace

const char* PlanFill(const sherd_fill_v0& fill, LaunchPlan& plan) {
  plan.Clear();
  if (fill.element_size == 0 || fill.element_size > 16 ||
      !std::has_single_bit(fill.element_size)) {
    return "elements that are not of 1, 2, 4, 8 or 16 bytes";
  }
  PlanBox box;
  bool is_empty = false;
  const char* const wrong =
      ReadBox(fill.sizes, fill.strides, nullptr, fill.rank, fill.element_size,
              0, box, &is_empty);
  if (wrong != nullptr || is_empty) return wrong;
  box.dst = reinterpret_cast<uint64_t>(fill.data);
  box.Prepend({fill.element_size, 1, 0});
  box.Canonicalise(/*sort=*/true);
  int64_t run = 1;
  if (box.num_dims > 0 && box.dims[0].dst_stride == 1) {
    run = box.dims[0].size;
    for (int d = 1; d < box.num_dims; ++d) box.dims[d - 1] = box.dims[d];
    --box.num_dims;
  }
  uint64_t bits = static_cast<uint64_t>(run) | box.dst | 16;
  for (int d = 0; d < box.num_dims; ++d) {
    bits |= static_cast<uint64_t>(box.dims[d].dst_stride);
  }
  const int log_unit = std::countr_zero(bits);
  const int64_t unit = int64_t{1} << log_unit;
  if (run != unit) box.Prepend({run / unit, unit, 0});
  BoxTable& table = plan.boxes();
  table.AddRows(static_cast<CopyKind>(kRows1 - log_unit), box);
  unsigned char value[16];
  for (size_t i = 0; i < sizeof(value); ++i) {
    value[i] = fill.value[i % fill.element_size];
  }
  for (CopyBox& part : table.boxes()) {
    std::memcpy(part.value, value, sizeof(value));
  }
  static constexpr BoxKernels kKernels = {"sherd_fill_small",
                                          "sherd_fill_large", false};
  static constexpr unsigned char kHeader[offsetof(LargeCopyParams, table)] = {};
  AddBoxLaunches(kKernels, kHeader, sizeof(kHeader), plan);
  return nullptr;
}

const char* PlanRandom(const sherd_random_v0& random, LaunchPlan& plan) {
  plan.Clear();
  if (!IsDType(random.dtype) || random.dtype < kFirstFloat) {
    return "a dtype that is neither floating-point nor complex";
  }
  if (random.distribution != SHERD_UNIFORM &&
      random.distribution != SHERD_NORMAL) {
    return "a distribution that there is not";
  }
  if (random.rank < 0 || random.rank > kMaxTensorRank) {
    return "a rank that is not between 0 and 64";
  }
  if (random.rank > 0 &&
      (random.sizes == nullptr || random.strides == nullptr ||
       random.global_sizes == nullptr || random.offsets == nullptr)) {
    return "sizes or strides that are null";
  }
  const int64_t parts = IsComplexNumber(random.dtype) ? 2 : 1;
  const int32_t real = IsComplexNumber(random.dtype)
                           ? random.dtype - kComplex64Number + kFloat32Number
                           : random.dtype;
  int64_t numbers[kMaxTensorRank];
  if (!MakeStrides(random.global_sizes, random.rank, parts, numbers)) {
    return "a tensor that is larger than memory";
  }
  PlanBox box;
  bool is_empty = false;
  const char* const wrong =
      ReadBox(random.sizes, random.strides, numbers, random.rank,
              kTypes[random.dtype].bytes, 1, box, &is_empty);
  if (wrong != nullptr || is_empty) return wrong;
  for (int32_t d = 0; d < random.rank; ++d) {
    if (random.offsets[d] < 0 || random.sizes[d] > random.global_sizes[d] ||
        random.offsets[d] > random.global_sizes[d] - random.sizes[d]) {
      return "a box that is not inside the tensor";
    }
    box.src += static_cast<uint64_t>(random.offsets[d] * numbers[d]);
  }
  box.dst = reinterpret_cast<uint64_t>(random.data);
  const int64_t real_bytes = kTypes[real].bytes;
  if (box.dst % static_cast<uint64_t>(real_bytes) != 0) {
    return "memory that is not aligned to its elements";
  }
  if (parts == 2) box.Prepend({2, real_bytes, 1});
  box.Canonicalise(/*sort=*/false);
  if (box.num_dims == 0 || box.dims[0].src_stride != 1) {
    box.Prepend({1, real_bytes, 1});
  }
  plan.boxes().AddRandomRows(box, real_bytes == 8 ? 2 : 4);
  RandomParams header;
  header.distribution = random.distribution;
  header.dtype = real;
  header.a = random.a;
  // Each part of a complex number has half of the variance.
  header.b = random.distribution == SHERD_NORMAL && parts == 2
                 ? random.b * std::numbers::sqrt2 / 2
                 : random.b;
  header.seed = random.seed;
  header.position = random.position;
  static constexpr BoxKernels kKernels = {nullptr, "sherd_random", false};
  AddBoxLaunches(kKernels, &header, offsetof(RandomParams, table), plan);
  return nullptr;
}

const char* PlanReduce(int32_t dtype, int32_t reduction, void* out,
                       const void* const* ins, int32_t num_ins, uint64_t count,
                       int32_t divisor, int multiprocessors, LaunchPlan& plan) {
  plan.Clear();
  if (num_ins < 1) return "no inputs";
  if (reduction == kReduceAvg && divisor < 1) return "a divisor below 1";
  if (!ChooseReduction(dtype, reduction, count)) {
    return "a reduction that is not defined for the dtype";
  }
  if (count == 0) return nullptr;
  ReduceParams params = {};
  params.out = reinterpret_cast<uint64_t>(out);
  params.count = count;
  params.reduction = reduction;
  params.divisor = divisor;
  params.num_ins = static_cast<uint32_t>(num_ins);
  uint64_t bits = params.out;
  for (int32_t k = 0; k < num_ins; ++k) {
    const uint64_t address = reinterpret_cast<uint64_t>(ins[k]);
    bits |= address;
    if (params.num_ins <= kMaxInlineInputs) params.inputs[k] = address;
  }
  // Bits go eight bytes at a time where they can.
  if (reduction >= kReduceBand && dtype == kFirstUnsigned &&
      (bits | count) % 8 == 0) {
    dtype = kUInt64Number;
    count /= 8;
    params.count = count;
  }
  const int64_t alignment =
      IsComplexNumber(dtype) ? kTypes[dtype].bytes / 2 : kTypes[dtype].bytes;
  if (bits % static_cast<uint64_t>(alignment) != 0) {
    return "memory that is not aligned to its elements";
  }
  params.is_aligned = bits % 16 == 0 ? 1 : 0;
  const uint64_t lanes = params.is_aligned == 0 ? 1
                         : kTypes[dtype].bytes >= 4
                             ? static_cast<uint64_t>(16 / kTypes[dtype].bytes)
                             : 4;
  const uint64_t blocks = (count / lanes + kThreads) / kThreads;
  // Enough to fill the device several times over.
  const uint64_t most =
      16 * static_cast<uint64_t>(std::max(1, multiprocessors));
  const uint32_t grid = static_cast<uint32_t>(std::min(blocks, most));
  const bool has_table = params.num_ins > kMaxInlineInputs;
  static_assert(sizeof(ins[0]) == sizeof(params.inputs[0]));
  plan.Add(kTypes[dtype].reduce, grid, &params, sizeof(params),
           has_table ? ins : nullptr,
           has_table ? params.num_ins * sizeof(ins[0]) : 0,
           offsetof(ReduceParams, inputs_table));
  return nullptr;
}

}  // namespace sherd::internal
