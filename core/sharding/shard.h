#ifndef SHERD_CORE_SHARDING_SHARD_H_
#define SHERD_CORE_SHARDING_SHARD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

// A box of a sharded tensor with its elements.
struct Shard {
  Tensor tensor;
  ShardMetadata metadata;

  // The shard of `rank` that holds `tensor` at `offsets`.
  //   kInvalidArgument  The tensor is undefined or its rank is not the number
  //                     of offsets, `rank` is negative, or
  //                     ShardMetadata::Validate.
  static absl::StatusOr<Shard> FromTensorAndOffsets(
      Tensor tensor, absl::Span<const int64_t> offsets, int rank);

  //   kInvalidArgument     "Shard tensor size does not match with
  //                        metadata.shard_lengths", "Local shard tensor device
  //                        does not match with local Shard's placement", the
  //                        tensor is undefined, or ShardMetadata::Validate.
  //   kFailedPrecondition  ShardMetadata::Validate.
  absl::Status Validate() const;
};

// Checks the properties that shards of any sharded tensor must have.
//   kInvalidArgument  "Only torch.strided layout is currently supported", "Only
//                     torch.contiguous_format memory_format is currently
//                     supported".
absl::Status CheckShardedProperties(const TensorProperties& properties);

//   kFailedPrecondition  "Only dense CPU tensors can be pinned": pin_memory is
//                        set and `device` is another one.
absl::Status CheckPinnable(const TensorProperties& properties,
                           const Device& device);

// Whether the memory of `tensor` matches pin_memory: pinned memory if it is
// set, other memory if it is not. True for a tensor that is not in host memory
// or has no elements, and where nothing can be pinned because there is no
// device.
absl::StatusOr<bool> IsPinnedAsSaid(const TensorProperties& properties,
                                    const Tensor& tensor);

// Pinned host memory (DeviceRuntime::PinnedMemory), or null where there is no
// device that would use it.
Allocator* PinnedMemory();

// A contiguous tensor of these sizes and properties on `device`, contents
// unspecified: a rank's part of a sharded tensor. A null `allocator` is
// HeapAllocator(), with pin_memory PinnedMemory() if there is one, or the
// memory of the device. Sizes may be 0.
//   kInvalidArgument     From CheckShardedProperties; the sizes are negative or
//                        overflow.
//   kFailedPrecondition  From CheckPinnable; the device was made from malformed
//                        text.
//   kUnimplemented       No driver for such devices was found, and no allocator
//                        for them was given; the message lists what was tried.
//   kOutOfRange          The device does not exist.
//   kResourceExhausted   There is no memory.
absl::StatusOr<Tensor> MakeLocalTensor(absl::Span<const int64_t> sizes,
                                       const TensorProperties& properties,
                                       const Device& device = {},
                                       Allocator* allocator = nullptr);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARD_H_
