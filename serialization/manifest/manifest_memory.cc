#include "sherd/serialization/manifest/manifest_memory.h"

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/proto/checkpoint.pb.h"
#include "sherd/serialization/wire/wire_fields.h"

namespace sherd {
namespace {

using Proto = checkpoint::v1::Manifest;
using Field = google::protobuf::FieldDescriptor;

constexpr int kMaxField = Proto::kChunkCrc32CFieldNumber;

// While the shards of a tensor are compared: the range in its file and the
// index of boxes.
constexpr int64_t kPerComparedShard = 256;
// What a message has of each field of the manifest.
struct Contents {
  // By number: entries, and the bytes of text.
  std::array<int64_t, kMaxField + 1> entries = {};
  std::array<int64_t, kMaxField + 1> text = {};
  int64_t unknown_fields = 0;
  int64_t unknown_bytes = 0;
};

class Counter {
 public:
  Counter() {
    for (int i = 0; i < Proto::descriptor()->field_count(); ++i) {
      const Field* field = Proto::descriptor()->field(i);
      types_[field->number()] = field->type();
    }
  }

  // False if the message is malformed.
  bool Count(absl::string_view message) {
    return ForEachWireField(
        message, [this](uint64_t number, WireType type,
                        absl::string_view bytes) { Add(number, type, bytes); });
  }

  const Contents& contents() const { return contents_; }
  // Bytes of an entry while it is a message.
  int64_t ParsedBytes(int field) const {
    switch (types_[field]) {
      case Field::TYPE_UINT32:
      case Field::TYPE_FIXED32:
        return kGrowth * 4;
      case Field::TYPE_UINT64:
        return kGrowth * 8;
      case Field::TYPE_BYTES:
        return kGrowth * 8 + sizeof(std::string) + 2 * kPerBlock;
      default:
        return 0;
    }
  }

 private:
  void Add(uint64_t number, WireType wire, absl::string_view bytes) {
    // No field has the number 0.
    const size_t field = number <= kMaxField ? number : 0;
    const Field::Type type = types_[field];
    int64_t& entries = contents_.entries[field];
    const int64_t size = static_cast<int64_t>(bytes.size());
    const bool is_varint =
        type == Field::TYPE_UINT32 || type == Field::TYPE_UINT64;
    if (is_varint && wire == WireType::kVarint) {
      ++entries;
    } else if (is_varint && wire == WireType::kLength) {
      entries += CountPackedVarints(bytes);
    } else if (type == Field::TYPE_FIXED32 && wire == WireType::kFixed32) {
      ++entries;
    } else if (type == Field::TYPE_FIXED32 && wire == WireType::kLength) {
      entries += size / 4;
    } else if (type == Field::TYPE_BYTES && wire == WireType::kLength) {
      ++entries;
      contents_.text[field] += size;
    } else {
      ++contents_.unknown_fields;
      contents_.unknown_bytes += size;
    }
  }

  // By number; 0 where there is no field.
  std::array<Field::Type, kMaxField + 1> types_ = {};
  Contents contents_;
};

// Bytes of an entry as part of the ManifestV1, and while that is checked.
int64_t DecodedBytes(int field) {
  switch (field) {
    case Proto::kFileNameFieldNumber:
      return sizeof(ManifestFileV1) + 2 * kPerBlock;
    case Proto::kPlacementFieldNumber:
      return sizeof(std::string) + kPerBlock;
    case Proto::kTensorNameFieldNumber:
      return sizeof(ManifestTensorV1) + 2 * kPerBlock;
    case Proto::kShardFileFieldNumber:
      return sizeof(ManifestShardV1) + sizeof(ShardMetadata) +
             kPerComparedShard;
    case Proto::kTensorSizeFieldNumber:
    case Proto::kShardOffsetFieldNumber:
    case Proto::kShardSizeFieldNumber:
      // Those that do not fit into a Dims, in the shard and in a copy.
      return 2 * 16;
    case Proto::kChunkCrc32CFieldNumber:
      return 4;
    default:
      return 0;
  }
}

}  // namespace

absl::StatusOr<int64_t> ManifestMemory(absl::string_view message) {
  Counter counter;
  if (!counter.Count(message)) {
    return absl::DataLossError(
        "the manifest is damaged: not a message of the expected form");
  }
  const Contents& contents = counter.contents();
  int64_t total = static_cast<int64_t>(message.size()) +
                  contents.unknown_fields * kPerUnknownField +
                  contents.unknown_bytes;
  for (int field = 0; field <= kMaxField; ++field) {
    total += contents.entries[field] *
                 (counter.ParsedBytes(field) + DecodedBytes(field)) +
             2 * contents.text[field];
  }
  return total;
}

}  // namespace sherd
