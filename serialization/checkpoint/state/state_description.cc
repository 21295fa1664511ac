#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint/state/state_plan.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

using Description = StateTensorDescription;

// The index of the rank's device in the group is left out, so that ranks with a
// device each have equal descriptions.
Device DeviceOf(const Tensor& tensor, const ProcessGroup& group) {
  const Device device = tensor.device();
  return group.device() == device ? Device(device.type) : device;
}

void AddSizes(absl::Span<const int64_t> sizes, Fingerprint& fingerprint) {
  fingerprint.Add(static_cast<int64_t>(sizes.size()));
  for (const int64_t size : sizes) fingerprint.Add(size);
}

// All shards, with owners by rank: other ranks may not know the workers' names.
ShardedTensorMetadata MetadataByRank(const ShardedTensor& tensor) {
  ShardedTensorMetadata metadata = tensor.metadata();
  for (size_t i = 0; i < metadata.shards.size(); ++i) {
    std::optional<Placement>& placement = metadata.shards[i].placement;
    if (placement->rank()) continue;
    const auto owner = static_cast<size_t>(tensor.placed_boxes()[i].rank);
    placement = Placement::OnRank(tensor.group()->world_ranks()[owner],
                                  placement->device());
  }
  return metadata;
}

void AppendText(absl::string_view text, std::string& bytes) {
  AppendLittleEndian(static_cast<uint64_t>(text.size()), bytes);
  bytes.append(text.data(), text.size());
}

template <typename Numbers>
void AppendNumbers(const Numbers& numbers, std::string& bytes) {
  AppendLittleEndian(static_cast<uint64_t>(numbers.size()), bytes);
  for (const auto number : numbers) {
    AppendLittleEndian(static_cast<uint64_t>(number), bytes);
  }
}

constexpr uint64_t kPerRank = 1, kSharded = 2, kDirect = 4;

// Reads what the functions above wrote; after the end, nothing.
class DescriptionReader {
 public:
  explicit DescriptionReader(absl::string_view rest) : rest_(rest) {}

  uint64_t Number() {
    if (rest_.size() < sizeof(uint64_t)) {
      complete_ = false;
      return 0;
    }
    const auto number = ReadLittleEndian<uint64_t>(rest_);
    rest_.remove_prefix(sizeof(uint64_t));
    return number;
  }
  absl::string_view Text() {
    const uint64_t length = Number();
    complete_ = complete_ && length <= rest_.size();
    if (!complete_) return "";
    const absl::string_view text = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return text;
  }
  template <typename Numbers>
  void ReadNumbers(Numbers& numbers) {
    for (uint64_t left = Number(); left > 0 && complete_; --left) {
      numbers.push_back(static_cast<typename Numbers::value_type>(Number()));
    }
  }

  bool is_complete() const { return complete_; }
  bool done() const { return rest_.empty() || !complete_; }

 private:
  absl::string_view rest_;
  bool complete_ = true;
};

absl::Status Malformed() {
  return absl::InternalError(
      "malformed description of a state from another rank; report this error");
}

absl::StatusOr<Description> ReadTensor(DescriptionReader& reader) {
  Description tensor;
  tensor.name = std::string(reader.Text());
  const uint64_t flags = reader.Number();
  tensor.per_rank = (flags & kPerRank) != 0;
  tensor.is_sharded = (flags & kSharded) != 0;
  tensor.is_direct = (flags & kDirect) != 0;
  const auto dtype = static_cast<int32_t>(reader.Number());
  if (!IsValid(dtype)) return Malformed();
  tensor.dtype = static_cast<DType>(dtype);
  reader.ReadNumbers(tensor.size);
  SHERD_ASSIGN_OR_RETURN(tensor.device, Device::Parse(reader.Text()));
  reader.ReadNumbers(tensor.members);
  const absl::string_view metadata = reader.Text();
  if (!metadata.empty()) {
    SHERD_ASSIGN_OR_RETURN(tensor.metadata, ParseMetadata(metadata));
  }
  return tensor;
}

}  // namespace

absl::Status CheckStateTensor(const StateTensor& tensor,
                              const ProcessGroup& group) {
  const std::string where = absl::StrCat("tensor ", Quoted(tensor.name));
  if (absl::StartsWith(tensor.name, kReservedPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": names that begin with ", Quoted(kReservedPrefix),
        " are those of a checkpoint's own tensors; give it another key"));
  }
  const absl::Status named = CheckTensorName(
      tensor.per_rank ? RankTensorName(group.rank(), tensor.name)
                      : tensor.name);
  if (!named.ok()) return Annotate(named, where);
  const auto* const sharded = std::get_if<ShardedTensor>(&tensor.value);
  if (sharded != nullptr ? sharded->defined()
                         : std::get<Tensor>(tensor.value).defined()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(where, " is not defined: create it first"));
}

