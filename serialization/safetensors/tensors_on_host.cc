#include "sherd/serialization/safetensors/tensors_on_host.h"

#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

bool HasCopy(const Tensor& tensor) {
  return !tensor.device().is_cpu() && tensor.nbytes() > 0 &&
         tensor.nbytes() <= TensorsOnHost::kLongest;
}

BoxPiece PieceOf(const Tensor& tensor) {
  return {.bytes = tensor.nbytes(),
          .data = const_cast<std::byte*>(
              static_cast<const std::byte*>(tensor.data())),
          .contiguous = tensor.is_contiguous(),
          .sizes = tensor.sizes(),
          .strides = tensor.strides()};
}

}  // namespace

absl::StatusOr<Tensor> TensorsOnHost::At(size_t i) {
  if (!batches_[turn_].Has(i)) {
    if (batches_[1 - turn_].Has(i)) {
      turn_ = 1 - turn_;
    } else {
      SHERD_ASSIGN_OR_RETURN(Tensor tensor, tensor_(i));
      if (!ahead_ || !HasCopy(tensor)) return tensor;
      if (!blocks_.has_value() || !blocks_->IsOn(tensor.device())) {
        batches_ = {};
        blocks_.reset();
        SHERD_ASSIGN_OR_RETURN(
            DeviceBlocks blocks,
            DeviceBlocks::Create(tensor.device(), kDeviceBlockBytes));
        blocks_.emplace(std::move(blocks));
      }
      SHERD_RETURN_IF_ERROR(Gather(turn_, i));
    }
    // They are copied while these are read.
    SHERD_RETURN_IF_ERROR(Gather(1 - turn_, batches_[turn_].end()));
    SHERD_RETURN_IF_ERROR(blocks_->Await(turn_));
  }
  const Batch& batch = batches_[turn_];
  return batch.copies[i - batch.first];
}

absl::Status TensorsOnHost::Gather(size_t block, size_t first) {
  // It may have copies that were passed over.
  SHERD_RETURN_IF_ERROR(blocks_->Await(block));
  Batch& batch = batches_[block];
  batch = {.first = first};
  std::vector<DeviceBlocks::BoxCopy> copies;
  int64_t used = 0;
  for (size_t i = first; i < count_; ++i) {
    // Its error is that of At.
    absl::StatusOr<Tensor> tensor = tensor_(i);
    if (!tensor.ok() || !HasCopy(*tensor) || !blocks_->IsOn(tensor->device()) ||
        used + tensor->nbytes() > blocks_->block_bytes()) {
      break;
    }
    copies.emplace_back(PieceOf(*tensor), tensor->element_size(), used);
    SHERD_ASSIGN_OR_RETURN(
        Tensor copy, Tensor::FromBorrowed(blocks_->data(block) + used,
                                          tensor->sizes(), tensor->dtype()));
    used += DeviceBlocks::RoomFor(tensor->nbytes());
    batch.copies.push_back(std::move(copy));
    batch.tensors.push_back(*std::move(tensor));
  }
  if (copies.empty()) return absl::OkStatus();
  return blocks_->CopyToHost(block, copies);
}

}  // namespace sherd
