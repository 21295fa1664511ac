#include "sherd/core/nn/lookup/pool_on_device.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {
namespace {

// An array of the batch, and where it is copied to; null: there is none.
struct BatchArray {
  const void* data = nullptr;
  size_t bytes = 0;
  size_t offset = 0;
};

// The arrays of a batch, one behind another.
struct BatchArrays {
  BatchArray rows;
  BatchArray ends;
  BatchArray divisors;
  BatchArray weights;
  size_t bytes = 0;

  void Add(BatchArray& array, const void* data, size_t bytes_each,
           int64_t count) {
    if (data == nullptr) return;
    array = {data, bytes_each * static_cast<size_t>(count), bytes};
    bytes += (array.bytes + 7) / 8 * 8;
  }
};

template <typename T = int64_t>
const T* AddressIn(const Storage& storage, const BatchArray& array) {
  if (array.data == nullptr) return nullptr;
  return reinterpret_cast<const T*>(
      static_cast<const std::byte*>(storage.data()) + array.offset);
}

DeviceRowPooling::Mode ModeOf(BagMode mode, const PoolBatch& batch) {
  if (mode == BagMode::kNone) return DeviceRowPooling::Mode::kNone;
  if (mode == BagMode::kMax) return DeviceRowPooling::Mode::kMax;
  return batch.divisors == nullptr ? DeviceRowPooling::Mode::kSum
                                   : DeviceRowPooling::Mode::kMean;
}

// The largest power of two that divides all addresses, up to a cache line.
uint64_t AlignmentOf(const std::byte* const* rows, int64_t count) {
  uint64_t bits = 128;
  for (int64_t k = 0; k < count; ++k) {
    bits |= reinterpret_cast<uintptr_t>(rows[k]);
  }
  return uint64_t{1} << std::countr_zero(bits);
}

// Copies the arrays to new memory of the device.
absl::StatusOr<std::shared_ptr<Storage>> Upload(DeviceRuntime& runtime,
                                                const DeviceStream& stream,
                                                const BatchArrays& arrays) {
  SHERD_ASSIGN_OR_RETURN(
      const std::shared_ptr<Storage> pinned,
      Storage::Allocate(arrays.bytes, *runtime.PinnedMemory()));
  SHERD_ASSIGN_OR_RETURN(Allocator* const memory,
                         runtime.MemoryOf(stream.device.index));
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> uploaded,
                         Storage::Allocate(arrays.bytes, *memory));
  for (const BatchArray* array :
       {&arrays.rows, &arrays.ends, &arrays.divisors, &arrays.weights}) {
    if (array->bytes == 0) continue;
    std::memcpy(static_cast<std::byte*>(pinned->data()) + array->offset,
                array->data, array->bytes);
  }
  const absl::Status copied =
      runtime.CopyBytes(stream, uploaded->data(), pinned->data(), arrays.bytes);
  pinned->UsedOn(stream);
  SHERD_RETURN_IF_ERROR(copied);
  return uploaded;
}

absl::Status PoolOnHost(DType in, DType out, BagMode mode,
                        const PoolBatch& batch) {
  if (mode == BagMode::kNone) {
    CopyRows(batch.out, batch.out_stride, batch.rows, batch.bags,
             static_cast<size_t>(batch.width) * SizeOf(in));
  } else {
    PoolRows(in, out, mode == BagMode::kMax, batch);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PoolOn(const Device& device, DType in, DType out, BagMode mode,
                    const PoolBatch& batch) {
  if (device.is_cpu()) return PoolOnHost(in, out, mode, batch);
  if (batch.bags == 0 || batch.width == 0) return absl::OkStatus();
  const bool pooled = mode != BagMode::kNone;
  const int64_t rows = pooled ? batch.ends[batch.bags - 1] : batch.bags;
  BatchArrays arrays;
  arrays.Add(arrays.rows, batch.rows, sizeof(int64_t), rows);
  arrays.Add(arrays.ends, pooled ? batch.ends : nullptr, sizeof(int64_t),
             batch.bags);
  arrays.Add(arrays.divisors, batch.divisors, sizeof(int64_t), batch.bags);
  arrays.Add(arrays.weights, batch.weights, SizeOf(AccumulatorOf(in)), rows);
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  const DeviceStream stream = CurrentStream(device);
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> uploaded,
                         Upload(*runtime, stream, arrays));
  // Rows are addresses, since they may be those of several shards.
  static_assert(sizeof(batch.rows[0]) == sizeof(int64_t));
  return runtime->PoolRows(
      stream, {.mode = ModeOf(mode, batch),
               .table_dtype = in,
               .out_dtype = out,
               .out = batch.out,
               .out_stride = batch.out_stride,
               .row_stride = 1,
               .row_alignment = AlignmentOf(batch.rows, rows),
               .columns = batch.width,
               .bags = batch.bags,
               .ends = AddressIn(*uploaded, arrays.ends),
               .rows = AddressIn(*uploaded, arrays.rows),
               .weights = AddressIn<void>(*uploaded, arrays.weights),
               .divisors = AddressIn(*uploaded, arrays.divisors)});
}

}  // namespace sherd::internal
