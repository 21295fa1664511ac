#ifndef SHERD_BACKENDS_CUDA_ELEMENT_MATH_H_
#define SHERD_BACKENDS_CUDA_ELEMENT_MATH_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "sherd/backends/cuda/box_math.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/core/tensor/device/host_device.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/core/tensor/random/random_math.h"

// The work of one thread of the computing kernels, for GPUs and for the host.
// Memory is accessed as in box_math.h. No multiplication is fused with an
// addition (--fmad=false, -ffp-contract=off).
namespace sherd::internal {

// An unsigned integer of kBytes bytes.
template <size_t kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<4> {
  using Type = uint32_t;
};
template <>
struct BitsOf<8> {
  using Type = uint64_t;
};
template <>
struct BitsOf<16> {
  using Type = Unit16;
};

template <typename T>
using Bits = typename BitsOf<sizeof(T)>::Type;

// Element `lane` of those in `unit`.
template <typename T, typename Unit>
SHERD_HD T GetLane(const Unit& unit, uint32_t lane) {
  if constexpr (sizeof(T) == sizeof(Unit)) {
    return std::bit_cast<T>(unit);
  } else if constexpr (sizeof(Unit) == 16) {
    const uint32_t byte = lane * sizeof(T);
    const uint64_t word = unit.words[byte / 8] >> (8 * (byte % 8));
    return std::bit_cast<T>(static_cast<Bits<T>>(word));
  } else {
    return std::bit_cast<T>(
        static_cast<Bits<T>>(unit >> (8 * sizeof(T) * lane)));
  }
}

// `unit` must be zero before the first call.
template <typename T, typename Unit>
SHERD_HD void PutLane(const T& value, uint32_t lane, Unit& unit) {
  if constexpr (sizeof(T) == sizeof(Unit)) {
    unit = std::bit_cast<Unit>(value);
  } else if constexpr (sizeof(Unit) == 16) {
    const uint32_t byte = lane * sizeof(T);
    unit.words[byte / 8] |= uint64_t{std::bit_cast<Bits<T>>(value)}
                            << (8 * (byte % 8));
  } else {
    unit |= static_cast<Unit>(Unit{std::bit_cast<Bits<T>>(value)}
                              << (8 * sizeof(T) * lane));
  }
}

// Reductions, with the values of ReduceOp in core/comm/reduction.h.
enum ElementReduction : int32_t {
  kReduceSum = 0,
  kReduceAvg = 1,
  kReduceProduct = 2,
  kReduceMin = 3,
  kReduceMax = 4,
  kReduceBand = 5,
  kReduceBor = 6,
  kReduceBxor = 7,
};

// A bool as it is stored.
struct BoolByte {
  uint8_t value;
};

template <typename Real>
struct ComplexPair {
  Real real;
  Real imaginary;
};

template <typename T>
inline constexpr bool kIsComplexPair = false;
template <typename Real>
inline constexpr bool kIsComplexPair<ComplexPair<Real>> = true;

// The type in which elements of T are computed.
template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <typename Format>
struct AccumulatorOf<SmallFloat<Format>> {
  using Type = float;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

template <typename T>
SHERD_HD Accumulator<T> Decode(const T& element) {
  if constexpr (std::is_same_v<T, BoolByte>) {
    return {static_cast<uint8_t>(element.value != 0)};
  } else {
    return static_cast<Accumulator<T>>(element);
  }
}

// The number of elements that are loaded at once: few enough that kernels are
// small, and 16 bytes for types that are often reduced.
template <typename T>
inline constexpr uint32_t kReduceLanes = sizeof(T) >= 4 ? 16 / sizeof(T) : 4;

// The reductions that kernels of T implement. Sums and products of integers do
// not depend on the sign, bitwise operations not on the type, and complex sums
// not on the pairing: kernels of other types compute those.
template <typename T>
constexpr bool HasReduction(int32_t op) {
  if (std::is_same_v<T, BoolByte>) {
    return op == kReduceBor || op == kReduceBand || op == kReduceBxor;
  }
  if (kIsComplexPair<T>) return op == kReduceProduct;
  if (std::is_integral_v<T> && std::is_signed_v<T>) {
    return op == kReduceMin || op == kReduceMax || op == kReduceAvg;
  }
  // An average is a sum that is divided at the end.
  return op <= kReduceMax || std::is_same_v<T, uint8_t> ||
         std::is_same_v<T, uint64_t>;
}

template <int32_t kOp, typename A>
SHERD_HD A Combine(const A& a, const A& b) {
  if constexpr (std::is_same_v<A, BoolByte>) {
    if constexpr (kOp == kReduceBand) {
      return {static_cast<uint8_t>(a.value & b.value)};
    } else if constexpr (kOp == kReduceBxor) {
      return {static_cast<uint8_t>(a.value ^ b.value)};
    } else {
      return {static_cast<uint8_t>(a.value | b.value)};
    }
  } else if constexpr (kIsComplexPair<A>) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  } else if constexpr (kOp == kReduceMin) {
    return (a < b || a != a) ? a : b;
  } else if constexpr (kOp == kReduceMax) {
    return (a > b || a != a) ? a : b;
  } else if constexpr (std::is_floating_point_v<A>) {
    return kOp == kReduceProduct ? a * b : a + b;
  } else {
    using U = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
    const U x = static_cast<U>(a);
    const U y = static_cast<U>(b);
    return static_cast<A>(kOp == kReduceProduct ? x * y
                          : kOp == kReduceBand  ? (x & y)
                          : kOp == kReduceBor   ? (x | y)
                          : kOp == kReduceBxor  ? (x ^ y)
                                                : x + y);
  }
}

template <typename T>
SHERD_HD T Encode(const Accumulator<T>& value, int32_t average_of) {
  if constexpr (std::is_floating_point_v<Accumulator<T>>) {
    return static_cast<T>(
        average_of <= 1 ? value
                        : value / static_cast<Accumulator<T>>(average_of));
  } else if constexpr (std::is_integral_v<T>) {
    if (average_of <= 1) return value;
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>(static_cast<Wide>(value) /
                          static_cast<Wide>(average_of));
  } else {
    return value;
  }
}

// The elements at an address: kLanes elements that are aligned as a whole, or
// one, aligned as its real parts are.
template <typename T, bool kVector, uint32_t kLanes, typename Memory>
SHERD_HD void LoadElements(uint64_t address, Memory& memory,
                           Accumulator<T> (&elements)[kLanes]) {
  if constexpr (kVector) {
    using Unit = typename BitsOf<kLanes * sizeof(T)>::Type;
    const Unit unit = memory.template Load<Unit>(address);
    SHERD_UNROLL
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      elements[lane] = Decode<T>(GetLane<T>(unit, lane));
    }
  } else if constexpr (kIsComplexPair<T>) {
    using Real = decltype(T::real);
    elements[0].real =
        std::bit_cast<Real>(memory.template Load<Bits<Real>>(address));
    elements[0].imaginary = std::bit_cast<Real>(
        memory.template Load<Bits<Real>>(address + sizeof(Real)));
  } else {
    elements[0] =
        Decode<T>(std::bit_cast<T>(memory.template Load<Bits<T>>(address)));
  }
}

