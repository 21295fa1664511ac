#include "sherd/core/tensor/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device/device_transfer.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/kernels/strided_loop.h"
#include "sherd/core/tensor/types/byte_extent.h"
#include "sherd/core/tensor/types/element_cast.h"
#include "sherd/core/tensor/types/memory_overlap.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {
namespace {

using internal::Access;
using internal::AccessToTensor;
using internal::ByteExtent;
using internal::ForEachRun;
using internal::LoopOperand;
using internal::MemoryAccess;

constexpr int kPrintedElements = 12;

absl::Status ShapeMismatch(const char* what, absl::Span<const int64_t> expected,
                           absl::Span<const int64_t> got) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": expected ", FormatDims(expected), ", got ", FormatDims(got)));
}

// `sizes` with a -1 replaced by what the number of elements leaves for it.
absl::StatusOr<Dims> InferSizes(int64_t numel,
                                absl::Span<const int64_t> sizes) {
  Dims result(sizes.begin(), sizes.end());
  const auto unknown = std::find(result.begin(), result.end(), -1);
  if (unknown != result.end()) *unknown = 1;
  SHERD_ASSIGN_OR_RETURN(const int64_t known, NumElements(result));
  if (unknown == result.end() ? known == numel
                              : known != 0 && numel % known == 0) {
    if (unknown != result.end()) *unknown = numel / known;
    return result;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot reshape ", numel, " elements to ", FormatDims(sizes)));
}

// Strides under which `new_sizes` walks the same elements in the same order,
// if there are any. Both shapes have the same, positive number of elements.
std::optional<Dims> ReshapedStrides(absl::Span<const int64_t> sizes,
                                    absl::Span<const int64_t> strides,
                                    absl::Span<const int64_t> new_sizes) {
  Dims result(new_sizes.size(), 1);
  size_t next = new_sizes.size();
  // From the innermost dimension on, takes in each round as many dimensions as
  // form one evenly spaced run, and cuts the run into new dimensions.
  for (size_t d = sizes.size(); d > 0;) {
    if (sizes[d - 1] == 1) {
      --d;
      continue;
    }
    const int64_t step = strides[d - 1];
    int64_t run = 1;
    while (d > 0 && (sizes[d - 1] == 1 || strides[d - 1] == run * step)) {
      run *= sizes[--d];
    }
    int64_t taken = 1;
    while (next > 0 && (taken < run || new_sizes[next - 1] == 1)) {
      result[--next] = taken * step;
      taken *= new_sizes[next];
    }
    if (taken != run) return std::nullopt;
  }
  return result;
}

template <typename T>
const T& ElementAt(const std::byte* base, int64_t offset) {
  return *reinterpret_cast<const T*>(base + offset);
}

template <typename T>
bool RunsEqual(const std::byte* a, int64_t a_step, const std::byte* b,
               int64_t b_step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!(ElementAt<T>(a, i * a_step) == ElementAt<T>(b, i * b_step))) {
      return false;
    }
  }
  return true;
}

template <typename T>
bool IsClose(T a, T b, double rtol, double atol, bool equal_nan) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) return true;
    if (std::isnan(a) || std::isnan(b)) {
      return equal_nan && std::isnan(a) && std::isnan(b);
    }
    if (std::isinf(a) || std::isinf(b)) return false;
    const double distance = std::abs(static_cast<double>(a) - b);
    return distance <= atol + rtol * std::abs(static_cast<double>(b));
  } else if constexpr (std::is_integral_v<T>) {
    if (a == b) return true;
    if (rtol == 0 && atol == 0) return false;
    return IsClose(static_cast<double>(a), static_cast<double>(b), rtol, atol,
                   false);
  } else {
    return IsClose(static_cast<float>(a), static_cast<float>(b), rtol, atol,
                   equal_nan);
  }
}

template <typename T>
bool IsClose(std::complex<T> a, std::complex<T> b, double rtol, double atol,
             bool equal_nan) {
  if (a == b) return true;
  const bool a_nan = std::isnan(a.real()) || std::isnan(a.imag());
  const bool b_nan = std::isnan(b.real()) || std::isnan(b.imag());
  if (a_nan || b_nan) return equal_nan && a_nan && b_nan;
  const double distance =
      std::abs(std::complex<double>(a) - std::complex<double>(b));
  if (!std::isfinite(distance)) return false;
  return distance <= atol + rtol * std::abs(std::complex<double>(b));
}

