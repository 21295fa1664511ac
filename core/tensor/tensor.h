#ifndef SHERD_CORE_TENSOR_TENSOR_H_
#define SHERD_CORE_TENSOR_TENSOR_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

struct TensorOptions {
  DType dtype = kFloat32;
  // The device of the data; meta for a tensor without data. "cuda" without an
  // index is the calling thread's current device.
  Device device = {};
  // Null means HeapAllocator(), or DeviceRuntime::MemoryOf of another device.
  // For `device`; must outlive the tensors.
  Allocator* allocator = nullptr;
};

namespace internal {

// The type of a C++ value before it is converted to a tensor's dtype. Integers
// of one width and sign are one type here, independent of their C++ name.
template <typename T>
constexpr DType ValueDType() {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr bool kSigned = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return kSigned ? kInt8 : kUInt8;
      case 2:
        return kSigned ? kInt16 : kUInt16;
      case 4:
        return kSigned ? kInt32 : kUInt32;
      default:
        return kSigned ? kInt64 : kUInt64;
    }
  } else {
    return DTypeOf<T>();
  }
}

}  // namespace internal

// A dense tensor: dtype, sizes and strides over shared storage.
//
// Value. A handle: copying it shares the data, and so do the views below. A
// write through one handle is seen through all; Clone() makes data of its own.
// A default-constructed tensor is undefined: it has rank 0, no elements and no
// data. A tensor on the device "meta" has sizes and dtype but no data.
//
// Errors. Functions report errors of the caller by absl::Status:
//   kInvalidArgument     Sizes, dtype or shape do not fit.
//   kOutOfRange          A dimension, index or range is outside the tensor.
//   kFailedPrecondition  The tensor is undefined or meta where data is needed,
//                        is not in host memory where it has to be, or may not
//                        be written to.
//   kResourceExhausted   No memory.
//   other                Of devices: see device_runtime.h.
// After an error nothing has changed. Only typed access to the wrong type
// (data_as, mutable_data_as) ends the process, as a bug in the caller.
//
// Devices. Functions that create, fill or copy tensors on a device queue that
// work on the calling thread's current stream of the device (device_stream.h)
// and return. Functions that pass elements to the host wait for that stream: a
// copy into host memory, At, comparisons and ToString. No other function waits.
// Between two devices, the current stream of each waits for the other's. A
// pinned source (DeviceRuntime::PinnedMemory) is read when the copy runs, any
// other host memory before the call returns. Memory stays until the work queued
// here has run, even if the last handle is destroyed before.
//
// Threads. Like a standard container: const calls may run concurrently, and
// the caller orders accesses to shared data; on devices, streams too.
class Tensor {
 public:
  Tensor() = default;

  // Creation.

  // A contiguous tensor with unspecified contents.
  static absl::StatusOr<Tensor> Empty(absl::Span<const int64_t> sizes,
                                      const TensorOptions& options = {});
  static absl::StatusOr<Tensor> Zeros(absl::Span<const int64_t> sizes,
                                      const TensorOptions& options = {});
  static absl::StatusOr<Tensor> Ones(absl::Span<const int64_t> sizes,
                                     const TensorOptions& options = {});

  // Every element is `value`, converted as by Fill.
  template <typename T>
  static absl::StatusOr<Tensor> Full(absl::Span<const int64_t> sizes, T value,
                                     const TensorOptions& options = {}) {
    absl::StatusOr<Tensor> tensor = Empty(sizes, options);
    if (!tensor.ok() || options.device.is_meta()) return tensor;
    if (absl::Status status = tensor->Fill(value); !status.ok()) return status;
    return tensor;
  }

  // A contiguous copy of `values` in row-major order.
  //   kInvalidArgument  values.size() is not the product of `sizes`.
  template <typename T>
  static absl::StatusOr<Tensor> FromSpan(absl::Span<const T> values,
                                         absl::Span<const int64_t> sizes) {
    return FromRaw(values.data(), values.size(), sizes, DTypeOf<T>());
  }

  // A tensor of rank 0.
  template <typename T>
  static absl::StatusOr<Tensor> Scalar(T value) {
    return FromRaw(&value, 1, {}, internal::ValueDType<T>());
  }

  // A contiguous tensor over part of `storage`, which it shares.
  //   kInvalidArgument  The bytes [byte_offset, byte_offset + nbytes) are not
  //                     inside the storage, or their address is not aligned to
  //                     AlignmentOf(dtype): copy such data instead.
  static absl::StatusOr<Tensor> FromStorage(std::shared_ptr<Storage> storage,
                                            int64_t byte_offset,
                                            absl::Span<const int64_t> sizes,
                                            DType dtype);

