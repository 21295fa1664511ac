#include "sherd/core/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random/random_math.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

thread_local Generator* thread_generator = nullptr;

// Words of the stream that one element takes: one for a real part of up to 32
// bits, two for one of 64.
int WordsPerElement(DType dtype) {
  switch (dtype) {
    case kFloat64:
    case kComplex64:
      return 2;
    case kComplex128:
      return 4;
    default:
      return 1;
  }
}

uint64_t BlocksFor(int64_t elements, DType dtype) {
  const int64_t per_block = 4 / WordsPerElement(dtype);
  return static_cast<uint64_t>(elements / per_block +
                               (elements % per_block != 0 ? 1 : 0));
}

template <typename T>
struct ComponentOf {
  using Type = T;
  static constexpr int kCount = 1;
};
template <typename T>
struct ComponentOf<std::complex<T>> {
  using Type = T;
  static constexpr int kCount = 2;
};

// Calls `body(i)` with the global position of the first element of each row of
// the last dimension, in order. Rank at least 1, no size is 0.
template <typename Body>
void ForEachRow(absl::Span<const int64_t> sizes, const RandomRegion& region,
                Body&& body) {
  const Dims strides = ContiguousStrides(region.global_sizes);
  int64_t position = ElementOffset(region.offsets, strides);
  Dims index(sizes.size(), 0);
  while (true) {
    body(position);
    int d = static_cast<int>(sizes.size()) - 2;
    for (; d >= 0; --d) {
      position += strides[d];
      if (++index[d] < sizes[d]) break;
      position -= strides[d] * sizes[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

absl::Status CheckRegion(const Tensor& tensor, const RandomRegion& region) {
  SHERD_RETURN_IF_ERROR(NumElements(region.global_sizes).status());
  const BoxView box(region.offsets, tensor.sizes());
  if (IsInside(box, region.global_sizes, TrailingBoxes::kAllowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a shard of ", FormatBox(box), " is not inside ",
                   FormatDims(region.global_sizes)));
}

// Draws parts [first, first + count) of the stream.
template <typename T, typename Draw>
void DrawParts(const Generator::State& start, const Draw& draw, uint64_t first,
               uint64_t count, T* out) {
  constexpr uint64_t kParts = internal::kPartsPerBlock<T>;
  while (count > 0) {
    T parts[kParts];
    draw.Draw(
        internal::RandomBlock(start.seed, start.position + first / kParts),
        parts);
    const uint64_t lane = first % kParts;
    const uint64_t taken = std::min(count, kParts - lane);
    out = std::copy_n(parts + lane, taken, out);
    first += taken;
    count -= taken;
  }
}

// Draws every element of `tensor`, which is contiguous. `make` returns the
// drawing object for a real type.
template <typename Make>
void DrawAll(Tensor& tensor, const RandomRegion& region,
             const Generator::State& start, const Make& make) {
  if (tensor.numel() == 0) return;
  const auto draw_as = [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = typename ComponentOf<T>::Type;
    constexpr int kParts = ComponentOf<T>::kCount;
    Real* out = static_cast<Real*>(tensor.data());
    const auto draw = make(std::type_identity<Real>());
    const auto fill_row = [&](int64_t position, int64_t length) {
      const uint64_t count = static_cast<uint64_t>(length) * kParts;
      DrawParts<Real>(start, draw, static_cast<uint64_t>(position) * kParts,
                      count, out);
      out += count;
    };
    if (tensor.dim() == 0) return fill_row(0, 1);
    const int64_t length = tensor.sizes().back();
    ForEachRow(tensor.sizes(), region,
               [&](int64_t position) { fill_row(position, length); });
  };
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>) draw_as(tag);
  });
}

// Queues the same on the device of `tensor`.
absl::Status DrawOnDevice(Tensor& tensor, const RandomRegion& region,
                          const Generator::State& start, DeviceRandom random) {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(tensor.device().type));
  const DeviceStream stream = CurrentStream(tensor.device());
  random.dtype = tensor.dtype();
  random.seed = start.seed;
  random.position = start.position;
  random.data = tensor.data();
  random.strides = tensor.strides();
  random.sizes = tensor.sizes();
  random.global_sizes = region.global_sizes;
  random.offsets = region.offsets;
  SHERD_RETURN_IF_ERROR(runtime->FillRandom(stream, random));
  tensor.storage()->UsedOn(stream);
  return absl::OkStatus();
}