// Reads one element. Any byte but 0 is true: files may hold others than 1.
template <typename T>
T Load(const std::byte* from) {
  if constexpr (std::is_same_v<T, bool>) {
    return *from != std::byte{0};
  } else {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
}

// Repeats the first element of `data` over `count` elements.
void Replicate(std::byte* data, int64_t count, size_t element_size) {
  const size_t total = static_cast<size_t>(count) * element_size;
  const bool one_byte = std::all_of(data, data + element_size,
                                    [&](std::byte b) { return b == *data; });
  if (one_byte) {
    std::memset(data, static_cast<int>(*data), total);
    return;
  }
  // Doubles what is there up to a block that stays in the cache, then copies
  // that block.
  constexpr size_t kBlock = size_t{16} << 10;
  size_t done = element_size;
  while (done < total) {
    const size_t chunk = std::min({done, total - done, kBlock});
    std::memcpy(data + done, data, chunk);
    done += chunk;
  }
}

// Where a tensor of these options lies, and what gives the memory.
struct Place {
  Device device;
  Allocator* allocator;
};

absl::StatusOr<Place> PlaceOf(const TensorOptions& options) {
  if (options.allocator == nullptr) {
    if (options.device.is_cpu()) return Place{options.device, &HeapAllocator()};
    const absl::StatusOr<Allocator*> allocator =
        DeviceRuntime::AllocatorFor(options.device);
    if (!allocator.ok()) {
      return Annotate(allocator.status(),
                      absl::StrCat("no memory for a tensor on ",
                                   options.device.ToString()));
    }
    return Place{(*allocator)->device(), *allocator};
  }
  SHERD_RETURN_IF_ERROR(options.device.status());
  const Device device = options.allocator->device();
  if (!SameDevice(device, options.device)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor on ", options.device.ToString(),
        " needs an allocator for that device; '", options.allocator->name(),
        "' is for ", device.ToString()));
  }
  return Place{device.index >= 0 ? device : options.device, options.allocator};
}

// Where borrowed memory lies, which is checked for devices.
absl::StatusOr<Device> LocateBorrowed(const void* data, const Device& device) {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  SHERD_ASSIGN_OR_RETURN(const std::optional<Device> found,
                         runtime->Locate(data));
  if (found.has_value() && SameDevice(*found, device)) {
    return *found;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot borrow memory of ", device.ToString(), ": the address is ",
      !found.has_value() ? "not of memory that it knows, perhaps the host's"
      : found->is_cpu()  ? "of pinned host memory"
                         : absl::StrCat("of ", found->ToString()),
      "; pass the device where the memory lies"));
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Empty(absl::Span<const int64_t> sizes,
                                     const TensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const int64_t bytes, NumBytes(sizes, options.dtype));
  Tensor tensor;
  tensor.device_ = options.device;
  if (!options.device.is_meta()) {
    SHERD_ASSIGN_OR_RETURN(const Place place, PlaceOf(options));
    tensor.device_ = place.device;
    SHERD_ASSIGN_OR_RETURN(
        tensor.storage_,
        Storage::Allocate(static_cast<size_t>(bytes), *place.allocator));
    tensor.data_ = static_cast<std::byte*>(tensor.storage_->data());
  }
  tensor.defined_ = true;
  tensor.dtype_ = options.dtype;
  tensor.numel_ = bytes / static_cast<int64_t>(SizeOf(options.dtype));
  tensor.sizes_.assign(sizes.begin(), sizes.end());
  tensor.strides_ = ContiguousStrides(sizes);
  return tensor;
}

absl::StatusOr<Tensor> Tensor::Zeros(absl::Span<const int64_t> sizes,
                                     const TensorOptions& options) {
  return Full(sizes, false, options);
}

