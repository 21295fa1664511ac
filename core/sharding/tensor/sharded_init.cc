#include "sherd/core/sharding/sharded_init.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor_fill.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

absl::Status CheckCreated(const ShardedTensor& tensor) {
  if (tensor.defined()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "init: the ShardedTensor was not created");
}

// Before anything is written, and on ranks without shards too: filling no
// elements checks what fills.
template <typename Fill>
absl::Status CheckFill(const ShardedTensor& tensor, const Fill& fill) {
  SHERD_RETURN_IF_ERROR(CheckCreated(tensor));
  SHERD_ASSIGN_OR_RETURN(Tensor none,
                         Tensor::Empty({0}, {.dtype = tensor.dtype()}));
  SHERD_RETURN_IF_ERROR(fill(none));
  return Annotate(internal::CheckDestinations(tensor.local_shards()), "init");
}

absl::Status Fill(Tensor& tensor, const Scalar& value) {
  return DispatchDType(value.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return tensor.Fill(*static_cast<const T*>(value.data()));
  });
}

// gain / sqrt(fan), or nothing to do for a tensor without elements.
absl::StatusOr<double> KaimingDeviation(const ShardedTensor& tensor,
                                        const KaimingOptions& kaiming) {
  SHERD_RETURN_IF_ERROR(CheckCreated(tensor));
  SHERD_ASSIGN_OR_RETURN(const Fans fans, FansOf(tensor.size()));
  if (!std::isfinite(kaiming.negative_slope)) {
    return absl::InvalidArgumentError(
        absl::StrCat("negative_slope is ", kaiming.negative_slope,
                     ", expected a finite number"));
  }
  const int64_t fan = kaiming.mode == FanMode::kFanIn ? fans.in : fans.out;
  if (fan == 0) return 0.0;
  return GainOf(kaiming.nonlinearity, kaiming.negative_slope) /
         std::sqrt(static_cast<double>(fan));
}

}  // namespace

absl::string_view Name(Nonlinearity nonlinearity) {
  switch (nonlinearity) {
    case Nonlinearity::kLinear:
      return "linear";
    case Nonlinearity::kSigmoid:
      return "sigmoid";
    case Nonlinearity::kTanh:
      return "tanh";
    case Nonlinearity::kRelu:
      return "relu";
    case Nonlinearity::kLeakyRelu:
      return "leaky_relu";
    case Nonlinearity::kSelu:
      return "selu";
  }
  return "unknown nonlinearity";
}

std::ostream& operator<<(std::ostream& out, Nonlinearity nonlinearity) {
  return out << Name(nonlinearity);
}

double GainOf(Nonlinearity nonlinearity, double negative_slope) {
  switch (nonlinearity) {
    case Nonlinearity::kLinear:
    case Nonlinearity::kSigmoid:
      return 1;
    case Nonlinearity::kTanh:
      return 5.0 / 3;
    case Nonlinearity::kRelu:
      return std::numbers::sqrt2;
    case Nonlinearity::kLeakyRelu:
      return std::sqrt(2 / (1 + negative_slope * negative_slope));
    case Nonlinearity::kSelu:
      return 0.75;
  }
  return 1;
}

absl::StatusOr<Fans> FansOf(absl::Span<const int64_t> size) {
  SHERD_RETURN_IF_ERROR(NumElements(size).status());
  if (size.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Fan in and fan out can not be computed for tensor with fewer than 2 "
        "dimensions, got size ",
        FormatDims(size)));
  }
  const int64_t field = Volume(size.subspan(2));
  return Fans{.in = size[1] * field, .out = size[0] * field};
}

absl::Status InitUniform(ShardedTensor& tensor, double low, double high,
                         const RandomOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckFill(tensor, [&](Tensor& none) {
    Generator generator;
    return FillUniform(none, low, high, generator);
  }));
  return FillRandomly(
      tensor, options,
      [&](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillUniform(shard, low, high, generator, region);
      });
}

absl::Status InitNormal(ShardedTensor& tensor, double mean, double stddev,
                        const RandomOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckFill(tensor, [&](Tensor& none) {
    Generator generator;
    return FillNormal(none, mean, stddev, generator);
  }));
  return FillRandomly(
      tensor, options,
      [&](Tensor& shard, Generator& generator, const RandomRegion* region) {
        return FillNormal(shard, mean, stddev, generator, region);
      });
}

absl::Status InitConstant(ShardedTensor& tensor, const Scalar& value) {
  const auto fill = [&](Tensor& shard) { return Fill(shard, value); };
  SHERD_RETURN_IF_ERROR(CheckFill(tensor, fill));
  return FillLocalShards(tensor, fill);
}

absl::Status InitKaimingUniform(ShardedTensor& tensor,
                                const KaimingOptions& kaiming,
                                const RandomOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const double deviation,
                         KaimingDeviation(tensor, kaiming));
  const double bound = std::numbers::sqrt3 * deviation;
  return InitUniform(tensor, -bound, bound, options);
}

absl::Status InitKaimingNormal(ShardedTensor& tensor,
                               const KaimingOptions& kaiming,
                               const RandomOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const double deviation,
                         KaimingDeviation(tensor, kaiming));
  return InitNormal(tensor, 0, deviation, options);
}

}  // namespace sherd
