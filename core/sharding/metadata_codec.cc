#include "sherd/core/sharding/metadata_codec.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

// Format, all numbers int64_t in this machine's order:
//     magic, dtype, requires_grad, pin_memory,
//     dimensions of the tensor, size, number of shards,
//     per shard: dimensions, offsets, sizes, rank or -1, device type and index
constexpr int64_t kMagic = 0x73687264'6d657461;

class Writer {
 public:
  void Put(int64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void PutAll(const Dims& dims) {
    for (const int64_t number : dims) Put(number);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After an attempt to read past the end, or a number out of its range, ok() is
// false and all numbers are 0.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  int64_t Get() {
    int64_t number = 0;
    if (!ok_ || bytes_.size() < sizeof(number)) {
      ok_ = false;
      return 0;
    }
    std::memcpy(&number, bytes_.data(), sizeof(number));
    bytes_.remove_prefix(sizeof(number));
    return number;
  }
  int64_t GetIn(int64_t low, int64_t high) {
    const int64_t number = Get();
    if (number < low || number > high) ok_ = false;
    return ok_ ? number : 0;
  }
  Dims GetAll(int64_t count) {
    Dims dims;
    for (int64_t i = 0; i < count && ok_; ++i) dims.push_back(Get());
    return dims;
  }
  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

ShardMetadata ReadShard(Reader& reader) {
  ShardMetadata shard;
  const int64_t dims = reader.GetIn(0, kMaxRank);
  shard.offsets = reader.GetAll(dims);
  shard.sizes = reader.GetAll(dims);
  const int64_t rank = reader.GetIn(-1, INT32_MAX);
  Device device;
  device.type = static_cast<DeviceType>(
      reader.GetIn(static_cast<int64_t>(DeviceType::kCpu),
                   static_cast<int64_t>(DeviceType::kMeta)));
  device.index = static_cast<int>(reader.GetIn(-1, INT32_MAX));
  if (rank >= 0) {
    shard.placement = Placement::OnRank(static_cast<int>(rank), device);
  }
  return shard;
}

}  // namespace

std::string EncodeMetadata(const ShardedTensorMetadata& metadata) {
  Writer writer;
  writer.Put(kMagic);
  writer.Put(static_cast<int64_t>(metadata.properties.dtype));
  writer.Put(metadata.properties.requires_grad ? 1 : 0);
  writer.Put(metadata.properties.pin_memory ? 1 : 0);
  writer.Put(static_cast<int64_t>(metadata.size.size()));
  writer.PutAll(metadata.size);
  writer.Put(static_cast<int64_t>(metadata.shards.size()));
  for (const ShardMetadata& shard : metadata.shards) {
    writer.Put(static_cast<int64_t>(shard.offsets.size()));
    writer.PutAll(shard.offsets);
    writer.PutAll(shard.sizes);
    const Placement placement = shard.placement.value_or(Placement());
    writer.Put(placement.rank().value_or(-1));
    writer.Put(static_cast<int64_t>(placement.device().type));
    writer.Put(placement.device().index);
  }
  return writer.Take();
}

absl::StatusOr<ShardedTensorMetadata> DecodeMetadata(absl::string_view bytes) {
  Reader reader(bytes);
  ShardedTensorMetadata metadata;
  reader.GetIn(kMagic, kMagic);
  metadata.properties.dtype =
      static_cast<DType>(reader.GetIn(0, kNumDTypes - 1));
  metadata.properties.requires_grad = reader.GetIn(0, 1) == 1;
  metadata.properties.pin_memory = reader.GetIn(0, 1) == 1;
  metadata.size = reader.GetAll(reader.GetIn(0, kMaxRank));
  // A shard takes four numbers at least.
  const int64_t max_shards = static_cast<int64_t>(reader.left() / 32);
  const int64_t shards = reader.GetIn(0, max_shards);
  for (int64_t i = 0; i < shards && reader.ok(); ++i) {
    metadata.shards.push_back(ReadShard(reader));
  }
  if (!reader.ok() || reader.left() != 0) {
    return absl::DataLossError(absl::StrCat(
        bytes.size(), " bytes from a rank are not metadata of shards"));
  }
  return metadata;
}

}  // namespace sherd::internal