absl::StatusOr<Tensor> Tensor::Ones(absl::Span<const int64_t> sizes,
                                    const TensorOptions& options) {
  return Full(sizes, true, options);
}

absl::StatusOr<Tensor> Tensor::FromRaw(const void* values, size_t count,
                                       absl::Span<const int64_t> sizes,
                                       DType dtype) {
  SHERD_ASSIGN_OR_RETURN(const int64_t expected, NumElements(sizes));
  if (static_cast<uint64_t>(expected) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", FormatDims(sizes), " needs ", expected,
                     " values, got ", count));
  }
  SHERD_ASSIGN_OR_RETURN(Tensor tensor, Empty(sizes, {.dtype = dtype}));
  if (count > 0) std::memcpy(tensor.data_, values, count * SizeOf(dtype));
  return tensor;
}

absl::StatusOr<Tensor> Tensor::FromStorage(std::shared_ptr<Storage> storage,
                                           int64_t byte_offset,
                                           absl::Span<const int64_t> sizes,
                                           DType dtype) {
  SHERD_RETURN_IF_ERROR(NumBytes(sizes, dtype).status());
  return FromStorageStrided(std::move(storage), byte_offset, sizes,
                            ContiguousStrides(sizes), dtype);
}

absl::StatusOr<Tensor> Tensor::FromStorageStrided(
    std::shared_ptr<Storage> storage, int64_t byte_offset,
    absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
    DType dtype) {
  if (storage == nullptr) {
    return absl::InvalidArgumentError("a tensor needs storage, got none");
  }
  if (sizes.size() != strides.size()) {
    return ShapeMismatch("there must be one stride per dimension", sizes,
                         strides);
  }
  SHERD_ASSIGN_OR_RETURN(const int64_t numel, NumElements(sizes));
  for (int64_t stride : strides) {
    if (stride < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "strides must not be negative, got ", FormatDims(strides)));
    }
  }
  const std::optional<int64_t> extent = ByteExtent(sizes, strides, dtype);
  const std::optional<int64_t> end =
      extent.has_value() ? CheckedAdd(byte_offset, *extent) : std::nullopt;
  if (byte_offset < 0 || !end.has_value() ||
      static_cast<uint64_t>(*end) > storage->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", Name(dtype), " tensor of ", FormatDims(sizes), " with strides ",
        FormatDims(strides), " at byte ", byte_offset,
        " does not lie within its storage of ", storage->size(), " bytes"));
  }
  std::byte* const data =
      storage->data() == nullptr
          ? nullptr
          : static_cast<std::byte*>(storage->data()) + byte_offset;
  if (numel > 0 &&
      reinterpret_cast<uintptr_t>(data) % AlignmentOf(dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", Name(dtype), " tensor at byte ", byte_offset,
                     " is not aligned to ", AlignmentOf(dtype),
                     " bytes; copy it to a tensor of its own"));
  }
  Tensor tensor;
  tensor.defined_ = true;
  tensor.dtype_ = dtype;
  tensor.device_ = storage->device();
  tensor.numel_ = numel;
  tensor.data_ = data;
  tensor.storage_ = std::move(storage);
  tensor.sizes_.assign(sizes.begin(), sizes.end());
  tensor.strides_.assign(strides.begin(), strides.end());
  return tensor;
}

absl::StatusOr<Tensor> Tensor::FromBorrowed(
    void* data, absl::Span<const int64_t> sizes, DType dtype,
    std::shared_ptr<const void> keep_alive, const Device& device) {
  SHERD_ASSIGN_OR_RETURN(const int64_t bytes, NumBytes(sizes, dtype));
  SHERD_RETURN_IF_ERROR(device.status());
  Device place = device;
  if (!device.is_cpu() && !device.is_meta()) {
    if (bytes > 0 && data != nullptr) {
      SHERD_ASSIGN_OR_RETURN(place, LocateBorrowed(data, device));
    } else {
      SHERD_ASSIGN_OR_RETURN(place, DeviceRuntime::Resolve(device));
    }
  }
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage,
                         Storage::Borrow(data, static_cast<size_t>(bytes),
                                         std::move(keep_alive), place));
  return FromStorage(std::move(storage), 0, sizes, dtype);
}

