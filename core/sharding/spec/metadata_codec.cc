#include "sherd/core/sharding/spec/metadata_codec.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placement_table.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd::internal {
namespace {

// Format, all numbers int64_t in this machine's order:
//     magic, dtype, layout, requires_grad, memory format, pin_memory,
//     dimensions of the tensor, size,
//     number of different placements, per placement: length, text, zeros up to
//     the next multiple of 8,
//     number of shards,
//     per shard: dimensions, offsets, sizes, number of the placement or -1
constexpr int64_t kMagic = 0x73687264'6d657462;

// Many shards may have one placement: long ones would take much memory.
constexpr int64_t kMaxTextBytes = 1024;

// Zeros after a text of so many bytes.
size_t Padding(size_t bytes) { return (8 - bytes % 8) % 8; }

class Writer {
 public:
  void Put(int64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void PutAll(const Dims& dims) {
    for (const int64_t number : dims) Put(number);
  }
  void PutText(absl::string_view text) {
    Put(static_cast<int64_t>(text.size()));
    bytes_.append(text.data(), text.size());
    bytes_.append(Padding(text.size()), '\0');
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
  // A number of things that take `bytes` each at least.
  int64_t GetCount(size_t bytes) {
    const int64_t count = Get();
    if (count < 0 || static_cast<uint64_t>(count) > left() / bytes) ok_ = false;
    return ok_ ? count : 0;
  }
  std::string GetText() {
    const size_t length = static_cast<size_t>(GetIn(0, kMaxTextBytes));
    const size_t padded = length + Padding(length);
    if (!ok_ || padded > bytes_.size()) {
      ok_ = false;
      return "";
    }
    std::string text(bytes_.substr(0, length));
    for (size_t i = length; i < padded; ++i) ok_ = ok_ && bytes_[i] == '\0';
    bytes_.remove_prefix(padded);
    return text;
  }
  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

ShardMetadata ReadShard(Reader& reader, absl::Span<const Placement> known) {
  ShardMetadata shard;
  const int64_t dims = reader.GetIn(0, kMaxRank);
  shard.offsets = reader.GetAll(dims);
  shard.sizes = reader.GetAll(dims);
  const int64_t placement =
      reader.GetIn(-1, static_cast<int64_t>(known.size()) - 1);
  if (reader.ok() && placement >= 0) {
    shard.placement = known[static_cast<size_t>(placement)];
  }
  return shard;
}

TensorProperties ReadProperties(Reader& reader) {
  TensorProperties properties;
  properties.dtype = static_cast<DType>(reader.GetIn(0, kNumDTypes - 1));
  properties.layout = static_cast<Layout>(
      reader.GetIn(0, static_cast<int64_t>(Layout::kSparseCsr)));
  properties.requires_grad = reader.GetIn(0, 1) == 1;
  properties.memory_format = static_cast<MemoryFormat>(
      reader.GetIn(0, static_cast<int64_t>(MemoryFormat::kPreserve)));
  properties.pin_memory = reader.GetIn(0, 1) == 1;
  return properties;
}

}  // namespace

std::string EncodeMetadata(const ShardedTensorMetadata& metadata) {
  Writer writer;
  writer.Put(kMagic);
  writer.Put(static_cast<int64_t>(metadata.properties.dtype));
  writer.Put(static_cast<int64_t>(metadata.properties.layout));
  writer.Put(metadata.properties.requires_grad ? 1 : 0);
  writer.Put(static_cast<int64_t>(metadata.properties.memory_format));
  writer.Put(metadata.properties.pin_memory ? 1 : 0);
  writer.Put(static_cast<int64_t>(metadata.size.size()));
  writer.PutAll(metadata.size);
  const PlacementTable placements(metadata.shards);
  writer.Put(static_cast<int64_t>(placements.list().size()));
  for (const Placement* placement : placements.list()) {
    writer.PutText(placement->ToString());
  }
  writer.Put(static_cast<int64_t>(metadata.shards.size()));
  for (const ShardMetadata& shard : metadata.shards) {
    writer.Put(static_cast<int64_t>(shard.offsets.size()));
    writer.PutAll(shard.offsets);
    writer.PutAll(shard.sizes);
    writer.Put(placements.NumberOf(shard));
  }
  return writer.Take();
}

absl::StatusOr<ShardedTensorMetadata> DecodeMetadata(absl::string_view bytes) {
  Reader reader(bytes);
  ShardedTensorMetadata metadata;
  reader.GetIn(kMagic, kMagic);
  metadata.properties = ReadProperties(reader);
  metadata.size = reader.GetAll(reader.GetIn(0, kMaxRank));
  std::vector<Placement> placements;
  const int64_t different = reader.GetCount(sizeof(int64_t));
  for (int64_t i = 0; i < different && reader.ok(); ++i) {
    placements.emplace_back(reader.GetText());
  }
  const int64_t shards = reader.GetCount(2 * sizeof(int64_t));
  for (int64_t i = 0; i < shards && reader.ok(); ++i) {
    metadata.shards.push_back(ReadShard(reader, placements));
  }
  if (!reader.ok() || reader.left() != 0) {
    return absl::DataLossError(absl::StrCat(
        bytes.size(), " bytes from a rank are not metadata of shards"));
  }
  return metadata;
}

}  // namespace sherd::internal
