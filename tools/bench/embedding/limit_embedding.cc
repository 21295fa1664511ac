#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "sherd/core/base/checked_math.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/tools/bench/embedding/embedding_work.h"

namespace sherd {
namespace {

using internal::BestReductionTarget;
using internal::ReductionTarget;

constexpr int64_t kWidth = EmbeddingShape::kWidth;
constexpr int64_t kIds = EmbeddingShape::kIds;
constexpr int64_t kIdsPerBag = EmbeddingShape::kIdsPerBag;
constexpr int64_t kGradients = EmbeddingShape::kBags * kWidth;
// Rows are fetched so many ids before they are added.
constexpr int64_t kAhead = 16;

// A vector of AVX-512, or several smaller ones.
constexpr int64_t kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));

#define SHERD_INLINE [[gnu::always_inline]] inline

// Of floats anywhere: a reference to a vector would promise its alignment.
SHERD_INLINE void Load(const float* data, Floats& vector) {
  std::memcpy(&vector, data, sizeof(vector));
}
SHERD_INLINE void Store(const Floats& vector, float* data) {
  std::memcpy(data, &vector, sizeof(vector));
}

// Pieces of rows that lie `stride` floats apart, and where their sums go.
struct BagSums {
  const float* rows;
  int64_t stride;
  const int64_t* ids;
  float* out;
};

template <int64_t kVectors>
SHERD_INLINE void SumBags(const BagSums& job) {
  for (int64_t b = 0; b < EmbeddingShape::kBags; ++b) {
    Floats sums[kVectors] = {};
    for (int64_t k = b * kIdsPerBag; k < (b + 1) * kIdsPerBag; ++k) {
      const float* const ahead =
          job.rows + job.ids[std::min(k + kAhead, kIds - 1)] * job.stride;
      const float* const row = job.rows + job.ids[k] * job.stride;
      for (int64_t v = 0; v < kVectors; ++v) {
        __builtin_prefetch(ahead + v * kLanes);
        Floats part;
        Load(row + v * kLanes, part);
        sums[v] += part;
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      Store(sums[v], job.out + b * kWidth + v * kLanes);
    }
  }
}

// Of any width.
SHERD_INLINE void SumNarrowBags(const BagSums& job, int64_t columns) {
  for (int64_t b = 0; b < EmbeddingShape::kBags; ++b) {
    float sums[kWidth] = {};
    for (int64_t k = b * kIdsPerBag; k < (b + 1) * kIdsPerBag; ++k) {
      const float* const ahead =
          job.rows + job.ids[std::min(k + kAhead, kIds - 1)] * job.stride;
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + columns - 1);
      const float* const row = job.rows + job.ids[k] * job.stride;
      for (int64_t c = 0; c < columns; ++c) sums[c] += row[c];
    }
    std::copy(sums, sums + columns, job.out + b * kWidth);
  }
}

SHERD_INLINE void SumAnyBags(const BagSums& job, int64_t columns) {
  switch (columns) {
    case 4 * kLanes:
      return SumBags<4>(job);
    case 2 * kLanes:
      return SumBags<2>(job);
    case kLanes:
      return SumBags<1>(job);
    default:
      return SumNarrowBags(job, columns);
  }
}

// A row and where it occurs, which sorts by both.
using Occurrence = uint64_t;
SHERD_INLINE int64_t RowOf(Occurrence at) {
  return static_cast<int64_t>(at >> 32);
}
SHERD_INLINE int64_t PositionOf(Occurrence at) {
  return static_cast<int64_t>(at & 0xffffffff);
}

// Column c of row r of a table is at columns[c] + r * strides[c].
struct RowUpdates {
  std::array<float*, kWidth> columns;
  std::array<int64_t, kWidth> strides;
  // Columns of a vector lie side by side.
  bool has_vectors;
  float* accumulators;
  // Of rank r from gradients + r * rank_stride on.
  const float* gradients;
  int64_t rank_stride;
  const std::vector<Occurrence>& sorted;

  float* Place(int64_t row, int64_t column) const {
    const auto c = static_cast<size_t>(column);
    return columns[c] + row * strides[c];
  }
  const float* Gradient(Occurrence at) const {
    const int64_t position = PositionOf(at);
    return gradients + position / kIds * rank_stride +
           position % kIds / kIdsPerBag * kWidth;
  }
};

