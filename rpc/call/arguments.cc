#include "sherd/rpc/call/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

// Of the text of a placement, as in the metadata of sharded tensors.
constexpr size_t kMaxPlacementBytes = 1024;

// absl::Duration counts in quarters of a nanosecond.
constexpr int64_t kTicksPerSecond = int64_t{4} * 1000 * 1000 * 1000;
constexpr uint32_t kInfiniteTicks = 0xffffffff;

absl::Duration Ticks(int64_t ticks) { return ticks * absl::Nanoseconds(1) / 4; }

// As Shard::Validate, but the tensor may be on any device.
absl::Status CheckShard(const Shard& shard) {
  const ShardMetadata& metadata = shard.metadata;
  absl::Status status = Shard{
      shard.tensor,
      {metadata.offsets, metadata.sizes,
       std::nullopt}}.Validate();
  if (status.ok() && metadata.placement.has_value()) {
    status = metadata.placement->status();
  }
  return status;
}

bool DecodeDims(Decoder& decoder, uint8_t count, Dims& dims) {
  for (int i = 0; i < count; ++i) {
    int64_t number = 0;
    if (!decoder.TakeNumber(&number)) return false;
    dims.push_back(number);
  }
  return true;
}

bool DecodePlacement(Decoder& decoder, Placement& placement) {
  absl::string_view text;
  if (!decoder.TakeText(&text)) return false;
  if (text.size() > kMaxPlacementBytes) {
    return decoder.Fail(absl::StrCat("expected a placement of at most ",
                                     kMaxPlacementBytes, " bytes, found ",
                                     text.size()));
  }
  absl::StatusOr<Placement> parsed = Placement::Parse(text);
  if (!parsed.ok()) return decoder.Fail(parsed.status().message());
  placement = *std::move(parsed);
  return placement.ToString() == text ||
         decoder.Fail("expected a placement with its device");
}

}  // namespace

void ValueCodec<absl::Duration>::Encode(absl::Duration value,
                                        Encoder& encoder) {
  absl::Duration rest;
  int64_t seconds = absl::IDivDuration(value, absl::Seconds(1), &rest);
  uint32_t ticks = kInfiniteTicks;
  if (rest != absl::InfiniteDuration() && rest != -absl::InfiniteDuration()) {
    int64_t count = absl::IDivDuration(rest, Ticks(1), &rest);
    if (count < 0) {
      --seconds;
      count += kTicksPerSecond;
    }
    ticks = static_cast<uint32_t>(count);
  }
  encoder.PutNumber(seconds);
  encoder.PutNumber(ticks);
}

bool ValueCodec<absl::Duration>::Decode(Decoder& decoder,
                                        absl::Duration& value) {
  int64_t seconds = 0;
  uint32_t ticks = 0;
  if (!decoder.TakeNumber(&seconds) || !decoder.TakeNumber(&ticks)) {
    return false;
  }
  if (ticks < kTicksPerSecond) {
    value = absl::Seconds(seconds) + Ticks(ticks);
    return true;
  }
  value = seconds > 0 ? absl::InfiniteDuration() : -absl::InfiniteDuration();
  const bool infinite = seconds == std::numeric_limits<int64_t>::max() ||
                        seconds == std::numeric_limits<int64_t>::min();
  return (infinite && ticks == kInfiniteTicks) ||
         decoder.Fail(absl::StrCat("expected a duration with less than ",
                                   kTicksPerSecond,
                                   " quarters of a nanosecond, found ", ticks));
}

void ValueCodec<absl::Time>::Encode(absl::Time value, Encoder& encoder) {
  ValueCodec<absl::Duration>::Encode(value - absl::UnixEpoch(), encoder);
}

bool ValueCodec<absl::Time>::Decode(Decoder& decoder, absl::Time& value) {
  absl::Duration since;
  if (!ValueCodec<absl::Duration>::Decode(decoder, since)) return false;
  value = absl::UnixEpoch() + since;
  return true;
}

void ValueCodec<Shard>::Encode(const Shard& value, Encoder& encoder) {
  if (absl::Status status = CheckShard(value); !status.ok()) {
    return encoder.Fail(status);
  }
  const ShardMetadata& metadata = value.metadata;
  encoder.PutTensor(value.tensor);
  // At most kMaxRank, the limit of a tensor's dimensions.
  encoder.PutNumber(static_cast<uint8_t>(metadata.sizes.size()));
  for (const int64_t offset : metadata.offsets) encoder.PutNumber(offset);
  for (const int64_t size : metadata.sizes) encoder.PutNumber(size);
  encoder.PutFlag(metadata.placement.has_value());
  if (!metadata.placement.has_value()) return;
  const std::string text = metadata.placement->ToString();
  if (text.size() > kMaxPlacementBytes) {
    return encoder.Fail(absl::InvalidArgumentError(
        absl::StrCat("a placement of ", text.size(), " bytes, at most ",
                     kMaxPlacementBytes, " can be sent")));
  }
  encoder.PutText(text);
}

bool ValueCodec<Shard>::Decode(Decoder& decoder, Shard& value) {
  uint8_t dims = 0;
  bool placed = false;
  if (!decoder.TakeTensor(&value.tensor) || !decoder.TakeNumber(&dims)) {
    return false;
  }
  if (dims > kMaxRank) {
    return decoder.Fail(absl::StrCat("expected at most ", kMaxRank,
                                     " dimensions, found ", dims));
  }
  if (!DecodeDims(decoder, dims, value.metadata.offsets) ||
      !DecodeDims(decoder, dims, value.metadata.sizes) ||
      !decoder.TakeFlag(&placed)) {
    return false;
  }
  if (placed && !DecodePlacement(decoder, value.metadata.placement.emplace())) {
    return false;
  }
  const absl::Status status = CheckShard(value);
  return status.ok() || decoder.Fail(status.message());
}

absl::StatusOr<std::string> SortEntries(Encoder keys,
                                        std::vector<MapEntry>& entries) {
  absl::StatusOr<Payload> written = std::move(keys).Finish();
  if (!written.ok()) return written.status();
  const absl::string_view bytes = written->values;
  const auto key = [&](const MapEntry& entry) {
    return bytes.substr(entry.begin, entry.end - entry.begin);
  };
  std::sort(
      entries.begin(), entries.end(),
      [&](const MapEntry& a, const MapEntry& b) { return key(a) < key(b); });
  return std::move(written->values);
}

absl::StatusOr<Payload> EncodeResult(absl::string_view method,
                                     const absl::Status& result) {
  if (!result.ok()) return result;
  return EncodeArguments<>(method);
}

}  // namespace sherd::internal
