#include "sherd/core/nn/lookup/lookup_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing {

std::vector<int64_t> ModelNumbers(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const Tensor wide = tensor.To(kInt64)->Contiguous().value();
  return {wide.data_as<int64_t>(), wide.data_as<int64_t>() + wide.numel()};
}

std::vector<int64_t> ModelBounds(const Bags& bags, const BagOptions& options) {
  std::vector<int64_t> bounds = ModelNumbers(bags.offsets);
  if (bags.offsets.defined()) {
    if (!options.include_last_offset) bounds.push_back(bags.ids.numel());
    return bounds;
  }
  const bool pooled = options.mode != BagMode::kNone;
  const int64_t length = pooled ? bags.ids.sizes()[1] : 1;
  const int64_t count = pooled ? bags.ids.sizes()[0] : bags.ids.numel();
  for (int64_t b = 0; b <= count; ++b) bounds.push_back(b * length);
  return bounds;
}

namespace {

template <typename Visitor>
void Dispatch(DType dtype, Visitor visit) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float> ||
                  std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      visit(tag);
    }
  });
}

}  // namespace

void ModelRenormalize(Tensor& table, absl::Span<const Bags> bags,
                      const BagOptions& options) {
  if (!options.max_norm) return;
  std::set<int64_t> ids;
  for (const Bags& some : bags) {
    for (const int64_t id : ModelNumbers(some.ids)) ids.insert(id);
  }
  const double p = options.norm_type;
  Dispatch(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    for (const int64_t id : ids) {
      T* const row = table.mutable_data_as<T>() + id * table.sizes()[1];
      double norm = 0;
      for (int64_t c = 0; c < table.sizes()[1]; ++c) {
        const double size = std::abs(static_cast<double>(row[c]));
        norm = std::isinf(p) ? std::max(norm, size)
               : p == 2      ? norm + size * size
                             : norm + std::pow(size, p);
      }
      if (p == 2) norm = std::sqrt(norm);
      if (p != 2 && !std::isinf(p)) norm = std::pow(norm, 1 / p);
      if (norm <= *options.max_norm) continue;
      const auto scale = static_cast<Sum>(*options.max_norm / (norm + 1e-7));
      for (int64_t c = 0; c < table.sizes()[1]; ++c) {
        row[c] = static_cast<T>(static_cast<Sum>(row[c]) * scale);
      }
    }
  });
}

Tensor ModelLookUp(const Tensor& table, const Bags& bags,
                   const BagOptions& options, Tensor* bound) {
  const std::vector<int64_t> ids = ModelNumbers(bags.ids);
  const std::vector<int64_t> bounds = ModelBounds(bags, options);
  const auto count = static_cast<int64_t>(bounds.size()) - 1;
  const int64_t columns = table.sizes()[1];
  const bool pooled = options.mode != BagMode::kNone;
  Dims size = {count, columns};
  if (!pooled) {
    size.assign(bags.ids.sizes().begin(), bags.ids.sizes().end());
    size.push_back(columns);
  }
  Tensor result = Tensor::Zeros(size, {.dtype = table.dtype()}).value();
  if (bound != nullptr) {
    *bound = Tensor::Zeros(size, {.dtype = kFloat64}).value();
  }
  int64_t padding = options.padding_idx.value_or(-table.sizes()[0] - 1);
  if (padding < 0) padding += table.sizes()[0];
  Tensor weights;
  Dispatch(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if (bags.per_sample_weights.defined()) {
      weights = bags.per_sample_weights.To(DTypeOf<Sum>()).value();
    }
    const double unit = std::numeric_limits<Sum>::epsilon() / 2;
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t c = 0; c < columns; ++c) {
        Sum sum = 0;
        double sizes = 0;
        int64_t kept = 0;
        for (int64_t k = bounds[static_cast<size_t>(b)];
             k < bounds[static_cast<size_t>(b) + 1]; ++k) {
          const int64_t id = ids[static_cast<size_t>(k)];
          if (pooled && id == padding) continue;
          Sum x = static_cast<Sum>(table.data_as<T>()[id * columns + c]);
          if (weights.defined()) x *= weights.data_as<Sum>()[k];
          sizes += std::abs(static_cast<double>(x));
          sum = kept++ == 0                     ? x
                : options.mode == BagMode::kMax ? std::max(sum, x)
                                                : sum + x;
        }
        if (options.mode == BagMode::kMean && kept > 1) {
          sum /= static_cast<Sum>(kept);
          sizes /= static_cast<double>(kept);
        }
        const int64_t at = b * columns + c;
        result.mutable_data_as<T>()[at] = static_cast<T>(sum);
        if (bound == nullptr || options.mode == BagMode::kMax || !pooled) {
          continue;
        }
        double& most = bound->mutable_data_as<double>()[at];
        most = 2 * static_cast<double>(kept) * unit * sizes;
        // Two roundings of numbers that differ by that much.
        if (SizeOf(table.dtype()) == 2) {
          most += std::abs(static_cast<double>(sum)) * 0x1p-7 + 0x1p-24;
        }
      }
    }
  });
  return result;
}

ShardedTensor ShardsOf(const Tensor& whole, const ShardingSpecPtr& spec,
                       std::shared_ptr<ProcessGroup> group) {
  ShardedTensor tensor =
      ShardedTensor::Empty(spec, whole.sizes(),
                           {.dtype = whole.dtype(), .group = std::move(group)})
          .value();
  for (const Shard& shard : tensor.local_shards()) {
    Tensor to = shard.tensor;
    const absl::Status copied = to.CopyFrom(
        whole.Narrow(shard.metadata.offsets, shard.metadata.sizes).value());
    SHERD_CHECK(copied.ok()) << copied;
  }
  return tensor;
}

}  // namespace sherd::testing
