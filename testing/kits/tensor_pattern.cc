#include "sherd/testing/tensor_pattern.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {
namespace {

using Element = std::array<std::byte, 16>;

Element PatternAt(int64_t number, uint64_t salt) {
  Element element;
  uint64_t state = static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15 + salt;
  for (std::byte& byte : element) {
    state ^= state >> 31;
    state *= 0xbf58476d1ce4e5b9;
    byte = static_cast<std::byte>(state >> 56);
  }
  return element;
}

// Visits each element with its byte offset in the tensor's memory and its
// row-major number in the global tensor.
void ForEachElement(
    const Tensor& tensor, absl::Span<const int64_t> offsets,
    absl::Span<const int64_t> global_size,
    absl::FunctionRef<bool(int64_t offset, int64_t number)> visit) {
  if (tensor.numel() == 0) return;
  const Dims global_strides = ContiguousStrides(global_size);
  const int64_t first = ElementOffset(offsets, global_strides);
  Dims at(offsets.size(), 0);
  while (true) {
    const int64_t offset = ElementOffset(at, tensor.strides()) *
                           static_cast<int64_t>(tensor.element_size());
    if (!visit(offset, first + ElementOffset(at, global_strides))) return;
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == tensor.sizes()[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

void FillPattern(Tensor tensor, absl::Span<const int64_t> offsets,
                 absl::Span<const int64_t> global_size, uint64_t salt) {
  if (!tensor.device().is_cpu()) {
    Tensor here =
        Tensor::Empty(tensor.sizes(), {.dtype = tensor.dtype()}).value();
    FillPattern(here, offsets, global_size, salt);
    ASSERT_TRUE(tensor.CopyFrom(here).ok());
    return;
  }
  std::byte* const data = static_cast<std::byte*>(tensor.data());
  ForEachElement(
      tensor, offsets, global_size, [&](int64_t offset, int64_t number) {
        const Element element = PatternAt(number, salt);
        std::memcpy(data + offset, element.data(), tensor.element_size());
        return true;
      });
}

void FillPattern(const ShardedTensor& tensor, uint64_t salt) {
  for (const Shard& shard : tensor.local_shards()) {
    FillPattern(shard.tensor, shard.metadata.offsets, tensor.size(), salt);
  }
}

Tensor PatternTensor(absl::Span<const int64_t> size, DType dtype,
                     uint64_t salt) {
  Tensor tensor = Tensor::Empty(size, {.dtype = dtype}).value();
  FillPattern(tensor, Dims(size.size(), 0), size, salt);
  return tensor;
}

::testing::AssertionResult HasPattern(const Tensor& tensor,
                                      absl::Span<const int64_t> offsets,
                                      absl::Span<const int64_t> global_size,
                                      uint64_t salt) {
  ::testing::AssertionResult result = ::testing::AssertionSuccess();
  if (!tensor.defined()) {
    return ::testing::AssertionFailure() << "the tensor is undefined";
  }
  if (!tensor.device().is_cpu()) {
    const absl::StatusOr<Tensor> here = tensor.To(Device());
    if (here.ok()) return HasPattern(*here, offsets, global_size, salt);
    return ::testing::AssertionFailure() << here.status();
  }
  const std::byte* const data = static_cast<const std::byte*>(tensor.data());
  ForEachElement(
      tensor, offsets, global_size, [&](int64_t offset, int64_t number) {
        const Element element = PatternAt(number, salt);
        if (std::memcmp(data + offset, element.data(), tensor.element_size()) ==
            0) {
          return true;
        }
        result = ::testing::AssertionFailure()
                 << "element " << number << " of " << FormatDims(global_size)
                 << " is wrong in the " << FormatDims(tensor.sizes()) << " at "
                 << FormatDims(offsets);
        return false;
      });
  return result;
}

::testing::AssertionResult HasPattern(const ShardedTensor& tensor,
                                      uint64_t salt) {
  return HasPattern(tensor, Dims(tensor.size().size(), 0), tensor.size(), salt);
}

::testing::AssertionResult HasPattern(const ShardedTensor& tensor,
                                      absl::Span<const int64_t> origin,
                                      absl::Span<const int64_t> whole_size,
                                      uint64_t salt) {
  for (const Shard& shard : tensor.local_shards()) {
    Dims offsets = shard.metadata.offsets;
    for (size_t d = 0; d < offsets.size(); ++d) offsets[d] += origin[d];
    ::testing::AssertionResult result =
        HasPattern(shard.tensor, offsets, whole_size, salt);
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sherd::testing