absl::StatusOr<int64_t> Tensor::size(int64_t dim) const {
  SHERD_ASSIGN_OR_RETURN(const int d, NormalizeDim(dim, this->dim()));
  return sizes_[d];
}

bool Tensor::is_contiguous() const { return IsContiguous(sizes_, strides_); }

void Tensor::CheckTypedAccess(DType dtype, bool for_writing) const {
  SHERD_CHECK(dtype == dtype_)
      << "access to a " << dtype_ << " tensor as " << dtype;
  SHERD_CHECK(!for_writing || storage_ == nullptr || storage_->writable())
      << "write access to a read-only tensor";
}

absl::Status Tensor::CheckHasData() const {
  if (!defined_) {
    return absl::FailedPreconditionError("the tensor is undefined");
  }
  if (storage_ == nullptr) {
    return absl::FailedPreconditionError(
        "the tensor is on the device meta and has no data");
  }
  return absl::OkStatus();
}

absl::Status Tensor::CheckReadable() const {
  SHERD_RETURN_IF_ERROR(CheckHasData());
  if (!device_.is_cpu()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the tensor is on ", device_.ToString(),
        "; expected one in host memory: move it there with To(Device())"));
  }
  return absl::OkStatus();
}

absl::Status Tensor::CheckWritable() const {
  SHERD_RETURN_IF_ERROR(CheckHasData());
  if (!storage_->writable()) {
    return absl::FailedPreconditionError(
        "the tensor's storage is read-only; write to a Clone()");
  }
  if (!IsNonOverlapping(sizes_, strides_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements of the tensor coincide: sizes ", FormatDims(sizes_),
        ", strides ", FormatDims(strides_), "; write to a Clone()"));
  }
  return absl::OkStatus();
}

absl::Status Tensor::ReadElement(absl::Span<const int64_t> index, DType dtype,
                                 void* value) const {
  SHERD_RETURN_IF_ERROR(CheckHasData());
  if (dtype != dtype_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor holds ", Name(dtype_), ", not ", Name(dtype)));
  }
  if (index.size() != sizes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an index into ", FormatDims(sizes_), " has ",
                     sizes_.size(), " entries, got ", index.size()));
  }
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < 0 || index[d] >= sizes_[d]) {
      return absl::OutOfRangeError(absl::StrCat(
          "index ", FormatDims(index), " is outside ", FormatDims(sizes_)));
    }
  }
  const int64_t offset = ElementOffset(index, strides_);
  if (!device_.is_cpu()) {
    SHERD_ASSIGN_OR_RETURN(const Tensor element,
                           View(offset, {}, {}).To(Device()));
    return element.ReadElement({}, dtype, value);
  }
  DispatchDType(dtype_, [&](auto tag) {
    using T = typename decltype(tag)::type;
    *static_cast<T*>(value) =
        Load<T>(data_ + offset * static_cast<int64_t>(sizeof(T)));
  });
  return absl::OkStatus();
}

Tensor Tensor::View(int64_t element_offset, Dims sizes, Dims strides) const {
  Tensor view;
  view.defined_ = true;
  view.dtype_ = dtype_;
  view.device_ = device_;
  view.storage_ = storage_;
  view.numel_ = Volume(sizes);
  // An empty view may begin past the end; nothing is read there.
  view.data_ =
      data_ == nullptr || view.numel_ == 0
          ? data_
          : data_ + element_offset * static_cast<int64_t>(element_size());
  view.sizes_ = std::move(sizes);
  view.strides_ = std::move(strides);
  return view;
}

absl::StatusOr<Tensor> Tensor::Narrow(int64_t dim, int64_t start,
                                      int64_t length) const {
  SHERD_ASSIGN_OR_RETURN(const int d, NormalizeDim(dim, this->dim()));
  if (start < 0 || length < 0 || start > sizes_[d] ||
      length > sizes_[d] - start) {
    return absl::OutOfRangeError(
        absl::StrCat("cannot take ", length, " elements from ", start,
                     " on along dimension ", d, " of ", FormatDims(sizes_)));
  }
  Dims sizes = sizes_;
  sizes[d] = length;
  return View(start * strides_[d], std::move(sizes), strides_);
}