absl::StatusOr<uint64_t> FingerprintOf(absl::Span<const StateTensor> tensors,
                                       const ProcessGroup& group) {
  // There are few groups and many tensors.
  absl::flat_hash_map<const ProcessGroup*, uint64_t> members;
  Fingerprint fingerprint;
  for (const StateTensor& tensor : tensors) {
    fingerprint.Add(tensor.name).Add(tensor.per_rank ? 1 : 0);
    if (const Tensor* const plain = std::get_if<Tensor>(&tensor.value)) {
      fingerprint.Add(0).Add(static_cast<int64_t>(plain->dtype()));
      AddSizes(plain->sizes(), fingerprint);
      const Device device = DeviceOf(*plain, group);
      fingerprint.Add(static_cast<int64_t>(device.type)).Add(device.index);
      continue;
    }
    const auto& sharded = std::get<ShardedTensor>(tensor.value);
    const ProcessGroup* const own = sharded.group().get();
    if (own == nullptr || tensor.per_rank) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name),
          own == nullptr ? " belongs to no group, expected one within "
                         : " is sharded, but one of per_rank, expected one "
                           "that is not sharded in ",
          Quoted(group.name())));
    }
    // Its layout is its own affair.
    fingerprint.Add(own == &group ? 1 : 2);
    fingerprint.Add(static_cast<int64_t>(sharded.dtype()));
    AddSizes(sharded.size(), fingerprint);
    if (own == &group) continue;
    const auto [it, is_new] = members.try_emplace(own, 0);
    if (is_new) {
      Fingerprint ranks;
      for (const int rank : own->world_ranks()) ranks.Add(rank);
      it->second = ranks.value();
    }
    fingerprint.Add(static_cast<int64_t>(it->second))
        .Add(static_cast<int64_t>(LayoutFingerprintOf(sharded)))
        .Add(sharded.requires_grad() ? 1 : 0);
  }
  return fingerprint.value();
}

std::vector<Description> Describe(absl::Span<const StateTensor> tensors,
                                  const ProcessGroup& group) {
  std::vector<Description> descriptions;
  for (const StateTensor& tensor : tensors) {
    Description& description = descriptions.emplace_back();
    description.name = tensor.name;
    description.per_rank = tensor.per_rank;
    if (const Tensor* const plain = std::get_if<Tensor>(&tensor.value)) {
      description.dtype = plain->dtype();
      description.size.assign(plain->sizes().begin(), plain->sizes().end());
      description.device = DeviceOf(*plain, group);
      continue;
    }
    const auto& sharded = std::get<ShardedTensor>(tensor.value);
    description.is_sharded = true;
    description.is_direct = sharded.group().get() == &group;
    description.dtype = sharded.dtype();
    description.size.assign(sharded.size().begin(), sharded.size().end());
    if (description.is_direct) continue;
    const auto& ranks = sharded.group()->world_ranks();
    description.members.assign(ranks.begin(), ranks.end());
    description.metadata = MetadataByRank(sharded);
  }
  return descriptions;
}

absl::StatusOr<std::string> EncodeDescription(
    absl::string_view shared_message, absl::Span<const Description> tensors) {
  std::string bytes;
  AppendText(shared_message, bytes);
  for (const Description& tensor : tensors) {
    AppendText(tensor.name, bytes);
    uint64_t flags = 0;
    if (tensor.per_rank) flags |= kPerRank;
    if (tensor.is_sharded) flags |= kSharded;
    if (tensor.is_direct) flags |= kDirect;
    AppendLittleEndian(flags, bytes);
    AppendLittleEndian(static_cast<uint64_t>(tensor.dtype), bytes);
    AppendNumbers(tensor.size, bytes);
    AppendText(tensor.device.ToString(), bytes);
    AppendNumbers(tensor.members, bytes);
    std::string metadata;
    if (tensor.is_sharded && !tensor.is_direct) {
      SHERD_ASSIGN_OR_RETURN(metadata, SerializeMetadata(tensor.metadata));
    }
    AppendText(metadata, bytes);
  }
  return bytes;
}

absl::StatusOr<StateDescription> DecodeDescription(absl::string_view bytes) {
  DescriptionReader reader(bytes);
  StateDescription description;
  int64_t memory = 0;
  // Of a load there is none.
  const absl::string_view shared = reader.Text();
  if (!shared.empty()) {
    SHERD_ASSIGN_OR_RETURN(description.shared, DecodeStateTree(shared, memory));
  }
  while (!reader.done()) {
    SHERD_ASSIGN_OR_RETURN(Description tensor, ReadTensor(reader));
    description.tensors.push_back(std::move(tensor));
  }
  if (!reader.is_complete()) return Malformed();
  return description;
}

}  // namespace sherd
