#include "sherd/serialization/safetensors/tensor_fingerprint.h"

#include <algorithm>

#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

BoxFingerprint::BoxFingerprint(absl::Span<const int64_t> tensor_sizes,
                               const BoxView& box, size_t element_size) {
  const int64_t element = static_cast<int64_t>(element_size);
  const Dims strides = ContiguousStrides(tensor_sizes);
  run_bytes_ = element;
  size_t d = box.sizes.size();
  while (d > 0) {
    --d;
    run_bytes_ *= box.sizes[d];
    if (box.sizes[d] != tensor_sizes[d]) break;
  }
  // Bytes from the first one of an innermost run to behind the last one.
  int64_t extent = run_bytes_;
  while (d > 0) {
    --d;
    const int64_t stride = strides[d] * element;
    if (box.sizes[d] > 1) {
      outer_.push_back(
          {.size = box.sizes[d], .stride = stride, .gap = stride - extent});
    }
    extent += (box.sizes[d] - 1) * stride;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < box.sizes.size(); ++i) {
    begin += box.offsets[i] * strides[i] * element;
  }
  bytes_from_begin_ = Volume(tensor_sizes) * element - begin;
  left_in_run_ = run_bytes_;
}

int64_t BoxFingerprint::NextGap() {
  for (Outer& outer : outer_) {
    if (++outer.index < outer.size) return outer.gap;
    outer.index = 0;
  }
  SHERD_CHECK(false) << "more bytes than the box has";
  return 0;
}

void BoxFingerprint::Add(absl::Span<const std::byte> data) {
  while (!data.empty()) {
    if (left_in_run_ == 0) {
      state_ = shift_(state_, static_cast<uint64_t>(NextGap()));
      left_in_run_ = run_bytes_;
    }
    const size_t n = std::min(data.size(), static_cast<size_t>(left_in_run_));
    state_ = LinearCrc32c(data.first(n), state_);
    left_in_run_ -= static_cast<int64_t>(n);
    data.remove_prefix(n);
  }
}

void BoxFingerprint::AddLinear(uint32_t linear, int64_t bytes) {
  SHERD_CHECK(contiguous());
  state_ = shift_(state_, static_cast<uint64_t>(bytes)) ^ linear;
  left_in_run_ -= bytes;
}

int64_t BoxFingerprint::BytesBehind() const {
  int64_t passed = run_bytes_ - left_in_run_;
  for (const Outer& outer : outer_) passed += outer.index * outer.stride;
  return bytes_from_begin_ - passed;
}

void BoxFingerprint::Skip(int64_t bytes) {
  if (bytes == 0) return;
  const int64_t behind = BytesBehind();
  // From the beginning of the first run of the innermost dimension.
  int64_t position = bytes + run_bytes_ - left_in_run_;
  int64_t runs = 1;
  for (const Outer& outer : outer_) {
    position += outer.index * runs * run_bytes_;
    runs *= outer.size;
  }
  SHERD_CHECK(position <= runs * run_bytes_) << "more bytes than the box has";
  // Behind its last byte a run is not left yet.
  int64_t run = (position - 1) / run_bytes_;
  left_in_run_ = (run + 1) * run_bytes_ - position;
  for (Outer& outer : outer_) {
    outer.index = run % outer.size;
    run /= outer.size;
  }
  state_ = shift_(state_, static_cast<uint64_t>(behind - BytesBehind()));
}

uint32_t BoxFingerprint::Take() {
  const uint32_t sum = shift_(state_, static_cast<uint64_t>(BytesBehind()));
  state_ = 0;
  return sum;
}

uint32_t BoxFingerprint::Finish() {
  SHERD_CHECK(left_in_run_ == 0) << left_in_run_ << " bytes are missing";
  return Take();
}

}  // namespace sherd