absl::StatusOr<Tensor> Tensor::Narrow(absl::Span<const int64_t> offsets,
                                      absl::Span<const int64_t> sizes) const {
  if (!defined_) return CheckHasData();
  if (offsets.size() != sizes_.size() || sizes.size() != sizes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a box in a tensor of ", FormatDims(sizes_), " needs ",
                     sizes_.size(), " offsets and sizes, got ",
                     FormatDims(offsets), " and ", FormatDims(sizes)));
  }
  const BoxView box(offsets, sizes);
  if (!IsInside(box, sizes_, TrailingBoxes::kAllowed)) {
    return absl::OutOfRangeError(absl::StrCat(
        "the box of ", FormatBox(box), " is not inside ", FormatDims(sizes_)));
  }
  // An empty box, which may trail, begins nowhere.
  const int64_t offset = IsEmpty(box) ? 0 : ElementOffset(offsets, strides_);
  return View(offset, Dims(sizes.begin(), sizes.end()), strides_);
}

absl::StatusOr<Tensor> Tensor::Select(int64_t dim, int64_t index) const {
  SHERD_ASSIGN_OR_RETURN(const int d, NormalizeDim(dim, this->dim()));
  if (index < -sizes_[d] || index >= sizes_[d]) {
    return absl::OutOfRangeError(absl::StrCat("index ", index,
                                              " is out of range for dimension ",
                                              d, " of ", FormatDims(sizes_)));
  }
  if (index < 0) index += sizes_[d];
  const int64_t offset = index * strides_[d];
  Dims sizes = sizes_;
  Dims strides = strides_;
  sizes.erase(sizes.begin() + d);
  strides.erase(strides.begin() + d);
  return View(offset, std::move(sizes), std::move(strides));
}

absl::StatusOr<Tensor> Tensor::Transpose(int64_t dim0, int64_t dim1) const {
  SHERD_ASSIGN_OR_RETURN(const int d0, NormalizeDim(dim0, this->dim()));
  SHERD_ASSIGN_OR_RETURN(const int d1, NormalizeDim(dim1, this->dim()));
  Dims sizes = sizes_;
  Dims strides = strides_;
  std::swap(sizes[d0], sizes[d1]);
  std::swap(strides[d0], strides[d1]);
  return View(0, std::move(sizes), std::move(strides));
}

absl::StatusOr<Tensor> Tensor::Permute(absl::Span<const int64_t> dims) const {
  if (!defined_) return CheckHasData();
  if (dims.size() != sizes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a permutation of ", sizes_.size(), " dimensions has ",
                     sizes_.size(), " entries, got ", FormatDims(dims)));
  }
  Dims sizes(dims.size());
  Dims strides(dims.size());
  uint64_t seen = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(const int d, NormalizeDim(dims[i], dim()));
    const uint64_t bit = uint64_t{1} << d;
    if ((seen & bit) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(FormatDims(dims), " names dimension ", d,
                       " twice; expected every dimension once"));
    }
    seen |= bit;
    sizes[i] = sizes_[d];
    strides[i] = strides_[d];
  }
  return View(0, std::move(sizes), std::move(strides));
}

absl::StatusOr<Tensor> Tensor::Reshape(absl::Span<const int64_t> sizes) const {
  if (!defined_) return CheckHasData();
  SHERD_ASSIGN_OR_RETURN(Dims new_sizes, InferSizes(numel_, sizes));
  if (numel_ == 0) {
    Dims strides = ContiguousStrides(new_sizes);
    return View(0, std::move(new_sizes), std::move(strides));
  }
  std::optional<Dims> strides = ReshapedStrides(sizes_, strides_, new_sizes);
  if (!strides.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor of ", FormatDims(sizes_), " with strides ",
        FormatDims(strides_), " cannot be viewed as ", FormatDims(new_sizes),
        " without a copy; use ReshapeOrCopy"));
  }
  return View(0, std::move(new_sizes), *std::move(strides));
}

absl::StatusOr<Tensor> Tensor::Flatten() const { return Reshape({numel_}); }

