#include "sherd/core/sharding/sharded_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/kernels/exact_sum.h"
#include "sherd/core/tensor/kernels/tensor_statistics.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {
namespace {

// Replicas smaller than twice this are read by one rank.
constexpr int64_t kMinPart = int64_t{1} << 16;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Where ranks meet: null without a group.
absl::StatusOr<ProcessGroup*> GroupOf(const ShardedTensor& tensor,
                                      absl::string_view operation) {
  if (tensor.defined() && tensor.group() == nullptr) {
    if (tensor.local_shards().size() == tensor.metadata().shards.size()) {
      return nullptr;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        operation, ": ", tensor.local_shards().size(), " of ",
        tensor.metadata().shards.size(),
        " shards are in this process, and there is no group to ask for the "
        "others"));
  }
  return internal::GroupFor(tensor, operation);
}

// The local shards, so cut that every element of the tensor is owned by
// one rank.
absl::StatusOr<std::vector<Tensor>> OwnParts(const ShardedTensor& tensor,
                                             const ProcessGroup* group) {
  std::vector<Tensor> parts;
  const absl::Span<const Shard> shards = tensor.local_shards();
  SHERD_RETURN_IF_ERROR(internal::CheckHasData(shards));
  const ShardingSpec* const spec = tensor.spec().get();
  if (dynamic_cast<const ChunkShardingSpec*>(spec) != nullptr) {
    for (const Shard& shard : shards) {
      SHERD_ASSIGN_OR_RETURN(parts.emplace_back(),
                             internal::OnHost(shard.tensor));
    }
    return parts;
  }
  std::vector<PlacedBox> here;
  absl::Span<const PlacedBox> boxes = tensor.placed_boxes();
  if (group == nullptr) {
    for (const Shard& shard : shards) {
      here.push_back({{shard.metadata.offsets, shard.metadata.sizes}, 0});
    }
    boxes = here;
  }
  std::vector<int64_t> load(group == nullptr ? 1 : group->size(), 0);
  size_t local = 0;
  for (const DividedBox& divided :
       DivideReplicas(boxes, kMinPart, absl::MakeSpan(load))) {
    if (divided.part.rank != tensor.rank()) continue;
    const absl::Span<const int> indices = tensor.local_shard_indices();
    while (static_cast<size_t>(indices[local]) < divided.box) ++local;
    const Shard& shard = shards[local];
    SHERD_ASSIGN_OR_RETURN(
        const Tensor part,
        shard.tensor.Narrow(OffsetsFrom(shard.metadata.offsets, divided.part),
                            divided.part.sizes));
    SHERD_ASSIGN_OR_RETURN(parts.emplace_back(), internal::OnHost(part));
  }
  return parts;
}

// A call's local result on each rank, before the ranks exchange results.
struct Local {
  absl::Status status;
  ProcessGroup* group = nullptr;
  std::vector<Tensor> parts;
  uint64_t fingerprint = 0;
  // The same as text.
  std::function<std::string()> describe;
};

absl::StatusOr<Local> Begin(const ShardedTensor& tensor,
                            absl::string_view operation,
                            const absl::Status& arguments,
                            int64_t parameter = 0) {
  Local local;
  SHERD_ASSIGN_OR_RETURN(local.group, GroupOf(tensor, operation));
  if (tensor.defined()) local.status = CheckComputed(tensor.dtype());
  local.status.Update(arguments);
  absl::StatusOr<std::vector<Tensor>> parts = OwnParts(tensor, local.group);
  local.status.Update(parts.status());
  if (local.status.ok()) local.parts = *std::move(parts);
  local.fingerprint = Fingerprint()
                          .Add(operation)
                          .Add(static_cast<int64_t>(tensor.fingerprint()))
                          .Add(parameter)
                          .value();
  local.describe = [&tensor, operation, parameter] {
    return absl::StrCat("the operation ", operation, "\n",
                        internal::DescribeForAgreement("tensor", tensor),
                        "parameter ", std::bit_cast<double>(parameter));
  };
  return local;
}

// Lets the ranks agree that all can go on, and on the largest `value`.
absl::StatusOr<uint64_t> Meet(const Local& local, absl::string_view operation,
                              uint64_t value) {
  if (local.group != nullptr) {
    return AgreeOnMaximum(*local.group, operation, local.status,
                          {local.fingerprint, local.describe}, value);
  }
  SHERD_RETURN_IF_ERROR(local.status);
  return value;
}

