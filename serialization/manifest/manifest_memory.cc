#include "sherd/serialization/manifest/manifest_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/proto/checkpoint.pb.h"

namespace sherd {
namespace {

using Proto = checkpoint::v1::Manifest;
using Field = google::protobuf::FieldDescriptor;

// Of Protobuf's encoding.
enum WireType : uint64_t { kVarint = 0, kFixed64, kLength, kFixed32 = 5 };

constexpr int kMaxField = Proto::kChunkCrc32CFieldNumber;

// What the allocator adds to a block, rounding included.
constexpr int64_t kPerBlock = 32;
// An array that grows by doubling while it is parsed: its last copy, up to
// twice as long as needed, beside the one before.
constexpr int64_t kGrowth = 3;
// While the shards of a tensor are compared: the range in its file and the
// index of boxes.
constexpr int64_t kPerComparedShard = 256;
// A field that this build does not know, which the parser keeps.
constexpr int64_t kPerUnknownField = 128;

// Reads an encoded message from front to back.
class Wire {
 public:
  explicit Wire(absl::string_view rest) : rest_(rest) {}

  bool done() const { return rest_.empty(); }

  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << (shift % 64);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadBytes(uint64_t length, absl::string_view& bytes) {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

 private:
  absl::string_view rest_;
};

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
    Wire wire(message);
    while (!wire.done()) {
      uint64_t tag, number;
      absl::string_view bytes;
      // Protobuf drops the higher bits of a tag, and would see another field.
      if (!wire.ReadVarint(tag) || tag >> 32 != 0) return false;
      switch (tag & 7) {
        case kVarint:
          if (!wire.ReadVarint(number)) return false;
          break;
        case kFixed64:
          if (!wire.ReadBytes(8, bytes)) return false;
          break;
        case kFixed32:
          if (!wire.ReadBytes(4, bytes)) return false;
          break;
        case kLength:
          if (!wire.ReadVarint(number) || !wire.ReadBytes(number, bytes)) {
            return false;
          }
          break;
        default:
          // No version has groups, which would nest.
          return false;
      }
      Add(tag >> 3, static_cast<WireType>(tag & 7), bytes);
    }
    return true;
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
    if (is_varint && wire == kVarint) {
      ++entries;
    } else if (is_varint && wire == kLength) {
      // Each number ends with the one byte that is below 128.
      entries += std::count_if(bytes.begin(), bytes.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x80;
      });
    } else if (type == Field::TYPE_FIXED32 && wire == kFixed32) {
      ++entries;
    } else if (type == Field::TYPE_FIXED32 && wire == kLength) {
      entries += size / 4;
    } else if (type == Field::TYPE_BYTES && wire == kLength) {
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
