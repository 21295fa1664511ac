#include "sherd/core/nn/lookup/bag_view.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/float_types.h"

namespace sherd::internal {
namespace {

// Sets `held` to the elements of `tensor`, contiguous and in host memory.
// `device`: that of the table.
absl::Status Hold(absl::string_view name, const Tensor& tensor,
                  const Device& device, Tensor& held) {
  if (tensor.device().is_meta()) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " are on meta and have no data"));
  }
  if (!tensor.device().is_cpu() && tensor.device() != device) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " are on ", tensor.device().ToString(),
        ", expected them in host memory",
        device.is_cpu() ? "" : absl::StrCat(" or on ", device.ToString()),
        ", as the table: copy them, see To"));
  }
  if (!tensor.device().is_cpu()) {
    SHERD_ASSIGN_OR_RETURN(held, tensor.To(Device()));
    return absl::OkStatus();
  }
  SHERD_ASSIGN_OR_RETURN(held, tensor.Contiguous());
  return absl::OkStatus();
}

absl::Status CheckIntegers(absl::string_view name, const Tensor& tensor) {
  if (tensor.dtype() == kInt32 || tensor.dtype() == kInt64) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": expected int32 or int64, got ", Name(tensor.dtype())));
}

// The position of the first id outside [0, rows); -1: none.
int64_t FindOutside(const IndexList& ids, int64_t rows) {
  return ids.Dispatch([&](const auto* data) -> int64_t {
    using Id = std::remove_cvref_t<decltype(*data)>;
    using Unsigned = std::make_unsigned_t<Id>;
    const int64_t n = ids.size();
    // A negative one is a large one. Without a branch, as vectors.
    Unsigned largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, static_cast<Unsigned>(data[i]));
    }
    // A table may have more rows than Id has numbers.
    const uint64_t end =
        std::min(static_cast<uint64_t>(rows),
                 uint64_t{std::numeric_limits<Unsigned>::max() / 2} + 1);
    if (n == 0 || uint64_t{largest} < end) return -1;
    return std::find_if(data, data + n,
                        [&](Id id) { return id < 0 || int64_t{id} >= rows; }) -
           data;
  });
}

}  // namespace

absl::Status BagView::SetOffsets(const Bags& bags, const BagOptions& options) {
  if (bags.offsets.dim() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets: Input dimension needs to be exactly 1 dim, got ",
                     bags.offsets.dim()));
  }
  SHERD_RETURN_IF_ERROR(CheckIntegers("offsets", bags.offsets));
  SHERD_RETURN_IF_ERROR(Hold("offsets", bags.offsets, device_, offset_tensor_));
  offsets_ = IndexList(offset_tensor_);
  const int64_t n = offsets_.size();
  for (int64_t b = 0; b < n; ++b) {
    const int64_t least = b == 0 ? 0 : offsets_[b - 1];
    if (offsets_[b] >= least && offsets_[b] <= ids_.size() &&
        (b > 0 || offsets_[0] == 0)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "offsets need to begin with 0 and to ascend to at most the input's "
        "size ",
        ids_.size(), ", but offsets[", b, "] is ", offsets_[b],
        b == 0 ? "" : absl::StrCat(" after ", least)));
  }
  bags_ = n;
  if (options.include_last_offset) {
    if (n == 0 || offsets_[n - 1] != ids_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "offsets need to have the input size in the end: expected ",
          ids_.size(), ", got ",
          n == 0 ? "no offsets" : absl::StrCat(offsets_[n - 1])));
    }
    --bags_;
  }
  if (bags_ == 0 && ids_.size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", ids_.size(), " ids but no bag"));
  }
  return absl::OkStatus();
}

