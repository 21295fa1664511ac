#include "sherd/core/nn/lookup/planned_table.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd::internal {
namespace {

absl::Status CheckDevice(const Device& device) {
  if (!device.is_meta()) return absl::OkStatus();
  return absl::FailedPreconditionError("the table is on meta, without data");
}

absl::Status CheckTensor(const Tensor& tensor) {
  if (tensor.strides()[1] != 1 && tensor.sizes()[1] > 1) {
    return absl::InvalidArgumentError(
        "the rows of the table are not a contiguous Tensor; copy it, see "
        "Contiguous");
  }
  return absl::OkStatus();
}

absl::Status CheckTable(absl::Span<const int64_t> size, DType dtype) {
  if (size.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Weight needs to have exactly 2 dims, got ", FormatDims(size)));
  }
  if (dtype != kFloat64 && dtype != kFloat32 && dtype != kFloat16 &&
      dtype != kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Weight needs to be of float64, float32, float16 or bfloat16, got ",
        Name(dtype)));
  }
  return absl::OkStatus();
}

ShardRows RowsOf(const Tensor& tensor) {
  return {.data = static_cast<std::byte*>(const_cast<void*>(tensor.data())),
          .stride = tensor.strides()[0] *
                    static_cast<int64_t>(tensor.element_size())};
}

}  // namespace

bool HasElements(const PlacedBox& box) {
  return box.sizes[0] > 0 && box.sizes[1] > 0;
}

bool PlannedTable::IsOf(const EmbeddingTable& table) const {
  const auto* const sharded = std::get_if<ShardedTensor>(&table);
  if (sharded == nullptr || plain) return sharded == nullptr && plain;
  if (!sharded->defined() || fingerprint != sharded->fingerprint() ||
      shared != (sharded->group() != nullptr)) {
    return false;
  }
  size_t i = 0;
  for (const Shard& shard : sharded->local_shards()) {
    if (shard.tensor.numel() == 0) continue;
    // Views of one memory may differ in the distance of their rows alone.
    if (i == own.size() || own[i].rows != RowsOf(shard.tensor) ||
        own[i].storage.lock() != shard.tensor.storage()) {
      return false;
    }
    ++i;
  }
  // Otherwise tables of one layout would share a plan here and not at their
  // owners, and each call for another of them would exchange addresses.
  if (i == 0 && state.lock() != ShardedTensorAccess::StateOf(*sharded)) {
    return false;
  }
  return i == own.size();
}

absl::Status PlannedTable::SetPlain(const Tensor& table) {
  if (!table.defined()) {
    return absl::FailedPreconditionError("the table was not created");
  }
  SHERD_RETURN_IF_ERROR(CheckTable(table.sizes(), table.dtype()));
  SHERD_RETURN_IF_ERROR(CheckDevice(table.device()));
  SHERD_RETURN_IF_ERROR(CheckTensor(table));
  plain = true;
  device = table.device();
  dtype = table.dtype();
  rows = table.sizes()[0];
  columns = table.sizes()[1];
  boxes.resize(1);
  boxes[0].offsets = {0, 0};
  boxes[0].sizes = {rows, columns};
  shards.assign(1, RowsOf(table));
  strips.resize(1);
  strips[0].bands.resize(1);
  strips[0].width = columns;
  strips[0].bands[0].end = rows;
  SetAddresses();
  return absl::OkStatus();
}

absl::Status PlannedTable::SetDevice(const ShardedTensor& table) {
  const auto mixed = [](const Device& a, const Device& b) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the table has shards on ", a.ToString(), " and on ", b.ToString(),
        ", expected all in host memory, or on one device per rank: see To"));
  };
  const ShardMetadata* first = nullptr;
  // What the ranks know of each other's shards is the same on all.
  for (const ShardMetadata& shard : table.metadata().shards) {
    if (!shard.placement) continue;
    if (first == nullptr) first = &shard;
    const Device a = first->placement->device();
    const Device b = shard.placement->device();
    if (a.type != b.type) return mixed(a, b);
  }
  if (first != nullptr) device = first->placement->device().type;
  SHERD_RETURN_IF_ERROR(CheckDevice(device));
  for (size_t i = 0; i < table.local_shards().size(); ++i) {
    const Device own = table.local_shards()[i].tensor.device();
    if (i > 0 && own != device) return mixed(device, own);
    device = own;
  }
  return absl::OkStatus();
}

absl::Status PlannedTable::Set(const EmbeddingTable& table, int rank) {
  if (const auto* const tensor = std::get_if<Tensor>(&table)) {
    return SetPlain(*tensor);
  }
  const auto& sharded = std::get<ShardedTensor>(table);
  if (!sharded.defined()) {
    return absl::FailedPreconditionError("the table was not created");
  }
  SHERD_RETURN_IF_ERROR(CheckTable(sharded.size(), sharded.dtype()));
  shared = sharded.group() != nullptr;
  dtype = sharded.dtype();
  rows = sharded.size()[0];
  columns = sharded.size()[1];
  fingerprint = sharded.fingerprint();
  state = ShardedTensorAccess::StateOf(sharded);
  if (shared) {
    boxes.assign(sharded.placed_boxes().begin(), sharded.placed_boxes().end());
  } else {
    for (const ShardMetadata& shard : sharded.metadata().shards) {
      PlacedBox& box = boxes.emplace_back();
      box.offsets = shard.offsets;
      box.sizes = shard.sizes;
    }
  }
  SHERD_RETURN_IF_ERROR(SetDevice(sharded));
  shards.assign(boxes.size(), {});
  for (size_t i = 0; i < sharded.local_shards().size(); ++i) {
    const Tensor& tensor = sharded.local_shards()[i].tensor;
    if (tensor.numel() == 0) continue;
    SHERD_RETURN_IF_ERROR(CheckTensor(tensor));
    const auto box = static_cast<size_t>(sharded.local_shard_indices()[i]);
    shards[box] = RowsOf(tensor);
    own.push_back({box, tensor.storage(), shards[box]});
  }
  for (size_t i = 0; i < boxes.size() && !shared; ++i) {
    if (shards[i].data != nullptr || !HasElements(boxes[i])) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ShardedTensor has no process group, and its shard ",
                     i, " is not in this process"));
  }
  strips = StripsOf(boxes, rank);
  SetAddresses();
  return absl::OkStatus();
}

void PlannedTable::SetAddresses() {
  if (plain && !readable.empty()) {
    // In place, since this happens in every call.
    ReadableStrip& strip = readable[0];
    strip.width = columns;
    strip.ends[0] = rows;
    strip.origins[0] = reinterpret_cast<uintptr_t>(shards[0].data);
    strip.strides[0] = shards[0].stride;
    return;
  }
  readable.resize(strips.size());
  for (size_t i = 0; i < strips.size(); ++i) {
    SetReadable(strips[i], boxes, shards, SizeOf(dtype), strips[i].column,
                readable[i]);
  }
}

}  // namespace sherd::internal
