#include "sherd/serialization/archive/block_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/types/byte_extent.h"
#include "sherd/core/tensor/types/memory_overlap.h"
#include "sherd/serialization/archive/archive_layout.h"

namespace sherd::internal {
namespace {

// The bytes of a storage from the first to the last element of a tensor.
struct Range {
  const Storage* storage = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  size_t tensor = 0;
};

// Tensors, ascending, and the bytes that they are in, which overlap.
struct Cluster {
  std::vector<size_t> tensors;
  int64_t begin = 0;
  int64_t end = 0;
};

Range RangeOf(absl::Span<const Tensor> tensors, size_t i) {
  const Tensor& tensor = tensors[i];
  const Storage* const storage = tensor.storage().get();
  const int64_t begin = static_cast<const std::byte*>(tensor.data()) -
                        static_cast<const std::byte*>(storage->data());
  // The tensor exists, so its extent is a number.
  return {storage, begin,
          begin + *ByteExtent(tensor.sizes(), tensor.strides(), tensor.dtype()),
          i};
}

std::vector<Cluster> FindClusters(absl::Span<const Tensor> tensors,
                                  absl::Span<const size_t> apart) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0 && tensors[i].storage() != nullptr &&
        !std::binary_search(apart.begin(), apart.end(), i)) {
      ranges.push_back(RangeOf(tensors, i));
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.storage, a.begin, a.tensor) <
           std::tie(b.storage, b.begin, b.tensor);
  });
  std::vector<Cluster> clusters;
  const Storage* storage = nullptr;
  for (const Range& range : ranges) {
    if (range.storage != storage || range.begin >= clusters.back().end) {
      clusters.push_back({{}, range.begin, range.end});
      storage = range.storage;
    }
    Cluster& cluster = clusters.back();
    cluster.tensors.push_back(range.tensor);
    cluster.end = std::max(cluster.end, range.end);
  }
  for (Cluster& cluster : clusters) {
    std::sort(cluster.tensors.begin(), cluster.tensors.end());
  }
  return clusters;
}

// The dimensions from the outermost in memory to the innermost.
std::vector<int64_t> OrderInMemory(const Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return tensor.strides()[static_cast<size_t>(a)] >
           tensor.strides()[static_cast<size_t>(b)];
  });
  return order;
}

class Planner {
 public:
  Planner(absl::Span<const Tensor> tensors, absl::Span<const size_t> apart)
      : tensors_(tensors), apart_(apart) {
    plan_.places.resize(tensors.size());
  }

  absl::StatusOr<BlockPlan> Plan() {
    for (Cluster& cluster : FindClusters(tensors_, apart_)) {
      Align(cluster);
      SHERD_RETURN_IF_ERROR(Add(cluster));
    }
    for (const size_t i : apart_) {
      if (tensors_[i].numel() > 0 && tensors_[i].storage() != nullptr) {
        AddRowMajor({i});
      }
    }
    Sort();
    return std::move(plan_);
  }

 private:
  // Begins it, inside the storage, where elements are aligned as they are
  // there.
  void Align(Cluster& cluster) const;
  absl::Status Add(const Cluster& cluster);
  // A block of the elements of one tensor, or of several that are the same.
  absl::Status AddElements(absl::Span<const size_t> tensors);
  void AddRowMajor(absl::Span<const size_t> tensors);
  // A block of the bytes.
  absl::Status AddBytes(const Cluster& cluster);
  bool AreTheSame(absl::Span<const size_t> tensors) const;
  // Whether elements are aligned if the cluster begins at an aligned address:
  // not in memory that was borrowed at an odd one.
  bool AreAligned(const Cluster& cluster) const;
  int64_t BeginOf(size_t tensor) const {
    return RangeOf(tensors_, tensor).begin;
  }
  // Large blocks first, then by the first tensor.
  void Sort();

  const absl::Span<const Tensor> tensors_;
  const absl::Span<const size_t> apart_;
  BlockPlan plan_;
};

bool Planner::AreTheSame(absl::Span<const size_t> tensors) const {
  const Tensor& first = tensors_[tensors[0]];
  return std::all_of(tensors.begin(), tensors.end(), [&](size_t i) {
    return tensors_[i].dtype() == first.dtype() &&
           IsSameMemory(AccessToTensor(tensors_[i], Access::kRead),
                        AccessToTensor(first, Access::kRead));
  });
}

