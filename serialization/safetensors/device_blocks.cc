#include "sherd/serialization/safetensors/device_blocks.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {
namespace {

// Two blocks of pinned memory, used in turn, and the stream that copies.
class Blocks {
 public:
  static absl::StatusOr<Blocks> Create(const BoxInArray& box,
                                       const Device& device) {
    Blocks blocks;
    blocks.element_size_ = box.element_size;
    blocks.stream_ = CurrentStream(device);
    SHERD_ASSIGN_OR_RETURN(blocks.runtime_, DeviceRuntime::For(device.type));
    const int64_t bytes = Volume(box) * static_cast<int64_t>(box.element_size);
    for (std::shared_ptr<Storage>& memory : blocks.memory_) {
      SHERD_ASSIGN_OR_RETURN(
          memory, Storage::Allocate(
                      static_cast<size_t>(std::min(bytes, kDeviceBlockBytes)),
                      *blocks.runtime_->PinnedMemory()));
    }
    return blocks;
  }

  Blocks(Blocks&&) = default;
  // Work that is still queued after an error uses them and the box.
  ~Blocks() {
    if (!busy_ || Wait().ok()) return;
    for (const std::shared_ptr<Storage>& memory : memory_) {
      if (memory != nullptr) memory->UsedOn(stream_);
    }
  }

  std::byte* Turn() {
    turn_ = 1 - turn_;
    return static_cast<std::byte*>(memory_[turn_]->data());
  }

  absl::Status ToHost(std::byte* block, const BoxPiece& piece) {
    busy_ = true;
    if (piece.contiguous) {
      return runtime_->CopyBytes(stream_, block, piece.data,
                                 static_cast<size_t>(piece.bytes));
    }
    const Dims packed = ContiguousStrides(piece.sizes);
    const DeviceCopy copy = {.dst = block,
                             .dst_strides = packed,
                             .src = piece.data,
                             .src_strides = piece.strides,
                             .sizes = piece.sizes,
                             .element_size = element_size_};
    return runtime_->Copy(stream_, {&copy, 1});
  }

  absl::Status ToDevice(const BoxPiece& piece, const std::byte* block) {
    busy_ = true;
    if (piece.contiguous) {
      return runtime_->CopyBytes(stream_, piece.data, block,
                                 static_cast<size_t>(piece.bytes));
    }
    const Dims packed = ContiguousStrides(piece.sizes);
    const DeviceCopy copy = {.dst = piece.data,
                             .dst_strides = piece.strides,
                             .src = block,
                             .src_strides = packed,
                             .sizes = piece.sizes,
                             .element_size = element_size_};
    return runtime_->Copy(stream_, {&copy, 1});
  }

  absl::Status Wait() {
    SHERD_RETURN_IF_ERROR(runtime_->Synchronize(stream_));
    busy_ = false;
    return absl::OkStatus();
  }

 private:
  Blocks() = default;

  size_t element_size_ = 1;
  DeviceRuntime* runtime_ = nullptr;
  DeviceStream stream_;
  std::array<std::shared_ptr<Storage>, 2> memory_;
  size_t turn_ = 0;
  // Whether a copy is queued that was not waited for.
  bool busy_ = false;
};

// ForEachPiece in pieces of at most a block.
absl::Status ForEachBlock(
    const BoxInArray& box,
    absl::FunctionRef<absl::Status(const BoxPiece&)> visit) {
  return ForEachPiece(
      box, kDeviceBlockBytes, [&](const BoxPiece& piece) -> absl::Status {
        if (!piece.contiguous) return visit(piece);
        for (int64_t done = 0; done < piece.bytes; done += kDeviceBlockBytes) {
          BoxPiece block;
          block.offset = piece.offset + done;
          block.bytes = std::min(kDeviceBlockBytes, piece.bytes - done);
          block.data = piece.data + done;
          SHERD_RETURN_IF_ERROR(visit(block));
        }
        return absl::OkStatus();
      });
}

}  // namespace

absl::Status ReadDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset,
                                   absl::Span<const std::byte> block)>
        visit) {
  if (IsEmpty(box)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(Blocks blocks, Blocks::Create(box, device));
  // The block that is being copied.
  int64_t offset = 0;
  absl::Span<const std::byte> coming;
  SHERD_RETURN_IF_ERROR(
      ForEachBlock(box, [&](const BoxPiece& piece) -> absl::Status {
        std::byte* const block = blocks.Turn();
        if (!coming.empty()) SHERD_RETURN_IF_ERROR(blocks.Wait());
        SHERD_RETURN_IF_ERROR(blocks.ToHost(block, piece));
        if (!coming.empty()) SHERD_RETURN_IF_ERROR(visit(offset, coming));
        offset = piece.offset;
        coming = absl::MakeConstSpan(block, static_cast<size_t>(piece.bytes));
        return absl::OkStatus();
      }));
  SHERD_RETURN_IF_ERROR(blocks.Wait());
  return visit(offset, coming);
}

absl::Status WriteDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset, absl::Span<std::byte> block)>
        fill) {
  if (IsEmpty(box)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(Blocks blocks, Blocks::Create(box, device));
  SHERD_RETURN_IF_ERROR(
      ForEachBlock(box, [&](const BoxPiece& piece) -> absl::Status {
        std::byte* const block = blocks.Turn();
        SHERD_RETURN_IF_ERROR(
            fill(piece.offset,
                 absl::MakeSpan(block, static_cast<size_t>(piece.bytes))));
        // The other block is filled again after this.
        SHERD_RETURN_IF_ERROR(blocks.Wait());
        return blocks.ToDevice(piece, block);
      }));
  return blocks.Wait();
}

}  // namespace sherd