template <typename T, bool kVector, uint32_t kLanes, typename Memory>
SHERD_HD void StoreElements(uint64_t address, int32_t average_of,
                            const Accumulator<T> (&elements)[kLanes],
                            Memory& memory) {
  if constexpr (kVector) {
    using Unit = typename BitsOf<kLanes * sizeof(T)>::Type;
    Unit unit = {};
    SHERD_UNROLL
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      PutLane<T>(Encode<T>(elements[lane], average_of), lane, unit);
    }
    memory.template Store<Unit>(address, unit);
  } else if constexpr (kIsComplexPair<T>) {
    using Real = decltype(T::real);
    memory.template Store<Bits<Real>>(
        address, std::bit_cast<Bits<Real>>(elements[0].real));
    memory.template Store<Bits<Real>>(
        address + sizeof(Real),
        std::bit_cast<Bits<Real>>(elements[0].imaginary));
  } else {
    memory.template Store<Bits<T>>(
        address, std::bit_cast<Bits<T>>(Encode<T>(elements[0], average_of)));
  }
}

// `units` groups of elements, `base` bytes into the arrays.
template <typename T, int32_t kOp, bool kVector, typename Memory>
SHERD_HD void ReduceUnits(const ReduceParams& params, const uint64_t* inputs,
                          uint64_t base, uint64_t units, uint64_t first,
                          uint64_t step, Memory& memory) {
  constexpr uint32_t kLanes = kVector ? kReduceLanes<T> : 1;
  const int32_t average_of =
      params.reduction == kReduceAvg ? params.divisor : 1;
  for (uint64_t i = first; i < units; i += step) {
    const uint64_t offset = base + i * (kLanes * sizeof(T));
    Accumulator<T> sums[kLanes];
    LoadElements<T, kVector>(inputs[0] + offset, memory, sums);
    for (uint32_t k = 1; k < params.num_ins; ++k) {
      Accumulator<T> next[kLanes];
      LoadElements<T, kVector>(inputs[k] + offset, memory, next);
      SHERD_UNROLL
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        sums[lane] = Combine<kOp>(sums[lane], next[lane]);
      }
    }
    StoreElements<T, kVector>(params.out + offset, average_of, sums, memory);
  }
}