absl::StatusOr<Tensor> Tensor::ViewAs(DType dtype) const {
  if (!defined_) return CheckHasData();
  // complex64 has the size of float64 but half its alignment.
  if (SizeOf(dtype) != element_size() ||
      reinterpret_cast<uintptr_t>(data_) % AlignmentOf(dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements of ", Name(dtype_), " cannot be viewed as ", Name(dtype)));
  }
  Tensor view = *this;
  view.dtype_ = dtype;
  return view;
}

absl::StatusOr<Tensor> Tensor::ViewAsReal() const {
  if (!IsComplex(dtype_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a complex tensor to view as real, got ", Name(dtype_)));
  }
  if (dim() == kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor has at most ", kMaxRank, " dimensions"));
  }
  Tensor view = *this;
  view.dtype_ = dtype_ == kComplex64 ? kFloat32 : kFloat64;
  view.numel_ *= 2;
  for (int64_t& stride : view.strides_) stride *= 2;
  view.sizes_.push_back(2);
  view.strides_.push_back(1);
  return view;
}

absl::StatusOr<Tensor> Tensor::ViewAsComplex() const {
  bool fits = (dtype_ == kFloat32 || dtype_ == kFloat64) && dim() > 0 &&
              sizes_.back() == 2 && strides_.back() == 1;
  for (int64_t d = 0; fits && d + 1 < dim(); ++d) {
    fits = sizes_[d] <= 1 || strides_[d] % 2 == 0;
  }
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected float32 or float64 with a contiguous last dimension of 2 to "
        "view as complex, got ",
        Name(dtype_), " of ", FormatDims(sizes_), " with strides ",
        FormatDims(strides_)));
  }
  Tensor view = *this;
  view.dtype_ = dtype_ == kFloat32 ? kComplex64 : kComplex128;
  view.numel_ /= 2;
  view.sizes_.pop_back();
  view.strides_.pop_back();
  for (int64_t& stride : view.strides_) stride /= 2;
  return view;
}

absl::StatusOr<Tensor> Tensor::ReshapeOrCopy(
    absl::Span<const int64_t> sizes) const {
  if (!defined_) return CheckHasData();
  SHERD_ASSIGN_OR_RETURN(const Dims new_sizes, InferSizes(numel_, sizes));
  if (numel_ == 0 || ReshapedStrides(sizes_, strides_, new_sizes).has_value()) {
    return Reshape(new_sizes);
  }
  SHERD_ASSIGN_OR_RETURN(const Tensor copy, Clone());
  return copy.Reshape(new_sizes);
}

absl::StatusOr<Tensor> Tensor::Contiguous() const {
  if (defined_ && is_contiguous()) return *this;
  return Clone();
}

absl::StatusOr<Tensor> Tensor::Clone() const {
  SHERD_RETURN_IF_ERROR(CheckHasData());
  SHERD_ASSIGN_OR_RETURN(Tensor copy,
                         Empty(sizes_, {.dtype = dtype_, .device = device_}));
  SHERD_RETURN_IF_ERROR(copy.CopyElements(*this));
  return copy;
}

absl::StatusOr<Tensor> Tensor::To(const Device& device) const {
  SHERD_RETURN_IF_ERROR(CheckHasData());
  if (device.is_meta()) {
    return absl::InvalidArgumentError(
        "a tensor cannot be moved to the device meta, which has no data; "
        "create one there with Empty()");
  }
  SHERD_ASSIGN_OR_RETURN(const Device to, DeviceRuntime::Resolve(device));
  if (to == device_ || (to.is_cpu() && device_.is_cpu())) return *this;
  SHERD_ASSIGN_OR_RETURN(Tensor copy,
                         Empty(sizes_, {.dtype = dtype_, .device = to}));
  SHERD_RETURN_IF_ERROR(copy.CopyElements(*this));
  return copy;
}

