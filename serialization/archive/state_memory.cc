#include "sherd/serialization/archive/state_memory.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/proto/sharding.pb.h"
#include "sherd/serialization/proto/state.pb.h"
#include "sherd/serialization/wire/wire_fields.h"

namespace sherd::internal {
namespace {

namespace proto = state::v1;

using Field = google::protobuf::FieldDescriptor;
using Message = google::protobuf::Descriptor;
using sharding::v1::ShardedTensorMetadata;
using sharding::v1::ShardList;

// Each message of the kinds below is smaller.
constexpr int64_t kPerMessage = 256 + kPerBlock;
// A tensor, and its storage, in the state that is built.
constexpr int64_t kPerTensor = kGrowth * sizeof(SavedTensor) + 512;
constexpr int64_t kPerShardedTensor = sizeof(SavedShardedTensor) + 1024;
static_assert(sizeof(proto::Tensor) < 256 && sizeof(ShardList) < 256 &&
              sizeof(proto::ShardedTensor) < 256);
// A shard in the metadata; once more where the spec builds it, too; and while
// boxes are compared.
constexpr int64_t kPerShard = 2 * sizeof(ShardMetadata) + 256;
// Longer texts of placements are refused.
constexpr int64_t kMaxPlacementBytes = 1024;
// A size, stride or offset that does not fit into a Dims, with a copy.
constexpr int64_t kPerDim = 2 * 2 * sizeof(int64_t);

// What all parts of a value have, which is needed to count more.
struct Totals {
  int64_t bytes = 0;
  // Sizes of the tensor, and placements for which a spec builds a shard each.
  int64_t dims = 0;
  int64_t spec_placements = 0;
  bool well_formed = true;
};

bool IsText(const Field& field) {
  return field.type() == Field::TYPE_BYTES ||
         field.type() == Field::TYPE_STRING;
}

// The messages that bytes of this field hold; null if they are only bytes.
const Message* Nested(const Field& field) {
  if (field.containing_type() != proto::ShardedTensor::descriptor()) {
    return nullptr;
  }
  switch (field.number()) {
    case proto::ShardedTensor::kMetadataFieldNumber:
      return ShardedTensorMetadata::descriptor();
    case proto::ShardedTensor::kSpecFieldNumber:
      return sharding::v1::ShardingSpec::descriptor();
    default:
      return nullptr;
  }
}

// The numbers in one occurrence of `field`, or -1 if it is of another wire
// type.
int64_t CountNumbers(const Field& field, WireType type,
                     absl::string_view bytes) {
  if (field.type() == Field::TYPE_DOUBLE)
    return type == WireType::kFixed64 ? 1 : -1;
  if (type == WireType::kVarint) return 1;
  if (type == WireType::kLength && field.is_repeated()) {
    return CountPackedVarints(bytes);
  }
  return -1;
}

void Count(const Message& message, absl::string_view bytes, Totals& totals);

void CountText(const Field& field, absl::string_view bytes, Totals& totals) {
  // While it is a message, in the structures, and in the state.
  totals.bytes += sizeof(std::string) + 2 * kPerBlock + kGrowth * 8 +
                  4 * static_cast<int64_t>(bytes.size());
  if (const Message* const nested = Nested(field)) {
    totals.bytes += kPerMessage;
    // Its parser stops where this does, and names it.
    const bool well_formed = totals.well_formed;
    Count(*nested, bytes, totals);
    totals.well_formed = well_formed;
    return;
  }
  const Message* const in = field.containing_type();
  if (in == sharding::v1::ChunkSpec::descriptor() ||
      in == sharding::v1::MeshSpec::descriptor()) {
    totals.bytes += sizeof(Placement) + kPerShard;
    ++totals.spec_placements;
  } else if (in == ShardList::descriptor()) {
    totals.bytes += 2 * sizeof(Placement);
  }
}

void CountField(const Message& message, uint64_t number, WireType type,
                absl::string_view bytes, Totals& totals) {
  const Field* const field =
      number <= static_cast<uint64_t>(Field::kMaxNumber)
          ? message.FindFieldByNumber(static_cast<int>(number))
          : nullptr;
  const bool is_length = type == WireType::kLength;
  if (field != nullptr && is_length && field->message_type() != nullptr) {
    totals.bytes += kPerMessage + kGrowth * 8;
    if (field->message_type() == proto::Tensor::descriptor()) {
      totals.bytes += kPerTensor;
    } else if (field->message_type() == proto::ShardedTensor::descriptor()) {
      totals.bytes += kPerShardedTensor;
    }
    return Count(*field->message_type(), bytes, totals);
  }
  if (field != nullptr && is_length && IsText(*field)) {
    return CountText(*field, bytes, totals);
  }
  const int64_t numbers =
      field == nullptr || field->message_type() != nullptr || IsText(*field)
          ? -1
          : CountNumbers(*field, type, bytes);
  if (numbers < 0) {
    totals.bytes += kPerUnknownField + 2 * static_cast<int64_t>(bytes.size());
    return;
  }
  if (!field->is_repeated()) return;
  totals.bytes +=
      numbers * (kGrowth * static_cast<int64_t>(sizeof(int64_t)) + kPerDim);
  if (&message == ShardedTensorMetadata::descriptor()) totals.dims += numbers;
}

void Count(const Message& message, absl::string_view bytes, Totals& totals) {
  int64_t shards = 0;
  int64_t longest = 0;
  const bool is_list = &message == ShardList::descriptor();
  const bool well_formed = ForEachWireField(
      bytes, [&](uint64_t number, WireType type, absl::string_view contents) {
        CountField(message, number, type, contents, totals);
        if (!is_list) return;
        if (number == ShardList::kPlacementFieldNumber) {
          longest = std::max(longest, static_cast<int64_t>(contents.size()));
        } else if (number == ShardList::kShardPlacementFieldNumber) {
          shards +=
              type == WireType::kLength ? CountPackedVarints(contents) : 1;
        }
      });
  totals.well_formed &= well_formed;
  // Names of workers are in a message once, and in memory in each shard; as
  // many are in those that the spec builds.
  if (is_list) {
    totals.bytes +=
        shards * (kPerShard + 2 * std::min(longest, kMaxPlacementBytes));
  }
}

}  // namespace

absl::StatusOr<int64_t> ValueMemory(absl::string_view value) {
  // With what maps and sets keep of it, and in the state that is built.
  Totals totals = {.bytes = static_cast<int64_t>(sizeof(SavedValue) +
                                                 sizeof(StateEntry) +
                                                 3 * sizeof(std::string))};
  Count(*proto::Value::descriptor(), value, totals);
  if (!totals.well_formed) {
    return absl::DataLossError("it is not a message sherd.state.v1.Value");
  }
  return totals.bytes + totals.spec_placements * kPerDim *
                            std::min<int64_t>(totals.dims, kMaxRank);
}

absl::StatusOr<int64_t> StateMemory(absl::string_view state) {
  int64_t total = 0;
  absl::Status status;
  const bool well_formed = ForEachWireField(
      state, [&](uint64_t number, WireType type, absl::string_view bytes) {
        if (number != proto::State::kValueFieldNumber ||
            type != WireType::kLength || !status.ok()) {
          return;
        }
        const absl::StatusOr<int64_t> memory = ValueMemory(bytes);
        status = memory.status();
        total += memory.value_or(0);
      });
  SHERD_RETURN_IF_ERROR(status);
  if (!well_formed) {
    return absl::DataLossError("it is not a message sherd.state.v1.State");
  }
  return total;
}

}  // namespace sherd::internal
