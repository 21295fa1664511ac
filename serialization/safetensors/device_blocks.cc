#include "sherd/serialization/safetensors/device_blocks.h"

#include <algorithm>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"

namespace sherd {
namespace {

// From here on a copy of its own, by the device's copy engine, costs no more
// than a part of a launch that runs on its processors.
constexpr int64_t kLongCopy = int64_t{64} << 10;

int64_t BytesOf(const BoxInArray& box) {
  return Volume(box) * static_cast<int64_t>(box.element_size);
}

}  // namespace

DeviceBlocks::BoxCopy::BoxCopy(const BoxPiece& piece, size_t element_size,
                               int64_t offset)
    : data(piece.data),
      bytes(piece.bytes),
      element_size(element_size),
      offset(offset) {
  if (piece.contiguous) {
    sizes = {bytes / static_cast<int64_t>(element_size)};
    strides = {1};
  } else {
    sizes.assign(piece.sizes.begin(), piece.sizes.end());
    strides.assign(piece.strides.begin(), piece.strides.end());
  }
}

absl::StatusOr<DeviceBlocks> DeviceBlocks::Create(const Device& device,
                                                  int64_t block_bytes) {
  DeviceBlocks blocks;
  blocks.stream_ = CurrentStream(device);
  blocks.block_bytes_ = block_bytes;
  SHERD_ASSIGN_OR_RETURN(blocks.runtime_, DeviceRuntime::For(device.type));
  for (Block& block : blocks.blocks_) {
    SHERD_ASSIGN_OR_RETURN(block.memory,
                           Storage::Allocate(static_cast<size_t>(block_bytes),
                                             *blocks.runtime_->PinnedMemory()));
    SHERD_ASSIGN_OR_RETURN(
        block.event, blocks.runtime_->TakeEvent(blocks.stream_.device.index));
  }
  return blocks;
}

DeviceBlocks::DeviceBlocks(DeviceBlocks&& other) noexcept
    : runtime_(other.runtime_),
      stream_(other.stream_),
      block_bytes_(other.block_bytes_),
      blocks_(std::exchange(other.blocks_, {})) {}

DeviceBlocks::~DeviceBlocks() {
  const bool is_busy = blocks_[0].is_busy || blocks_[1].is_busy;
  // Of what an error has left, some may not be recorded.
  const bool waited = !is_busy || runtime_->Synchronize(stream_).ok();
  for (const Block& block : blocks_) {
    if (!waited) block.memory->UsedOn(stream_);
    if (block.event != nullptr) {
      runtime_->ReturnEvent(stream_.device.index, block.event);
    }
  }
}

bool DeviceBlocks::IsOn(const Device& device) const {
  return CurrentStream(device) == stream_;
}

absl::Status DeviceBlocks::Copy(size_t block, absl::Span<const BoxCopy> copies,
                                bool to_host) {
  blocks_[block].is_busy = true;
  std::vector<Dims> packed;
  packed.reserve(copies.size());
  std::vector<DeviceCopy> launch;
  for (const BoxCopy& copy : copies) {
    std::byte* const host = data(block) + copy.offset;
    const bool is_run = copy.sizes.size() == 1 && copy.strides[0] == 1;
    if (is_run && copy.bytes >= kLongCopy) {
      SHERD_RETURN_IF_ERROR(runtime_->CopyBytes(
          stream_, to_host ? host : copy.data, to_host ? copy.data : host,
          static_cast<size_t>(copy.bytes)));
      continue;
    }
    packed.push_back(ContiguousStrides(copy.sizes));
    DeviceCopy& box = launch.emplace_back();
    box.dst = to_host ? host : copy.data;
    box.src = to_host ? copy.data : host;
    box.dst_strides = to_host ? packed.back() : copy.strides;
    box.src_strides = to_host ? copy.strides : packed.back();
    box.sizes = copy.sizes;
    box.element_size = copy.element_size;
  }
  if (!launch.empty()) SHERD_RETURN_IF_ERROR(runtime_->Copy(stream_, launch));
  return runtime_->RecordEvent(blocks_[block].event, stream_);
}

absl::Status DeviceBlocks::CopyToHost(size_t block,
                                      absl::Span<const BoxCopy> copies) {
  return Copy(block, copies, /*to_host=*/true);
}

absl::Status DeviceBlocks::CopyToDevice(size_t block,
                                        absl::Span<const BoxCopy> copies) {
  return Copy(block, copies, /*to_host=*/false);
}

absl::Status DeviceBlocks::Await(size_t block) {
  if (!blocks_[block].is_busy) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(
      runtime_->AwaitEvent(stream_.device.index, blocks_[block].event));
  blocks_[block].is_busy = false;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<std::byte>> DeviceWriter::Take(const Device& device,
                                                         const BoxPiece& piece,
                                                         size_t element_size) {
  if (blocks_.has_value() && !blocks_->IsOn(device)) {
    SHERD_RETURN_IF_ERROR(Flush());
    blocks_.reset();
  }
  if (!blocks_.has_value()) {
    SHERD_ASSIGN_OR_RETURN(DeviceBlocks blocks,
                           DeviceBlocks::Create(device, block_bytes_));
    blocks_.emplace(std::move(blocks));
  }
  if (used_ + piece.bytes > block_bytes_) SHERD_RETURN_IF_ERROR(Submit());
  taken_.emplace_back(piece, element_size, used_);
  std::byte* const data = blocks_->data(turn_) + used_;
  used_ += DeviceBlocks::RoomFor(piece.bytes);
  return absl::MakeSpan(data, static_cast<size_t>(piece.bytes));
}

// Leaves the other block, from which nothing is copied any more.
absl::Status DeviceWriter::Submit() {
  if (fill_ != nullptr) SHERD_RETURN_IF_ERROR(fill_());
  SHERD_RETURN_IF_ERROR(blocks_->CopyToDevice(turn_, taken_));
  taken_.clear();
  used_ = 0;
  turn_ = 1 - turn_;
  return blocks_->Await(turn_);
}

absl::Status DeviceWriter::Flush() {
  if (!taken_.empty()) SHERD_RETURN_IF_ERROR(Submit());
  return blocks_.has_value() ? blocks_->Await(1 - turn_) : absl::OkStatus();
}

absl::Status ForEachDevicePiece(
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

absl::Status ReadDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset,
                                   absl::Span<const std::byte> block)>
        visit) {
  if (IsEmpty(box)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(
      DeviceBlocks blocks,
      DeviceBlocks::Create(device, std::min(BytesOf(box), kDeviceBlockBytes)));
  size_t turn = 0;
  // The piece that is being copied to the other block.
  int64_t offset = 0;
  int64_t bytes = 0;
  const auto visit_other = [&]() -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(blocks.Await(1 - turn));
    return visit(offset, absl::MakeConstSpan(blocks.data(1 - turn),
                                             static_cast<size_t>(bytes)));
  };
  SHERD_RETURN_IF_ERROR(
      ForEachDevicePiece(box, [&](const BoxPiece& piece) -> absl::Status {
        const DeviceBlocks::BoxCopy copy(piece, box.element_size, 0);
        SHERD_RETURN_IF_ERROR(blocks.CopyToHost(turn, {&copy, 1}));
        SHERD_RETURN_IF_ERROR(visit_other());
        offset = piece.offset;
        bytes = piece.bytes;
        turn = 1 - turn;
        return absl::OkStatus();
      }));
  return visit_other();
}

absl::Status WriteDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset, absl::Span<std::byte> block)>
        fill) {
  if (IsEmpty(box)) return absl::OkStatus();
  DeviceWriter writer(nullptr, std::min(BytesOf(box), kDeviceBlockBytes));
  SHERD_RETURN_IF_ERROR(
      ForEachDevicePiece(box, [&](const BoxPiece& piece) -> absl::Status {
        SHERD_ASSIGN_OR_RETURN(const absl::Span<std::byte> block,
                               writer.Take(device, piece, box.element_size));
        return fill(piece.offset, block);
      }));
  return writer.Flush();
}

}  // namespace sherd
