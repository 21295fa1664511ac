#include "sherd/serialization/safetensors/box_pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// The first dimension of the runs: a box covers every dimension after it
// completely, so its rows there follow one another in the array.
size_t RunDimension(absl::Span<const int64_t> array_sizes,
                    absl::Span<const int64_t> sizes) {
  size_t d = sizes.size();
  if (d == 0) return 0;
  --d;
  while (d > 0 && sizes[d] == array_sizes[d]) --d;
  return d;
}

class Walk {
 public:
  Walk(const BoxInArray& box, int64_t max_scattered_bytes,
       absl::FunctionRef<absl::Status(const BoxPiece&)> visit)
      : box_(box),
        max_scattered_bytes_(max_scattered_bytes),
        visit_(visit),
        element_size_(static_cast<int64_t>(box.element_size)),
        array_strides_(ContiguousStrides(box.array_sizes)),
        sizes_(box.sizes.begin(), box.sizes.end()) {}

  absl::Status Run() {
    const size_t run_dim = RunDimension(box_.array_sizes, box_.sizes);
    const int64_t start = ElementOffset(box_.offsets, array_strides_);
    run_ = MakePiece(run_dim);
    return Outer(0, run_dim, start * element_size_, box_.data);
  }

 private:
  absl::Status Outer(size_t d, size_t run_dim, int64_t offset,
                     std::byte* data) {
    if (d == run_dim) {
      if (NeedsCutting(run_)) return Cut(d, run_, offset, data);
      run_.offset = offset;
      run_.data = data;
      return visit_(run_);
    }
    for (int64_t i = 0; i < box_.sizes[d]; ++i) {
      SHERD_RETURN_IF_ERROR(
          Outer(d + 1, run_dim, offset + i * array_strides_[d] * element_size_,
                data + i * box_.strides[d] * element_size_));
    }
    return absl::OkStatus();
  }

  // The box of sizes_ in the dimensions from d on; where it is, is left open.
  BoxPiece MakePiece(size_t d) const {
    BoxPiece piece;
    piece.sizes = absl::MakeConstSpan(sizes_).subspan(d);
    piece.strides = box_.strides.subspan(d);
    piece.bytes = Volume(piece.sizes) * element_size_;
    piece.contiguous = IsContiguousRun(piece.sizes, piece.strides);
    return piece;
  }

  bool NeedsCutting(const BoxPiece& piece) const {
    return !piece.contiguous && piece.bytes > max_scattered_bytes_;
  }

  absl::Status Piece(size_t d, int64_t offset, std::byte* data) {
    BoxPiece piece = MakePiece(d);
    if (NeedsCutting(piece)) return Cut(d, piece, offset, data);
    piece.offset = offset;
    piece.data = data;
    return visit_(piece);
  }

  absl::Status Cut(size_t d, const BoxPiece& piece, int64_t offset,
                   std::byte* data) {
    const int64_t size = sizes_[d];
    const int64_t row = piece.bytes / size;
    const int64_t step = std::max<int64_t>(1, max_scattered_bytes_ / row);
    absl::Status status;
    for (int64_t i = 0; i < size && status.ok(); i += step) {
      const int64_t row_offset = offset + i * row;
      std::byte* const row_data = data + i * box_.strides[d] * element_size_;
      if (size == 1) {
        status = Piece(d + 1, row_offset, row_data);
      } else {
        sizes_[d] = std::min(step, size - i);
        status = Piece(d, row_offset, row_data);
      }
    }
    sizes_[d] = size;
    return status;
  }

  const BoxInArray& box_;
  const int64_t max_scattered_bytes_;
  const absl::FunctionRef<absl::Status(const BoxPiece&)> visit_;
  const int64_t element_size_;
  const Dims array_strides_;
  Dims sizes_;
  // The properties that all runs share.
  BoxPiece run_;
};

}  // namespace

BoxInArray BoxOf(absl::Span<const int64_t> array_sizes,
                 absl::Span<const int64_t> offsets, const Tensor& tensor) {
  BoxInArray box;
  box.array_sizes = array_sizes;
  box.offsets = offsets;
  box.sizes = tensor.sizes();
  box.element_size = tensor.element_size();
  box.data =
      const_cast<std::byte*>(static_cast<const std::byte*>(tensor.data()));
  box.strides = tensor.strides();
  return box;
}

absl::Status CheckSlice(absl::string_view tensor_name,
                        absl::Span<const int64_t> array_sizes,
                        const BoxView& slice) {
  if (slice.offsets.size() != array_sizes.size() ||
      slice.sizes.size() != array_sizes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(tensor_name), " has ", array_sizes.size(),
        " dimensions, but the slice has ", slice.offsets.size(),
        " offsets and ", slice.sizes.size(), " sizes"));
  }
  if (IsInside(slice, array_sizes)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "the slice of ", FormatBox(slice), " is not inside tensor ",
      Quoted(tensor_name), ", which is ", FormatDims(array_sizes)));
}

absl::Status ForEachPiece(
    const BoxInArray& box, int64_t max_scattered_bytes,
    absl::FunctionRef<absl::Status(const BoxPiece&)> visit) {
  if (IsEmpty(box)) return absl::OkStatus();
  return Walk(box, max_scattered_bytes, visit).Run();
}

int64_t RunBytes(absl::Span<const int64_t> array_sizes,
                 absl::Span<const int64_t> sizes, size_t element_size) {
  if (std::count(sizes.begin(), sizes.end(), 0) != 0) return 0;
  return Volume(sizes.subspan(RunDimension(array_sizes, sizes))) *
         static_cast<int64_t>(element_size);
}

}  // namespace sherd