SHERD_INLINE void UpdateRows(const RowUpdates& job) {
  constexpr int64_t kVectors = kWidth / kLanes;
  const size_t n = job.sorted.size();
  for (size_t i = 0; i < n;) {
    const int64_t row = RowOf(job.sorted[i]);
    Floats sums[kVectors] = {};
    for (; i < n && RowOf(job.sorted[i]) == row; ++i) {
      const Occurrence next = job.sorted[std::min(i + size_t{kAhead}, n - 1)];
      __builtin_prefetch(&job.accumulators[RowOf(next)], 1);
      const float* const ahead = job.Gradient(next);
      const float* const gradient = job.Gradient(job.sorted[i]);
      for (int64_t v = 0; v < kVectors; ++v) {
        __builtin_prefetch(ahead + v * kLanes);
        __builtin_prefetch(job.Place(RowOf(next), v * kLanes), 1);
        Floats part;
        Load(gradient + v * kLanes, part);
        sums[v] += part;
      }
    }
    float sum[kWidth];
    Floats squares = {};
    for (int64_t v = 0; v < kVectors; ++v) {
      Store(sums[v], sum + v * kLanes);
      squares += sums[v] * sums[v];
    }
    float mean = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) mean += squares[lane];
    float& accumulator = job.accumulators[row];
    accumulator += mean / static_cast<float>(kWidth);
    const float factor = EmbeddingShape::kLearningRate /
                         (std::sqrt(accumulator) + EmbeddingShape::kEps);
    if (job.has_vectors) {
      for (int64_t v = 0; v < kVectors; ++v) {
        float* const place = job.Place(row, v * kLanes);
        Floats part;
        Load(place, part);
        Store(part - sums[v] * factor, place);
      }
    } else {
      for (int64_t c = 0; c < kWidth; ++c) {
        *job.Place(row, c) -= sum[c] * factor;
      }
    }
  }
}

__attribute__((target("avx512f"))) void SumBagsAvx512(const BagSums& job,
                                                      int64_t columns) {
  SumAnyBags(job, columns);
}
__attribute__((target("avx2"))) void SumBagsAvx2(const BagSums& job,
                                                 int64_t columns) {
  SumAnyBags(job, columns);
}
__attribute__((target("avx512f"))) void UpdateAvx512(const RowUpdates& job) {
  UpdateRows(job);
}
__attribute__((target("avx2"))) void UpdateAvx2(const RowUpdates& job) {
  UpdateRows(job);
}

// Where everything lies in the shared memory, in floats.
struct LimitPlaces {
  LimitPlaces(const EmbeddingShape& shape, int world) {
    const auto round = [](int64_t n) { return RoundUp(n, kLanes); };
    accumulators = round(shape.total_rows() * kWidth);
    gradients = accumulators + round(shape.step ? shape.total_rows() : 0);
    ids =
        gradients + round(shape.step ? world * shape.tables() * kGradients : 0);
    // An id is as long as two floats.
    end = ids + 2 * world * shape.tables() * kIds;
  }

  int64_t accumulators = 0;
  int64_t gradients = 0;
  int64_t ids = 0;
  int64_t end = 0;
};

class LimitEmbedding final : public EmbeddingWork {
 public:
  explicit LimitEmbedding(RankContext& rank_context)
      : EmbeddingWork(rank_context),
        world_(rank_context.world()),
        piece_(shape().cut == TableCut::kColumns
                   ? ChunkLength(kWidth, rank_context.world())
                   : kWidth),
        places_(shape(), world_),
        memory_(reinterpret_cast<float*>(rank_context.shared().data())) {
    int64_t first = 0;
    for (int64_t t = 0; t < shape().tables(); ++t) {
      first_rows_.push_back(first);
      first += shape().rows[static_cast<size_t>(t)];
      WriteOwn(t);
    }
  }

 private:
  // The elements of this rank's shard, its ids and gradients.
  void WriteOwn(int64_t t) {
    const int rank = context().rank();
    for (int64_t r = 0; r < Rows(t); ++r) {
      for (int64_t c = 0; c < kWidth; ++c) {
        if (OwnerOf(t, r, c) == rank) {
          *Address(t, r, c) = EmbeddingElement(t, r, c);
        }
      }
    }
    const auto i = static_cast<size_t>(t);
    std::memcpy(Ids(t, rank), ids()[i].data_as<int64_t>(),
                kIds * sizeof(int64_t));
    if (!shape().step) return;
    std::memcpy(Gradients(t, rank), gradients()[i].data_as<float>(),
                kGradients * sizeof(float));
  }