// `make` is as for DrawAll; `parameters` are the same for devices.
template <typename Make>
absl::Status FillRandom(Tensor& tensor, Generator& generator,
                        const RandomRegion* region,
                        const DeviceRandom& parameters, const Make& make) {
  const Dims origin(tensor.sizes().size(), 0);
  const RandomRegion whole = {tensor.sizes(), origin};
  if (region == nullptr) region = &whole;
  SHERD_RETURN_IF_ERROR(CheckRegion(tensor, *region));
  if (!IsFloatingPoint(tensor.dtype()) && !IsComplex(tensor.dtype())) {
    return absl::UnimplementedError(absl::StrCat(
        "random numbers are drawn as floating-point or complex numbers, not ",
        Name(tensor.dtype())));
  }
  SHERD_ASSIGN_OR_RETURN(const int64_t elements,
                         NumElements(region->global_sizes));
  const uint64_t blocks = BlocksFor(elements, tensor.dtype());
  // Checks that the tensor is writable before the generator advances.
  SHERD_RETURN_IF_ERROR(tensor.CopyFrom(tensor));
  if (!tensor.device().is_cpu()) {
    const Generator::State start = generator.Take(blocks);
    if (tensor.numel() == 0) return absl::OkStatus();
    absl::Status status = DrawOnDevice(tensor, *region, start, parameters);
    if (!status.ok()) generator.Untake(start, blocks);
    return status;
  }
  const bool in_place = tensor.is_contiguous();
  Tensor drawn = tensor;
  if (!in_place) {
    SHERD_ASSIGN_OR_RETURN(
        drawn, Tensor::Empty(tensor.sizes(), {.dtype = tensor.dtype()}));
  }
  DrawAll(drawn, *region, generator.Take(blocks), make);
  return in_place ? absl::OkStatus() : tensor.CopyFrom(drawn);
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  const internal::PhiloxBlock block = internal::Philox(
      {{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

Generator::State Generator::GetState() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

void Generator::SetState(const State& state) {
  absl::MutexLock lock(&mutex_);
  state_ = state;
}

Generator::State Generator::Take(uint64_t blocks) {
  absl::MutexLock lock(&mutex_);
  const State before = state_;
  state_.position += blocks;
  return before;
}

void Generator::Untake(const State& before, uint64_t blocks) {
  absl::MutexLock lock(&mutex_);
  if (state_ == State{before.seed, before.position + blocks}) state_ = before;
}

Generator& DefaultGenerator() {
  static Generator& of_process = *new Generator();
  return thread_generator != nullptr ? *thread_generator : of_process;
}

ScopedDefaultGenerator::ScopedDefaultGenerator(Generator& generator)
    : outer_(thread_generator) {
  thread_generator = &generator;
}

ScopedDefaultGenerator::~ScopedDefaultGenerator() { thread_generator = outer_; }

void ManualSeed(uint64_t seed) { DefaultGenerator().Seed(seed); }

absl::Status FillUniform(Tensor& tensor, double low, double high,
                         Generator& generator, const RandomRegion* region) {
  if (!std::isfinite(low) || !std::isfinite(high) || low > high) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected finite bounds in order, got [", low, ", ", high, ")"));
  }
  SHERD_RETURN_IF_ERROR(CheckComputed(tensor.dtype()));
  const bool fits = DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      return true;
    } else {
      return internal::UniformDraw<typename ComponentOf<T>::Type>(low, high)
          .IsFinite();
    }
  });
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("the range [", low, ", ",
                                                   high, ") does not fit in ",
                                                   Name(tensor.dtype())));
  }
  const DeviceRandom parameters = {
      .distribution = DeviceRandom::Distribution::kUniform,
      .a = low,
      .b = high};
  return FillRandom(tensor, generator, region, parameters, [&](auto tag) {
    return internal::UniformDraw<typename decltype(tag)::type>(low, high);
  });
}

absl::Status FillNormal(Tensor& tensor, double mean, double stddev,
                        Generator& generator, const RandomRegion* region) {
  if (!std::isfinite(mean) || !std::isfinite(stddev) || stddev < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a finite mean and a finite deviation of at least 0, got ",
        mean, " and ", stddev));
  }
  const double part_stddev =
      IsComplex(tensor.dtype()) ? stddev * std::numbers::sqrt2 / 2 : stddev;
  const DeviceRandom parameters = {
      .distribution = DeviceRandom::Distribution::kNormal,
      .a = mean,
      .b = stddev};
  return FillRandom(tensor, generator, region, parameters, [&](auto tag) {
    return internal::NormalDraw<typename decltype(tag)::type>(mean,
                                                              part_stddev);
  });
}

absl::Status SkipRegion(absl::Span<const int64_t> global_sizes, DType dtype,
                        Generator& generator) {
  SHERD_ASSIGN_OR_RETURN(const int64_t elements, NumElements(global_sizes));
  generator.Take(BlocksFor(elements, dtype));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Rand(absl::Span<const int64_t> sizes,
                            const TensorOptions& options,
                            Generator& generator) {
  SHERD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(sizes, options));
  if (options.device.is_meta()) return tensor;
  SHERD_RETURN_IF_ERROR(FillUniform(tensor, 0, 1, generator));
  return tensor;
}

absl::StatusOr<Tensor> Randn(absl::Span<const int64_t> sizes,
                             const TensorOptions& options,
                             Generator& generator) {
  SHERD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(sizes, options));
  if (options.device.is_meta()) return tensor;
  SHERD_RETURN_IF_ERROR(FillNormal(tensor, 0, 1, generator));
  return tensor;
}

}  // namespace sherd