  // The same with strides in elements, none negative. Strides may make
  // elements coincide; such a tensor can be read but not written to.
  static absl::StatusOr<Tensor> FromStorageStrided(
      std::shared_ptr<Storage> storage, int64_t byte_offset,
      absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
      DType dtype);

  // A contiguous tensor over memory that the caller owns and keeps alive; see
  // Storage::Borrow. Memory of a device may come from any source (cudaMalloc,
  // another library); "cuda" without an index is the device that holds it.
  //   kInvalidArgument  `data` is not memory of `device`; the message names its
  //                     device.
  static absl::StatusOr<Tensor> FromBorrowed(
      void* data, absl::Span<const int64_t> sizes, DType dtype,
      std::shared_ptr<const void> keep_alive = nullptr,
      const Device& device = {});

  // Properties.

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  absl::Span<const int64_t> sizes() const { return sizes_; }
  absl::Span<const int64_t> strides() const { return strides_; }
  // Number of dimensions.
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  // Size of a dimension; -1 is the last one.
  //   kOutOfRange  `dim` is not in [-dim(), dim()).
  absl::StatusOr<int64_t> size(int64_t dim) const;
  int64_t numel() const { return numel_; }
  // Bytes of the elements, without gaps between them.
  int64_t nbytes() const {
    return numel_ * static_cast<int64_t>(SizeOf(dtype_));
  }
  size_t element_size() const { return SizeOf(dtype_); }
  // Row-major without gaps; see IsContiguous in shape.h.
  bool is_contiguous() const;
  // Has data that may be written to.
  bool writable() const { return storage_ != nullptr && storage_->writable(); }
  // Null for undefined and meta tensors.
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  // Address of the element with index 0, …, 0; null without data. The memory is
  // writable only if writable(), and the host may access it only if device() is
  // the CPU.
  void* data() { return data_; }
  const void* data() const { return data_; }

