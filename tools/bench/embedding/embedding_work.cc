#include "sherd/tools/bench/embedding/embedding_work.h"

#include <algorithm>
#include <any>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr int64_t kWidth = EmbeddingShape::kWidth;

// The k-th most frequent row, for 0 <= u < 1: (n + 1)^u - 1, rounded down, is k
// with a probability of ln((k + 2) / (k + 1)) / ln(n + 1), about 1 / (k + 1).
int64_t ZipfRank(double u, int64_t n) {
  const auto k = static_cast<int64_t>(
      std::expm1(u * std::log(static_cast<double>(n) + 1)));
  return std::min(k, n - 1);
}

// Frequent rows are not neighbours. One row for each k, as the factor is a
// prime, and that of torch_embedding.py.
int64_t Scatter(int64_t k, int64_t n) {
  return static_cast<int64_t>(static_cast<uint64_t>(k) * 2654435761u %
                              static_cast<uint64_t>(n));
}

Tensor EmbeddingIds(const EmbeddingShape& shape, int64_t table, int rank) {
  Tensor ids = *Tensor::Empty(
      {EmbeddingShape::kBags, EmbeddingShape::kIdsPerBag}, {.dtype = kInt64});
  std::mt19937_64 random(static_cast<uint64_t>(1000 * table + rank));
  const int64_t rows = shape.rows[static_cast<size_t>(table)];
  std::uniform_int_distribution<int64_t> row(0, rows - 1);
  std::uniform_real_distribution<double> part(0, 1);
  auto* const data = ids.mutable_data_as<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    data[i] =
        shape.zipf ? Scatter(ZipfRank(part(random), rows), rows) : row(random);
  }
  return ids;
}

Tensor EmbeddingGradient(int64_t table, int rank) {
  Tensor gradient = *Tensor::Empty({EmbeddingShape::kBags, kWidth});
  auto* const data = gradient.mutable_data_as<float>();
  for (int64_t i = 0; i < gradient.numel(); ++i) {
    const int64_t number =
        31 * rank + 7 * (i / kWidth) + 3 * (i % kWidth) + table;
    data[i] = static_cast<float>(number % 17 - 8) / 16;
  }
  return gradient;
}

}  // namespace

int64_t EmbeddingShape::total_rows() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Multiples of 1/1024 below 1: the sums of a bag are exact.
float EmbeddingElement(int64_t table, int64_t row, int64_t column) {
  return static_cast<float>((131 * table + 7 * row + column) % 1000) / 1024;
}

void FillEmbeddingTable(Tensor tensor, int64_t table, int64_t row,
                        int64_t column) {
  auto* to = tensor.mutable_data_as<float>();
  for (int64_t r = 0; r < tensor.sizes()[0]; ++r) {
    for (int64_t c = 0; c < tensor.sizes()[1]; ++c) {
      *to++ = EmbeddingElement(table, row + r, column + c);
    }
  }
}

// Of steps with the same gradient g of a row, Adagrad's sum after n of them is
// n times the mean of squares m of the first one, and the row has changed by
// -learning_rate * g / sqrt(m) * (1 / sqrt(1) + … + 1 / sqrt(n)).
class EmbeddingModel {
 public:
  EmbeddingModel(const RankContext& context, const EmbeddingShape& shape)
      : shape_(shape), tables_(shape.rows.size()) {
    for (int64_t t = 0; t < shape.tables(); ++t) AddTable(t, context);
  }

  // The sum of the rows of bag `bag` in one column after some updates.
  double Expected(int64_t table, int64_t bag, int64_t column,
                  double updates) const {
    const Table& known = tables_[static_cast<size_t>(table)];
    double sum = 0;
    for (int64_t k = 0; k < EmbeddingShape::kIdsPerBag; ++k) {
      const auto at = static_cast<size_t>(bag * EmbeddingShape::kIdsPerBag + k);
      sum += EmbeddingElement(table, known.ids[at], column);
      if (updates == 0) continue;
      sum -= updates * known.steps[static_cast<size_t>(known.slots[at]) *
                                       static_cast<size_t>(kWidth) +
                                   static_cast<size_t>(column)];
    }
    return sum;
  }

 private:
  struct Table {
    // This rank's, and for each the place of its row among those of `steps`.
    std::vector<int64_t> ids;
    std::vector<int64_t> slots;
    // By which a first update lowers a row.
    std::vector<float> steps;
  };