  absl::Status LookUp() override {
    for (int64_t t = 0; t < shape().tables(); ++t) {
      for (int64_t begin = 0; begin < kWidth; begin += piece_) {
        const int64_t columns = std::min(piece_, kWidth - begin);
        const BagSums job = {
            Address(t, 0, begin), columns, Ids(t, context().rank()),
            outputs()[static_cast<size_t>(t)].mutable_data_as<float>() + begin};
        switch (BestReductionTarget()) {
          case ReductionTarget::kAvx512:
            SumBagsAvx512(job, columns);
            break;
          case ReductionTarget::kAvx2:
            SumBagsAvx2(job, columns);
            break;
          default:
            SumAnyBags(job, columns);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Update() override {
    // No rank reads rows any more, and then none writes any.
    context().Meet();
    for (int64_t t = 0; t < shape().tables(); ++t) {
      SortOwn(t);
      const RowUpdates job = UpdatesOf(t);
      switch (BestReductionTarget()) {
        case ReductionTarget::kAvx512:
          UpdateAvx512(job);
          break;
        case ReductionTarget::kAvx2:
          UpdateAvx2(job);
          break;
        default:
          UpdateRows(job);
      }
    }
    context().Meet();
    return absl::OkStatus();
  }

  RowUpdates UpdatesOf(int64_t t) const {
    RowUpdates job = {
        {},
        {},
        piece_ % kLanes == 0,
        memory_ + places_.accumulators + first_rows_[static_cast<size_t>(t)],
        Gradients(t, 0),
        shape().tables() * kGradients,
        sorted_};
    for (int64_t c = 0; c < kWidth; ++c) {
      const auto i = static_cast<size_t>(c);
      job.columns[i] = Address(t, 0, c);
      job.strides[i] = std::min(piece_, kWidth - c / piece_ * piece_);
    }
    return job;
  }

  // Sets sorted_ to the ids of all ranks in this rank's part of the rows.
  void SortOwn(int64_t t) {
    const int64_t part = ChunkLength(Rows(t), world_);
    const int64_t first = part * context().rank();
    sorted_.clear();
    for (int rank = 0; rank < world_; ++rank) {
      const int64_t* const ids = Ids(t, rank);
      for (int64_t i = 0; i < kIds; ++i) {
        if (ids[i] < first || ids[i] >= first + part) continue;
        sorted_.push_back(static_cast<Occurrence>(ids[i]) << 32 |
                          static_cast<Occurrence>(rank * kIds + i));
      }
    }
    std::sort(sorted_.begin(), sorted_.end());
  }

  int64_t Rows(int64_t table) const {
    return shape().rows[static_cast<size_t>(table)];
  }
  int OwnerOf(int64_t table, int64_t row, int64_t column) const {
    switch (shape().cut) {
      case TableCut::kRows:
        return static_cast<int>(row / ChunkLength(Rows(table), world_));
      case TableCut::kColumns:
        return static_cast<int>(column / piece_);
      case TableCut::kTables:
        return static_cast<int>(table % world_);
    }
    return 0;
  }
  // By columns a shard is a matrix of its own; otherwise its place in the
  // whole table does.
  float* Address(int64_t table, int64_t row, int64_t column) const {
    const int64_t begin = column / piece_ * piece_;
    return memory_ + first_rows_[static_cast<size_t>(table)] * kWidth +
           begin * Rows(table) + row * std::min(piece_, kWidth - begin) +
           (column - begin);
  }
  int64_t* Ids(int64_t table, int rank) const {
    return reinterpret_cast<int64_t*>(memory_ + places_.ids) +
           (rank * shape().tables() + table) * kIds;
  }
  float* Gradients(int64_t table, int rank) const {
    return memory_ + places_.gradients +
           (rank * shape().tables() + table) * kGradients;
  }

  const int world_;
  // Columns of a shard.
  const int64_t piece_;
  const LimitPlaces places_;
  float* const memory_;
  // Of each table among those of all.
  std::vector<int64_t> first_rows_;
  std::vector<Occurrence> sorted_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitEmbedding(
    RankContext& context) {
  return std::make_unique<LimitEmbedding>(context);
}

int64_t LimitEmbeddingBytes(const EmbeddingShape& shape, int world) {
  return LimitPlaces(shape, world).end * static_cast<int64_t>(sizeof(float));
}

}  // namespace sherd