// Several elements at a time where the arrays are aligned, then the rest one by
// one.
template <typename T, int32_t kOp, typename Memory>
SHERD_HD void ReduceArray(const ReduceParams& params, const uint64_t* inputs,
                          uint64_t thread, uint64_t num_threads,
                          Memory& memory) {
  if constexpr (HasReduction<T>(kOp)) {
    constexpr uint32_t kLanes = kReduceLanes<T>;
    const uint64_t units = params.is_aligned != 0 ? params.count / kLanes : 0;
    ReduceUnits<T, kOp, true>(params, inputs, 0, units, thread, num_threads,
                              memory);
    ReduceUnits<T, kOp, false>(params, inputs, units * kLanes * sizeof(T),
                               params.count - units * kLanes, thread,
                               num_threads, memory);
  }
}

// A thread's part of a reduction; `inputs` are the addresses of params.num_ins
// arrays.
template <typename T, typename Memory>
SHERD_HD void ReduceThread(const ReduceParams& params, const uint64_t* inputs,
                           uint64_t thread, uint64_t num_threads,
                           Memory& memory) {
  const auto run = [&](auto op) {
    ReduceArray<T, decltype(op)::value>(params, inputs, thread, num_threads,
                                        memory);
  };
  switch (params.reduction) {
    case kReduceProduct:
      return run(std::integral_constant<int32_t, kReduceProduct>());
    case kReduceMin:
      return run(std::integral_constant<int32_t, kReduceMin>());
    case kReduceMax:
      return run(std::integral_constant<int32_t, kReduceMax>());
    case kReduceBand:
      return run(std::integral_constant<int32_t, kReduceBand>());
    case kReduceBor:
      return run(std::integral_constant<int32_t, kReduceBor>());
    case kReduceBxor:
      return run(std::integral_constant<int32_t, kReduceBxor>());
    default:
      return run(std::integral_constant<int32_t, kReduceAvg>());
  }
}

// Random numbers.

struct RandomStream {
  uint64_t seed;
  uint64_t position;
};

// All parts of a block that are in the row [0, size); the first part of the
// block has number x.
template <typename T, typename Memory>
SHERD_HD void StoreParts(const T* values, int64_t x, const BoxDim& row,
                         uint64_t dst, Memory& memory) {
  constexpr int kParts = kPartsPerBlock<T>;
  using Unit = typename BitsOf<kParts * sizeof(T)>::Type;
  const uint64_t address = dst + x * row.dst_stride;
  const int64_t size = row.size.divisor;
  if (x >= 0 && x + kParts <= size && row.dst_stride == sizeof(T) &&
      address % sizeof(Unit) == 0) {
    Unit unit = {};
    SHERD_UNROLL
    for (int part = 0; part < kParts; ++part) {
      PutLane<T>(values[part], part, unit);
    }
    memory.template Store<Unit>(address, unit);
    return;
  }
  SHERD_UNROLL
  for (int part = 0; part < kParts; ++part) {
    if (x + part >= 0 && x + part < size) {
      memory.template Store<Bits<T>>(address + part * row.dst_stride,
                                     std::bit_cast<Bits<T>>(values[part]));
    }
  }
}

template <typename T, typename Draw, typename Memory>
SHERD_HD void RandomRows(const RandomStream& stream, const Draw& draw,
                         const CopyBox& box, const BoxDim* dims, uint32_t block,
                         uint32_t thread, Memory& memory) {
  constexpr uint32_t kUnits = UnitsPerThread(kRandomRows);
  constexpr uint64_t kParts = kPartsPerBlock<T>;
  SHERD_NO_UNROLL
  for (uint32_t u = 0; u < kUnits; ++u) {
    const uint32_t index = block * (kThreads * kUnits) + thread + u * kThreads;
    if (index >= box.units) return;
    const uint32_t row = Divide(index, dims[1].size);
    Offsets offsets = {0, 0};
    if (box.num_dims > 2) offsets = Locate(row, dims + 2, box.num_dims - 2);
    const uint64_t first_part = box.src + offsets.src;
    const uint64_t number =
        first_part / kParts + (index - row * dims[1].size.divisor);
    T values[kParts];
    draw.Draw(RandomBlock(stream.seed, stream.position + number), values);
    StoreParts<T>(values, static_cast<int64_t>(number * kParts - first_part),
                  dims[0], box.dst + offsets.dst, memory);
  }
}

// Calls body.Run<T>() for a real type, by its number in core/tensor/dtype.h.
template <typename Body>
SHERD_HD void DispatchReal(int32_t dtype, const Body& body) {
  switch (dtype) {
    case 9:
      return body.template Run<Float8E4M3>();
    case 10:
      return body.template Run<Float8E5M2>();
    case 11:
      return body.template Run<Float16>();
    case 12:
      return body.template Run<BFloat16>();
    case 14:
      return body.template Run<double>();
    default:
      return body.template Run<float>();
  }
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_ELEMENT_MATH_H_