  void AddTable(int64_t t, const RankContext& context) {
    Table& table = tables_[static_cast<size_t>(t)];
    const Tensor own = EmbeddingIds(shape_, t, context.rank());
    const auto* const data = own.data_as<int64_t>();
    table.ids.assign(data, data + own.numel());
    if (!shape_.step) return;
    std::vector<int64_t> rows = table.ids;
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    const auto slot_of = [&rows](int64_t row) {
      return std::lower_bound(rows.begin(), rows.end(), row) - rows.begin();
    };
    for (const int64_t row : table.ids) table.slots.push_back(slot_of(row));
    table.steps.resize(rows.size() * static_cast<size_t>(kWidth));
    for (int rank = 0; rank < context.world(); ++rank) {
      const Tensor ids = EmbeddingIds(shape_, t, rank);
      const Tensor gradient = EmbeddingGradient(t, rank);
      for (int64_t i = 0; i < EmbeddingShape::kIds; ++i) {
        const int64_t row = ids.data_as<int64_t>()[i];
        const int64_t slot = slot_of(row);
        if (slot == static_cast<int64_t>(rows.size()) ||
            rows[static_cast<size_t>(slot)] != row) {
          continue;
        }
        const float* const from =
            gradient.data_as<float>() + i / EmbeddingShape::kIdsPerBag * kWidth;
        float* const sum = &table.steps[static_cast<size_t>(slot * kWidth)];
        for (int64_t c = 0; c < kWidth; ++c) sum[c] += from[c];
      }
    }
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      Scale(&table.steps[slot * static_cast<size_t>(kWidth)]);
    }
  }

  static void Scale(float* gradient) {
    double squares = 0;
    for (int64_t c = 0; c < kWidth; ++c) squares += gradient[c] * gradient[c];
    const double root = std::sqrt(squares / static_cast<double>(kWidth));
    for (int64_t c = 0; c < kWidth && root > 0; ++c) {
      gradient[c] = static_cast<float>(EmbeddingShape::kLearningRate *
                                       gradient[c] / root);
    }
  }

  const EmbeddingShape shape_;
  std::vector<Table> tables_;
};

void ShareEmbeddingBatch(RankContext& context, const EmbeddingShape& shape) {
  const auto batch = std::make_shared<EmbeddingBatch>();
  batch->shape = shape;
  batch->model = std::make_shared<EmbeddingModel>(context, shape);
  for (int64_t t = 0; t < shape.tables(); ++t) {
    batch->ids.push_back(EmbeddingIds(shape, t, context.rank()));
    if (!shape.step) continue;
    batch->gradients.push_back(EmbeddingGradient(t, context.rank()));
  }
  context.common() = std::shared_ptr<const EmbeddingBatch>(batch);
}

EmbeddingWork::EmbeddingWork(RankContext& context)
    : context_(context),
      batch_(std::any_cast<std::shared_ptr<const EmbeddingBatch>>(
          context.common())) {
  for (int64_t t = 0; t < shape().tables(); ++t) {
    outputs_.push_back(*Tensor::Empty({EmbeddingShape::kBags, kWidth}));
  }
}

absl::Status EmbeddingWork::Prepare() {
  for (Tensor& output : outputs_) {
    SHERD_RETURN_IF_ERROR(output.Fill(std::numeric_limits<float>::quiet_NaN()));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingWork::Run() {
  SHERD_RETURN_IF_ERROR(LookUp());
  return shape().step ? Update() : absl::OkStatus();
}

absl::Status EmbeddingWork::Check() {
  SHERD_RETURN_IF_ERROR(CheckOutputs());
  if (!shape().step) return absl::OkStatus();
  ++updates_;
  SHERD_RETURN_IF_ERROR(Prepare());
  SHERD_RETURN_IF_ERROR(LookUp());
  return CheckOutputs();
}

absl::Status EmbeddingWork::CheckOutputs() const {
  double updates = 0;
  for (int n = 1; n <= updates_; ++n) updates += 1 / std::sqrt(n);
  const double tolerance = updates_ == 0 ? 0 : 1e-3;
  for (int64_t t = 0; t < shape().tables(); ++t) {
    const auto* const out = outputs_[static_cast<size_t>(t)].data_as<float>();
    for (int64_t at = 0; at < EmbeddingShape::kBags * kWidth; ++at) {
      const double expected =
          batch_->model->Expected(t, at / kWidth, at % kWidth, updates);
      if (std::abs(out[at] - expected) <= tolerance) continue;
      return absl::DataLossError(
          absl::StrCat("table ", t, ", element ", at, " after ", updates_,
                       " updates: ", out[at], ", expected ", expected));
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