absl::StatusOr<Tensor> Tensor::To(DType dtype) const {
  if (defined_ && dtype == dtype_) return *this;
  SHERD_RETURN_IF_ERROR(CheckReadable());
  SHERD_RETURN_IF_ERROR(CheckCast(dtype_, dtype));
  SHERD_ASSIGN_OR_RETURN(Tensor result, Empty(sizes_, {.dtype = dtype}));
  std::byte* out = result.data_;
  ForEachRun<1>(sizes_, {{{data_, strides_, element_size()}}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  CastElements(dtype_, at[0], steps[0], dtype, out, count);
                  out += count * static_cast<int64_t>(SizeOf(dtype));
                  return true;
                });
  return result;
}

absl::Status Tensor::CopyFrom(const Tensor& src) {
  SHERD_RETURN_IF_ERROR(CheckWritable());
  SHERD_RETURN_IF_ERROR(src.CheckHasData());
  if (sizes_ != src.sizes_) {
    return ShapeMismatch("sizes of the two tensors differ", sizes_, src.sizes_);
  }
  if (dtype_ != src.dtype_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtypes of the two tensors differ: expected ", Name(dtype_), ", got ",
        Name(src.dtype_), "; convert with To()"));
  }
  if (numel_ == 0) return absl::OkStatus();
  const MemoryAccess to = AccessToTensor(*this, Access::kWrite);
  const MemoryAccess from = AccessToTensor(src, Access::kRead);
  if (IsSameMemory(to, from)) return absl::OkStatus();
  if (MayShareMemory(to, from)) {
    SHERD_ASSIGN_OR_RETURN(const Tensor copy, src.Clone());
    return CopyElements(copy);
  }
  return CopyElements(src);
}

absl::Status Tensor::CopyElements(const Tensor& src) {
  if (numel_ == 0) return absl::OkStatus();
  if (device_.is_cpu() && src.device_.is_cpu()) {
    StridedCopy(data_, strides_, src.data_, src.strides_, sizes_,
                element_size());
    return absl::OkStatus();
  }
  return internal::Transfer({*storage_, data_, strides_},
                            {*src.storage_, src.data_, src.strides_}, sizes_,
                            element_size());
}

absl::Status Tensor::FillFrom(const void* value, DType value_dtype) {
  SHERD_RETURN_IF_ERROR(CheckWritable());
  alignas(16) std::array<std::byte, 16> element;
  SHERD_RETURN_IF_ERROR(
      CastChecked(value_dtype, value, dtype_, element.data()));
  if (numel_ == 0) return absl::OkStatus();
  if (!device_.is_cpu()) {
    SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                           DeviceRuntime::For(device_.type));
    const DeviceStream stream = CurrentStream(device_);
    SHERD_RETURN_IF_ERROR(runtime->Fill(stream, {.data = data_,
                                                 .strides = strides_,
                                                 .sizes = sizes_,
                                                 .element_size = element_size(),
                                                 .value = element.data()}));
    storage_->UsedOn(stream);
    return absl::OkStatus();
  }
  if (is_contiguous()) {
    std::memcpy(data_, element.data(), element_size());
    Replicate(data_, numel_, element_size());
    return absl::OkStatus();
  }
  const Dims repeat(sizes_.size(), 0);
  StridedCopy(data_, strides_, element.data(), repeat, sizes_, element_size());
  return absl::OkStatus();
}

bool Tensor::IsComparable(const Tensor& other) const {
  return CheckHasData().ok() && other.CheckHasData().ok() &&
         dtype_ == other.dtype_ && sizes_ == other.sizes_;
}

template <typename Compare>
bool Tensor::OnHost(const Tensor& other, Compare compare) const {
  const absl::StatusOr<Tensor> a = To(Device());
  const absl::StatusOr<Tensor> b = other.To(Device());
  return a.ok() && b.ok() && compare(*a, *b);
}