absl::Status BagView::SetIds(int64_t rows, const Bags& bags,
                             const BagOptions& options) {
  if (!bags.ids.defined()) {
    return absl::InvalidArgumentError(
        "input need to be torch.Tensor: the ids are undefined");
  }
  const int64_t dim = bags.ids.dim();
  if (dim == 0 || (pooled_ && dim > 2)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Input more than 2 dims not supported, nor a scalar: ids "
                     "have ",
                     dim, " dims"));
  }
  SHERD_RETURN_IF_ERROR(CheckIntegers("ids", bags.ids));
  SHERD_RETURN_IF_ERROR(Hold("ids", bags.ids, device_, id_tensor_));
  ids_ = IndexList(id_tensor_);
  const bool has_offsets = bags.offsets.defined();
  if (has_offsets && (!pooled_ || dim != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Input dimension needs to be exactly 1 dim, and mode not none, where "
        "there are offsets: got ",
        dim, " dims and mode ", Name(options.mode)));
  }
  if (options.include_last_offset && !has_offsets) {
    return absl::InvalidArgumentError(
        "offsets is required for flag include_last_offset");
  }
  if (has_offsets) {
    SHERD_RETURN_IF_ERROR(SetOffsets(bags, options));
  } else if (!pooled_) {
    bags_ = ids_.size();
  } else if (dim == 1) {
    return absl::InvalidArgumentError("offsets is required for 1D input");
  } else {
    bags_ = bags.ids.sizes()[0];
    bag_length_ = bags.ids.sizes()[1];
  }
  const int64_t outside = FindOutside(ids_, rows);
  if (outside < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Index out of range in Input: the id at position ", outside,
                   " is ", ids_[outside], ", expected one of 0 to ", rows - 1));
}

absl::Status BagView::SetWeights(DType dtype, const Bags& bags,
                                 const BagOptions& options) {
  const Tensor& weights = bags.per_sample_weights;
  if (!weights.defined()) return absl::OkStatus();
  if (weights.sizes() != bags.ids.sizes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "per_sample_weights of size ", FormatDims(weights.sizes()),
        " is not equal to input size ", FormatDims(bags.ids.sizes())));
  }
  if (options.mode != BagMode::kSum) {
    return absl::UnimplementedError(
        absl::StrCat("per_sample_weights is only supported for mode='sum', "
                     "got mode='",
                     Name(options.mode), "'"));
  }
  const bool small = dtype == kFloat16 || dtype == kBFloat16;
  if (weights.dtype() != dtype && !(small && weights.dtype() == kFloat32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("per_sample_weights: expected the table's dtype ",
                     Name(dtype), ", got ", Name(weights.dtype())));
  }
  return Hold("per_sample_weights", weights, device_, weights_);
}

absl::Status BagView::Set(DType dtype, int64_t rows, const Bags& bags,
                          const BagOptions& options, const Device& device) {
  Clear();
  device_ = device;
  if (options.mode < BagMode::kSum || options.mode > BagMode::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode '", static_cast<int32_t>(options.mode),
                     "' is not supported: expected sum, mean, max or none"));
  }
  pooled_ = options.mode != BagMode::kNone;
  SHERD_RETURN_IF_ERROR(SetIds(rows, bags, options));
  SHERD_RETURN_IF_ERROR(SetWeights(dtype, bags, options));
  if (options.max_norm && !(*options.max_norm > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"max_norm\" must be larger than zero! Got ", *options.max_norm));
  }
  if (options.max_norm && !(options.norm_type > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"norm_type\" must be larger than zero! Got ", options.norm_type));
  }
  if (!options.padding_idx) return absl::OkStatus();
  const int64_t padding =
      *options.padding_idx + (*options.padding_idx < 0 ? rows : 0);
  if (padding < 0 || padding >= rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("padding_idx must be within the number of embeddings, ",
                     rows, ", got ", *options.padding_idx));
  }
  if (pooled_) padding_ = padding;
  return absl::OkStatus();
}

void BagView::CopyWeights(int64_t begin, int64_t end, void* to) const {
  const auto copy = [&](const auto* from, auto* numbers) {
    using Number = std::remove_reference_t<decltype(*numbers)>;
    for (int64_t i = begin; i < end; ++i) {
      numbers[i - begin] = static_cast<Number>(from[i]);
    }
  };
  switch (weights_.dtype()) {
    case kFloat64:
      return copy(weights_.data_as<double>(), static_cast<double*>(to));
    case kFloat16:
      return copy(weights_.data_as<Float16>(), static_cast<float*>(to));
    case kBFloat16:
      return copy(weights_.data_as<BFloat16>(), static_cast<float*>(to));
    default:
      return copy(weights_.data_as<float>(), static_cast<float*>(to));
  }
}

Dims BagView::ResultSize(int64_t columns) const {
  if (pooled_) return {bags_, columns};
  Dims sizes(id_tensor_.sizes().begin(), id_tensor_.sizes().end());
  sizes.push_back(columns);
  return sizes;
}

}  // namespace sherd::internal
