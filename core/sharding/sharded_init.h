#ifndef SHERD_CORE_SHARDING_SHARDED_INIT_H_
#define SHERD_CORE_SHARDING_SHARDED_INIT_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {

// Fills a sharded tensor with the initial weights of a network. Not collective;
// shards without data ("meta") are skipped.
//
// Random numbers. By default each element is drawn by its index in the global
// tensor, so that ranks with equal generators get the same tensor in every
// layout and on every number of ranks; RandomOptions chooses another stream.
//
// Errors. All arguments are checked before anything is written.
//   kFailedPrecondition  The ShardedTensor was not created, or a shard is
//                        read-only.
//   kInvalidArgument     Parameters are out of range; see FillUniform and
//                        FillNormal. Shards share memory.
//   kUnimplemented       Random numbers of an integer dtype or bool; the dtype
//                        is carried, and the value not 0.

// Uniform in [low, high).
absl::Status InitUniform(ShardedTensor& tensor, double low = 0, double high = 1,
                         const RandomOptions& options = {});

// Normal.
absl::Status InitNormal(ShardedTensor& tensor, double mean = 0,
                        double stddev = 1, const RandomOptions& options = {});

// Every element is `value`, converted as by Tensor::Fill.
absl::Status InitConstant(ShardedTensor& tensor, const Scalar& value);

// The function after a layer, which determines the gain that keeps the variance
// of activations or gradients.
enum class Nonlinearity : int32_t {
  kLinear,  // also of convolutions
  kSigmoid,
  kTanh,
  kRelu,
  kLeakyRelu,
  kSelu,
};

// "linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu".
absl::string_view Name(Nonlinearity nonlinearity);
std::ostream& operator<<(std::ostream& out, Nonlinearity nonlinearity);

// 1, 1, 5/3, sqrt(2), sqrt(2 / (1 + negative_slope^2)), 3/4.
double GainOf(Nonlinearity nonlinearity, double negative_slope = 0.01);

// How many elements of its input an element of a layer's output depends on, and
// the reverse.
struct Fans {
  int64_t in = 0;
  int64_t out = 0;

  friend bool operator==(const Fans&, const Fans&) = default;
};

// For a weight of size [out, in, …]: in = size[1] * field and out = size[0] *
// field, where the field is the product of the further sizes. `size` is that of
// the whole weight, not of a shard.
//   kInvalidArgument  "Fan in and fan out can not be computed for tensor with
//                     fewer than 2 dimensions", or the size is negative or
//                     overflows.
absl::StatusOr<Fans> FansOf(absl::Span<const int64_t> size);

enum class FanMode : int32_t {
  kFanIn,   // keeps the variance in the forward pass
  kFanOut,  // in the backward pass
};

struct KaimingOptions {
  FanMode mode = FanMode::kFanIn;
  Nonlinearity nonlinearity = Nonlinearity::kLeakyRelu;
  // Of kLeakyRelu.
  double negative_slope = 0;
};

// Uniform in [-b, b) with b = gain * sqrt(3 / fan), and normal with deviation
// gain / sqrt(fan), for the fans of the global size. A tensor without elements
// is unchanged.
//   kInvalidArgument  FansOf, or negative_slope is not finite.
//
// Source. He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015.
absl::Status InitKaimingUniform(ShardedTensor& tensor,
                                const KaimingOptions& kaiming = {},
                                const RandomOptions& options = {});
absl::Status InitKaimingNormal(ShardedTensor& tensor,
                               const KaimingOptions& kaiming = {},
                               const RandomOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_INIT_H_