bool Tensor::BitwiseEqual(const Tensor& other) const {
  if (!IsComparable(other)) return false;
  if (!device_.is_cpu() || !other.device_.is_cpu()) {
    return OnHost(other, [](const Tensor& a, const Tensor& b) {
      return a.BitwiseEqual(b);
    });
  }
  const int64_t bytes = static_cast<int64_t>(element_size());
  const std::array<LoopOperand, 2> operands = {
      {{data_, strides_, element_size()},
       {other.data_, other.strides_, element_size()}}};
  return ForEachRun<2>(
      sizes_, operands, [&](const auto& at, const auto& steps, int64_t count) {
        if (steps[0] == bytes && steps[1] == bytes) {
          return std::memcmp(at[0], at[1],
                             static_cast<size_t>(count * bytes)) == 0;
        }
        for (int64_t i = 0; i < count; ++i) {
          if (std::memcmp(at[0] + i * steps[0], at[1] + i * steps[1],
                          static_cast<size_t>(bytes)) != 0) {
            return false;
          }
        }
        return true;
      });
}

bool Tensor::Equal(const Tensor& other) const {
  if (!IsComparable(other)) return false;
  if (!device_.is_cpu() || !other.device_.is_cpu()) {
    return OnHost(other,
                  [](const Tensor& a, const Tensor& b) { return a.Equal(b); });
  }
  if (!IsFloatingPoint(dtype_) && !IsComplex(dtype_)) {
    return BitwiseEqual(other);
  }
  const std::array<LoopOperand, 2> operands = {
      {{data_, strides_, element_size()},
       {other.data_, other.strides_, element_size()}}};
  return DispatchDType(dtype_, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ForEachRun<2>(
        sizes_, operands, [](const auto& at, const auto& steps, int64_t count) {
          return RunsEqual<T>(at[0], steps[0], at[1], steps[1], count);
        });
  });
}

bool Tensor::AllClose(const Tensor& other, double rtol, double atol,
                      bool equal_nan) const {
  if (!IsComparable(other)) return false;
  if (!device_.is_cpu() || !other.device_.is_cpu()) {
    return OnHost(other, [&](const Tensor& a, const Tensor& b) {
      return a.AllClose(b, rtol, atol, equal_nan);
    });
  }
  if (dtype_ == kBool || IsCarried(dtype_)) return BitwiseEqual(other);
  const std::array<LoopOperand, 2> operands = {
      {{data_, strides_, element_size()},
       {other.data_, other.strides_, element_size()}}};
  return DispatchDType(dtype_, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return ForEachRun<2>(sizes_, operands,
                         [&](const auto& at, const auto& steps, int64_t count) {
                           for (int64_t i = 0; i < count; ++i) {
                             if (!IsClose(ElementAt<T>(at[0], i * steps[0]),
                                          ElementAt<T>(at[1], i * steps[1]),
                                          rtol, atol, equal_nan)) {
                               return false;
                             }
                           }
                           return true;
                         });
  });
}

std::string Tensor::ToString() const {
  if (!defined_) return "Tensor(undefined)";
  std::string text = absl::StrCat("Tensor(", Name(dtype_), ", ",
                                  FormatDims(sizes_), ", ", device_.ToString());
  if (storage_ == nullptr || numel_ == 0) return absl::StrCat(text, ")");
  // A failure of the device is not an error here.
  const absl::StatusOr<Tensor> first = FirstElements().To(Device());
  if (!first.ok()) return absl::StrCat(text, ")");
  int printed = 0;
  const auto print = [&](const std::byte* element) {
    absl::StrAppend(&text, printed == 0 ? ": " : ", ",
                    ElementToString(dtype_, element));
    return ++printed < kPrintedElements;
  };
  ForEachRun<1>(first->sizes_,
                {{{first->data_, first->strides_, element_size()}}},
                [&](const auto& at, const auto& steps, int64_t count) {
                  for (int64_t i = 0; i < count; ++i) {
                    if (!print(at[0] + i * steps[0])) return false;
                  }
                  return true;
                });
  if (numel_ > kPrintedElements) text += ", …";
  return absl::StrCat(text, ")");
}

Tensor Tensor::FirstElements() const {
  Dims sizes = sizes_;
  int64_t wanted = kPrintedElements;
  for (size_t d = sizes.size(); d > 0; --d) {
    int64_t& size = sizes[d - 1];
    const int64_t all = size;
    size = std::min(size, wanted);
    // How many slices of the next dimension it takes.
    wanted = (wanted + all - 1) / all;
  }
  return View(0, std::move(sizes), strides_);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.ToString();
}

}  // namespace sherd