// Adds up the sums of all ranks, after they agreed.
template <size_t kSums>
absl::Status AddUp(ProcessGroup* group, absl::string_view operation,
                   std::array<ExactSum, kSums>& sums) {
  if (group == nullptr) return absl::OkStatus();
  std::array<int64_t, kSums * ExactSum::kWords> words;
  for (size_t i = 0; i < kSums; ++i) {
    const auto of_sum = sums[i].ToWords();
    std::copy(of_sum.begin(), of_sum.end(),
              words.begin() + i * ExactSum::kWords);
  }
  SHERD_RETURN_IF_ERROR(InOperation(
      operation,
      group->AllReduce<int64_t>(absl::MakeSpan(words), ReduceOp::kSum)));
  for (size_t i = 0; i < kSums; ++i) {
    std::array<int64_t, ExactSum::kWords> of_sum;
    std::copy_n(words.begin() + i * ExactSum::kWords, of_sum.size(),
                of_sum.begin());
    sums[i] = ExactSum::FromWords(of_sum);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TensorOf(const Scalar& value) {
  SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                         Tensor::Empty({}, {.dtype = value.dtype()}));
  std::memcpy(tensor.data(), value.data(), SizeOf(value.dtype()));
  return tensor;
}

// Real and imaginary part of the sum of all elements.
absl::StatusOr<std::array<ExactSum, 2>> SumParts(
    const ShardedTensor& tensor, absl::string_view operation,
    const absl::Status& arguments) {
  SHERD_ASSIGN_OR_RETURN(Local local, Begin(tensor, operation, arguments));
  std::array<ExactSum, 2> sums;
  for (const Tensor& part : local.parts) {
    local.status.Update(AddElements(part, sums[0], sums[1]));
  }
  SHERD_RETURN_IF_ERROR(Meet(local, operation, 0).status());
  if (IsComplex(tensor.dtype())) {
    SHERD_RETURN_IF_ERROR(AddUp(local.group, operation, sums));
    return sums;
  }
  std::array<ExactSum, 1> real = {sums[0]};
  SHERD_RETURN_IF_ERROR(AddUp(local.group, operation, real));
  sums[0] = real[0];
  return sums;
}

absl::StatusOr<Tensor> IntegerSum(const ExactSum& sum, DType dtype) {
  absl::int128 total = 0;
  const bool whole = sum.ToInteger(total);
  if (whole && dtype == kUInt64 &&
      total <= std::numeric_limits<uint64_t>::max()) {
    return TensorOf(Scalar(static_cast<uint64_t>(total)));
  }
  if (whole && dtype != kUInt64 &&
      total >= std::numeric_limits<int64_t>::min() &&
      total <= std::numeric_limits<int64_t>::max()) {
    return TensorOf(Scalar(static_cast<int64_t>(total)));
  }
  return absl::OutOfRangeError(
      absl::StrCat("sum: about ", sum.Round(), " does not fit in ",
                   dtype == kUInt64 ? "uint64" : "int64",
                   "; convert the tensor to float64 with To()"));
}

absl::Status CheckNotInteger(DType dtype, absl::string_view operation) {
  if (IsFloatingPoint(dtype) || IsComplex(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, " of a tensor of ", Name(dtype),
                   ", expected a floating-point or complex one; convert it "
                   "with To()"));
}

DType DTypeOf(const ShardedTensor& tensor) {
  return tensor.defined() ? tensor.dtype() : kFloat32;
}

absl::StatusOr<Tensor> Extremum(const ShardedTensor& tensor, bool largest) {
  const absl::string_view operation = largest ? "max" : "min";
  absl::Status arguments;
  if (IsComplex(DTypeOf(tensor))) {
    arguments = absl::InvalidArgumentError(
        absl::StrCat("complex numbers have no order: ", Name(tensor.dtype())));
  } else if (tensor.defined() && tensor.numel() == 0) {
    arguments = absl::InvalidArgumentError(
        absl::StrCat("a tensor without elements has no ", operation));
  }
  SHERD_ASSIGN_OR_RETURN(Local local, Begin(tensor, operation, arguments));
  OrderedRange all;
  for (const Tensor& part : local.parts) {
    const absl::StatusOr<OrderedRange> range = RangeOf(part);
    local.status.Update(range.status());
    if (!range.ok()) break;
    all.smallest = std::min(all.smallest, range->smallest);
    all.largest = std::max(all.largest, range->largest);
  }
  // The smallest is the largest in the other direction.
  SHERD_ASSIGN_OR_RETURN(
      const uint64_t found,
      Meet(local, operation, largest ? all.largest : ~all.smallest));
  return TensorOf(NumberAt(largest ? found : ~found, tensor.dtype()));
}

// The largest magnitude on any rank.
absl::StatusOr<double> GlobalMagnitude(Local& local) {
  uint64_t largest = 0;
  for (const Tensor& part : local.parts) {
    const absl::StatusOr<double> of_part = LargestMagnitude(part);
    local.status.Update(of_part.status());
    if (!of_part.ok()) break;
    // Magnitudes are ordered like their bits, NaN above infinity.
    largest = std::max(largest, std::bit_cast<uint64_t>(*of_part));
  }
  SHERD_ASSIGN_OR_RETURN(largest, Meet(local, "norm", largest));
  return std::bit_cast<double>(largest);
}

// The sum of (|x| / divisor)^p over all ranks.
absl::StatusOr<double> GlobalPowers(Local& local, double p, double divisor) {
  std::array<ExactSum, 1> sum;
  for (const Tensor& part : local.parts) {
    if (!local.status.ok()) break;
    local.status.Update(AddPowers(part, p, divisor, sum[0]));
  }
  SHERD_RETURN_IF_ERROR(Meet(local, "norm", 0).status());
  SHERD_RETURN_IF_ERROR(AddUp(local.group, "norm", sum));
  return sum[0].Round();
}

// Whether the root of a sum of squares is as good as it gets: neither were
// squares out of range nor so small that they lost bits.
bool IsSafeSquare(double total) {
  return std::isnan(total) || (total >= 0x1p-800 && total < kInfinity);
}

}  // namespace

