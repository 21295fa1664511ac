#include "sherd/serialization/checkpoint/save/tensor_runs.h"

#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Small enough to stay in the second-level cache.
constexpr int64_t kBlockBytes = 256 << 10;

using VisitRun = absl::FunctionRef<absl::Status(
    int64_t offset, absl::Span<const std::byte> data)>;

// The elements of a tensor by their number, row-major.
class ElementRuns {
 public:
  ElementRuns(const Tensor& tensor, VisitRun visit)
      : visit_(visit),
        device_(tensor.device()),
        element_size_(static_cast<int64_t>(tensor.element_size())),
        data_(const_cast<std::byte*>(
            static_cast<const std::byte*>(tensor.data()))) {
    if (tensor.is_contiguous()) {
      // So that any range is one box.
      sizes_ = {tensor.numel()};
      strides_ = {1};
    } else {
      sizes_.assign(tensor.sizes().begin(), tensor.sizes().end());
      strides_.assign(tensor.strides().begin(), tensor.strides().end());
    }
  }

  // The elements [begin, end) of the dimensions from `d` on, at `data`, of
  // which `before` elements come first: those of a partial first index, of
  // whole indices, and of a partial last one.
  absl::Status Visit(size_t d, int64_t begin, int64_t end, int64_t before,
                     std::byte* data) {
    if (begin == end) return absl::OkStatus();
    if (d == sizes_.size()) return VisitBox(d, 1, before, data);
    int64_t inner = 1;
    for (size_t i = d + 1; i < sizes_.size(); ++i) inner *= sizes_[i];
    const int64_t step = strides_[d] * element_size_;
    int64_t first = begin / inner;
    const int64_t last = end / inner;
    if (begin % inner != 0) {
      const int64_t stop = first == last ? end : (first + 1) * inner;
      SHERD_RETURN_IF_ERROR(Visit(d + 1, begin % inner, stop - first * inner,
                                  before + first * inner, data + first * step));
      if (stop == end) return absl::OkStatus();
      ++first;
    }
    if (first < last) {
      SHERD_RETURN_IF_ERROR(VisitBox(d, last - first, before + first * inner,
                                     data + first * step));
    }
    return Visit(d + 1, 0, end - last * inner, before + last * inner,
                 data + last * step);
  }

  absl::Status VisitAll(ByteRange range) {
    return Visit(0, range.begin / element_size_, range.end / element_size_, 0,
                 data_);
  }

 private:
  // `count` indices of dimension `d`, and all of those behind it.
  absl::Status VisitBox(size_t d, int64_t count, int64_t before,
                        std::byte* data) {
    Dims sizes(sizes_.begin() + d, sizes_.end());
    if (!sizes.empty()) sizes[0] = count;
    const Dims zeros(sizes.size(), 0);
    BoxInArray box;
    box.array_sizes = box.sizes = sizes;
    box.offsets = zeros;
    box.element_size = static_cast<size_t>(element_size_);
    box.data = data;
    box.strides = absl::MakeConstSpan(strides_).subspan(d);
    const auto visit = [&](int64_t offset, absl::Span<const std::byte> run) {
      return visit_(before * element_size_ + offset, run);
    };
    if (!device_.is_cpu()) return ReadDeviceBox(box, device_, visit);
    return ForEachPiece(
        box, kBlockBytes, [&](const BoxPiece& piece) -> absl::Status {
          const std::byte* from = piece.data;
          if (!piece.contiguous) {
            staging_.resize(kBlockBytes);
            StridedCopy(staging_.data(), ContiguousStrides(piece.sizes),
                        piece.data, piece.strides, piece.sizes,
                        box.element_size);
            from = staging_.data();
          }
          return visit(piece.offset, absl::MakeConstSpan(from, piece.bytes));
        });
  }

  const VisitRun visit_;
  const Device device_;
  const int64_t element_size_;
  std::byte* const data_;
  Dims sizes_;
  Dims strides_;
  std::vector<std::byte> staging_;
};

}  // namespace

absl::Status ForEachRun(const Tensor& tensor, ByteRange range, VisitRun visit) {
  return ElementRuns(tensor, visit).VisitAll(range);
}

}  // namespace sherd