  // The same, typed. Ends the process if T is not the type of dtype(), and the
  // first also if the tensor has data that may not be written to.
  template <typename T>
  T* mutable_data_as() {
    CheckTypedAccess(DTypeOf<T>(), /*for_writing=*/true);
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* data_as() const {
    CheckTypedAccess(DTypeOf<T>(), /*for_writing=*/false);
    return reinterpret_cast<const T*>(data_);
  }

  // The element at `index`, one entry per dimension, none negative.
  //   kInvalidArgument  T is not the type of dtype(), or the rank differs.
  template <typename T>
  absl::StatusOr<T> At(absl::Span<const int64_t> index) const {
    T value;
    absl::Status status = ReadElement(index, DTypeOf<T>(), &value);
    if (!status.ok()) return status;
    return value;
  }

  // Views: share the data.

  // The elements [start, start + length) of a dimension.
  absl::StatusOr<Tensor> Narrow(int64_t dim, int64_t start,
                                int64_t length) const;
  // The box of `sizes` at `offsets`, one entry per dimension. Where its size is
  // 0 the box may lie past the end, as empty trailing chunks do.
  absl::StatusOr<Tensor> Narrow(absl::Span<const int64_t> offsets,
                                absl::Span<const int64_t> sizes) const;
  // The slice at `index` of a dimension, which disappears.
  absl::StatusOr<Tensor> Select(int64_t dim, int64_t index) const;
  absl::StatusOr<Tensor> Transpose(int64_t dim0, int64_t dim1) const;
  // Dimension d of the result is dims[d] of this one.
  absl::StatusOr<Tensor> Permute(absl::Span<const int64_t> dims) const;
  // The same elements in row-major order with other sizes. One size may be -1:
  // it is computed from the others.
  //   kInvalidArgument  The number of elements differs, or no strides can
  //                     express the result: use ReshapeOrCopy.
  absl::StatusOr<Tensor> Reshape(absl::Span<const int64_t> sizes) const;
  // Reshape({numel()}).
  absl::StatusOr<Tensor> Flatten() const;
  // The same bytes as another dtype of the same size per element.
  absl::StatusOr<Tensor> ViewAs(DType dtype) const;
  // Complex as real numbers with a trailing dimension of 2: real, imaginary.
  absl::StatusOr<Tensor> ViewAsReal() const;
  // The inverse: float32 or float64 with a contiguous last dimension of 2.
  absl::StatusOr<Tensor> ViewAsComplex() const;

  // Copies.

  // Reshape where it can be a view, otherwise of a contiguous copy.
  absl::StatusOr<Tensor> ReshapeOrCopy(absl::Span<const int64_t> sizes) const;
  // This tensor if it is contiguous, otherwise a Clone.
  absl::StatusOr<Tensor> Contiguous() const;
  // A contiguous copy in new memory of the same device; of HeapAllocator() on
  // the CPU.
  absl::StatusOr<Tensor> Clone() const;
  // A contiguous copy on another device; this tensor if it is there already.
  // For the CPU: waits until the elements have arrived.
  //   kInvalidArgument  `device` is meta.
  absl::StatusOr<Tensor> To(const Device& device) const;
  // A contiguous copy with another dtype; this tensor if it has it already. In
  // host memory only.
  //
  // Values. To floating-point: rounded once, to nearest even. To bool: whether
  // it is not zero. Integer to integer: modulo 2^n. Floating-point to integer:
  // toward zero, limited to the range, NaN gives 0. Complex to real: the real
  // part. Real to complex: imaginary part 0.
  //   kUnimplemented  One of two different dtypes is carried: see IsCarried.
  absl::StatusOr<Tensor> To(DType dtype) const;

  // Writing.

  // Copies the elements of `src` into this tensor's, for any strides and
  // devices. The two may overlap: the result is as if `src` had been copied
  // before.
  //   kInvalidArgument  Sizes or dtypes differ, or elements of this tensor
  //                     coincide.
  absl::Status CopyFrom(const Tensor& src);

  // Sets every element to `value`, converted to dtype().
  //   kInvalidArgument  An integer or bool dtype cannot hold the value (a
  //                     fraction is dropped, but not a range exceeded), a
  //                     finite number overflows a floating-point dtype, or a
  //                     complex number with an imaginary part meets a real one.
  //   kUnimplemented    The dtype is carried, and the value is not 0.
  template <typename T>
  absl::Status Fill(T value) {
    return FillFrom(&value, internal::ValueDType<T>());
  }

  // Comparison.
  // False if dtypes or sizes differ, for tensors without data, and if a device
  // fails. Tensors may be on different devices: elements on a device other than
  // the CPU are copied to the CPU, so this is for tests.

  // Every element equals its counterpart as a number: NaN equals nothing, 0
  // equals -0. Elements of a carried dtype are compared by their bits, here and
  // in AllClose.
  bool Equal(const Tensor& other) const;
  // Every element has the bits of its counterpart.
  bool BitwiseEqual(const Tensor& other) const;
  // |a - b| <= atol + rtol * |b| for every pair, b from `other`. Infinities
  // are close to themselves only, NaN to NaN if `equal_nan`, otherwise to
  // nothing. Integers are compared exactly if both tolerances are 0.
  bool AllClose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8,
                bool equal_nan = false) const;

  // "Tensor(float32, [2, 3], cpu: 0, 1, 2, 3, 4, 5)": at most a dozen elements,
  // "…" for the rest.
  std::string ToString() const;

 private:
  static absl::StatusOr<Tensor> FromRaw(const void* values, size_t count,
                                        absl::Span<const int64_t> sizes,
                                        DType dtype);
  void CheckTypedAccess(DType dtype, bool for_writing) const;
  absl::Status ReadElement(absl::Span<const int64_t> index, DType dtype,
                           void* value) const;
  absl::Status FillFrom(const void* value, DType value_dtype);
  // Checks that the tensor has data, on any device.
  absl::Status CheckHasData() const;
  // Has data in host memory.
  absl::Status CheckReadable() const;
  absl::Status CheckWritable() const;
  // As CopyFrom, for a source of the same sizes and dtype that does not
  // overlap.
  absl::Status CopyElements(const Tensor& src);
  // Whether both have data of the same dtype and sizes.
  bool IsComparable(const Tensor& other) const;
  // Applies `compare` to copies of both in host memory.
  template <typename Compare>
  bool OnHost(const Tensor& other, Compare compare) const;
  // A box whose elements in row-major order begin with those that ToString
  // prints.
  Tensor FirstElements() const;
  // A view of this tensor at another offset with other sizes and strides.
  Tensor View(int64_t element_offset, Dims sizes, Dims strides) const;

  bool defined_ = false;
  DType dtype_ = kFloat32;
  Device device_;
  int64_t numel_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<Storage> storage_;
  Dims sizes_;
  Dims strides_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_TENSOR_H_