bool Planner::AreAligned(const Cluster& cluster) const {
  return std::all_of(
      cluster.tensors.begin(), cluster.tensors.end(), [&](size_t i) {
        const int64_t offset = BeginOf(i) - cluster.begin;
        return static_cast<size_t>(offset) % AlignmentOf(tensors_[i].dtype()) ==
               0;
      });
}

void Planner::Align(Cluster& cluster) const {
  size_t alignment = 1;
  for (const size_t i : cluster.tensors) {
    alignment = std::max(alignment, AlignmentOf(tensors_[i].dtype()));
  }
  const void* const storage = tensors_[cluster.tensors[0]].storage()->data();
  const auto address = reinterpret_cast<uintptr_t>(storage) +
                       static_cast<uintptr_t>(cluster.begin);
  cluster.begin -=
      std::min(static_cast<int64_t>(address % alignment), cluster.begin);
}

absl::Status Planner::Add(const Cluster& cluster) {
  const Tensor& first = tensors_[cluster.tensors[0]];
  const bool coincide = !IsNonOverlapping(first.sizes(), first.strides());
  if (AreTheSame(cluster.tensors) && !coincide) {
    return AddElements(cluster.tensors);
  }
  if (AreAligned(cluster)) return AddBytes(cluster);
  // Each for itself.
  for (const size_t i : cluster.tensors) {
    SHERD_RETURN_IF_ERROR(AddElements({i}));
  }
  return absl::OkStatus();
}

absl::Status Planner::AddElements(absl::Span<const size_t> tensors) {
  const Tensor& tensor = tensors_[tensors[0]];
  const Dims strides(tensor.strides().begin(), tensor.strides().end());
  SHERD_ASSIGN_OR_RETURN(Tensor block, tensor.Permute(OrderInMemory(tensor)));
  if (tensor.is_contiguous() || !block.is_contiguous()) {
    AddRowMajor(tensors);
    return absl::OkStatus();
  }
  for (const size_t i : tensors) {
    plan_.places[i] = {static_cast<int64_t>(plan_.blocks.size()), 0, strides};
  }
  plan_.blocks.push_back(std::move(block));
  return absl::OkStatus();
}

void Planner::AddRowMajor(absl::Span<const size_t> tensors) {
  const Tensor& tensor = tensors_[tensors[0]];
  for (const size_t i : tensors) {
    plan_.places[i] = {static_cast<int64_t>(plan_.blocks.size()), 0,
                       ContiguousStrides(tensor.sizes())};
  }
  plan_.blocks.push_back(tensor);
}

absl::Status Planner::AddBytes(const Cluster& cluster) {
  SHERD_ASSIGN_OR_RETURN(
      Tensor bytes,
      Tensor::FromStorage(tensors_[cluster.tensors[0]].storage(), cluster.begin,
                          {cluster.end - cluster.begin}, kUInt8));
  for (const size_t i : cluster.tensors) {
    plan_.places[i] = {
        static_cast<int64_t>(plan_.blocks.size()),
        BeginOf(i) - cluster.begin,
        {tensors_[i].strides().begin(), tensors_[i].strides().end()}};
  }
  plan_.blocks.push_back(std::move(bytes));
  return absl::OkStatus();
}

void Planner::Sort() {
  std::vector<int64_t> order;
  std::vector<bool> seen(plan_.blocks.size());
  for (const BlockPlan::Place& place : plan_.places) {
    if (place.block < 0 || seen[static_cast<size_t>(place.block)]) continue;
    seen[static_cast<size_t>(place.block)] = true;
    order.push_back(place.block);
  }
  std::stable_partition(order.begin(), order.end(), [&](int64_t block) {
    return plan_.blocks[static_cast<size_t>(block)].nbytes() >=
           kLargeBlockBytes;
  });
  std::vector<int64_t> rank(order.size());
  std::vector<Tensor> sorted;
  for (const int64_t block : order) {
    rank[static_cast<size_t>(block)] = static_cast<int64_t>(sorted.size());
    sorted.push_back(std::move(plan_.blocks[static_cast<size_t>(block)]));
  }
  plan_.blocks = std::move(sorted);
  for (BlockPlan::Place& place : plan_.places) {
    if (place.block >= 0) place.block = rank[static_cast<size_t>(place.block)];
  }
}

}  // namespace

absl::StatusOr<BlockPlan> PlanBlocks(absl::Span<const Tensor> tensors,
                                     absl::Span<const size_t> apart) {
  return Planner(tensors, apart).Plan();
}

}  // namespace sherd::internal
