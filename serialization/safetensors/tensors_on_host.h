#ifndef SHERD_SERIALIZATION_SAFETENSORS_TENSORS_ON_HOST_H_
#define SHERD_SERIALIZATION_SAFETENSORS_TENSORS_ON_HOST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {

// The tensors of a list in its order: of those that are short and on a device,
// copies in host memory, which are made some tensors ahead, many at once, so
// that a thousand small ones do not cost as many waits for the device. Not
// thread-safe.
class TensorsOnHost {
 public:
  // Longer ones stay on their device: ReadDeviceBox hides the wait.
  static constexpr int64_t kLongest = int64_t{1} << 20;

  // The tensor number `i`, of `count`; with `ahead` called for any of them,
  // ahead of At and more than once.
  using TensorFn = absl::FunctionRef<absl::StatusOr<Tensor>(size_t i)>;

  // `tensor` is borrowed. Without `ahead` no copies are made.
  TensorsOnHost(size_t count, TensorFn tensor, bool ahead)
      : count_(count), tensor_(tensor), ahead_(ahead) {}

  // The tensor number `i`, which is larger than at the last call, or a copy of
  // it, contiguous and in host memory; valid until the next call. A copy has
  // what the work that was queued on the current stream before left in it.
  //   others  Of `tensor` and DeviceRuntime.
  //
  // Memory. Two pinned blocks of kDeviceBlockBytes, once one is on a device.
  absl::StatusOr<Tensor> At(size_t i);

 private:
  // Consecutive tensors, from number `first` on, that have copies in a block,
  // and these.
  struct Batch {
    size_t first = 0;
    std::vector<Tensor> tensors;
    std::vector<Tensor> copies;

    bool Has(size_t i) const { return i - first < copies.size(); }
    size_t end() const { return first + copies.size(); }
  };

  // Queues copies of the tensors from number `first` on to a block, as far as
  // they may have one and there is room.
  absl::Status Gather(size_t block, size_t first);

  const size_t count_;
  const TensorFn tensor_;
  const bool ahead_;
  std::optional<DeviceBlocks> blocks_;
  std::array<Batch, 2> batches_;
  // The block that At returns from; the copies of the other one are queued.
  size_t turn_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_TENSORS_ON_HOST_H_
