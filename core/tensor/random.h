#ifndef SHERD_CORE_TENSOR_RANDOM_H_
#define SHERD_CORE_TENSOR_RANDOM_H_

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// One block of Philox4x32-10: four random words that are a pure function of
// `counter` and `key`.
//
// Source. Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1,
// 2, 3", SC'11.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

// A stream of Philox blocks: `seed` is the key, `position` the low half of the
// counter. Two generators with equal seed and position draw equal numbers on
// every machine.
//
// Threads. Safe: concurrent draws get different parts of the stream, in an
// order that the caller fixes if it matters.
class Generator {
 public:
  static constexpr uint64_t kDefaultSeed = 67280421310721;

  struct State {
    uint64_t seed = kDefaultSeed;
    uint64_t position = 0;

    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(uint64_t seed = kDefaultSeed) : state_{seed, 0} {}
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Starts the stream of `seed` from its beginning.
  void Seed(uint64_t seed) { SetState({seed, 0}); }

  State GetState() const;
  void SetState(const State& state);

  // Takes `blocks` blocks from the stream and returns the state before.
  State Take(uint64_t blocks);
  // Undoes Take, if no blocks were taken since.
  void Untake(const State& before, uint64_t blocks);

 private:
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
};

// The generator of this rank: that of the innermost ScopedDefaultGenerator of
// the calling thread, otherwise one per process, with kDefaultSeed at start.
Generator& DefaultGenerator();

// Gives a rank that is a thread a default generator of its own. Create and
// destroy on that thread, innermost first; `generator` must outlive it.
class ScopedDefaultGenerator {
 public:
  explicit ScopedDefaultGenerator(Generator& generator);
  ScopedDefaultGenerator(const ScopedDefaultGenerator&) = delete;
  ScopedDefaultGenerator& operator=(const ScopedDefaultGenerator&) = delete;
  ~ScopedDefaultGenerator();

 private:
  Generator* const outer_;
};

// DefaultGenerator().Seed(seed).
void ManualSeed(uint64_t seed);

// The position of a shard in a larger tensor.
struct RandomRegion {
  absl::Span<const int64_t> global_sizes;
  absl::Span<const int64_t> offsets;
};

// Fills with independent numbers that are uniform in [low, high).
//
// Layout. The element at row-major position i of the tensor gets draw i, for
// any strides. Given a `region`, the position is that in the global tensor, and
// `generator` advances by all of it: ranks with equal generators that each fill
// their shards once together hold the tensor that one rank alone would have
// drawn, in every layout. (A rank with several shards passes each a generator
// in the same state; a rank without shards calls SkipRegion.)
//
// Values. Multiples of 2^-digits of the dtype, scaled; the bounds are rounded
// to the dtype before. Real and imaginary part of complex numbers are drawn one
// by one. The same bits on every machine and device.
//
// Completion. On a device queued on CurrentStream(device), like Tensor::Fill.
//
// Errors.
//   kInvalidArgument  low > high, a bound or high - low is not a finite number
//                     of the dtype, or the region does not hold the tensor.
//   kUnimplemented    The dtype is neither floating-point nor complex.
//   Otherwise as Tensor::Fill. The generator advances only on success.
absl::Status FillUniform(Tensor& tensor, double low, double high,
                         Generator& generator = DefaultGenerator(),
                         const RandomRegion* region = nullptr);

// The same with numbers from the normal distribution (Box and Muller, 1958).
// For complex numbers the variance is that of the whole: each part has half.
// Machines with different mathematical libraries, and devices, may differ in
// the last bits.
//   kInvalidArgument  stddev < 0, or a parameter is not finite.
absl::Status FillNormal(Tensor& tensor, double mean, double stddev,
                        Generator& generator = DefaultGenerator(),
                        const RandomRegion* region = nullptr);

// Advances `generator` as filling a tensor of these sizes and dtype would.
absl::Status SkipRegion(absl::Span<const int64_t> global_sizes, DType dtype,
                        Generator& generator = DefaultGenerator());

// New tensors, uniform in [0, 1) and normal with mean 0 and deviation 1. On the
// device meta nothing is drawn.
absl::StatusOr<Tensor> Rand(absl::Span<const int64_t> sizes,
                            const TensorOptions& options = {},
                            Generator& generator = DefaultGenerator());
absl::StatusOr<Tensor> Randn(absl::Span<const int64_t> sizes,
                             const TensorOptions& options = {},
                             Generator& generator = DefaultGenerator());

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_RANDOM_H_
