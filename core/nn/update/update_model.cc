#include "sherd/core/nn/update/update_model.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing {
namespace {

// Adds the terms of one rank's bags to the gradients of rows.
template <typename T, typename Sum>
void AddTerms(const Tensor& table, const Bags& bags, const Tensor& gradient,
              const BagOptions& options,
              std::map<int64_t, std::vector<Sum>>& gradients) {
  const int64_t columns = table.sizes()[1];
  const std::vector<int64_t> ids = ModelNumbers(bags.ids);
  const std::vector<int64_t> bounds = ModelBounds(bags, options);
  const bool padded = options.padding_idx.has_value();
  int64_t padding = options.padding_idx.value_or(0);
  if (padding < 0) padding += table.sizes()[0];
  Tensor weights;
  if (bags.per_sample_weights.defined()) {
    weights = bags.per_sample_weights.To(DTypeOf<Sum>()).value();
  }
  for (size_t b = 0; b + 1 < bounds.size(); ++b) {
    Sum count = 0;
    for (int64_t k = bounds[b]; k < bounds[b + 1]; ++k) {
      if (!padded || ids[static_cast<size_t>(k)] != padding) count += 1;
    }
    for (int64_t k = bounds[b]; k < bounds[b + 1]; ++k) {
      const int64_t id = ids[static_cast<size_t>(k)];
      if (padded && id == padding) continue;
      std::vector<Sum>& row = gradients[id];
      const bool first = row.empty();
      row.resize(static_cast<size_t>(columns));
      for (int64_t c = 0; c < columns; ++c) {
        auto term = static_cast<Sum>(
            gradient.data_as<T>()[static_cast<int64_t>(b) * columns + c]);
        if (weights.defined()) term *= weights.data_as<Sum>()[k];
        if (options.mode == BagMode::kMean) term *= 1 / count;
        Sum& sum = row[static_cast<size_t>(c)];
        sum = first ? term : sum + term;
      }
    }
  }
}

template <typename Sum>
Sum MeanOfSquares(const std::vector<Sum>& row) {
  Sum sum = 0;
  for (size_t begin = 0; begin < row.size(); begin += 16) {
    std::vector<Sum> x(16);
    for (size_t i = begin; i < std::min(begin + 16, row.size()); ++i) {
      x[i - begin] = row[i] * row[i];
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) x[i] += x[i + half];
    }
    sum += x[0];
  }
  return sum / static_cast<Sum>(row.size());
}

template <typename T, typename Sum>
void Step(const std::vector<Sum>& gradient, T* row, Sum* sums,
          const UpdateOptions& options) {
  const auto rate = static_cast<Sum>(options.learning_rate);
  const auto eps = static_cast<Sum>(options.eps);
  Sum factor = rate;
  if (options.rule == SparseRule::kRowWiseAdagrad) {
    *sums += MeanOfSquares(gradient);
    factor = rate / (std::sqrt(*sums) + eps);
  }
  for (size_t c = 0; c < gradient.size(); ++c) {
    Sum step = factor * gradient[c];
    if (options.rule == SparseRule::kAdagrad) {
      sums[c] += gradient[c] * gradient[c];
      step = rate * gradient[c] / (std::sqrt(sums[c]) + eps);
    }
    row[c] = static_cast<T>(static_cast<Sum>(row[c]) - step);
  }
}

}  // namespace

Tensor ModelAccumulator(const Tensor& table, SparseRule rule) {
  const int64_t columns = rule == SparseRule::kAdagrad ? table.sizes()[1] : 1;
  return Tensor::Zeros(
             {table.sizes()[0], columns},
             {.dtype = table.dtype() == kFloat64 ? kFloat64 : kFloat32})
      .value();
}

void ModelUpdate(Tensor& table, Tensor& accumulator,
                 absl::Span<const ModelLookUps> lookups,
                 const UpdateOptions& options) {
  const int64_t columns = table.sizes()[1];
  if (columns == 0) return;
  DispatchDType(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float> ||
                  std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
      std::map<int64_t, std::vector<Sum>> gradients;
      for (const ModelLookUps& lookup : lookups) {
        for (size_t r = 0; r < lookup.bags.size(); ++r) {
          AddTerms<T, Sum>(table, lookup.bags[r], lookup.gradients[r],
                           lookup.options, gradients);
        }
      }
      for (const auto& [row, gradient] : gradients) {
        Sum* const sums = options.rule == SparseRule::kSgd
                              ? nullptr
                              : accumulator.mutable_data_as<Sum>() +
                                    row * accumulator.sizes()[1];
        Step(gradient, table.mutable_data_as<T>() + row * columns, sums,
             options);
      }
    }
  });
}

}  // namespace sherd::testing
