#ifndef SHERD_CORE_NN_LOOKUP_BAG_VIEW_H_
#define SHERD_CORE_NN_LOOKUP_BAG_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// A contiguous tensor of int32 or int64, read as int64.
class IndexList {
 public:
  IndexList() = default;
  explicit IndexList(const Tensor& tensor)
      : data_(tensor.data()),
        size_(tensor.numel()),
        wide_(tensor.dtype() == kInt64) {}
  IndexList(const void* data, int64_t size, bool wide)
      : data_(data), size_(size), wide_(wide) {}

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return wide_ ? static_cast<const int64_t*>(data_)[i]
                 : static_cast<const int32_t*>(data_)[i];
  }
  // Calls `visit` with the elements as a pointer to their type.
  template <typename Visitor>
  decltype(auto) Dispatch(Visitor&& visit) const {
    return wide_ ? visit(static_cast<const int64_t*>(data_))
                 : visit(static_cast<const int32_t*>(data_));
  }

 private:
  const void* data_ = nullptr;
  int64_t size_ = 0;
  bool wide_ = true;
};

// The bags of one table, checked: valid for reading the table. Keeps their
// memory.
class BagView {
 public:
  // `table`: dtype and size, whose dimensions have been checked. What lies on
  // `device`, that of the table, is copied to host memory. Errors: those of
  // LookUp, without the table's number.
  absl::Status Set(DType dtype, int64_t rows, const Bags& bags,
                   const BagOptions& options, const Device& device = {});
  // Lets go of the memory.
  void Clear() {
    const BagView none;
    *this = none;
  }

  const IndexList& ids() const { return ids_; }
  int64_t bags() const { return bags_; }
  // The ids of bag b are those at [begin(b), begin(b + 1)).
  int64_t begin(int64_t b) const {
    if (offsets_.size() == 0) return b * bag_length_;
    return b < bags_ ? offsets_[b] : ids_.size();
  }
  // The id that is left out of bags; -1: none.
  int64_t padding() const { return padding_; }
  bool weighted() const { return weights_.defined(); }
  // Writes the weights at [begin, end) in the dtype of sums: float64 for a
  // table of float64, otherwise float32.
  void CopyWeights(int64_t begin, int64_t end, void* to) const;
  // Sizes of the result for a table of so many columns.
  Dims ResultSize(int64_t columns) const;

 private:
  absl::Status SetIds(int64_t rows, const Bags& bags,
                      const BagOptions& options);
  absl::Status SetOffsets(const Bags& bags, const BagOptions& options);
  absl::Status SetWeights(DType dtype, const Bags& bags,
                          const BagOptions& options);

  Device device_;
  Tensor id_tensor_;
  Tensor offset_tensor_;
  Tensor weights_;
  IndexList ids_;
  IndexList offsets_;
  int64_t bags_ = 0;
  int64_t bag_length_ = 1;
  int64_t padding_ = -1;
  bool pooled_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_BAG_VIEW_H_
