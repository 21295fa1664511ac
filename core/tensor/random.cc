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
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using Words = std::array<uint32_t, 4>;

thread_local Generator* thread_generator = nullptr;

std::pair<uint32_t, uint32_t> MultiplyWide(uint32_t a, uint32_t b) {
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

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

// The words of a stream by their number; a block is computed when the number
// leaves the one before.
class WordReader {
 public:
  explicit WordReader(const Generator::State& start)
      : start_(start),
        key_{static_cast<uint32_t>(start.seed),
             static_cast<uint32_t>(start.seed >> 32)} {}

  // The block that holds word `number`.
  const Words& BlockOf(uint64_t number) {
    const uint64_t index = number / 4;
    if (index != index_) {
      const uint64_t position = start_.position + index;
      block_ = Philox4x32({static_cast<uint32_t>(position),
                           static_cast<uint32_t>(position >> 32), 0, 0},
                          key_);
      index_ = index;
    }
    return block_;
  }

 private:
  const Generator::State start_;
  const std::array<uint32_t, 2> key_;
  uint64_t index_ = std::numeric_limits<uint64_t>::max();
  Words block_ = {};
};

uint64_t Join(uint32_t low, uint32_t high) {
  return (uint64_t{high} << 32) | low;
}

// How one real part is drawn. `Compute` is the type of the arithmetic.
template <typename T>
struct RealTraits {
  using Compute = float;
  static constexpr int kWords = 1;
  static constexpr int kDigits = T::kDigits;
};
template <>
struct RealTraits<float> {
  using Compute = float;
  static constexpr int kWords = 1;
  static constexpr int kDigits = 24;
};
template <>
struct RealTraits<double> {
  using Compute = double;
  static constexpr int kWords = 2;
  static constexpr int kDigits = 53;
};

template <typename T>
class UniformDraw {
 public:
  using Traits = RealTraits<T>;
  using Compute = typename Traits::Compute;

  UniformDraw(double low, double high)
      : low_(static_cast<Compute>(static_cast<T>(low))),
        high_(static_cast<T>(high)),
        width_(static_cast<Compute>(high_) - low_) {}

  // Whether bounds and width are numbers of the types involved.
  bool IsFinite() const {
    return std::isfinite(low_) && std::isfinite(static_cast<Compute>(high_)) &&
           std::isfinite(width_);
  }

  T operator()(WordReader& words, uint64_t part) const {
    const uint64_t number = part * Traits::kWords;
    const Words& block = words.BlockOf(number);
    const int lane = static_cast<int>(number % 4);
    Compute unit;
    if constexpr (Traits::kWords == 1) {
      unit = static_cast<Compute>(block[lane] >> (32 - Traits::kDigits));
    } else {
      unit = static_cast<Compute>(Join(block[lane], block[lane + 1]) >>
                                  (64 - Traits::kDigits));
    }
    unit *= Compute{1} / static_cast<Compute>(uint64_t{1} << Traits::kDigits);
    const T value = static_cast<T>(low_ + unit * width_);
    // Rounding may reach the bound that is excluded.
    return value < high_ ? value : static_cast<T>(low_);
  }

 private:
  const Compute low_;
  const T high_;
  const Compute width_;
};

template <typename T>
class NormalDraw {
 public:
  using Traits = RealTraits<T>;
  using Compute = typename Traits::Compute;

  NormalDraw(double mean, double stddev)
      : mean_(static_cast<Compute>(mean)),
        stddev_(static_cast<Compute>(stddev)) {}

  // Parts 2k and 2k + 1 are the two results of one application of Box and
  // Muller's transformation.
  T operator()(WordReader& words, uint64_t part) {
    const uint64_t pair = part / 2;
    if (pair != pair_) {
      Draw(words, pair * 2 * Traits::kWords);
      pair_ = pair;
    }
    return static_cast<T>(mean_ + stddev_ * values_[part % 2]);
  }

 private:
  void Draw(WordReader& words, uint64_t number) {
    const Words& block = words.BlockOf(number);
    const int lane = static_cast<int>(number % 4);
    Compute radius_unit;
    Compute angle_unit;
    if constexpr (Traits::kWords == 1) {
      radius_unit = (static_cast<Compute>(block[lane]) + 1) * 0x1p-32f;
      angle_unit = static_cast<Compute>(block[lane + 1]) * 0x1p-32f;
    } else {
      radius_unit =
          (static_cast<Compute>(Join(block[0], block[1]) >> 11) + 1) * 0x1p-53;
      angle_unit =
          static_cast<Compute>(Join(block[2], block[3]) >> 11) * 0x1p-53;
    }
    const Compute radius = std::sqrt(-2 * std::log(radius_unit));
    const Compute angle = 2 * std::numbers::pi_v<Compute> * angle_unit;
    values_[0] = radius * std::cos(angle);
    values_[1] = radius * std::sin(angle);
  }

  const Compute mean_;
  const Compute stddev_;
  uint64_t pair_ = std::numeric_limits<uint64_t>::max();
  std::array<Compute, 2> values_ = {};
};

template <typename T>
struct PartOf {
  using Type = T;
  static constexpr int kCount = 1;
};
template <typename T>
struct PartOf<std::complex<T>> {
  using Type = T;
  static constexpr int kCount = 2;
};

// Calls `body(i)` with the global position of the first element of each row of
// the last dimension, in order. Rank at least 1, no size is 0.
template <typename Body>
void ForEachRow(absl::Span<const int64_t> sizes, const RandomRegion& region,
                Body&& body) {
  const Dims strides = ContiguousStrides(region.global_sizes);
  int64_t position = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    position += region.offsets[d] * strides[d];
  }
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
  const absl::Span<const int64_t> sizes = tensor.sizes();
  bool fits = region.global_sizes.size() == sizes.size() &&
              region.offsets.size() == sizes.size();
  for (size_t d = 0; fits && d < sizes.size(); ++d) {
    // Empty trailing chunks of an uneven split lie past the end.
    fits = region.offsets[d] >= 0 &&
           (sizes[d] == 0 ||
            (region.offsets[d] <= region.global_sizes[d] &&
             sizes[d] <= region.global_sizes[d] - region.offsets[d]));
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a shard of ", FormatDims(sizes), " at ", FormatDims(region.offsets),
      " is not inside ", FormatDims(region.global_sizes)));
}