absl::StatusOr<Tensor> Sum(const ShardedTensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(const auto sums,
                         SumParts(tensor, "sum", absl::OkStatus()));
  if (IsComplex(tensor.dtype())) {
    return TensorOf(
        Scalar(std::complex<double>(sums[0].Round(), sums[1].Round())));
  }
  if (IsFloatingPoint(tensor.dtype())) return TensorOf(sums[0].Round());
  return IntegerSum(sums[0], tensor.dtype());
}

absl::StatusOr<Tensor> Mean(const ShardedTensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(
      const auto sums,
      SumParts(tensor, "mean", CheckNotInteger(DTypeOf(tensor), "mean")));
  const auto count = static_cast<double>(tensor.numel());
  if (IsComplex(tensor.dtype())) {
    return TensorOf(Scalar(std::complex<double>(sums[0].Round() / count,
                                                sums[1].Round() / count)));
  }
  return TensorOf(sums[0].Round() / count);
}

absl::StatusOr<Tensor> Min(const ShardedTensor& tensor) {
  return Extremum(tensor, /*largest=*/false);
}

absl::StatusOr<Tensor> Max(const ShardedTensor& tensor) {
  return Extremum(tensor, /*largest=*/true);
}

absl::StatusOr<double> Norm(const ShardedTensor& tensor, double p) {
  absl::Status arguments = CheckNotInteger(DTypeOf(tensor), "norm");
  if (!(p >= 0)) {
    arguments.Update(absl::InvalidArgumentError(
        absl::StrCat("norm: p is ", p, ", expected 0 or more")));
  }
  SHERD_ASSIGN_OR_RETURN(
      Local local, Begin(tensor, "norm", arguments, std::bit_cast<int64_t>(p)));
  if (p == 0 || p == 1 || p == 2) {
    SHERD_ASSIGN_OR_RETURN(const double total, GlobalPowers(local, p, 1));
    if (p != 2) return total;
    if (IsSafeSquare(total)) return std::sqrt(total);
  }
  SHERD_ASSIGN_OR_RETURN(const double largest, GlobalMagnitude(local));
  if (p == kInfinity || largest == 0 || !std::isfinite(largest)) {
    return largest;
  }
  // A power of two, so that squares are those of the numbers themselves; other
  // powers of numbers in [0, 1].
  const double divisor =
      p == 2 ? std::ldexp(1.0, std::ilogb(largest)) : largest;
  SHERD_ASSIGN_OR_RETURN(const double total, GlobalPowers(local, p, divisor));
  return (p == 2 ? std::sqrt(total) : std::pow(total, 1 / p)) * divisor;
}

}  // namespace sherd