// Draws every element of `tensor`, which is contiguous. `make` returns the
// drawing object for a real type.
template <typename Make>
void DrawAll(Tensor& tensor, const RandomRegion& region,
             const Generator::State& start, const Make& make) {
  if (tensor.numel() == 0) return;
  const auto draw_as = [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = typename PartOf<T>::Type;
    constexpr int kParts = PartOf<T>::kCount;
    Real* out = static_cast<Real*>(tensor.data());
    WordReader words(start);
    auto draw = make(std::type_identity<Real>());
    const auto fill_row = [&](int64_t position, int64_t length) {
      const uint64_t first = static_cast<uint64_t>(position) * kParts;
      const uint64_t count = static_cast<uint64_t>(length) * kParts;
      for (uint64_t i = 0; i < count; ++i) *out++ = draw(words, first + i);
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

template <typename Make>
absl::Status FillRandom(Tensor& tensor, Generator& generator,
                        const RandomRegion* region, const Make& make) {
  const Dims origin(tensor.sizes().size(), 0);
  const RandomRegion whole = {tensor.sizes(), origin};
  if (region == nullptr) region = &whole;
  SHERD_RETURN_IF_ERROR(CheckRegion(tensor, *region));
  if (!IsFloatingPoint(tensor.dtype()) && !IsComplex(tensor.dtype())) {
    return absl::UnimplementedError(absl::StrCat(
        "random numbers are drawn as floating-point or complex numbers, not ",
        Name(tensor.dtype())));
  }
  // Says whether the tensor can be written to before the generator moves.
  const bool in_place =
      tensor.is_contiguous() && tensor.writable() && tensor.device().is_cpu();
  Tensor drawn = tensor;
  if (!in_place) {
    SHERD_RETURN_IF_ERROR(tensor.CopyFrom(tensor));
    SHERD_ASSIGN_OR_RETURN(
        drawn, Tensor::Empty(tensor.sizes(), {.dtype = tensor.dtype()}));
  }
  SHERD_ASSIGN_OR_RETURN(const int64_t elements,
                         NumElements(region->global_sizes));
  const Generator::State start =
      generator.Take(BlocksFor(elements, tensor.dtype()));
  DrawAll(drawn, *region, start, make);
  return in_place ? absl::OkStatus() : tensor.CopyFrom(drawn);
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = MultiplyWide(0xd2511f53, counter[0]);
    const auto [high1, low1] = MultiplyWide(0xcd9e8d57, counter[2]);
    counter = {high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1],
               low0};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
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
  const bool fits = DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      return true;
    } else {
      return UniformDraw<typename PartOf<T>::Type>(low, high).IsFinite();
    }
  });
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("the range [", low, ", ",
                                                   high, ") does not fit in ",
                                                   Name(tensor.dtype())));
  }
  return FillRandom(tensor, generator, region, [&](auto tag) {
    return UniformDraw<typename decltype(tag)::type>(low, high);
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
  return FillRandom(tensor, generator, region, [&](auto tag) {
    return NormalDraw<typename decltype(tag)::type>(mean, part_stddev);
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
